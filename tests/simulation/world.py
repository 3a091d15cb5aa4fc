"""One world from a seed: how it runs, and what must hold in the end."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from berthmaster.control.resolver.core.answers import explain
from berthmaster.control.resolver.core.resolver import Resolver
from berthmaster.control.resolver.replay import Inputs, Report, replay
from berthmaster.lib.lifecycle.choices import trial_in
from berthmaster.lib.lifecycle.states import LIVE, State
from berthmaster.lib.lifecycle.workload import Key, Workload, key
from berthmaster.lib.messages.api import WhyReply
from berthmaster.lib.messages.placement import Decision
from tests.simulation.bus import Message
from tests.simulation.clockwork import START_S
from tests.simulation.deciders import Decider
from tests.simulation.faults import KINDS
from tests.simulation.front import TENANT, Front
from tests.simulation.ground import Parts
from tests.simulation.judge import Broken, Finding
from tests.simulation.mirror import Mirror
from tests.simulation.misfortunes import Haunted
from tests.simulation.pace import FAST, Pace
from tests.simulation.seen import decided

SAME: Final = "every reader folds the same"
STORY_CHARS: Final = 420
LOOKS_IN_A_ROW: Final = 3
BEGINNING_S: Final = 60.0  # from a placement, an attempt has begun
TRIALS_S: Final = 30.0  # after a wait for trials, the gateway has ended the wait


class Outcome(NamedTuple):
    seed: int
    kinds: tuple[str, ...]
    finding: Finding | None
    steps: int
    passed_s: float  # virtual
    events: int
    decisions: int
    seen: dict[str, int]  # what happened, so that tests know that it does
    story: tuple[str, ...] = ()


class World(Haunted):
    def __init__(
        self,
        seed: int,
        without: Iterable[str] = (),
        parts: Parts = Parts(),  # noqa: B008
        pace: Pace = FAST,
    ) -> None:
        super().__init__(seed, without, parts, pace)
        self._overlooked: Counter[str] = Counter()
        self._people()
        self._misfortunes()
        self.clock.after(self.pace.readers_s, self._look_at_readers)

    def run(self) -> Outcome:
        """Until all is settled, or something is found."""
        finding: Finding | None = None
        try:
            while self.clock.now_s < self.calm_at_s + 1.0:  # something may strike late
                self.clock.run(self.calm_at_s + 1.0)
            limit_s = self.calm_at_s + self.pace.calm_s
            why = "not looked at"
            while self.clock.now_s < max(limit_s, self._longest_s()):
                self.clock.run(self.clock.now_s + self.pace.look_s)
                why = self.unsettled() or self._could_run()
                if not why:
                    break
            if why:
                self.judge.find("everything settles", why)
            self._check_readers()
            self._check_waiting()
            self._check_replay()
        except Broken as broken:
            (finding,) = broken.args
        return Outcome(
            seed=self.seed,
            kinds=self.faults.kinds,
            finding=finding,
            steps=self.clock.steps,
            passed_s=self.clock.now_s - START_S,
            events=len(self._all_messages()),
            decisions=sum(isinstance(m.body, Decision) for m in self._all_messages()),
            seen=self._seen(),
            story=tuple(self._story(finding)) if finding is not None else (),
        )

    def _seen(self) -> dict[str, int]:
        seen = Counter(type(m.body).__name__ for m in self._all_messages())
        seen.update({f"verdict {v.value}": n for v, n in self.judge.verdicts.items()})
        seen["misfortunes"] = len(self.plan)
        seen["lies"] = len(self.judge.lies)
        seen["doubtful"] = len(self.judge.doubtful)
        seen["refused commits"] = sum(d.refused for d in self.deciders)
        seen["deadline by the resolver"] = self.judge.resolver_deadlines
        seen["kills"] = sum(p.life - 1 for p in self.processes)
        seen["damages"] = self.damages
        seen["recoveries"] = self.recoveries
        seen["unrecovered"] = len(self.judge.unrecovered)
        seen.update({f"recovery: {outcome}": n for outcome, n in self.outcomes.items()})
        seen.update(decided(self._all_messages(), self.bus.control.messages))
        return dict(seen)

    def _all_messages(self) -> list[Message]:
        return [*self.bus.before, *self.bus.log.messages]

    def _story(self, finding: Finding) -> Iterator[str]:
        """The plan of faults, the events of the workloads concerned, the last steps."""
        yield f"seed {self.seed}: {finding.rule}, after {finding.at_s - START_S:.3f} s"
        yield finding.what[:STORY_CHARS]
        yield f"faults: {', '.join(self.faults.kinds)}"
        yield from sorted(self.plan)
        for name in dict.fromkeys(re.findall(r"job-\d+", finding.what)):
            yield f"the log on {name}:"
            for message in self._all_messages():
                if message.subject != key(TENANT, name):
                    continue
                at_s = message.stored_at_s - START_S
                yield f"{at_s:9.3f} {message.sequence:4} {str(message.body)[:STORY_CHARS]}"
        yield "the last steps:"
        for at_s, who, what in self.judge.recent:
            yield f"{at_s - START_S:9.3f} {who:10} {str(what)[:STORY_CHARS]}"

    # What must hold in the end

    def _longest_s(self) -> float:
        """How long those are waited for that are where they should be: some last for hours, and who
        has just lost a GPU begins anew elsewhere."""
        live = [work for work in self.judge.workloads.values() if work.state in LIVE]
        attempts = {(work.tenant, work.id, work.attempt) for work in live}
        groups = [g for site in self.sites for g in site.cluster.world.groups.values()]
        ends_s = [g.made.ends_s for g in groups if g.attempt in attempts]
        begin_s = [work.changed_at_s + BEGINNING_S for work in live]
        return max((*ends_s, *begin_s), default=0.0) + self.pace.look_s

    def unsettled(self) -> str:
        if self.judge.pending:
            return "the log is damaged"
        readers: list[Decider | Front] = [*self.deciders, self.front]
        for reader in readers:
            if not reader.up or reader.behind:
                return f"{reader.name} has not read all of the log"
        if self.person.unanswered:
            return f"{len(self.person.unanswered)} requests without an answer"
        for name in self.submitted:
            work = self.judge.workloads.get(name)
            if work is None:
                return f"{name} was submitted and is not in the log"
            if not work.ended and work.state is not State.QUEUED and not self._waits_in_parts(work):
                return f"{name} is {work.state} on {work.cluster}"
        for site in self.sites:
            for group in site.cluster.world.groups.values():
                return f"{site.spec.name} still has {group.attempt} ({group.phase})"
            if site.core.jobs:
                return f"the executor of {site.spec.name} has {site.core.jobs} jobs in hand"
        return ""

    def _waits_in_parts(self, job: Workload) -> bool:
        """Whether what is open of a divided job waits, as other jobs may (see _could_run)."""
        parts = [self.judge.workloads.get(key(job.tenant, part.id)) for part in job.parts]
        open_ = [part for part in parts if part is not None and not part.ended]
        return bool(open_) and all(part.state is State.QUEUED for part in open_)

    def _look_at_readers(self) -> None:
        """Now and then, at those who have read everything."""
        self._check_readers()
        self.clock.after(self.pace.readers_s, self._look_at_readers)

    def _check_readers(self) -> None:
        open_ = {
            name: work
            for name, work in self.judge.workloads.items()
            if not work.ended and work.state is not State.NEW
        }
        if self.judge.pending:
            return
        end = self.bus.log.end
        for decider in self.deciders:
            know = decider.core.know
            if decider.up and know.workloads_sequence == end and know.open != open_:
                self.judge.find(SAME, f"{decider.name}: {_differ(know.open, open_)}")
        front = self.front
        if front.read_to != end or not front.up:
            return
        view = {key(w.tenant, w.id): w for w in front.core.view.open_workloads()}
        if view != open_:
            self.judge.find(SAME, f"gateway: {_differ(view, open_)}")
        for name, work in self.judge.workloads.items():
            if self.front.core.view.has_ended(work.tenant, work.id) != work.ended:
                self.judge.find(SAME, f"gateway on {name}")

    def _could_run(self) -> str:
        """Who waits although a decider that begins anew would place it; "" if nobody does. Room may
        have come up just now; whoever could run at several looks in a row has been overlooked."""
        queued = [w for w in self.judge.workloads.values() if w.state is State.QUEUED]
        plan = self.fresh_resolver().decide(self.clock.now_s) if queued else None
        made = plan.decision if plan is not None else None
        found = [(each.tenant, each.id) for each in made.placements] if made is not None else []
        found += [(each.tenant, each.id) for each in made.divisions] if made is not None else []
        placed = {name for _, name in found}
        self._overlooked = Counter({name: self._overlooked[name] + 1 for name in placed})
        for name, looks in self._overlooked.items():
            if looks >= LOOKS_IN_A_ROW:
                self.judge.find("nobody waits who could run", f"{name}: {plan}")
        return f"{sorted(placed)} could run" if placed else ""

    def _check_waiting(self) -> None:
        for name, work in self.judge.workloads.items():
            if work.state is not State.QUEUED:
                continue
            core, now_s = self.deciders[0].core, self.clock.now_s
            why = explain.why(
                core.know,
                core.policy,
                now_s,
                work.tenant,
                work.id,
                core.decisions,
                blind=core.blind,
            )
            # Somebody's release was asked for too early, or got lost: then it says who holds it.
            if work.hold is not None and isinstance(why, WhyReply) and "held by" in why.summary:
                continue
            if isinstance(why, WhyReply) and " s more: " in why.summary:
                continue
            tries = isinstance(why, WhyReply) and "trials to have ended" in why.summary
            if tries and self._waits_for_trials(work):
                continue
            if not isinstance(why, WhyReply) or not (why.filtered or "queue" in why.summary):
                self.judge.find("who waits has a reason", f"{name}: {why}")

    def _waits_for_trials(self, job: Workload) -> bool:
        """Whether some trial is open, perhaps that of an equal job, or may still be submitted."""
        trial = trial_in(job.request) if job.request is not None else None
        works = self.judge.workloads.values()
        open_ = any(w.request and w.request.trial_of for w in works if not w.ended)
        since_s = self.clock.now_s - job.changed_at_s - TRIALS_S * self.pace.longer
        return open_ or (trial is not None and since_s <= trial.wait_s)

    def fresh_resolver(self) -> Resolver:
        """One that has read everything from the beginning."""
        fresh = Resolver("all", "resolver/fresh", self.policy)
        for message in self.bus.log.messages:
            if isinstance(message.body, Decision):
                fresh.on_decision(message.body, message.sequence)
            else:
                fresh.on_event(message.body, message.sequence, message.stored_at_s)
        mirror = Mirror(lambda m: fresh.on_fact(m.body, m.sequence, m.stored_at_s))
        for message in self.bus.fleet.messages:
            mirror.take(message)
        for message in self.bus.control.messages:
            fresh.on_control(message.body, message.sequence)
        return fresh

    def _check_replay(self) -> None:
        report = self.replay()
        if report.equal != report.decisions or report.not_repeatable:
            self.judge.find("a decision repeats bit for bit", str(report))

    def replay(self) -> Report:
        log = self.bus.log.messages
        return replay(
            Inputs(
                events=[
                    (m.sequence, m.stored_at_s, m.body)
                    for m in log
                    if not isinstance(m.body, Decision)
                ],
                decisions=[(m.sequence, m.body) for m in log if isinstance(m.body, Decision)],
                facts=[
                    (m.sequence, m.stored_at_s, m.subject, m.body) for m in self.bus.fleet.messages
                ],
                controls=[(m.sequence, m.body) for m in self.bus.control.messages],
                facts_from=1,
            ),
            "all",
        )


def _differ(mine: dict[Key, Workload], others: dict[Key, Workload]) -> str:
    """The first workload that is not what it is for others."""
    for name in sorted({*mine, *others}):
        one, other = mine.get(name), others.get(name)
        if one is None or other is None:
            return f"{name} is open: {one is not None}, and {other is not None}"
        fields = Workload.__struct_fields__
        differ = [field for field in fields if getattr(one, field) != getattr(other, field)]
        if differ:
            told = {field: (getattr(one, field), getattr(other, field)) for field in differ}
            return f"{name}: {told}"
    return "in another order"


def run(
    seed: int,
    without: Iterable[str] = (),
    parts: Parts = Parts(),  # noqa: B008
    pace: Pace = FAST,
) -> Outcome:
    return World(seed, without, parts, pace).run()


def reduced(outcome: Outcome, parts: Parts = Parts(), pace: Pace = FAST) -> Outcome:  # noqa: B008
    """The same finding with as few kinds of faults as leaving out one by one can tell."""
    rule = outcome.finding.rule if outcome.finding is not None else ""
    without: set[str] = set(KINDS) - set(outcome.kinds)
    for kind in outcome.kinds:
        fewer = run(outcome.seed, {*without, kind}, parts, pace)
        if fewer.finding is not None and fewer.finding.rule == rule:
            without.add(kind)
            outcome = fewer
    return outcome
