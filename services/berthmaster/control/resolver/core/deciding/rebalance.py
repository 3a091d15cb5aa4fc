"""Rebalancing: a few jobs move to free capacity, so that a long-pending job fits.

``may_move`` returns the jobs that may move for a pending one, ``worth_of`` the gain. ``rebalance``
searches the moves and records them. No job loses its placement without a new one.

Example: a job of 16 GPUs would wait another 2,000 s. Others with a grace period of 50 s need 60 s
to leave. So 1,940 s are saved, and 31,040 GPU seconds are gained. A loss of 12,000 GPU seconds
pays, if the gain must be twice the cost.

Rules of this file:

- A queue sets whose jobs may move for its own: none (the default), its own, or those of queues of
  no higher priority too. In its own queue no job of a higher priority moves.
- The pending job has waited ``rebalance_after_s`` without an event, so fragmentation or unfairness
  has lasted. Searches run for the first jobs of their classes, when nothing else is to decide.
- The cheapest jobs that free enough move (preemptor.py), ``rebalance_moves`` at most. Each must fit
  elsewhere at once, beside the pending job and the reservations of preemptors and earlier
  candidates. A job that fits nowhere else stays, and the search continues without it. Reservations
  of later candidates on those nodes end and are searched again.
- The gain is the saved wait, times the pending GPUs. The wait lasts until the job fits by known
  ends or, without them, as long again as so far. The time that moves take is not saved.
- The cost is the loss of all moves (lib/engine/queueing/preemption.py). Rebalancing pays if the
  gain is ``rebalance_gain`` times the cost.
- A job stays if it has just started, ends soon, writes a checkpoint soon, is elastic or is not
  preemptible. Moves count against the budgets of preemption.
- One decision records all moves and their worth, and reserves the nodes of all of them.
- No other job moves for a job that ever moved, so moves never form a cycle.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

from berthmaster.control.resolver.core.deciding.cycle import Cycle
from berthmaster.control.resolver.core.deciding.draft import NODE_BYTES, RECORD_BYTES, Draft
from berthmaster.control.resolver.core.deciding.move_away import (
    MOST_MOVING,
    Place,
    elsewhere,
)
from berthmaster.control.resolver.core.deciding.preemptor import Sought, VictimSearch, VictimSet
from berthmaster.control.resolver.core.deciding.reservations import Active, owed_capacity
from berthmaster.control.resolver.core.deciding.turns import Turn
from berthmaster.control.resolver.core.known.knowledge import Knowledge
from berthmaster.control.resolver.policy import Policy
from berthmaster.lib.engine.fleet.fleet import Overlay
from berthmaster.lib.engine.fleet.needs import Shape
from berthmaster.lib.engine.queueing.eviction import ENDING_S, USUAL_GRACE_S, best_at_s
from berthmaster.lib.engine.queueing.preemption import Floors, Victim, gpus_of, in_common, loss_of
from berthmaster.lib.engine.queueing.queues import Path
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Key, Workload
from berthmaster.lib.messages.placement import Rebalance, RebalanceMove
from berthmaster.lib.messages.workload import JobRequest

REBALANCED: Final = "it goes on in room that is free, so that a job fits that waits"
SEARCHES: Final = 2  # in one draft: each tries some sets in some clusters
TRIES: Final = 6  # sets of one search
_KEEPS_ALL: Final[tuple[str, Floors]] = ("rebalance", ())


class Stuck(NamedTuple):
    """A skipped job that others may move for."""

    turn: Turn
    asked: JobRequest
    shape: Shape


class Beneficiary(NamedTuple):
    """A pending job, and the jobs that its queue may move."""

    path: Path  # its queue, then the parents, nearest first
    priority: int
    rebalances: str  # never, queue, all


def may_move(job: Beneficiary, other: Path, priority: int) -> tuple[str, Floors] | None:
    """Return the precedence to move a job of this queue and priority; None without. All queues keep
    their usage, so there is no floor.
    """
    if job.rebalances == "never":
        return None
    if other[0].queue == job.path[0].queue:
        return _KEEPS_ALL if priority <= job.priority else None
    if job.rebalances != "all":
        return None
    common = in_common(job.path, other)
    mine, theirs = job.path[: len(job.path) - common], other[: len(other) - common]
    if not mine or not theirs:
        return None  # a job submitted before its queue got children
    return _KEEPS_ALL if theirs[-1].priority <= mine[-1].priority else None


class Worth(NamedTuple):
    """Worth of the moves to a pending job."""

    gpus: float
    waited_s: float
    saves_s: float

    @property
    def gain_gpu_s(self) -> float:
        """Return the saved GPU seconds of waiting."""
        return self.gpus * self.saves_s


def worth_of(
    request: JobRequest,
    waited_s: float,
    begins_in_s: float | None,
    moved: Iterable[Workload],
) -> Worth:
    """Return the worth of moving some jobs. ``begins_in_s``: when the waiting job fits by the known
    ends; None if unknown."""
    left_s = waited_s if begins_in_s is None else begins_in_s
    return Worth(gpus_of(request), waited_s, max(0.0, left_s - _goes_in_s(moved)))


def _goes_in_s(moved: Iterable[Workload]) -> float:
    graces = (w.request.grace_s for w in moved if w.request is not None)
    return (
        max((USUAL_GRACE_S if grace is None else grace for grace in graces), default=0.0) + ENDING_S
    )


# The search


class Moves(NamedTuple):
    """Moves for one job, its future nodes, and their worth."""

    moved: tuple[tuple[Victim, Place], ...]
    found: VictimSet
    worth: Worth


class Weighed(NamedTuple):
    """A pending job with the moves, or why there are none."""

    key: Key
    waited_s: float
    moves: Moves | None
    why_not: str


def may_rebalance(draft: Draft, turn: Turn) -> bool:
    """Return whether others may move at all for a skipped job."""
    know = draft.cycle.know
    if not draft.cycle.policy.rebalance_moves or turn.key in know.derived.leaving:
        return False
    setting = know.queues.get(turn.line.queue)
    return setting is not None and setting.via == "direct" and setting.rebalances != "never"


def next_stuck_s(know: Knowledge, policy: Policy, after_s: float = float("-inf")) -> float:
    """Return when the next such job has waited long enough. ``after_s``: only jobs that had not by
    then.
    """
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


def rebalance(
    draft: Draft,
    victims: VictimSearch,
    stuck: Iterable[Stuck],
    order: Mapping[Key, int],
    most: int,
    *,
    searches: int = SEARCHES,
) -> list[Weighed]:
    """Move others for ``most`` jobs; return the result for each weighed job. ``order``: position of
    each candidate of this draft.
    """
    weighed: list[Weighed] = []
    moved = 0
    for each in stuck:
        if searches <= 0 or moved >= most or draft.full:
            break
        name = each.turn.key
        waited_s = draft.cycle.now_s - draft.cycle.know.open[name].changed_at_s
        why_not = _too_early(draft, name, waited_s)
        moves: Moves | None = None
        if not why_not:
            searches -= 1
            moves, why_not = _search(draft, victims, each, order, waited_s)
        if moves is not None:
            _record(draft, name, moves, order)
            moved += 1
        weighed.append(Weighed(name, waited_s, moves, why_not))
    return weighed


def _too_early(draft: Draft, name: Key, waited_s: float) -> str:
    policy, reservations = draft.cycle.policy, draft.reservations
    if waited_s < policy.rebalance_after_s:
        return f"it has waited for {waited_s:.0f} s only, of {policy.rebalance_after_s:.0f}"
    if draft.cycle.know.open[name].moves:
        return "it has made room itself"
    if reservations.is_owed(name):
        return "room is kept for it already"
    if not reservations.may_add_owed or reservations.moving >= MOST_MOVING:
        return "room is kept for as many as may be at a time"
    return ""


def _search(
    draft: Draft, victims: VictimSearch, stuck: Stuck, order: Mapping[Key, int], waited_s: float
) -> tuple[Moves | None, str]:
    cycle, reservations = draft.cycle, draft.reservations
    know, policy = cycle.know, cycle.policy
    turn, asked, shape = stuck
    line, name = turn.line, turn.key
    path = know.derived.path(line.queue)
    job = Beneficiary(path, know.open[name].priority, know.queues[line.queue].rebalances)
    sought = victims.sought(asked, shape, partial(may_move, job), partial(_may_go, cycle))
    if sought is None:
        return None, "nobody may be moved for it now"
    sought = sought._replace(most=min(sought.most, policy.rebalance_moves))
    best: tuple[VictimSet, tuple[tuple[Victim, Place], ...]] | None = None
    with reservations.only(_standing(draft, name, order)):
        for cluster in victims.clusters(sought):
            found = _moved_in(draft, victims, cluster, sought)
            if found is not None and (best is None or found[0].cost < best[0].cost):
                best = found
    if best is None:
        jobs = "one job" if sought.most == 1 else f"{sought.most} jobs"
        return None, f"no {jobs} or fewer that have room elsewhere would make room for it"
    begins_at_s = reservations.begins_at_s(line, name, asked, shape)
    begins_in_s = None if begins_at_s is None else max(0.0, begins_at_s - cycle.now_s)
    moved = [know.open[victim.key] for victim, _ in best[1]]
    worth = worth_of(asked, waited_s, begins_in_s, moved)
    if worth.gain_gpu_s < policy.rebalance_gain * best[0].cost or not worth.saves_s:
        return None, (
            f"it does not pay: {worth.gain_gpu_s:,.0f} GPU seconds of waiting would be saved, "
            f"and {best[0].cost:,.0f} of work lost"
        )
    return Moves(best[1], best[0], worth), ""


def _standing(draft: Draft, name: Key, order: Mapping[Key, int]) -> tuple[Active, ...]:
    """Return reservations that do not give way: owed ones, and those of earlier candidates or of
    jobs outside the order.
    """
    mine = order[name]
    others = draft.reservations.others(name)
    return tuple(each for each in others if each.reservation.owed or order.get(each.key, -1) < mine)


def _may_go(cycle: Cycle, workload: Workload) -> bool:
    policy, now_s = cycle.policy, cycle.now_s
    return (
        workload.state is State.RUNNING
        and workload.key not in cycle.know.derived.parts  # all parts would have to go
        and now_s - workload.running_at_s >= policy.rebalance_after_s
        and workload.wished is None  # otherwise the job shrinks
        and workload.wish is None
        and workload.hold is None
        and best_at_s(workload, now_s, None, policy.restart_s) <= now_s
    )


def _moved_in(
    draft: Draft, victims: VictimSearch, cluster: str, sought: Sought
) -> tuple[VictimSet, tuple[tuple[Victim, Place], ...]] | None:
    """Return the cheapest set of one cluster of which each job fits elsewhere."""
    accounts, stay = victims.accounts(), set[Key]()
    for _ in range(TRIES):
        found = victims.cheapest_in(cluster, sought, accounts, stay)
        if found is None:
            return None
        places = _places(draft.cycle, found)
        if not isinstance(places, str):
            return found, places
        stay.add(places)
    return None


def _places(cycle: Cycle, found: VictimSet) -> tuple[tuple[Victim, Place], ...] | Key:
    """Return free capacity for each job, largest first; or a job without a fit."""
    know = cycle.know
    places = []
    with Overlay(know.fleet) as overlay:
        overlay.take("waits", found.bound.holdings)
        for victim in sorted(found.victims, key=lambda v: (-loss_of(know.open[v.key]).gpus, v.key)):
            place = elsewhere(cycle, know.open[victim.key], "", other=False)
            if place is None:
                return victim.key
            overlay.take(victim.key, place.bound.holdings)
            places.append((victim, place))
    return tuple(places)


def _record(draft: Draft, name: Key, moves: Moves, order: Mapping[Key, int]) -> None:
    """Record the moves for one job, and reserve the nodes of all."""
    know, found, worth = draft.cycle.know, moves.found, moves.worth
    waits, reservations = know.open[name], draft.reservations
    taken = [*found.bound.holdings]
    taken += [held for _, place in moves.moved for held in place.bound.holdings]
    standing = {each.key for each in _standing(draft, name, order)}
    reservations.drop_on([e for e in reservations.others(name) if e.key not in standing], taken)
    orders = []
    for victim, place in moves.moved:
        workload = know.open[victim.key]
        orders.append(
            RebalanceMove(
                tenant=workload.tenant,
                id=workload.id,
                attempt=workload.attempt,
                cluster=workload.cluster,
                to=place.cluster,
                lost_gpu_s=round(victim.lost_gpu_s, 3),
            )
        )
        draft.evict(workload, REBALANCED, place.cluster)
        holdings = place.bound.holdings
        room = owed_capacity(workload.tenant, workload.id, place.cluster, holdings, moving=True)
        reservations.add_moving(victim.key, room)
        draft.size += RECORD_BYTES + NODE_BYTES * len(room.held)
    room = owed_capacity(waits.tenant, waits.id, found.cluster, found.bound.holdings)
    reservations.add_owed(name, room)
    record = Rebalance(
        tenant=waits.tenant,
        id=waits.id,
        cluster=found.cluster,
        moves=tuple(orders),
        gpus=worth.gpus,
        waited_s=round(worth.waited_s, 3),
        saves_s=round(worth.saves_s, 3),
        gain_gpu_s=round(worth.gain_gpu_s, 3),
        cost_gpu_s=round(found.cost, 3),
    )
    draft.add(record, RECORD_BYTES + NODE_BYTES * len(room.held))
