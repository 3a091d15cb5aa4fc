"""The search for victims, so that a pending job may start.

``Preemptor.search`` finds the evictions for one job that does not fit. ``VictimSearch`` finds the
cheapest set of victims on the right nodes. rebalance.py uses the search with another rule of
eligibility. lib/engine/queueing/preemption.py has the rules.

Example: a pending job of 8 GPUs has a guarantee. On node a two borrowing jobs of 4 GPUs would lose
900 and 1,100 GPU seconds, and on node b one job of 8 GPUs would lose 2,500. The decision evicts
both jobs of node a for 2,000 GPU seconds, and reserves node a.

Rules of this file:

- A search runs for a job within its queue's guarantee or deserved share, or above others in
  priority, that is the next candidate and does not fit. Jobs governed by Kueue neither preempt nor
  are preempted.
- An eviction is recorded with an owed reservation. No other job gets that capacity, and no second
  search runs for the job while the reservation holds. An evicted job is requeued with its age.
- Trials go first of all, without budgets and for any direct queue.
- Idle jobs go next, where their queue allows it (lib/engine/queueing/idle.py).
- Without precedence, a job may stop jobs of equal priority in its queue, if the queue allows.
- One commit preempts for one job: the first in order with a precedence and a helpful set, beside
  earlier placements. A few jobs are searched for.
- Nodes are tried by the cost of a pod there. Superfluous victims stay. So the set is the cheapest
  on one node, and near that on several. Of many nodes, those with the lowest bound are tried
  (lib/engine/queueing/held_parts.py).
- Hourly budgets of the fleet and of each queue limit every set.
"""

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from berthmaster.control.resolver.core.deciding.cycle import Cycle
from berthmaster.control.resolver.core.deciding.reservations import MAX_HELD_NODES, owed_capacity
from berthmaster.control.resolver.core.deciding.turns import Turn
from berthmaster.control.resolver.core.known.indexes import open_parts
from berthmaster.control.resolver.core.known.knowledge import Knowledge
from berthmaster.control.resolver.policy import Policy
from berthmaster.lib.engine.fitting.fit import Bound
from berthmaster.lib.engine.fleet.fleet import Fleet, Overlay
from berthmaster.lib.engine.fleet.needs import Shape, gpu_milli
from berthmaster.lib.engine.fleetview.shortlist import BUSY
from berthmaster.lib.engine.queueing.idle import idle_action
from berthmaster.lib.engine.queueing.ledger import amounts_of
from berthmaster.lib.engine.queueing.lines import gpu_share
from berthmaster.lib.engine.queueing.preemption import (
    CLUSTERS_TRIED,
    MAX_VICTIMS,
    SEARCHES_A_COMMIT,
    Accounts,
    Beneficiary,
    Floors,
    FreeOnNode,
    HeldOnNode,
    PodNeed,
    Remaining,
    RightName,
    RightOver,
    Stopped,
    Victim,
    cheapest_on,
    cost_of,
    endings_per_s,
    eviction_order,
    lost_gpu_s,
    may_stop,
    pays,
    right_over,
)
from berthmaster.lib.engine.queueing.queues import Path, Tier
from berthmaster.lib.lifecycle.pods import with_bound, without
from berthmaster.lib.lifecycle.workload import Key, Workload, unsaved_s
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.placement import EvictionOrder, Reservation
from berthmaster.lib.messages.workload import TRIAL_PRIORITY, JobRequest, PodSet

EQUAL_SEARCHES: Final = 8  # a commit, among jobs of equal priority: one for each size and shape
NODES_WEIGHED: Final = 64  # nodes of a cluster where a pod would fit
NODES_TRIED: Final = 256  # nodes to examine for that
TRIED_WITHOUT: Final = 24  # costliest victims of a set to try without
WORDS: Final = {
    "guarantee": "what its queue borrowed is another queue's guarantee",
    "deserved": "what its queue borrowed is another queue's deserved share",
    "priority": "a job of higher priority needs its room",
    "idle": "its GPUs were idle for as long as its queue allows, and a job waits for them",
    "": "what it has beyond what it wished for is needed by a job that waits",
}
# A job without a stated duration has more left to do the longer it runs. So jobs of equal priority
# are searched again after this time, even without an event.
EQUALS_EVERY_S: Final = 3600.0
REFUSED: Final = "the log refused what was decided about it, so nobody is ended or moved for it"
EQUAL: Final = "a job of its queue and priority that has clearly less left to do needs its room"


class Evictions(NamedTuple):
    """Evictions for one job, and its reservation."""

    orders: tuple[EvictionOrder, ...]
    reservation: Reservation


class VictimSet(NamedTuple):
    """Victims in one cluster, and the nodes of the pending job without them."""

    cost: float
    victims: tuple[Victim, ...]
    bound: Bound
    cluster: str


class Sought(NamedTuple):
    """A job that needs capacity, and the jobs that may be evicted."""

    asked: JobRequest
    shape: Shape
    right_over: RightOver
    queues: frozenset[str]  # queues of eligible jobs
    may_go: Callable[[Workload], bool]  # eligibility of each job, besides precedence
    most: int  # maximum number of victims
    cost_of: Callable[[Workload], float] | None  # None = the GPU seconds lost
    budgeted: bool = True  # whether queues' budgets limit the set


class VictimSearch:
    """The search for victims in one draft, beside reservations and placements."""

    def __init__(self, cycle: Cycle) -> None:
        self._cycle = cycle
        self._know = cycle.know
        self._now_s = cycle.now_s
        self._budgets: dict[str, float] = {}  # of queues, once requested

    def sought(
        self,
        asked: JobRequest,
        shape: Shape,
        right: RightOver,
        may_go: Callable[[Workload], bool] = lambda _: True,
        cost_of: Callable[[Workload], float] | None = None,
        *,
        budgeted: bool = True,
    ) -> Sought | None:
        """Return the search for a job; None if no job is eligible, or the hourly budget is used.

        ``budgeted``: whether the budgets of the fleet and of queues limit the search.
        """
        know, left = self._know, math.inf
        if budgeted:
            left = know.recent_evictions.left(self._cycle.policy.evictions_per_hour, self._now_s)
        queues = frozenset(
            queue
            for queue, priority in know.derived.movable.queues().items()  # the lowest of each
            if right(know.derived.path(queue), priority) is not None
            and (not budgeted or self._budget(queue) > 0)
        )
        if not queues or left <= 0:
            return None
        most = int(min(left, MAX_VICTIMS))
        return Sought(asked, shape, right, queues, may_go, most, cost_of, budgeted)

    def cheapest(
        self, sought: Sought, is_worth: Callable[[VictimSet], bool] = lambda _: True
    ) -> VictimSet | None:
        """Return the cheapest worthwhile set of all clusters."""
        best: VictimSet | None = None
        accounts = self.accounts()
        for cluster in self.clusters(sought):
            found = self.cheapest_in(cluster, sought, accounts)
            if found is None or not is_worth(found):
                continue
            if best is None or (found.cost, cluster) < (best.cost, best.cluster):
                best = found
        return best

    def clusters(self, sought: Sought) -> list[str]:
        """Return clusters that lack only free capacity, those with the most eligible capacity
        first.
        """
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
        return [cluster for _, cluster in found[:CLUSTERS_TRIED]]

    def cheapest_in(
        self, cluster: str, sought: Sought, accounts: Accounts, but: Container[Key] = ()
    ) -> VictimSet | None:
        """Return the cheapest set of one cluster without ``but``; None if no set helps."""
        ordered = self._ordered(cluster, sought, accounts, but)
        return self._in_cluster(cluster, sought, ordered) if ordered else None

    def _budget(self, queue: str) -> float:
        """Return how many jobs of a queue may still go."""
        left = self._budgets.get(queue)
        if left is None:
            setting = self._know.queues.get(queue)
            most = setting.max_evictions_per_hour if setting is not None else None
            left = self._know.recent_evictions.left(most, self._now_s, queue)
            self._budgets[queue] = left
        return left

    def accounts(self) -> Accounts:
        """Return the queues' usage once all evictions and resizes under way are done."""
        know = self._know
        ledger = know.derived.ledger
        accounts = Accounts(ledger.accounts())
        for name in know.derived.leaving:
            workload = know.open[name]
            if workload.request is not None and not workload.request.trial_of:
                amounts = amounts_of(
                    know.fleet.node, workload.request, workload.cluster, workload.pods
                )
                accounts.subtract(know.derived.path(workload.request.queue), amounts)
        for name in know.derived.resizing:
            workload = know.open[name]
            gone = without(workload.pods, workload.resizing)
            if workload.request is not None and gone and name not in know.derived.leaving:
                request = with_bound(workload.request, gone)
                amounts = amounts_of(know.fleet.node, request, workload.cluster, gone)
                accounts.subtract(know.derived.path(workload.request.queue), amounts)
        return accounts

    # One cluster

    def _in_cluster(
        self, cluster: str, sought: Sought, ordered: Sequence[Victim]
    ) -> VictimSet | None:
        fleet, asked, shape = self._know.fleet, sought.asked, sought.shape
        with Overlay(fleet) as overlay:

            def fits(number: int) -> Bound | None:
                """Bind the job without the first ``number`` victims."""
                for at, victim in enumerate(ordered[:MAX_VICTIMS]):
                    overlay.give_back(at)
                    if at < number:
                        overlay.free(at, fleet.holdings(victim.key))
                return self._cycle.bind_in(asked, shape, cluster)

            most = min(len(ordered), MAX_VICTIMS)
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
            assert bound is not None  # found before
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
        return VictimSet(cost_of(chosen), chosen, bound, cluster)

    def _victims(
        self,
        cluster: str,
        sought: Sought,
        names: Sequence[Key],
        accounts: Accounts,
        but: Container[Key],
    ) -> list[Victim]:
        """Return eligible jobs, each alone."""
        know, policy = self._know, self._cycle.policy
        found = []
        for name in names:
            workload = know.open[name]
            if name in know.suspended or name in but or not sought.may_go(workload):
                continue
            request = workload.request
            assert request is not None  # movable jobs have a request
            right = sought.right_over(know.derived.path(request.queue), workload.priority)
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
        """Return what a queue loses if a job ends; all parts of a gang end together."""
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
        """Return victims by the cost of a pod of the largest set on their node, each once.

        No queue falls below its floor, and no budget is exceeded. A node gives all of its victims
        or none.
        """
        know = self._know
        accounts, going, ordered = accounts.copy(), Counter[str](), dict[Key, Victim]()
        for _, _, taken in self._by_node(cluster, sought, accounts, but):
            more = [victim for victim in taken if victim.key not in ordered]
            if len(ordered) + len(more) > sought.most:
                continue
            tried = accounts.copy()
            of_queue = Counter(victim.queue for victim in more)
            over = (going[queue] + n > self._budget(queue) for queue, n in of_queue.items())
            if sought.budgeted and any(over):
                continue
            for victim in more:
                path = know.derived.path(victim.queue)
                right = sought.right_over(path, know.open[victim.key].priority)
                if right is None or not tried.may_lose(right[1], victim.amounts):
                    break
                tried.subtract(path, victim.amounts)
            else:
                accounts = tried
                going.update(of_queue)
                ordered.update((victim.key, victim) for victim in more)
        return list(ordered.values())

    def _by_node(
        self, cluster: str, sought: Sought, accounts: Accounts, but: Container[Key]
    ) -> list[tuple[float, str, list[Victim]]]:
        """Return nodes where a pod of the largest set would fit, the cost and the victims."""
        know = self._know
        sets = sought.asked.pod_sets
        sizes = [(each.gpus * each.gpu_milli, each.cpu_milli) for each in sets]
        at = sizes.index(max(sizes))
        pods = sets[at]
        suitable = know.derived.suitables.of(know.fleet, sought.shape, at)
        need = _need(pods, min((milli for _, milli in suitable.charges), default=pods.gpu_milli))

        def may_go(queue: str, priority: int) -> bool:
            path = know.derived.path(queue)
            return queue in sought.queues and sought.right_over(path, priority) is not None

        nodes = know.derived.movable.here(cluster).cheapest_first(
            know.fleet,
            need,
            may_go,
            self._now_s,
            self._cycle.policy.restart_s,
            NODES_TRIED,
            cluster,
        )
        costs: list[tuple[float, str, list[Victim]]] = []
        for node, names in nodes:
            free = self._free(cluster, node)
            victims = self._victims(cluster, sought, names, accounts, but)
            if free is None or not victims:
                continue
            held = (_held(know.fleet, v, node) for v in victims)
            slot = know.fleet.slot(cluster, node)
            assert slot is not None  # a node without a slot had no free capacity
            taken = cheapest_on(free, _need(pods, suitable.milli(slot, pods)), held)
            if taken:
                costs.append((cost_of(taken), node, taken))
                if len(costs) >= NODES_WEIGHED:
                    break
        costs.sort(key=lambda each: each[:2])
        return costs

    def _free(self, cluster: str, node: str) -> FreeOnNode | None:
        fleet = self._know.fleet
        slot, report = fleet.slot(cluster, node), fleet.node(cluster, node)
        if slot is None or report is None or not fleet.arrays.open[slot]:
            return None
        milli = fleet.arrays.gpu[slot].tolist()
        gpus = {gpu.index: milli[at] for at, gpu in enumerate(report.gpus)}
        return FreeOnNode(int(fleet.arrays.cpu[slot]), int(fleet.arrays.memory[slot]), gpus)


class Preemptor:
    """Preemptions of one draft, beside reservations and placements."""

    def __init__(self, cycle: Cycle) -> None:
        self.victims = VictimSearch(cycle)
        self._policy = cycle.policy
        self._know = cycle.know
        self._now_s = cycle.now_s
        self._searches = 0  # number of searches in this draft
        self._equal_searches = 0
        # Queue, priority and shape of jobs that stopped no other -> the smallest weight of any.
        self._in_vain: dict[tuple[str, int, bytes], float] = {}

    def search(self, turn: Turn, asked: JobRequest, shape: Shape) -> Evictions | None:
        """Return the evictions for a job that does not fit; None if no job is eligible, or none
        helps.
        """
        setting = self._know.queues.get(turn.line.queue)
        if setting is not None and setting.via != "direct":
            return None
        found = self._of_trials(turn, asked, shape)
        if found is not None or setting is None or not self._policy.evictions_per_hour:
            return found  # without a setting the queue may evict no other job
        found = self._of_idle(turn, asked, shape) if self._know.derived.idle else None
        if found is None:
            found = self._by_right(turn, asked, shape, setting)
        if found is None and setting.preempts_equals:
            found = self._among_equals(turn, asked, shape, setting)
        return found

    def _by_right(
        self, turn: Turn, asked: JobRequest, shape: Shape, setting: QueueSetting
    ) -> Evictions | None:
        best_tier = min(level.tier for level in turn.levels)
        if best_tier is Tier.BORROWED and setting.preempts == "never":
            return None
        priority = self._know.open[turn.key].priority
        job = Beneficiary(turn.levels, priority, setting.preempts)
        return self._with_precedence(turn, asked, shape, partial(right_over, job))

    def _of_trials(self, turn: Turn, asked: JobRequest, shape: Shape) -> Evictions | None:
        """Return the evictions of trials alone, which no budget limits."""
        if TRIAL_PRIORITY not in self._know.derived.movable.queues().values():
            return None

        def right(_: Path, priority: int) -> tuple[RightName, Floors] | None:
            return ("priority", ()) if priority == TRIAL_PRIORITY else None

        return self._with_precedence(turn, asked, shape, right, budgeted=False)

    def _of_idle(self, turn: Turn, asked: JobRequest, shape: Shape) -> Evictions | None:
        """Return the evictions of idle jobs alone, whatever their queues deserve."""
        queues, now_s = self._know.queues, self._now_s

        def right(path: Path, _: int) -> tuple[RightName, Floors] | None:
            of_queue = queues.get(path[0].queue)
            acts = of_queue is not None and of_queue.idle_then in ("hold", "end")
            return ("idle", ()) if acts else None

        def may_go(other: Workload) -> bool:
            return idle_action(other, queues, now_s) in ("hold", "end")

        return self._with_precedence(turn, asked, shape, right, may_go)

    def _with_precedence(
        self,
        turn: Turn,
        asked: JobRequest,
        shape: Shape,
        right_of: Callable[[Path, int], tuple[RightName, Floors] | None],
        may_go: Callable[[Workload], bool] = lambda _: True,
        *,
        budgeted: bool = True,
    ) -> Evictions | None:
        """Return the evictions of the cheapest set of jobs that the job has a precedence over."""
        if self._searches >= SEARCHES_A_COMMIT:
            return None
        sought = self.victims.sought(asked, shape, right_of, may_go, budgeted=budgeted)
        if sought is None:
            return None
        self._searches += 1
        best = self.victims.cheapest(sought)
        if best is None:
            return None
        workload = self._know.open[turn.key]
        orders = []
        for victim in best.victims:
            evicted = self._know.open[victim.key]
            right = right_of(self._know.derived.path(victim.queue), evicted.priority)
            assert right is not None  # victims have a precedence against them
            orders.append(eviction_order(evicted, workload, right[0], victim.lost_gpu_s))
        return _evictions(workload, best, orders)

    def _among_equals(
        self, turn: Turn, asked: JobRequest, shape: Shape, setting: QueueSetting
    ) -> Evictions | None:
        """Return the evictions among jobs of equal priority in one queue."""
        workload = self._know.open[turn.key]
        waits = self._remaining(workload)
        tried = turn.line.queue, workload.priority, shape.key
        if waits is None or waits.weight >= self._in_vain.get(tried, math.inf):
            return None
        if self._equal_searches >= EQUAL_SEARCHES:
            return None

        def right(path: Path, priority: int) -> tuple[str, Floors] | None:
            is_equal = path[0].queue == setting.queue and priority == workload.priority
            return ("priority", ()) if is_equal else None

        def may_go(other: Workload) -> bool:
            runs = self._stopped(other)
            return runs is not None and may_stop(waits, runs)

        def cost(other: Workload) -> float:
            remaining = self._remaining(other)
            return endings_per_s(remaining) if remaining is not None else math.inf

        def is_worth(found: VictimSet) -> bool:
            stopped = (self._stopped(self._know.open[victim.key]) for victim in found.victims)
            return pays(waits, [each for each in stopped if each is not None])

        sought = self.victims.sought(asked, shape, right, may_go, cost)
        if sought is None:
            return None
        self._equal_searches += 1
        best = self.victims.cheapest(sought, is_worth)
        if best is None:
            self._in_vain[tried] = waits.weight
            return None
        orders = []
        for victim in best.victims:
            evicted = self._know.open[victim.key]
            order = eviction_order(evicted, workload, "priority", victim.lost_gpu_s)
            remaining = self._remaining(evicted)
            assert remaining is not None  # victims have remaining work
            left_s, for_left_s = round(remaining.left_s, 3), round(waits.left_s, 3)
            orders.append(msgspec.structs.replace(order, left_s=left_s, for_left_s=for_left_s))
        return _evictions(workload, best, orders)

    def _remaining(self, workload: Workload) -> Remaining | None:
        """Return the remaining work of a job; None if unknown, and for parts, which never stop
        alone.
        """
        request = workload.request
        left_s = self._know.derived.due_order.known_left_s(workload, self._now_s)
        if request is None or request.part is not None or left_s is None:
            return None
        stated = request.expected_duration_s is not None
        return Remaining(left_s, gpu_share(request), stated)

    def _stopped(self, workload: Workload) -> Stopped | None:
        remaining = self._remaining(workload)
        if remaining is None:
            return None
        again_s = unsaved_s(workload, self._now_s) + self._policy.restart_s
        return Stopped(remaining, again_s * (1 + workload.moves))


def next_equals_s(know: Knowledge, policy: Policy, decided_at_s: float) -> float:
    """Return when jobs of equal priority are searched again without an event. Stated remaining time
    only shrinks while a job runs, so a queue with stated durations needs no such search."""
    if policy.order == "due" and know.expectations.any_unstated:
        for queue in know.derived.lines.by_queue():
            setting = know.queues.get(queue)
            if setting is not None and setting.preempts_equals:
                return decided_at_s + EQUALS_EVERY_S
    return math.inf


def why_evicted(order: EvictionOrder) -> str:
    """Return the reason for the evicted job."""
    return WORDS[order.right] if order.left_s is None else EQUAL


def _evictions(workload: Workload, found: VictimSet, orders: Iterable[EvictionOrder]) -> Evictions:
    room = owed_capacity(workload.tenant, workload.id, found.cluster, found.bound.holdings)
    return Evictions(tuple(orders), room)


def _need(pods: PodSet, gpu_milli: int) -> PodNeed:
    """Return the need of a pod. ``gpu_milli``: charge of each of its GPUs."""
    return PodNeed(pods.cpu_milli, pods.memory_mib, pods.gpus, gpu_milli)


def _held(fleet: Fleet, victim: Victim, node: str) -> HeldOnNode:
    here = [held for held in fleet.holdings(victim.key) if held.node == node]
    return HeldOnNode(
        victim,
        sum(held.cpu_milli for held in here),
        sum(held.memory_mib for held in here),
        tuple((index, fleet.charged_milli(held, index)) for held in here for index in held.gpus),
    )
