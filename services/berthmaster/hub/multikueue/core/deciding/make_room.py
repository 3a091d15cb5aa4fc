"""Whom Kueue is to end, by a check of ours, so that a Workload that waits may begin in a worker.

The hub's Kueue owns order and quota. What it does not see is the room of the workers: it reserves
quota for a Workload that then waits there, behind others whom it would have had a right to displace
had the hub been short. Rules of this file:

- Who may go for whom is what the hub's ClusterQueues say: within one, by withinClusterQueue, lesser
  priorities only; of its cohort, by reclaimWithinCohort, from queues beyond their own quota while
  the other stays within its own, and by borrowWithinCohort, lesser priorities only. Nobody is taken
  below his own quota. Equal priorities never move each other. So nobody is moved for one whom he
  would move back.
- Only who holds quota on the hub gets room: what the hub is short of, its Kueue sees to. Nor is any
  made where only quota of the worker is missing and Kueue there displaces by itself.
- The cheapest set of the first clusters counts, as in the engine
  (lib/engine/queueing/making_room.py). Which nodes a Workload's pods are on is not always told; so
  a pod that goes counts as room for as many as surely fit where it was.
- The order stands in the decision that sends the Workload there, or in a later one, if it waits
  there already. Until those have gone who were told to, it is not sent on, nothing more is made
  for it, and who would be served before it there counts first.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from berthmaster.hub.multikueue.core.deciding.gate import HubGate, Shortfall
from berthmaster.hub.multikueue.core.deciding.leaving import RESTART_S, own_check
from berthmaster.hub.multikueue.core.deciding.shortlist import HubShortlist, shortlist_for
from berthmaster.hub.multikueue.core.deciding.traps import busy
from berthmaster.hub.multikueue.core.known.bus_state import BusState
from berthmaster.hub.multikueue.core.known.hub import Hub
from berthmaster.hub.multikueue.core.known.requests import read_asks
from berthmaster.hub.multikueue.core.known.rooms import Rooms, amounts_of
from berthmaster.hub.multikueue.core.known.workload_view import WorkloadView, view_of
from berthmaster.hub.multikueue.settings import HubPolicy
from berthmaster.lib.engine.fleetview.components import BUSY, NO_QUOTA
from berthmaster.lib.engine.queueing.making_room import (
    Accounts,
    Floors,
    Mover,
    RightName,
    Victim,
    by_cost,
    cheapest_that,
    cost_of,
    lost_gpu_s,
    right_over,
)
from berthmaster.lib.engine.queueing.queues import QueueShare, Tier
from berthmaster.lib.engine.queueing.tree import Level
from berthmaster.lib.kube.quantity import QuantityError, whole
from berthmaster.lib.kueue.asks import asked_resource
from berthmaster.lib.kueue.names import EVICTED, FINISHED, QUOTA_RESERVED, READY
from berthmaster.lib.kueue.queues import ClusterQueue
from berthmaster.lib.kueue.quota import Gone
from berthmaster.lib.kueue.workloads import KueueWorkload
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Key, Workload
from berthmaster.lib.messages.fleet import QueueReport
from berthmaster.lib.messages.placement import EvictionOrder
from berthmaster.lib.messages.workload import JobRequest

CLUSTERS_LOOKED_AT: Final = 4  # for one: the best
LOOKS_A_COMMIT: Final = 4
MOST_VICTIMS: Final = 64
HOUR_S: Final = 3600.0
WORDS: Final = {
    "guarantee": "what its queue borrowed is another queue's own quota",
    "priority": "a job of higher priority needs its room",
}
_NEVER: Final = (None, "", "Never")
_ANY: Final = "Any"


_Takes = tuple[str, str, Sequence[Gone]]  # of a worker's quota: see gate.admits_without


class Made(NamedTuple):
    """Room that will be there, and who goes for it."""

    cluster: str
    victims: tuple["_Goes", ...]
    pods: int  # for which there was none

    @property
    def cost(self) -> float:
        """GPU seconds that are lost."""
        return cost_of([each.victim for each in self.victims])


class _Goes(NamedTuple):
    victim: Victim
    right: RightName
    floors: Floors
    pods: int  # of the beneficiary's largest set that surely fit where it was


class _Freed(NamedTuple):
    pods: int
    gone: frozenset[Key]


class _Beneficiary(NamedTuple):
    """Who waits, and what its ClusterQueue lets it do."""

    view: WorkloadView
    bus: Workload
    queue: ClusterQueue
    mover: Mover
    priority: int
    reclaims_any: bool
    threshold: int | None  # whoever is displaced by who borrows has no higher priority


def waits_for_room(view: WorkloadView) -> bool:
    """Whether a worker says that it has it, and no room for it."""
    bus, copy = view.bus, view.copy
    if bus is None or copy is None or copy.evicted or copy.finished:
        return False
    if bus.state is State.CLAIMED:
        return not copy.admitted and busy(copy)
    return bus.state is State.ADMITTED and bool(copy.unscheduled)


class RoomMaker:
    """In one decision that is being made."""

    def __init__(
        self, know: BusState, hub: Hub, rooms: Rooms, policy: HubPolicy, now_s: float
    ) -> None:
        self._know = know
        self._hub = hub
        self._rooms = rooms
        self._policy = policy
        self._now_s = now_s
        self._looks = 0
        self._going: set[Key] = set()  # by this decision
        self._used: Accounts | None = None
        self._shares: dict[str, QueueShare] = {}

    # Who asks

    def best(self, view: WorkloadView, shortlist: HubShortlist) -> Made | None:
        """Of all clusters, for one that is about to be sent to one of them and fits in none."""
        who, gate = self._who_asks(view), shortlist.gate
        if who is None or gate is None:
            return None
        self._looks += 1
        best: Made | None = None
        looked = 0
        for candidate in shortlist.candidates:
            if candidate.last or looked == CLUSTERS_LOOKED_AT:
                break
            if candidate.tier not in (BUSY, NO_QUOTA):
                continue
            looked += 1
            found = self._in(candidate.ref.name, who, gate, short_of_quota=candidate.tier != BUSY)
            if found is not None and (best is None or found.cost < best.cost):
                best = found
        return best

    def here(self, view: WorkloadView) -> Made | None:
        """In the cluster where it waits."""
        if view.bus is None or not waits_for_room(view):
            return None
        who = self._who_asks(view)
        if who is None:
            return None
        shortlist = shortlist_for(self._know, view, self._policy, self._now_s)
        cluster, claimed = view.bus.cluster, view.bus.state is State.CLAIMED
        found = next((c for c in shortlist.candidates if c.ref.name == cluster), None)
        if claimed and (found is None or found.tier != NO_QUOTA):
            return None  # its copy waits for something else than what is known here
        if shortlist.gate is None:
            return None
        self._looks += 1
        return self._in(cluster, who, shortlist.gate, short_of_quota=claimed)

    def take(self, made: Made) -> None:
        """They go: nobody else gets their room in this decision."""
        for each in made.victims:
            self._going.add(each.victim.key)
            self._accounts().leaves((self._share(each.victim.queue),), each.victim.amounts)

    def has_taken(self, name: Key) -> bool:
        """Whether this decision tells it to go already."""
        return name in self._going

    def _who_asks(self, view: WorkloadView) -> _Beneficiary | None:
        """None: nobody may go for it, or enough were looked for in this decision."""
        bus, hub, rules = view.bus, view.hub, view.rules
        if bus is None or hub is None or rules is None or bus.request is None:
            return None
        if not self._policy.evictions_per_hour or self._looks >= LOOKS_A_COMMIT:
            return None
        if not hub.holds(QUOTA_RESERVED) or self._know.going_for(view.name):
            return None
        queue = self._hub.cluster_queues.get(rules.cluster_queue)
        return self._beneficiary(view, bus, hub, queue) if queue is not None else None

    def _beneficiary(
        self, view: WorkloadView, bus: Workload, hub: KueueWorkload, queue: ClusterQueue
    ) -> _Beneficiary | None:
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
        mover = Mover((Level(name, tier, 0),), hub.spec.priority or 0, preempts)
        threshold = borrows.max_priority_threshold if borrows is not None else None
        return _Beneficiary(view, bus, queue, mover, mover.priority, reclaim == _ANY, threshold)

    # One cluster

    def _in(
        self, cluster: str, who: _Beneficiary, gate: HubGate, *, short_of_quota: bool
    ) -> Made | None:
        report = self._report(cluster, who)
        if report is None or (short_of_quota and report.preempts):
            return None
        ahead = self._ahead(who)
        if any(self._waits_before(name, ahead) for name in self._rooms.awaiting(cluster)):
            return None  # they would have it first
        short = gate.shortfall(cluster, ahead)
        lacks = short.pods if short is not None else 0
        if who.bus.state is State.ADMITTED and who.view.copy is not None:
            lacks = who.view.copy.unscheduled  # the others of it have their nodes
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

        taken = cheapest_that(may, _Freed(coming, frozenset()), change, is_enough)
        if not taken:
            return None  # nobody helps, or there will be room as it is
        return Made(cluster, tuple(taken), lacks) if self._within_budgets(taken) else None

    def _ahead(self, who: _Beneficiary) -> Callable[[Workload], bool]:
        """Who is served before it where both wait: Kueue goes by priority, then by age."""

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
        """Who has room there yet and was told to go, by whomever, in the order of their coming."""
        told = (name for name in self._going if self._know.open[name].cluster == cluster)
        views = map(self._view, {*self._rooms.leaving(cluster), *told})
        going = [view for view in views if self._is_going(view)]
        return sorted(going, key=lambda view: view.bus.submitted_sequence if view.bus else 0)

    def _is_going(self, view: WorkloadView) -> bool:
        """It has its room yet, and was told to go, by whomever."""
        if view.bus is None or view.bus.state not in (State.ADMITTED, State.RUNNING):
            return False
        taken_back = view.hub is not None and view.hub.holds(EVICTED)
        return bool(view.bus.leaving) or taken_back or view.name in self._going

    def _may_go(self, cluster: str, who: _Beneficiary, short: Shortfall) -> list[_Goes]:
        """The cheapest of them, as many as their queues and the budgets can do without."""
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
            if len(kept) == MOST_VICTIMS:
                break
            if accounts.may_lose(each.floors, each.victim.amounts):
                accounts.leaves((self._share(each.victim.queue),), each.victim.amounts)
                kept.append(each)
        return kept

    def _goes(
        self, name: Key, queue: str, right: tuple[RightName, Floors], short: Shortfall
    ) -> _Goes | None:
        """None: it helps nobody, or may not be told to go now."""
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

    def _right(
        self, name: str, priority: int, who: _Beneficiary
    ) -> tuple[RightName, Floors] | None:
        """By what right one of this ClusterQueue and priority may go; None if by none."""
        own = who.queue
        rules = own.spec.preemption
        assert rules is not None  # or nobody had asked
        if name == own.metadata.name:
            if rules.within_cluster_queue in _NEVER:
                return None
        else:
            other = self._hub.cluster_queues.get(name)
            cohort = own.spec.cohort_name
            if other is None or not cohort or other.spec.cohort_name != cohort:
                return None
        found = right_over(who.mover, (self._share(name),), priority)
        if found is None or name == own.metadata.name:
            return found
        if found[0] == "guarantee" and not who.reclaims_any and priority >= who.priority:
            return None
        if found[0] == "priority" and who.threshold is not None and priority > who.threshold:
            return None
        return found

    def _within_budgets(self, taken: Sequence[_Goes]) -> bool:
        moved, since_s = self._know.moved, self._now_s - HOUR_S
        going = len(self._going)
        if moved.within(since_s) + going + len(taken) > self._policy.evictions_per_hour:
            return False
        queues = [self._know.open[each.victim.key].request for each in taken]
        for queue in {request.queue for request in queues if request is not None}:
            setting = self._know.view.queues.get(queue)
            most = setting.max_evictions_per_hour if setting is not None else None
            asked = sum(request is not None and request.queue == queue for request in queues)
            if most is not None and moved.within(since_s, queue) + asked > most:
                return False
        return True

    # What is known

    def _report(self, cluster: str, who: _Beneficiary) -> QueueReport | None:
        hub = who.view.hub
        assert hub is not None  # or nobody had asked
        found = self._know.local_queue(cluster, hub.metadata.namespace, hub.spec.queue_name)
        return found[0] if found is not None else None

    def _view(self, name: Key) -> WorkloadView:
        return view_of(name, self._know, self._hub)

    def _accounts(self) -> Accounts:
        """What each ClusterQueue holds of the hub's quota, less what is on its way out."""
        if self._used is None:
            self._used = Accounts(self._rooms.used())
            for queue, amounts in self._rooms.on_their_way_out():
                self._used.leaves((self._share(queue),), amounts)
        return self._used

    def _is_within(self, queue: str, bus: Workload) -> bool:
        """Whether its ClusterQueue, with it, is within its own quota."""
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


def orders_of(made: Made, bus: Workload, know: BusState) -> Iterable[EvictionOrder]:
    for each in made.victims:
        goes = know.open[each.victim.key]
        yield EvictionOrder(
            tenant=goes.tenant,
            id=goes.id,
            attempt=goes.attempt,
            cluster=goes.cluster,
            lost_gpu_s=round(each.victim.lost_gpu_s, 3),
            for_tenant=bus.tenant,
            for_id=bus.id,
            right=each.right,
        )


def _takes(view: WorkloadView) -> _Takes | None:
    """What it has of its worker's quota."""
    bus, hub = view.bus, view.hub
    if bus is None or hub is None or bus.request is None:
        return None
    asks = read_asks(hub, bus.request)
    told = view.copy.flavors if view.copy is not None else ()
    flavors = told if len(told) == len(asks) else ({},) * len(asks)
    sets = [Gone(ask, had) for ask, had in zip(asks, flavors, strict=True)]
    return hub.metadata.namespace, hub.spec.queue_name, sets


def _own_quota(queue: ClusterQueue) -> Mapping[str, int]:
    """The same of what a ClusterQueue has in all flavors. What cannot be read is none."""
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
    """How many pods of the beneficiary's surely fit where those of a request are.

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
