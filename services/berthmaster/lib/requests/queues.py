"""Checks a queue's setting, and whether a queue accepts a tenant's request. Pure.

- The tree: whether a queue may have its parent and limits. The service that sets a queue checks
  this. Several operators may set queues at once, so an invalid tree may still be stored.
  lib/engine/queueing/queues.py describes how readers handle one.
- Bounds of a queue's requests. The gateway refuses a request above them, and so does a dry run.
  Jobs accepted before a bound was set continue.
- ``via: hub``: such a job is a plain Job on the hub, which MultiKueue copies to a worker. So the
  job can have no other objects that Berthmaster would create in the worker. The gateway refuses
  such a request at once, and the hub's reconciler calls the same function again.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from berthmaster.lib.engine.queueing.queues import (
    DEFAULT_QUEUE,
    GPU,
    QueueTree,
    amount_text,
    ask_of,
    beyond,
)
from berthmaster.lib.lifecycle.choices import largest
from berthmaster.lib.lifecycle.pods import is_elastic, is_set_elastic
from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.control import JobDefaults, QueueAllows, QueueSetting
from berthmaster.lib.messages.explain import Step, invalid, nearest, shorten
from berthmaster.lib.messages.runtimes import RuntimeSetting
from berthmaster.lib.messages.workload import JobRequest, PodSet
from berthmaster.lib.requests.choices import hub_refusal, trial_refusal
from berthmaster.lib.requests.pod_sets import via_refusal
from berthmaster.lib.requests.runtimes import filled_in

MAX_QUEUES_ABOVE: Final = 8
MAX_CHILDREN_NAMED: Final = 10


def placing_fault(queues: Mapping[str, QueueSetting], setting: QueueSetting) -> Refusal | None:
    """Return a refusal of a setting that contradicts the other queues, if any."""
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
    """Refuse children's guarantees above their parent's amounts, for each queue on the way to the
    root.
    """
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
    """Return a refusal of a request for a queue with children, if so. The refusal names only queues
    open to the tenant.
    """
    below = [each for each in queues.values() if each.parent == queue and not each.deleted]
    if not below or queue not in QueueTree(queues).children:
        return None
    usable = sorted(each.queue for each in below if not each.tenants or tenant in each.tenants)
    named = ", ".join(usable[:MAX_CHILDREN_NAMED]) or "none that is open to this tenant"
    return invalid(["queue"], queue, f"a queue without others below it; below this one: {named}")


# final characters of a listed image that stands for all images with that prefix
BEGINNINGS = ("/", ":")


def request_refusal(setting: QueueSetting, request: JobRequest) -> Refusal | None:
    """Return a refusal if this queue's bounds exclude the request."""
    return priority_refusal(setting, request.priority) or next(
        _beyond(setting.queue, setting.allows, request), None
    )


def priority_refusal(setting: QueueSetting, priority: int) -> Refusal | None:
    """Return a refusal if the queue's maximum priority excludes this one."""
    most = setting.max_priority
    if most is None or priority <= most:
        return None
    return invalid(["priority"], priority, f"at most {most} in the queue {setting.queue!r}")


def _beyond(queue: str, allows: QueueAllows, request: JobRequest) -> Iterator[Refusal]:
    image = request.run.image
    if image and allows.images is not None and not _is_listed(image, allows.images):
        yield _refused(["run", "image"], image, "an image", allows.images, queue)
    for at, pods in enumerate(request.pod_sets):
        where: list[Step] = ["pod_sets", at]
        yield from _models_beyond(where, queue, allows, pods)
        labels = allows.node_labels
        for key in pods.node_labels if labels is not None else ():
            if labels is not None and key not in labels:
                yield _refused([*where, "node_labels"], key, "labels", labels, queue)
        if allows.tolerations is None:
            continue
        for number, toleration in enumerate(pods.tolerations):
            if toleration.key not in allows.tolerations:  # an empty key tolerates every taint
                path = [*where, "tolerations", number, "key"]
                yield _refused(path, toleration.key, "taints", allows.tolerations, queue)


def _models_beyond(
    where: list[Step], queue: str, allows: QueueAllows, pods: PodSet
) -> Iterator[Refusal]:
    """Yield refusals of accelerator models. TPU kinds are listed among the models. The devices of a
    claim are unknown.
    """
    yield from _resources_beyond([*where, "resources"], queue, allows, pods)
    if allows.gpu_models is None:
        return
    known = {model.casefold() for model in allows.gpu_models}
    asked = (("gpu_models", pods.gpus), ("tpu_accelerators", pods.tpus))
    for field in [field for field, number in asked if number]:
        models = getattr(pods, field)
        chosen = pods.choose is not None and pods.choose.gpu_models == models
        path = [*where, "choose", field] if models and chosen else [*where, field]
        if not models:
            yield _refused(path, (), "one or several", allows.gpu_models, queue)
        for model in models:
            if model.casefold() not in known:
                yield _refused(path, model, "models", allows.gpu_models, queue)
    if pods.claims:
        why = f"no claims: the queue {queue!r} allows some GPU models, and claims may bring others"
        yield invalid([*where, "claims"], pods.claims, why)


def _resources_beyond(
    path: list[Step], queue: str, allows: QueueAllows, pods: PodSet
) -> Iterator[Refusal]:
    """Yield refusals of extended resources. Other vendors' accelerators, GPU shares under other
    names, kvm and fuse are extended resources too. So if models are listed and resources are not,
    none is allowed.
    """
    listed = allows.resources
    if listed is None and allows.gpu_models is not None:
        listed = ()
    if listed is None:
        return
    for name in pods.resources:
        if name not in listed:
            yield _refused([*path, name], name, "resources", listed, queue)


def _is_listed(image: str, listed: Iterable[str]) -> bool:
    return any(
        image == one or (one.endswith(BEGINNINGS) and image.startswith(one)) for one in listed
    )


def _refused(
    path: list[Step], value: object, what: str, allowed: tuple[str, ...], queue: str
) -> Refusal:
    names = ", ".join(allowed) or "(none)"
    return invalid(path, value, f"{what} of those that the queue {queue!r} allows: {names}")


_WAY_OUT = "a queue that is direct or via worker takes it"


def by_hub_refusal(request: JobRequest) -> Refusal | None:
    """Return a refusal of a field that a job by way of the hub cannot have, with an alternative."""
    if len(request.pod_sets) != 1:
        told = f"{len(request.pod_sets)} pod sets"
        return _nothing(["pod_sets"], told, "one pod set, as a plain Job has no more")
    pods = request.pod_sets[0]
    path: list[Step] = ["pod_sets", 0]
    if pods.gpus and pods.gpu_milli < 1000:
        right = "1000: by way of the hub there are no parts of a GPU"
        return _nothing([*path, "gpu_milli"], pods.gpu_milli, right)
    if pods.gpu_memory_mib:
        right = "nothing by way of the hub: name gpu_models"
        return _nothing([*path, "gpu_memory_mib"], pods.gpu_memory_mib, right)
    if pods.topology is not None:
        right = "nothing by way of the hub: its pods carry no label of ours"
        return _nothing([*path, "topology"], "topology", right)
    if request.runtime is not None and pods.count > 1:
        right = (
            f"1 with the runtime {request.runtime.name!r} by way of the hub, where nobody makes "
            "the Service that pods find each other by"
        )
        return _nothing([*path, "count"], pods.count, right)
    if request.deadline_s is not None:
        right = "nothing by way of the hub: the worker's own queue starts it, at a time of its own"
        return _nothing(["deadline_s"], request.deadline_s, right)
    return None


def _nothing(path: list[Step], value: object, right: str) -> Refusal:
    return invalid(path, value, f"{right}; {_WAY_OUT}")


NO_QUEUES: Final = {DEFAULT_QUEUE: QueueSetting(queue=DEFAULT_QUEUE)}  # before an operator sets one
MAX_QUEUES_NAMED: Final = 20


def taken(
    queues: Mapping[str, QueueSetting],
    runtimes: Mapping[str, RuntimeSetting],
    tenant: str,
    request: JobRequest,
    waiting: Mapping[str, int],
) -> JobRequest | Refusal:
    """Return the request with its runtime's fields, or a refusal. The operator who allows a runtime
    is responsible for these fields. Only their image is checked against the queue's bounds.
    """
    filled = filled_in(request, tenant, runtimes)
    if isinstance(filled, Refusal):  # a refusal must reveal nothing about another tenant's queue
        return _not_open(queues, tenant, request.queue) or filled
    asked = replace(request, run=filled.run)
    return refusal_of(queues, tenant, asked, waiting) or filled


def refusal_of(
    queues: Mapping[str, QueueSetting],
    tenant: str,
    request: JobRequest,
    waiting: Mapping[str, int],
) -> Refusal | None:
    """Return a refusal if the request's queue does not accept the request. ``waiting``: queue ->
    number of waiting jobs.
    """
    refusal = _not_open(queues, tenant, request.queue) or inner_refusal(
        queues, tenant, request.queue
    )
    if refusal is not None:
        return refusal
    setting = queues[request.queue]
    if setting.via == "hub" and is_elastic(request):
        return _not_elastic(setting, request)
    if refusal := hub_refusal(setting, request):
        return refusal
    if setting.via == "hub" and (refusal := by_hub_refusal(request)):
        return refusal
    if setting.via == "worker" and request.deadline_s is not None:
        why = f"the Kueue of a cluster starts the jobs of the queue {setting.queue!r}, at its time"
        return invalid(["deadline_s"], request.deadline_s, f"nothing: {why}")
    if refusal := via_refusal(setting, request):
        return refusal
    if refusal := trial_refusal(setting, request, request_refusal):
        return refusal
    return request_refusal(setting, request) or _too_much(setting, request, waiting)


def with_defaults(setting: QueueSetting, request: JobRequest, body: bytes) -> JobRequest:
    """Return the request with the queue's defaults for unset fields. ``body``: the request as
    received, which shows whether ``preemptible`` was set.
    """
    defaults = {
        name: default
        for name in JobDefaults.__struct_fields__
        if (default := getattr(setting.defaults, name)) is not None
    }
    if not defaults:
        return request
    said = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return msgspec.structs.replace(
        request,
        **{
            name: default
            for name, default in defaults.items()
            if name not in said or bytes(said[name]) == b"null"
        },
    )


def _not_open(queues: Mapping[str, QueueSetting], tenant: str, queue: str) -> Refusal | None:
    """Return a refusal if this tenant cannot submit to this queue. The refusal names only queues
    that are open to the tenant.
    """
    setting = queues.get(queue)
    open_to_it = setting is not None and (not setting.tenants or tenant in setting.tenants)
    if setting is not None and open_to_it and not setting.deleted:
        return None
    usable = sorted(
        name
        for name, other in queues.items()
        if not other.deleted and (not other.tenants or tenant in other.tenants)
    )
    near = nearest(queue, usable)
    hint = f"did you mean {near!r}? " if near else ""
    named = ", ".join(usable[:MAX_QUEUES_NAMED]) + (", …" if usable[MAX_QUEUES_NAMED:] else "")
    wrong = "it was deleted" if open_to_it else "this one does not exist or is not open to it"
    return Refusal(
        code="forbidden" if open_to_it else "not_found",
        field="queue",
        value=shorten(queue),
        expected=f"a queue that takes requests of tenant {tenant!r}; {wrong}. "
        f"{hint}There are: {named or 'none'}",
    )


def _not_elastic(setting: QueueSetting, request: JobRequest) -> Refusal:
    """Refuse an elastic job by way of the hub: Kueue starts all its pods, and Berthmaster cannot
    change their number.
    """
    at, pods = next((at, pods) for at, pods in enumerate(request.pod_sets) if is_set_elastic(pods))
    field = "min_count" if pods.min_count is not None else "max_count"
    why = f"the queue {setting.queue!r} goes by way of the hub's Kueue, which starts all pods"
    return invalid(["pod_sets", at, field], getattr(pods, field), f"nothing: {why}")


def _too_much(
    setting: QueueSetting, request: JobRequest, waiting: Mapping[str, int]
) -> Refusal | None:
    """Return a refusal if the job is too large, or too many jobs wait."""
    most = setting.max_job_gpu_milli if setting.via == "direct" else None
    milli = ask_of(largest(request)).gpu_milli  # nodes may charge more, which the resolver checks
    if most is not None and milli > most:
        return Refusal(
            code="invalid",
            field="pod_sets",
            value=f"{milli / 1000:g} GPUs in all pods",
            expected=f"at most {most / 1000:g} GPUs in a job of the queue {setting.queue!r}",
        )
    limit = setting.max_waiting_jobs
    if limit is not None and waiting.get(setting.queue, 0) >= limit:
        why = f"the queue {setting.queue!r} lets {limit} jobs wait, and they do"
        return Refusal(code="overloaded", field="", value="", expected=why, retry=True)
    return None
