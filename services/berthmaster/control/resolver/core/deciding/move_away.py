"""Evictions and moves requested by operators: holds, evictions, moves and drains.

``carry_out`` turns requests into orders of a decision. lib/engine/queueing/eviction.py decides when
each attempt leaves. ``elsewhere`` finds free capacity in another place.

Example: cluster rome is drained. Job a has unsaved work of 10 GPU seconds and job b of 5,000. Job a
moves first, once nodes in oslo are reserved. Job b waits for its next checkpoint.

Rules of this file:

- Requests are in the log (a hold, a move) or in operators' settings (a drain). No other code ends
  an attempt for a request.
- A hold and an eviction take effect at once. A move ends an attempt only after nodes are reserved
  in the other cluster.
- A drain first moves attempts with the least loss. Shortly before its deadline it evicts the rest,
  which are requeued. Without a deadline, an attempt stays if it is not preemptible or fits nowhere
  else.
- No attempt is evicted for a place that its queue may not use.
- A moving job's reservation counts against no other reservation. It holds until the job starts
  there or the nodes become unusable.
- Only Kueue evicts jobs that it governs, on a worker or a hub.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from berthmaster.control.resolver.core.deciding.cycle import Cycle
from berthmaster.control.resolver.core.deciding.draft import NODE_BYTES, Draft
from berthmaster.control.resolver.core.deciding.reservations import owed_capacity
from berthmaster.control.resolver.core.deciding.turns import (
    right_elsewhere,
    shortlist_of,
    within_right,
)
from berthmaster.control.resolver.core.known.knowledge import Knowledge
from berthmaster.lib.engine.fitting.fit import Bound
from berthmaster.lib.engine.fleet.needs import shape_of
from berthmaster.lib.engine.fleetview.shortlist import BUSY, LESS_LIKED
from berthmaster.lib.engine.queueing.eviction import (
    Eviction,
    Relocation,
    Stay,
    best_at_s,
    drain_eviction,
    drain_words,
    last_moment_s,
    move_order,
    requested_eviction,
)
from berthmaster.lib.engine.queueing.preemption import lost_gpu_s
from berthmaster.lib.lifecycle.attempts import is_ours_to_end
from berthmaster.lib.lifecycle.states import HELD, State
from berthmaster.lib.lifecycle.workload import Workload, key
from berthmaster.lib.messages.control import Cordon, GpuCordon

MOST_MOVING: Final = 64  # maximum number of jobs moving at a time
MOST_SEARCHES: Final = 32  # in one draft: each binds all pods of a job
CLUSTERS_TRIED: Final = 8  # clusters tried for one move
_ORDER_BYTES: Final = 400  # size of an order, besides its nodes


class Place(NamedTuple):
    """A cluster and where a job fits there."""

    cluster: str
    bound: Bound


def carry_out(draft: Draft) -> None:
    """Carry out the requests of operators, as far as possible now."""
    know, now_s = draft.cycle.know, draft.cycle.now_s
    for name in sorted(know.derived.asked):
        if draft.full:
            return
        workload = know.open[name]
        if name in know.suspended or workload.leaving or not ours_to_end(workload):
            continue
        match requested_eviction(workload, now_s):
            case Eviction() as eviction:
                _order(draft, workload, eviction)
            case Relocation() as move if draft.reservations.moving < MOST_MOVING:
                _relocate(draft, workload, move)
    if know.view.drains:
        _drain(draft)


def ours_to_end(workload: Workload) -> bool:
    """Return whether a decision of ours may end an attempt at all."""
    return (
        workload.state in HELD
        and workload.request is not None
        and not workload.cancel_requested
        and is_ours_to_end(workload)
    )


def _relocate(
    draft: Draft, workload: Workload, move: Relocation, *, other: bool = True
) -> Place | None:
    """Order a move if there is free capacity beside all reservations; return it."""
    with draft.reservations.beside():
        place = elsewhere(draft.cycle, workload, move.to, other=other)
    if place is not None:
        _order(draft, workload, move.into(place.cluster), place)
    return place


def elsewhere(cycle: Cycle, workload: Workload, to: str, *, other: bool = True) -> Place | None:
    """Return free capacity for a whole job within its queue's quota. ``other``: in
    another cluster.
    """
    assert workload.request is not None
    right = right_elsewhere(cycle.know, workload, workload.request)
    request = within_right(cycle.know, right, workload.request)
    if right.refusal or request is None:
        return None  # after the eviction it might not start again
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
    draft: Draft, workload: Workload, eviction: Eviction, place: Place | None = None
) -> None:
    cycle = draft.cycle
    order = move_order(workload, eviction, cycle.now_s, cycle.policy.restart_s)
    draft.add(order, _ORDER_BYTES)
    draft.evict(workload, eviction.reason, eviction.to)
    if place is None:
        return
    holdings = place.bound.holdings
    room = owed_capacity(workload.tenant, workload.id, place.cluster, holdings, moving=True)
    draft.size += NODE_BYTES * len(room.held)
    draft.reservations.add_moving(workload.key, room)


# Drains


def held_inside(know: Knowledge, place: Cordon | GpuCordon) -> Iterator[Workload]:
    """Yield our attempts in a place that is cordoned, unclaimed placements too."""
    inside = [know.open[name] for name in know.derived.held.get(place.cluster, ())]
    inside += [
        know.open[name]
        for name in know.derived.unclaimed
        if know.open[name].cluster == place.cluster
    ]
    gpu = place.gpu if isinstance(place, GpuCordon) else None
    for workload in inside:
        if place.node is None or any(
            binding.node == place.node and (gpu is None or gpu in binding.gpus)
            for binding in workload.pods
        ):
            yield workload


def _drain(draft: Draft) -> None:
    cycle = draft.cycle
    know, now_s, restart_s = cycle.know, cycle.now_s, cycle.policy.restart_s
    changed = {key(event.tenant, event.id) for event in draft.events}
    found: dict[str, tuple[float, Workload, Cordon]] = {}
    for _, drain in sorted(know.view.drains.items()):
        for workload in held_inside(know, drain):
            if workload.key in know.suspended or workload.key in changed or workload.leaving:
                continue
            last_s = last_moment_s(workload, drain.drain_by_s)
            before = found.get(workload.key)
            if before is None or last_s < last_moment_s(workload, before[2].drain_by_s):
                cost = lost_gpu_s(workload, now_s, restart_s)
                found[workload.key] = (cost, workload, drain)
    ordered = sorted(found.values(), key=lambda each: (each[0], each[1].key))
    searches, full_for = 0, set[bytes]()
    for _, workload, drain in ordered:
        if draft.full:
            return
        if workload.state is State.PLACED:
            draft.withdraw(workload, drain_words(drain))
            continue
        if workload.request is None or not ours_to_end(workload):
            continue
        match drain_eviction(workload, drain, now_s, restart_s):
            case Eviction() as eviction:
                _order(draft, workload, eviction)
            case Relocation() as move if (
                searches < MOST_SEARCHES and draft.reservations.moving < MOST_MOVING
            ):
                shape = shape_of(workload.request)
                if shape.key in full_for:
                    continue
                searches += 1
                if _relocate(draft, workload, move, other=False) is None:
                    full_for.add(shape.key)


def next_look_s(know: Knowledge, restart_s: float, now_s: float) -> float:
    """Return when a drain can continue without an event."""
    times = [float("inf")]
    for drain in know.view.drains.values():
        for workload in held_inside(know, drain):
            if workload.leaving or workload.state not in HELD:
                continue
            best_s = best_at_s(workload, now_s, drain.drain_by_s, restart_s)
            last_s = last_moment_s(workload, drain.drain_by_s)
            times += [at_s for at_s in (best_s, last_s) if at_s > now_s]
    return min(times)


# For operators and users


def why_there_still(
    know: Knowledge, workload: Workload, drain: Cordon, now_s: float, restart_s: float
) -> str:
    """Return why an attempt still runs in a place that is drained."""
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


def move_refusal(know: Knowledge, cycle: Cycle, workload: Workload) -> str:
    """Return why a requested move is not carried out yet; "" if it is about to be."""
    wish, request = workload.wish, workload.request
    if wish is None or wish.how != "move" or request is None or workload.leaving:
        return ""
    if isinstance(found := requested_eviction(workload, cycle.now_s), Stay):
        return found.why
    where = wish.to or "another cluster"
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
