"""The data read from the clusters, as plain values: the only input of the diagnosis.

No value is a guess. Unreadable objects are named in ``unread`` instead of a field, and a condition
without a value is None.
"""

from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

Mode = Literal["observe", "dispatch"]
WEBHOOK_KIND: Final = "clearing webhook"


@dataclass(frozen=True, kw_only=True)
class State:
    """The state of an object. None: its controller has not reported it."""

    active: bool | None = None
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class Right:
    """A right that a service needs."""

    verb: str
    group: str
    resource: str  # with its subresource after a slash, as in RBAC
    namespace: str = ""  # "" = in the whole cluster
    name: str = ""  # name of one object; "" = all objects
    why: str = ""

    def __str__(self) -> str:
        where = f" in {self.namespace}" if self.namespace else ""
        what = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {what}{f'/{self.name}' if self.name else ''}{where}"


class GateArgument(NamedTuple):
    """The argument of Kueue's manager that sets feature gates."""

    path: str  # JSON pointer to the argument in the Deployment
    text: str  # the whole argument
    value: str  # the value of --feature-gates: the end of the text


@dataclass(frozen=True, kw_only=True)
class ManagerConfig:
    """The configuration of Kueue's manager, as far as Berthmaster needs it."""

    dispatcher: str = ""  # "" = not set, so AllAtOnce
    step_size: int | None = None
    gates: dict[str, bool] = field(default_factory=dict)
    # gates of the file; None = the file has no such section
    file_gates: dict[str, bool] | None = None
    keeps_finished: bool = False  # True if ended Workloads stay until deleted by a user
    # True if Kueue evicts a job unless all its pods run (waitForPodsReady)
    waits_for_pods: bool = False
    problem: str = ""  # reason why the file is invalid


@dataclass(frozen=True, kw_only=True)
class ManagerPod:
    name: str
    ready: bool = False
    words: str = ""  # the node's reason for a pod that is not ready


@dataclass(frozen=True, kw_only=True)
class ManagerLife:
    """Signs that Kueue's manager runs."""

    wanted: int | None = None  # pods requested by its Deployment; None = no Deployment seen
    pods: tuple[ManagerPod, ...] = ()
    renewed_s_ago: float | None = None  # seconds since its lease was renewed; None = no lease seen
    holder: str = ""


@dataclass(frozen=True, kw_only=True)
class FailingKind:
    """Objects that an API server fails to return, although it answers other requests."""

    kind: str  # such as workloads.kueue.x-k8s.io
    why: str  # the server's message


@dataclass(frozen=True, kw_only=True)
class ClusterFacts:
    name: str
    context: str = ""  # for kubectl; ``kubeconfig`` is for an unusual file
    kubeconfig: str = ""
    unreachable: str = ""  # reason why nothing could be read; then all other fields are void
    version: str = ""
    uid: str = ""  # uid of the namespace kube-system, which identifies a cluster; "" = unknown
    # the cluster's clock minus the local one in seconds; None = unknown
    skew_s: float | None = None
    kueue_versions: frozenset[str] = frozenset()  # served API versions of Kueue
    kueue_image: str = ""
    kueue_life: ManagerLife | None = None  # None = not read
    serves_policies: bool = False  # serves MutatingAdmissionPolicies: Kubernetes 1.36 or later
    gate_argument: GateArgument | None = None  # None = the manager's gates are in its file
    # gates of that file; None = the file has no such section
    file_gates: dict[str, bool] | None = None
    failing: tuple[FailingKind, ...] = ()
    unread: tuple[str, ...] = ()  # objects that these credentials may not read, with the reason
    missing_rights: tuple[Right, ...] = ()
    rights_of: str = ""  # account whose rights were checked; "" = not checked
    installed: bool = True  # False if the hub or the agent of the chart is not there

    def fails_to_show(self, *kinds: str) -> bool:
        """Return whether one of these kinds fails, so that an empty list proves nothing."""
        return any(one.kind.split(" in ", maxsplit=1)[0] in kinds for one in self.failing)


@dataclass(frozen=True, kw_only=True)
class AdmissionCheck:
    name: str
    controller: str
    config: str = ""  # name of a MultiKueue check's MultiKueueConfig
    state: State = State()


@dataclass(frozen=True, kw_only=True)
class ClusterQueue:
    name: str
    checks: tuple[str, ...] = ()
    state: State = State()
    stopped: str = ""  # Hold or HoldAndDrain
    preempts: bool = False  # True if Kueue may evict a Workload for one of this queue
    gpu_quota: dict[str, int] | None = None  # by resource; None = no GPU resource is covered


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
    fleet_name: str  # name by its agent; the same, unless an annotation differs
    state: State = State()


@dataclass(frozen=True, kw_only=True)
class StrandedJob:
    """A Job managed by MultiKueue, but in no queue of MultiKueue: no cluster runs it."""

    namespace: str
    name: str
    queue: str = ""  # its LocalQueue; "" = none
    suspended: bool = True


class EarlyDeleted(NamedTuple):
    """A MultiKueue job that a worker may delete before the hub has read its end."""

    kind: str
    namespace: str
    name: str
    after_s: int  # seconds after its end


@dataclass(frozen=True, kw_only=True)
class FoundPolicy:
    """A MutatingAdmissionPolicy, or a webhook, with the wanted effect."""

    name: str
    kind: str = "MutatingAdmissionPolicy"
    idle: str = ""  # reason why it has no effect; "" = in effect
    state: str = ""  # of a webhook: its failurePolicy and its pods
    ignores_failure: bool = False  # True if a write passes while the webhook does not answer


@dataclass(frozen=True, kw_only=True)
class Poisoned:
    """A Workload that prevents Kueue's manager from starting."""

    namespace: str
    name: str
    owner: tuple[str, str] = ("", "")  # kind and name of its job


@dataclass(frozen=True, kw_only=True)
class HubFacts(ClusterFacts):
    manager: ManagerConfig | None = None  # None = not readable
    clearing: tuple[FoundPolicy, ...] = ()  # policies and webhooks that clear nominations
    poisoned: tuple[Poisoned, ...] = ()
    # other nominators -> Workloads
    nominators: dict[str, tuple[str, ...]] = field(default_factory=dict)
    workload_webhook: str = ""  # ValidatingWebhookConfiguration that asks Kueue about Workloads
    checks: tuple[AdmissionCheck, ...] = ()
    # MultiKueueConfig -> clusters
    configs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    clusters: tuple[MultiKueueCluster, ...] = ()
    cluster_queues: tuple[ClusterQueue, ...] = ()
    local_queues: tuple[LocalQueue, ...] = ()
    stranded: tuple[StrandedJob, ...] = ()
    early_deleted: tuple[EarlyDeleted, ...] = ()


Vendor = Literal["nvidia", "amd", "intel", "tpu"]
Sharing = Literal["", "MIG", "HAMi", "MPS", "time slicing"]
# Components that start gangs.
Together = Literal["kubernetes", "workload", "coscheduling", "volcano", "kai", "kueue"]


@dataclass(frozen=True, kw_only=True)
class GpuNode:
    name: str
    gpus: int
    ready: bool = True
    model: str = ""  # by its vendor's label; "" = no label
    vendor: Vendor = "nvidia"
    sharing: Sharing = ""  # the mode by which several pods share a GPU


@dataclass(frozen=True, kw_only=True)
class Telemetry:
    """Berthmaster's telemetry agents on a worker's nodes."""

    wanted: int  # number of nodes that should have an agent
    ready: int


@dataclass(frozen=True, kw_only=True)
class DeviceDriver:
    """A driver of claimed devices (DRA)."""

    name: str
    nodes: int
    classes: tuple[str, ...] = ()  # DeviceClasses that name it


class HeldObject(NamedTuple):
    """A deleted job object that only Berthmaster's finalizer keeps."""

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
    job_kinds: frozenset[str] = frozenset()  # served kinds of job objects, beside Jobs
    gates: dict[str, bool] | None = None  # gates of its Kueue; None = not read
    keeping: tuple[FoundPolicy, ...] = ()  # policies that keep ended MultiKueue jobs
    telemetry: Telemetry | None = None  # None = not installed
    exporter: str = ""  # NAMESPACE/NAME of dcgm-exporter's DaemonSet, if that runs instead


@dataclass(frozen=True, kw_only=True)
class Without:
    """A queue that a worker lacks on purpose."""

    worker: str
    namespace: str
    queue: str  # "*" = all queues of the namespace

    def covers(self, worker: str, queue: LocalQueue) -> bool:
        there = (self.worker, self.namespace) == (worker, queue.namespace)
        return there and self.queue in ("*", queue.name)

    @staticmethod
    def parse(text: str) -> "Without":
        """Parse WORKER:NAMESPACE/QUEUE. Raises ValueError."""
        worker, colon, rest = text.partition(":")
        namespace, slash, queue = rest.partition("/")
        if not (worker and colon and namespace and slash and queue) or "/" in queue:
            raise ValueError(f"{text!r} is not WORKER:NAMESPACE/QUEUE, such as berlin:ml/main")
        return Without(worker=worker, namespace=namespace, queue=queue)


@dataclass(frozen=True, kw_only=True)
class Survey:
    mode: Mode
    namespace: str  # namespace of Berthmaster's pods, present or future
    hub: HubFacts | None = None
    workers: tuple[WorkerFacts, ...] = ()
    without: tuple[Without, ...] = ()
    # True: check the rights of the user's credentials, not of a service account
    as_self: bool = False
