"""Valid messages with sane defaults: a test states only what it is about."""

import msgspec

from berthmaster.lib.messages.fleet import (
    Amounts,
    ClusterAlive,
    ClusterProfile,
    GpuDevice,
    NodeReport,
    Stamp,
    Taint,
)
from berthmaster.lib.messages.workload import JobRequest, PodSet

WHOLE = 1000
OF_REQUESTS = frozenset(JobRequest.__struct_fields__)


def node(
    cluster: str = "c1",
    name: str = "n1",
    *,
    gpus: int = 8,
    model: str = "T4",
    memory_mib: int = 16_384,
    cpu_milli: int = 96_000,
    node_memory_mib: int = 786_432,
    foreign_cpu_milli: int = 0,
    foreign_milli: tuple[int, ...] = (),
    unhealthy: tuple[int, ...] = (),
    ready: bool = True,
    schedulable: bool = True,
    labels: dict[str, str] | None = None,
    taints: tuple[Taint, ...] = (),
    counter: int = 1,
    resource: str = "",
) -> NodeReport:
    """A node of eight T4s on which nothing runs."""
    return NodeReport(
        cluster=cluster,
        node=name,
        stamp=Stamp(epoch=1, counter=counter),
        observed_at_s=0.0,
        ready=ready,
        schedulable=schedulable,
        labels=labels or {},
        taints=taints,
        allocatable=Amounts(
            cpu_milli=cpu_milli, memory_mib=node_memory_mib, gpu_milli=gpus * WHOLE
        ),
        foreign=Amounts(cpu_milli=foreign_cpu_milli, gpu_milli=sum(foreign_milli)),
        gpus=tuple(
            GpuDevice(
                index=index,
                uuid=f"GPU-{cluster}-{name}-{index}",
                model=model,
                memory_mib=memory_mib,
                healthy=index not in unhealthy,
                foreign_milli=foreign_milli[index] if index < len(foreign_milli) else 0,
                resource=resource,
            )
            for index in range(gpus)
        ),
    )


def alive(cluster: str = "c1", *, counter: int = 1, interval_s: float = 1.0) -> ClusterAlive:
    return ClusterAlive(
        cluster=cluster,
        stamp=Stamp(epoch=1, counter=counter),
        observed_at_s=0.0,
        interval_s=interval_s,
    )


def profile(
    cluster: str = "c1", *, labels: dict[str, str] | None = None, taints: tuple[Taint, ...] = ()
) -> ClusterProfile:
    return ClusterProfile(
        cluster=cluster,
        stamp=Stamp(epoch=1, counter=1),
        observed_at_s=0.0,
        labels=labels or {},
        taints=taints,
    )


def job(
    name: str = "train-1",
    *,
    queue: str = "default",
    priority: int = 0,
    clusters: tuple[str, ...] = (),
    cluster_labels: dict[str, str] | None = None,
    max_evictions: int = 10,
    deadline_s: float | None = None,
    pod_sets: tuple[PodSet, ...] | None = None,
    **fields: object,
) -> JobRequest:
    """One pod with one whole GPU, unless said otherwise; ``fields``: others of the request, or of
    its pod set."""
    own = {each: fields.pop(each) for each in list(fields) if each in OF_REQUESTS}
    request = JobRequest(
        id=name,
        queue=queue,
        priority=priority,
        clusters=clusters,
        cluster_labels=cluster_labels or {},
        max_evictions=max_evictions,
        deadline_s=deadline_s,
        pod_sets=pod_sets or (pod_set(**fields),),
    )
    return msgspec.structs.replace(request, **own)


def pod_set(**fields: object) -> PodSet:
    """One pod with one whole GPU, unless said otherwise."""
    return PodSet(**({"gpus": 1} | fields))  # type: ignore[arg-type]
