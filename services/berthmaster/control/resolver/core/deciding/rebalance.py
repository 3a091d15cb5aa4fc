"""A few jobs move to room that is free, so that one fits that has waited for long.

Rules of this file:

- Only for a queue that says so, and never by habit: a job must have waited for as long as is set,
  without anything happening to it. Then room that would do is there in pieces (fragmentation), or
  held by those who could as well be elsewhere (unfairness), and that has lasted. Looked at are
  those who are first in their lines, when there is nothing else to decide.
- Moved are so many at most as is set, the cheapest that free what is needed (cheapest_set.py), if
  each of them has room at once, beside what the waiting job gets and what is kept for those who
  are owed it or had their turn before it, and if that pays (lib/engine/queueing/rebalancing.py).
  Who cannot be had elsewhere stays, and it is tried without him. Room of those who come after it is
  looked for anew.
- Who has just begun, ends soon, writes a checkpoint soon or varies in number is not moved, nor what
  may not be ended anyway. It counts against the budgets of making room.
- One decision tells all of it, why it pays among the rest, and keeps both the room of those who
  move and that of the waiting job: it is owed (reserves.py).
- Nobody is moved for one whom it would move back: for a job that has ever made room no other is
  moved, so those who moved for one another never make a circle.
"""

from functools import partial
from typing import Final, NamedTuple

from berthmaster.control.resolver.core.deciding.cheapest_set import CheapestSet, Sought
from berthmaster.control.resolver.core.deciding.draft import CHOICE_BYTES, Draft, Stuck
from berthmaster.control.resolver.core.deciding.move_away import (
    MOST_MOVING,
    Place,
    elsewhere,
    leave,
)
from berthmaster.control.resolver.core.deciding.reserves import Kept
from berthmaster.control.resolver.core.deciding.turns import Turn
from berthmaster.control.resolver.core.known.knowledge import Knowledge
from berthmaster.control.resolver.settings import Policy
from berthmaster.lib.engine.fleet.overlay import Overlay
from berthmaster.lib.engine.queueing.leaving import best_at_s
from berthmaster.lib.engine.queueing.making_room import Victim, loss_of
from berthmaster.lib.engine.queueing.rebalancing import Beneficiary, Worth, may_move, worth_of
from berthmaster.lib.engine.queueing.reservations import owed_room
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Key, Workload
from berthmaster.lib.messages.placement import Rebalance, RebalanceMove

REBALANCED: Final = "it goes on in room that is free, so that a job fits that waits"
LOOKS: Final = 2  # of one draft: each tries some sets in some clusters
TRIES: Final = 6  # sets of one look
_NODE_BYTES: Final = 60


class Moves(NamedTuple):
    """Who moves to where, the room of whom it is for, and what that is worth."""

    moved: tuple[tuple[Victim, Place], ...]
    found: CheapestSet
    worth: Worth


class Weighed(NamedTuple):
    """A job that waits, and who would be moved for it or why nobody is."""

    key: Key
    waited_s: float
    moves: Moves | None
    why_not: str


def may_be_stuck(draft: Draft, turn: Turn) -> bool:
    """Whether others may be moved at all for one that is passed over."""
    if not draft.policy.rebalance_moves or turn.key in draft.know.derived.leaving:
        return False
    setting = draft.know.queues.get(turn.line.queue)
    return setting is not None and setting.via == "direct" and setting.rebalances != "never"


def next_stuck_s(know: Knowledge, policy: Policy, after_s: float = float("-inf")) -> float:
    """When the first of those has waited for long enough, or has. ``after_s``: of those who had
    not by then."""
    soonest_s = float("inf")
    if not policy.rebalance_moves:
        return soonest_s
    for queue, lines in know.derived.lines.by_queue().items():
        setting = know.queues.get(queue)
        if setting is None or setting.rebalances == "never":
            continue
        for line in lines.values():
            if (first := line.first()) is not None and not know.open[first[1]].moves:
                at_s = know.open[first[1]].changed_at_s + policy.rebalance_after_s
                if after_s < at_s < soonest_s:
                    soonest_s = at_s
    return soonest_s


def rebalance(draft: Draft, most: int, *, looks: int = LOOKS) -> list[Weighed]:
    """For so many jobs at most, in their order; what became of each that was looked at."""
    weighed = []
    for stuck in draft.stuck:
        if looks <= 0 or len(draft.rebalances) >= most or draft.full:
            break
        waited_s = draft.now_s - draft.know.open[stuck.turn.key].changed_at_s
        why_not = _too_early(draft, stuck.turn.key, waited_s)
        moves: Moves | None = None
        if not why_not:
            looks -= 1
            moves, why_not = _look(draft, stuck, waited_s)
        if moves is not None:
            _tell(draft, stuck, moves)
        weighed.append(Weighed(stuck.turn.key, waited_s, moves, why_not))
    return weighed


def _too_early(draft: Draft, name: Key, waited_s: float) -> str:
    policy, reserves = draft.policy, draft.reserves
    if waited_s < policy.rebalance_after_s:
        return f"it has waited for {waited_s:.0f} s only, of {policy.rebalance_after_s:.0f}"
    if draft.know.open[name].moves:
        return "it has made room itself"
    if reserves.owed(name):
        return "room is kept for it already"
    if not reserves.may_owe or reserves.moving >= MOST_MOVING:
        return "room is kept for as many as may be at a time"
    return ""


def _look(draft: Draft, stuck: Stuck, waited_s: float) -> tuple[Moves | None, str]:
    know, policy, reserves = draft.know, draft.policy, draft.reserves
    turn, asked, shape = stuck
    line, name = turn.line, turn.key
    path = know.derived.path(line.queue)
    for_ = Beneficiary(path, know.open[name].priority, know.queues[line.queue].rebalances)
    may_go = partial(_may_go, draft)
    sought = draft.sets.sought(asked, shape, partial(may_move, for_), may_go)
    if sought is None:
        return None, "nobody may be moved for it now"
    sought = sought._replace(most=min(sought.most, policy.rebalance_moves))
    best: tuple[CheapestSet, tuple[tuple[Victim, Place], ...]] | None = None
    with reserves.aside(_standing(draft, name)):
        for cluster in draft.sets.clusters(sought):
            found = _moved_in(draft, cluster, sought)
            if found is not None and (best is None or found[0].cost < best[0].cost):
                best = found
    if best is None:
        jobs = "one job" if sought.most == 1 else f"{sought.most} jobs"
        return None, f"no {jobs} or fewer that have room elsewhere would make room for it"
    begins_at_s = reserves.begins_at_s(line, name, asked, shape)
    begins_in_s = None if begins_at_s is None else max(0.0, begins_at_s - draft.now_s)
    moved = [know.open[victim.key] for victim, _ in best[1]]
    worth = worth_of(asked, waited_s, begins_in_s, moved)
    if worth.gain_gpu_s < policy.rebalance_gain * best[0].cost or not worth.saves_s:
        return None, (
            f"it does not pay: {worth.gain_gpu_s:,.0f} GPU seconds of waiting would be saved, "
            f"and {best[0].cost:,.0f} of work lost"
        )
    return Moves(best[1], best[0], worth), ""


def _standing(draft: Draft, name: Key) -> tuple[Kept, ...]:
    """What is kept for others and does not give way to it: what is owed, and what those have whose
    turn came before, or who had none."""
    mine, turns = draft.turns[name], draft.turns
    others = draft.reserves.others(name)
    return tuple(k for k in others if k.reservation.owed or turns.get(k.key, -1) < mine)


def _may_go(draft: Draft, workload: Workload) -> bool:
    policy, now_s = draft.policy, draft.now_s
    return (
        workload.state is State.RUNNING
        and workload.key not in draft.know.derived.parts  # all would have to go
        and now_s - workload.running_at_s >= policy.rebalance_after_s
        and workload.wished is None  # else it shrinks
        and workload.wish is None
        and workload.hold is None
        and best_at_s(workload, now_s, None, policy.restart_s) <= now_s
    )


def _moved_in(
    draft: Draft, cluster: str, sought: Sought
) -> tuple[CheapestSet, tuple[tuple[Victim, Place], ...]] | None:
    """The cheapest in one cluster of whom each has room elsewhere."""
    accounts, stay = draft.sets.accounts(), set[Key]()
    for _ in range(TRIES):
        found = draft.sets.cheapest_in(cluster, sought, accounts, stay)
        if found is None:
            return None
        places = _places(draft, found)
        if not isinstance(places, str):
            return found, places
        stay.add(places)
    return None


def _places(draft: Draft, found: CheapestSet) -> tuple[tuple[Victim, Place], ...] | Key:
    """Room for each of them that is free now, the largest first; or who has none."""
    know = draft.know
    places = []
    with Overlay(know.fleet) as overlay:
        overlay.take("waits", found.bound.holdings)
        for victim in sorted(found.victims, key=lambda v: (-loss_of(know.open[v.key]).gpus, v.key)):
            place = elsewhere(draft.cycle, know.open[victim.key], "", other=False)
            if place is None:
                return victim.key
            overlay.take(victim.key, place.bound.holdings)
            places.append((victim, place))
    return tuple(places)


def _tell(draft: Draft, stuck: Stuck, moves: Moves) -> None:
    know, name = draft.know, stuck.turn.key
    waits, worth = know.open[name], moves.worth
    taken = [*moves.found.bound.holdings]
    taken += [held for _, place in moves.moved for held in place.bound.holdings]
    standing = {kept.key for kept in _standing(draft, name)}
    behind = [k for k in draft.reserves.others(name) if k.key not in standing]
    draft.reserves.look_anew(behind, taken)
    told = []
    for victim, place in moves.moved:
        workload = know.open[victim.key]
        told.append(
            RebalanceMove(
                tenant=workload.tenant,
                id=workload.id,
                attempt=workload.attempt,
                cluster=workload.cluster,
                to=place.cluster,
                lost_gpu_s=round(victim.lost_gpu_s, 3),
            )
        )
        leave(draft, workload, REBALANCED, place.cluster)
        holdings = place.bound.holdings
        room = owed_room(workload.tenant, workload.id, place.cluster, holdings, moving=True)
        draft.reserves.keep_moving(victim.key, room)
        draft.bytes += CHOICE_BYTES + _NODE_BYTES * len(room.held)
    found = moves.found
    room = owed_room(waits.tenant, waits.id, found.cluster, found.bound.holdings)
    draft.reserves.owe(name, room)
    draft.rebalances.append(
        Rebalance(
            tenant=waits.tenant,
            id=waits.id,
            cluster=found.cluster,
            moves=tuple(told),
            gpus=worth.gpus,
            waited_s=round(worth.waited_s, 3),
            saves_s=round(worth.saves_s, 3),
            gain_gpu_s=round(worth.gain_gpu_s, 3),
            cost_gpu_s=round(found.cost, 3),
        )
    )
    draft.bytes += CHOICE_BYTES + _NODE_BYTES * len(room.held)
