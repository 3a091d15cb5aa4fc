"""Whether a queue may stand where its setting puts it, among the queues that there are. Pure.

Whoever sets a queue is told here. Several may set queues at once, so all that is refused here may
still be found set: lib/engine/queueing/tree.py says what readers make of it.
"""

from collections.abc import Mapping
from typing import Final

from berthmaster.lib.engine.queueing.queues import GPU, amount_text
from berthmaster.lib.engine.queueing.tree import DEFAULT_QUEUE, QueueTree, beyond
from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.explain import Step, invalid

MAX_QUEUES_ABOVE: Final = 8
MAX_CHILDREN_NAMED: Final = 10


def placing_fault(queues: Mapping[str, QueueSetting], setting: QueueSetting) -> Refusal | None:
    """What is wrong with a setting beside the others, if anything."""
    then = {name: each for name, each in queues.items() if not each.deleted}
    then[setting.queue] = setting
    below = sorted(name for name, each in then.items() if each.parent == setting.queue)
    return (
        _parent_fault(then, setting)
        or _children_fault(setting, [name for name in below if name != setting.queue])
        or _guarantee_fault(then, setting)
    )


def _parent_fault(then: Mapping[str, QueueSetting], setting: QueueSetting) -> Refusal | None:
    parent = setting.parent
    if not parent:
        return None

    def wrong(expected: str) -> Refusal:
        return invalid(["parent"], parent, expected)

    if setting.deleted:
        return None
    if setting.via != "direct":
        return wrong(f"none: Kueue governs the queue {setting.queue!r}, and its order and quota")
    if parent == setting.queue:
        return wrong("another queue than itself")
    if parent == DEFAULT_QUEUE:
        return wrong("a queue that takes no requests; what names no queue goes to this one")
    above = then.get(parent)
    if above is None:
        return wrong("a queue that was set; there is none of this name")
    if above.via != "direct":
        return wrong("a queue that is placed directly; Kueue governs this one, with its cohorts")
    way = [setting.queue, parent]
    while (nearest := then[way[-1]].parent) and nearest in then:
        if nearest in way:
            circle = " -> ".join([*way, nearest])
            return wrong(f"a queue that is not below this one; this goes round: {circle}")
        way.append(nearest)
    if len(way) - 1 > MAX_QUEUES_ABOVE:
        return wrong(f"a queue with at most {MAX_QUEUES_ABOVE - 1} above it")
    return None


def _children_fault(setting: QueueSetting, below: list[str]) -> Refusal | None:
    if not below:
        return None
    named = ", ".join(below[:MAX_CHILDREN_NAMED]) + (", …" if below[MAX_CHILDREN_NAMED:] else "")
    if setting.deleted:
        why = f"false: it is the parent of {named}; give these another parent, or delete them first"
        return invalid(["deleted"], True, why)
    if setting.via != "direct":
        return invalid(["via"], setting.via, f"direct: it is the parent of {named}")
    return None


def _guarantee_fault(then: Mapping[str, QueueSetting], setting: QueueSetting) -> Refusal | None:
    """Guarantees of children beyond what their parent has, on the way to the top."""
    if setting.deleted:
        return None
    tree = QueueTree(then)
    for share in tree.path(setting.queue):
        children = tree.children.get(share.queue, ())
        guarantees = [tree.share(child).guarantee for child in children]
        named = {resource for guarantee in guarantees for resource in guarantee}
        limits = {r: amount for r, amount in share.capability.items() if r in named}
        limited = [{r: amount for r, amount in g.items() if r in limits} for g in guarantees]
        for what, has, parts in (
            ("guaranteed", share.guarantee, guarantees),
            ("limited to", limits, list[Mapping[str, int]](limited)),
        ):
            if not has:
                continue
            for resource, (asked, there) in sorted(beyond(has, parts).items()):
                return _told(setting, share.queue, what, resource, asked, there)
    return None


def _told(
    setting: QueueSetting, parent: str, what: str, resource: str, asked: int, there: int
) -> Refusal:
    field: list[Step] = ["guarantee_gpu_milli"]
    if setting.guarantee_gpu_milli is None or resource != GPU:
        field = ["resources"] if setting.resources else field
    together = amount_text(resource, asked)
    if parent == setting.queue:
        if what == "limited to" and resource == GPU:
            field = ["capability_gpu_milli"]
        why = f"at least {together}: so much its children are guaranteed together"
        return invalid(field, amount_text(resource, there), why)
    why = (
        f"less: the children of {parent!r} would be guaranteed {together} together, "
        f"and it is {what} {amount_text(resource, there)}"
    )
    value = setting.guarantee_gpu_milli if field == ["guarantee_gpu_milli"] else resource
    return invalid(field, value, why)


def inner_refusal(queues: Mapping[str, QueueSetting], tenant: str, queue: str) -> Refusal | None:
    """Why no request may name a queue that has others below it. Names only those open to it."""
    below = [each for each in queues.values() if each.parent == queue and not each.deleted]
    if not below or queue not in QueueTree(queues).children:
        return None
    usable = sorted(each.queue for each in below if not each.tenants or tenant in each.tenants)
    named = ", ".join(usable[:MAX_CHILDREN_NAMED]) or "none that is open to this tenant"
    return invalid(["queue"], queue, f"a queue without others below it; below this one: {named}")
