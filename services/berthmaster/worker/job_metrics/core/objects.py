"""The parts of pods and of their owners that figures need. Pure."""

from typing import Final

from berthmaster.lib.accelerators.written import KAI_KEEPERS, kai_groups, read_hami
from berthmaster.lib.kube.labels import identity
from berthmaster.lib.kube.objects import Condition, Metadata, Object, OwnerReference, Struct, holds
from berthmaster.worker.job_metrics.core.pods import JobName, Owner, Pod

# What is bound to a node and has not ended.
HOLDING_PODS: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
SETS: Final = ("JobSet",)  # of a tenant's job with several pod sets, above its Jobs


class PodSpec(Struct, frozen=True):
    node_name: str = ""


class PodObject(Object, frozen=True):
    spec: PodSpec = PodSpec()


class JobStatus(Struct, frozen=True):
    conditions: tuple[Condition, ...] | None = ()


class JobObject(Object, frozen=True):
    """A Job or JobSet on which figures are written."""

    status: JobStatus = JobStatus()

    @property
    def over(self) -> bool:
        conditions = self.status.conditions or ()
        return any(holds(conditions, one) for one in ("Complete", "Completed", "Failed"))


def controller_of(metadata: Metadata) -> OwnerReference | None:
    """Whose an object is: the owner that controls it, else its first."""
    owners = metadata.owner_references
    return next((one for one in owners if one.controller), owners[0] if owners else None)


def pod_of(pod: PodObject, above: tuple[Owner, ...]) -> Pod:
    """As figures know it; ``above``: its owners as far as they are known, the nearest first."""
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
    """Of a tenant's pod the workload, of any other what its controller is."""
    ours = identity(metadata.labels, metadata.annotations)
    near = above[0] if above else Owner("Pod", metadata.name, metadata.uid)
    job = next((one for one in above if ours and one.kind in SETS), near)
    top = above[-1] if above and above[-1] != job else None
    if ours is None:
        return JobName(metadata.namespace, job, owner=top)
    return JobName(metadata.namespace, job, ours.tenant, ours.workload, ours.attempt, top)
