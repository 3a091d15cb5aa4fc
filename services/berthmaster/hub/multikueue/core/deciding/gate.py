"""Filters of a hub for each cluster, and an estimate of the start there.

Example: a cluster has 6 free GPUs and quota for 4 more, and a job of 1 GPU is on its way there. Its
headroom is 3: a job of 2 GPUs fits now, a job of 4 waits for quota.

Filters in order; the first failing one is the reported reason:

- Kueue reaches the cluster.
- Its labels match the queue's selectors.
- It has the queue, which is open.
- Its quota can ever admit the Workload.
- Its nodes can ever hold the Workload.

A busy cluster stays a candidate, because Kueue queues the copy there. A better ``tier`` goes first.
Within a tier ``headroom`` counts: the minimum of free capacity and free quota, less Workloads on
their way. Its unit is the requested resource (GPUs, TPUs, other units, or CPU cores), and AMD's
GPUs do not count for nvidia.com/gpu. Only nodes with the labels of the flavors that Kueue would
assign count. Quota of a flavor without nodes is quota for future nodes.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from math import ceil
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from berthmaster.hub.multikueue.core.deciding.job_manifest import place_of
from berthmaster.hub.multikueue.core.known.bus_state import BusState, Charged
from berthmaster.hub.multikueue.core.known.hub import ClusterRef, Rules
from berthmaster.hub.multikueue.core.known.labelled_nodes import Labels
from berthmaster.hub.multikueue.core.known.requests import Required
from berthmaster.hub.multikueue.policy import HubPolicy
from berthmaster.lib.accelerators.table import How, how_of
from berthmaster.lib.engine.fleet.arrays import ABSENT
from berthmaster.lib.engine.fleet.clusters import Cluster
from berthmaster.lib.engine.fleet.fleet import WHOLE, Fleet
from berthmaster.lib.engine.fleet.needs import NO_GPUS, NO_PLACE, NO_RESOURCE, Suitable, shape_of
from berthmaster.lib.engine.fleet.pieces import NO_PIECES, NO_TPUS, makes_slice
from berthmaster.lib.engine.fleetview.components import BUSY, FITS, NO_NODES, NO_QUOTA, Gate
from berthmaster.lib.engine.fleetview.shortlist import ClusterSnapshot
from berthmaster.lib.engine.scoring.cluster_scores import UNKNOWN
from berthmaster.lib.engine.scoring.score_cache import Scorecard
from berthmaster.lib.kueue.asks import asked_resource, asks_of, devices_asked, of_all_pods
from berthmaster.lib.kueue.podsets.reading import has
from berthmaster.lib.kueue.quota import (
    UNLIMITED,
    Ask,
    Gone,
    Quotas,
    closed,
    counted,
    promises,
    queue_of,
    without,
)
from berthmaster.lib.lifecycle.workload import Key, Workload
from berthmaster.lib.messages.fleet import QueueReport
from berthmaster.lib.messages.workload import JobRequest, PodSet

NOT_LISTED: Final = "not in the MultiKueueConfig"
NO_REPORT: Final = "reports no queues"
TOLD_KINDS: Final = frozenset({"JobSet", "RayJob"})  # kinds with a known availability in profiles
CPU: Final = "cpu"  # unit of capacity without requested GPUs


class Asked(NamedTuple):
    """The request, and its Workload."""

    name: Key
    namespace: str
    local_queue: str
    request: JobRequest
    asks: tuple[Ask, ...]  # of a worker's quota
    required: Required = ()  # requirements on nodes besides the engine's
    shares: frozenset[str] = frozenset()  # resources of GPU fractions on nodes
    kind: str = ""  # kind of the Workload's owner, such as RayJob


class Standing(NamedTuple):
    """How a cluster stands to a Workload."""

    out: str = ""  # why it cannot go there, or ""
    tier: float = UNKNOWN
    headroom: float = UNKNOWN
    in_line: tuple[int, int, bool] | None = None
    note: str = ""  # why its nodes are future ones
    last: str = ""  # why it goes behind all others, or ""


class Shortfall(NamedTuple):
    """Missing capacity of a cluster's nodes for a start."""

    pods: int  # pods of the largest set without capacity
    largest: PodSet
    resource: str  # requested resource of its devices
    uniform: bool  # every node with GPUs suits
    spare_cpu_milli: int  # on each of these, at least
    spare_memory_mib: int


class HubGate(Gate):
    via = "hub"
    is_tiered = True

    def __init__(
        self,
        know: BusState,
        snapshot: ClusterSnapshot,
        rules: Rules,
        asked: Asked,
        policy: HubPolicy,
    ) -> None:
        self._know = know
        self._snapshot = snapshot
        self._rules = rules
        self._asked = asked
        self._policy = policy
        self._refs: dict[str, ClusterRef] = {}
        for ref in rules.clusters:
            self._refs.setdefault(ref.name, ref)
        self._asks = asked.asks
        self._standings: dict[str, Standing] = {}
        self._labels: dict[str, list[Labels]] = {}  # labels of its flavors, by cluster
        self._demoted = know.demoted(policy, snapshot.now_s)

    def why_not(self, cluster: str) -> str:
        return self._standing(cluster).out

    def in_line(self, cluster: str) -> tuple[int, int, bool] | None:
        return self._standing(cluster).in_line

    def tier(self, cluster: str) -> float:
        return self._standing(cluster).tier

    def headroom(self, cluster: str) -> float:
        return self._standing(cluster).headroom

    def note(self, cluster: str) -> str:
        """Return the nodes that the cluster lacks, if that prevents a fit now, or ""."""
        return self._standing(cluster).note

    def last(self, cluster: str) -> str:
        """Return why the cluster goes behind all others, or ""."""
        return self._standing(cluster).last

    def shut(self, cluster: str) -> str:
        """Return why the cluster is closed whatever it reports, or ""."""
        ref = self._refs.get(cluster)
        if ref is None:
            return NOT_LISTED
        if ref.closed:
            return ref.closed
        labels = self._know.view.clusters.peek(cluster).labels
        for selector in self._rules.selectors:
            if not selector.matches(labels):
                return f"its labels do not match {selector}"
        return self._know.names_taken.why_not(self._asked.name, cluster, self._snapshot.now_s)

    def _standing(self, cluster: str) -> Standing:
        standing = self._standings.get(cluster)
        if standing is None:
            standing = self._standings[cluster] = self._look(cluster)
        return standing

    def why_never(self, cluster: str) -> str:
        """Return the reason of ``why_not`` without other Workloads' placements, which
        is cheaper.
        """
        report = self._open_queue(cluster)
        if isinstance(report, str):
            return report
        seen = self._know.view.clusters.peek(cluster)
        quotas = Quotas(seen.queues.values(), _counted_as(seen))
        return self._unable(seen, report, quotas.never(report.queue, self._asks))

    def _look(self, name: str) -> Standing:
        report = self._open_queue(name)
        if isinstance(report, str):
            return Standing(report)
        standing = self._judge(self._know.view.clusters.peek(name), report)
        if not standing.out and (last := self._demoted.get(name)):
            return standing._replace(tier=NO_QUOTA, headroom=0.0, note="", last=last)
        return standing

    def _open_queue(self, name: str) -> QueueReport | str:
        """Return the ClusterQueue of the Workload there, or why it has none."""
        if shut := self.shut(name):
            return shut
        cluster, asked = self._know.view.clusters.peek(name), self._asked
        if not cluster.queues:
            return NO_REPORT
        kinds = cluster.profile.job_kinds if cluster.profile is not None else None
        if kinds is not None and asked.kind in TOLD_KINDS and asked.kind not in kinds:
            return f"has no {asked.kind}s"
        found = self._know.local_queue(name, asked.namespace, asked.local_queue)
        if found is None:
            return f"has no LocalQueue {asked.namespace}/{asked.local_queue}"
        return closed(*found) or found[0]

    def _unable(self, cluster: Cluster, report: QueueReport, never: str) -> str:
        """Return why quota (``never``) or nodes can never hold the Workload, or ""."""
        if never:
            return never
        unsuited = self._none_suits.get(cluster.name, "")
        if unsuited and not self._may_come(cluster, report, unsuited):
            return unsuited
        return self._missing(cluster, report)[0]

    def _judge(self, cluster: Cluster, report: QueueReport) -> Standing:
        """Compute the standing of a cluster with an open queue."""
        name, request = cluster.name, self._asked.request
        policy, now_s = self._policy, self._snapshot.now_s
        way = self._know.on_the_way.to(name, now_s, policy.settle_s, but=self._asked.name)
        quotas = self._charged(cluster, way.unreserved)
        quota = quotas.answer(report.queue, self._asks)
        if unable := self._unable(cluster, report, quota.never):
            return Standing(unable)
        unsuited = self._none_suits.get(name, "")
        lacking = self._missing(cluster, report)[1]
        labels = [_labels_of(report, flavors) for flavors in quota.flavors]
        self._labels[name] = labels
        room = self._room(name, labels)
        asks = devices_asked(request)
        free = {each: amount - way.of(each) for each, amount in room.free.items()}
        note = ""
        if not quota.now:
            tier = NO_QUOTA
        elif unsuited or lacking or not room.holds:
            tier, note = NO_NODES, room.lacks or lacking
        else:
            has_all = all(free[each] >= number for each, number in asks.items())
            tier = FITS if room.fits and has_all else BUSY
        most = max(asks, key=lambda each: asks[each], default=CPU)
        piece = min((pods.gpu_milli for pods in request.pod_sets if pods.gpus), default=WHOLE)
        devices_left = quota.devices_left * piece / WHOLE  # a slice is less than a GPU
        return Standing(
            tier=tier,
            headroom=max(0.0, min(free[most], devices_left if asks else UNLIMITED)),
            in_line=(report.pending, report.admitted, quota.borrows),
            note=note,
        )

    # Capacity by preemption

    def shortfall(self, cluster: str, ahead: Callable[[Workload], bool]) -> Shortfall | None:
        """Return the missing capacity; None for requests without GPUs, or without a suitable node.
        ``ahead``: Workloads on their way that use capacity first.
        """
        request, know = self._asked.request, self._know
        fleet = know.view.fleet
        largest = max(request.pod_sets, key=lambda pods: pods.gpus * pods.gpu_milli)
        slots = fleet.slots_of(cluster)
        if not largest.gpus or not slots or makes_slice(largest):
            return None
        part = slice(slots.start, slots.stop)
        labels = self._labels.get(cluster) or []
        room = self._room(cluster, labels)
        lacking = 0
        with_gpus = fleet.arrays.capacity_milli[part] > 0
        suits = with_gpus
        for index, (pods, (suitable, card)) in enumerate(
            zip(request.pod_sets, self._cards, strict=True)
        ):
            able = suitable.nodes[part]
            if labels and labels[index]:
                able = able & know.labelled.of(fleet, slots, labels[index])
            if pods is largest:
                suits = able & with_gpus
            found = np.where(able, card.room_for(fleet, pods, suitable).nodes[part], 0)
            lacking += max(0, pods.count - int(found.sum()))
        policy, now_s = self._policy, self._snapshot.now_s
        way = know.on_the_way.to(
            cluster, now_s, policy.settle_s, but=self._asked.name, counts=ahead
        )
        resource = asked_resource(largest)
        asked = devices_asked(request)[resource]
        short = asked - (room.free[resource] - way.of(resource))
        a_pod = largest.gpus * largest.gpu_milli / WHOLE
        lacking = max(lacking, ceil(short / a_pod))
        if not suits.any():
            return None
        return Shortfall(
            max(0, lacking),
            largest,
            resource,
            uniform=not (with_gpus & ~suits).any(),
            spare_cpu_milli=max(0, int(fleet.arrays.cpu[part][suits].min())),
            spare_memory_mib=max(0, int(fleet.arrays.memory[part][suits].min())),
        )

    def admits_without(
        self,
        cluster: str,
        gone: Iterable[tuple[str, str, Sequence[Gone]]],
        ahead: Callable[[Workload], bool],
    ) -> bool:
        """Return whether the queue would admit the Workload at once without ``gone``: namespace,
        LocalQueue and pod sets of each.
        """
        asked, know = self._asked, self._know
        seen = know.view.clusters.peek(cluster)
        reports = dict(seen.queues)
        for namespace, local_queue, sets in gone:
            found = queue_of(reports.values(), namespace, local_queue)
            if found is not None:
                reports[found[0].queue] = without(found[0], sets, _counted_as(seen))
        found = queue_of(reports.values(), asked.namespace, asked.local_queue)
        if found is None:
            return False
        policy, now_s = self._policy, self._snapshot.now_s
        way = know.on_the_way.to(cluster, now_s, policy.settle_s, but=asked.name, counts=ahead)
        quotas = self._quotas(seen, reports.values(), way.unreserved)
        return quotas.answer(found[0].queue, self._asks).now

    def _charged(self, cluster: Cluster, unreserved: Sequence[Workload]) -> Quotas:
        """Return the free quota, like ``_quotas``. A burst asks hundreds of times with one more
        placement each, so only the new placement is charged.
        """
        known = self._know.charged.get(cluster.name)
        same = known is not None and known.snapshot is self._snapshot
        if known is not None and same and _begins_with(unreserved, known.workloads):
            more = unreserved[len(known.workloads) :]
            self._charge(known.quotas, cluster.queues.values(), more)
            self._know.charged[cluster.name] = known._replace(workloads=unreserved)
            return known.quotas
        quotas = self._quotas(cluster, cluster.queues.values(), unreserved)
        self._know.charged[cluster.name] = Charged(self._snapshot, unreserved, quotas)
        return quotas

    def _quotas(
        self, cluster: Cluster, reports: Collection[QueueReport], unreserved: Iterable[Workload]
    ) -> Quotas:
        """Return the free quota, less placements without a quota reservation."""
        quotas = Quotas(reports, _counted_as(cluster))
        self._charge(quotas, reports, unreserved)
        return quotas

    def _charge(
        self, quotas: Quotas, reports: Collection[QueueReport], unreserved: Iterable[Workload]
    ) -> None:
        for workload in unreserved:
            request = workload.request
            if request is None:
                continue
            if workload.origin is not None:
                leads_to = queue_of(reports, workload.origin.namespace, workload.origin.local_queue)
            else:
                place = place_of(request.queue, self._know.view.queues.get(request.queue))
                leads_to = queue_of(reports, place.namespace, place.local_queue)
            if leads_to is not None:
                quotas.charge(leads_to[0].queue, asks_of(request))

    def _missing(self, cluster: Cluster, report: QueueReport) -> tuple[str, str]:
        """Return what nodes and queue lack, and what only the nodes lack."""
        fleet, lacking, counted_as = self._know.view.fleet, "", _counted_as(cluster)
        for resource, count in self._asked.required:
            name = counted_as.get(resource, resource)
            granted = any(name in flavor.resources for flavor in report.flavors)
            if how_of(resource) is How.OTHER and resource not in self._asked.shares:
                if not granted:
                    return f"ClusterQueue {report.queue} grants no {name}", ""
            elif not any(
                has(fleet.report_at(slot), resource, count) for slot in fleet.slots_of(cluster.name)
            ):
                if not granted:
                    return f"no node has {count} {resource}", ""
                lacking = lacking or f"no node has {count} {resource}"
        return "", lacking

    def _may_come(self, cluster: Cluster, report: QueueReport, unsuited: str) -> bool:
        """Return whether suitable nodes may come: the quota grants what no node has. For requests
        with node requirements, a flavor's labels must promise such nodes.
        """
        if any(p.gpu_models or p.node_labels for p in self._asked.request.pod_sets):
            asks = (
                ask for ask in counted(self._asks, _counted_as(cluster)) if of_all_pods(ask.pods)
            )
            return any(promises(report, ask) for ask in asks)
        return unsuited.startswith((NO_GPUS, NO_RESOURCE, NO_TPUS, NO_PIECES))

    @cached_property
    def _cards(self) -> list[tuple[Suitable, Scorecard]]:
        """Return suitable nodes and scorecard of each pod set."""
        know, request = self._know, self._asked.request
        if not len(know.view.fleet.names):
            return []
        shape = shape_of(request)
        return [
            know.view.card(shape, index, self._snapshot.worth)
            for index in range(len(shape.pod_sets))
        ]

    @cached_property
    def _none_suits(self) -> dict[str, str]:
        """Return the reason by cluster where no node can ever suit some pod set."""
        why: dict[str, str] = {}
        for suitable, _ in self._cards:
            why = suitable.why_not | why
        return why

    def _room(self, cluster: str, labels: Sequence[Labels]) -> "_Room":
        """Return the nodes' capacity for the request. ``labels``: node labels of the flavors that
        each pod set would get; empty = none now.
        """
        view, sets = self._know.view, self._asked.request.pod_sets
        fleet = view.fleet
        slots = fleet.slots_of(cluster)
        free = dict.fromkeys(devices_asked(self._asked.request) or (CPU,), 0.0)
        if not slots:
            return _Room(free)
        part = slice(slots.start, slots.stop)
        fits = holds = True
        lacks = ""
        most = dict.fromkeys(free, -1.0)
        for index, (pods, (suitable, card)) in enumerate(zip(sets, self._cards, strict=True)):
            able = suitable.nodes[part]
            if labels and labels[index]:
                able = able & self._know.labelled.of(fleet, slots, labels[index])
                if not able.any():
                    lacks = lacks or _without_nodes(labels[index])
            room = np.where(able, card.room_for(fleet, pods, suitable).nodes[part], 0)
            if makes_slice(pods) and suitable.places is not None:
                room = _of_places(suitable.places[part], room)
                fits = fits and int(room.max(initial=0)) >= pods.count
            fits = fits and int(room.sum()) >= pods.count
            holds = holds and bool(able.any())
            if pods.gpus:
                a_pod = pods.gpus * pods.gpu_milli
                empty = _capacity_milli(fleet, suitable, part)[able] // a_pod
                holds = holds and int(empty.sum()) >= pods.count
            usable = able & fleet.arrays.open[part]
            for resource, number in (of_all_pods(pods) or {CPU: 0.0}).items():
                if number > most.get(resource, number):
                    most[resource] = number
                    free[resource] = _free(fleet, suitable, pods, part, resource, usable)
        return _Room(free, fits, holds, lacks)


class _Room(NamedTuple):
    """Capacity of a cluster's nodes for a request."""

    free: dict[str, float]  # resource -> GPUs, pieces or CPU cores, of the set with the most of it
    fits: bool = False
    holds: bool = False  # would fit if nothing ran there
    lacks: str = ""  # labels without a node


def _begins_with(workloads: Sequence[Workload], first: Sequence[Workload]) -> bool:
    """Return whether ``first`` is a prefix of ``workloads``, by identity."""
    if len(workloads) < len(first):
        return False
    return all(one is other for one, other in zip(workloads, first, strict=False))


def _counted_as(cluster: Cluster) -> Mapping[str, str]:
    """Return the names without claimed devices: only the hub's Kueue counts those, by its own
    names.
    """
    found = cluster.counted_as
    return {name: found[name] for name in found if how_of(name) is not How.CLASS} if found else {}


def _labels_of(report: QueueReport, flavors: Mapping[str, str]) -> Labels:
    """Return the labels of all flavors that the pods get from Kueue."""
    names = set(flavors.values())
    return frozenset(
        pair
        for flavor in report.flavors
        if flavor.flavor in names
        for pair in flavor.node_labels.items()
    )


def _without_nodes(labels: Labels) -> str:
    wanted = ", ".join(f"{key}={value}" for key, value in sorted(labels))
    return f"no node that would do has the labels of its flavor ({wanted})"


def _capacity_milli(fleet: Fleet, suitable: Suitable, part: slice) -> NDArray[np.int64]:
    """Return the milli of each node's suitable healthy GPUs."""
    arrays = fleet.arrays
    if suitable.gpus is None:
        return arrays.capacity_milli[part]
    there: NDArray[np.int64] = ((arrays.gpu[part] > ABSENT) & suitable.gpus[part]).sum(axis=1)
    return there * WHOLE


def _of_places(places: NDArray[np.int32], room: NDArray[np.int64]) -> NDArray[np.int64]:
    inside = places > NO_PLACE
    if not inside.any():
        return np.zeros(0, np.int64)
    return np.bincount(places[inside], room[inside]).astype(np.int64)


def _free(
    fleet: Fleet,
    suitable: Suitable,
    pods: PodSet,
    part: slice,
    resource: str,
    usable: NDArray[np.bool_],
) -> float:
    """Return the free amount of a resource on usable nodes: GPUs, units or CPU cores."""
    arrays = fleet.arrays
    if resource == CPU:
        return float(np.maximum(arrays.cpu[part], 0)[usable].sum()) / 1000
    if not pods.gpus or resource != asked_resource(pods):
        pieces = arrays.pieces.get(resource)
        return 0.0 if pieces is None else float(np.maximum(pieces[part], 0)[usable].sum())
    return float(_free_milli(fleet, suitable, pods, part)[usable].sum()) / 1000


def _free_milli(fleet: Fleet, suitable: Suitable, pods: PodSet, part: slice) -> NDArray[np.int64]:
    """Return the free GPU milli of each node for such pods."""
    arrays, in_parts = fleet.arrays, pods.gpu_milli < WHOLE
    if suitable.gpus is None:
        return arrays.milli[part] if in_parts else arrays.whole[part] * WHOLE
    free = np.where(suitable.gpus[part], np.maximum(arrays.gpu[part], 0), 0)
    if not in_parts:
        free = np.where(free >= WHOLE, WHOLE, 0)
    total: NDArray[np.int64] = free.sum(axis=1)
    return total
