"""Who is ended so that a waiting job of better right may begin: the cheapest that free what it
needs, on the right nodes.

Rules of this file:

- Looked for are those who wait within what their queue is guaranteed or deserves, or above others
  in priority, when their turn comes and they do not fit (engine/queueing/making_room.py says who
  may be ended for whom). Nobody whose queue a cluster's Kueue governs, on either side.
- An order is told with a reservation that is owed: nobody else gets that room, and none is looked
  for a second time while it stands. What was ended comes back to its queue with its age.
- In a commit one job at most is given room so, the first in order who has such a right and whom it
  helps, beside what was placed before; a few are looked at for that.
- Nodes are tried in the order of what a pod costs there, as many as it takes, and whoever turns out
  not to be needed stays. So it is the cheapest set on a node, and near it over several. Of many
  nodes those are looked at that a bound says are cheapest (engine/queueing/held_parts.py).
- The budget is of the last hour by decisions' times, for the fleet and for each queue: no set goes
  beyond it.
"""

import math
from collections import Counter
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
from berthmaster.engine.queueing.reservations import MAX_HELD_NODES, owed_room
from berthmaster.fleetview.filters import BUSY
from berthmaster.lifecycle.fold import Key, Workload
from berthmaster.lifecycle.sizes import with_bound, without
from berthmaster.messages.placement import EvictionOrder, Reservation
from berthmaster.messages.workload import JobRequest, PodSet
from berthmaster.resolver.deciding.cycle import Cycle
from berthmaster.resolver.deciding.turns import Turn

CLUSTERS_LOOKED_AT: Final = 4  # for one job: those where most may go
MOST_VICTIMS: Final = 64  # for one job; more would rarely be cheaper than waiting
LOOKS_A_COMMIT: Final = 4
NODES_WEIGHED: Final = 64  # in a cluster, on which a pod would fit
NODES_LOOKED_AT: Final = 256  # to find those
TRIED_WITHOUT: Final = 24  # of a set, the dearest: whether it would do without them
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
        self._looks = 0  # in this draft: one takes milliseconds
        self._budgets: dict[str, float] = {}  # of queues, as far as they were asked for

    def look(self, turn: Turn, asked: JobRequest, shape: bytes) -> Evictions | None:
        """Whom to end for a job that does not fit; None if nobody may be, or it would not help."""
        know, policy = self._know, self._cycle.policy
        setting = know.queues.get(turn.line.queue)
        if setting is None or setting.via != "direct":
            return None  # nobody has set what it may do
        best_tier = min(level.tier for level in turn.levels)
        if best_tier is Tier.BORROWED and setting.preempts == "never":
            return None
        if not policy.evictions_per_hour or self._looks >= LOOKS_A_COMMIT:
            return None
        workload = know.open[turn.key]
        mover = Mover(turn.levels, workload.priority, setting.preempts)
        queues = self._queues(mover)
        left = policy.evictions_per_hour - know.moved.within(self._now_s - HOUR_S)
        if not queues or left <= 0:
            return None
        self._looks += 1
        best: _Found | None = None
        accounts = self.accounts()
        filtered = self._cycle.shortlist(asked, shape).filtered
        for cluster in self._promising(asked, filtered, queues):
            ordered = self._ordered(cluster, mover, asked, queues, accounts, left)
            found = self._in_cluster(cluster, asked, shape, ordered) if ordered else None
            if found is None:
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
            if right_over(mover, know.derived.path(queue), priority) is not None
            and self._budget(queue) > 0
        )

    def _budget(self, queue: str) -> float:
        """How many of a queue may still be ended."""
        left = self._budgets.get(queue)
        if left is None:
            setting = self._know.queues.get(queue)
            most = setting.max_evictions_per_hour if setting is not None else None
            left = math.inf
            if most is not None:
                left = most - self._know.moved.within(self._now_s - HOUR_S, queue)
            self._budgets[queue] = left
        return left

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
            if milli or (not wanted and movable.any_of(cluster, queues)):
                found.append((-milli, cluster))
        found.sort()
        return [cluster for _, cluster in found[:CLUSTERS_LOOKED_AT]]

    # One cluster

    def _in_cluster(
        self, cluster: str, asked: JobRequest, shape: bytes, ordered: Sequence[Victim]
    ) -> _Found | None:
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
            dearest = sorted(needed, key=lambda at: needed[at][:3], reverse=True)
            for at in dearest[:TRIED_WITHOUT]:
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

    def _victims(
        self, cluster: str, mover: Mover, names: Sequence[Key], accounts: Accounts
    ) -> list[Victim]:
        """Those of them who may be ended, each by itself."""
        know, policy = self._know, self._cycle.policy
        found = []
        for name in names:
            if name in know.suspended:
                continue
            workload = know.open[name]
            request = workload.request
            assert request is not None  # else it were not movable
            right = right_over(mover, know.derived.path(request.queue), workload.priority)
            if right is None:
                continue
            amounts = amounts_of(know.fleet.node, request, cluster, workload.pods)
            if accounts.may_lose(right[1], amounts):
                cost = lost_gpu_s(workload, self._now_s, policy.restart_s)
                found.append(
                    Victim(cost, -workload.submitted_sequence, name, request.queue, amounts)
                )
        return found

    def accounts(self) -> Accounts:
        """As they will be when all have gone that were told to."""
        know = self._know
        ledger = know.derived.ledger
        accounts = Accounts(ledger.accounts())
        for name in know.derived.leaving:
            workload = know.open[name]
            if workload.request is not None:
                amounts = amounts_of(
                    know.fleet.node, workload.request, workload.cluster, workload.pods
                )
                accounts.leaves(know.derived.path(workload.request.queue), amounts)
        for name in know.derived.resizing:
            workload = know.open[name]
            gone = without(workload.pods, workload.resizing)
            if workload.request is not None and gone and name not in know.derived.leaving:
                request = with_bound(workload.request, gone)
                amounts = amounts_of(know.fleet.node, request, workload.cluster, gone)
                accounts.leaves(know.derived.path(workload.request.queue), amounts)
        return accounts

    def _ordered(
        self,
        cluster: str,
        mover: Mover,
        asked: JobRequest,
        queues: frozenset[str],
        accounts: Accounts,
        left: int,
    ) -> list[Victim]:
        """Victims by what a pod of the largest set costs on their node; each once, and no more than
        their queues and the budgets can do without. Of a node all that it costs, or nobody."""
        know = self._know
        accounts, going, ordered = accounts.copy(), Counter[str](), dict[Key, Victim]()
        for _, _, taken in self._by_node(cluster, mover, asked, queues, accounts):
            more = [victim for victim in taken if victim.key not in ordered]
            if len(ordered) + len(more) > min(left, MOST_VICTIMS):
                continue
            tried = accounts.copy()
            of_queue = Counter(victim.queue for victim in more)
            if any(going[queue] + n > self._budget(queue) for queue, n in of_queue.items()):
                continue
            for victim in more:
                path = know.derived.path(victim.queue)
                right = right_over(mover, path, know.open[victim.key].priority)
                if right is None or not tried.may_lose(right[1], victim.amounts):
                    break
                tried.leaves(path, victim.amounts)
            else:
                accounts = tried
                going.update(of_queue)
                ordered.update((victim.key, victim) for victim in more)
        return list(ordered.values())

    def _by_node(
        self,
        cluster: str,
        mover: Mover,
        asked: JobRequest,
        queues: frozenset[str],
        accounts: Accounts,
    ) -> list[tuple[float, str, list[Victim]]]:
        """Nodes on which a pod of the largest set would fit, what that costs and whom."""
        know = self._know
        pods = max(asked.pod_sets, key=lambda p: (p.gpus * p.gpu_milli, p.cpu_milli))
        need = _need(pods)

        def may_go(queue: str, priority: int) -> bool:
            path = know.derived.path(queue)
            return queue in queues and right_over(mover, path, priority) is not None

        nodes = know.derived.movable.here(cluster).cheapest_first(
            know.fleet,
            need,
            may_go,
            self._now_s,
            self._cycle.policy.restart_s,
            NODES_LOOKED_AT,
            cluster,
        )
        costs: list[tuple[float, str, list[Victim]]] = []
        for node, names in nodes:
            room = self._room(cluster, node)
            victims = self._victims(cluster, mover, names, accounts)
            if room is None or not victims:
                continue
            parts = (_part(know.fleet.holdings(v.key), v, node) for v in victims)
            taken = cheapest_on(room, need, parts)
            if taken:
                costs.append((cost_of(taken), node, taken))
                if len(costs) >= NODES_WEIGHED:
                    break
        costs.sort(key=lambda each: each[:2])
        return costs

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
            right = right_over(mover, know.derived.path(victim.queue), ended.priority)
            assert right is not None  # or it were no victim
            orders.append(_order(ended, workload, right[0], victim.lost_gpu_s))
        room = owed_room(workload.tenant, workload.id, found.cluster, found.bound.holdings)
        return Evictions(tuple(orders), room)


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


def _part(holdings: Sequence[Holding], victim: Victim, node: str) -> Part:
    """What a victim has on a node."""
    here = [held for held in holdings if held.node == node]
    return Part(
        victim,
        sum(held.cpu_milli for held in here),
        sum(held.memory_mib for held in here),
        tuple((index, held.gpu_milli) for held in here for index in held.gpus),
    )
