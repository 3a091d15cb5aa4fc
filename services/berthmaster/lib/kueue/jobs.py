"""Jobs of a hub, whose pods run in another cluster: what MultiKueue copies back of them. Pure.

**Early deletion.** Kueue copies ``ttlSecondsAfterFinished`` to the worker's job. With 0 there, the
worker deletes the job within milliseconds of its end, the hub finds none, and runs the job again
(kueue#14734). A hub that does not reach a worker for ``LOST_S`` runs its jobs again anyway, so that
more time than that adds no risk.
"""

import hashlib
from typing import Final, NamedTuple

from berthmaster.lib.kube.objects import Condition, Object, Struct, holds
from berthmaster.lib.kueue.names import MULTIKUEUE, PREBUILT

MAX_NAME_CHARS: Final = 58  # pods' host names are the Job's with their index
_DIGEST_CHARS: Final = 6


# Kueue cuts KIND-NAME off at the longest name of a Workload, or of a label's value where its gate
# ShortWorkloadNames is on, less a dash and a hash.
_CUT_AT: Final = (253 - 6, 63 - 6)
_HASH_CHARS: Final = 5
_ENDS: Final = ("Complete", "Failed", "Completed")  # the last one of a JobSet


class JobOfWorkload(NamedTuple):
    """What the name of a Workload says of its job."""

    kind: str  # in small letters, such as jobset
    name: str
    whole: bool  # False = the job's name may be longer than this


def read_workload_name(workload: str) -> JobOfWorkload | None:
    """Return the job that a Workload's name tells of: job-train-3f9a1 is of the Job train. None for
    a name that Kueue does not give."""
    stem, dash, digest = workload.rpartition("-")
    kind, _, name = stem.partition("-")
    if not dash or len(digest) != _HASH_CHARS or not kind or not name:
        return None
    return JobOfWorkload(kind, name, len(stem) not in _CUT_AT)


def job_name(tenant: str, workload_id: str) -> str:
    """Of a Job that we make on a hub: the same for one workload, another for each tenant."""
    digest = hashlib.sha256(f"{tenant}/{workload_id}".encode()).hexdigest()[:_DIGEST_CHARS]
    return workload_id[: MAX_NAME_CHARS - _DIGEST_CHARS - 1].rstrip("-") + f"-{digest}"


class JobSpec(Struct, frozen=True):
    """What of a hub's Job matters here."""

    suspend: bool | None = None
    managed_by: str | None = None
    ttl_seconds_after_finished: int | None = None


class JobStatus(Struct, frozen=True):
    """As MultiKueue copies it from the worker."""

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
        """It is over, well or not."""
        conditions = (self.status and self.status.conditions) or ()
        return any(one.type in _ENDS and one.true for one in conditions)

    @property
    def succeeded(self) -> bool:
        """Whether all its pods have ended well."""
        return holds((self.status and self.status.conditions) or (), "Complete")

    @property
    def copy_name(self) -> str:
        """The Workload that MultiKueue has copied to this cluster with it; "" = it is no copy."""
        meta = self.metadata
        return meta.annotations.get(PREBUILT) or meta.labels.get(PREBUILT, "")

    @property
    def counts_pods(self) -> bool:
        """It has some as far as Kueue sees, be they ready or not."""
        return bool(self.status and self.status.active)

    @property
    def runs(self) -> bool:
        """Pods of it run somewhere: all that are wanted now are ready, or some have ended well."""
        status = self.status
        if status is None:
            return False
        active, ready = status.active or 0, status.ready or 0
        return ready > 0 if status.ready is not None else active > 0


FIELD: Final = "ttlSecondsAfterFinished"
LOST_S: Final = 900  # Kueue's workerLostTimeout, unless its configuration says otherwise
POLICY_FILE: Final = "deploy/policies/ended-jobs.yaml"  # takes the field off in workers
# Kueue's own cure, from 0.18.7, 0.19.3 and 0.20 on, for Jobs alone; off unless it is switched on.
GATE: Final = "MultiKueueBatchJobClearingTTLSecondsAfterFinishedOnWorkerCluster"


def deleted_after_s(job: HubJob) -> int | None:
    """Return the seconds after which a worker deletes the ended job; None if that is no risk."""
    ttl_s = job.spec.ttl_seconds_after_finished
    if ttl_s is None or ttl_s >= LOST_S or job.spec.managed_by != MULTIKUEUE:
        return None
    return ttl_s


def early_words(job: HubJob) -> str:
    """Return what may happen to this job, and what prevents it; "" if nothing may."""
    ttl_s = deleted_after_s(job)
    if ttl_s is None:
        return ""
    return (
        f"its Job has {FIELD}: {ttl_s}, which Kueue copies: a worker may delete the ended Job "
        "before the hub reads its end, and the hub runs it again. Leave the field out, or apply "
        f"{POLICY_FILE} to the workers (`berth doctor` shows where it is missing)"
    )
