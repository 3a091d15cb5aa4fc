"""A hub without an API server: what the core writes is stored as the server would, or refused, and
comes back as a watch brings it. Time is what the test says.
"""

from collections.abc import Sequence

import msgspec

from berthmaster.hub.admission.core import gate
from berthmaster.hub.admission.core.admission import Admission
from berthmaster.hub.admission.core.gate import CheckVerdict
from berthmaster.hub.admission.core.instructions import (
    Connect,
    DeleteConfig,
    Instruction,
    Write,
    WriteConditions,
    WriteConfig,
    WriteState,
)
from berthmaster.lib.kube.controller.shell_contract import Answer, KubeEvent, Outcome
from berthmaster.lib.kube.objects import Condition, Metadata, Object, key_of
from berthmaster.lib.kueue.multikueue import (
    MultiKueueCluster,
    MultiKueueConfig,
    MultiKueueConfigSpec,
)
from berthmaster.lib.kueue.workloads import CheckState, Workload
from tests.unit.hub.admission.hub_objects import (
    CHECK,
    MK_CHECK,
    NAMESPACE,
    OURS,
    RESERVED,
    check,
    cluster,
    condition,
    multikueue_check,
    page,
    placement,
    workload,
)

SETTLE_S = 3.0
Key = tuple[str, str, str]  # kind, namespace, name


class World:
    """One hub, one check of ours over one Placement, and one core."""

    def __init__(self, *clusters: str, selected: Sequence[str] | None = None) -> None:
        """``clusters``: those that Kueue knows and reaches. ``selected``: by default all."""
        self.objects: dict[Key, Object] = {}
        self.version = 1
        self.now_s = 100.0
        self.whole = True
        self.writes: list[Write] = []
        self.told: list[tuple[str, str]] = []
        self.secrets: set[str] = set()
        self.refuse = ""  # what every write of a configuration is answered
        self.late: list[tuple[Object, bool]] = []  # on their way to the mirror
        self.lagging = False
        self.core = self._new()
        self.put(check())
        self.put(multikueue_check())
        self.put(placement())
        for name in clusters:
            self.put(cluster(name))
        self.select(*(clusters if selected is None else selected))

    def _new(self) -> Admission:
        return Admission(NAMESPACE, settle_s=SETTLE_S)

    # The server

    def put(self, thing: Object) -> Object:
        """Store an object and let the mirror hear of it."""
        self.version += 1
        stored = msgspec.structs.replace(
            thing,
            metadata=msgspec.structs.replace(thing.metadata, resource_version=str(self.version)),
        )
        self.objects[_key(stored)] = stored
        self._tell(stored, False)
        return stored

    def drop(self, kind: str, name: str, namespace: str = "") -> None:
        self._tell(self.objects.pop((kind, namespace, name)), True)

    def _tell(self, thing: Object, gone: bool) -> None:
        if self.lagging:
            self.late.append((thing, gone))
        else:
            self.core.on_object(thing, gone=gone)

    def deliver(self) -> None:
        """The mirror hears of all that it has not heard yet."""
        late, self.late = self.late, []
        for thing, gone in late:
            self.core.on_object(thing, gone=gone)

    def restart(self) -> None:
        """kill -9 and a new life, which lists what is there."""
        self.core = self._new()
        self.late = []
        for thing in self.objects.values():
            self.core.on_object(thing, gone=False)
        self.core.begin()

    # People and Kueue

    def select(self, *names: str) -> None:
        pages = [names[at : at + 100] for at in range(0, max(len(names), 1), 100)]
        for number, some in enumerate(pages, 1):
            self.put(page(*some, number=number))

    def submit(self, name: str = "train", *conditions: Condition) -> None:
        """A Workload with quota, that waits at the check."""
        self.put(workload(name, conditions=(RESERVED, *conditions)))

    def change(self, name: str, **fields: object) -> None:
        thing = self.workload(name)
        assert thing.status is not None
        self.put(
            msgspec.structs.replace(thing, status=msgspec.structs.replace(thing.status, **fields))
        )

    def nominate(self, name: str, *clusters: str) -> None:
        """As a dispatcher does: only ever more."""
        before = (self.workload(name).status or workload().status).nominated_cluster_names or ()  # type: ignore[union-attr]
        self.change(name, nominated_cluster_names=tuple(dict.fromkeys((*before, *clusters))))

    def admit(self, name: str, where: str) -> None:
        self.change(name, cluster_name=where, nominated_cluster_names=())

    def evict(self, name: str) -> None:
        """Its attempt is over, the next one has quota already."""
        states = tuple(CheckState(name=one, state="Pending") for one in (CHECK, MK_CHECK))
        self.change(name, cluster_name=None, nominated_cluster_names=(), admission_checks=states)

    def finish(self, name: str) -> None:
        self.change(name, conditions=(RESERVED, condition("Finished")))

    # What is there

    @property
    def config(self) -> MultiKueueConfig | None:
        found = self.objects.get(("MultiKueueConfig", "", CHECK))
        assert found is None or isinstance(found, MultiKueueConfig)
        return found

    @property
    def listed(self) -> str:
        """The configuration in short: draining ones in brackets."""
        config = self.config
        if config is None:
            return "none"
        return " ".join(f"({n})" if n in config.draining else n for n in config.clusters)

    def workload(self, name: str = "train") -> Workload:
        found = self.objects["Workload", "ml", name]
        assert isinstance(found, Workload)
        return found

    def state(self, name: str = "train") -> tuple[str, str]:
        found = self.workload(name).check(CHECK)
        assert found is not None
        return found.state, found.message

    def active(self, kind: str = "Active", name: str = CHECK) -> tuple[str, str]:
        """(reason, message) of a condition of the check; ("", "") without it."""
        found = self.core.index.checks[name].condition(kind)
        return (found.reason, found.message) if found is not None else ("", "")

    # The shell

    def look(self) -> list[Instruction]:
        self.core.on_whole(self.whole, at_s=1_700_000_000 + self.now_s)
        return self.core.act(self.now_s)

    def settle(self, rounds: int = 20) -> None:
        for _ in range(rounds):
            if not self.perform(self.look()):
                return
        raise AssertionError(f"it never rests: {self.writes[-3:]}")

    def wait(self, seconds: float) -> None:
        """Time passes, and what is due then is done."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.settle()
            self.now_s = min(until_s, max(self.core.wake_at_s(), self.now_s + 0.05))
        self.settle()

    def perform(self, instructions: Sequence[Instruction]) -> int:
        writes = 0
        for one in instructions:
            if isinstance(one, KubeEvent):
                self.told.append((one.reason, one.note))
                continue
            writes += 1
            self.writes.append(one)
            assert not self.core.on_answer(one, self.answer(one), self.now_s)
        return writes

    def answer(self, write: Write) -> Answer:
        match write:
            case WriteConfig():
                return self._write_config(write)
            case DeleteConfig():
                self.drop("MultiKueueConfig", write.base.metadata.name)
            case Connect():
                if write.cluster not in self.secrets:
                    return Answer(Outcome.GONE, "NoSecret", "there is no Secret")
                self.put(cluster(write.cluster, active=None))
            case WriteConditions():
                found = self.objects["AdmissionCheck", "", write.check]
                status = msgspec.structs.replace(check().status, conditions=write.conditions)  # type: ignore[type-var]
                self.put(msgspec.structs.replace(found, status=status))
            case WriteState():
                self._set_state(write)
        return Answer()

    def _write_config(self, write: WriteConfig) -> Answer:
        there = self.objects.get(("MultiKueueConfig", "", write.name))
        if self.refuse:
            return Answer(Outcome.DENIED, "Forbidden", self.refuse)
        base = write.base.metadata.resource_version if write.base else ""
        if base != (there.metadata.resource_version if there else ""):
            return Answer(Outcome.CONFLICT, "Conflict", "conflict")
        notes = dict(there.metadata.annotations if there else {})
        notes["berthmaster.io/admission-check"] = write.name
        notes["berthmaster.io/draining"] = ",".join(write.draining)
        made = MultiKueueConfig(
            metadata=Metadata(name=write.name, labels=OURS, annotations=notes),
            spec=MultiKueueConfigSpec(clusters=write.clusters),
        )
        stored = self.put(made)
        assert isinstance(stored, MultiKueueConfig)
        return Answer(found=stored)

    def _set_state(self, write: WriteState) -> None:
        at: Key = ("Workload", *key_of(write.base.metadata))
        there = self.objects.get(at)
        if not isinstance(there, Workload):
            return
        word = gate.new_state(there, write.check, CheckVerdict(write.passes, write.message))
        if word is None:
            return
        told = CheckState(name=write.check, state=word.state, message=word.message)
        states = tuple(told if one.name == write.check else one for one in there.checks)
        self.change(there.metadata.name, admission_checks=states)


def _key(thing: Object) -> Key:
    return type(thing).__name__, *key_of(thing.metadata)


def reached(name: str) -> MultiKueueCluster:
    """A cluster that Kueue has connected to by now."""
    return cluster(name)
