"""Who is ended so that a waiting job of better right may begin: the cheapest that free what it
needs, on the right nodes (cheapest_set.py).

Rules of this file:

- Looked for are those who wait within what their queue is guaranteed or deserves, or above others
  in priority, when their turn comes and they do not fit (lib/engine/queueing/making_room.py says
  who may be ended for whom). Nobody whose queue a cluster's Kueue governs, on either side.
- An order is told with a reservation that is owed: nobody else gets that room, and none is looked
  for a second time while it stands. What was ended comes back to its queue with its age.
- Where no right helps and the queue says so, one that waits may stop equals: others of its queue
  and priority that have clearly more left to do (lib/engine/queueing/equals.py).
- In a commit one job at most is given room so, the first in order who has such a right and whom it
  helps, beside what was placed before; a few are looked at for that.
"""

import math
from collections.abc import Iterable
from functools import partial
from typing import Final, NamedTuple

import msgspec

from berthmaster.control.resolver.core.deciding.cheapest_set import (
    CheapestSet,
    CheapestSets,
    Sought,
)
from berthmaster.control.resolver.core.deciding.cycle import Cycle
from berthmaster.control.resolver.core.deciding.turns import Turn
from berthmaster.control.resolver.core.known.knowledge import Knowledge
from berthmaster.control.resolver.settings import Policy
from berthmaster.lib.engine.fleet.needs import Shape
from berthmaster.lib.engine.queueing.equals import Rest, Stopped, ends_a_s, may_stop, pays
from berthmaster.lib.engine.queueing.making_room import Floors, Mover, RightName, right_over
from berthmaster.lib.engine.queueing.order import gpu_share
from berthmaster.lib.engine.queueing.queues import Tier
from berthmaster.lib.engine.queueing.reservations import owed_room
from berthmaster.lib.engine.queueing.tree import Path
from berthmaster.lib.lifecycle.run_times import unsaved_s
from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.placement import EvictionOrder, Reservation
from berthmaster.lib.messages.workload import JobRequest

LOOKS_A_COMMIT: Final = 4
LOOKS_AT_EQUALS: Final = 8  # of sizes and shapes, of which each looks once in vain
WORDS: Final = {
    "guarantee": "what its queue borrowed is another queue's guarantee",
    "deserved": "what its queue borrowed is another queue's deserved share",
    "priority": "a job of higher priority needs its room",
    "": "what it has beyond what it wished for is needed by a job that waits",
}
# Equals of whom nobody says how long they take have more to do the longer they run, so who waits
# looks again after so long, where nothing comes or ends before.
EQUALS_EVERY_S: Final = 3600.0
REFUSED: Final = "the log refused what was decided about it, so nobody is ended or moved for it"
EQUAL: Final = "a job of its queue and priority that has clearly less left to do needs its room"


class Evictions(NamedTuple):
    """The orders for one job, and the room that will be its."""

    orders: tuple[EvictionOrder, ...]
    reservation: Reservation


class RoomMaker:
    """In one draft, beside the room that it keeps and has given."""

    def __init__(self, cycle: Cycle, sets: CheapestSets) -> None:
        self._policy = cycle.policy
        self._know = cycle.know
        self._now_s = cycle.now_s
        self._sets = sets
        self._looks = 0  # in this draft: one takes milliseconds
        self._looks_at_equals = 0
        self._in_vain: dict[tuple[str, int, bytes], float] = {}
        # Queue, priority and shape of those who stopped nobody, and the least weight of any.

    def look(self, turn: Turn, asked: JobRequest, shape: Shape) -> Evictions | None:
        """Whom to end for a job that does not fit; None if nobody may be, or it would not help."""
        setting = self._know.queues.get(turn.line.queue)
        if setting is None or setting.via != "direct" or not self._policy.evictions_per_hour:
            return None  # nobody has set what it may do
        found = self._look_by_right(turn, asked, shape, setting)
        if found is None and setting.preempts_equals:
            found = self._look_at_equals(turn, asked, shape, setting)
        return found

    def _look_by_right(
        self, turn: Turn, asked: JobRequest, shape: Shape, setting: QueueSetting
    ) -> Evictions | None:
        best_tier = min(level.tier for level in turn.levels)
        if best_tier is Tier.BORROWED and setting.preempts == "never":
            return None
        if self._looks >= LOOKS_A_COMMIT:
            return None
        workload = self._know.open[turn.key]
        mover = Mover(turn.levels, workload.priority, setting.preempts)
        sought = self._sets.sought(asked, shape, partial(right_over, mover))
        if sought is None:
            return None
        self._looks += 1
        best = self._cheapest(sought)
        if best is None:
            return None
        orders = []
        for victim in best.victims:
            ended = self._know.open[victim.key]
            right = right_over(mover, self._know.derived.path(victim.queue), ended.priority)
            assert right is not None  # or it were no victim
            orders.append(_order(ended, workload, right[0], victim.lost_gpu_s))
        return _told(workload, best, orders)

    def _look_at_equals(
        self, turn: Turn, asked: JobRequest, shape: Shape, setting: QueueSetting
    ) -> Evictions | None:
        """Of its own queue and priority."""
        workload = self._know.open[turn.key]
        waits = self._rest(workload)
        tried = turn.line.queue, workload.priority, shape.key
        if waits is None or waits.weight >= self._in_vain.get(tried, math.inf):
            return None
        if self._looks_at_equals >= LOOKS_AT_EQUALS:
            return None

        def over(path: Path, priority: int) -> tuple[str, Floors] | None:
            is_equal = path[0].queue == setting.queue and priority == workload.priority
            return ("priority", ()) if is_equal else None

        def may_go(other: Workload) -> bool:
            runs = self._stopped(other)
            return runs is not None and may_stop(waits, runs)

        def cost_of(other: Workload) -> float:
            rest = self._rest(other)
            return ends_a_s(rest) if rest is not None else math.inf

        sought = self._sets.sought(asked, shape, over, may_go, cost_of)
        if sought is None:
            return None
        self._looks_at_equals += 1
        best = self._cheapest(sought, waits)
        if best is None:
            self._in_vain[tried] = waits.weight
            return None
        orders = []
        for victim in best.victims:
            ended = self._know.open[victim.key]
            order = _order(ended, workload, "priority", victim.lost_gpu_s)
            rest = self._rest(ended)
            assert rest is not None  # or it were no victim
            left_s, for_left_s = round(rest.left_s, 3), round(waits.left_s, 3)
            orders.append(msgspec.structs.replace(order, left_s=left_s, for_left_s=for_left_s))
        return _told(workload, best, orders)

    def _cheapest(self, sought: Sought, waits: Rest | None = None) -> CheapestSet | None:
        """Of all clusters. ``waits``: for one that stops equals, if that pays."""
        best: CheapestSet | None = None
        accounts = self._sets.accounts()
        for cluster in self._sets.clusters(sought):
            found = self._sets.cheapest_in(cluster, sought, accounts)
            if found is None or (waits is not None and not self._pays(waits, found)):
                continue
            if best is None or (found.cost, cluster) < (best.cost, best.cluster):
                best = found
        return best

    def _pays(self, waits: Rest, found: CheapestSet) -> bool:
        stopped = (self._stopped(self._know.open[victim.key]) for victim in found.victims)
        return pays(waits, [each for each in stopped if each is not None])

    def _rest(self, workload: Workload) -> Rest | None:
        """None of one of which it is not known, and of what never is stopped alone."""
        request = workload.request
        left_s = self._know.derived.due_order.known_left_s(workload, self._now_s)
        if request is None or request.part is not None or left_s is None:
            return None
        stated = request.expected_duration_s is not None
        return Rest(left_s, gpu_share(request), stated)

    def _stopped(self, workload: Workload) -> Stopped | None:
        rest = self._rest(workload)
        if rest is None:
            return None
        again_s = unsaved_s(workload, self._now_s) + self._policy.restart_s
        return Stopped(rest, again_s * (1 + workload.moves))


def next_equals_s(know: Knowledge, policy: Policy, decided_at_s: float) -> float:
    """When those who wait look again whom of their equals they may stop, though nothing happened.
    What is stated of a job's rest shrinks while it runs: for that nobody has to look again."""
    if policy.order == "due" and know.expectations.any_unstated:
        for queue in know.derived.lines.by_queue():
            setting = know.queues.get(queue)
            if setting is not None and setting.preempts_equals:
                return decided_at_s + EQUALS_EVERY_S
    return math.inf


def why_ended(order: EvictionOrder) -> str:
    """In words, for its job."""
    return WORDS[order.right] if order.left_s is None else EQUAL


def _told(workload: Workload, found: CheapestSet, orders: Iterable[EvictionOrder]) -> Evictions:
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
