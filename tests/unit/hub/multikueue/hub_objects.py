"""A hub's objects, valid and small: a test states only what it is about."""

from collections.abc import Mapping, Sequence

from berthmaster.lib.kube.labels import TENANT, WORKLOAD
from berthmaster.lib.kube.objects import Condition, Conditions, Metadata, OwnerReference
from berthmaster.lib.kueue.jobs import HubJob, JobStatus
from berthmaster.lib.kueue.multikueue import (
    AdmissionCheck,
    AdmissionCheckSpec,
    MultiKueueCluster,
    MultiKueueConfig,
    MultiKueueConfigSpec,
    Parameters,
)
from berthmaster.lib.kueue.names import CHECK_CONTROLLER, MULTIKUEUE
from berthmaster.lib.kueue.podsets.templates import (
    Container,
    PodSpec,
    PodTemplate,
    Resources,
    TemplateSet,
)
from berthmaster.lib.kueue.queues import (
    CheckRule,
    CheckStrategy,
    ClusterQueue,
    ClusterQueueSpec,
    LocalQueue,
    LocalQueueSpec,
)
from berthmaster.lib.kueue.workloads import CheckState, KueueWorkload, WorkloadSpec, WorkloadStatus
from berthmaster.lib.messages.fleet import (
    CopyReport,
    FlavorQuota,
    LocalQueueReport,
    QueueReport,
    QuotaAmount,
    Stamp,
)

NAMESPACE = "team"
QUEUE = "main"
CLUSTER_QUEUE = "hub-queue"
CHECK = "multikueue"
OWN_CHECK = "placement"
CONFIG = "config"


def uid_of(name: str) -> str:
    return f"{sum(map(ord, name)):08x}-1111"


def condition(type: str, true: bool = True, reason: str = "", message: str = "") -> Condition:
    status = "True" if true else "False"
    return Condition(type=type, status=status, reason=reason or type, message=message)


def pods(
    count: int = 1,
    gpus: int | str = 1,
    name: str = "main",
    resource: str = "nvidia.com/gpu",
    **spec: object,
) -> TemplateSet:
    """Pods with one GPU each, unless said otherwise."""
    requests: dict[str, str | int | float | None] = {"cpu": "1", "memory": "1Gi"}
    if gpus:
        requests[resource] = str(gpus)
    container = Container(resources=Resources(requests=requests))
    template = PodTemplate(spec=PodSpec(containers=(container,), **spec))  # type: ignore[arg-type]
    return TemplateSet(name=name, count=count, template=template)


def workload(
    name: str = "train",
    *,
    namespace: str = NAMESPACE,
    queue: str = QUEUE,
    pod_sets: Sequence[TemplateSet] | None = None,
    owner: str = "",
    kind: str = "Job",
    priority: int | None = None,
    uid: str = "",
) -> KueueWorkload:
    """A Workload that Kueue has just made: no quota yet."""
    job = owner or name
    reference = OwnerReference(kind=kind, name=job, uid=uid_of(f"job-{job}"), controller=True)
    return KueueWorkload(
        metadata=Metadata(
            name=f"job-{name}",
            namespace=namespace,
            uid=uid or uid_of(name),
            resource_version="1",
            owner_references=(reference,),
        ),
        spec=WorkloadSpec(
            pod_sets=tuple(pod_sets or (pods(),)), queue_name=queue, priority=priority
        ),
        status=WorkloadStatus(
            conditions=(condition("QuotaReserved", False, "Pending", "waiting in line"),)
        ),
    )


def job(
    name: str = "train",
    *,
    namespace: str = NAMESPACE,
    runs: bool = False,
    tenant: str = "",
    workload_id: str = "",
) -> HubJob:
    """A Job of the hub; ours if it names a tenant."""
    labels = {TENANT: tenant, WORKLOAD: workload_id} if tenant else {}
    return HubJob(
        metadata=Metadata(name=name, namespace=namespace, uid=uid_of(f"job-{name}"), labels=labels),
        status=JobStatus(active=1, ready=1) if runs else JobStatus(),
    )


def checks(state: str = "Pending", own: str = "") -> tuple[CheckState, ...]:
    found = [CheckState(name=CHECK, state=state)]
    if own:
        found.append(CheckState(name=OWN_CHECK, state=own))
    return tuple(found)


def local_queue(
    name: str = QUEUE,
    annotations: Mapping[str, str] | None = None,
    *,
    cluster_queue: str = CLUSTER_QUEUE,
) -> LocalQueue:
    return LocalQueue(
        metadata=Metadata(name=name, namespace=NAMESPACE, annotations=dict(annotations or {})),
        spec=LocalQueueSpec(cluster_queue=cluster_queue),
    )


def cluster_queue(
    *,
    own_check: bool = False,
    annotations: Mapping[str, str] | None = None,
    name: str = CLUSTER_QUEUE,
    **spec: object,
) -> ClusterQueue:
    names = [CHECK, OWN_CHECK] if own_check else [CHECK]
    rules = tuple(CheckRule(name=name) for name in names)
    return ClusterQueue(
        metadata=Metadata(name=name, annotations=dict(annotations or {})),
        spec=ClusterQueueSpec(
            admission_checks_strategy=CheckStrategy(admission_checks=rules),
            **spec,  # type: ignore[arg-type]
        ),
    )


def multikueue_check(parameters: Parameters | None = None) -> AdmissionCheck:
    named = Parameters(api_group="kueue.x-k8s.io", kind="MultiKueueConfig", name=CONFIG)
    spec = AdmissionCheckSpec(controller_name=MULTIKUEUE, parameters=parameters or named)
    return AdmissionCheck(metadata=Metadata(name=CHECK), spec=spec)


def own_check(parameters: Parameters | None = None) -> AdmissionCheck:
    named = Parameters(api_group="core", kind="ConfigMap", name="where")
    spec = AdmissionCheckSpec(controller_name=CHECK_CONTROLLER, parameters=parameters or named)
    return AdmissionCheck(metadata=Metadata(name=OWN_CHECK), spec=spec)


def config(*clusters: str) -> MultiKueueConfig:
    return MultiKueueConfig(
        metadata=Metadata(name=CONFIG, resource_version="1"),
        spec=MultiKueueConfigSpec(clusters=clusters),
    )


def cluster(
    name: str, *, active: bool = True, annotations: Mapping[str, str] | None = None
) -> MultiKueueCluster:
    state = (
        condition("Active")
        if active
        else condition("Active", False, "BadKubeConfig", "Secret w-kubeconfig not found")
    )
    return MultiKueueCluster(
        metadata=Metadata(name=name, annotations=dict(annotations or {})),
        status=Conditions(conditions=(state,)),
    )


def queue_report(
    cluster: str,
    *,
    gpus: int = 100,
    used: int = 0,
    namespaces: Sequence[str] = (NAMESPACE,),
    local_queues: Sequence[str] = (QUEUE,),
    preempts: bool = False,
    local_active: bool = True,
    stopped: bool = False,
    active: bool = True,
    reason: str = "",
    cohort: str = "",
    queue: str = "worker-queue",
    node_labels: Mapping[str, str] | None = None,
    borrowing_limit: int | None = None,
    counter: int = 1,
) -> QueueReport:
    """A worker's ClusterQueue with plenty of everything."""
    resources = {
        "cpu": QuotaAmount(nominal=100_000_000),
        "memory": QuotaAmount(nominal=100_000_000),
        "nvidia.com/gpu": QuotaAmount(nominal=gpus, used=used, borrowing_limit=borrowing_limit),
    }
    return QueueReport(
        cluster=cluster,
        queue=queue,
        stamp=Stamp(epoch=1, counter=counter),
        observed_at_s=0.0,
        active=active,
        stopped=stopped,
        stop_policy="Hold" if stopped else "",
        reason=reason,
        cohort=cohort,
        flavors=(
            FlavorQuota(flavor="default", node_labels=dict(node_labels or {}), resources=resources),
        ),
        local_queues=tuple(
            LocalQueueReport(namespace=each, name=name, active=local_active)
            for each in namespaces
            for name in local_queues
        ),
        preempts=preempts,
    )


def copy_report(cluster: str, name: str = "train", **fields: object) -> CopyReport:
    return CopyReport(
        cluster=cluster,
        namespace=NAMESPACE,
        workload=f"job-{name}",
        stamp=Stamp(epoch=1, counter=1),
        observed_at_s=0.0,
        **fields,  # type: ignore[arg-type]
    )
