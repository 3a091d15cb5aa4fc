"""One world from a seed: how it runs, and what must hold in the end."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from berthmaster.lifecycle.flaws import LOST
from berthmaster.lifecycle.fold import Verdict, is_given_up, judged_story
from berthmaster.lifecycle.states import LIVE, State
from berthmaster.lifecycle.workload import Key, Workload, key
from berthmaster.logcheck.guard import BEGIN_AFTER, RECOVERY_S
from berthmaster.messages.api import WhyReply
from berthmaster.messages.control import LogAccepted
from berthmaster.messages.placement import Decision
from berthmaster.resolver.core import Resolver
from berthmaster.resolver.replay import Inputs, Report, replay
from tests.simulation.bus import Message, recorded
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
            self._check_losses()
        except Broken as broken:
            (finding,) = broken.args
        return Outcome(
            seed=self.seed,
            kinds=self.faults.kinds,
            finding=finding,
            steps=self.clock.steps,
            passed_s=self.clock.now_s - START_S,
            events=self.bus.log.end,
            decisions=sum(isinstance(m.body, Decision) for m in self.bus.log.messages),
            seen=self._seen(),
            story=tuple(self._story(finding)) if finding is not None else (),
        )

    def _seen(self) -> dict[str, int]:
        seen = Counter(type(m.body).__name__ for m in self.bus.log.messages)
        seen.update({f"verdict {v.value}": n for v, n in self.judge.verdicts.items()})
        seen["misfortunes"] = len(self.plan)
        seen["lies"] = len(self.judge.lies)
        seen["doubtful"] = len(self.judge.doubtful)
        seen["refused commits"] = sum(d.refused for d in self.deciders)
        seen["deadline by the resolver"] = self.judge.resolver_deadlines
        seen["kills"] = sum(p.life - 1 for p in self.processes)
        seen["damages"] = len(self.damages)
        seen["damages noticed"] = sum(each.known for each in self.damages)
        seen["forgotten"] = len(self.judge.forgotten)
        seen["told as lost"] = len(self.judge.told_lost)
        seen["frozen"] = len(self.judge.frozen)
        seen["recovered"] = self.judge.recovered
        seen["given up"] = sum(
            is_given_up(m.body) for m in self.bus.log.messages if not isinstance(m.body, Decision)
        )
        seen.update(decided(self.bus.log.messages, self.bus.control.messages))
        return dict(seen)

    def _story(self, finding: Finding) -> Iterator[str]:
        """The plan of faults, the events of the workloads concerned, the last steps."""
        yield f"seed {self.seed}: {finding.rule}, after {finding.at_s - START_S:.3f} s"
        yield finding.what[:STORY_CHARS]
        yield f"faults: {', '.join(self.faults.kinds)}"
        yield from sorted(self.plan)
        for name in dict.fromkeys(re.findall(r"job-\d+", finding.what)):
            yield f"the log on {name}:"
            for message in self.bus.stories.get(key(TENANT, name), ()):
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
        if self.damage_is_pending() and self.damages[-1].known:
            return f"damage is not accepted: {self.damages[-1]}"
        readers: list[Decider | Front] = [*self.deciders, self.front]
        for reader in readers:
            if not reader.reads_as_others or reader.behind:
                return f"{reader.name} has not read all of the log as it is now"
        if self.person.unanswered:
            return f"{len(self.person.unanswered)} requests without an answer"
        for name in self.submitted:
            work = self.judge.workloads.get(name)
            if name in self.judge.forgotten and (work is None or work.state is State.NEW):
                continue  # see _check_losses
            if work is None:
                return f"{name} was submitted and is not in the log"
            if name in self.judge.frozen and self.damage_is_pending():
                continue  # nothing that could tell of it was looking
            if name in self.judge.frozen:
                return f"{name} is frozen, and nobody gave it up"
            if name in self.judge.forgotten and self._is_unnoticed():
                continue  # its end is lost, and its executor has done with it
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

    def _is_unnoticed(self) -> bool:
        """Whether the log has lost what nobody had read who could say that it was there."""
        return self.damage_is_pending() and not self.damages[-1].known

    def _look_at_readers(self) -> None:
        """Now and then, at those who have read everything."""
        self._check_readers()
        self.clock.after(self.pace.readers_s, self._look_at_readers)

    def _check_readers(self) -> None:
        open_ = {
            name: work
            for name, work in self.judge.workloads.items()
            if not work.ended and work.state is not State.NEW and name not in self.judge.frozen
        }
        unsure = {
            name
            for name in self.judge.forgotten
            if name in self.judge.frozen or self.judge.was_lied_of(name)
        }
        open_ = {name: work for name, work in open_.items() if name not in unsure}
        if self.damage_is_pending():
            return  # some know what the log has no more
        end = self.bus.log.end
        for decider in self.deciders:
            know = decider.core.know
            if know.workloads_sequence != end or not decider.reads_as_others:
                continue
            mine = {name: work for name, work in know.open.items() if name not in unsure}
            if mine != open_:
                self.judge.find(SAME, f"{decider.name}: {_differ(mine, open_)}")
        front = self.front
        if front.read_to != end or front.core.in_doubt or not front.reads_as_others:
            return
        view = {key(w.tenant, w.id): w for w in front.core.view.open_workloads()}
        view = {name: work for name, work in view.items() if name not in unsure}
        if view != open_:
            self.judge.find(SAME, f"gateway: {_differ(view, open_)}")
        for name, work in self.judge.workloads.items():
            if name in unsure:
                continue
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
        lied_of = {n for n in self.judge.forgotten if self.judge.was_lied_of(n)}
        placed = {name for tenant, name in found if key(tenant, name) not in lied_of}
        self._overlooked = Counter({name: self._overlooked[name] + 1 for name in placed})
        for name, looks in self._overlooked.items():
            if looks >= LOOKS_IN_A_ROW:
                self.judge.find("nobody waits who could run", f"{name}: {plan}")
        return f"{sorted(placed)} could run" if placed else ""

    def _check_waiting(self) -> None:
        for name, work in self.judge.workloads.items():
            if work.state is not State.QUEUED or name in self.judge.frozen:
                continue
            why = self.deciders[0].core.why(work.tenant, work.id, self.clock.now_s)
            # Somebody's release was asked for too early, or got lost: then it says who holds it.
            if work.hold is not None and isinstance(why, WhyReply) and "held by" in why.summary:
                continue
            if isinstance(why, WhyReply) and " s more: " in why.summary:
                continue
            if not isinstance(why, WhyReply) or not (why.filtered or "queue" in why.summary):
                self.judge.find("who waits has a reason", f"{name}: {why}")

    def fresh_resolver(self) -> Resolver:
        """One that has read everything from the beginning."""
        fresh = Resolver("all", "resolver/fresh", self.policy)
        stories: dict[str, list[Message]] = {}
        for message in self.bus.log.messages:
            if isinstance(message.body, Decision):
                fresh.on_decision(message.body, message.sequence)
            else:
                story = stories.setdefault(message.subject, [])
                story.append(message)
                at = message.sequence, message.stored_at_s
                if fresh.on_event(message.body, *at) is Verdict.MISSED:
                    told = message.body.tenant, message.body.id
                    _, verdicts = judged_story(*told, recorded(story), self.bus.is_lost)
                    if Verdict.MISSED in verdicts:
                        fresh.on_unreadable(*told, message.sequence, LOST)
                        continue
                    for one, verdict in zip(story, verdicts, strict=True):
                        fresh.on_event(one.body, one.sequence, one.stored_at_s, verdict)
        mirror = Mirror(lambda m: fresh.on_fact(m.body, m.sequence, m.stored_at_s))
        for message in self.bus.fleet.messages:
            mirror.take(message)
        for message in self.bus.control.messages:
            fresh.on_control(message.body, message.sequence)
        return fresh

    def _check_losses(self) -> None:
        """Nothing is lost in silence: whoever was known to be open and is not there was named."""
        for name in self.judge.known_lost:
            work = self.judge.workloads.get(name)
            gone = work is None or work.state is State.NEW
            if gone and name not in self.judge.told_lost and not self.judge.was_lied_of(name):
                self.judge.find("nothing is lost in silence", name)

    def _check_replay(self) -> None:
        report = self.replay()
        if self.judge.harmed:  # what decisions before were made on is lost
            acceptances = [
                m.sequence for m in self.bus.control.messages if isinstance(m.body, LogAccepted)
            ]
            made = [m for m in self.bus.log.messages if isinstance(m.body, Decision)]
            # One that was under way when the log lost something may be stored after the acceptance,
            # and who has heard of that goes on with what it had read until it looks. Who begins by
            # what is left waits longer.
            begin_s = self.bus.accepted_at_s + BEGIN_AFTER * RECOVERY_S
            knew = [
                m.stored_at_s >= begin_s and m.body.saw.control >= acceptances[-1]
                for m in made
                if acceptances
            ]
            report = self.replay(last=sum(knew))
            # By a clock that is behind one seems to be from before the first that is left.
            lacking = report.not_repeatable and not self.faults.has("clocks")
            if report.equal != report.repeated or lacking:
                self.judge.find("a decision repeats bit for bit", str(report))
            return
        if report.equal != report.decisions or report.not_repeatable:
            self.judge.find("a decision repeats bit for bit", str(report))

    def replay(self, last: int | None = None) -> Report:
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
            last=last,
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
