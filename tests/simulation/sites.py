"""One worker cluster: its pods, its inventory, and the executor's core, driven as its shell does.

Orders to the cluster are carried out before anything else is heard; writes, reads and
acknowledgements leave afterwards. The pods outlive the executor: in a real cluster beside it, or,
where the emulator dies too, in its journal.
"""

import random
from typing import Final, assert_never

from berthmaster.lab.emulator.cluster import EmulatedCluster
from berthmaster.lab.emulator.disturbance import Nature
from berthmaster.lab.emulator.fleets import ClusterSpec
from berthmaster.lab.emulator.inventory import Reports, profile
from berthmaster.lab.emulator.records import Record
from berthmaster.lab.emulator.telemetry import NodeModel
from berthmaster.lib.door_client.client import LIST_EVERY_S
from berthmaster.lib.door_client.raw_replies import RawTake
from berthmaster.lib.lifecycle.instructions import (
    Answered,
    Append,
    Outcome,
    Reload,
    Reloaded,
    Stored,
    Unknown,
)
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Workload, key
from berthmaster.lib.messages.door import OwnWorkload, StoryReply, StoryRequest, TakeRequest
from berthmaster.lib.messages.families import EVENTS
from berthmaster.lib.messages.fleet import ClusterAlive, FleetFact, Stamp
from berthmaster.lib.messages.workload import Placed
from berthmaster.lib.nats.reporting import Coalescer
from berthmaster.worker.executor.core.cluster_protocol import (
    ClusterInstruction,
    CreatePods,
    DeletePods,
    PodEvent,
    ResizePods,
    StopPods,
)
from berthmaster.worker.executor.core.events import (
    Acknowledge,
    Event,
    Freeze,
    HintSeen,
    Instruction,
    Listed,
    Tick,
)
from berthmaster.worker.executor.core.executor import Executor
from tests.simulation.bus import Bus
from tests.simulation.clockwork import Process
from tests.simulation.doorway import Doorway
from tests.simulation.judge import Judge

REPORT_S: Final = 0.5
ASK_AGAIN_S: Final = 1.0
LOST_ANSWER_S: Final = 2.0
NO_HINT: Final = 0  # nobody waits to hear what was acted on


class Site(Process):
    core_type: type[Executor] = Executor

    def __init__(
        self, bus: Bus, judge: Judge, spec: ClusterSpec, nature: Nature, door: Doorway
    ) -> None:
        super().__init__(bus.clock, f"site/{spec.name}")
        self.bus = bus
        self.judge = judge
        self.door = door
        self.spec = spec
        self.nature = nature
        self.journal: list[Record] = []
        self.pods_die_with_it = False  # the process is the emulator: while it is down, time stands
        self.chance = random.Random(f"{nature.seed}/{spec.name}")
        self.cluster = EmulatedCluster(spec, nature, bus.clock.now_s)
        self._keep()
        self.core = self.core_type(spec.name)
        self._cluster_due_s = 0.0
        self._failures: dict[str, int] = {}

    def boot(self) -> None:
        if self.pods_die_with_it:
            self.cluster = EmulatedCluster(self.spec, self.nature, self.clock.now_s, self.journal)
            self.judge.watch(self.spec.name, self.cluster)
        self.cluster.advance(self.clock.now_s)
        self._keep()
        self.core = self.core_type(self.spec.name)
        self._tick_due_s = float("inf")
        self._failures = {}
        for event in self.cluster.found(self.core.name):
            self._hear(event)
        self._cluster_due_s = float("inf")
        self._arm_cluster()
        self._log_name = ""
        self._seen = self._cursor = self._polls = 0
        self._list_again()
        self.on_heal = self._list
        self._begin_reports()

    def lose_all(self) -> None:
        """The cluster is gone with all that ran there, and another comes in its place."""
        self.kill()
        self.journal = []
        self.cluster = EmulatedCluster(self.spec, self.nature, self.clock.now_s)
        self._keep()
        self.judge.watch(self.spec.name, self.cluster)
        self.start()

    # The executor

    def _list_again(self) -> None:
        self.later(LIST_EVERY_S * self.bus.pace.longer, self._list_again)
        self._list()

    def _list(self) -> None:
        """Ask for all that is open here."""
        self._cursor = 0
        self._poll()

    def _poll(self) -> None:
        """Ask the door for what is new; an answer to an earlier question does not count."""
        self._polls += 1
        life, number = self.life, self._polls
        request = TakeRequest(after=self._cursor, log=self._log_name)

        def taken(reply: RawTake | None) -> None:
            if number != self._polls:
                return
            if reply is None:
                self.later(ASK_AGAIN_S, lambda: self._poll() if number == self._polls else None)
            else:
                self._on_taken(reply)

        def answer(reply: RawTake | None) -> None:
            def arrive() -> None:
                if not self.cut:
                    self.arrive(life, lambda: taken(reply))

            self.clock.after(self.bus.delay_s(), arrive)

        def ask() -> None:
            if not self.cut:  # it asks anew when it is not any more
                self.door.take(self.spec.name, request, answer)

        self.clock.after(self.bus.delay_s(), ask)

    def _on_taken(self, reply: RawTake) -> None:
        """As lib/door_client/client.py and worker/executor/shell.py do it."""
        renewed = self._log_name not in ("", reply.log)
        self._log_name = reply.log
        if renewed:
            self._seen = 0
        self._cursor = reply.cursor
        self._seen = max(self._seen, reply.cursor)
        hints = [(EVENTS.decode(hint.event), hint) for hint in reply.hints]
        heard: list[Event] = []
        for event, hint in hints:
            if event.by != self.core.name:
                seen = HintSeen(NO_HINT, event, hint.sequence, hint.receipt)
                heard += [seen] * (2 if self.bus.faults.happens("repeat", 0.2) else 1)
        if reply.reset:
            named = [(key(e.tenant, e.id), isinstance(e, Placed) and not h.held) for e, h in hints]
            open_ = frozenset(name for name, _ in named)
            unheld = frozenset(name for name, is_unheld in named if is_unheld)
            heard.append(Listed(open_, reply.cursor, unheld, renewed))
        self.first([lambda e=each: self._handle(e) for each in heard])  # type: ignore[misc]
        self._poll()

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
            case Acknowledge():
                pass  # the next list names it again for as long as it is open
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
            if isinstance(outcome, Stored):
                self._seen = max(self._seen, outcome.sequence)
            if isinstance(outcome, Unknown):
                self._failures[name] = failures + 1
                pause_s = min(10.0, 0.1 * 2**failures)
            self.later(pause_s, lambda: self._handle(Answered(ref=step.ref, outcome=outcome)))

        if self.cut and self.chance.random() < 0.7:  # it has noticed: wait for the bus
            self.when_healed(lambda: self.feed(lambda: self._append(step)))
        else:
            self.bus.append(
                self, step.event, done, check=lambda: self.door.refuses(self.spec.name, step.event)
            )

    def _reload(self, step: Reload) -> None:
        request = StoryRequest(
            tenant=step.tenant, id=step.id, after=self._seen, receipt=step.receipt
        )
        asked_s = self.clock.now_s  # not later than whoever answers reads it
        life = self.life

        def done(found: StoryReply | None) -> None:
            if found is None:
                self.later(
                    ASK_AGAIN_S,
                    lambda: self.when_healed(lambda: self.feed(lambda: self._reload(step))),
                )
                return
            work = _folded(found.workload) if found.workload is not None else None
            read = Reloaded(
                ref=step.ref,
                workload=work,
                failed=found.failed,
                receipt=found.receipt,
                why=found.why,
                now_s=asked_s,
            )
            self._handle(read)

        def arrive() -> None:
            lost = self.cut or self.bus.faults.happens("unknown", 0.1)
            found = None if lost else self.door.story(self.spec.name, request)
            wait_s = LOST_ANSWER_S if lost else self.bus.delay_s()
            self.clock.after(wait_s, lambda: self.arrive(life, lambda: done(found)))

        self.clock.after(self.bus.delay_s(), arrive)

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


def _folded(own: OwnWorkload) -> Workload:
    fields = {name: getattr(own, name) for name in OwnWorkload.__struct_fields__}
    return Workload(**fields | {"state": State(own.state)})
