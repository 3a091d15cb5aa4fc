"""Parts of pods and owners for usage metrics. Pure."""

from typing import Final

from berthmaster.lib.accelerators.written import KAI_KEEPERS, kai_groups, read_hami
from berthmaster.lib.kube.labels import identity
from berthmaster.lib.kube.objects import Condition, Metadata, Object, OwnerReference, Struct, holds
from berthmaster.worker.job_metrics.core.pods import JobName, Owner, Pod

# Bound pods that have not ended.
HOLDING_PODS: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
SETS: Final = ("JobSet",)  # of a job with several pod sets, above its Jobs


class PodSpec(Struct, frozen=True):
    node_name: str = ""


class PodObject(Object, frozen=True):
    spec: PodSpec = PodSpec()


class JobStatus(Struct, frozen=True):
    conditions: tuple[Condition, ...] | None = ()


class JobObject(Object, frozen=True):
    """A Job or JobSet with usage annotations."""

    status: JobStatus = JobStatus()

    @property
    def over(self) -> bool:
        conditions = self.status.conditions or ()
        return any(holds(conditions, one) for one in ("Complete", "Completed", "Failed"))


def controller_of(metadata: Metadata) -> OwnerReference | None:
    """Return the controlling owner, else the first."""
    owners = metadata.owner_references
    return next((one for one in owners if one.controller), owners[0] if owners else None)


def pod_of(pod: PodObject, above: tuple[Owner, ...]) -> Pod:
    """Return a pod. ``above``: its known owners, nearest first."""
    metadata = pod.metadata
    groups = kai_groups(metadata.labels)
    return Pod(
        uid=metadata.uid,
        namespace=metadata.namespace,
        name=metadata.name,
        node=pod.spec.node_name,
        job=_job(metadata, above),
        devices=frozenset(use.uuid for use in read_hami(metadata.annotations).uses if use.uuid),
        groups=groups,
        keeper=bool(groups) and metadata.namespace in KAI_KEEPERS,
    )


def _job(metadata: Metadata, above: tuple[Owner, ...]) -> JobName:
    """Return the job of a pod: the workload of a managed pod, else its controller."""
    ours = identity(metadata.labels, metadata.annotations)
    near = above[0] if above else Owner("Pod", metadata.name, metadata.uid)
    job = next((one for one in above if ours and one.kind in SETS), near)
    top = above[-1] if above and above[-1] != job else None
    if ours is None:
        return JobName(metadata.namespace, job, owner=top)
    return JobName(metadata.namespace, job, ours.tenant, ours.workload, ours.attempt, top)
