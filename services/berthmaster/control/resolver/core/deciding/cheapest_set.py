"""The cheapest running jobs that free what a waiting one needs, on the right nodes: whoever wants
room made or others moved asks here (make_room.py, rebalance.py) and says who may go.

Rules of this file:

- Nodes are tried in the order of what a pod costs there, as many as it takes, and whoever turns out
  not to be needed stays. So it is the cheapest set on a node, and near it over several. Of many
  nodes those are looked at that a bound says are cheapest (lib/engine/queueing/held_parts.py).
- The budget is of the last hour by decisions' times, for the fleet and for each queue: no set goes
  beyond it.
"""

import math
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Final, NamedTuple

from berthmaster.control.resolver.core.deciding.cycle import Cycle
from berthmaster.control.resolver.core.known.parts import open_parts
from berthmaster.lib.engine.fitting.fit import Bound
from berthmaster.lib.engine.fleet.fleet import Fleet
from berthmaster.lib.engine.fleet.needs import Shape, gpu_milli
from berthmaster.lib.engine.fleet.overlay import Overlay
from berthmaster.lib.engine.fleetview.filters import BUSY
from berthmaster.lib.engine.queueing.ledger import amounts_of
from berthmaster.lib.engine.queueing.making_room import (
    Accounts,
    NodeRoom,
    Over,
    Part,
    PodNeed,
    Victim,
    cheapest_on,
    cost_of,
    lost_gpu_s,
)
from berthmaster.lib.engine.queueing.reservations import MAX_HELD_NODES
from berthmaster.lib.lifecycle.sizes import with_bound, without
from berthmaster.lib.lifecycle.workload import Key, Workload
from berthmaster.lib.messages.workload import JobRequest, PodSet

CLUSTERS_LOOKED_AT: Final = 4  # for one job: those where most may go
MOST_VICTIMS: Final = 64  # for one job; more would rarely be cheaper than waiting
NODES_WEIGHED: Final = 64  # in a cluster, on which a pod would fit
NODES_LOOKED_AT: Final = 256  # to find those
TRIED_WITHOUT: Final = 24  # of a set, the dearest: whether it would do without them
HOUR_S: Final = 3600.0


class CheapestSet(NamedTuple):
    """Those who would go in one cluster, and the room that the waiting job would have then."""

    cost: float
    victims: tuple[Victim, ...]
    bound: Bound
    cluster: str


class Sought(NamedTuple):
    """What is looked for, and who may go for it."""

    asked: JobRequest
    shape: Shape
    over: Over
    queues: frozenset[str]  # of whose jobs some may go
    may_go: Callable[[Workload], bool]  # of each by itself, beside that
    most: int  # that may go together
    cost_of: Callable[[Workload], float] | None  # by which they are weighed; None = what they lose


class CheapestSets:
    """In one draft, beside the room that it keeps and has given."""

    def __init__(self, cycle: Cycle) -> None:
        self._cycle = cycle
        self._know = cycle.know
        self._now_s = cycle.now_s
        self._budgets: dict[str, float] = {}  # of queues, as far as they were asked for

    def sought(
        self,
        asked: JobRequest,
        shape: Shape,
        over: Over,
        may_go: Callable[[Workload], bool] = lambda _: True,
        cost_of: Callable[[Workload], float] | None = None,
    ) -> Sought | None:
        """None if nobody may go, or no more in this hour."""
        know = self._know
        left = self._cycle.policy.evictions_per_hour - know.moved.within(self._now_s - HOUR_S)
        queues = frozenset(
            queue
            for queue, priority in know.derived.movable.queues().items()  # the least of any there
            if over(know.derived.path(queue), priority) is not None and self._budget(queue) > 0
        )
        if not queues or left <= 0:
            return None
        return Sought(asked, shape, over, queues, may_go, min(left, MOST_VICTIMS), cost_of)

    def clusters(self, sought: Sought) -> list[str]:
        """Those that would do but for room, those where most may go first."""
        snapshot, movable = self._cycle.snapshot, self._know.derived.movable
        filtered = self._cycle.shortlist(sought.asked, sought.shape).filtered
        wanted = gpu_milli(sought.asked)
        found = []
        for number, cluster in enumerate(snapshot.clusters):
            if number in snapshot.closed or filtered.get(cluster, BUSY) != BUSY:
                continue
            milli = movable.milli(cluster, sought.queues)
            if milli or (not wanted and movable.any_of(cluster, sought.queues)):
                found.append((-milli, cluster))
        found.sort()
        return [cluster for _, cluster in found[:CLUSTERS_LOOKED_AT]]

    def cheapest_in(
        self, cluster: str, sought: Sought, accounts: Accounts, but: Container[Key] = ()
    ) -> CheapestSet | None:
        """In one cluster, without those who stay in any case; None if it would not help."""
        ordered = self._ordered(cluster, sought, accounts, but)
        return self._in_cluster(cluster, sought, ordered) if ordered else None

    def _budget(self, queue: str) -> float:
        """How many of a queue may still go."""
        left = self._budgets.get(queue)
        if left is None:
            setting = self._know.queues.get(queue)
            most = setting.max_evictions_per_hour if setting is not None else None
            left = math.inf
            if most is not None:
                left = most - self._know.moved.within(self._now_s - HOUR_S, queue)
            self._budgets[queue] = left
        return left

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

    # One cluster

    def _in_cluster(
        self, cluster: str, sought: Sought, ordered: Sequence[Victim]
    ) -> CheapestSet | None:
        fleet, asked, shape = self._know.fleet, sought.asked, sought.shape
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
        return CheapestSet(cost_of(chosen), chosen, bound, cluster)

    def _victims(
        self,
        cluster: str,
        sought: Sought,
        names: Sequence[Key],
        accounts: Accounts,
        but: Container[Key],
    ) -> list[Victim]:
        """Those of them who may go, each by itself."""
        know, policy = self._know, self._cycle.policy
        found = []
        for name in names:
            workload = know.open[name]
            if name in know.suspended or name in but or not sought.may_go(workload):
                continue
            request = workload.request
            assert request is not None  # else it were not movable
            right = sought.over(know.derived.path(request.queue), workload.priority)
            if right is None:
                continue
            amounts = self._amounts(workload, request)
            if accounts.may_lose(right[1], amounts):
                lost = lost_gpu_s(workload, self._now_s, policy.restart_s)
                cost = lost if sought.cost_of is None else sought.cost_of(workload)
                before = -workload.submitted_sequence
                found.append(Victim(cost, before, name, request.queue, amounts, lost))
        return found

    def _amounts(self, workload: Workload, request: JobRequest) -> Mapping[str, int]:
        """What its queue loses if it ends; with a part of a gang all parts end."""
        know = self._know
        total = Counter(amounts_of(know.fleet.node, request, workload.cluster, workload.pods))
        job = know.parts.job_of(workload)
        if job is None or request.part is None or not request.part.gang:
            return total
        for part in open_parts(know.parts.of(job)):
            if part.key != workload.key and part.request is not None and part.live:
                total.update(amounts_of(know.fleet.node, part.request, part.cluster, part.pods))
        return total

    def _ordered(
        self, cluster: str, sought: Sought, accounts: Accounts, but: Container[Key]
    ) -> list[Victim]:
        """Victims by what a pod of the largest set costs on their node; each once, and no more than
        their queues and the budgets can do without. Of a node all that it costs, or nobody."""
        know = self._know
        accounts, going, ordered = accounts.copy(), Counter[str](), dict[Key, Victim]()
        for _, _, taken in self._by_node(cluster, sought, accounts, but):
            more = [victim for victim in taken if victim.key not in ordered]
            if len(ordered) + len(more) > sought.most:
                continue
            tried = accounts.copy()
            of_queue = Counter(victim.queue for victim in more)
            if any(going[queue] + n > self._budget(queue) for queue, n in of_queue.items()):
                continue
            for victim in more:
                path = know.derived.path(victim.queue)
                right = sought.over(path, know.open[victim.key].priority)
                if right is None or not tried.may_lose(right[1], victim.amounts):
                    break
                tried.leaves(path, victim.amounts)
            else:
                accounts = tried
                going.update(of_queue)
                ordered.update((victim.key, victim) for victim in more)
        return list(ordered.values())

    def _by_node(
        self, cluster: str, sought: Sought, accounts: Accounts, but: Container[Key]
    ) -> list[tuple[float, str, list[Victim]]]:
        """Nodes on which a pod of the largest set would fit, what that costs and whom."""
        know = self._know
        sets = sought.asked.pod_sets
        sizes = [(each.gpus * each.gpu_milli, each.cpu_milli) for each in sets]
        at = sizes.index(max(sizes))
        pods = sets[at]
        suitable = know.derived.suitables.of(know.fleet, sought.shape, at)
        need = _need(pods, min((milli for _, milli in suitable.charges), default=pods.gpu_milli))

        def may_go(queue: str, priority: int) -> bool:
            path = know.derived.path(queue)
            return queue in sought.queues and sought.over(path, priority) is not None

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
            victims = self._victims(cluster, sought, names, accounts, but)
            if room is None or not victims:
                continue
            parts = (_part(know.fleet, v, node) for v in victims)
            slot = know.fleet.slot(cluster, node)
            assert slot is not None  # or it had no room
            taken = cheapest_on(room, _need(pods, suitable.milli(slot, pods)), parts)
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


def _need(pods: PodSet, gpu_milli: int) -> PodNeed:
    """``gpu_milli``: what each of its GPUs is charged with."""
    return PodNeed(pods.cpu_milli, pods.memory_mib, pods.gpus, gpu_milli)


def _part(fleet: Fleet, victim: Victim, node: str) -> Part:
    here = [held for held in fleet.holdings(victim.key) if held.node == node]
    return Part(
        victim,
        sum(held.cpu_milli for held in here),
        sum(held.memory_mib for held in here),
        tuple((index, fleet.charged_milli(held, index)) for held in here for index in held.gpus),
    )
