"""Queues with parents: the tree that operators' settings make, and what each queue in it has. Pure.

Settings come one at a time and from several people, so they need not make a tree. Whoever reads
them believes what can be believed, by rules that depend on nothing but the settings:

- A parent counts if it was set, is not the queue ``default``, and no cluster's Kueue governs it or
  its child. A queue that is among its own ancestors has no parent.
- A parent that names no guarantee has what its children are guaranteed together; the same holds for
  what is deserved.
- What a child is guaranteed it is guaranteed beside everybody, as long as the guarantees of all
  children stay within their parent's. Where they do not, each has its guarantee among its siblings,
  and the parent has no more than its own beside others.

Example: research is guaranteed 10 GPUs; its children vision and speech are guaranteed 6 and 2. A
job of vision is within guarantees up to 6 GPUs whatever speech has borrowed, and beyond that while
research has less than 10 in all.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from berthmaster.lib.engine.queueing.queues import (
    GPU,
    MODEL,
    Amounts,
    Ask,
    Models,
    QueueShare,
    Right,
    Tier,
    right,
    share_of,
    tier,
)
from berthmaster.lib.messages.control import QueueSetting

DEFAULT_QUEUE: Final = "default"  # what requests name that name none: always takes them

Path = tuple[QueueShare, ...]  # a queue, its parent, and so on


class Level(NamedTuple):
    """By what right a queue, or one above it, would have a job."""

    queue: str
    tier: Tier
    priority: int


class QueueTree:
    def __init__(self, settings: Mapping[str, QueueSetting]) -> None:
        parent_of = {
            name: setting.parent
            for name, setting in settings.items()
            if setting.parent and _may_be(settings, name, setting.parent)
        }
        for name in _in_circles(parent_of):
            del parent_of[name]
        self.parents = {name: _ancestors(parent_of, name) for name in parent_of}
        self.children: dict[str, list[str]] = {}
        for name in sorted(parent_of):
            self.children.setdefault(parent_of[name], []).append(name)
        self._shares = {name: share_of(name, setting) for name, setting in settings.items()}
        self._overdrawn: set[str] = set()  # whose children are guaranteed more than they are
        for name in sorted(self.children, key=lambda n: -len(self.parents.get(n, ()))):
            self._complete(name)
        self._paths: dict[str, Path] = {}

    def _complete(self, name: str) -> None:
        """What a parent does not say; its children are complete."""
        share = self._shares[name]
        below = [self._shares[child] for child in self.children[name]]
        if not share.guarantee:
            share = share._replace(guarantee=_sum([each.guarantee for each in below]))
        elif beyond(share.guarantee, [each.guarantee for each in below]):
            self._overdrawn.add(name)
        if not share.deserved:
            share = share._replace(deserved=_sum([each.deserved for each in below]))
        self._shares[name] = share

    def path(self, queue: str) -> Path:
        """A queue's share, and those of the queues above it, the nearest first."""
        found = self._paths.get(queue)
        if found is None:
            names = (queue, *self.parents.get(queue, ()))
            found = tuple(self._shares.get(name) or QueueShare(name) for name in names)
            self._paths[queue] = found
        return found

    def share(self, queue: str) -> QueueShare:
        return self.path(queue)[0]

    def roots(self) -> dict[str, QueueShare]:
        """The queues that have their part of the fleet itself."""
        return {name: share for name, share in self._shares.items() if name not in self.parents}

    def keeps(self, queue: str) -> bool:
        """Whether what its children are guaranteed counts beside others too."""
        return queue not in self._overdrawn

    def levels(
        self, queue: str, used: Callable[[str], Mapping[str, int]], ask: Ask, models: Models
    ) -> tuple[Level, ...]:
        """By what right each queue on the path would have a job, the queue itself first."""
        found: list[Level] = []
        for share in self.path(queue):
            by = tier(share, used(share.queue), ask, models)
            if found and found[-1].tier is Tier.GUARANTEED and self.keeps(share.queue):
                by = Tier.GUARANTEED
            found.append(Level(share.queue, by, share.priority))
        return tuple(found)


def right_along(
    path: Path,
    used: Callable[[str], Mapping[str, int]],
    running: Callable[[str], int],
    ask: Ask,
    models: Models,
) -> Right:
    """Whether one more job keeps a queue and all above it within their limits."""
    if len(path) == 1:
        own = path[0]
        return right(own, used(own.queue), running(own.queue), ask, models)
    barred: list[str] = []
    left: dict[str, int] = {}
    for at, share in enumerate(path):
        who = f"the queue {share.queue}, above its own," if at else "its queue"
        found = right(share, used(share.queue), running(share.queue), ask, models, who, barred)
        if found.refusal:
            return found
        barred += found.barred
        for resource, milli in found.left:
            left[resource] = min(milli, left.get(resource, milli))
    return Right("", tuple(dict.fromkeys(barred)), tuple(left.items()))


def gpus_in(amounts: Mapping[str, int]) -> int:
    """GPU milli of whatever model, as far as amounts say it: by model, or of any."""
    models = sum(amount for name, amount in amounts.items() if name.startswith(MODEL))
    return max(amounts.get(GPU, 0), models)


def beyond(whole: Mapping[str, int], parts: list[Mapping[str, int]]) -> dict[str, tuple[int, int]]:
    """Resource -> what the parts have together and what there is, where that is more. A model that
    the whole does not name counts among its GPUs."""
    total = _sum(parts)
    gpus = sum(map(gpus_in, parts))
    found = {}
    if gpus > gpus_in(whole):
        found[GPU] = (gpus, gpus_in(whole))
    for resource, amount in sorted(total.items()):
        if resource == GPU or (resource.startswith(MODEL) and resource not in whole):
            continue
        if amount > whole.get(resource, 0):
            found[resource] = (amount, whole.get(resource, 0))
    return found


def _sum(many: list[Mapping[str, int]]) -> Amounts:
    total: Amounts = {}
    for amounts in many:
        for resource, amount in amounts.items():
            total[resource] = total.get(resource, 0) + amount
    return total


def _may_be(settings: Mapping[str, QueueSetting], name: str, parent: str) -> bool:
    above = settings.get(parent)
    return (
        above is not None
        and parent != DEFAULT_QUEUE
        and above.via == "direct"
        and settings[name].via == "direct"
    )


def _in_circles(parent_of: Mapping[str, str]) -> set[str]:
    """Queues that are among their own ancestors."""
    found: set[str] = set()
    done: set[str] = set()
    for name in parent_of:
        way: dict[str, None] = {}
        at: str | None = name
        while at is not None and at not in way and at not in done:
            way[at] = None
            at = parent_of.get(at)
        if at in way:
            names = list(way)
            found.update(names[names.index(at) :])
        done.update(way)
    return found


def _ancestors(parent_of: Mapping[str, str], name: str) -> tuple[str, ...]:
    found = []
    at = parent_of.get(name)
    while at is not None:
        found.append(at)
        at = parent_of.get(at)
    return tuple(found)
