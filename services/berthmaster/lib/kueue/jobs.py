"""Jobs of a hub with pods in another cluster, and the status that MultiKueue copies back. Pure.

**Early deletion.** Kueue copies ``ttlSecondsAfterFinished`` to the worker's job. With 0, the worker
deletes the job within milliseconds of its end. The hub finds no job and runs the job again
(kueue#14734). A hub that cannot reach a worker for ``LOST_S`` runs its jobs again anyway, so a
longer TTL adds no risk.
"""

import hashlib
from typing import Final, NamedTuple

from berthmaster.lib.kube.objects import Condition, Object, Struct, holds
from berthmaster.lib.kueue.names import MULTIKUEUE, PREBUILT

MAX_NAME_CHARS: Final = 58  # host names of pods are the Job's name with an index
_DIGEST_CHARS: Final = 6


# Kueue cuts KIND-NAME at the longest name of a Workload, less a dash and a hash. With the feature
# gate ShortWorkloadNames the limit is that of a label's value.
_CUT_AT: Final = (253 - 6, 63 - 6)
_HASH_CHARS: Final = 5
_ENDS: Final = ("Complete", "Failed", "Completed")  # the last one belongs to a JobSet


class JobOfWorkload(NamedTuple):
    """The job named by a Workload's name."""

    kind: str  # in lower case, such as jobset
    name: str
    whole: bool  # False = the job's name may be longer


def read_workload_name(workload: str) -> JobOfWorkload | None:
    """Return the job named by a Workload: job-train-3f9a1 belongs to the Job train.

    Return None for a name that Kueue does not generate.
    """
    stem, dash, digest = workload.rpartition("-")
    kind, _, name = stem.partition("-")
    if not dash or len(digest) != _HASH_CHARS or not kind or not name:
        return None
    return JobOfWorkload(kind, name, len(stem) not in _CUT_AT)


def job_name(tenant: str, workload_id: str) -> str:
    """Return the name of a hub's Job for a workload, unique among tenants."""
    digest = hashlib.sha256(f"{tenant}/{workload_id}".encode()).hexdigest()[:_DIGEST_CHARS]
    return workload_id[: MAX_NAME_CHARS - _DIGEST_CHARS - 1].rstrip("-") + f"-{digest}"


class JobSpec(Struct, frozen=True):
    """The fields of a hub's Job in use."""

    suspend: bool | None = None
    managed_by: str | None = None
    ttl_seconds_after_finished: int | None = None


class JobStatus(Struct, frozen=True):
    """The status that MultiKueue copies from the worker."""

    active: int | None = None
    ready: int | None = None
    succeeded: int | None = None
    conditions: tuple[Condition, ...] | None = None


class HubJob(Object, frozen=True):
    """A batch/v1 Job of a hub."""

    spec: JobSpec = JobSpec()
    status: JobStatus | None = None

    @property
    def ended(self) -> bool:
        """Whether the job has ended, with success or failure."""
        conditions = (self.status and self.status.conditions) or ()
        return any(one.type in _ENDS and one.true for one in conditions)

    @property
    def succeeded(self) -> bool:
        """Whether all pods of the job have succeeded."""
        return holds((self.status and self.status.conditions) or (), "Complete")

    @property
    def copy_name(self) -> str:
        """The Workload that MultiKueue copied to this cluster with the job; "" = no copy."""
        meta = self.metadata
        return meta.annotations.get(PREBUILT) or meta.labels.get(PREBUILT, "")

    @property
    def counts_pods(self) -> bool:
        """Whether Kueue counts active pods of the job, ready or not."""
        return bool(self.status and self.status.active)

    @property
    def runs(self) -> bool:
        """Whether a pod of the job is ready, or active where the status lacks the field ready."""
        status = self.status
        if status is None:
            return False
        active, ready = status.active or 0, status.ready or 0
        return ready > 0 if status.ready is not None else active > 0


FIELD: Final = "ttlSecondsAfterFinished"
LOST_S: Final = 900  # default of Kueue's workerLostTimeout
POLICY_FILE: Final = "deploy/policies/ended-jobs.yaml"  # removes the field in workers


def deleted_after_s(job: HubJob) -> int | None:
    """Return the seconds after which a worker deletes the ended job; None = no risk."""
    ttl_s = job.spec.ttl_seconds_after_finished
    if ttl_s is None or ttl_s >= LOST_S or job.spec.managed_by != MULTIKUEUE:
        return None
    return ttl_s


def early_words(job: HubJob) -> str:
    """Return the risk for this job and its remedy; "" = no risk."""
    ttl_s = deleted_after_s(job)
    if ttl_s is None:
        return ""
    return (
        f"its Job has {FIELD}: {ttl_s}, which Kueue copies: a worker may delete the ended Job "
        "before the hub reads its end, and the hub runs it again. Leave the field out, or apply "
        f"{POLICY_FILE} to the workers (`berth doctor` shows where it is missing)"
    )
