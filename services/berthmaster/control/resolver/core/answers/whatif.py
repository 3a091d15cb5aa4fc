"""What-if: the effect of one change, on a copy of the knowledge.

The copy decides twice: as things are, and after receiving the change like any message. Example:
``whatif cordon`` of node n1 shows three jobs under ``elsewhere`` and one under ``stranded``. The
difference is the answer: newly placed jobs, jobs no longer placed, changed best clusters, and jobs
without any cluster left. The original is never changed.

The work is a sequence of short steps, none longer than a group commit, with decisions in between.
Setting ``Budget.spent`` ends the work early with partial results. A job that changes meanwhile
drops out.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from copy import copy
from typing import Final, NamedTuple

from msgspec.structs import replace

from berthmaster.control.resolver.core.answers.fork import fork
from berthmaster.control.resolver.core.answers.supposed_moves import drained, preempted, rebalancing
from berthmaster.control.resolver.core.answers.suppositions import KINDS, Change, change_of
from berthmaster.control.resolver.core.deciding.cycle import Cycle
from berthmaster.control.resolver.core.deciding.decide import decide
from berthmaster.control.resolver.core.deciding.draft import Plan
from berthmaster.control.resolver.core.known.knowledge import Knowledge
from berthmaster.control.resolver.settings import Policy
from berthmaster.lib.engine.fleet.overlay import Overlay
from berthmaster.lib.engine.fleetview.shortlist import BUSY
from berthmaster.lib.engine.queueing.lines import Line
from berthmaster.lib.lifecycle.bindings import gpu_milli_of
from berthmaster.lib.lifecycle.fold import Verdict
from berthmaster.lib.lifecycle.workload import Key, Workload, key
from berthmaster.lib.messages.api import Moved, Refusal, WhatifReply, WhatifRequest, WhyReply
from berthmaster.lib.messages.placement import Decision
from berthmaster.lib.messages.workload import JobRequest, Placed

AT_ONCE: Final = 64  # placements of one piece of work
MOST_PLACED: Final = 512  # by the change
MOST_RANKED: Final = 256  # maximum number of placements to rank again
MOST_LINES: Final = 256  # maximum number of job classes to examine for a possible cluster
TOLD: Final = 200  # entries of each list
Steps = Generator[None, None, WhatifReply | Refusal]
# Explains a job, from knowledge, tenant, id and available decisions.
Why = Callable[[Knowledge, str, str, Mapping[int, Decision]], WhyReply | Refusal]


class Budget:
    """Set by the caller to end the work early."""

    spent = False


class _Found(NamedTuple):
    """Result of the copy before or after the change."""

    placed: dict[Key, str]
    best: dict[Key, str]  # of live placements: where each would go; "" = nowhere
    hopeful: set[Key]  # pending jobs with a cluster that could take them some day


class Whatif:
    """One question. ``tenant``: tenant of the named workloads; None = all."""

    def __init__(
        self,
        know: Knowledge,
        policy: Policy,
        now_s: float,
        tenant: str | None,
        budget: Budget,
        why: Why,
    ) -> None:
        # Workloads are shared, because copying a hundred thousand takes too long. Changes on the
        # way use a copy of the single workload.
        self._know = fork(know, sharing=(Workload,))
        self._policy = replace(policy, commit_limit=min(policy.commit_limit, AT_ONCE))
        self._now_s = now_s
        self._tenant = tenant
        self._budget = budget
        self._explain = why
        self._decisions: dict[int, Decision] = {}
        self._capped: list[str] = []

    def steps(self, change: Change) -> Steps:
        """Run the steps and return the reply."""
        know = self._know
        watched = self._watched(change)
        lines = self._lines(change)
        base = decide(know, self._policy, self._now_s, "whatif")
        before = _Found(_placements(base), {}, set())
        if len(before.placed) >= self._policy.commit_limit:
            self._capped.append("many are about to be placed anyway: ask again when they are")
        yield
        yield from self._rank(watched, before)
        hopes_known = yield from self._hopes(lines, before)
        for fact in change.facts:
            know.take_fact(fact, know.view.fleet_sequence + 1, self._now_s)
        yield
        if change.control is not None:
            know.take_control(change.control, know.view.control_sequence + 1)
        if change.submitted is not None:
            event = change.submitted
            know.take_event(event, know.workloads_sequence + 1, self._now_s)
        after = _Found({}, {}, set())
        yield from self._rank(watched, after)  # before pending jobs take the capacity
        hopes_known &= yield from self._hopes(lines, after)
        yield from self._place(after)
        stranded = before.hopeful - after.hopeful - after.placed.keys() if hopes_known else set()
        return self._reply(change, before, after, sorted(stranded))

    # Data to compare

    def _watched(self, change: Change) -> list[Workload]:
        """Live placements whose best place the change may be about, the largest first."""
        live = (w for w in self._know.open.values() if w.live and w.request is not None)
        found = sorted(
            (w for w in live if change.concerns(w)), key=lambda w: (-gpu_milli_of(w), w.key)
        )
        self._cap(len(found), MOST_RANKED, "placements")
        return [copy(w) for w in found[:MOST_RANKED]]

    def _lines(self, change: Change) -> list[Line]:
        if not change.takes_away:
            return []
        lines = self._know.derived.lines.lines()
        self._cap(len(lines), MOST_LINES, "kinds of waiting jobs")
        return lines[:MOST_LINES]

    def _cap(self, number: int, limit: int, what: str) -> None:
        if number > limit:
            self._capped.append(f"{limit:,} of {number:,} {what} were looked at")

    # Pieces of work

    def _rank(self, watched: Sequence[Workload], found: _Found) -> Generator[None, None, None]:
        cycle = Cycle(self._know, self._policy, self._now_s)
        for workload in watched:
            if self._late("ranks"):
                return
            found.best[workload.key] = self._best(cycle, workload)
            yield

    def _best(self, cycle: Cycle, workload: Workload) -> str:
        """Return the cluster of a placement if decided again now, with its own capacity free."""
        know, request = self._know, workload.request
        assert request is not None
        with Overlay(know.fleet) as overlay:
            overlay.free(workload.key, know.fleet.holdings(workload.key))
            return _cluster_for(cycle, request)

    def _hopes(self, lines: Sequence[Line], found: _Found) -> Generator[None, None, bool]:
        """Find pending jobs that some cluster could take. Return whether all classes
        were examined.
        """
        cycle = Cycle(self._know, self._policy, self._now_s)
        for line in lines:
            if self._late("waiting jobs"):
                return False
            shortlist = cycle.shortlist(line.request, line.shape)
            if shortlist.candidates or BUSY in shortlist.filtered.values():
                found.hopeful.update(line.members)
            yield
        return True

    def _place(self, found: _Found) -> Generator[None, None, None]:
        """Place everything that the change allows, within limits."""
        know = self._know
        while len(found.placed) < MOST_PLACED:
            if self._late("placements"):
                return
            plan = decide(know, self._policy, self._now_s, "whatif")
            new = _placements(plan)
            if plan is None or not new:
                return
            self._decisions[plan.decision.number] = plan.decision
            for name in self._fold(plan):
                found.placed[name] = new[name]
            yield
        self._capped.append(f"the first {len(found.placed)} placements were looked at")

    def _fold(self, plan: Plan) -> Iterable[Key]:
        """Apply a plan to the copy. Return the applied placements."""
        know = self._know
        sequence = know.workloads_sequence + 1
        know.take_decision(plan.decision, sequence)
        whole = True
        for number, event in enumerate(plan.events, sequence + 1):
            name = key(event.tenant, event.id)
            know.open[name] = copy(know.open[name])
            verdict = know.take_event(event, number, self._now_s)
            if verdict is not Verdict.COUNTED:
                know.derived.lines.remove(name)  # changed during the experiment
                whole = False
            elif isinstance(event, Placed):
                yield name
        if whole:
            plan.was_stored()

    def _late(self, what: str) -> bool:
        if self._budget.spent:
            self._capped.append(f"it took too long: not all {what} were looked at")
        return self._budget.spent

    # The answer

    def _reply(
        self, change: Change, before: _Found, after: _Found, stranded: Sequence[Key]
    ) -> WhatifReply:
        event = change.submitted
        own = key(event.tenant, event.id) if event is not None else None
        placed = [n for n in after.placed if n not in before.placed and n != own]
        waits = [n for n in before.placed if n not in after.placed] if not self._capped else []
        lists = {
            "placed": [self._moved(n, "", after.placed[n]) for n in placed],
            "waits": [self._moved(n, before.placed[n], "") for n in waits],
            "elsewhere": self._elsewhere(change, before, after),
            "stranded": [self._moved(n, "", "") for n in stranded],
        }
        counts = {name: len(moved) for name, moved in lists.items() if moved}
        mine = {
            name: tuple(m for m in moved if self._tenant in (None, m.tenant))
            for name, moved in lists.items()
        }
        job = self._why(event.tenant, event.id) if event is not None else None
        return WhatifReply(
            change=change.words,
            summary=_summary(change, counts, job.summary if job is not None else ""),
            placed=mine["placed"][:TOLD],
            waits=mine["waits"][:TOLD],
            elsewhere=mine["elsewhere"][:TOLD],
            stranded=mine["stranded"][:TOLD],
            counts=counts,
            hidden=sum(counts.values()) - sum(map(len, mine.values())),
            capped=tuple(dict.fromkeys(self._capped)),
            job=job,
        )

    def _why(self, tenant: str, workload_id: str) -> WhyReply | None:
        answer = self._explain(self._know, tenant, workload_id, self._decisions)
        return answer if isinstance(answer, WhyReply) else None

    def _elsewhere(self, change: Change, before: _Found, after: _Found) -> list[Moved]:
        found = []
        for name, would in after.best.items():
            was = self._know.open[name].cluster if name in self._know.open else ""
            moves = change.takes_away or would != before.best.get(name, would)
            if moves and (would != was or change.node):
                found.append(self._moved(name, was, would))
        return found

    def _moved(self, name: Key, was: str, would: str) -> Moved:
        workload = self._know.open[name]
        request = workload.request
        return Moved(
            tenant=workload.tenant,
            id=workload.id,
            queue=request.queue if request is not None else "",
            gpus=gpu_milli_of(workload) / 1000,
            was=was,
            would=would,
        )


def whatif(
    know: Knowledge,
    policy: Policy,
    now_s: float,
    tenant: str | None,
    request: WhatifRequest,
    budget: Budget,
    why: Why,
) -> Steps:
    """Return the steps of the answer. The first step copies the knowledge, and no message arrives
    during a step.
    """
    moved = _moves(know, policy, now_s, tenant, request)
    if moved is not None:
        return moved
    change = change_of(know, now_s, tenant, request)
    if isinstance(change, Refusal):
        return change
    question = Whatif(know, policy, now_s, tenant, budget, why)
    yield
    return (yield from question.steps(change))


def _moves(
    know: Knowledge, policy: Policy, now_s: float, tenant: str | None, request: WhatifRequest
) -> WhatifReply | Refusal | None:
    """Answer drains, preemption and rebalancing; None for other or several questions."""
    if sum(getattr(request, name) is not None for name in KINDS) != 1:
        return None
    if request.drain is not None:
        return drained(know, policy, now_s, tenant, request.drain)
    if request.preempt is not None:
        return preempted(know, policy, now_s, tenant, request.preempt)
    if request.preempt_for is not None:
        return preempted(know, policy, now_s, tenant, request.preempt_for)
    if request.rebalance is not None:
        return rebalancing(know, policy, now_s, tenant, request.rebalance)
    return None


def _placements(plan: Plan | None) -> dict[Key, str]:
    choices = plan.decision.placements if plan is not None else ()
    return {key(choice.tenant, choice.id): choice.cluster for choice in choices}


def _cluster_for(cycle: Cycle, request: JobRequest) -> str:
    found = cycle.bind(request, cycle.shortlist(request))
    return found[0].cluster if found is not None else ""


_WORDS: Final = {
    "placed": "{} that {} would be placed now",
    "waits": "{} about to be placed would wait",
    "elsewhere": "{} would go elsewhere if placed anew",
    "stranded": "{} that {} would have no cluster left",
}


def _summary(change: Change, counts: dict[str, int], job: str) -> str:
    parts = [
        _WORDS[name].format(f"{count:,}", "waits" if count == 1 else "wait")
        for name, count in counts.items()
    ]
    parts = ([job] if job else []) + parts
    return f"{change.words}: {'; '.join(parts) or 'nothing would move'}"
