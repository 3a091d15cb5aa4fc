"""Who leaves its place because a person says so: holds, evictions, moves and drains.

Rules of this file:

- What people want is in the log (a hold, a wish) or among what operators set (a drain). Here it
  becomes orders of a decision, and nothing else ends an attempt for it.
- A hold and an eviction are carried out at once. A move ends an attempt once room is kept for it
  in the other cluster, never before; a wish that could not be carried out for an hour lapses.
- A drain moves those first whose going costs least, each when that is best
  (lib/engine/queueing/leaving.py), and once room is kept for it elsewhere. What is left at the last
  moment before its deadline is ended all the same and waits again. Without a deadline nobody is
  ended who is not preemptible, or for whom there is no room.
- Nobody is ended for a place in which its queue may not have it.
- Room that is kept for a job which moves is charged beside the reservations of those who wait, and
  counts against none of them. It is the job's own until it begins there or the nodes cannot be had.
- What Kueue governs, on a worker or on a hub, is left to Kueue.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from berthmaster.control.resolver.core.deciding.cycle import Cycle
from berthmaster.control.resolver.core.deciding.draft import Draft
from berthmaster.control.resolver.core.deciding.turns import (
    right_elsewhere,
    shortlist_of,
    within_right,
)
from berthmaster.control.resolver.core.known.knowledge import Knowledge
from berthmaster.lib.engine.fitting.fit import Bound
from berthmaster.lib.engine.fleet.needs import shape_of
from berthmaster.lib.engine.fleetview.filters import BUSY, LESS_LIKED
from berthmaster.lib.engine.queueing.leaving import (
    WISH_S,
    best_at_s,
    drain_words,
    last_moment_s,
    said_by,
)
from berthmaster.lib.engine.queueing.making_room import lost_gpu_s
from berthmaster.lib.engine.queueing.reservations import owed_room
from berthmaster.lib.lifecycle.attempt_owner import is_ours_to_end
from berthmaster.lib.lifecycle.states import HELD, State
from berthmaster.lib.lifecycle.workload import Workload, key
from berthmaster.lib.messages.control import Cordon
from berthmaster.lib.messages.placement import MoveOrder
from berthmaster.lib.messages.workload import EvictionRequested

MOST_MOVING: Final = 64  # jobs that room is kept for elsewhere at the same time
MOST_LOOKED_AT: Final = 32  # of one draft: each look binds all pods of a job
CLUSTERS_TRIED: Final = 8  # of one move
_BYTES: Final = 400  # of a record, besides its nodes
_NODE_BYTES: Final = 60


class Place(NamedTuple):
    """Found elsewhere."""

    cluster: str
    bound: Bound


def leave(draft: Draft, workload: Workload, reason: str, to: str = "") -> None:
    """Tell the claimant of an attempt to end it."""
    draft.events.append(
        EvictionRequested(
            tenant=workload.tenant,
            id=workload.id,
            after=workload.sequence,
            at_s=draft.now_s,
            by=draft.decider,
            cause=draft.cause,
            cluster=workload.cluster,
            attempt=workload.attempt,
            reason=reason,
            decision=draft.number,
            cell=draft.know.cell,
            to=to,
        )
    )


def carry_out(draft: Draft) -> None:
    """What people want, as far as it can be done now."""
    know = draft.know
    for name in sorted(know.derived.asked):
        if draft.full:
            return
        workload = know.open[name]
        if name in know.suspended or workload.leaving or not ours_to_end(workload):
            continue
        if workload.hold is not None:
            _order(draft, workload, "held", f"held by {said_by(workload.hold)}", workload.hold.who)
        elif workload.wish is not None and workload.wish.how == "evict":
            wish = workload.wish
            _order(draft, workload, "asked", f"evicted by {said_by(wish)}", wish.who)
        elif workload.wish is not None:
            _move(draft, workload)
    if know.view.drains:
        _drain(draft)


def ours_to_end(workload: Workload) -> bool:
    """Whether a decision of ours may end its attempt at all."""
    return (
        workload.state in HELD
        and workload.request is not None
        and not workload.cancel_requested
        and is_ours_to_end(workload)
    )


def _move(draft: Draft, workload: Workload) -> None:
    wish = workload.wish
    assert wish is not None
    if draft.now_s - wish.since_s > WISH_S or draft.reserves.moving >= MOST_MOVING:
        return
    with draft.reserves.beside():
        place = elsewhere(draft.cycle, workload, wish.to)
    if place is not None:
        words = f"moved to {place.cluster} by {said_by(wish)}"
        _order(draft, workload, "asked", words, wish.who, place)


def elsewhere(cycle: Cycle, workload: Workload, to: str, *, other: bool = True) -> Place | None:
    """Room for all of it that is free now, beside what is kept, and that its queue may have.
    ``other``: in another cluster."""
    assert workload.request is not None
    right = right_elsewhere(cycle.know, workload, workload.request)
    request = within_right(cycle.know, right, workload.request)
    if right.refusal or request is None:
        return None  # it would be ended, and might not begin again
    shape = shape_of(request)
    shortlist = cycle.shortlist(request, shape)
    if not other:
        found = cycle.bind(request, shortlist)
        return Place(found[0].cluster, found[1]) if found is not None else None
    names = [candidate.cluster for candidate in shortlist.candidates]
    tried = [n for n in names if n != workload.cluster and to in ("", n)][:CLUSTERS_TRIED]
    for cluster in tried:
        bound = cycle.bind_in(request, shape, cluster)
        if bound is not None:
            return Place(cluster, bound)
    return None


def _order(
    draft: Draft,
    workload: Workload,
    why: str,
    reason: str,
    who: str,
    place: Place | None = None,
) -> None:
    lost = lost_gpu_s(workload, draft.now_s, draft.policy.restart_s)
    to = place.cluster if place is not None else ""
    draft.moves.append(
        MoveOrder(
            tenant=workload.tenant,
            id=workload.id,
            attempt=workload.attempt,
            cluster=workload.cluster,
            lost_gpu_s=round(lost, 3),
            why=why,  # type: ignore[arg-type] # one of its literals: see the callers
            to=to,
            who=who,
        )
    )
    leave(draft, workload, reason, to)
    draft.bytes += _BYTES
    if place is None:
        return
    room = owed_room(workload.tenant, workload.id, to, place.bound.holdings, moving=True)
    draft.bytes += _NODE_BYTES * len(room.held)
    draft.reserves.keep_moving(workload.key, room)


# Drains


def held_inside(know: Knowledge, drain: Cordon) -> Iterator[Workload]:
    """Whatever of ours holds room in a place that is cordoned, unclaimed placements too."""
    inside = [know.open[name] for name in know.derived.held.get(drain.cluster, ())]
    inside += [
        know.open[name]
        for name in know.derived.unclaimed
        if know.open[name].cluster == drain.cluster
    ]
    for workload in inside:
        if drain.node is None or any(binding.node == drain.node for binding in workload.pods):
            yield workload


def _drain(draft: Draft) -> None:
    know, now_s, restart_s = draft.know, draft.now_s, draft.policy.restart_s
    told = {key(event.tenant, event.id) for event in draft.events}  # in this decision
    found: dict[str, tuple[float, Workload, Cordon]] = {}
    for _, drain in sorted(know.view.drains.items()):
        for workload in held_inside(know, drain):
            if workload.key in know.suspended or workload.key in told or workload.leaving:
                continue
            last_s = last_moment_s(workload, drain.drain_by_s)
            before = found.get(workload.key)
            if before is None or last_s < last_moment_s(workload, before[2].drain_by_s):
                cost = lost_gpu_s(workload, now_s, restart_s)
                found[workload.key] = (cost, workload, drain)
    ordered = sorted(found.values(), key=lambda each: (each[0], each[1].key))
    looked, full_for = 0, set[bytes]()
    for _, workload, drain in ordered:
        if draft.full:
            return
        if workload.state is State.PLACED:
            draft.withdraw(workload, drain_words(drain))
            continue
        request = workload.request
        if request is None or not ours_to_end(workload):
            continue
        if now_s >= last_moment_s(workload, drain.drain_by_s):
            _order(draft, workload, "drain", drain_words(drain), drain.set_by)
            continue
        if (
            not request.preemptible
            or best_at_s(workload, now_s, drain.drain_by_s, restart_s) > now_s
        ):
            continue
        shape = shape_of(request)
        if (
            shape.key in full_for
            or looked >= MOST_LOOKED_AT
            or draft.reserves.moving >= MOST_MOVING
        ):
            continue
        looked += 1
        with draft.reserves.beside():
            place = elsewhere(draft.cycle, workload, "", other=False)
        if place is None:
            full_for.add(shape.key)
        else:
            _order(draft, workload, "drain", drain_words(drain), drain.set_by, place)


def next_look_s(know: Knowledge, restart_s: float, now_s: float) -> float:
    """When time alone lets a drain go on."""
    times = [float("inf")]
    for drain in know.view.drains.values():
        for workload in held_inside(know, drain):
            if workload.leaving or workload.state not in HELD:
                continue
            best_s = best_at_s(workload, now_s, drain.drain_by_s, restart_s)
            last_s = last_moment_s(workload, drain.drain_by_s)
            times += [at_s for at_s in (best_s, last_s) if at_s > now_s]
    return min(times)


# For people


def why_there_still(
    know: Knowledge, workload: Workload, drain: Cordon, now_s: float, restart_s: float
) -> str:
    """Why something still holds room in a place that is drained."""
    request = workload.request
    if workload.cancel_requested:
        return "it is being cancelled"
    if workload.leaving:
        return "it was told to go" + (
            f"; room is kept in {workload.leads_to}" if workload.leads_to else ""
        )
    if workload.key in know.frozen:
        return f"frozen: {know.frozen[workload.key]}"
    if workload.state is State.PLACED:
        return "it is about to be taken back"
    if request is None or not ours_to_end(workload):
        return "Kueue governs it: evict it there, or cancel it"
    best_s = best_at_s(workload, now_s, drain.drain_by_s, restart_s)
    last_s = last_moment_s(workload, drain.drain_by_s)
    latest = f"; in {last_s - now_s:.0f} s it is ended" if last_s > now_s and last_s < 1e300 else ""
    if not request.preemptible:
        return f"it is not preemptible{latest or ', and the drain has no deadline'}"
    if best_s > now_s:
        return f"it ends or writes a checkpoint in {best_s - now_s:.0f} s{latest}"
    return f"it waits for room elsewhere{latest or ', and the drain has no deadline'}"


def wish_refusal(know: Knowledge, cycle: Cycle, workload: Workload) -> str:
    """Why a move that is wished for is not carried out yet; "" if it is about to be."""
    wish, request = workload.wish, workload.request
    if wish is None or wish.how != "move" or request is None or workload.leaving:
        return ""
    where = wish.to or "another cluster"
    if cycle.now_s - wish.since_s > WISH_S:
        return f"a move to {where} found no room for an hour and was given up"
    right = right_elsewhere(know, workload, request)
    if right.refusal:
        return f"{wish.who} wants it in {where}, where it might not begin: {right.refusal}"
    filtered = shortlist_of(cycle, request, right).filtered
    out = filtered.get(wish.to, BUSY)
    if out not in (BUSY, LESS_LIKED):
        return f"{wish.who} wants it in {wish.to}, which is out: {out}"
    if wish.to and wish.to not in {c.name for c in know.clusters.known()}:
        return f"{wish.who} wants it in {wish.to}, of which nothing is known"
    return f"{wish.who} wants it in {where}; it goes when there is room for all of it"
