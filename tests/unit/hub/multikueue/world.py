"""The core with a log, a fleet and a hub around it, all in memory and in a time of its own.

The hub follows Kueue's contract as far as a dispatcher can see it (``Kueue``): it refuses nothing
that the API server would take, and notes whatever the contract forbids.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from berthmaster.hub.multikueue.core.instructions import (
    ClearNomination,
    DeleteJob,
    FindWriter,
    ForgetPods,
    Instruction,
    MakeJob,
    Nominate,
    Nudge,
    PassCheck,
    SendBack,
    SetCheckActive,
    SwitchOff,
    SwitchOn,
    Write,
    Writers,
)
from berthmaster.hub.multikueue.core.reconciler import Reconciler
from berthmaster.hub.multikueue.policy import NAME, HubPolicy
from berthmaster.lib.kube.controller.kube_events import instance_of
from berthmaster.lib.kube.controller.shell_contract import Answer, KubeEvent, Outcome
from berthmaster.lib.kube.objects import Conditions, Object
from berthmaster.lib.kube.selector import Selector
from berthmaster.lib.kueue.contract import clearing, forbidden, may_be_switched_off, nomination
from berthmaster.lib.kueue.jobs import HubJob, JobStatus
from berthmaster.lib.kueue.names import HELD_ANNOTATION, NUDGED_ANNOTATION
from berthmaster.lib.kueue.podsets.reading import workload_id
from berthmaster.lib.kueue.workloads import CheckState, KueueWorkload, WorkloadStatus
from berthmaster.lib.lifecycle.fold import Verdict, offer
from berthmaster.lib.lifecycle.instructions import Append, Refused, Stored
from berthmaster.lib.lifecycle.workload import Key, Workload, key, request_digest
from berthmaster.lib.messages.control import ControlFact
from berthmaster.lib.messages.fleet import CopyReport, FleetFact
from berthmaster.lib.messages.placement import HUB_CELL, Decision
from berthmaster.lib.messages.workload import JobRequest, Placed, Submitted, WorkloadEvent
from berthmaster.lib.nats.errors import TooLarge
from tests.support.builders import alive, node
from tests.unit.hub.multikueue.hub_objects import (
    CHECK,
    checks,
    cluster,
    cluster_queue,
    condition,
    config,
    job,
    local_queue,
    multikueue_check,
    queue_report,
    workload,
)

WORKERS = ("w1", "w2", "w3")
At = tuple[str, str]


class Log:
    """Guarded aggregates and one chain, as the event log keeps them."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, float, WorkloadEvent | Decision]] = []
        self.folds: dict[Key, Workload] = {}
        self.verdicts: list[Verdict] = []
        self.chain = 0

    @property
    def last(self) -> int:
        return len(self.messages)

    def append(self, event: WorkloadEvent, at_s: float) -> Stored | Refused:
        name = key(event.tenant, event.id)
        known = self.folds.get(name)
        if event.after != (known.sequence if known is not None else 0):
            return Refused(known.sequence if known is not None else 0)
        self._store(event, at_s)
        return Stored(self.last)

    def commit(
        self, decision: Decision, events: Sequence[WorkloadEvent], at_s: float
    ) -> Stored | Refused:
        if decision.after != self.chain:
            return Refused(self.chain)
        for event in events:
            known = self.folds.get(key(event.tenant, event.id))
            if event.after != (known.sequence if known is not None else 0):
                return Refused(known.sequence if known is not None else 0)
        self.messages.append((self.last + 1, at_s, decision))
        self.chain = self.last
        for event in events:
            self._store(event, at_s)
        return Stored(self.last)

    def _store(self, event: WorkloadEvent, at_s: float) -> None:
        name = key(event.tenant, event.id)
        fold = self.folds.setdefault(name, Workload(tenant=event.tenant, id=event.id))
        self.messages.append((self.last + 1, at_s, event))
        self.verdicts.append(offer(fold, event, self.last, at_s))

    def story(self, name: Key) -> list[WorkloadEvent]:
        """One workload's events."""
        return [
            event
            for _, _, event in self.messages
            if not isinstance(event, Decision) and key(event.tenant, event.id) == name
        ]


class World:
    """One core; ``settle`` lets it do all that it can."""

    def __init__(self, mode: str = "dispatch", workers: Sequence[str] = WORKERS, **policy: object):
        self.now_s = 1000.0
        self.policy = HubPolicy(mode=mode, **policy)  # type: ignore[arg-type]
        self.workers = list(workers)
        self.hub_id = "hub-one"
        self.former_hubs: tuple[str, ...] = ()
        self.log = Log()
        self.told: list[KubeEvent] = []
        self.writes: list[Instruction] = []
        self.broken: list[str] = []  # what the contract forbids and was done
        self.hub: dict[tuple[str, str, str], Object] = {}  # kind, namespace, name
        self.fleet: dict[str, tuple[FleetFact, int, float]] = {}
        self.control: list[ControlFact] = []
        self.parameters: dict[str, Selector | str] = {}
        self.conflict: Callable[[Nominate], bool] = lambda _: False
        self.refusal: Callable[[Nominate], Answer | None] = lambda _: None
        self.refusal_of_jobs: Answer | None = None
        self.version = 1
        self.removes_copies = True  # as soon as a nomination is cleared
        self.others: tuple[str, ...] = ()  # field managers of nominations, beside ours
        self._folded = 0
        self.core = self._new()
        for thing in (
            local_queue(),
            cluster_queue(),
            multikueue_check(),
            config(*workers),
            *(cluster(name) for name in workers),
        ):
            self.put(thing)

    def _new(self) -> Reconciler:
        core = Reconciler(
            instance_of(NAME), self.policy, {NAMESPACE_OF_ACME: "acme"}, self.former_hubs
        )
        core.hub.id = self.hub_id
        return core

    def restart(self, mode: str | None = None) -> None:
        """Kill -9, and a new one that knows what log, facts and lists say."""
        if mode is not None:
            self.policy = msgspec.structs.replace(self.policy, mode=mode)
        self.core = self._new()
        self._folded = 0
        for fact, sequence, at_s in self.fleet.values():
            self.core.on_fact(fact, sequence, at_s)
        for number, setting in enumerate(self.control, start=1):
            self.core.on_control(setting, number)
        for thing in self.hub.values():
            self.core.on_object(thing)
        for check, found in self.parameters.items():
            self.core.on_parameters(check, found)
        self.fold()
        self.begin()

    def move(self, hub_id: str, *, former_hubs: tuple[str, ...] = ()) -> None:
        """Start again, pointed at a hub that has the same configuration and no Workloads."""
        self.hub_id, self.former_hubs = hub_id, former_hubs
        kinds = ("KueueWorkload", "HubJob")
        self.hub = {at: thing for at, thing in self.hub.items() if at[0] not in kinds}
        self.restart()

    def begin(self) -> None:
        self.core.hub.complete = True
        self.core.begin()

    # What there is

    def put(self, thing: Object) -> None:
        meta = thing.metadata
        self.hub[type(thing).__name__, meta.namespace, meta.name] = thing
        self.core.on_object(thing)

    def drop(self, thing: Object) -> None:
        meta = thing.metadata
        self.hub.pop((type(thing).__name__, meta.namespace, meta.name), None)
        self.core.on_object(thing, gone=True)

    def fact(self, name: str, fact: FleetFact) -> None:
        """A fact under a name of the test's."""
        sequence = len(self.fleet) + 1
        self.fleet[name] = (fact, sequence, self.now_s)
        self.core.on_fact(fact, sequence, self.now_s)

    def set(self, fact: ControlFact) -> None:
        self.control.append(fact)
        self.core.on_control(fact, len(self.control))

    def set_parameters(self, check: str, found: Selector | str) -> None:
        self.parameters[check] = found
        self.core.on_parameters(check, found)

    def worker(
        self,
        name: str,
        *,
        gpus: int = 8,
        free: int | None = None,
        labels: Mapping[str, str] = {},
        **queue: object,
    ) -> None:
        """A worker with one node of so many GPUs, of which so many are free, and a queue."""
        used = gpus - (gpus if free is None else free)
        self.alive(name)
        report = node(name, "n1", gpus=gpus, foreign_milli=(1000,) * used, labels=dict(labels))
        self.fact(f"{name}/node", report)
        self.fact(f"{name}/queue", queue_report(name, **queue))  # type: ignore[arg-type]

    def alive(self, *names: str) -> None:
        for name in names or self.workers:
            self.fact(f"{name}/alive", alive(name))

    def all_workers(self, **how: object) -> None:
        for name in self.workers:
            self.worker(name, **how)  # type: ignore[arg-type]

    # Kueue

    def kueue(self, name: str = "train") -> KueueWorkload:
        """A Workload as the API server has it."""
        found = self.hub["KueueWorkload", "team", f"job-{name}"]
        assert isinstance(found, KueueWorkload)
        return found

    def status(self, name: str = "train", **fields: object) -> None:
        """Kueue writes a Workload's status."""
        before = self.kueue(name)
        status = msgspec.structs.replace(before.status or WorkloadStatus(), **fields)
        self._write(before, status)

    def _switch(
        self, before: KueueWorkload, annotations: dict[str, str], *, active: bool = False
    ) -> None:
        spec = msgspec.structs.replace(before.spec, active=active)
        meta = msgspec.structs.replace(before.metadata, annotations=annotations)
        self.put(msgspec.structs.replace(before, spec=spec, metadata=meta))

    def _write(self, before: KueueWorkload, status: WorkloadStatus) -> KueueWorkload:
        self.version += 1
        meta = msgspec.structs.replace(before.metadata, resource_version=str(self.version))
        after = msgspec.structs.replace(before, metadata=meta, status=status)
        self.put(after)
        return after

    def submit(self, name: str = "train", **how: object) -> None:
        """kubectl apply, as far as Kueue: a Job and its Workload."""
        self.put(job(name))
        self.put(workload(name, **how))  # type: ignore[arg-type]

    def submit_job(self, name: str) -> None:
        """The Job of a Workload that is there."""
        self.put(job(name))

    def reserve(self, name: str = "train", own: str = "") -> None:
        """Kueue gives it quota on the hub: from now on it may be nominated."""
        self.status(
            name,
            conditions=(condition("QuotaReserved"),),
            admission_checks=checks(own=own),
            cluster_name=None,
            nominated_cluster_names=None,
        )

    def admit(self, name: str, worker: str) -> None:
        """The worker has admitted the copy and MultiKueue says so."""
        before = self.kueue(name)
        own = [c for c in before.checks if c.name != CHECK]
        self.status(
            name,
            conditions=(condition("QuotaReserved"), condition("Admitted")),
            cluster_name=worker,
            nominated_cluster_names=None,
            admission_checks=(CheckState(name=CHECK, state="Ready"), *own),
        )

    def evict(self, name: str, reason: str = "Preempted", message: str = "by another") -> None:
        """Kueue takes it back."""
        self.status(
            name,
            conditions=(
                condition("QuotaReserved", False, "Pending", message),
                condition("Evicted", True, reason, message),
            ),
            cluster_name=None,
            nominated_cluster_names=None,
            admission_checks=checks(),
        )

    def start(self, name: str = "train") -> None:
        found = self.hub["HubJob", "team", name]
        assert isinstance(found, HubJob)
        self.put(msgspec.structs.replace(found, status=JobStatus(active=1, ready=1)))

    def finish(self, name: str, reason: str = "Succeeded", message: str = "Job finished") -> None:
        before = self.kueue(name)
        conditions = (*((before.status and before.status.conditions) or ()),)
        self.status(name, conditions=(*conditions, condition("Finished", True, reason, message)))

    def remove(self, name: str) -> None:
        self.drop(self.kueue(name))
        found = self.hub.get(("HubJob", "team", name))
        if found is not None:
            self.drop(found)

    # Time and what the core does in it

    def fold(self, limit: int | None = None) -> None:
        """Let the core read the log (or its next messages)."""
        end = self.log.last if limit is None else min(self.log.last, self._folded + limit)
        for sequence, at_s, message in self.log.messages[self._folded : end]:
            if isinstance(message, Decision):
                self.core.on_decision(message, sequence)
            else:
                self.core.on_event(message, sequence, at_s)
        self._folded = end

    def write_event(self, event: WorkloadEvent) -> None:
        """Somebody else writes to the log."""
        assert isinstance(self.log.append(event, self.now_s), Stored)
        self.fold()

    def asked_for(self, request: JobRequest, cell: str = HUB_CELL) -> None:
        """Somebody submits it over the bus."""
        self.write_event(
            Submitted(
                tenant="acme",
                id=request.id,
                after=0,
                at_s=0.0,
                by="gateway",
                request=request,
                digest=request_digest(request),
                cell=cell,
            )
        )

    def blind(self, seconds: float, *, has_read: bool = True) -> None:
        """The bus is away for so long: the shell asks twice a second, and nothing is heard."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += 0.5
            for instruction in self.core.blind(self.now_s, has_read=has_read):
                self.perform(instruction)

    def bus_is_back(self) -> None:
        """Another lease is won, and all is looked at."""
        self.core.blindly.over()
        self.begin()
        self.settle()

    def step(self) -> list[Instruction]:
        """One look; what it asked for is done at once."""
        self.fold()
        asked = acted(self.core, self.now_s)
        for instruction in asked:
            self.perform(instruction)
        plan = self.core.decide(self.now_s)
        if plan is not None:
            try:
                outcome = self.log.commit(plan.decision, plan.events, self.now_s)
            except TooLarge:
                self.core.on_too_large(self.now_s)
            else:
                self.core.on_outcome(outcome, self.log.last)
        self.fold()
        return asked

    def settle(self, rounds: int = 30) -> None:
        """Until nothing more is to be done at this moment."""
        for _ in range(rounds):
            self.now_s += 0.001
            before = (self.log.last, len(self.writes))
            self.step()
            if before == (self.log.last, len(self.writes)) and not self.core.dirty:
                return

    def wait(
        self, seconds: float, *, step_s: float = 0.25, heard: Sequence[str] | None = None
    ) -> None:
        """Time passes; workers (all, unless named) keep saying that they live."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += step_s
            live = self.workers if heard is None else heard
            for name in live:
                if f"{name}/alive" in self.fleet:
                    self.alive(name)
            self.settle()

    def perform(self, instruction: Instruction) -> None:
        if isinstance(instruction, Append):
            outcome = self.log.append(instruction.event, self.now_s)
            self.core.on_appended(instruction.ref, outcome, self.now_s)
            return
        if isinstance(instruction, KubeEvent):
            self.told.append(instruction)
            return
        self.writes.append(instruction)
        self.core.on_answer(instruction, self.answer(instruction), self.now_s)

    def answer(self, write: Write) -> Answer:
        """The API server."""
        match write:
            case Nominate():
                return self._nominate(write)
            case ClearNomination():
                return self._clear(write)
            case FindWriter():
                return Answer(found=Writers(self.others))
            case Nudge():
                return self._annotate(write.at)
            case PassCheck() | SendBack():
                before = self.hub["KueueWorkload", *write.at]
                assert isinstance(before, KueueWorkload)
                assert before.status is not None
                if isinstance(write, SendBack):
                    if write.version != before.metadata.resource_version:
                        return Answer(Outcome.CONFLICT, why="Conflict")
                    if not before.holds("QuotaReserved") or before.holds("Evicted"):
                        self.broken.append("Retry for what Kueue has taken back")
                said = "Ready" if isinstance(write, PassCheck) else "Retry"
                states = tuple(
                    CheckState(name=c.name, state=said, message=write.message)
                    if c.name == write.check
                    else c
                    for c in before.checks
                )
                status = msgspec.structs.replace(before.status, admission_checks=states)
                return Answer(found=self._write(before, status))
            case SwitchOff():
                before = self.hub["KueueWorkload", *write.at]
                assert isinstance(before, KueueWorkload)
                if write.held_by and not may_be_switched_off(before, write.nominated):
                    self.broken.append("switched off while Kueue ends its attempt")
                self._switch(before, {HELD_ANNOTATION: write.held_by} if write.held_by else {})
                return Answer()
            case ForgetPods():
                found = self.hub["HubJob", *write.at]
                assert isinstance(found, HubJob)
                self.put(msgspec.structs.replace(found, status=JobStatus()))
                return Answer()
            case SwitchOn():
                before = self.hub["KueueWorkload", *write.at]
                assert isinstance(before, KueueWorkload)
                assert HELD_ANNOTATION in before.metadata.annotations
                self._switch(before, {}, active=True)
                return Answer()
            case MakeJob():
                return self.refusal_of_jobs or self._make(write)
            case DeleteJob():
                self.drop(self.hub["HubJob", *write.at])
                return Answer()
            case SetCheckActive():
                state = condition("Active", write.active, write.reason, write.message)
                before_check = self.hub["AdmissionCheck", "", write.check]
                status_of_check = Conditions(conditions=(state,))
                self.put(msgspec.structs.replace(before_check, status=status_of_check))
                return Answer()
            case _:
                raise AssertionError(write)

    def _annotate(self, at: At) -> Answer:
        before = self.hub["KueueWorkload", *at]
        assert isinstance(before, KueueWorkload)
        annotations = {**before.metadata.annotations, NUDGED_ANNOTATION: f"{self.now_s}"}
        self.version += 1
        meta = msgspec.structs.replace(
            before.metadata, annotations=annotations, resource_version=str(self.version)
        )
        self.put(msgspec.structs.replace(before, metadata=meta))
        return Answer()

    def _make(self, write: MakeJob) -> Answer:
        meta = write.manifest["metadata"]
        labels = meta["labels"]
        made = job(
            meta["name"],
            namespace=write.namespace,
            tenant=labels["berthmaster.io/tenant"],
            workload_id=labels["berthmaster.io/workload"],
        )
        self.put(made)
        return Answer()

    def _nominate(self, write: Nominate) -> Answer:
        found = self.hub.get(("KueueWorkload", *write.at))
        if not isinstance(found, KueueWorkload):
            return Answer(Outcome.GONE, why="not found")
        if self.conflict(write):
            return Answer(Outcome.CONFLICT, why="Conflict")
        if (refused := self.refusal(write)) is not None:
            return refused
        names, why = nomination(found, write.uid, write.check, write.cluster)
        if names is None:
            return Answer(Outcome.CONFLICT if why else Outcome.DONE, why=why)
        if forbidden(found, CHECK):
            self.broken.append(f"nominated though {forbidden(found, CHECK)}")
        if found.nominated or len(names) != 1:
            self.broken.append(f"{found.nominated} became {names}")
        assert found.status is not None
        status = msgspec.structs.replace(found.status, nominated_cluster_names=names)
        return Answer(found=self._write(found, status))

    def _clear(self, write: ClearNomination) -> Answer:
        found = self.hub.get(("KueueWorkload", *write.at))
        if not isinstance(found, KueueWorkload):
            return Answer(Outcome.GONE, why="not found")
        may, why = clearing(found, write.uid, write.check, write.clusters)
        if not may:
            return Answer(Outcome.CONFLICT if why else Outcome.DONE, why=why)
        assert found.status is not None
        status = msgspec.structs.replace(found.status, nominated_cluster_names=None)
        if self.removes_copies:
            self._remove_copies(*write.at)
        return Answer(found=self._write(found, status))

    def _remove_copies(self, namespace: str, name: str) -> None:
        """Kueue does so where nothing is nominated and nothing admitted, and workers report it."""
        for fact_name, (fact, _, _) in list(self.fleet.items()):
            if not isinstance(fact, CopyReport) or fact.running:
                continue
            if (fact.namespace, fact.workload) == (namespace, name):
                self.fact(fact_name, msgspec.structs.replace(fact, gone=True))

    # What came of it

    def name(self, workload_name: str = "train") -> Key:
        """What a Workload is called on the bus."""
        meta = self.kueue(workload_name).metadata
        return key("acme", workload_id(meta.name, meta.uid))

    def kinds(self, name: Key) -> list[str]:
        """A workload's story in short: what happened and where."""
        out = []
        for event in self.log.story(name):
            where = getattr(event, "cluster", "")
            kind = type(event).__name__.lower()
            out.append(f"{kind} {where}".strip())
        return out

    def decisions(self) -> list[Decision]:
        return [m for _, _, m in self.log.messages if isinstance(m, Decision)]

    def nominated(self, name: str = "train") -> tuple[str, ...]:
        return self.kueue(name).nominated

    def why(self, name: Key) -> str:
        tenant, _, workload_id = name.partition("/")
        reply = self.core.why(tenant, workload_id, self.now_s)
        assert reply is not None
        return reply.summary

    def placements(self) -> list[tuple[str, str]]:
        """(workload, cluster) of every placement."""
        events = [m for _, _, m in self.log.messages if isinstance(m, Placed)]
        return [(event.id, event.cluster) for event in events]


def acted(core: Reconciler, now_s: float) -> list[Instruction]:
    """All that it asks for now."""
    asked: list[Instruction] = [*core.act(now_s), *core.appends]
    core.appends.clear()
    return asked


NAMESPACE_OF_ACME = "team"
