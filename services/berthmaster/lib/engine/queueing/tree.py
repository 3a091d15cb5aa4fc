"""Queues with parents: the tree of operators' settings, and the shares in the tree. Pure.

Example: research is guaranteed 10 GPUs; its children vision and speech are guaranteed 6 and 2. A
job of vision is within its guarantee up to 6 GPUs, whatever speech has borrowed. Beyond 6 it is
within the guarantee while research uses less than 10 in all.

Settings arrive one at a time and from several operators, so they may not form a tree. Rules that
depend on settings alone:

- A parent is valid if set, not named ``default``, and if no cluster's Kueue governs parent or
  child. A queue among its own ancestors has no parent.
- A parent without a guarantee has the sum of its children's, and likewise for deserved shares.
- A child's guarantee holds against all queues, as long as the children's guarantees stay within the
  parent's. Otherwise each child has its guarantee among its siblings, and the parent only its own
  against others.
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

DEFAULT_QUEUE: Final = "default"  # queue of requests without one, always accepted

Path = tuple[QueueShare, ...]  # a queue, its parent, and so on


class Level(NamedTuple):
    """Precedence of a queue or parent queue for a job."""

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
        self._overdrawn: set[str] = set()  # queues whose children's guarantees exceed their own
        for name in sorted(self.children, key=lambda n: -len(self.parents.get(n, ()))):
            self._complete(name)
        self._paths: dict[str, Path] = {}

    def _complete(self, name: str) -> None:
        """Fill in the shares of a parent from complete children."""
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
        """Return the shares of a queue and its parents, nearest first."""
        found = self._paths.get(queue)
        if found is None:
            names = (queue, *self.parents.get(queue, ()))
            found = tuple(self._shares.get(name) or QueueShare(name) for name in names)
            self._paths[queue] = found
        return found

    def share(self, queue: str) -> QueueShare:
        return self.path(queue)[0]

    def roots(self) -> dict[str, QueueShare]:
        """Return the top-level queues."""
        return {name: share for name, share in self._shares.items() if name not in self.parents}

    def keeps(self, queue: str) -> bool:
        """Return whether the children's guarantees hold against other queues too."""
        return queue not in self._overdrawn

    def levels(
        self, queue: str, used: Callable[[str], Mapping[str, int]], ask: Ask, models: Models
    ) -> tuple[Level, ...]:
        """Return the precedence of each queue on the path, the queue itself first."""
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
    """Return whether one more job keeps a queue and all parents within their limits."""
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
    """Return GPU milli of any model: the total, or the sum over models."""
    models = sum(amount for name, amount in amounts.items() if name.startswith(MODEL))
    return max(amounts.get(GPU, 0), models)


def beyond(whole: Mapping[str, int], parts: list[Mapping[str, int]]) -> dict[str, tuple[int, int]]:
    """Return resources with a sum of parts above the whole, with both values. A model that the
    whole does not name counts among its GPUs.
    """
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
