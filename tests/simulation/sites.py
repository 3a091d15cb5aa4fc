"""One worker cluster: its pods, its inventory, and the executor's core, driven as its shell does.

Orders to the cluster are carried out before anything else is heard; writes, reads and
acknowledgements leave afterwards. The pods outlive the executor: in a real cluster beside it, or,
where the emulator dies too, in its journal.
"""

import random
from typing import Final, assert_never

from berthmaster.bus.reporting import Coalescer
from berthmaster.emulator.cluster import EmulatedCluster
from berthmaster.emulator.disturbance import Nature
from berthmaster.emulator.fleets import ClusterSpec
from berthmaster.emulator.inventory import Reports, profile
from berthmaster.emulator.records import Record
from berthmaster.emulator.telemetry import NodeModel
from berthmaster.executor.cluster_protocol import (
    ClusterInstruction,
    CreatePods,
    DeletePods,
    PodEvent,
    ResizePods,
    StopPods,
)
from berthmaster.executor.core import Executor
from berthmaster.executor.events import Event, HintSeen, Tick
from berthmaster.executor.instructions import Acknowledge, Freeze, Instruction
from berthmaster.lifecycle.fold import fold_history
from berthmaster.lifecycle.instructions import Answered, Append, Outcome, Reload, Reloaded, Unknown
from berthmaster.lifecycle.workload import key
from berthmaster.messages.fleet import ClusterAlive, FleetFact, Stamp
from tests.simulation.bus import Bus, Consumer, Message, recorded
from tests.simulation.clockwork import Process
from tests.simulation.judge import Judge

REPORT_S: Final = 0.5
READ_AGAIN_S: Final = 1.0


class Site(Process):
    core_type: type[Executor] = Executor

    def __init__(self, bus: Bus, judge: Judge, spec: ClusterSpec, nature: Nature) -> None:
        super().__init__(bus.clock, f"site/{spec.name}")
        self.bus = bus
        self.judge = judge
        self.spec = spec
        self.nature = nature
        self.journal: list[Record] = []
        self.pods_die_with_it = False  # the process is the emulator: while it is down, time stands
        self.chance = random.Random(f"{nature.seed}/{spec.name}")
        self.cluster = EmulatedCluster(spec, nature, bus.clock.now_s)
        self._keep()
        self.core = self.core_type(spec.name)
        self.consumer = Consumer(bus, self, spec.name)
        self.consumer.take = self._on_hint
        bus.consumers.append(self.consumer)
        self._cluster_due_s = 0.0
        self._failures: dict[str, int] = {}

    def boot(self) -> None:
        if self.pods_die_with_it:
            self.cluster = EmulatedCluster(self.spec, self.nature, self.clock.now_s, self.journal)
            self.judge.watch(self.spec.name, self.cluster)
        self.cluster.advance(self.clock.now_s)
        self._keep()
        self.core = self.core_type(self.spec.name)
        self._hints: dict[int, int] = {}  # number -> sequence
        self._hint_number = 0
        self._tick_due_s = float("inf")
        self._failures = {}
        for event in self.cluster.found(self.core.name):
            self._hear(event)
        self._cluster_due_s = float("inf")
        self._arm_cluster()
        self.consumer.resume()
        self._begin_reports()

    # The executor

    def _on_hint(self, message: Message) -> None:
        if message.body.by == self.core.name:
            self.consumer.ack(message.sequence)
            return
        self._hint_number += 1
        self._hints[self._hint_number] = message.sequence
        self._handle(HintSeen(self._hint_number, message.body, message.sequence))

    def _hear(self, event: Event) -> None:
        self.feed(lambda: self._handle(event))

    def _handle(self, event: Event) -> None:
        steps = self.core.handle(event, self.now())
        self.judge.note(self.name, event)
        self.first([lambda s=step: self._perform(s) for step in steps])  # type: ignore[misc]
        self.feed(self._arm_tick)

    def _perform(self, step: Instruction) -> None:
        if isinstance(step, CreatePods) and self.trapped(lambda: self._perform(step)):
            return
        self.judge.note(self.name, step)
        match step:
            case CreatePods() | ResizePods() | StopPods() | DeletePods():
                if isinstance(step, CreatePods):
                    self.judge.on_create(self.spec.name, step, self.now())
                told = self.cluster.perform(self._by_its_clock(step), self.clock.now_s)
                self._keep()
                for event in told:
                    self._hear(event)
                self._arm_cluster()
                self._mark()
            case Append():
                self.feed(lambda: self._append(step))
            case Reload():
                self.feed(lambda: self._reload(step))
            case Acknowledge(hint):
                self.feed(lambda: self.consumer.ack(self._hints[hint]))
            case Freeze():
                self.judge.on_frozen(step)
            case _:
                assert_never(step)

    def _by_its_clock(self, step: ClusterInstruction) -> ClusterInstruction:
        """An executor and its cluster share a clock, right or wrong; here pods have their own."""
        if isinstance(step, CreatePods) and step.asked_at_s is not None:
            return step._replace(asked_at_s=step.asked_at_s - self.clock_error_s)
        return step

    def _append(self, step: Append) -> None:
        name = key(step.event.tenant, step.event.id)

        def done(outcome: Outcome) -> None:
            failures = self._failures.pop(name, 0)
            pause_s = 0.0
            if isinstance(outcome, Unknown):
                self._failures[name] = failures + 1
                pause_s = min(10.0, 0.1 * 2**failures)
            self.later(pause_s, lambda: self._handle(Answered(ref=step.ref, outcome=outcome)))

        if self.cut and self.chance.random() < 0.7:  # it has noticed: wait for the bus
            self.when_healed(lambda: self.feed(lambda: self._append(step)))
        else:
            self.bus.append(self, step.event, done)

    def _reload(self, step: Reload) -> None:
        asked_s = self.clock.now_s  # not later than whoever answers reads it

        def done(story: list[Message] | None) -> None:
            if story is None:
                self.later(
                    READ_AGAIN_S,
                    lambda: self.when_healed(lambda: self.feed(lambda: self._reload(step))),
                )
                return
            work, _ = fold_history(step.tenant, step.id, recorded(story))
            self._handle(Reloaded(ref=step.ref, workload=work if story else None, now_s=asked_s))

        self.bus.read(self, key(step.tenant, step.id), done)

    def _arm_tick(self) -> None:
        due_s = self.core.next_due_s
        if due_s is not None and due_s < self._tick_due_s:
            self._tick_due_s = due_s
            self.later(max(0.05, due_s - self.now()), self._tick)

    def _tick(self) -> None:
        self._tick_due_s = float("inf")
        self._handle(Tick())

    # The cluster

    def _keep(self) -> None:
        self.journal += self.cluster.take_journal()

    def _arm_cluster(self) -> None:
        due_s = self.cluster.next_due_s
        if due_s is not None and due_s < self._cluster_due_s:
            self._cluster_due_s = due_s
            self.clock.at(due_s, self._cluster_on_time)

    def _cluster_on_time(self) -> None:
        if self._cluster_due_s > self.clock.now_s or (self.pods_die_with_it and not self.up):
            return
        self._cluster_due_s = float("inf")
        events: list[PodEvent] = self.cluster.advance(self.clock.now_s)
        self._keep()
        for event in events:
            self.arrive(self.life, lambda e=event: self._handle(e))  # type: ignore[misc]
        self._arm_cluster()
        self._mark()

    # The inventory

    def _begin_reports(self) -> None:
        self._epoch = 0
        self._counter = 0
        self._sending = 0
        self._behind = True
        self._look_due = False
        self._reports = Reports(self.cluster.world)
        self._coalescer = Coalescer(REPORT_S, 100.0)
        self._models = [
            NodeModel(self.spec.name, node, self._reports.uuids(name), self.nature.seed)
            for name, node in self.cluster.world.nodes.items()
            if node.spec.gpus
        ]
        self._turn = 0
        self.later(0.01, self._choose_epoch)
        pace = self.bus.pace
        self.later(pace.alive_s * self.chance.random(), self._alive)
        self.later(pace.telemetry_s * self.chance.random(), self._measure)

    def _choose_epoch(self) -> None:
        if self.cut:
            self.later(self.bus.pace.retry_s, self._choose_epoch)
            return
        self._epoch = self.bus.epoch(f"{self.spec.name}/", self.now())
        fact = profile(self.spec, self._stamp(), self.now())
        self._put("profile", fact, lambda ok: None if ok else self._choose_epoch())
        self.cluster.take_dirty()
        self._coalescer.mark(dict.fromkeys(self.cluster.world.nodes, True))
        self._look()

    def _stamp(self) -> Stamp:
        self._counter += 1
        return Stamp(epoch=self._epoch, counter=self._counter)

    def _put(self, what: str, fact: FleetFact, done: "object") -> None:
        self.bus.put_fact(self, f"{self.spec.name}/{what}", fact, done)  # type: ignore[arg-type]

    def _mark(self) -> None:
        if self.up and self.cluster.world.dirty and not self._look_due:
            self._look_due = True
            self.later(0.02, self._look)

    def _look(self) -> None:
        self._look_due = False
        if not self._epoch or self._sending:
            return
        self._coalescer.mark(self.cluster.take_dirty())
        due = self._coalescer.due(self.now())
        failed = [False]
        self._sending = len(due)
        if not due:
            self._behind = False

        def done(node: str, ok: bool) -> None:
            self._sending -= 1
            if not ok:
                failed[0] = True
                self._coalescer.mark({node: True})
            if not self._sending:
                self._behind = failed[0]
                self._again(self.bus.pace.retry_s if failed[0] else REPORT_S)

        for node in due:
            fact = self._reports.report(node, self._stamp(), self.now())
            self._put(f"node/{node}", fact, lambda ok, n=node: done(n, ok))
        if not due and self._coalescer.pending:
            self._again(REPORT_S)

    def _again(self, delay_s: float) -> None:
        if not self._look_due:
            self._look_due = True
            self.later(delay_s, self._look)

    def _alive(self) -> None:
        self.later(self.bus.pace.alive_s, self._alive)
        if self._behind or self.cut or not self._epoch:
            return
        fact = ClusterAlive(
            cluster=self.spec.name,
            stamp=self._stamp(),
            observed_at_s=self.now(),
            interval_s=self.bus.pace.alive_s,
        )
        self._put("alive", fact, lambda _: None)

    def _measure(self) -> None:
        period_s = self.bus.pace.telemetry_s
        self.later(period_s, self._measure)
        self._turn += 1
        for model in self._models:
            told = model.telemetry(
                epoch=int(self.now() * 1000),
                counter=self._turn,
                now_s=self.now(),
                interval_s=period_s,
            )
            self.bus.publish(self, told)
