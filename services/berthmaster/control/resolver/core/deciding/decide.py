"""One group commit: from knowledge to everything that is decided together.

``decide`` returns the next commit. ``_Search`` places the candidates of one draft.

Example: job a fits and is placed on node 1. Job b needs 8 GPUs and fits nowhere, so its job class
is skipped and nodes are reserved for b. Job c fits beside the reservation and is placed. The commit
holds two placements and one reservation.

Phases, over one snapshot of the clusters (cycle.py):

1. Withdraw placements without a claim in time, placements of held jobs, and placements on lost
   clusters. Carry out operators' requests (move_away.py). Start divided gangs that are claimed in
   all clusters (division.py).
2. Take the candidates in order (turns.py). Place a candidate that fits and delays no reservation.
   Otherwise skip its class, and reserve capacity for the first such candidate. Or free capacity:
   jobs of lower precedence shrink (resize.py) or are evicted (preemptor.py).
3. Without anything to decide, grow attempts into idle capacity. If nothing grows either, move a few
   jobs so that a long-pending job fits (rebalance.py).
4. Record ranking, filtered clusters, sequences and time, so that the decision can be repeated.

Placements are charged to the draft while the rest is decided, and released at its end (draft.py).
Only the log changes knowledge, so deciding twice gives equal plans.
"""

from collections import defaultdict
from functools import cached_property

import msgspec

from berthmaster.control.resolver.core.deciding.choosing import Pick, pick
from berthmaster.control.resolver.core.deciding.cycle import Cycle, target_of
from berthmaster.control.resolver.core.deciding.division import (
    Shares,
    follow_parts,
    is_parted,
    record_division,
    shares_of,
    with_pods,
)
from berthmaster.control.resolver.core.deciding.draft import (
    NODE_BYTES,
    RECORD_BYTES,
    Draft,
    Passed,
    Plan,
    block,
)
from berthmaster.control.resolver.core.deciding.move_away import carry_out
from berthmaster.control.resolver.core.deciding.preemptor import WORDS, Preemptor, why_evicted
from berthmaster.control.resolver.core.deciding.rebalance import (
    Stuck,
    Weighed,
    may_rebalance,
    rebalance,
)
from berthmaster.control.resolver.core.deciding.reservations import Active, Token
from berthmaster.control.resolver.core.deciding.resize import Resize, Shrinker, grown, most_that
from berthmaster.control.resolver.core.deciding.turns import Turn, within_right
from berthmaster.control.resolver.core.known.knowledge import UNCLAIMED, Knowledge
from berthmaster.control.resolver.policy import Policy
from berthmaster.lib.engine.fitting.fit import Bound
from berthmaster.lib.engine.fleet.clusters import LOST
from berthmaster.lib.engine.fleet.needs import Shape, shape_of
from berthmaster.lib.engine.fleetview.ranking import Candidate
from berthmaster.lib.engine.fleetview.shortlist import BUSY, Shortlist
from berthmaster.lib.engine.queueing.idle import idle_action
from berthmaster.lib.engine.queueing.ledger import amounts_of
from berthmaster.lib.engine.queueing.queues import Amounts
from berthmaster.lib.engine.queueing.trial_budget import trial_refusal
from berthmaster.lib.lifecycle.pods import (
    at_size,
    is_elastic,
    least_request,
    size_steps,
    with_bound,
)
from berthmaster.lib.lifecycle.trials import trial_gpu_s
from berthmaster.lib.lifecycle.workload import Key, Workload, key
from berthmaster.lib.messages.placement import (
    Choice,
    Commit,
    Division,
    EvictionOrder,
    MoveOrder,
    Option,
    PartOrder,
    Reservation,
    ResizeOrder,
)
from berthmaster.lib.messages.workload import AfterEviction, JobRequest, Placed, ResizeRequested

_RANKED_BYTES = 150
_OPTION_BYTES = 150
GROWS = "there is room that nobody else has a right to"
_NO_KEYS: frozenset[Key] = frozenset()
_NO_TOKENS: frozenset[Token] = frozenset()

_Place = tuple[Shortlist, Candidate, Bound]


def decide(
    know: Knowledge, policy: Policy, now_s: float, decider: str, *, balance: bool = True
) -> Plan | None:
    """Return everything that can be decided now, up to the commit's limit; None without anything.

    ``balance``: rebalance too. Rebalancing comes last, so nothing else depends on it.
    """
    cycle = Cycle(know, policy, now_s, renew=True)
    with Draft(cycle, decider) as draft:
        search = _fill(draft, balance=balance)
        plan = draft.plan(search.passed_over)
    if plan is not None and draft.remembered:
        with Draft(Cycle(know, policy, now_s, renew=True), decider, anew=True) as draft:
            search = _fill(draft, balance=balance)
            plan = draft.plan(search.passed_over)
    if plan is None:
        block(search.passed_over, know.derived.growth)
    return plan


def planned(know: Knowledge, policy: Policy, now_s: float) -> dict[Key, Reservation]:
    """Return the reservations that a decision would make now."""
    with Draft(Cycle(know, policy, now_s), "") as draft:
        _fill(draft, balance=False)
        return draft.recorded_reservations()


def rebalanced(
    know: Knowledge, policy: Policy, now_s: float, most: int
) -> tuple[list[Weighed], dict[Key, Reservation]]:
    """Return the pending jobs with the moves for each, or why there are none, and all
    reservations.
    """
    with Draft(Cycle(know, policy, now_s), "whatif", anew=True) as draft:
        search = _fill(draft, balance=False)
        weighed = rebalance(
            draft, search.preemptor.victims, search.stuck, search.order, most, searches=most
        )
        return weighed, draft.recorded_reservations()


def _fill(draft: Draft, *, balance: bool) -> "_Search":
    know = draft.cycle.know
    _retract(draft)
    turns = draft.begin()
    if know.derived.asked or know.view.drains:
        carry_out(draft)
    if know.parts.jobs or know.derived.parts:
        follow_parts(draft)
    search = _Search(draft)
    grew = False
    while not draft.full and (turn := turns.next()) is not None:
        if turn.of_trial and not grew:  # trials come after all else that can be decided
            if not draft.events:
                _grow(draft)
            if draft.events:
                break
            grew = True
        amounts = search.place(turn)
        if amounts is not None:
            turns.placed(amounts)
        elif turn.key in know.retried:
            turns.skipped()
        else:
            turns.passed()
    if not (draft.events or grew):
        _grow(draft)
    if balance and not draft.events and search.stuck:
        rebalance(draft, search.preemptor.victims, search.stuck, search.order, 1)
    return search


# 1


def _retract(draft: Draft) -> None:
    know, policy = draft.cycle.know, draft.cycle.policy
    due_s = draft.cycle.now_s - policy.claim_timeout_s
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


class _Search:
    """The search for places in one draft, candidate by candidate."""

    def __init__(self, draft: Draft) -> None:
        self.order: dict[Key, int] = {}  # position of each candidate
        self.stuck: list[Stuck] = []
        self.passed_over: list[Passed] = []
        self._draft = draft
        self._know = draft.cycle.know
        # Shapes without a fit: outside these reservations or, if True, beside the jobs before them.
        self._no_place: set[tuple[bytes, frozenset[Key], bool]] = set()
        # GPU seconds of trials placed in this draft, by queue.
        self._tried_gpu_s = defaultdict[str, float](float)

    @cached_property
    def preemptor(self) -> Preemptor:
        """The search for evictions, made when a job first needs it."""
        return Preemptor(self._draft.cycle)

    @cached_property
    def shrinker(self) -> Shrinker:
        """The search for attempts that go on with fewer pods."""
        return Shrinker(self._draft.cycle, self.preemptor.victims.accounts)

    def place(self, turn: Turn) -> Amounts | None:
        """Place a candidate and return its usage; None if skipped."""
        draft, know, line = self._draft, self._know, turn.line
        self.order[turn.key] = len(self.order)
        workload = know.open[turn.key]
        request = workload.request
        if request is None or turn.right.refusal:
            return None
        if request.trial_of and self._trial_refusal(request):
            return None
        if request.part is not None and is_parted(draft.cycle, workload):
            return None
        elastic = is_elastic(request)
        asked, shape = request, line.shape
        if elastic:
            asked = least_request(request)
            shape = shape_of(asked)
        choosing = pick(draft.cycle, workload.tenant, request, workload.trials)
        if choosing is not None:
            turn, asked, shape = self._awaited(turn, choosing)
            if turn.right.refusal:
                return None
        narrowed = within_right(know, turn.right, asked)
        if narrowed is None:
            return None
        if narrowed is not asked:
            asked, shape = narrowed, shape_of(narrowed)
        reserved = draft.reserved.get(turn.key)
        if reserved is not None and reserved.reservation.moving:
            asked = msgspec.structs.replace(asked, clusters=(reserved.reservation.cluster,))
            shape = shape_of(asked)  # evicted to continue there
        found: _Place | None = None
        options: tuple[Option, ...] = ()
        shares: Shares | None = None
        owed = reserved is not None and reserved.reservation.owed
        spread = request.divide is not None and request.divide.by == "weight"
        left_alone = draft.reservations.tokens if draft.reserved else _NO_TOKENS
        blocked = turn.blocked and line.left_alone <= left_alone
        is_tried = draft.anew or not blocked
        if is_tried:
            if spread and not owed:
                shares = self._find_shares(turn, asked)
            if choosing is not None:
                request, found, options = self._find_chosen(turn, choosing, asked.clusters)
            elif shares is None:
                found = (
                    self._find_largest(turn, request) if elastic else self._find(turn, asked, shape)
                )
            if found is None and request.divide is not None and not (spread or owed):
                shares = self._find_shares(turn, asked)
        if shares is not None:
            return _divide(draft, workload, asked, shares)
        if found is None:
            # The class is blocked if its first job does not fit. A division in the draft is no
            # reason: its parts count against the queue here, and in the log only after their
            # placement.
            if is_tried and line.is_first(turn.key) and not draft.includes(Division):
                self.passed_over.append((line, line.overtaken, left_alone))
            if not (owed or request.trial_of) and turn.key not in know.retried:
                self._free_or_reserve(turn, asked, shape)
            return None
        return self._take(turn, workload, request, found, options)

    def _take(
        self,
        turn: Turn,
        workload: Workload,
        request: JobRequest,
        found: _Place,
        options: tuple[Option, ...],
    ) -> Amounts:
        """Charge and record a placement; return its usage."""
        draft, (shortlist, chosen, bound) = self._draft, found
        if request.trial_of:
            self._tried_gpu_s[request.queue] += trial_gpu_s(request)
        draft.charge(bound.holdings)
        if draft.reserved:
            draft.reservations.drop(turn.key)
            draft.reservations.drop_lower(turn.rank, bound.holdings)
        _record(draft, workload, request, shortlist, chosen, bound, options)
        if request.trial_of:
            return {}
        taken = with_bound(request, bound.bindings)
        return amounts_of(self._know.fleet.node, taken, chosen.cluster, bound.bindings)

    def _trial_refusal(self, request: JobRequest) -> str:
        know, drafted = self._know, self._tried_gpu_s[request.queue]
        setting, now_s = know.queues.get(request.queue), self._draft.cycle.now_s
        return trial_refusal(know.recent_trials, setting, request, now_s, drafted)

    def _find_largest(self, turn: Turn, request: JobRequest) -> _Place | None:
        """Return a place for the requested pods, or for as many as fit and the queue may have."""
        models = self._know.derived.ledger.models()

        def find(step: int) -> _Place | None:
            asked: JobRequest | None = at_size(request, step)
            assert asked is not None
            right = turn.right_to(asked, models)
            if right.refusal:
                return None
            asked = within_right(self._know, right, asked)
            return self._find(turn, asked, shape_of(asked)) if asked is not None else None

        return most_that(0, size_steps(request), find)

    def _awaited(self, turn: Turn, choosing: Pick) -> tuple[Turn, JobRequest, Shape]:
        """Return the turn of the awaited configuration, and record what it was chosen by."""
        if choosing.weighed is not None:
            self._draft.weigh(turn.key, choosing.weighed)
        asked = choosing.awaited
        right = turn.right_to(asked, self._know.derived.ledger.models())
        return turn._replace(right=right), asked, shape_of(asked)

    def _find_chosen(
        self, turn: Turn, choosing: Pick, clusters: tuple[str, ...]
    ) -> tuple[JobRequest, _Place | None, tuple[Option, ...]]:
        """Return the first configuration with a place that the queue may have, its place, and the
        record of all. ``clusters``: as in a request.
        """
        models, lacks = self._know.derived.ledger.models(), dict[int, str]()
        for number in choosing.tries:
            request = choosing.each[number]
            asked = msgspec.structs.replace(request, clusters=clusters)
            right = turn.right_to(asked, models)
            narrowed = None if right.refusal else within_right(self._know, right, asked)
            if narrowed is not None:
                found = self._find(turn, narrowed, shape_of(narrowed))
                if found is not None:
                    return request, found, choosing.taken(number, lacks)
            lacks[number] = right.refusal or BUSY
        return choosing.awaited, None, ()

    def _find_shares(self, turn: Turn, asked: JobRequest) -> Shares | None:
        """Return places in several clusters, beside all reservations."""
        reservations = self._draft.reservations
        with reservations.beside(reservations.others(turn.key)):
            return shares_of(self._draft.cycle, asked)

    def _find(self, turn: Turn, asked: JobRequest, shape: Shape) -> _Place | None:
        """Return nodes outside all reservations, else on reservations that allow the job, else on
        capacity that reservations need later.
        """
        if not self._draft.reserved:
            return self._try(asked, shape, ())
        reservations, key = self._draft.reservations, turn.key
        others = reservations.others(key)
        limiting = reservations.limiting(key, turn.rank, asked)
        for charged in (others, limiting) if len(limiting) < len(others) else (others,):
            found = self._try(asked, shape, charged)
            if found is not None:
                return found
        if limiting and reservations.returns(limiting):
            return self._try(asked, shape, limiting, beside=True)
        return None

    def _try(
        self,
        asked: JobRequest,
        shape: Shape,
        charged: tuple[Active, ...],
        *,
        beside: bool = False,
    ) -> _Place | None:
        """Return a place beside these reservations. ``beside``: as ``Reservations.beside``."""
        draft, direct = self._draft, _is_direct(self._know, asked.queue)
        keys = frozenset(each.key for each in charged) if charged else _NO_KEYS
        tried = shape.key, keys, beside
        if direct and tried in self._no_place:
            return None
        if not draft.reserved:
            shortlist = draft.cycle.shortlist(asked, shape)
            found = draft.cycle.bind(asked, shortlist)
        else:
            reservations = draft.reservations
            with reservations.beside(charged) if beside else reservations.only(charged):
                shortlist = draft.cycle.shortlist(asked, shape)
                found = draft.cycle.bind(asked, shortlist)
        if found is not None:
            return shortlist, *found
        if direct:
            self._no_place.add(tried)
        return None

    def _free_or_reserve(self, turn: Turn, asked: JobRequest, shape: Shape) -> None:
        """Evict or shrink other jobs for a candidate that does not fit, or reserve capacity."""
        draft = self._draft
        if self._preempt(turn, asked, shape) or draft.includes(EvictionOrder):
            return  # each search has a draft of its own
        draft.reservations.search(
            turn.line, turn.key, turn.rank, asked, shape, untouched=not draft.events
        )
        if may_rebalance(draft, turn):
            self.stuck.append(Stuck(turn, asked, shape))

    def _preempt(self, turn: Turn, asked: JobRequest, shape: Shape) -> bool:
        """Have other attempts shrink, or else evict them; return whether any are."""
        draft = self._draft
        if draft.includes(EvictionOrder, ResizeOrder, MoveOrder, PartOrder, Commit):
            return False  # one job a commit: the next one sees what this one leaves
        reservations = draft.reservations
        if not reservations.may_add_owed:
            return False
        with reservations.only(reservations.others(turn.key)):
            shrinking = self.shrinker.search(turn, asked, shape)
            found = self.preemptor.search(turn, asked, shape) if shrinking is None else None
        if shrinking is not None:
            for resize in shrinking.resizes:
                _resize(draft, resize, WORDS[resize.order.right])
            reservations.add_owed(turn.key, shrinking.reservation)
            draft.size += NODE_BYTES * len(shrinking.reservation.held)
            return True
        if found is None:
            return False
        for order in found.orders:
            victim = draft.cycle.know.open[key(order.tenant, order.id)]
            then = _after_eviction(draft.cycle, victim, order)
            draft.evict(victim, why_evicted(order), then=then)
            draft.add(order, RECORD_BYTES)
        reservations.add_owed(turn.key, found.reservation)
        draft.size += RECORD_BYTES + NODE_BYTES * len(found.reservation.held)
        return True


def _divide(draft: Draft, workload: Workload, asked: JobRequest, shares: Shares) -> Amounts:
    """Reserve capacity in several clusters for the parts of a job; return their usage."""
    draft.reservations.drop(workload.key)
    record_division(draft, workload, asked, shares)
    together: Amounts = {}
    for share in shares.parts:
        of_part = with_pods(asked, share.pods)
        report_of, bindings = draft.cycle.know.fleet.node, share.bound.bindings
        for name, amount in amounts_of(report_of, of_part, share.cluster, bindings).items():
            together[name] = together.get(name, 0) + amount
    return together


def _after_eviction(cycle: Cycle, victim: Workload, order: EvictionOrder) -> AfterEviction:
    """Return what the queue of an idle job says that follows its eviction."""
    if order.right != "idle":
        return ""
    action = idle_action(victim, cycle.know.queues, cycle.now_s)
    return action if action in ("hold", "end") else ""


def _grow(draft: Draft) -> None:
    """Have attempts grow into idle capacity."""
    if not draft.cycle.know.derived.elastic.clusters():
        return
    with draft.reservations.beside():
        for resize, holdings in grown(draft.cycle):
            draft.charge(holdings)
            _resize(draft, resize, GROWS)
            if draft.full:
                return


def _resize(draft: Draft, resize: Resize, reason: str) -> None:
    order, pods = resize
    workload = draft.cycle.know.open[key(order.tenant, order.id)]
    draft.add(order, RECORD_BYTES + NODE_BYTES * len(pods))
    draft.events.append(
        ResizeRequested(
            **draft.head(workload),
            cluster=order.cluster,
            attempt=order.attempt,
            pods=pods,
            reason=reason,
        )
    )


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
    options: tuple[Option, ...],
) -> None:
    """Record the choice, its reasons and its event. ``options``: compared configurations."""
    cycle = draft.cycle
    ranking = shortlist.ranking(chosen)
    cluster = chosen.cluster
    target = target_of(workload, cycle.know.queues.get(request.queue), cluster)
    if target.via == "worker":
        cycle.drafted.setdefault(cluster, []).append((target, with_bound(request, bound.bindings)))
    choice = Choice(
        tenant=workload.tenant,
        id=workload.id,
        attempt=workload.attempt + 1,
        cluster=cluster,
        pods=bound.bindings,
        ranking=ranking,
        filtered=shortlist.filtered,
        profile=shortlist.weighting.profile,
        weights=shortlist.weighting.weights,
        options=options,
    )
    event = Placed(
        **draft.head(workload),
        cluster=cluster,
        attempt=workload.attempt + 1,
        pods=bound.bindings,
        request=request,
        submitted_at_s=workload.submitted_at_s,
        target=target,
        checkpoint=workload.checkpoint,
        ran_s=round(workload.ran_s, 3),
    )
    size = RECORD_BYTES + _RANKED_BYTES * len(ranking) + 60 * len(shortlist.filtered)
    size += _OPTION_BYTES * len(options)
    draft.place(choice, event, size + NODE_BYTES * len(bound.bindings))
