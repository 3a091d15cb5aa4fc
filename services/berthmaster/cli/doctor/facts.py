"""What was read from the clusters, as plain values: the only input of the diagnosis.

Nothing here is a guess: what could not be read is not in a field but named in ``unread``, and a
condition that nobody has set is None.
"""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Mode = Literal["observe", "dispatch"]


@dataclass(frozen=True, kw_only=True)
class State:
    """Whether something is active: None = its controller has not said."""

    active: bool | None = None
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class Right:
    """One thing that a service must be allowed."""

    verb: str
    group: str
    resource: str  # with its subresource behind a slash, as RBAC writes it
    namespace: str = ""  # "" = in the whole cluster
    name: str = ""  # of one object; "" = of all
    why: str = ""

    def __str__(self) -> str:
        where = f" in {self.namespace}" if self.namespace else ""
        what = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {what}{f'/{self.name}' if self.name else ''}{where}"


class GateArgument(NamedTuple):
    """The argument of Kueue's manager that sets feature gates."""

    path: str  # of the argument in the Deployment, as a JSON pointer
    text: str  # the whole argument
    value: str  # what --feature-gates is set to: the end of the text


@dataclass(frozen=True, kw_only=True)
class ManagerConfig:
    """What Kueue's manager was told, as far as it concerns us."""

    dispatcher: str = ""  # "" = not set, which is AllAtOnce
    step_size: int | None = None
    gates: dict[str, bool] = field(default_factory=dict)
    file_gates: dict[str, bool] | None = None  # those of the file; None = it has no such section
    keeps_finished: bool = False  # Workloads that are over stay until somebody deletes them
    waits_for_pods: bool = False  # all pods of a job run, or it is taken back (waitForPodsReady)
    problem: str = ""  # why the file cannot be understood


@dataclass(frozen=True, kw_only=True)
class ManagerPod:
    name: str
    ready: bool = False
    words: str = ""  # why it is not, as its node says


@dataclass(frozen=True, kw_only=True)
class ManagerLife:
    """What shows whether Kueue's manager runs."""

    wanted: int | None = None  # pods that its Deployment asks for; None = no Deployment was seen
    pods: tuple[ManagerPod, ...] = ()
    renewed_s_ago: float | None = None  # its lease; None = it has none, or none was seen
    holder: str = ""


@dataclass(frozen=True, kw_only=True)
class FailingKind:
    """Objects that an API server fails to show, although it answers other questions."""

    kind: str  # such as workloads.kueue.x-k8s.io
    why: str  # the server's words


@dataclass(frozen=True, kw_only=True)
class ClusterFacts:
    name: str
    context: str = ""  # for kubectl, and its kubeconfig where that is not the usual one
    kubeconfig: str = ""
    unreachable: str = ""  # why nothing could be read; then nothing else here counts
    version: str = ""
    uid: str = ""  # of the namespace kube-system, which tells clusters apart; "" = not known
    skew_s: float | None = None  # its clock minus ours; None = not to be seen
    kueue_versions: frozenset[str] = frozenset()  # served API versions of Kueue
    kueue_image: str = ""
    kueue_life: ManagerLife | None = None  # None = not looked at
    serves_policies: bool = False  # MutatingAdmissionPolicies: Kubernetes 1.36 on
    gate_argument: GateArgument | None = None  # None = its manager's gates stand in its file
    file_gates: dict[str, bool] | None = None  # of that file; None = it has no such section
    failing: tuple[FailingKind, ...] = ()
    unread: tuple[str, ...] = ()  # what these credentials may not read, with the reason
    missing_rights: tuple[Right, ...] = ()
    rights_of: str = ""  # as whom they were asked; "" = they were not

    def fails_to_show(self, *kinds: str) -> bool:
        """Whether one of these kinds is failing, so that none seen does not mean none there."""
        return any(one.kind.split(" in ", maxsplit=1)[0] in kinds for one in self.failing)


@dataclass(frozen=True, kw_only=True)
class AdmissionCheck:
    name: str
    controller: str
    config: str = ""  # of MultiKueue's: its MultiKueueConfig
    state: State = State()


@dataclass(frozen=True, kw_only=True)
class ClusterQueue:
    name: str
    checks: tuple[str, ...] = ()
    state: State = State()
    stopped: str = ""  # Hold or HoldAndDrain
    preempts: bool = False  # Kueue may evict a Workload for one of its own
    gpu_quota: dict[str, int] | None = None  # by resource; None = none of them is covered


@dataclass(frozen=True, kw_only=True)
class LocalQueue:
    namespace: str
    name: str
    cluster_queue: str
    state: State = State()
    stopped: str = ""  # Hold or HoldAndDrain


@dataclass(frozen=True, kw_only=True)
class MultiKueueCluster:
    name: str
    fleet_name: str  # what its agent calls it; the same unless an annotation says otherwise
    state: State = State()


@dataclass(frozen=True, kw_only=True)
class StrandedJob:
    """A Job that is MultiKueue's and is in no queue of MultiKueue's: nobody runs it."""

    namespace: str
    name: str
    queue: str = ""  # its LocalQueue; "" = none
    suspended: bool = True


class EarlyDeleted(NamedTuple):
    """A job of MultiKueue's that a worker may delete before the hub has read its end."""

    kind: str
    namespace: str
    name: str
    after_s: int  # of its end


@dataclass(frozen=True, kw_only=True)
class FoundPolicy:
    """A MutatingAdmissionPolicy that does what is looked for."""

    name: str
    idle: str = ""  # why it does nothing; "" = it is in effect


@dataclass(frozen=True, kw_only=True)
class Poisoned:
    """A Workload that Kueue's manager cannot start with."""

    namespace: str
    name: str
    owner: tuple[str, str] = ("", "")  # kind and name of its job


@dataclass(frozen=True, kw_only=True)
class HubFacts(ClusterFacts):
    manager: ManagerConfig | None = None  # None = not readable
    clearing: tuple[FoundPolicy, ...] = ()  # those that clear nominations
    poisoned: tuple[Poisoned, ...] = ()
    nominators: dict[str, tuple[str, ...]] = field(default_factory=dict)  # not ours: Workloads
    workload_webhook: str = ""  # ValidatingWebhookConfiguration that asks Kueue about Workloads
    checks: tuple[AdmissionCheck, ...] = ()
    configs: dict[str, tuple[str, ...]] = field(default_factory=dict)  # MultiKueueConfig: clusters
    clusters: tuple[MultiKueueCluster, ...] = ()
    cluster_queues: tuple[ClusterQueue, ...] = ()
    local_queues: tuple[LocalQueue, ...] = ()
    stranded: tuple[StrandedJob, ...] = ()
    early_deleted: tuple[EarlyDeleted, ...] = ()


Vendor = Literal["nvidia", "amd", "intel", "tpu"]
Sharing = Literal["", "MIG", "HAMi", "MPS", "time slicing"]
# What starts gangs.
Together = Literal["kubernetes", "workload", "coscheduling", "volcano", "kai", "kueue"]


@dataclass(frozen=True, kw_only=True)
class GpuNode:
    name: str
    gpus: int
    ready: bool = True
    model: str = ""  # by its vendor's label; "" = no label
    vendor: Vendor = "nvidia"
    sharing: Sharing = ""  # how several pods have one of its GPUs


@dataclass(frozen=True, kw_only=True)
class Telemetry:
    """Our agents on a worker's nodes."""

    wanted: int  # nodes on which one should be
    ready: int


@dataclass(frozen=True, kw_only=True)
class DeviceDriver:
    """A driver of devices that are claimed (DRA)."""

    name: str
    nodes: int
    classes: tuple[str, ...] = ()  # DeviceClasses that name it


class HeldObject(NamedTuple):
    """A job object that somebody deleted and only our finalizer keeps."""

    kind: str  # such as jobs.batch
    namespace: str
    name: str


@dataclass(frozen=True, kw_only=True)
class WorkerFacts(ClusterFacts):
    namespaces: frozenset[str] = frozenset()
    cluster_queues: tuple[ClusterQueue, ...] = ()
    local_queues: tuple[LocalQueue, ...] = ()
    gpu_nodes: tuple[GpuNode, ...] = ()
    nodes: int = 0
    drivers: tuple[DeviceDriver, ...] = ()
    together: tuple[Together, ...] = ()
    held: tuple[HeldObject, ...] = ()
    job_kinds: frozenset[str] = frozenset()  # kinds of job objects that are served, beside Jobs
    gates: dict[str, bool] | None = None  # that its Kueue was told; None = that was not read
    keeping: tuple[FoundPolicy, ...] = ()  # policies that keep ended jobs of MultiKueue's
    agent: bool = False  # whether our agent is installed there
    telemetry: Telemetry | None = None  # None: it is not installed
    exporter: str = ""  # NAMESPACE/NAME of dcgm-exporter's DaemonSet, where that is instead


@dataclass(frozen=True, kw_only=True)
class Without:
    """A queue that a worker lacks on purpose."""

    worker: str
    namespace: str
    queue: str  # "*" = all of the namespace

    def covers(self, worker: str, queue: LocalQueue) -> bool:
        there = (self.worker, self.namespace) == (worker, queue.namespace)
        return there and self.queue in ("*", queue.name)

    @staticmethod
    def parse(text: str) -> "Without":
        """WORKER:NAMESPACE/QUEUE. Raises ValueError."""
        worker, colon, rest = text.partition(":")
        namespace, slash, queue = rest.partition("/")
        if not (worker and colon and namespace and slash and queue) or "/" in queue:
            raise ValueError(f"{text!r} is not WORKER:NAMESPACE/QUEUE, such as berlin:ml/main")
        return Without(worker=worker, namespace=namespace, queue=queue)


@dataclass(frozen=True, kw_only=True)
class Survey:
    mode: Mode
    namespace: str  # where our pods are, or shall be
    hub: HubFacts | None = None
    workers: tuple[WorkerFacts, ...] = ()
    without: tuple[Without, ...] = ()
    as_self: bool = False  # rights are those of a person's credentials, and of no account of ours
