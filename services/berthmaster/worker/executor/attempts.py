"""One attempt in the runtime: its Kubernetes object, the executor's goal, and published events."""

import asyncio
from enum import Enum

import msgspec

from berthmaster.lib.jobs.kinds.kind import JobKind
from berthmaster.lib.jobs.objects import JobObject
from berthmaster.lib.kube import labels
from berthmaster.lib.kube.objects import Object
from berthmaster.lib.kueue.names import QUEUE_LABEL
from berthmaster.worker.executor.core.attempt_status import AttemptStatus, Scene, standing
from berthmaster.worker.executor.core.cluster_protocol import (
    Attempt,
    CreatePods,
    PodEvent,
    PodsGone,
    PodsRefused,
    ResizePods,
)
from berthmaster.worker.executor.core.manifest import EXPIRES, PODS, RECEIPT, SIZES, STOPPED


class Goal(Enum):
    """The executor's goal for the attempt's object. A later member outweighs an earlier one."""

    NONE = 0
    COMPLETE = 1  # create the missing parts of an object that an earlier process created
    CREATE = 2
    RESIZE = 3
    STOP = 4
    DELETE = 5


class Held(msgspec.Struct, kw_only=True):
    scene: Scene
    namespace: str = ""
    name: str = ""
    order: CreatePods | None = None
    resize: ResizePods | None = None
    goal: Goal = Goal.NONE
    stop_reason: str = ""
    receipt: str = ""  # the receipt in the object's annotations
    unsure: bool = False  # a create request got no answer
    known: bool = False  # the object was seen, or will never exist: the attempt can be judged
    refused: str = ""  # the API server's reason for refusing the object
    hopeless: bool = False  # every other cluster would refuse the object too
    completed: str = ""  # uid of the object whose parts all exist
    deleted: str = ""  # uid of the object in the last delete request
    told: dict[type, PodEvent] = {}
    work: asyncio.Task[None] | None = None
    ordered: asyncio.Event = msgspec.field(default_factory=asyncio.Event)  # an order waits
    timer: asyncio.TimerHandle | None = None
    soon: asyncio.TimerHandle | None = None

    @property
    def attempt(self) -> Attempt:
        return self.scene.attempt

    @property
    def text(self) -> str:
        tenant, workload, attempt = self.attempt
        return f"{tenant}/{workload}/{attempt}"

    @property
    def kind(self) -> JobKind:
        return self.scene.kind

    @property
    def path(self) -> str:
        return self.kind.resource.path(namespace=self.namespace, name=self.name)

    @property
    def uid(self) -> str:
        """Return the uid of the object; "" if unknown."""
        return self.scene.job.metadata.uid if self.scene.job is not None else ""

    def see(self, kind: JobKind, job: JobObject) -> None:
        """Apply the state of the object."""
        metadata, scene = job.metadata, self.scene
        self.namespace, self.name = metadata.namespace, metadata.name
        self.known, self.unsure = True, False
        scene.kind, scene.job = kind, job
        told = metadata.annotations
        scene.queued = bool(metadata.labels.get(QUEUE_LABEL))
        scene.wanted = wanted(told.get(PODS, "")) or scene.wanted
        scene.elastic = SIZES in told
        scene.resizable = scene.queued and job.is_elastic_to_kueue
        if scene.elastic and scene.queued and job.spec.parallelism and len(scene.wanted) == 1:
            scene.wanted = dict.fromkeys(scene.wanted, job.spec.parallelism)  # as admitted
        scene.expires_s = number(told.get(EXPIRES, "")) or scene.expires_s
        self.receipt = told.get(RECEIPT, "")
        if STOPPED in told:
            scene.stopped = told[STOPPED]

    def standing(self, now_s: float) -> AttemptStatus:
        if not self.refused or self.scene.job is not None:
            status = standing(self.scene, now_s)
            if not self.refused or self.scene.stopped is not None:
                return status
            return status._replace(events=[self._refusal(), *status.events])
        told: list[PodEvent] = [self._refusal()]
        if self.goal is Goal.STOP:
            told.append(PodsGone(self.attempt, self.stop_reason))
        return AttemptStatus(told)

    def _refusal(self) -> PodsRefused:
        if self.hopeless:
            return PodsRefused(self.attempt, self.refused, "not_started", hopeless=True)
        return PodsRefused(self.attempt, self.refused)

    def lose(self) -> None:
        """Note that the object does not exist."""
        if self.scene.job is not None:
            self.scene.settles = True
        self.scene.job = None
        self.known, self.unsure = True, False


def attempt_of(job: Object) -> tuple[Attempt, str] | None:
    """Return attempt and executor of an object; None for unmanaged or malformed ones."""
    short, whole = job.metadata.labels, job.metadata.annotations
    keys = (labels.TENANT, labels.WORKLOAD, labels.ATTEMPT, labels.EXECUTOR)
    tenant, workload, attempt, executor = (whole.get(key) or short.get(key, "") for key in keys)
    if not (tenant and workload and executor) or not (attempt.isascii() and attempt.isdecimal()):
        return None
    if len(attempt) > 9:
        return None
    return Attempt(tenant, workload, int(attempt)), executor


def wanted(text: str) -> dict[str, int]:
    """Return the pod sets of an annotation; empty if malformed."""
    found: dict[str, int] = {}
    for part in text.split():
        name, colon, count = part.rpartition(":")
        if not (colon and name and count.isascii() and count.isdecimal() and len(count) < 6):
            return {}
        found[name] = int(count)
    return found


def number(text: str) -> float | None:
    """Return a time from an annotation; None if malformed."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < 1e12 else None


def not_later(job: JobObject, version: str) -> bool:
    """Return whether a list of this version would contain the object. Versions of one resource are
    numbers.
    """
    mine = job.metadata.resource_version
    return mine.isdecimal() and version.isdecimal() and int(mine) <= int(version)
