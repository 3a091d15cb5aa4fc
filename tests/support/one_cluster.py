"""One executor, one emulated cluster and a log in memory, driven by hand in virtual time.

No event loop, no clock: whoever uses it moves ``now_s``, loses answers, kills and restarts.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from berthmaster.lab.emulator.cluster import EmulatedCluster
from berthmaster.lab.emulator.disturbance import Nature
from berthmaster.lab.emulator.fleets import ClusterSpec, NodeSpec
from berthmaster.lab.emulator.records import DECODER, ENCODER, Record
from berthmaster.lib.lifecycle.fold import Verdict, offer
from berthmaster.lib.lifecycle.instructions import (
    Answered,
    Append,
    Outcome,
    Refused,
    Reload,
    Reloaded,
    Stored,
    Unknown,
)
from berthmaster.lib.lifecycle.workload import Key, Workload, key, request_digest
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import (
    CancelRequested,
    JobRequest,
    Placed,
    ResizeRequested,
    Submitted,
    WorkloadEvent,
)
from berthmaster.worker.executor.core.cluster_protocol import (
    CreatePods,
    DeletePods,
    ResizePods,
    StopPods,
)
from berthmaster.worker.executor.core.events import (
    Acknowledge,
    Event,
    Freeze,
    Hint,
    HintSeen,
    Instruction,
    Tick,
)
from berthmaster.worker.executor.core.executor import Executor
from berthmaster.worker.executor.core.limits import Limits

TENANT = "acme"
NODES = (NodeSpec("n1", 64_000, 262_144, 8, "T4"), NodeSpec("n2", 64_000, 262_144, 8, "T4"))
SPEC = ClusterSpec("berlin", "eu-central", NODES)


class Log:
    """The aggregates, with guards, as the bus has them."""

    def __init__(self) -> None:
        self.sequence = 0
        self.stories: dict[Key, list[tuple[int, WorkloadEvent]]] = {}
        self.unreadable: set[Key] = set()

    def append(self, event: WorkloadEvent, now_s: float = 0.0) -> Outcome:
        story = self.stories.setdefault(key(event.tenant, event.id), [])
        last = story[-1][0] if story else 0
        if event.after != last:
            return Refused(last)
        self.sequence += 1
        story.append((self.sequence, event))
        verdict = offer(self.load(event.id, until=last), event, self.sequence, now_s)
        assert verdict is Verdict.COUNTED, f"{event} is {verdict}"
        return Stored(self.sequence)

    def load(self, name: str, until: int | None = None) -> Workload:
        workload = Workload(tenant=TENANT, id=name)
        for sequence, event in self.stories.get(key(TENANT, name), []):
            if until is None or sequence <= until:
                offer(workload, event, sequence, event.at_s)
        return workload

    def kinds(self, name: str) -> list[str]:
        return [type(event).__name__ for _, event in self.stories[key(TENANT, name)]]

    def last(self, name: str) -> WorkloadEvent:
        return self.stories[key(TENANT, name)][-1][1]


def answer_all(instruction: Append | Reload) -> str:
    """The bus in good health; others say "lost" (stored, answer lost) or "away"."""
    del instruction
    return "good"


@dataclass
class Play:
    """A cluster with its executor, each of whose steps may be its last: see ``kill_after``."""

    nature: Nature = field(default_factory=Nature)
    limits: Limits = field(default_factory=Limits)
    log: Log = field(default_factory=Log)
    now_s: float = 1000.0
    bus: Callable[[Append | Reload], str] = answer_all
    kill_after: int | None = None  # instructions that the present executor will carry out

    def __post_init__(self) -> None:
        self.journal: list[bytes] = []
        self.hints: dict[int, tuple[Hint, int]] = {}  # not acknowledged
        self.hint_number = 0
        self.frozen: list[Freeze] = []
        self.performed: list[Instruction] = []
        self.retries: list[Append | Reload] = []
        self.restart()

    # The world

    def restart(self) -> None:
        """kill -9 of the executor's process: only the journal and the log remain."""
        records: list[Record] = [DECODER.decode(line) for line in self.journal]
        self.cluster = EmulatedCluster(SPEC, self.nature, self.now_s, records)
        self.cluster.advance(self.now_s)
        self._keep()
        self.executor = Executor(SPEC.name, limits=self.limits)
        self.inbox: deque[Event] = deque(self.cluster.found(self.executor.name))
        self.retries.clear()
        for hint, (event, sequence) in self.hints.items():
            self.inbox.append(HintSeen(hint, event, sequence))

    def _keep(self) -> None:
        self.journal += [ENCODER.encode(record) for record in self.cluster.take_journal()]

    def at(self, now_s: float) -> None:
        """Let time pass until then, one event after the other."""
        while True:
            self.run()
            due = [d for d in (self.cluster.next_due_s, self.executor.next_due_s) if d is not None]
            if not due or min(due) > now_s:
                break
            self.now_s = max(self.now_s, min(due))
            self.inbox += self.cluster.advance(self.now_s)
            self._keep()
            self.inbox.append(Tick())
        self.now_s = now_s

    def after(self, seconds: float) -> None:
        self.at(self.now_s + seconds)

    def run(self) -> None:
        while self.inbox:
            for instruction in self.executor.handle(self.inbox.popleft(), self.now_s):
                if self.kill_after is not None:
                    self.kill_after -= 1
                    if self.kill_after < 0:
                        self.kill_after = None
                        self.restart()
                        break
                self._perform(instruction)

    def _perform(self, instruction: Instruction) -> None:
        self.performed.append(instruction)
        match instruction:
            case Append() | Reload():
                self._operate(instruction)
            case CreatePods() | ResizePods() | StopPods() | DeletePods():
                self.inbox += self.cluster.perform(instruction, self.now_s)
                self._keep()
            case Acknowledge(hint):
                self.hints.pop(hint, None)
            case Freeze():
                self.frozen.append(instruction)

    def _operate(self, operation: Append | Reload) -> None:
        health = self.bus(operation)
        match operation:
            case Append(ref=ref, event=event):
                outcome: Outcome = Unknown("no answer")
                if health != "away":
                    outcome = self.log.append(event, self.now_s)
                if health == "lost":
                    outcome = Unknown("no answer")
                self.inbox.append(Answered(ref=ref, outcome=outcome))
            case Reload(ref=ref, id=name):
                if health != "good":
                    self.retries.append(operation)  # the shell asks until it is readable
                    return
                failed = "unknown tag" if key(TENANT, name) in self.log.unreadable else ""
                workload = None if failed else self.log.load(name)
                self.inbox.append(Reloaded(ref=ref, workload=workload, failed=failed))

    def bus_is_back(self) -> None:
        """Reads that waited for the bus are made."""
        self.bus = answer_all
        waiting, self.retries = self.retries, []
        for operation in waiting:
            self._operate(operation)
        self.run()

    # The others

    def submit(self, request: JobRequest) -> None:
        self.log.append(
            Submitted(
                tenant=TENANT,
                id=request.id,
                after=0,
                at_s=self.now_s,
                by="gateway",
                request=request,
                digest=request_digest(request),
            )
        )

    def place(self, name: str, *pods: PodBinding, tell: bool = True) -> Placed:
        workload = self.log.load(name)
        assert workload.request is not None
        event = Placed(
            tenant=TENANT,
            id=name,
            after=workload.sequence,
            at_s=self.now_s,
            by="resolver",
            cluster=SPEC.name,
            attempt=workload.attempt + 1,
            pods=pods,
            request=workload.request,
            decision=1,
            submitted_at_s=workload.submitted_at_s,
        )
        assert isinstance(self.log.append(event), Stored)
        if tell:
            self.tell(event)
        return event

    def cancel(self, name: str) -> CancelRequested:
        """As the gateway would, once the workload is claimed."""
        event = CancelRequested(
            tenant=TENANT,
            id=name,
            after=self.log.load(name).sequence,
            at_s=self.now_s,
            by="gateway",
            cluster=SPEC.name,
            reason="not needed",
        )
        assert isinstance(self.log.append(event), Stored)
        self.tell(event)
        return event

    def resize(self, name: str, *pods: PodBinding) -> ResizeRequested:
        event = ResizeRequested(
            tenant=TENANT,
            id=name,
            after=self.log.load(name).sequence,
            at_s=self.now_s,
            by="resolver",
            cluster=SPEC.name,
            attempt=self.log.load(name).attempt,
            pods=pods,
            reason="room for another",
            decision=2,
        )
        assert isinstance(self.log.append(event), Stored)
        self.tell(event)
        return event

    def tell(self, event: Hint) -> None:
        """Deliver the hint, and again after a restart until it is acknowledged."""
        story = self.log.stories[key(TENANT, event.id)]
        sequence = next(sequence for sequence, stored in story if stored == event)
        self.hint_number += 1
        self.hints[self.hint_number] = (event, sequence)
        self.inbox.append(HintSeen(self.hint_number, event, sequence))

    def start(self, request: JobRequest, *pods: PodBinding) -> None:
        """Submitted, placed, and all that follows at once."""
        self.submit(request)
        self.place(request.id, *(pods or (PodBinding(pod="main-0", node="n1", gpus=(0,)),)))
        self.run()


def job(
    name: str = "train",
    *,
    lasts_s: float = 100.0,
    deadline_s: float | None = None,
    max_evictions: int = 10,
    gpus: int = 1,
    count: int = 1,
    min_count: int | None = None,
    max_count: int | None = None,
) -> JobRequest:
    """A request; say only what the test is about."""
    from berthmaster.lib.messages.workload import PodSet

    return JobRequest(
        id=name,
        pod_sets=(PodSet(gpus=gpus, count=count, min_count=min_count, max_count=max_count),),
        expected_duration_s=lasts_s,
        deadline_s=deadline_s,
        max_evictions=max_evictions,
    )
