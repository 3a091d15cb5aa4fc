"""What was read from the clusters, as plain values: the only input of the diagnosis.

Nothing here is a guess: what could not be read is not in a field but named in ``unread``, and a
condition that nobody has set is None.
"""

from dataclasses import dataclass, field
from typing import Literal

Mode = Literal["observe", "order", "dispatch"]


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


@dataclass(frozen=True, kw_only=True)
class ManagerConfig:
    """What Kueue's manager was told, as far as it concerns us."""

    dispatcher: str = ""  # "" = not set, which is AllAtOnce
    step_size: int | None = None
    gates: dict[str, bool] = field(default_factory=dict)
    problem: str = ""  # why the file cannot be understood


@dataclass(frozen=True, kw_only=True)
class ClusterFacts:
    """What is read of every cluster."""

    name: str
    context: str = ""  # for kubectl, and its kubeconfig where that is not the usual one
    kubeconfig: str = ""
    unreachable: str = ""  # why nothing could be read; then nothing else here counts
    version: str = ""
    skew_s: float | None = None  # its clock minus ours; None = not to be seen
    kueue_versions: frozenset[str] = frozenset()  # served API versions of Kueue
    kueue_image: str = ""
    unread: tuple[str, ...] = ()  # what these credentials may not read, with the reason
    missing_rights: tuple[Right, ...] = ()
    rights_of: str = ""  # as whom they were asked; "" = they were not


@dataclass(frozen=True, kw_only=True)
class AdmissionCheck:
    """One on the hub."""

    name: str
    controller: str
    config: str = ""  # of MultiKueue's: its MultiKueueConfig
    state: State = State()


@dataclass(frozen=True, kw_only=True)
class ClusterQueue:
    """One of hub or worker."""

    name: str
    checks: tuple[str, ...] = ()
    state: State = State()
    stopped: str = ""  # Hold or HoldAndDrain
    gpu_quota: dict[str, int] | None = None  # by resource; None = none of them is covered


@dataclass(frozen=True, kw_only=True)
class LocalQueue:
    """One of hub or worker."""

    namespace: str
    name: str
    cluster_queue: str
    state: State = State()


@dataclass(frozen=True, kw_only=True)
class MultiKueueCluster:
    """One on the hub."""

    name: str
    fleet_name: str  # what its agent calls it; the same unless an annotation says otherwise
    state: State = State()


@dataclass(frozen=True, kw_only=True)
class HubFacts(ClusterFacts):
    """What is read of the hub."""

    manager: ManagerConfig | None = None  # None = not readable
    merge_policies: tuple[str, ...] = ()  # MutatingAdmissionPolicies over Workloads' status
    checks: tuple[AdmissionCheck, ...] = ()
    configs: dict[str, tuple[str, ...]] = field(default_factory=dict)  # MultiKueueConfig: clusters
    clusters: tuple[MultiKueueCluster, ...] = ()
    cluster_queues: tuple[ClusterQueue, ...] = ()
    local_queues: tuple[LocalQueue, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GpuNode:
    """A node that offers GPUs."""

    name: str
    gpus: int
    ready: bool = True
    model: str = ""  # of GPU feature discovery; "" = no label


@dataclass(frozen=True, kw_only=True)
class WorkerFacts(ClusterFacts):
    """What is read of a worker."""

    namespaces: frozenset[str] = frozenset()
    cluster_queues: tuple[ClusterQueue, ...] = ()
    local_queues: tuple[LocalQueue, ...] = ()
    gpu_nodes: tuple[GpuNode, ...] = ()
    nodes: int = 0
    job_sets: bool = False  # whether the CRD is served


@dataclass(frozen=True, kw_only=True)
class Survey:
    """All of it."""

    mode: Mode
    namespace: str  # where our pods are, or shall be
    hub: HubFacts | None = None
    workers: tuple[WorkerFacts, ...] = ()
