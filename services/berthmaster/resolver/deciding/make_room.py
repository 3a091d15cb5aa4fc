"""Who is ended so that a waiting job of better right may begin: the cheapest that free what it
needs, on the right nodes.

Rules of this file:

- Looked for are those who wait within what their queue is guaranteed or deserves, or above others
  in priority, when their turn comes and they do not fit (engine/queueing/making_room.py says who
  may be ended for whom). Nobody whose queue a cluster's Kueue governs, on either side.
- An order is told with a reservation that is owed: nobody else gets that room, and none is looked
  for a second time while it stands. What was ended comes back to its queue with its age.
- It is looked for once in a commit, for the first in order who has such a right, and before
  anything else is placed in it.
- Nodes are tried in the order of what a pod costs there, as many as it takes, and whoever turns out
  not to be needed stays. So it is the cheapest set on a node, and near it over several.
- The budget is of the last hour by decisions' times, for the fleet and for each queue: beyond it
  nobody is ended.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from berthmaster.engine.fitting.fit import Bound
from berthmaster.engine.fleet.fleet import Holding
from berthmaster.engine.fleet.needs import gpu_milli
from berthmaster.engine.fleet.overlay import Overlay
from berthmaster.engine.queueing.ledger import amounts_of
from berthmaster.engine.queueing.making_room import (
    Accounts,
    Mover,
    NodeRoom,
    Part,
    PodNeed,
    RightName,
    Victim,
    cheapest_on,
    cost_of,
    lost_gpu_s,
    right_over,
)
from berthmaster.engine.queueing.queues import Tier
from berthmaster.engine.queueing.reservations import MAX_HELD_NODES, held_nodes
from berthmaster.fleetview.filters import BUSY
from berthmaster.lifecycle.fold import Workload
from berthmaster.lifecycle.sizes import with_bound, without
from berthmaster.messages.placement import EvictionOrder, Reservation
from berthmaster.messages.workload import JobRequest, PodSet
from berthmaster.resolver.deciding.cycle import Cycle
from berthmaster.resolver.deciding.turns import Turn

CLUSTERS_LOOKED_AT: Final = 4  # for one job: those where most may go
MOST_VICTIMS: Final = 64  # for one job; more would rarely be cheaper than waiting
HOUR_S: Final = 3600.0
WORDS: Final = {
    "guarantee": "what its queue borrowed is another queue's guarantee",
    "deserved": "what its queue borrowed is another queue's deserved share",
    "priority": "a job of higher priority needs its room",
    "": "what it has beyond what it wished for is needed by a job that waits",
}


class Evictions(NamedTuple):
    """The orders for one job, and the room that will be its."""

    orders: tuple[EvictionOrder, ...]
    reservation: Reservation


class _Found(NamedTuple):
    cost: float
    victims: tuple[Victim, ...]
    bound: Bound
    cluster: str


class RoomMaker:
    """In one draft, beside the room that it keeps and has given."""

    def __init__(self, cycle: Cycle) -> None:
        self._cycle = cycle
        self._know = cycle.know
        self._now_s = cycle.now_s
        self._looked = False  # once in a draft: a look takes milliseconds

    def look(self, turn: Turn, asked: JobRequest, shape: bytes) -> Evictions | None:
        """Whom to end for a job that does not fit; None if nobody may be, or it would not help."""
        know, policy = self._know, self._cycle.policy
        setting = know.queues.get(turn.line.queue)
        if setting is None or setting.via != "direct":
            return None  # nobody has set what it may do
        if turn.tier is Tier.BORROWED and setting.preempts == "never":
            return None
        if not policy.evictions_per_hour or self._looked:
            return None
        workload = know.open[turn.key]
        mover = Mover(
            turn.line.queue,
            turn.tier,
            turn.share.priority,
            workload.priority,
            setting.preempts,
        )
        queues = self._queues(mover)
        left = policy.evictions_per_hour - know.moved.within(self._now_s - HOUR_S)
        if not queues or left <= 0:
            return None
        self._looked = True
        best: _Found | None = None
        filtered = self._cycle.shortlist(asked, shape).filtered
        for cluster in self._promising(asked, filtered, queues):
            found = self._in_cluster(cluster, mover, asked, shape, queues)
            if found is None or len(found.victims) > left:
                continue
            if best is None or (found.cost, cluster) < (best.cost, best.cluster):
                best = found
        return self._told(workload, mover, best) if best is not None else None

    def _queues(self, mover: Mover) -> frozenset[str]:
        """Those of whose jobs some may be ended for it: if any, the one of least priority."""
        know = self._know
        return frozenset(
            queue
            for queue, priority in know.derived.movable.queues().items()
            if right_over(mover, know.derived.share(queue), priority) is not None
            and self._may_end(queue)
        )

    def _may_end(self, queue: str) -> bool:
        """Whether the budget of a queue is not spent."""
        setting = self._know.queues.get(queue)
        most = setting.max_evictions_per_hour if setting is not None else None
        return most is None or self._know.moved.within(self._now_s - HOUR_S, queue) < most

    def _promising(
        self, asked: JobRequest, filtered: dict[str, str], queues: frozenset[str]
    ) -> list[str]:
        """Clusters that would do but for room, those where most may go first."""
        snapshot, movable = self._cycle.snapshot, self._know.derived.movable
        wanted = gpu_milli(asked)
        found = []
        for number, cluster in enumerate(snapshot.clusters):
            if number in snapshot.closed or filtered.get(cluster, BUSY) != BUSY:
                continue
            milli = movable.milli(cluster, queues)
            if milli or (not wanted and any(movable.among(cluster, queues))):
                found.append((-milli, cluster))
        found.sort()
        return [cluster for _, cluster in found[:CLUSTERS_LOOKED_AT]]

    # One cluster

    def _in_cluster(
        self, cluster: str, mover: Mover, asked: JobRequest, shape: bytes, queues: frozenset[str]
    ) -> _Found | None:
        victims = self._victims(cluster, mover, queues)
        if not victims:
            return None
        ordered = self._by_node(cluster, mover, asked, victims)
        fleet = self._know.fleet
        with Overlay(fleet) as overlay:

            def fits(number: int) -> Bound | None:
                """With so many of them gone."""
                for at, victim in enumerate(ordered[:MOST_VICTIMS]):
                    overlay.give_back(at)
                    if at < number:
                        overlay.free(at, fleet.holdings(victim.key))
                return self._cycle.bind_in(asked, shape, cluster)

            most = min(len(ordered), MOST_VICTIMS)
            low, high, bound = 0, 1, None
            while bound is None and low < most:
                high = min(high, most)
                bound = fits(high)
                if bound is None:
                    low, high = high, 2 * high
            while bound is not None and high - low > 1:
                middle = (low + high) // 2
                tried = fits(middle)
                if tried is None:
                    low = middle
                else:
                    bound, high = tried, middle
            if bound is None:
                return None
            bound = fits(high)
            assert bound is not None  # it did before
            needed = dict(enumerate(ordered[:high]))
            for at in sorted(needed, key=lambda at: needed[at][:3], reverse=True):
                overlay.give_back(at)
                without = self._cycle.bind_in(asked, shape, cluster)
                if without is not None:
                    bound = without
                    del needed[at]
                else:
                    overlay.free(at, fleet.holdings(needed[at].key))
        chosen = tuple(needed.values())
        if not chosen or len(bound.holdings) > MAX_HELD_NODES:
            return None
        return _Found(cost_of(chosen), chosen, bound, cluster)

    def _victims(self, cluster: str, mover: Mover, queues: frozenset[str]) -> list[Victim]:
        """Those who may be ended, each by itself."""
        know, policy = self._know, self._cycle.policy
        accounts = self.accounts()
        found = []
        for name in know.derived.movable.among(cluster, queues):
            if name in know.suspended:
                continue
            workload = know.open[name]
            request = workload.request
            assert request is not None  # else it were not movable
            share = know.derived.share(request.queue)
            right = right_over(mover, share, workload.priority)
            if right is None:
                continue
            amounts = amounts_of(know.fleet.node, request, cluster, workload.pods)
            if accounts.may_lose(request.queue, amounts, right[1]):
                cost = lost_gpu_s(workload, self._now_s, policy.restart_s)
                found.append(
                    Victim(cost, -workload.submitted_sequence, name, request.queue, amounts)
                )
        return found

    def accounts(self) -> Accounts:
        """As they will be when all have gone that were told to."""
        know = self._know
        ledger = know.derived.ledger
        accounts = Accounts({queue: ledger.used(queue) for queue in ledger.queues()})
        for name in know.derived.leaving:
            workload = know.open[name]
            if workload.request is not None:
                amounts = amounts_of(
                    know.fleet.node, workload.request, workload.cluster, workload.pods
                )
                accounts.leaves(workload.request.queue, amounts)
        for name in know.derived.resizing:
            workload = know.open[name]
            gone = without(workload.pods, workload.resizing)
            if workload.request is not None and gone and name not in know.derived.leaving:
                request = with_bound(workload.request, gone)
                amounts = amounts_of(know.fleet.node, request, workload.cluster, gone)
                accounts.leaves(workload.request.queue, amounts)
        return accounts

    def _by_node(
        self,
        cluster: str,
        mover: Mover,
        asked: JobRequest,
        victims: Sequence[Victim],
    ) -> list[Victim]:
        """Victims by what a pod of the largest set costs on their node; each once, and no more than
        their queues can do without."""
        know = self._know
        pods = max(asked.pod_sets, key=lambda p: (p.gpus * p.gpu_milli, p.cpu_milli))
        by_node: dict[str, list[Part]] = {}
        for victim in victims:
            for node, part in _parts(know.fleet.holdings(victim.key), victim).items():
                by_node.setdefault(node, []).append(part)
        costs = []
        for node, parts in by_node.items():
            room = self._room(cluster, node)
            taken = cheapest_on(room, _need(pods), parts) if room is not None else None
            if taken:
                costs.append((cost_of(taken), node, taken))
        costs.sort(key=lambda each: each[:2])
        accounts, ordered = self.accounts(), {}
        for _, _, taken in costs:
            for victim in taken:
                share = know.derived.share(victim.queue)
                right = right_over(mover, share, know.open[victim.key].priority)
                if victim.key in ordered or right is None:
                    continue
                if not accounts.may_lose(victim.queue, victim.amounts, right[1]):
                    continue
                accounts.leaves(victim.queue, victim.amounts)
                ordered[victim.key] = victim
        return list(ordered.values())

    def _room(self, cluster: str, node: str) -> NodeRoom | None:
        fleet = self._know.fleet
        slot, report = fleet.slot(cluster, node), fleet.node(cluster, node)
        if slot is None or report is None or not fleet.arrays.open[slot]:
            return None
        free = fleet.arrays.gpu[slot].tolist()
        gpus = {gpu.index: free[at] for at, gpu in enumerate(report.gpus)}
        return NodeRoom(int(fleet.arrays.cpu[slot]), int(fleet.arrays.memory[slot]), gpus)

    # What is told

    def _told(self, workload: Workload, mover: Mover, found: _Found) -> Evictions:
        know = self._know
        orders = []
        for victim in found.victims:
            ended = know.open[victim.key]
            right = right_over(mover, know.derived.share(victim.queue), ended.priority)
            assert right is not None  # or it were no victim
            orders.append(_order(ended, workload, right[0], victim.lost_gpu_s))
        reservation = Reservation(
            tenant=workload.tenant,
            id=workload.id,
            cluster=found.cluster,
            held=held_nodes(found.bound.holdings),
            owed=True,
        )
        return Evictions(tuple(orders), reservation)


def _order(ended: Workload, mover: Workload, right: RightName, lost: float) -> EvictionOrder:
    return EvictionOrder(
        tenant=ended.tenant,
        id=ended.id,
        attempt=ended.attempt,
        cluster=ended.cluster,
        lost_gpu_s=round(lost, 3),
        for_tenant=mover.tenant,
        for_id=mover.id,
        right=right,
    )


def _need(pods: PodSet) -> PodNeed:
    return PodNeed(pods.cpu_milli, pods.memory_mib, pods.gpus, pods.gpu_milli)


def _parts(holdings: Sequence[Holding], victim: Victim) -> dict[str, Part]:
    """What a victim has on each of its nodes."""
    parts: dict[str, Part] = {}
    for held in holdings:
        gpus = tuple((index, held.gpu_milli) for index in held.gpus)
        before = parts.get(held.node, Part(victim, 0, 0, ()))
        parts[held.node] = Part(
            victim,
            before.cpu_milli + held.cpu_milli,
            before.memory_mib + held.memory_mib,
            before.gpus + gpus,
        )
    return parts
