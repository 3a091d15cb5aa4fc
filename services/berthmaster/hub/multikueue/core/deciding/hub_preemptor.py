"""The search for Workloads that Kueue evicts, by a Berthmaster check, for a pending one.

``HubPreemptor`` returns a ``VictimSet`` in one worker cluster. lib/engine/queueing/preemption.py
has the rules, and the hub's ClusterQueues define the precedence.

The hub's Kueue owns order and quota and does not see the capacity of workers. So a Workload may
hold quota and wait in a worker behind jobs of lower precedence.

Example: Workload train has priority 100 and needs a pod of 8 GPUs in rome, which is full. Its
ClusterQueue says ``withinClusterQueue: LowerPriority``. Two Workloads of that queue with priority 0
and 4 GPUs each run on one node of rome. Both are evicted.

Rules of this file:

- Within a ClusterQueue ``withinClusterQueue`` allows victims of lower priority. In the cohort
  ``reclaimWithinCohort`` allows victims in queues beyond their own quota, while the beneficiary's
  queue stays within its own. ``borrowWithinCohort`` allows lower priorities. No queue falls below
  its own quota, and equal priorities never evict each other. So no two jobs can evict each other.
- The beneficiary holds quota on the hub: the hub's Kueue handles missing quota. If only a worker's
  quota is missing, and Kueue preempts there, nothing is evicted.
- The cheapest set of the first clusters is evicted. The nodes of a victim's pods are not always
  known, so a pod frees as many pods as surely fit in its place.
- The eviction is part of the decision that sends the beneficiary there, or of a later one. Until
  the victims are gone, the beneficiary stays and gets no further evictions. Workloads that Kueue
  would serve earlier go first.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from berthmaster.hub.multikueue.core.deciding.checks import RESTART_S, own_check
from berthmaster.hub.multikueue.core.deciding.gate import HubGate, Shortfall
from berthmaster.hub.multikueue.core.deciding.shortlist import HubShortlist, shortlist_for
from berthmaster.hub.multikueue.core.deciding.traps import busy
from berthmaster.hub.multikueue.core.known.bus_state import BusState
from berthmaster.hub.multikueue.core.known.hub import Hub
from berthmaster.hub.multikueue.core.known.requests import read_asks
from berthmaster.hub.multikueue.core.known.workload_view import (
    Rooms,
    WorkloadView,
    amounts_of,
    view_of,
)
from berthmaster.hub.multikueue.policy import HubPolicy
from berthmaster.lib.engine.fleetview.components import BUSY, NO_QUOTA
from berthmaster.lib.engine.queueing.preemption import (
    CLUSTERS_TRIED,
    MAX_VICTIMS,
    SEARCHES_A_COMMIT,
    Accounts,
    Beneficiary,
    Floors,
    RightName,
    Victim,
    by_cost,
    cheapest_set,
    cost_of,
    lost_gpu_s,
    right_over,
)
from berthmaster.lib.engine.queueing.queues import Level, QueueShare, Tier
from berthmaster.lib.kube.quantity import QuantityError, whole
from berthmaster.lib.kueue.asks import asked_resource
from berthmaster.lib.kueue.names import EVICTED, FINISHED, QUOTA_RESERVED, READY
from berthmaster.lib.kueue.queues import ClusterQueue
from berthmaster.lib.kueue.quota import Gone
from berthmaster.lib.kueue.workloads import KueueWorkload
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Key, Workload
from berthmaster.lib.messages.fleet import QueueReport
from berthmaster.lib.messages.workload import JobRequest

WORDS: Final = {
    "guarantee": "what its queue borrowed is another queue's own quota",
    "priority": "a job of higher priority needs its room",
}
_NEVER: Final = (None, "", "Never")
_ANY: Final = "Any"


_Takes = tuple[str, str, Sequence[Gone]]  # of a worker's quota: see gate.admits_without


class VictimSet(NamedTuple):
    """Workloads evicted for another in a cluster."""

    cluster: str
    victims: tuple["_Goes", ...]

    @property
    def cost(self) -> float:
        """Return the lost GPU seconds."""
        return cost_of([each.victim for each in self.victims])


class _Goes(NamedTuple):
    victim: Victim
    right: RightName
    floors: Floors
    pods: int  # pods of the beneficiary's largest set that surely fit in its place


class _Freed(NamedTuple):
    pods: int
    gone: frozenset[Key]


class _Waiting(NamedTuple):
    """A pending Workload, and the rights of its ClusterQueue."""

    view: WorkloadView
    bus: Workload
    queue: ClusterQueue
    job: Beneficiary
    priority: int
    reclaims_any: bool
    threshold: int | None  # maximum priority of a victim while borrowing


def waits_for_room(view: WorkloadView) -> bool:
    """Return whether a worker has the Workload and no free capacity for it."""
    bus, copy = view.bus, view.copy
    if bus is None or copy is None or copy.evicted or copy.finished:
        return False
    if bus.state is State.CLAIMED:
        return not copy.admitted and busy(copy)
    return bus.state is State.ADMITTED and bool(copy.unscheduled)


class HubPreemptor:
    """The preemptions of one commit under construction."""

    def __init__(
        self, know: BusState, hub: Hub, rooms: Rooms, policy: HubPolicy, now_s: float
    ) -> None:
        self._know = know
        self._hub = hub
        self._rooms = rooms
        self._policy = policy
        self._now_s = now_s
        self._searches = 0
        self._going: set[Key] = set()  # victims of this decision
        self._used: Accounts | None = None
        self._shares: dict[str, QueueShare] = {}

    # For a Workload

    def best(self, view: WorkloadView, shortlist: HubShortlist) -> VictimSet | None:
        """Return the cheapest set of all clusters for a Workload that fits in none."""
        who, gate = self._candidate(view), shortlist.gate
        if who is None or gate is None:
            return None
        self._searches += 1
        best: VictimSet | None = None
        tried = 0
        for candidate in shortlist.candidates:
            if candidate.last or tried == CLUSTERS_TRIED:
                break
            if candidate.tier not in (BUSY, NO_QUOTA):
                continue
            tried += 1
            found = self._in(candidate.ref.name, who, gate, short_of_quota=candidate.tier != BUSY)
            if found is not None and (best is None or found.cost < best.cost):
                best = found
        return best

    def here(self, view: WorkloadView) -> VictimSet | None:
        """Return the cheapest set of the cluster in which a Workload waits."""
        if view.bus is None or not waits_for_room(view):
            return None
        who = self._candidate(view)
        if who is None:
            return None
        shortlist = shortlist_for(self._know, view, self._policy, self._now_s)
        cluster, claimed = view.bus.cluster, view.bus.state is State.CLAIMED
        found = next((c for c in shortlist.candidates if c.ref.name == cluster), None)
        if claimed and (found is None or found.tier != NO_QUOTA):
            return None  # its copy waits for an unknown reason
        if shortlist.gate is None:
            return None
        self._searches += 1
        return self._in(cluster, who, shortlist.gate, short_of_quota=claimed)

    def take(self, victims: VictimSet) -> None:
        """Count a set as evicted by this commit."""
        for each in victims.victims:
            self._going.add(each.victim.key)
            self._accounts().subtract((self._share(each.victim.queue),), each.victim.amounts)

    def has_taken(self, name: Key) -> bool:
        """Return whether this commit evicts a Workload already."""
        return name in self._going

    def _candidate(self, view: WorkloadView) -> _Waiting | None:
        """Return the Workload with its rights; None without rights, or beyond the searches of a
        commit.
        """
        bus, hub, rules = view.bus, view.hub, view.rules
        if bus is None or hub is None or rules is None or bus.request is None:
            return None
        if not self._policy.evictions_per_hour or self._searches >= SEARCHES_A_COMMIT:
            return None
        if not hub.holds(QUOTA_RESERVED) or self._know.going_for(view.name):
            return None
        queue = self._hub.cluster_queues.get(rules.cluster_queue)
        return self._waiting(view, bus, hub, queue) if queue is not None else None

    def _waiting(
        self, view: WorkloadView, bus: Workload, hub: KueueWorkload, queue: ClusterQueue
    ) -> _Waiting | None:
        rules = queue.spec.preemption
        if rules is None:
            return None
        borrows = rules.borrow_within_cohort
        borrow = borrows.policy if borrows is not None else None
        within, reclaim = rules.within_cluster_queue, rules.reclaim_within_cohort
        name = queue.metadata.name
        tier = Tier.BORROWED
        if reclaim not in _NEVER and self._is_within(name, bus):
            tier = Tier.GUARANTEED
        preempts = "queue" if within not in _NEVER else "never"
        if tier is Tier.BORROWED and borrow not in _NEVER:
            preempts = "all"
        elif tier is Tier.BORROWED and preempts == "never":
            return None
        job = Beneficiary((Level(name, tier, 0),), hub.spec.priority or 0, preempts)
        threshold = borrows.max_priority_threshold if borrows is not None else None
        return _Waiting(view, bus, queue, job, job.priority, reclaim == _ANY, threshold)

    # One cluster

    def _in(
        self, cluster: str, who: _Waiting, gate: HubGate, *, short_of_quota: bool
    ) -> VictimSet | None:
        report = self._report(cluster, who)
        if report is None or (short_of_quota and report.preempts):
            return None
        ahead = self._ahead(who)
        if any(self._waits_before(name, ahead) for name in self._rooms.awaiting(cluster)):
            return None  # Kueue would serve them first
        short = gate.shortfall(cluster, ahead)
        lacks = short.pods if short is not None else 0
        if who.bus.state is State.ADMITTED and who.view.copy is not None:
            lacks = who.view.copy.unscheduled  # its other pods have nodes
        if short is None or not (lacks or short_of_quota):
            return None
        may = self._may_go(cluster, who, short)
        going = self._going_from(cluster)
        coming = sum(_pods_in(v.bus.request, short) for v in going if v.bus and v.bus.request)
        given_back = [takes for view in going if (takes := _takes(view)) is not None]

        def change(freed: _Freed, each: _Goes, sign: int) -> _Freed:
            name = frozenset([each.victim.key])
            gone = freed.gone | name if sign > 0 else freed.gone - name
            return _Freed(freed.pods + sign * each.pods, gone)

        def is_enough(freed: _Freed) -> bool:
            if freed.pods < lacks:
                return False
            gone = [self._takes_of(each) for each in may if each.victim.key in freed.gone]
            return not short_of_quota or gate.admits_without(cluster, given_back + gone, ahead)

        taken = cheapest_set(may, _Freed(coming, frozenset()), change, is_enough)
        if not taken:
            return None  # no set helps, or victims of before are enough
        return VictimSet(cluster, tuple(taken)) if self._within_budgets(taken) else None

    def _ahead(self, who: _Waiting) -> Callable[[Workload], bool]:
        """Return a test for Workloads that Kueue serves earlier: by priority, then by age."""

        def ahead(other: Workload) -> bool:
            mine, its = who.bus, other
            order = (-its.priority, its.submitted_sequence)
            return order < (-mine.priority, mine.submitted_sequence)

        return ahead

    def _waits_before(self, name: Key, ahead: Callable[[Workload], bool]) -> bool:
        if not ahead(self._know.open[name]) or not waits_for_room(self._view(name)):
            return False
        return not self._know.going_for(name)

    def _going_from(self, cluster: str) -> list[WorkloadView]:
        """Return the Workloads there that are being evicted, in the order of submission."""
        told = (name for name in self._going if self._know.open[name].cluster == cluster)
        views = map(self._view, {*self._rooms.leaving(cluster), *told})
        going = [view for view in views if self._is_going(view)]
        return sorted(going, key=lambda view: view.bus.submitted_sequence if view.bus else 0)

    def _is_going(self, view: WorkloadView) -> bool:
        """Return whether a Workload still runs and is being evicted, by whatever service."""
        if view.bus is None or view.bus.state not in (State.ADMITTED, State.RUNNING):
            return False
        taken_back = view.hub is not None and view.hub.holds(EVICTED)
        return bool(view.bus.leaving) or taken_back or view.name in self._going

    def _may_go(self, cluster: str, who: _Waiting, short: Shortfall) -> list[_Goes]:
        """Return the cheapest victims within the floors of their queues."""
        goers = []
        for (queue, priority), names in self._rooms.begun(cluster).items():
            right = self._right(queue, priority, who)
            if right is not None:
                others = (name for name in names if name != who.view.name)
                found = (self._goes(name, queue, right, short) for name in others)
                goers += [each for each in found if each is not None]
        kept: list[_Goes] = []
        accounts = self._accounts().copy()
        for each in sorted(goers, key=by_cost):
            if len(kept) == MAX_VICTIMS:
                break
            if accounts.may_lose(each.floors, each.victim.amounts):
                accounts.subtract((self._share(each.victim.queue),), each.victim.amounts)
                kept.append(each)
        return kept

    def _goes(
        self, name: Key, queue: str, right: tuple[RightName, Floors], short: Shortfall
    ) -> _Goes | None:
        """Return a victim; None if it frees no pod, or must not be evicted now."""
        bus, know = self._know.open[name], self._know
        hub = self._hub.workload(name, bus.origin.uid if bus.origin is not None else "")
        rules = self._hub.rules(hub) if hub is not None else None
        if hub is None or rules is None or bus.request is None or not bus.request.preemptible:
            return None
        told_to = bus.leaving or name in self._going or hub.holds(EVICTED)
        if bus.cancel_requested or told_to or name in know.frozen:
            return None
        pods = _pods_in(bus.request, short)
        state = hub.check(own_check(hub, rules)) if pods else None
        if state is None or state.state != READY or hub.deleting or hub.holds(FINISHED):
            return None
        copy = know.copy_of(bus, hub.metadata.namespace, hub.metadata.name)
        if copy is not None and (copy.evicted or copy.unscheduled):
            return None
        lost = lost_gpu_s(bus, self._now_s, RESTART_S)
        before, amounts = -bus.submitted_sequence, self._rooms.amounts(name)
        return _Goes(Victim(lost, before, name, queue, amounts, lost), *right, pods)

    def _takes_of(self, each: _Goes) -> _Takes:
        found = _takes(self._view(each.victim.key))
        assert found is not None  # it has both
        return found

    def _right(self, name: str, priority: int, who: _Waiting) -> tuple[RightName, Floors] | None:
        """Return the precedence over this ClusterQueue and priority; None without."""
        own = who.queue
        rules = own.spec.preemption
        assert rules is not None  # checked by _waiting
        if name == own.metadata.name:
            if rules.within_cluster_queue in _NEVER:
                return None
        else:
            other = self._hub.cluster_queues.get(name)
            cohort = own.spec.cohort_name
            if other is None or not cohort or other.spec.cohort_name != cohort:
                return None
        found = right_over(who.job, (self._share(name),), priority)
        if found is None or name == own.metadata.name:
            return found
        if found[0] == "guarantee" and not who.reclaims_any and priority >= who.priority:
            return None
        if found[0] == "priority" and who.threshold is not None and priority > who.threshold:
            return None
        return found

    def _within_budgets(self, taken: Sequence[_Goes]) -> bool:
        recent, now_s = self._know.recent_evictions, self._now_s
        if len(self._going) + len(taken) > recent.left(self._policy.evictions_per_hour, now_s):
            return False
        requests = (self._know.open[each.victim.key].request for each in taken)
        queues = Counter(request.queue for request in requests if request is not None)
        for queue, count in queues.items():
            setting = self._know.view.queues.get(queue)
            most = setting.max_evictions_per_hour if setting is not None else None
            if count > recent.left(most, now_s, queue):
                return False
        return True

    # Known state

    def _report(self, cluster: str, who: _Waiting) -> QueueReport | None:
        hub = who.view.hub
        assert hub is not None  # checked by _waiting
        found = self._know.local_queue(cluster, hub.metadata.namespace, hub.spec.queue_name)
        return found[0] if found is not None else None

    def _view(self, name: Key) -> WorkloadView:
        return view_of(name, self._know, self._hub)

    def _accounts(self) -> Accounts:
        """Return the quota of each ClusterQueue, less ordered evictions."""
        if self._used is None:
            self._used = Accounts(self._rooms.used())
            for queue, amounts in self._rooms.on_their_way_out():
                self._used.subtract((self._share(queue),), amounts)
        return self._used

    def _is_within(self, queue: str, bus: Workload) -> bool:
        """Return whether a ClusterQueue, with a Workload, is within its own quota."""
        share, used = self._share(queue), self._rooms.used().get(queue, {})
        asked = amounts_of(bus.request) if bus.request is not None else {}
        return bool(asked) and all(
            used.get(resource, 0) <= share.guarantee.get(resource, 0) for resource in asked
        )

    def _share(self, name: str) -> QueueShare:
        found = self._shares.get(name)
        if found is None:
            queue = self._hub.cluster_queues.get(name)
            own = _own_quota(queue) if queue is not None else {}
            found = self._shares[name] = QueueShare(name, guarantee=own)
        return found


def _takes(view: WorkloadView) -> _Takes | None:
    """Return the worker quota of a Workload."""
    bus, hub = view.bus, view.hub
    if bus is None or hub is None or bus.request is None:
        return None
    asks = read_asks(hub, bus.request)
    told = view.copy.flavors if view.copy is not None else ()
    flavors = told if len(told) == len(asks) else ({},) * len(asks)
    sets = [Gone(ask, had) for ask, had in zip(asks, flavors, strict=True)]
    return hub.metadata.namespace, hub.spec.queue_name, sets


def _own_quota(queue: ClusterQueue) -> Mapping[str, int]:
    """Return the nominal quota of a ClusterQueue, over all flavors. A malformed amount is 0."""
    total: dict[str, int] = {}
    for group in queue.groups:
        for flavor in group.flavors or ():
            for quota in flavor.resources or ():
                try:
                    amount = 1000 * whole(quota.nominal_quota)
                except QuantityError:
                    continue
                total[quota.name] = total.get(quota.name, 0) + amount
    return total


def _pods_in(request: JobRequest, short: Shortfall) -> int:
    """Return how many pods of the waiting Workload surely fit where those of a request are.

    For example, a pod of 8 GPUs and 16 CPU cores, on nodes with 8 cores free beside it, is room for
    2 pods of 4 GPUs and 12 cores.
    """
    one, pods = short.largest, 0
    for each in request.pod_sets:
        if not each.gpus or asked_resource(each) != short.resource:
            continue
        same = (each.gpu_models, each.node_labels) == (one.gpu_models, one.node_labels)
        if not (short.uniform or same):
            continue
        fit = each.gpus * each.gpu_milli // (one.gpus * one.gpu_milli)
        if one.cpu_milli:
            fit = min(fit, (each.cpu_milli + short.spare_cpu_milli) // one.cpu_milli)
        if one.memory_mib:
            fit = min(fit, (each.memory_mib + short.spare_memory_mib) // one.memory_mib)
        pods += fit * each.count
    return pods
