"""One group commit: from what is known to everything that is decided together.

Phases, over one frozen moment:

1. Retract placements that nobody claimed in time, or whose cluster was declared lost.
2. View the clusters as of now: fresh, closed, and why.
3. Take the lines' heads in order; place each that fits, pass over the line of each that does not.
4. Record: ranking, what was filtered out, sequences and time, so that it can be repeated.

Room that a placement takes is charged while the rest is decided and given back at the end: what is
known changes by the log alone, once the commit is in it.
"""

import heapq
from collections.abc import Generator
from typing import NamedTuple

from berthmaster.engine.clusters import LOST
from berthmaster.engine.fleet import Holding
from berthmaster.engine.needs import gpu_milli
from berthmaster.engine.scores import ClusterView
from berthmaster.lifecycle.fold import Key, Workload
from berthmaster.messages.placement import Choice, Decision, Retraction, Saw
from berthmaster.messages.workload import Placed, Withdrawn, WorkloadEvent
from berthmaster.resolver.consider import Moment, consider, moment_at, seat
from berthmaster.resolver.quota import target_in
from berthmaster.resolver.settings import ENGINE_VERSION, Policy
from berthmaster.resolver.state import UNCLAIMED, Knowledge
from berthmaster.resolver.waiting import Line, Order

_CHOICE_BYTES = 300  # of a record, besides its ranking and pods
_RANKED_BYTES = 150
_POD_BYTES = 60


Walk = Generator[tuple[Order, Key], None, None]


class Plan(NamedTuple):
    """A decision and the events that make it true; one batch."""

    decision: Decision
    events: tuple[WorkloadEvent, ...]
    passed_over: tuple[Line, ...]  # lines that do not fit beside what this plan places
    growth: int  # of the knowledge that it was made on

    def was_stored(self) -> None:
        """Only then is there no room for those who were passed over."""
        for line in self.passed_over:
            line.blocked_at = self.growth


class _Draft:
    """What is decided so far."""

    def __init__(self, know: Knowledge, policy: Policy, now_s: float, decider: str) -> None:
        self.know = know
        self.policy = policy
        self.now_s = now_s
        self.decider = decider
        self.number = know.chain.number + 1
        self.choices: list[Choice] = []
        self.retractions: list[Retraction] = []
        self.events: list[WorkloadEvent] = []
        self.taken: list[Holding] = []
        self.queued_milli: dict[str, int] = {}  # queue -> placed by this draft
        self.passed_over: list[Line] = []
        self.bytes = 0

    @property
    def full(self) -> bool:
        return (
            len(self.events) >= self.policy.commit_limit or self.bytes >= self.policy.commit_bytes
        )

    @property
    def cause(self) -> str:
        return f"decision/{self.know.cell}/{self.number}"

    def plan(self) -> Plan | None:
        if not self.events:
            for line in self.passed_over:
                line.blocked_at = self.know.growth
            return None
        know = self.know
        decision = Decision(
            cell=know.cell,
            number=self.number,
            after=know.chain.sequence,
            decider=self.decider,
            engine=ENGINE_VERSION,
            now_s=self.now_s,
            settings=self.policy.as_record(),
            saw=Saw(
                workloads=know.workloads_sequence,
                fleet=know.fleet_sequence,
                control=know.control_sequence,
            ),
            placements=tuple(self.choices),
            withdrawals=tuple(self.retractions),
        )
        return Plan(decision, tuple(self.events), tuple(self.passed_over), know.growth)


def decide(know: Knowledge, policy: Policy, now_s: float, decider: str) -> Plan | None:
    """Everything that can be decided now, up to the commit's limit; None if there is nothing."""
    draft = _Draft(know, policy, now_s, decider)
    _retract(draft)
    moment = moment_at(know, policy, now_s)
    _note_reopened(know, moment.views)
    try:
        _place(draft, moment)
    finally:
        know.fleet.charge(draft.taken, -1)
    return draft.plan()


# 1


def _retract(draft: _Draft) -> None:
    know = draft.know
    due_s = draft.now_s - draft.policy.claim_timeout_s
    lost = {c.name for c in know.clusters.known() if c.lost}
    for name, placed_at_s in know.placed.items():
        if draft.full or (placed_at_s > due_s and not lost):
            break
        workload = know.open[name]
        if workload.cluster in lost:
            _withdraw(draft, workload, f"cluster {LOST}")
        elif placed_at_s <= due_s:
            _withdraw(draft, workload, UNCLAIMED)


def _withdraw(draft: _Draft, workload: Workload, reason: str) -> None:
    draft.retractions.append(
        Retraction(
            tenant=workload.tenant,
            id=workload.id,
            attempt=workload.attempt,
            cluster=workload.cluster,
            reason=reason,
        )
    )
    draft.events.append(
        Withdrawn(
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
        )
    )
    draft.bytes += _CHOICE_BYTES


# 2


def _note_reopened(know: Knowledge, views: list[ClusterView]) -> None:
    """A cluster that was closed at the last look and is open now may take what did not fit then."""
    opened = frozenset(view.name for view in views if not view.closed)
    if not opened <= know.opened:
        know.growth += 1
    know.opened = opened


# 3


def _place(draft: _Draft, moment: Moment) -> None:
    know = draft.know
    heads: list[tuple[Order, int, Key, Line, Walk]] = []
    walks: list[Walk] = []
    for number, line in enumerate(know.waiting.lines()):
        if line.blocked_at == know.growth:
            continue
        walk = line.ordered()
        walks.append(walk)
        if (first := next(walk, None)) is not None:
            heads.append((first[0], number, first[1], line, walk))
    heapq.heapify(heads)
    try:
        while heads and not draft.full:
            _, number, name, line, walk = heads[0]
            if not _place_one(draft, moment, know.open[name], line):
                draft.passed_over.append(line)
                heapq.heappop(heads)
                continue
            following = next(walk, None)
            if following is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (following[0], number, following[1], line, walk))
    finally:
        for walk in walks:
            walk.close()


def queue_refusal(know: Knowledge, queue: str, milli: int, drafted_milli: int = 0) -> str:
    """Why a queue lets nothing of this size out, or ""."""
    setting = know.queues.get(queue)
    if setting is None:
        return ""
    if setting.held:
        return "its queue is held"
    limit = setting.capability_gpu_milli
    if limit is not None and know.used_milli[queue] + drafted_milli + milli > limit:
        return f"its queue is at its capability of {limit / 1000:g} GPUs"
    return ""


def _place_one(draft: _Draft, moment: Moment, workload: Workload, line: Line) -> bool:
    request = workload.request
    if request is None:
        return False
    know = draft.know
    milli = gpu_milli(request)
    drafted = draft.queued_milli.get(request.queue, 0)
    if queue_refusal(know, request.queue, milli, drafted):
        return False
    considered = consider(know, moment, request, line.id[1])
    found = seat(know, request, considered)
    if found is None:
        return False
    chosen, seating = found
    know.fleet.charge(seating.holdings, +1)
    draft.taken.extend(seating.holdings)
    draft.queued_milli[request.queue] = drafted + milli
    ranking = considered.ranking(chosen)
    cluster = chosen.cluster
    target = target_in(know.queues.get(request.queue), cluster)
    if target.via == "worker":
        moment.drafted.setdefault(cluster, []).append((target, request))
    draft.choices.append(
        Choice(
            tenant=workload.tenant,
            id=workload.id,
            attempt=workload.attempt + 1,
            cluster=cluster,
            pods=seating.bindings,
            ranking=ranking,
            filtered=considered.filtered,
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
            pods=seating.bindings,
            request=request,
            decision=draft.number,
            cell=know.cell,
            submitted_at_s=workload.submitted_at_s,
            target=target,
        )
    )
    draft.bytes += (
        _CHOICE_BYTES
        + _RANKED_BYTES * len(ranking)
        + 60 * len(considered.filtered)
        + _POD_BYTES * len(seating.bindings)
    )
    return True
