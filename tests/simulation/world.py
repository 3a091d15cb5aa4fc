"""One world from a seed: clusters, services, people, faults; how it runs, and what must hold."""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from berthmaster.emulator.disturbance import Nature
from berthmaster.emulator.fleets import ClusterSpec, NodeSpec
from berthmaster.executor.core import Executor
from berthmaster.gateway.core import Gateway
from berthmaster.lifecycle.fold import Key, key
from berthmaster.lifecycle.states import State
from berthmaster.messages.api import ApiReply, Refusal, SubmitReply, WhyReply
from berthmaster.messages.placement import Decision
from berthmaster.resolver.core import Resolver
from berthmaster.resolver.replay import Inputs, Report, replay
from tests.simulation.bus import Bus
from tests.simulation.clockwork import START_S, Clockwork, Process
from tests.simulation.deciders import POLICY, Decider
from tests.simulation.faults import Faults
from tests.simulation.front import TENANT, Front, Person
from tests.simulation.judge import Broken, Finding, Judge
from tests.simulation.mirror import Mirror
from tests.simulation.scoring import Scoring
from tests.simulation.sites import Site

MODELS: Final = ("T4", "A10")
SAME: Final = "every reader folds the same"
STORY_CHARS: Final = 420
LOOK_S: Final = 20.0
LOOKS_IN_A_ROW: Final = 3
READERS_S: Final = 3.0
CALM_S: Final = 1500.0  # after the last fault, by then everything must have settled


class Parts(NamedTuple):
    """The cores to be tested; tests put broken ones in."""

    executor: type[Executor] = Executor
    resolver: type[Resolver] = Resolver
    gateway: type[Gateway] = Gateway


class Outcome(NamedTuple):
    """What became of one seed."""

    seed: int
    kinds: tuple[str, ...]
    finding: Finding | None
    steps: int
    passed_s: float  # virtual
    events: int
    decisions: int
    seen: dict[str, int]  # what happened, so that tests know that it does
    story: tuple[str, ...] = ()


class World:
    """Everything that one seed has."""

    def __init__(self, seed: int, without: Iterable[str] = (), parts: Parts = Parts()) -> None:  # noqa: B008
        self.seed = seed
        self.chance = random.Random(f"{seed}/world")
        self.faults = Faults(seed, without)
        self.clock = Clockwork()
        self.judge = Judge(self.clock)
        self.bus = Bus(self.clock, seed, self.faults)
        self.bus.on_stored = self.judge.on_stored
        self.plan: list[str] = []
        self._overlooked: Counter[str] = Counter()
        self.calm_at_s = START_S + self.chance.choice((60.0, 150.0, 300.0))
        self.sites = [self._site(number, parts) for number in range(self.chance.choice((2, 3, 4)))]
        self.deciders = [Decider(self.bus, f"resolver-{n}") for n in (1, 2)]
        for decider in self.deciders:
            decider.core_type = parts.resolver
        self.front = Front(self.bus, self.judge)
        self.front.core_type = parts.gateway
        self.scoring = Scoring(self.bus)
        self.processes: list[Process] = [
            *self.sites,
            *self.deciders,
            self.front,
            self.scoring,
        ]
        # Those whose misfortunes matter most are hit most often.
        self.targets = [*self.processes, *self.sites, *self.deciders]
        self.person = Person(self.bus, self.front, self.judge, seed)
        self.submitted: dict[Key, str] = {}
        self._people()
        self._misfortunes()

    # What there is

    def _site(self, number: int, parts: Parts) -> Site:
        chance = self.chance
        name = f"c{number + 1}"
        model = MODELS[number % 2]
        nodes = tuple(
            NodeSpec(f"n{n + 1}", 32_000, 131_072, chance.choice((1, 2, 4)), model)
            for n in range(chance.choice((1, 2, 3)))
        )
        has = self.faults.has
        nature = Nature(
            seed=self.seed * 10 + number,
            failure_share=0.15 if has("pods_fail") else 0.0,
            start_delay_s=chance.choice((0.0, 0.0, 3.0)),
            foreign_share=0.25 if has("foreign") else 0.0,
            foreign_duration_s=60.0,
            gpu_deaths_per_hour=8.0 if has("gpus_die") else 0.0,
            gpu_repair_s=60.0,
            node_flaps_per_hour=20.0 if has("nodes_flap") else 0.0,
            flap_s=20.0,
        )
        site = Site(self.bus, self.judge, ClusterSpec(name, "eu", nodes), nature)
        site.core_type = parts.executor
        self.judge.watch(name, site.cluster)
        return site

    # People

    def _people(self) -> None:
        chance = self.chance
        span_s = self.calm_at_s - START_S
        for number in range(chance.choice((4, 8, 16))):
            body = self._request(number)
            at_s = START_S + span_s * 0.8 * chance.random()
            self.clock.at(at_s, lambda b=body: self._submit(b))  # type: ignore[misc]
            self._wishes(str(body["id"]), at_s, span_s)
        self._orders(span_s)

    def _request(self, number: int) -> dict[str, object]:
        chance = self.chance
        deadline_s = self.faults.dice("deadlines").choice((None, 20.0, 60.0))
        shapes: tuple[dict[str, object], ...] = (
            {"gpus": 1},
            {"gpus": 1},
            {"gpus": 2},
            {"gpus": 1, "gpu_milli": 500},
            {"gpus": 1, "gpu_milli": 300},
            {"gpus": 1, "count": 2},
            {"gpus": 2, "count": 2},
            {"cpu_milli": 8000},
            {"gpus": 1, "gpu_models": ["T4"]},
            {"gpus": 8},
        )
        body: dict[str, object] = {
            "id": f"job-{number}",
            "pod_sets": [chance.choice(shapes)],
            "priority": chance.choice((0, 0, 5)),
            "expected_duration_s": chance.choice((2.0, 15.0, 50.0, 120.0)),
            "max_evictions": chance.choice((0, 1, 3, 10)),
        }
        queue = chance.choice(("default", "team"))
        if self.faults.has("queues"):
            body["queue"] = queue
        if self.faults.has("deadlines") and deadline_s is not None:
            body["deadline_s"] = deadline_s
        if chance.random() < 0.1:
            body["clusters"] = ["c1"]
        return body

    def _submit(self, body: dict[str, object]) -> None:
        name = key(TENANT, str(body["id"]))

        def then(reply: ApiReply) -> None:
            if isinstance(reply, SubmitReply):
                self.submitted[name] = "accepted"
                if name not in self.judge.workloads:
                    self.judge.find("none is lost", f"accepted and not in the log: {reply}")
            elif isinstance(reply, Refusal) and reply.field == "queue":
                self.clock.after(2.0, lambda: self._submit(body))  # it is being made
            else:
                self.judge.find("a good request is accepted", str(reply))

        self.submitted.setdefault(name, "asked")
        self.person.ask("submit", body, then=then)

    def _wishes(self, name: str, at_s: float, span_s: float) -> None:
        for kind, share in (("cancel", 0.3), ("reprioritize", 0.3)):
            dice = self.faults.dice(kind)
            if not self.faults.has(kind) or dice.random() > share:
                continue
            when_s = at_s + span_s * 0.3 * dice.random()
            for _ in range(dice.choice((1, 1, 3))):
                body: dict[str, object] = {"id": name}
                if kind == "reprioritize":
                    body["priority"] = dice.choice((-5, 0, 9))
                self.clock.at(when_s, lambda k=kind, b=body: self._wish(k, b))  # type: ignore[misc]
                when_s += dice.choice((0.0, 0.01, 3.0))

    def _wish(self, verb: str, body: dict[str, object]) -> None:
        if verb == "cancel":
            self.judge.cancels.add(key(TENANT, str(body["id"])))
        self.person.ask(verb, body)

    def _orders(self, span_s: float) -> None:
        ask = self.person.ask
        if self.faults.has("queues"):
            dice = self.faults.dice("queues")
            for share in (0.0, dice.random(), dice.random()):
                setting: dict[str, object] = {
                    "queue": "team",
                    "priority": dice.choice((0, 5)),
                    "held": share > 0 and dice.random() < 0.3,
                    "capability_gpu_milli": dice.choice((None, 2000, 8000)),
                }
                setting = {"type": "control.queue.v1"} | setting
                self.clock.at(
                    START_S + span_s * share,
                    lambda s=setting: ask("queue", s, operator=True),  # type: ignore[misc]
                )
        for kind, on, off in (("cordon", "cordon", "uncordon"), ("lost", "lost", "found")):
            dice = self.faults.dice(kind)
            if not self.faults.has(kind):
                continue
            for _ in range(dice.choice((1, 2))):
                site = dice.choice(self.sites)
                body: dict[str, object] = {"cluster": site.spec.name, "reason": "a person says so"}
                if kind == "cordon" and dice.random() < 0.5:
                    body["node"] = "n1"
                began_s = START_S + span_s * dice.random()
                lasts_s = span_s * 0.5 * dice.random()
                self._misfortune(began_s, kind, site, lasts_s)
                self.clock.at(began_s, lambda b=body, v=on: ask(v, b, operator=True))  # type: ignore[misc]
                self.clock.at(
                    began_s + lasts_s,
                    lambda b=body, v=off: ask(v, b, operator=True),  # type: ignore[misc]
                )
                self.calm_at_s = max(self.calm_at_s, began_s + lasts_s)

    # Misfortunes

    def _misfortune(self, at_s: float, kind: str, process: Process, lasts_s: float) -> None:
        self.plan.append(f"{at_s - START_S:8.2f} {kind} {process.name} for {lasts_s:.2f} s")

    def _misfortunes(self) -> None:
        for process in self.processes:
            self.clock.at(START_S + self.chance.random(), process.start)
        span_s = self.calm_at_s - START_S
        for kind in ("crash", "pause", "partition", "two_deciders", "bus_away", "clocks"):
            dice = self.faults.dice(kind)
            if not self.faults.has(kind):
                continue
            for _ in range(dice.choice((2, 4, 8)) if kind != "bus_away" else 1):
                process = dice.choice(self.targets)
                at_s = START_S + span_s * dice.random()
                lasts_s = dice.choice((0.5, 5.0, 30.0, 120.0, 300.0)) * dice.random()
                if kind == "partition" and dice.random() < 0.03:
                    lasts_s = 7200.0
                self.calm_at_s = max(self.calm_at_s, at_s + lasts_s)
                self._misfortune(at_s, kind, process, lasts_s)
                begin = getattr(self, f"_begin_{kind}")
                self.clock.at(at_s, lambda b=begin, p=process, s=lasts_s: b(p, s))  # type: ignore[misc]
        self.clock.at(self.calm_at_s + 0.01, self._calm)
        self.clock.after(READERS_S, self._look_at_readers)

    def _soon(self, process: Process, fault: Callable[[], None], kind: str) -> None:
        """In the middle of what it does next, or just before what matters most."""
        if isinstance(process, Site | Decider) and self.faults.dice(kind).random() < 0.4:
            process.trap = fault
            return
        process.fuse = (self.faults.dice(kind).choice((0, 1, 2, 3, 5)), fault)

    def _begin_crash(self, process: Process, lasts_s: float) -> None:
        if isinstance(process, Site):
            process.pods_die_with_it = self.faults.dice("crash").random() < 0.5
        if not process.up:
            return

        def die() -> None:
            self.judge.note("fate", f"{process.name} is killed")
            process.kill()
            self.clock.after(lasts_s, again)

        def again() -> None:
            if not process.up:
                self.judge.note("fate", f"{process.name} starts")
                process.start()

        self._soon(process, die, "crash")

    def _begin_pause(self, process: Process, lasts_s: float) -> None:
        if isinstance(process, Site) and self.faults.has("deadlines"):
            # An order to create pods names how long they may run from when it is carried out. One
            # that stands still for longer than the grace just before would outlive its deadline.
            lasts_s = min(lasts_s, POLICY.deadline_grace_s / 2)

        def stop() -> None:
            self.judge.note("fate", f"{process.name} stands still")
            process.pause()
            life = process.life
            self.clock.after(lasts_s, lambda: process.wake() if process.life == life else None)

        self._soon(process, stop, "pause")

    def _begin_partition(self, process: Process, lasts_s: float) -> None:
        self.judge.note("fate", f"{process.name} is cut off")
        process.cut = True
        self.clock.after(lasts_s, process.heal)

    def _begin_bus_away(self, process: Process, lasts_s: float) -> None:
        for each in self.processes:
            self._begin_partition(each, lasts_s)

    def _begin_two_deciders(self, process: Process, lasts_s: float) -> None:
        for decider in self.deciders:
            decider.ignores_lease = True

        def over() -> None:
            for decider in self.deciders:
                decider.ignores_lease = False

        self.clock.after(lasts_s, over)

    def _begin_clocks(self, process: Process, lasts_s: float) -> None:
        process.clock_error_s = self.faults.dice("clocks").choice((-300.0, -20.0, 20.0, 300.0))

        def right() -> None:
            process.clock_error_s = 0.0

        self.clock.after(lasts_s, right)

    def _calm(self) -> None:
        """Faults are over; what was hit recovers."""
        self.faults.quiet = True
        self.judge.note("fate", "no more faults")
        for process in self.processes:
            process.fuse = process.trap = None
            process.clock_error_s = 0.0
            process.heal()
            if process.paused:
                process.wake()
            if not process.up:
                process.start()
        for site in self.sites:
            site.pods_die_with_it = False
        for decider in self.deciders:
            decider.ignores_lease = False
        for site in self.sites:
            if self.faults.has("lost"):
                body: dict[str, object] = {"cluster": site.spec.name, "reason": "over"}
                self.person.ask("found", body, operator=True)

    # The run

    def run(self) -> Outcome:
        """Until all is settled, or something is found."""
        finding: Finding | None = None
        try:
            self.clock.run(self.calm_at_s + 1.0)
            limit_s = self.calm_at_s + CALM_S
            why = "not looked at"
            while self.clock.now_s < limit_s:
                self.clock.run(self.clock.now_s + LOOK_S)
                why = self.unsettled() or self._could_run()
                if not why:
                    break
            if why:
                self.judge.find("everything settles", why)
            for reader in (
                *(d.core.know.workloads_sequence for d in self.deciders),
                self.front.read_to,
            ):
                if reader != self.bus.log.end:
                    self.judge.find(SAME, f"one has read to {reader} of {self.bus.log.end}")
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
            events=self.bus.log.end,
            decisions=sum(isinstance(m.body, Decision) for m in self.bus.log.messages),
            seen=self._seen(),
            story=tuple(self._story(finding)) if finding is not None else (),
        )

    def _seen(self) -> dict[str, int]:
        seen = Counter(type(m.body).__name__ for m in self.bus.log.messages)
        seen.update({f"verdict {v.value}": n for v, n in self.judge.verdicts.items()})
        seen["doubtful"] = len(self.judge.doubtful)
        seen["refused commits"] = sum(d.refused for d in self.deciders)
        seen["deadline by the resolver"] = self.judge.resolver_deadlines
        seen["kills"] = sum(p.life - 1 for p in self.processes)
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

    def unsettled(self) -> str:
        """What is still under way, or ""."""
        if self.person.unanswered:
            return f"{len(self.person.unanswered)} requests without an answer"
        for name in self.submitted:
            work = self.judge.workloads.get(name)
            if work is None:
                return f"{name} was submitted and is not in the log"
            if not work.ended and work.state is not State.QUEUED:
                return f"{name} is {work.state} on {work.cluster}"
        for site in self.sites:
            for group in site.cluster.world.groups.values():
                return f"{site.spec.name} still has {group.attempt} ({group.phase})"
            if site.core.jobs:
                return f"the executor of {site.spec.name} has {site.core.jobs} jobs in hand"
        return ""

    def _look_at_readers(self) -> None:
        """Now and then, at those who have read everything."""
        self._check_readers()
        self.clock.after(READERS_S, self._look_at_readers)

    def _check_readers(self) -> None:
        """Every reader folds the same."""
        open_ = {n: w for n, w in self.judge.workloads.items() if not w.ended}
        end = self.bus.log.end
        for decider in self.deciders:
            know = decider.core.know
            if know.workloads_sequence == end and know.open != open_:
                self.judge.find(SAME, f"{decider.name}: {know.open} is not {open_}")
        if self.front.read_to != end:
            return
        view = {key(w.tenant, w.id): w for w in self.front.core.view.open_workloads()}
        if view != open_:
            self.judge.find(SAME, f"gateway: {view} is not {open_}")
        for name, work in self.judge.workloads.items():
            if self.front.core.view.has_ended(work.tenant, work.id) != work.ended:
                self.judge.find(SAME, f"gateway on {name}")

    def _could_run(self) -> str:
        """Who waits although a decider that begins anew would place it; "" if nobody does. Room may
        have come up just now; whoever could run at several looks in a row has been overlooked."""
        queued = [w for w in self.judge.workloads.values() if w.state is State.QUEUED]
        plan = self.fresh_resolver().decide(self.clock.now_s) if queued else None
        placed = {choice.id for choice in plan.decision.placements} if plan is not None else set()
        self._overlooked = Counter({name: self._overlooked[name] + 1 for name in placed})
        for name, looks in self._overlooked.items():
            if looks >= LOOKS_IN_A_ROW:
                self.judge.find("nobody waits who could run", f"{name}: {plan}")
        return f"{sorted(placed)} could run" if placed else ""

    def _check_waiting(self) -> None:
        """Who waits has a reason."""
        for name, work in self.judge.workloads.items():
            if work.state is not State.QUEUED:
                continue
            why = self.deciders[0].core.why(work.tenant, work.id, self.clock.now_s)
            if not isinstance(why, WhyReply) or not (why.filtered or "queue" in why.summary):
                self.judge.find("who waits has a reason", f"{name}: {why}")

    def fresh_resolver(self) -> Resolver:
        """One that has read everything from the beginning."""
        fresh = Resolver("all", "resolver/fresh", POLICY)
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
        """All decisions, repeated."""
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


def run(seed: int, without: Iterable[str] = (), parts: Parts = Parts()) -> Outcome:  # noqa: B008
    """One seed."""
    return World(seed, without, parts).run()


def reduced(outcome: Outcome, parts: Parts = Parts()) -> Outcome:  # noqa: B008
    """The same finding with as few kinds of faults as leaving out one by one can tell."""
    rule = outcome.finding.rule if outcome.finding is not None else ""
    without: set[str] = set()
    for kind in outcome.kinds:
        fewer = run(outcome.seed, {*without, kind}, parts)
        if fewer.finding is not None and fewer.finding.rule == rule:
            without.add(kind)
            outcome = fewer
    return outcome
