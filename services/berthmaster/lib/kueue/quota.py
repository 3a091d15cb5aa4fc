"""Whether a ClusterQueue admits a request: never, not yet, or now with some flavors. Pure.

Kueue decides. This module predicts Kueue's decision by Kueue's rules, from the inventory's reports.
Every choice of a cluster uses only this module.

Example: queues a and b of one cohort have 8 GPUs each, b lends at most 3, and b uses 7. So b
reserves 8 - 3 = 5 for itself, and 2 of its 7 come from the cohort. The cohort has 8 + 3 = 11 GPUs,
2 of them used. Queue a can get 9 now, and 11 when b is empty. A request for 10 gets "not yet", a
request for 12 "never".

Rules, all of them Kueue's (a test runs the same table against a real Kueue):

- One resource group grants a resource. For each pod set and group, one flavor has to provide all
  resources of the group: free GPUs in flavor a and free CPU in flavor b do not combine.
- A flavor is skipped if the pods do not tolerate its taints, or request other values of its node
  labels. Labels missing from a flavor never exclude the flavor.
- The first flavor with enough free quota is used. In a queue that tries the next flavor before
  borrowing, the flavor that borrows from the nearest cohort is used.
- Pod sets are assigned in order, and share the queue's quota. If a later pod set does not fit,
  Kueue tries again with the next flavors for the earlier pod sets.
- A queue has its nominal quota, plus its cohort's free quota up to its borrowing limit. Quota above
  a lending limit stays with its owner. Cohorts lend to each other in the same way.
- "Never" means that the request does not fit even in an empty cluster. Preemption is left to Kueue:
  a request that needs preemption is not admitted now.
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

PODS: Final = "pods"  # one for each pod, where a queue has quota for pods
NO_QUOTA: Final = "no quota left"
UNLIMITED: Final = float("inf")
_UNITS: Final = {"memory": "MiB of memory"}
MOST_ATTEMPTS: Final = 64  # limit of Kueue's attempts to find flavors for several pod sets
DIVISIBLE: Final = ("cpu", "memory", PODS)  # resources other than devices

Place = tuple[str, str]  # flavor, resource
Amounts = Mapping[str, int]  # by resource: CPU in milli, memory in MiB, others in units


class Ask(NamedTuple):
    """The resources of a whole pod set, in Kueue's names.

    A later job may request GPUs in several ways, depending on the nodes. The first way that fits
    is used.
    """

    pods: PodSet
    ways: tuple[Amounts, ...]  # alternatives, never empty


class Gone(NamedTuple):
    """A pod set assumed to have left, and its known flavors."""

    ask: Ask
    flavors: Mapping[str, str] = {}  # resource -> flavor, where Kueue reports the flavor
    nodes: Sequence[Mapping[str, str]] = ()  # labels of the nodes with its pods


class Answer(NamedTuple):
    """A ClusterQueue's answer to a request."""

    never: str = ""  # why the request can never be admitted, or ""
    lacks: str = ""  # why the request is not admitted now, or ""
    flavors: tuple[Mapping[str, str], ...] = ()  # of each pod set: resource -> flavor; if admitted
    borrows: bool = False  # the request exceeds the queue's own free quota
    left: Mapping[str, int] = {}  # resource -> largest free quota of one suitable flavor

    @property
    def now(self) -> bool:
        """Whether the request would be admitted now."""
        return not self.never and not self.lacks

    @property
    def devices_left(self) -> float:
        """Free quota of the scarcest requested device; infinite without devices."""
        return min((n for name, n in self.left.items() if name not in DIVISIBLE), default=UNLIMITED)


def queue_of(
    reports: Iterable[QueueReport], namespace: str, local_queue: str
) -> tuple[QueueReport, LocalQueueReport] | None:
    """Return the ClusterQueue of a LocalQueue, and the LocalQueue."""
    for report in reports:
        for local in report.local_queues:
            if (local.namespace, local.name) == (namespace, local_queue):
                return report, local
    return None


def closed(report: QueueReport, local: LocalQueueReport) -> str:
    """Return why nothing is admitted whatever the quota, or "".

    A stop policy is named first, because a stopped ClusterQueue also makes its LocalQueue inactive.
    """
    what, why = "", ""
    if stop := stopped(report, local):
        return f"its {stop}"
    if not report.active:
        what, why = f"its ClusterQueue {report.queue} is not active", report.reason
    elif not local.active:
        what, why = f"its LocalQueue {local.name} is not active", local.reason
    return f"{what}: {why}" if what and why else what


def stopped(report: QueueReport, local: LocalQueueReport) -> str:
    """Return which of both queues is stopped, and by which policy, or ""."""
    if report.stopped:
        return f"ClusterQueue {report.queue} is stopped (stopPolicy {report.stop_policy})"
    if local.stopped:
        return f"LocalQueue {local.name} is stopped (stopPolicy {local.stopped})"
    return ""


def counted(asks: Sequence[Ask], counted_as: Mapping[str, str]) -> Sequence[Ask]:
    """Return the asks with resources renamed as the cluster's Kueue counts them."""
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
    """Return the queue's report without these pod sets.

    Each pod set had one flavor of a resource group: the known or else the first possible flavor.
    """
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
    """Return whether the pods may have had this flavor, by its nodes' labels and its usage.

    Kueue adds the labels of their flavor to pods, so the pods run on nodes with these labels.
    """
    if told := {gone.flavors[name] for name in part if name in gone.flavors}:
        return flavor.flavor in told
    labels = flavor.node_labels.items()
    is_there = all(labels <= node.items() for node in gone.nodes)
    # Kueue counts devices as requested, but CPU and memory with overhead and defaults.
    devices = [name for name in part if name not in DIVISIBLE] or list(part)
    is_used = all(flavor.resources[name].used >= part[name] for name in devices)
    return is_there and is_used and _suits(flavor, gone.ask.pods)


def _given_back(flavor: FlavorQuota, part: Amounts) -> FlavorQuota:
    """Return the flavor with less usage, except for resources that the report no longer counts."""
    less = {
        name: msgspec.structs.replace(granted, used=granted.used - part[name])
        for name, granted in flavor.resources.items()
        if granted.used >= part.get(name, math.inf)
    }
    return msgspec.structs.replace(flavor, resources={**flavor.resources, **less})


class Quotas:
    """The ClusterQueues of one cluster, with their usage and the placements on their way."""

    def __init__(
        self, reports: Iterable[QueueReport], counted_as: Mapping[str, str] | None = None
    ) -> None:
        """``counted_as``: requested resource -> resource in Kueue's quota, where they differ."""
        self._counted_as = counted_as or {}
        self._reports = sorted(reports, key=lambda report: report.stamp)
        self._by_name = {report.queue: report for report in self._reports}
        self._used = _Trees(self._reports, used=True)
        self._empty: _Trees | None = None

    def charge(self, queue: str, asks: Sequence[Ask]) -> bool:
        """Charge a placement on its way. Return False for a placement that must wait."""
        asks = counted(asks, self._counted_as)
        chosen = _assign(self._by_name[queue], self._used.queues[queue], asks)
        if isinstance(chosen, _Lack):
            return False
        for place, amount in chosen.taken.items():
            _take(self._used.queues[queue], place, amount)
        return True

    def answer(self, queue: str, asks: Sequence[Ask]) -> Answer:
        """Return a queue's answer to a request, after all charges."""
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
        """Return why even an empty queue could not grant a request, or ""."""
        return self._never(self._by_name[queue], counted(asks, self._counted_as))

    def _never(self, report: QueueReport, asks: Sequence[Ask]) -> str:
        if self._empty is None:
            self._empty = _Trees(self._reports, used=False)
        at_best = _assign(report, self._empty.queues[report.queue], asks)
        return at_best.for_ever(report.queue) if isinstance(at_best, _Lack) else ""


def promises(report: QueueReport, ask: Ask) -> bool:
    """Return whether a flavor's labels promise all node labels and GPU models of the pods."""
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
        self.subtree: dict[Place, int] = {}  # own quota and the quota lent by children
        self.used: dict[Place, int] = {}
        self.height = 0  # distance from the lowest queue below

    def set_quota(self, flavors: Iterable[FlavorQuota]) -> None:
        self.quota = {(f.flavor, name): one for f in flavors for name, one in f.resources.items()}
        self.subtree = {place: one.nominal for place, one in self.quota.items()}

    def kept(self, place: Place) -> int:
        """Return the quota that the node never lends."""
        quota = self.quota.get(place)
        if quota is None or quota.lending_limit is None:
            return 0
        return max(0, self.subtree[place] - quota.lending_limit)

    def kept_left(self, place: Place) -> int:
        return max(0, self.kept(place) - self.used.get(place, 0))

    def free(self, place: Place) -> int:
        """Return the quota still free here; negative if usage exceeds the quota."""
        here, used = self.subtree.get(place, 0), self.used.get(place, 0)
        if self.parent is None:
            return here - used
        above = self.parent.free(place)
        quota = self.quota.get(place)
        if quota is not None and quota.borrowing_limit is not None:
            kept = self.kept(place)
            own = (here - kept) - max(0, used - kept)  # free part of the quota given to its cohort
            above = min(above, own + quota.borrowing_limit)
        return self.kept_left(place) + above

    def path(self) -> Iterable["_Node"]:
        """Yield the cohorts above, the nearest first."""
        node = self.parent
        while node is not None:
            yield node
            node = node.parent


class _Trees:
    """All ClusterQueues of a cluster below their cohorts.

    ``reports`` come oldest first, so that the newest report of a cohort wins.
    """

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
        """Add up quota and usage from children to parents.

        Reports of different times may form a cycle of cohorts. The cycle is cut here, whereas Kueue
        would admit nothing.
        """
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
    """Charge an amount to a node, and the part above the reserved quota to the parent."""
    rest = amount - node.kept_left(place)
    node.used[place] = node.used.get(place, 0) + amount
    if node.parent is not None and rest > 0:
        _take(node.parent, place, rest)


def _height(queue: _Node, place: Place, amount: int) -> int:
    """Return how far up an amount is borrowed; 0 = from own quota."""
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
    """The flavors of all pod sets."""

    flavors: tuple[Mapping[str, str], ...]
    taken: Mapping[Place, int]
    height: int


class _Lack(NamedTuple):
    """The missing quota: a resource and its maximum, or a message."""

    words: str = ""
    resource: str = ""
    asked: int = 0
    most: int = 0
    before: int = 0  # taken by earlier pod sets

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


# Index of the first flavor to try, by pod set and resource group.
_Starts = NewType("_Starts", tuple[tuple[int, ...], ...])


class _Group(NamedTuple):
    """A resource group. All its flavors have all its resources, and groups do not overlap."""

    resources: frozenset[str]
    flavors: list[FlavorQuota]


def _groups(report: QueueReport) -> list[_Group]:
    found: dict[frozenset[str], list[FlavorQuota]] = {}
    for flavor in report.flavors:
        found.setdefault(frozenset(flavor.resources), []).append(flavor)
    return [_Group(*each) for each in found.items()]


def _assign(report: QueueReport, queue: _Node, asks: Sequence[Ask]) -> _Assigned | _Lack:
    """Return flavors for all pod sets, as Kueue would assign them now.

    If a later pod set does not fit, Kueue retries with the next flavors for the earlier pod sets.
    """
    groups = _groups(report)
    starts = _Starts(tuple((0,) * len(groups) for _ in asks))
    lack: _Lack | None = None
    for _ in range(MOST_ATTEMPTS):
        found, tried = _attempt(report, groups, queue, asks, starts)
        if isinstance(found, _Assigned):
            return found
        lack = lack or found  # the first attempt is the most informative
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
    """Try to assign all pod sets. Also return where to start the next attempt."""
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
    # A lack of granted quota is more informative than a resource without quota.
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
    """Assign one pod set. Also return each group's next flavor to try, 0 after the last."""
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
    """Return how far up the flavor borrows, or None if unsuitable or without enough quota."""
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
    """Return whether the flavor's nodes may satisfy the pods' node labels, models and taints."""
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
    """Return the first alternative whose resources all have quota in the queue."""
    granted = {name for flavor in report.flavors for name in flavor.resources}
    return next((way for way in ask.ways if way.keys() <= granted), ask.ways[0])


def _left(report: QueueReport, queue: _Node, asks: Sequence[Ask]) -> dict[str, int]:
    """Return each requested resource's largest free quota in one suitable flavor.

    The pod set with the largest request counts.
    """
    most: dict[str, tuple[int, int]] = {}  # resource -> requested, free
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
