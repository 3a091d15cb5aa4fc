"""Jobs of a hub, whose pods run in another cluster: what MultiKueue copies back of them. Pure."""

import hashlib
from typing import Final, NamedTuple

from berthmaster.lib.kube.objects import Condition, Object, Struct, holds
from berthmaster.lib.kueue.names import PREBUILT

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
