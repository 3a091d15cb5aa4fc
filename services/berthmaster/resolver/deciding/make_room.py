"""Who is ended so that a waiting job of better right may begin: the cheapest that free what it
needs, on the right nodes (cheapest_set.py).

Rules of this file:

- Looked for are those who wait within what their queue is guaranteed or deserves, or above others
  in priority, when their turn comes and they do not fit (engine/queueing/making_room.py says who
  may be ended for whom). Nobody whose queue a cluster's Kueue governs, on either side.
- An order is told with a reservation that is owed: nobody else gets that room, and none is looked
  for a second time while it stands. What was ended comes back to its queue with its age.
- In a commit one job at most is given room so, the first in order who has such a right and whom it
  helps, beside what was placed before; a few are looked at for that.
"""

from functools import partial
from typing import Final, NamedTuple

from berthmaster.engine.queueing.making_room import Mover, RightName, right_over
from berthmaster.engine.queueing.queues import Tier
from berthmaster.engine.queueing.reservations import owed_room
from berthmaster.lifecycle.fold import Workload
from berthmaster.messages.placement import EvictionOrder, Reservation
from berthmaster.messages.workload import JobRequest
from berthmaster.resolver.deciding.cheapest_set import CheapestSet, CheapestSets
from berthmaster.resolver.deciding.cycle import Cycle
from berthmaster.resolver.deciding.turns import Turn

LOOKS_A_COMMIT: Final = 4
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


class RoomMaker:
    """In one draft, beside the room that it keeps and has given."""

    def __init__(self, cycle: Cycle, sets: CheapestSets) -> None:
        self._policy = cycle.policy
        self._know = cycle.know
        self._sets = sets
        self._looks = 0  # in this draft: one takes milliseconds

    def look(self, turn: Turn, asked: JobRequest, shape: bytes) -> Evictions | None:
        """Whom to end for a job that does not fit; None if nobody may be, or it would not help."""
        know, sets = self._know, self._sets
        setting = know.queues.get(turn.line.queue)
        if setting is None or setting.via != "direct":
            return None  # nobody has set what it may do
        best_tier = min(level.tier for level in turn.levels)
        if best_tier is Tier.BORROWED and setting.preempts == "never":
            return None
        if not self._policy.evictions_per_hour or self._looks >= LOOKS_A_COMMIT:
            return None
        workload = know.open[turn.key]
        mover = Mover(turn.levels, workload.priority, setting.preempts)
        sought = sets.sought(asked, shape, partial(right_over, mover))
        if sought is None:
            return None
        self._looks += 1
        best: CheapestSet | None = None
        accounts = sets.accounts()
        for cluster in sets.clusters(sought):
            found = sets.cheapest_in(cluster, sought, accounts)
            if found is None:
                continue
            if best is None or (found.cost, cluster) < (best.cost, best.cluster):
                best = found
        return self._told(workload, mover, best) if best is not None else None

    # What is told

    def _told(self, workload: Workload, mover: Mover, found: CheapestSet) -> Evictions:
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
