"""What-if: the effect of one change, on a copy of the knowledge.

The copy decides twice: as things are, and after receiving the change like any message. Example:
``whatif cordon`` of node n1 shows three jobs under ``elsewhere`` and one under ``stranded``. The
difference is the answer: newly placed jobs, jobs no longer placed, changed best clusters, and jobs
without any cluster left. The original is never changed.

Three questions name jobs that would be evicted or moved: draining a place (``drained``), making
room for one job (``preempted``) and rebalancing (``rebalancing``).

It is work in pieces, none longer than a group commit: the caller may decide in between, and may set
``Budget.spent`` to get what was found so far. A job that goes on meanwhile drops out.
"""

from collections.abc import Generator, Iterable, Sequence
from copy import copy
from typing import Final, NamedTuple

from msgspec.structs import replace

from berthmaster.control.resolver.core.answers import explain
from berthmaster.control.resolver.core.answers.fork import fork
from berthmaster.control.resolver.core.answers.suppositions import (
    KINDS,
    Change,
    change_of,
    refused,
    submission,
)
from berthmaster.control.resolver.core.deciding.cycle import Cycle
from berthmaster.control.resolver.core.deciding.decide import decide, rebalanced
from berthmaster.control.resolver.core.deciding.draft import Draft, Plan
from berthmaster.control.resolver.core.deciding.move_away import held_inside, why_there_still
from berthmaster.control.resolver.core.deciding.preemptor import (
    REFUSED,
    Evictions,
    Preemptor,
    why_evicted,
)
from berthmaster.control.resolver.core.deciding.rebalance import REBALANCED, Weighed
from berthmaster.control.resolver.core.known.knowledge import Knowledge
from berthmaster.control.resolver.policy import Policy
from berthmaster.lib.engine.fleet.fleet import Overlay
from berthmaster.lib.engine.fleetview.shortlist import BUSY
from berthmaster.lib.engine.queueing.lines import Line
from berthmaster.lib.lifecycle.fold import Verdict
from berthmaster.lib.lifecycle.pods import gpu_milli_of
from berthmaster.lib.lifecycle.workload import Key, Workload, key
from berthmaster.lib.messages.api import (
    DrainRequest,
    Ended,
    Moved,
    Rebalanced,
    RebalanceRequest,
    Refusal,
    WhatifReply,
    WhatifRequest,
    WhyReply,
)
from berthmaster.lib.messages.control import Cordon, QueueSetting
from berthmaster.lib.messages.placement import Decision
from berthmaster.lib.messages.workload import JobRequest, Placed

AT_ONCE: Final = 64  # placements of one piece of work
MOST_PLACED: Final = 512  # by the change
MOST_RANKED: Final = 256  # maximum number of placements to rank again
MOST_LINES: Final = 256  # maximum number of job classes to examine for a possible cluster
TOLD: Final = 200  # entries of each list
Steps = Generator[None, None, WhatifReply | Refusal]
MOST_REBALANCED = 32  # jobs that are looked at: each look tries some sets in some clusters
NODES_TOLD = 16  # maximum number of nodes shown for a job


def drained(
    know: Knowledge, policy: Policy, now_s: float, tenant: str | None, asked: DrainRequest
) -> WhatifReply | Refusal:
    """Return the moves of a drain now, and the jobs that would stay for now."""
    place = f"node {asked.node} of {asked.cluster}" if asked.node else asked.cluster
    known = {each.name for each in know.clusters.known() if each.profile is not None}
    if asked.cluster not in known:
        return refused("drain.cluster", asked.cluster, f"one of {', '.join(sorted(known)[:10])}")
    if asked.node is not None and know.fleet.node(asked.cluster, asked.node) is None:
        return refused("drain.node", asked.node, f"a node of {asked.cluster} that has reported")
    copy = fork(know, sharing=(Workload,))
    drain = Cordon(
        cluster=asked.cluster,
        node=asked.node,
        cordoned=True,
        drain=True,
        drain_by_s=asked.by_s,
        reason=asked.reason,
    )
    copy.take_control(drain, copy.view.control_sequence + 1)
    plan = decide(copy, policy, now_s, "whatif")
    orders = plan.decision.moves if plan is not None else ()
    gone = {key(each.tenant, each.id) for each in orders}
    ended = [
        _ended(copy.open[key(o.tenant, o.id)], o.lost_gpu_s, "room is kept elsewhere", o.to)
        for o in orders
    ]
    stay = [w for w in held_inside(copy, drain) if w.key not in gone]
    ended += [
        _ended(w, 0.0, why_there_still(copy, w, drain, now_s, policy.restart_s)) for w in stay
    ]
    cost = sum(order.lost_gpu_s for order in orders)
    summary = (
        f"drain {place}: {len(orders)} would move at once at a cost of {cost:,.0f} GPU seconds, "
        f"{len(stay)} would stay for now"
    )
    return _reply(f"drain {place}", summary, ended, cost, tenant)


def preempted(
    know: Knowledge,
    policy: Policy,
    now_s: float,
    tenant: str | None,
    asked: str | JobRequest,
) -> WhatifReply | Refusal:
    """Return the evictions for a pending job, or for a job that is not submitted."""
    owner = tenant or "default"
    copy = fork(know, sharing=(Workload,))
    if isinstance(asked, str):
        name = key(owner, asked)
        if copy.derived.lines.line_of(name) is None:
            right = "a workload of this tenant that waits for its place"
            return refused("preempt", asked, right + _instead(copy.open.get(name)))
    else:
        name = key(owner, asked.id)
        event = submission(copy, now_s, owner, asked, "preempt_for")
        if isinstance(event, Refusal):
            return event
        copy.take_event(event, copy.workloads_sequence + 1, now_s)
    found, why = _room_for(copy, policy, now_s, name)
    change = f"make room for {name.partition('/')[2]}"
    if found is None:
        return _reply(change, f"{change}: {why}", [], 0.0, tenant)
    ended = [
        _ended(copy.open[key(o.tenant, o.id)], o.lost_gpu_s, why_evicted(o), for_=name)
        for o in found.orders
    ]
    cost = sum(order.lost_gpu_s for order in found.orders)
    summary = (
        f"{change}: {len(ended)} would be ended in {found.reservation.cluster} at a cost of "
        f"{cost:,.0f} GPU seconds"
    )
    return _reply(change, summary, ended, cost, tenant)


def rebalancing(
    know: Knowledge, policy: Policy, now_s: float, tenant: str | None, asked: RebalanceRequest
) -> WhatifReply | Refusal:
    """Return the moves if all queues had the supposed setting of rebalancing."""
    if tenant is not None:
        return refused("rebalance", "", "to be asked by an operator, as it is about all tenants'")
    copy = fork(know, sharing=(Workload,))
    for queue in sorted(copy.derived.lines.by_queue()):
        setting = copy.queues.get(queue) or QueueSetting(queue=queue)
        setting = replace(setting, rebalances=asked.whose)
        copy.take_control(setting, copy.view.control_sequence + 1)
    supposed = replace(
        policy,
        rebalance_moves=asked.moves or policy.rebalance_moves,
        rebalance_after_s=policy.rebalance_after_s if asked.after_s is None else asked.after_s,
    )
    if not supposed.rebalance_moves:
        right = "a number from 1 to 64, as the resolver is set to move nobody"
        return refused("rebalance.moves", "", right)
    weighed, kept = rebalanced(copy, supposed, now_s, MOST_REBALANCED)
    ended = [
        replace(
            _ended(copy.open[victim.key], victim.lost_gpu_s, REBALANCED, place.cluster, for_=w.key),
            nodes=_nodes(binding.node for binding in copy.open[victim.key].pods),
            to_nodes=_nodes(held.node for held in kept[victim.key].held),
        )
        for w in weighed
        if w.moves is not None
        for victim, place in w.moves.moved
    ]
    told = [_rebalanced(copy.open[w.key], w) for w in weighed]
    begin = sum(not each.why_not for each in told)
    cost = sum(each.cost_gpu_s for each in told)
    gain = sum(each.gain_gpu_s for each in told if not each.why_not)
    summary = (
        f"rebalance: {len(ended)} would move so that {begin} could begin, at a cost of {cost:,.0f} "
        f"GPU seconds for {gain:,.0f} of waiting; for {len(told) - begin} more nothing would move"
    )
    reply = _reply("rebalance", summary, ended, cost, tenant)
    told.sort(key=lambda each: bool(each.why_not))  # stable sort, keeps the order of turns
    return replace(reply, rebalances=tuple(told[:TOLD]))


def _rebalanced(workload: Workload, weighed: Weighed) -> Rebalanced:
    moves, request = weighed.moves, workload.request
    told = Rebalanced(
        tenant=workload.tenant,
        id=workload.id,
        queue=request.queue if request is not None else "",
        gpus=gpu_milli_of(workload) / 1000,
        waited_s=round(weighed.waited_s, 3),
        why_not=weighed.why_not,
    )
    if moves is None:
        return told
    return replace(
        told,
        cluster=moves.found.cluster,
        nodes=_nodes(binding.node for binding in moves.found.bound.bindings),
        moves=len(moves.moved),
        saves_s=round(moves.worth.saves_s, 3),
        gain_gpu_s=round(moves.worth.gain_gpu_s, 3),
        cost_gpu_s=round(moves.found.cost, 3),
    )


def _nodes(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names))[:NODES_TOLD])


def _instead(workload: Workload | None) -> str:
    """Describe the state of a workload that is not pending."""
    if workload is None:
        return ""
    if workload.hold is not None:
        return f"; this one is held by {workload.hold.who}"
    return f"; this one is {workload.state}"


def _room_for(
    know: Knowledge, policy: Policy, now_s: float, name: Key
) -> tuple[Evictions | None, str]:
    """Search victims as a decision would at this job's turn."""
    cycle = Cycle(know, policy, now_s)
    with Draft(cycle, "whatif", anew=True) as draft:
        turns = draft.begin()
        while (turn := turns.next()) is not None and turn.key != name:
            if turn.key in know.retried:
                turns.skipped()
            else:
                turns.passed()
        if turn is None:
            return None, "others that ask for the same go before it"
        request = know.open[name].request
        if turn.right.refusal or request is None:
            return None, turn.right.refusal
        if cycle.bind(request, cycle.shortlist(request)) is not None:
            return None, "nobody need be ended: there is room for it"
        if name in know.retried:
            return None, REFUSED
        with draft.reservations.only(draft.reservations.others(name)):
            found = Preemptor(cycle).search(turn, request, turn.line.shape)
        return (found, "") if isinstance(found, Evictions) else (None, "nobody may be ended for it")


def _ended(workload: Workload, lost: float, why: str, to: str = "", *, for_: str = "") -> Ended:
    request = workload.request
    return Ended(
        tenant=workload.tenant,
        id=workload.id,
        queue=request.queue if request is not None else "",
        cluster=workload.cluster,
        gpus=gpu_milli_of(workload) / 1000,
        lost_gpu_s=round(lost, 3),
        why=why,
        to=to,
        for_id=for_,
    )


def _reply(
    change: str, summary: str, ended: Iterable[Ended], cost: float, tenant: str | None
) -> WhatifReply:
    listed = sorted(ended, key=lambda each: (not each.to, each.lost_gpu_s, each.tenant, each.id))
    mine = [each for each in listed if tenant in (None, each.tenant)]
    return WhatifReply(
        change=change,
        summary=summary,
        ended=tuple(mine[:TOLD]),
        lost_gpu_s=round(cost, 3),
        hidden=len(listed) - len(mine),
    )


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
    ) -> None:
        # Workloads are shared, because copying a hundred thousand takes too long. Changes on the
        # way use a copy of the single workload.
        self._know = fork(know, sharing=(Workload,))
        self._policy = replace(policy, commit_limit=min(policy.commit_limit, AT_ONCE))
        self._now_s = now_s
        self._tenant = tenant
        self._budget = budget
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
        known, policy = self._know, self._policy
        answer = explain.why(known, policy, self._now_s, tenant, workload_id, self._decisions)
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
    question = Whatif(know, policy, now_s, tenant, budget)
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
