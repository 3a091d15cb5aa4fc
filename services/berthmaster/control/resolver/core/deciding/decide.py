"""One group commit: from what is known to everything that is decided together.

Phases, over one snapshot of the clusters (cycle.py):

1. Retract placements that nobody claimed in time, whose job is held since, or whose cluster was
   declared lost; tell those to go who must (move_away.py). Let gangs start that are divided over
   clusters and claimed in all (divide.py).
2. Take the jobs whose turn it is, one by one; place each that fits and delays nobody for whom room
   is kept, pass over the line of each that does not, and keep room for the first of those, or make
   it: those go on with fewer pods, or are ended, who have less right to theirs.
3. If there was nothing to decide, have attempts grow into what is idle; if that came to nothing
   either, have a few move so that one fits who has waited for long (rebalance.py).
4. Record: ranking, what was filtered out, sequences and time, so that it can be repeated.

Room that a placement takes is charged to the draft while the rest is decided and given back when it
ends (draft.py): what is known changes by the log alone, once the commit is in it. So deciding twice
gives the same plan twice.
"""

import msgspec

from berthmaster.control.resolver.core.deciding.cycle import Cycle
from berthmaster.control.resolver.core.deciding.divide import (
    Shares,
    follow_parts,
    is_parted,
    record_division,
    shares_of,
    with_pods,
)
from berthmaster.control.resolver.core.deciding.draft import CHOICE_BYTES, Draft, Plan, Stuck, block
from berthmaster.control.resolver.core.deciding.make_room import WORDS, why_ended
from berthmaster.control.resolver.core.deciding.move_away import carry_out, leave
from berthmaster.control.resolver.core.deciding.rebalance import Weighed, may_be_stuck, rebalance
from berthmaster.control.resolver.core.deciding.reserves import Kept
from berthmaster.control.resolver.core.deciding.resize import Resize, grown, most_that
from berthmaster.control.resolver.core.deciding.turns import Turn, within_right
from berthmaster.control.resolver.core.deciding.worker_queue import target_of
from berthmaster.control.resolver.core.known.knowledge import UNCLAIMED, Knowledge
from berthmaster.control.resolver.settings import Policy
from berthmaster.lib.engine.fitting.fit import Bound
from berthmaster.lib.engine.fleet.clusters import LOST
from berthmaster.lib.engine.fleet.needs import Shape, shape_of
from berthmaster.lib.engine.fleetview.ranking import Candidate
from berthmaster.lib.engine.fleetview.shortlist import Shortlist
from berthmaster.lib.engine.queueing.ledger import amounts_of
from berthmaster.lib.engine.queueing.queues import Amounts
from berthmaster.lib.lifecycle.sizes import (
    at_size,
    is_elastic,
    least_request,
    size_steps,
    with_bound,
)
from berthmaster.lib.lifecycle.workload import Key, Workload, key
from berthmaster.lib.messages.placement import Choice, Reservation
from berthmaster.lib.messages.workload import JobRequest, Placed, ResizeRequested

_RANKED_BYTES = 150
_POD_BYTES = 60
GROWS = "there is room that nobody else has a right to"
_NONE_KEPT: frozenset[Key] = frozenset()

_Room = tuple[Shortlist, Candidate, Bound]


def decide(
    know: Knowledge, policy: Policy, now_s: float, decider: str, *, balance: bool = True
) -> Plan | None:
    """Everything that can be decided now, up to the commit's limit; None if there is nothing.
    ``balance``: who could begin if others moved is looked for too. That comes last, so whoever
    does not look for it decides nothing else because of that."""
    cycle = Cycle(know, policy, now_s, renew=True)
    with Draft(cycle, decider) as draft:
        _fill(draft, balance=balance)
        plan = draft.plan()
    if plan is not None and draft.remembered:
        with Draft(Cycle(know, policy, now_s, renew=True), decider, anew=True) as draft:
            _fill(draft, balance=balance)
            plan = draft.plan()
    if plan is None:
        block(draft.passed_over, know.derived.growth)
    return plan


def planned(know: Knowledge, policy: Policy, now_s: float) -> dict[Key, Reservation]:
    """For whom room would be kept, were a decision made now: for people to be told."""
    with Draft(Cycle(know, policy, now_s), "") as draft:
        _fill(draft, balance=False)
        return draft.reserves.told()


def rebalanced(
    know: Knowledge, policy: Policy, now_s: float, most: int
) -> tuple[list[Weighed], dict[Key, Reservation]]:
    """For whom others would be moved now, and for whom not and why; and the room of all of them."""
    with Draft(Cycle(know, policy, now_s), "whatif", anew=True) as draft:
        _fill(draft, balance=False)
        return rebalance(draft, most, looks=most), draft.reserves.told()


def _fill(draft: Draft, *, balance: bool) -> None:
    _retract(draft)
    turns = draft.begin()
    carry_out(draft)
    follow_parts(draft)
    while not draft.full and (turn := turns.next()) is not None:
        amounts = _place_one(draft, turn)
        if amounts is not None:
            turns.placed(amounts)
        elif turn.key in draft.know.retried:
            turns.skipped()
        else:
            turns.passed()
    if not draft.events:
        _grow(draft)
    if balance and not draft.events:
        rebalance(draft, 1)


# 1


def _retract(draft: Draft) -> None:
    know = draft.know
    due_s = draft.now_s - draft.policy.claim_timeout_s
    lost = {c.name for c in know.clusters.known() if c.lost}
    for name, placed_at_s in know.derived.unclaimed.items():
        if draft.full or (placed_at_s > due_s and not lost and not know.derived.asked):
            break
        if name in know.suspended:
            continue
        workload = know.open[name]
        if workload.cluster in lost:
            draft.withdraw(workload, f"cluster {LOST}")
        elif workload.hold is not None:
            draft.withdraw(workload, f"held by {workload.hold.who}")
        elif placed_at_s <= due_s:
            draft.withdraw(workload, UNCLAIMED)


# 2


def _place_one(draft: Draft, turn: Turn) -> Amounts | None:
    """What the job takes, or None if it is passed over."""
    reserves = draft.reserves
    know, line = draft.know, turn.line
    draft.turns[turn.key] = len(draft.turns)
    workload = know.open[turn.key]
    request = workload.request
    if request is None or turn.right.refusal or is_parted(draft, workload):
        return None
    elastic = is_elastic(request)
    asked, shape = request, line.shape
    if elastic:
        asked = least_request(request)
        shape = shape_of(asked)
    narrowed = within_right(know, turn.right, asked)
    if narrowed is None:
        return None
    if narrowed is not asked:
        asked, shape = narrowed, shape_of(narrowed)
    if (kept := reserves.kept.get(turn.key)) is not None and kept.reservation.moving:
        asked = msgspec.structs.replace(asked, clusters=(kept.reservation.cluster,))
        shape = shape_of(asked)  # it was ended to go on there
    found = None
    shares: Shares | None = None
    owed = kept is not None and kept.reservation.owed
    spread = request.divide is not None and request.divide.by == "weight"
    left_alone = reserves.tokens
    blocked = turn.blocked and line.left_alone <= left_alone
    is_tried = draft.anew or not blocked
    if is_tried:
        if spread and not owed:
            shares = _find_shares(draft, turn, asked)
        if shares is None:
            found = (
                _find_most_room(draft, turn, request)
                if elastic
                else _find_room(draft, turn, asked, shape)
            )
        if found is None and request.divide is not None and not (spread or owed):
            shares = _find_shares(draft, turn, asked)
    if shares is not None:
        return _divide(draft, workload, asked, shares)
    if found is None:
        # Of who has a turn before the first of its line, that says nothing about those; nor of
        # anybody beside a division: what it takes of its queue counts in this draft, and once this
        # is stored only when its parts are placed.
        if is_tried and line.is_first(turn.key) and not draft.divisions:
            draft.passed_over.append((line, line.overtaken, left_alone))
        if turn.key in know.retried:
            return None
        made = not owed and _make_room(draft, turn, asked, shape)
        if not owed and not made and not draft.evictions:  # a look at a time: the next has its own
            reserves.look(line, turn.key, turn.rank, asked, shape, untouched=not draft.events)
            if may_be_stuck(draft, turn):
                draft.stuck.append(Stuck(turn, asked, shape))
        return None
    shortlist, chosen, bound = found
    draft.take(bound.holdings)
    if reserves.kept:
        reserves.drop(turn.key)
        reserves.give_way(turn.rank, bound.holdings)
    _record(draft, workload, request, shortlist, chosen, bound)
    taken = with_bound(request, bound.bindings) if elastic else request
    return amounts_of(know.fleet.node, taken, chosen.cluster, bound.bindings)


def _find_most_room(draft: Draft, turn: Turn, request: JobRequest) -> _Room | None:
    """A place for as many pods as are wished for, or for as many as there is room for and its queue
    may have; none for fewer than it can run with."""
    models = draft.know.derived.ledger.models()

    def find(step: int) -> _Room | None:
        asked: JobRequest | None = at_size(request, step)
        assert asked is not None
        right = turn.right_to(asked, models)
        if right.refusal:
            return None
        asked = within_right(draft.know, right, asked)
        return _find_room(draft, turn, asked, shape_of(asked)) if asked is not None else None

    return most_that(0, size_steps(request), find)


def _find_shares(draft: Draft, turn: Turn, asked: JobRequest) -> Shares | None:
    """Places in several clusters, beside all reservations."""
    with draft.reserves.beside(draft.reserves.others(turn.key)):
        return shares_of(draft.cycle, asked)


def _divide(draft: Draft, workload: Workload, asked: JobRequest, shares: Shares) -> Amounts:
    """Room in several clusters is kept for its parts; what they take together."""
    draft.reserves.drop(workload.key)
    record_division(draft, workload, asked, shares)
    together: Amounts = {}
    for share in shares.parts:
        of_part = with_pods(asked, share.pods)
        report_of, bindings = draft.know.fleet.node, share.bound.bindings
        for name, amount in amounts_of(report_of, of_part, share.cluster, bindings).items():
            together[name] = together.get(name, 0) + amount
    return together


def _make_room(draft: Draft, turn: Turn, asked: JobRequest, shape: Shape) -> bool:
    """Have others shrink or, if that is not enough, be ended for a job of better right; whether any
    are."""
    reserves = draft.reserves
    told = draft.evictions or draft.resizes or draft.moves or draft.partings or draft.commits
    if told or not reserves.may_owe:
        return False  # for one job: whoever is next sees what that one leaves, or what was asked
    with reserves.aside(reserves.others(turn.key)):
        shrinking = draft.shrinker.look(turn, asked, shape)
        found = draft.room_maker.look(turn, asked, shape) if shrinking is None else None
    if shrinking is not None:
        for resize in shrinking.resizes:
            _resize(draft, resize, WORDS[resize.order.right])
        reserves.owe(turn.key, shrinking.reservation)
        draft.bytes += _POD_BYTES * len(shrinking.reservation.held)
        return True
    if found is None:
        return False
    for order in found.orders:
        ended = draft.know.open[key(order.tenant, order.id)]
        leave(draft, ended, why_ended(order))
    draft.evictions += found.orders
    reserves.owe(turn.key, found.reservation)
    draft.bytes += CHOICE_BYTES * (len(found.orders) + 1)
    draft.bytes += _POD_BYTES * len(found.reservation.held)
    return True


def _grow(draft: Draft) -> None:
    """Into what is idle."""
    if not draft.know.derived.elastic.clusters():
        return  # to look beside all that is kept takes time
    with draft.reserves.beside():
        for resize, holdings in grown(draft.cycle):
            draft.take(holdings)
            _resize(draft, resize, GROWS)
            if draft.full:
                return


def _resize(draft: Draft, resize: Resize, reason: str) -> None:
    order, pods = resize
    workload = draft.know.open[key(order.tenant, order.id)]
    draft.resizes.append(order)
    draft.events.append(
        ResizeRequested(
            tenant=order.tenant,
            id=order.id,
            after=workload.sequence,
            at_s=draft.now_s,
            by=draft.decider,
            cause=draft.cause,
            cluster=order.cluster,
            attempt=order.attempt,
            pods=pods,
            reason=reason,
            decision=draft.number,
            cell=draft.know.cell,
        )
    )
    draft.bytes += CHOICE_BYTES + _POD_BYTES * len(pods)


def _find_room(draft: Draft, turn: Turn, asked: JobRequest, shape: Shape) -> _Room | None:
    """A place that no reservation will need, or else in the room of those that do not mind, or
    beside what the others will use."""
    reserves, key = draft.reserves, turn.key
    if not reserves.kept:
        return _try(draft, asked, shape, ())
    others = reserves.others(key)
    minding = reserves.charged_for(key, turn.rank, asked)
    for kept in (others, minding) if len(minding) < len(others) else (others,):
        found = _try(draft, asked, shape, kept)
        if found is not None:
            return found
    if minding and reserves.leaves_room(minding):
        return _try(draft, asked, shape, minding, beside=True)
    return None


def _try(
    draft: Draft, asked: JobRequest, shape: Shape, kept: tuple[Kept, ...], *, beside: bool = False
) -> _Room | None:
    """A place in what is free now, outside these reservations. ``beside``: or with them, as what
    runs and what follows it are not there together."""
    direct, reserves = _is_direct(draft.know, asked.queue), draft.reserves
    tried = shape.key, frozenset(each.key for each in kept) if kept else _NONE_KEPT, beside
    if direct and tried in draft.no_room:
        return None
    with reserves.beside(kept) if beside else reserves.aside(kept):
        shortlist = draft.cycle.shortlist(asked, shape)
        found = draft.cycle.bind(asked, shortlist)
    if found is not None:
        return shortlist, *found
    if direct:
        draft.no_room.add(tried)
    return None


def _is_direct(know: Knowledge, queue: str) -> bool:
    setting = know.queues.get(queue)
    return setting is None or setting.via == "direct"


def _record(
    draft: Draft,
    workload: Workload,
    request: JobRequest,
    shortlist: Shortlist,
    chosen: Candidate,
    bound: Bound,
) -> None:
    """The choice, its reasons and its event."""
    know, cycle = draft.know, draft.cycle
    ranking = shortlist.ranking(chosen)
    cluster = chosen.cluster
    target = target_of(workload, know.queues.get(request.queue), cluster)
    draft.tries += know.clusters.peek(cluster).is_doubted(draft.now_s, draft.policy.avoid_s)
    if target.via == "worker":
        cycle.drafted.setdefault(cluster, []).append((target, with_bound(request, bound.bindings)))
    draft.choices.append(
        Choice(
            tenant=workload.tenant,
            id=workload.id,
            attempt=workload.attempt + 1,
            cluster=cluster,
            pods=bound.bindings,
            ranking=ranking,
            filtered=shortlist.filtered,
            profile=shortlist.weighting.profile,
            weights=shortlist.weighting.weights,
        )
    )
    draft.events.append(
        Placed(
            tenant=workload.tenant,
            id=workload.id,
            after=workload.sequence,
            at_s=draft.now_s,
            by=draft.decider,
            cause=draft.cause,
            cluster=cluster,
            attempt=workload.attempt + 1,
            pods=bound.bindings,
            request=request,
            decision=draft.number,
            cell=know.cell,
            submitted_at_s=workload.submitted_at_s,
            target=target,
            checkpoint=workload.checkpoint,
            ran_s=round(workload.ran_s, 3),
        )
    )
    draft.bytes += (
        CHOICE_BYTES
        + _RANKED_BYTES * len(ranking)
        + 60 * len(shortlist.filtered)
        + _POD_BYTES * len(bound.bindings)
    )
