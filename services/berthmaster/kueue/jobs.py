"""Jobs of a hub, whose pods run in another cluster: what MultiKueue copies back of them. Pure."""

import hashlib
from typing import Final

from berthmaster.kubernetes.objects import Condition, Object, Struct

MAX_NAME_CHARS: Final = 58  # pods' host names are the Job's with their index
_DIGEST_CHARS: Final = 6


def job_name(tenant: str, workload_id: str) -> str:
    """Of a Job that we make on a hub: the same for one workload, another for each tenant."""
    digest = hashlib.sha256(f"{tenant}/{workload_id}".encode()).hexdigest()[:_DIGEST_CHARS]
    return workload_id[: MAX_NAME_CHARS - _DIGEST_CHARS - 1].rstrip("-") + f"-{digest}"


class JobSpec(Struct, frozen=True):
    """What of a hub's Job matters here."""

    suspend: bool | None = None
    managed_by: str | None = None


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
        return any(one.type in ("Complete", "Failed") and one.true for one in conditions)

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
