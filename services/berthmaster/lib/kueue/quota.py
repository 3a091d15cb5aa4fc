"""Whether a ClusterQueue lets a request in: never, now (with which flavors), or not yet. Pure.

Kueue decides; this works out what it will decide, by its own rules, from what the inventory
reports. Whoever chooses a cluster asks here and nowhere else.

Rules of this file, each of them Kueue's (a test runs the same table against a real one):

- A resource is granted by one resource group. For each pod set and each group, one flavor has to
  provide all resources of the group: GPUs left in flavor a and CPU left in flavor b are no room.
- A flavor is passed over if the pods do not tolerate its taints, or ask for other values of its
  node labels. Labels that it does not name say nothing against it.
- The first flavor with room is taken; in a queue that tries the next flavor before it borrows, the
  first that borrows from nearest. Pod sets are assigned one after the other, and what the earlier
  ones were given is no longer there for the later ones. If one of these finds no room, Kueue tries
  again with the next flavors for the earlier ones.
- A queue has its nominal quota and what its cohort leaves over: at most its borrowing limit on top.
  What exceeds a lending limit stays with its owner. Cohorts lend to each other in the same way.
- "Never" is what does not fit although nothing runs anywhere. Preemption is left to Kueue: what
  would only fit after one is not let in now.

Example: queues a and b of one cohort have 8 GPUs each, b lends 3 of them at most, and b uses 7.
b keeps 8 - 3 = 5 for itself, so of its 7 it has 2 from the cohort. The cohort has 8 + 3 = 11, of
which 2 are used: a can have 9 now, and 11 when b is empty. Asked for 10, the answer is "not yet",
for 12 "never".
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, NewType

import msgspec

from berthmaster.lib.accelerators.table import names_in
from berthmaster.lib.engine.fleet.cluster_filters import tolerates
from berthmaster.lib.engine.fleet.gpus import is_one_of
from berthmaster.lib.messages.fleet import FlavorQuota, LocalQueueReport, QueueReport, QuotaAmount
from berthmaster.lib.messages.workload import PodSet

PODS: Final = "pods"  # a resource that every pod takes one of, where a queue grants it
NO_QUOTA: Final = "no quota left"
UNLIMITED: Final = float("inf")
_UNITS: Final = {"memory": "MiB of memory"}
MOST_ATTEMPTS: Final = 64  # of Kueue's to find flavors for several pod sets
DIVISIBLE: Final = ("cpu", "memory", PODS)  # what is no device

Place = tuple[str, str]  # flavor, resource
Amounts = Mapping[str, int]  # by resource: CPU in milli, memory in MiB, all else in pieces


class Ask(NamedTuple):
    """A pod set in Kueue's words: what all its pods together ask for. A job that we make later may
    name its GPUs in one of several ways, depending on the nodes; the first that will do counts."""

    pods: PodSet
    ways: tuple[Amounts, ...]  # never empty


class Gone(NamedTuple):
    """A pod set that is taken to have gone, and what is known of the flavors that it had."""

    ask: Ask
    flavors: Mapping[str, str] = {}  # resource -> flavor, where Kueue has said so
    nodes: Sequence[Mapping[str, str]] = ()  # labels of nodes that its pods are on


class Answer(NamedTuple):
    """How a request stands to a ClusterQueue."""

    never: str = ""  # why it can never be let in, or ""
    lacks: str = ""  # why it is not let in now, or ""
    flavors: tuple[Mapping[str, str], ...] = ()  # of each pod set: resource -> flavor; if let in
    borrows: bool = False  # it takes more than its own quota has left
    left: Mapping[str, int] = {}  # resource -> the most that one flavor in question has left

    @property
    def now(self) -> bool:
        """It would be let in now."""
        return not self.never and not self.lacks

    @property
    def devices_left(self) -> float:
        """Of the scarcest device that is asked for; infinite if none is."""
        return min((n for name, n in self.left.items() if name not in DIVISIBLE), default=UNLIMITED)


def queue_of(
    reports: Iterable[QueueReport], namespace: str, local_queue: str
) -> tuple[QueueReport, LocalQueueReport] | None:
    """The ClusterQueue that a LocalQueue leads to, and the LocalQueue."""
    for report in reports:
        for local in report.local_queues:
            if (local.namespace, local.name) == (namespace, local_queue):
                return report, local
    return None


def closed(report: QueueReport, local: LocalQueueReport) -> str:
    """Why nothing is let in whatever the quota, or "". That it is stopped comes first: a stopped
    ClusterQueue shows on its LocalQueue too, as one that is inactive."""
    what, why = "", ""
    if stop := stopped(report, local):
        return f"its {stop}"
    if not report.active:
        what, why = f"its ClusterQueue {report.queue} is not active", report.reason
    elif not local.active:
        what, why = f"its LocalQueue {local.name} is not active", local.reason
    return f"{what}: {why}" if what and why else what


def stopped(report: QueueReport, local: LocalQueueReport) -> str:
    """Which of both somebody has stopped, and how; or ""."""
    if report.stopped:
        return f"ClusterQueue {report.queue} is stopped (stopPolicy {report.stop_policy})"
    if local.stopped:
        return f"LocalQueue {local.name} is stopped (stopPolicy {local.stopped})"
    return ""


def counted(asks: Sequence[Ask], counted_as: Mapping[str, str]) -> Sequence[Ask]:
    """By the resources that a cluster's Kueue counts, where it counts some as others."""
    if not any(counted_as.keys() & way.keys() for ask in asks for way in ask.ways):
        return asks
    return [Ask(one.pods, tuple(_counted(way, counted_as) for way in one.ways)) for one in asks]


def _counted(way: Amounts, counted_as: Mapping[str, str]) -> Amounts:
    found: dict[str, int] = {}
    for name, amount in way.items():
        resource = counted_as.get(name, name)
        found[resource] = found.get(resource, 0) + amount
    return found


def without(
    report: QueueReport, gone: Iterable[Gone], counted_as: Mapping[str, str] | None = None
) -> QueueReport:
    """A queue once these pod sets of it have gone. Each had one flavor of a resource group: the one
    that is told, or else the first that it may have had."""
    flavors = list(report.flavors)
    groups = dict.fromkeys(frozenset(flavor.resources) for flavor in flavors)
    for one in gone:
        [ask] = counted([one.ask], counted_as or {})
        asked = {**_granted_way(report, ask), PODS: ask.pods.count}
        for resources in groups:
            part = {name: amount for name, amount in asked.items() if name in resources}
            for at, flavor in enumerate(flavors):
                if (
                    part
                    and flavor.resources.keys() == resources
                    and _may_have_had(flavor, one, part)
                ):
                    flavors[at] = _given_back(flavor, part)
                    break
    return msgspec.structs.replace(report, flavors=tuple(flavors))


def _may_have_had(flavor: FlavorQuota, gone: Gone, part: Amounts) -> bool:
    """Kueue gives pods the labels of their flavor, so they are on nodes that have these."""
    if told := {gone.flavors[name] for name in part if name in gone.flavors}:
        return flavor.flavor in told
    labels = flavor.node_labels.items()
    is_there = all(labels <= node.items() for node in gone.nodes)
    # Of devices Kueue counts what we do; of the rest with overhead and defaults.
    devices = [name for name in part if name not in DIVISIBLE] or list(part)
    is_used = all(flavor.resources[name].used >= part[name] for name in devices)
    return is_there and is_used and _suits(flavor, gone.ask.pods)


def _given_back(flavor: FlavorQuota, part: Amounts) -> FlavorQuota:
    """Without what the report does not count, or does not count any more."""
    less = {
        name: msgspec.structs.replace(granted, used=granted.used - part[name])
        for name, granted in flavor.resources.items()
        if granted.used >= part.get(name, math.inf)
    }
    return msgspec.structs.replace(flavor, resources={**flavor.resources, **less})


class Quotas:
    """The ClusterQueues of one cluster, with what is used of them and what is on its way there."""

    def __init__(
        self, reports: Iterable[QueueReport], counted_as: Mapping[str, str] | None = None
    ) -> None:
        """``counted_as``: of what is asked for, what Kueue counts as another resource."""
        self._counted_as = counted_as or {}
        self._reports = sorted(reports, key=lambda report: report.stamp)
        self._by_name = {report.queue: report for report in self._reports}
        self._used = _Trees(self._reports, used=True)
        self._empty: _Trees | None = None

    def charge(self, queue: str, asks: Sequence[Ask]) -> bool:
        """Take off what a placement on its way there will use. False: it will have to wait, and
        what waits uses nothing."""
        asks = counted(asks, self._counted_as)
        chosen = _assign(self._by_name[queue], self._used.queues[queue], asks)
        if isinstance(chosen, _Lack):
            return False
        for place, amount in chosen.taken.items():
            _take(self._used.queues[queue], place, amount)
        return True

    def answer(self, queue: str, asks: Sequence[Ask]) -> Answer:
        """How a request stands to a queue, with all that was charged."""
        report, node = self._by_name[queue], self._used.queues[queue]
        asks = counted(asks, self._counted_as)
        left = _left(report, node, asks)
        chosen = _assign(report, node, asks)
        if isinstance(chosen, _Assigned):
            return Answer(flavors=chosen.flavors, borrows=chosen.height > 0, left=left)
        if never := self._never(report, asks):
            return Answer(never=never, left=left)
        return Answer(lacks=chosen.for_now, left=left)

    def never(self, queue: str, asks: Sequence[Ask]) -> str:
        """Return why a queue could not grant a request even with nothing used of it, or ""."""
        return self._never(self._by_name[queue], counted(asks, self._counted_as))

    def _never(self, report: QueueReport, asks: Sequence[Ask]) -> str:
        if self._empty is None:
            self._empty = _Trees(self._reports, used=False)
        at_best = _assign(report, self._empty.queues[report.queue], asks)
        return at_best.for_ever(report.queue) if isinstance(at_best, _Lack) else ""


def promises(report: QueueReport, ask: Ask) -> bool:
    """Whether a flavor says by its labels that its nodes have all that the pods ask of a node."""
    devices = {name for way in ask.ways for name in way if name not in DIVISIBLE}
    return any(
        devices & flavor.resources.keys()
        and _suits(flavor, ask.pods)
        and ask.pods.node_labels.items() <= flavor.node_labels.items()
        and (not ask.pods.gpu_models or names_in(flavor.node_labels))
        for flavor in report.flavors
    )


# Queues and cohorts


class _Node:
    """A ClusterQueue or a cohort."""

    __slots__ = ("height", "parent", "quota", "subtree", "used")

    def __init__(self) -> None:
        self.parent: _Node | None = None
        self.quota: dict[Place, QuotaAmount] = {}
        self.subtree: dict[Place, int] = {}  # its own and what its children lend it
        self.used: dict[Place, int] = {}
        self.height = 0  # above the farthest queue below it

    def set_quota(self, flavors: Iterable[FlavorQuota]) -> None:
        self.quota = {(f.flavor, name): one for f in flavors for name, one in f.resources.items()}
        self.subtree = {place: one.nominal for place, one in self.quota.items()}

    def kept(self, place: Place) -> int:
        """What it never lends."""
        quota = self.quota.get(place)
        if quota is None or quota.lending_limit is None:
            return 0
        return max(0, self.subtree[place] - quota.lending_limit)

    def kept_left(self, place: Place) -> int:
        return max(0, self.kept(place) - self.used.get(place, 0))

    def free(self, place: Place) -> int:
        """What may still be used here; negative if more is used than there is."""
        here, used = self.subtree.get(place, 0), self.used.get(place, 0)
        if self.parent is None:
            return here - used
        above = self.parent.free(place)
        quota = self.quota.get(place)
        if quota is not None and quota.borrowing_limit is not None:
            kept = self.kept(place)
            own = (here - kept) - max(0, used - kept)  # of what it has put into its cohort
            above = min(above, own + quota.borrowing_limit)
        return self.kept_left(place) + above

    def path(self) -> Iterable["_Node"]:
        """The cohorts above it, the nearest first."""
        node = self.parent
        while node is not None:
            yield node
            node = node.parent


class _Trees:
    """All ClusterQueues of a cluster below their cohorts. ``reports``: the oldest first, since of
    a cohort the newest says how it is."""

    def __init__(self, reports: Iterable[QueueReport], *, used: bool) -> None:
        self.queues: dict[str, _Node] = {}
        self._cohorts: dict[str, _Node] = {}
        for report in reports:
            node = self.queues[report.queue] = _Node()
            node.set_quota(report.flavors)
            if used:
                for flavor in report.flavors:
                    for name, one in flavor.resources.items():
                        node.used[flavor.flavor, name] = one.used
            if report.cohort:
                node.parent = self._cohort(report.cohort)
                for cohort in report.cohorts:
                    found = self._cohort(cohort.cohort)
                    found.set_quota(cohort.flavors)
                    found.parent = self._cohort(cohort.parent) if cohort.parent else None
        self._add_up()

    def _cohort(self, name: str) -> _Node:
        return self._cohorts.setdefault(name, _Node())

    def _add_up(self) -> None:
        """Children before their parents. Reports of different moments may make a circle of
        cohorts: it is cut, where Kueue would let nothing in."""
        depth: dict[int, int] = {}
        for node in self._cohorts.values():
            seen, at = {id(node)}, node
            while at.parent is not None:
                if id(at.parent) in seen:
                    at.parent = None
                    break
                seen.add(id(at.parent))
                at = at.parent
        for node in self._cohorts.values():
            depth[id(node)] = sum(1 for _ in node.path())
        inner = sorted(self._cohorts.values(), key=lambda node: -depth[id(node)])
        for node in [*self.queues.values(), *inner]:
            above = node.parent
            if above is None:
                continue
            above.height = max(above.height, node.height + 1)
            for place, amount in node.subtree.items():
                lent = amount - node.kept(place)
                above.subtree[place] = above.subtree.get(place, 0) + lent
            for place, amount in node.used.items():
                taken = max(0, amount - node.kept(place))
                above.used[place] = above.used.get(place, 0) + taken


def _take(node: _Node, place: Place, amount: int) -> None:
    """Charge it here, and above here what is more than is kept here."""
    rest = amount - node.kept_left(place)
    node.used[place] = node.used.get(place, 0) + amount
    if node.parent is not None and rest > 0:
        _take(node.parent, place, rest)


def _height(queue: _Node, place: Place, amount: int) -> int:
    """How far up an amount has to be borrowed: 0 = its own quota has it left."""
    if queue.parent is None or queue.used.get(place, 0) + amount <= queue.subtree.get(place, 0):
        return 0
    rest = amount - queue.kept_left(place)
    height = 0
    for cohort in queue.path():
        height = cohort.height
        if cohort.used.get(place, 0) + rest <= cohort.subtree.get(place, 0):
            break
        rest -= cohort.kept_left(place)
    return height


# Flavors


class _Assigned(NamedTuple):
    """Which flavors all pod sets get."""

    flavors: tuple[Mapping[str, str], ...]
    taken: Mapping[Place, int]
    height: int


class _Lack(NamedTuple):
    """What is missing: a resource and the most of it that there is, or something else in words."""

    words: str = ""
    resource: str = ""
    asked: int = 0
    most: int = 0
    before: int = 0  # of it that earlier pod sets have taken

    @property
    def for_now(self) -> str:
        if self.words:
            return f"{NO_QUOTA}: {self.words}"
        asked = _amount(self.resource, self.asked)
        unit = _UNITS.get(self.resource, self.resource)
        return f"{NO_QUOTA}: needs {asked} {unit}, {_amount(self.resource, self.most)} left"

    def for_ever(self, queue: str) -> str:
        if self.words:
            return self.words
        whole = (n + self.before for n in (self.asked, self.most))
        asked, most = (_amount(self.resource, n) for n in whole)
        unit = _UNITS.get(self.resource, self.resource)
        return f"ClusterQueue {queue} grants {most} {unit} at most, {asked} are asked for"


def _amount(resource: str, amount: int) -> str:
    return f"{amount / 1000:g}" if resource == "cpu" else str(amount)


_Starts = NewType("_Starts", tuple[tuple[int, ...], ...])  # a flavor's number, by pod set and group


class _Group(NamedTuple):
    """A resource group: each resource is in one of them, and its flavors all have its resources."""

    resources: frozenset[str]
    flavors: list[FlavorQuota]


def _groups(report: QueueReport) -> list[_Group]:
    found: dict[frozenset[str], list[FlavorQuota]] = {}
    for flavor in report.flavors:
        found.setdefault(frozenset(flavor.resources), []).append(flavor)
    return [_Group(*each) for each in found.items()]


def _assign(report: QueueReport, queue: _Node, asks: Sequence[Ask]) -> _Assigned | _Lack:
    """Flavors for all pod sets, as Kueue would give them now. Where a later pod set finds no room,
    Kueue tries again, and the earlier ones begin behind the flavors that they had."""
    groups = _groups(report)
    starts = _Starts(tuple((0,) * len(groups) for _ in asks))
    lack: _Lack | None = None
    for _ in range(MOST_ATTEMPTS):
        found, tried = _attempt(report, groups, queue, asks, starts)
        if isinstance(found, _Assigned):
            return found
        lack = lack or found  # the first attempt says most
        if not any(any(each) for each in tried):
            break
        starts = tried
    assert lack is not None
    return lack


def _attempt(
    report: QueueReport,
    groups: Sequence[_Group],
    queue: _Node,
    asks: Sequence[Ask],
    starts: _Starts,
) -> tuple[_Assigned | _Lack, _Starts]:
    """With where to begin if this is not it."""
    taken: dict[Place, int] = {}
    flavors: list[Mapping[str, str]] = []
    height = 0
    nexts = [(0,) * len(groups) for _ in asks]
    for number, ask in enumerate(asks):
        found, nexts[number] = _assign_in_some_way(
            report, groups, queue, ask, taken, starts[number]
        )
        if isinstance(found, _Lack):
            return found, _Starts(tuple(nexts))
        flavors.append(found.flavors[0])
        height = max(height, found.height)
        for place, amount in found.taken.items():
            taken[place] = taken.get(place, 0) + amount
    return _Assigned(tuple(flavors), taken, height), starts


def _assign_in_some_way(
    report: QueueReport,
    groups: Sequence[_Group],
    queue: _Node,
    ask: Ask,
    before: Mapping[Place, int],
    starts: Sequence[int],
) -> tuple[_Assigned | _Lack, tuple[int, ...]]:
    lacks: list[_Lack] = []
    for way in ask.ways:
        found, nexts = _assign_pods(report, groups, queue, ask.pods, way, before, starts)
        if isinstance(found, _Assigned):
            return found, nexts
        lacks.append(found)
    # Too little of what is granted says more than that something else is not.
    return min(lacks, key=lambda lack: not lack.resource), (0,) * len(groups)


def _assign_pods(
    report: QueueReport,
    groups: Sequence[_Group],
    queue: _Node,
    pods: PodSet,
    way: Amounts,
    before: Mapping[Place, int],
    starts: Sequence[int],
) -> tuple[_Assigned | _Lack, tuple[int, ...]]:
    """With the flavor behind the last that was tried of each group; 0 behind the very last."""
    nexts = [0] * len(groups)
    wanted = {name: amount for name, amount in way.items() if amount}
    if any(PODS in group.resources for group in groups):
        wanted[PODS] = pods.count
    chosen: dict[str, str] = {}
    taken: dict[Place, int] = {}
    highest = 0
    if unknown := wanted.keys() - {name for group in groups for name in group.resources}:
        return _Lack(f"ClusterQueue {report.queue} grants no {min(unknown)}"), tuple(nexts)
    for at, (resources, flavors) in enumerate(groups):
        part = {name: amount for name, amount in wanted.items() if name in resources}
        if not part:
            continue
        best: FlavorQuota | None = None
        height = number = 0
        for number in range(starts[at], len(flavors)):
            reach = _reach(flavors[number], queue, pods, part, before)
            if reach is not None and (best is None or reach < height):
                best, height = flavors[number], reach
                if not reach or not report.prefers_own:
                    break
        if best is None:
            return _lack(report, flavors, queue, pods, part, before), tuple(nexts)
        nexts[at] = (number + 1) % len(flavors)
        highest = max(highest, height)
        for name, amount in part.items():
            chosen[name] = best.flavor
            taken[best.flavor, name] = amount
    return _Assigned((chosen,), taken, highest), tuple(nexts)


def _reach(
    flavor: FlavorQuota, queue: _Node, pods: PodSet, part: Amounts, before: Mapping[Place, int]
) -> int | None:
    """How far up the flavor borrows for all of it; None: it does not suit or has no room."""
    if not _suits(flavor, pods):
        return None
    height = 0
    for name, amount in part.items():
        place = (flavor.flavor, name)
        needed = before.get(place, 0) + amount
        if needed > queue.free(place):
            return None
        height = max(height, _height(queue, place, needed))
    return height


def _suits(flavor: FlavorQuota, pods: PodSet) -> bool:
    """Whether the flavor's nodes can be those that the pods ask for."""
    if not all(tolerates(pods.tolerations, taint) for taint in flavor.taints):
        return False
    labels = flavor.node_labels
    if any(labels.get(key, value) != value for key, value in pods.node_labels.items()):
        return False
    models = names_in(labels)
    return not pods.gpu_models or not models or any(is_one_of(pods.gpu_models, m) for m in models)


def _lack(
    report: QueueReport,
    flavors: Sequence[FlavorQuota],
    queue: _Node,
    pods: PodSet,
    part: Amounts,
    before: Mapping[Place, int],
) -> _Lack:
    suited = [flavor for flavor in flavors if _suits(flavor, pods)]
    if not suited:
        return _Lack(f"no flavor of ClusterQueue {report.queue} is of the nodes that are asked for")
    for name in sorted(part, key=lambda name: (name in DIVISIBLE, name)):
        places = [(flavor.flavor, name) for flavor in suited]
        most, taken = max(
            (max(0, queue.free(place) - before.get(place, 0)), before.get(place, 0))
            for place in places
        )
        if most < part[name]:
            return _Lack(resource=name, asked=part[name], most=most, before=taken)
    return _Lack(f"no flavor of ClusterQueue {report.queue} has enough of everything")


def _granted_way(report: QueueReport, ask: Ask) -> Amounts:
    """The first way of all whose resources the queue grants some."""
    granted = {name for flavor in report.flavors for name in flavor.resources}
    return next((way for way in ask.ways if way.keys() <= granted), ask.ways[0])


def _left(report: QueueReport, queue: _Node, asks: Sequence[Ask]) -> dict[str, int]:
    """Of each resource that is asked for, the most that one suitable flavor has left: of the pod
    set that asks for most of it."""
    most: dict[str, tuple[int, int]] = {}  # resource -> what is asked for of it, what is left
    for ask in asks:
        for name, amount in _granted_way(report, ask).items():
            left = [
                queue.free((flavor.flavor, name))
                for flavor in report.flavors
                if name in flavor.resources and _suits(flavor, ask.pods)
            ]
            if amount > most.get(name, (0, 0))[0]:
                most[name] = amount, max(0, *left, 0)
    return {name: left for name, (_, left) in most.items()}
