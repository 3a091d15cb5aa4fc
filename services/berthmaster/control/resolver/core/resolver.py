"""The resolver's core: messages in, decisions and other events out.

``Resolver.on_event`` and its siblings take messages, ``act`` returns the next commit, and
``on_outcome`` takes the result. Example: decision 12 is sent, so ``pending`` is set, and nothing is
decided. Its messages come back through the log as 931 to 934. After 934 the next decision may
follow.

Rules of this file:

- Only messages change knowledge. A stored commit comes back through the log like any other message,
  and until then nothing new is decided.
- A decision and its events are one batch and arrive one by one. Nothing is decided in between: the
  guard of the chain would pass, while the batch's capacity is not known yet.
- After a refused commit, another writer's message is missing. Wait for the message and decide
  again. Without such a message, see lifecycle.refusals.
- The resolver ends divided jobs after their parts, and parts without a cluster.
- The resolver ends claimed attempts in two cases only: an operator declared the cluster lost, or
  the job's deadline passed in a silent cluster. Silence alone ends nothing, and neither does a fast
  local clock: message time stamps must be past the deadline too. A requeued workload with a cancel
  request is cancelled here.
"""

from collections import OrderedDict

import msgspec

from berthmaster.control.resolver.core.deciding.decide import decide
from berthmaster.control.resolver.core.deciding.division import gathers_until_s, part_endings
from berthmaster.control.resolver.core.deciding.draft import Plan
from berthmaster.control.resolver.core.deciding.move_away import next_look_s
from berthmaster.control.resolver.core.deciding.preemptor import next_equals_s
from berthmaster.control.resolver.core.deciding.rebalance import next_stuck_s
from berthmaster.control.resolver.core.deciding.resize import grows_at_s
from berthmaster.control.resolver.core.known.knowledge import Knowledge
from berthmaster.control.resolver.policy import Policy
from berthmaster.lib.engine.fleet.clusters import LOST
from berthmaster.lib.lifecycle.commits import Commits
from berthmaster.lib.lifecycle.fold import Verdict
from berthmaster.lib.lifecycle.instructions import Append, Outcome, Refused, Stored
from berthmaster.lib.lifecycle.workload import Key, Workload, key
from berthmaster.lib.messages.control import ControlFact
from berthmaster.lib.messages.fleet import FleetFact
from berthmaster.lib.messages.placement import Decision
from berthmaster.lib.messages.workload import (
    Cancelled,
    Evicted,
    Failed,
    Held,
    HoldReleased,
    MoveRequested,
    Released,
    Reprioritized,
    Submitted,
    WorkloadEvent,
)

STIRRING = Submitted | Released | Reprioritized | Held | HoldReleased | MoveRequested
LOOK_AGAIN_S = 1.0  # at a deadline that passed by our clock and not yet by the server's messages
BALANCE_EVERY_S = 10.0  # minimum interval between two searches for rebalancing
BALANCE_SELDOM_S = 320.0  # and where nobody could, and no room came up since, after twice as long
CHOICES_KEPT = 10_000  # records at hand for "why", some kilobytes each; others are in the log


class Resolver:
    """One replica of a cell's resolver. Its shell knows whether it may decide."""

    def __init__(self, cell: str, name: str, policy: Policy) -> None:
        self.cell = cell
        self.name = name
        self.policy = policy
        self.know = Knowledge(cell)
        self.decisions: OrderedDict[int, Decision] = OrderedDict()
        self._choices = 0  # placements in those decisions
        self.commits = Commits[Plan]()
        self._appending: dict[str, tuple[Key, int]] = {}  # with the event that it follows
        self._ended_at_s = float("-inf")  # when endings were looked for last
        self._decided_at_s = float("-inf")  # when something to decide was looked for last
        self._balanced_at_s = float("-inf")  # time of the last search for rebalancing
        self._balance_pause_s = BALANCE_EVERY_S  # doubled after each search without a result
        self._balanced_growth = -1  # capacity generation at that search
        self._looked_at = -1  # capacity generation at the last decision without a result
        self._arrived = False  # something queued since then
        self.blind = ""  # why this replica must not decide at all

    # Events

    def on_event(
        self,
        event: WorkloadEvent,
        sequence: int,
        stored_at_s: float,
        *,
        void: bool = False,
    ) -> Verdict | None:
        """Apply an event of the log in order. ``void``: its content is another workload's."""
        verdict = self.know.take_event(event, sequence, stored_at_s, void=void)
        if verdict is Verdict.COUNTED and (
            isinstance(event, STIRRING) or key(event.tenant, event.id) in self.know.parts
        ):
            self._arrived = True
        return verdict

    def on_unreadable(self, tenant: str, workload_id: str, sequence: int, why: str) -> None:
        """Freeze the workload of an undecodable event."""
        self.know.freeze(tenant, workload_id, sequence, why)

    def on_unreadable_decision(self, sequence: int, why: str) -> None:
        """Stop deciding: a newer resolver wrote a decision that this version cannot read."""
        self.know.workloads_sequence = max(self.know.workloads_sequence, sequence)
        self.blind = self.blind or why

    def on_decision(self, decision: Decision, sequence: int) -> None:
        """A decision of the log, ours or another's."""
        self.know.take_decision(decision, sequence)
        if decision.cell == self.cell:
            self.commits.saw(decision, sequence)
        self.remember(decision)

    def remember(self, decision: Decision) -> None:
        """Keep a decision at hand for questions, and let go of the oldest."""
        self.decisions[decision.number] = decision
        self._choices += len(decision.placements)
        while self._choices > CHOICES_KEPT and len(self.decisions) > 1:
            _, oldest = self.decisions.popitem(last=False)
            self._choices -= len(oldest.placements)

    def on_fact(self, fact: FleetFact, sequence: int, stored_at_s: float) -> None:
        self.know.take_fact(fact, sequence, stored_at_s)

    def on_control(self, fact: ControlFact, sequence: int) -> None:
        self.know.take_control(fact, sequence)

    def on_outcome(self, outcome: Outcome, log_end: int) -> None:
        """Apply the result of the pending plan: see ``Commits.came``."""
        plan = self.commits.came(outcome, log_end)
        if plan is not None and isinstance(outcome, Stored):
            plan.was_stored()

    def on_appended(self, ref: str, outcome: Outcome) -> None:
        """Apply the result of an Append. After a refusal, the fold brings the earlier event."""
        name, sequence = self._appending.pop(ref, (None, 0))
        if name is not None and isinstance(outcome, Refused):
            self.commits.refusals.suspend(name, sequence, self._ended_at_s)

    # Actions

    @property
    def behind(self) -> bool:
        """Return whether stored messages are not folded yet."""
        return self.commits.is_behind(self.know.workloads_sequence)

    @property
    def stirred(self) -> bool:
        """Whether something changed since the last look that found nothing to decide."""
        return self._arrived or self.know.derived.growth != self._looked_at

    def on_too_large(self, now_s: float) -> Append | None:
        """A message of the pending plan is too large: see ``Refusals.too_large``."""
        _, event = self.commits.was_too_large(self.know.open, self.name, now_s)
        if event is None:
            return None
        return Append(ref=f"ending/{key(event.tenant, event.id)}/{event.after}", event=event)

    def prepare(self) -> None:
        """Prepare the fleet's arrays before the first decision: more than a second for 100,000 new
        nodes, almost nothing without changes.
        """
        self.know.lay_out()

    def decide(self, now_s: float) -> Plan | None:
        """The next commit, or None if there is nothing to decide, or not now."""
        if self.commits.pending is not None or self.behind or self.blind:
            return None
        self._decided_at_s = now_s
        know, refusals, policy = self.know, self.commits.refusals, self.policy
        refusals.look(know.chain.sequence, know.open, now_s)
        know.suspend(refusals.suspended(now_s), refusals.retried(now_s))
        if refusals.limit is not None:
            policy = msgspec.structs.replace(policy, commit_limit=refusals.limit)
        balance = now_s >= self._balances_at_s()
        plan = self.commits.pending = decide(know, policy, now_s, self.name, balance=balance)
        if balance and (plan is None or plan.decision.rebalances):
            self._balanced(now_s, in_vain=plan is None)
        if plan is None:
            self._arrived = False
            self._looked_at = know.derived.growth
        return plan

    def _balanced(self, now_s: float, *, in_vain: bool) -> None:
        """Record a search for rebalancing."""
        growth = self.know.derived.growth
        is_new = next_stuck_s(self.know, self.policy, self._balanced_at_s) <= now_s
        if in_vain and growth == self._balanced_growth and not is_new:
            self._balance_pause_s = min(2.0 * self._balance_pause_s, BALANCE_SELDOM_S)
        else:
            self._balance_pause_s = BALANCE_EVERY_S
        self._balanced_at_s, self._balanced_growth = now_s, growth

    def _balances_at_s(self) -> float:
        """Return the time of the next search: soon after new capacity or a newly stuck job,
        otherwise with growing pauses.
        """
        soon_s = self._balanced_at_s + BALANCE_EVERY_S
        if self.know.derived.growth != self._balanced_growth:
            return soon_s
        seldom_s = self._balanced_at_s + self._balance_pause_s
        if seldom_s <= soon_s:
            return soon_s
        return min(seldom_s, max(soon_s, next_stuck_s(self.know, self.policy, self._balanced_at_s)))

    def endings(self, now_s: float) -> list[Append]:
        """Endings that are ours to write, each asked for once until answered."""
        self._ended_at_s = now_s
        appends = []
        busy = {name for name, _ in self._appending.values()} | self.commits.refusals.suspended(
            now_s
        )
        for workload, reason in self._overdue(now_s):
            if workload.key in busy:
                continue
            ref = f"ending/{workload.key}/{workload.sequence}"
            self._appending[ref] = workload.key, workload.sequence
            appends.append(Append(ref=ref, event=self._ending(workload, reason, now_s)))
            busy.add(workload.key)
        for workload, event in part_endings(self.know, self.policy, now_s, self.name):
            if workload.key not in busy:
                ref = f"ending/{workload.key}/{workload.sequence}"
                self._appending[ref] = workload.key, workload.sequence
                appends.append(Append(ref=ref, event=event))
        return appends

    def _overdue(self, now_s: float) -> list[tuple[Workload, str]]:
        know = self.know
        found = [
            (work, work.reason if work.after_eviction == "end" else "cancelled by request")
            for work in map(know.open.__getitem__, sorted(know.derived.to_cancel))
        ]
        for cluster in know.clusters.known():
            if cluster.lost:
                found += [
                    (know.open[name], f"cluster {LOST}")
                    for name in sorted(know.derived.held.get(cluster.name, ()))
                ]
        sure_s = min(
            now_s, know.view.heard_s
        )  # our clock may be ahead, the server's messages are not
        for name, over_at_s in know.derived.deadlines.items():
            workload = know.open[name]
            cluster = know.clusters.peek(workload.cluster)
            silent = sure_s - cluster.alive_at_s > self.policy.stale_after_s
            if silent and not cluster.lost and sure_s > over_at_s + self.policy.deadline_grace_s:
                found.append((workload, "its deadline passed in a silent cluster"))
        return found

    def _ending(self, workload: Workload, reason: str, now_s: float) -> WorkloadEvent:
        common = {
            "tenant": workload.tenant,
            "id": workload.id,
            "after": workload.sequence,
            "at_s": now_s,
            "by": self.name,
            "cluster": workload.cluster,
            "attempt": workload.attempt,
            "reason": reason,
        }
        last = {"digest": workload.digest, "submitted_at_s": workload.submitted_at_s}
        if workload.cancel_requested:
            return Cancelled(**common, **last)  # type: ignore[arg-type]
        limit = workload.request.max_evictions if workload.request is not None else 0
        if workload.evictions >= limit:
            return Failed(**common, **last)  # type: ignore[arg-type]
        return Evicted(**common)  # type: ignore[arg-type]

    def wake_at_s(self) -> float:
        """When time alone will change something: an unclaimed placement, a pause, a deadline."""
        know, policy = self.know, self.policy
        times = [self.commits.refusals.next_s(), self._grows_at_s(), *know.derived.resting.values()]
        again_s = self._ended_at_s + LOOK_AGAIN_S  # if no message is as new as our clock says
        times.append(gathers_until_s(know, policy, self._decided_at_s, again_s))
        oldest = next(iter(know.derived.unclaimed.values()), None)
        if oldest is not None:
            times.append(oldest + policy.claim_timeout_s)
        over_s = (
            c.unclaimed_at_s + policy.avoid_s
            for c in know.clusters.known()
            if c.unclaimed_at_s is not None and know.derived.lines
        )
        times += [at_s for at_s in over_s if at_s > self._decided_at_s]  # past times were handled
        if know.view.drains:
            times.append(next_look_s(know, policy.restart_s, self._decided_at_s))
        times.append(next_equals_s(know, policy, self._decided_at_s))
        stuck_s = next_stuck_s(know, policy)
        if stuck_s < float("inf"):
            times.append(max(stuck_s, self._balances_at_s(), self._decided_at_s + LOOK_AGAIN_S))
        for name, at_s in know.derived.deadlines.items():
            cluster = know.clusters.peek(know.open[name].cluster)
            silent_at_s = cluster.alive_at_s + policy.stale_after_s
            times.append(max(at_s + policy.deadline_grace_s, silent_at_s, again_s))
        return min(times)

    def _grows_at_s(self) -> float:
        """Return when the next attempt may grow."""
        derived, after_s = self.know.derived, self.policy.grow_after_s
        soonest_s = float("inf")
        for name in derived.elastic.names():
            workload = self.know.open[name]
            quiet_s = derived.placed_at_s.get(workload.cluster, 0.0) + after_s
            at_s = max(grows_at_s(workload, after_s), quiet_s)
            if self._decided_at_s < at_s < soonest_s:  # past times were handled
                soonest_s = at_s
        return soonest_s
