"""Jobs of a hub, whose pods run in another cluster: what MultiKueue copies back of them. Pure."""

from berthmaster.kubernetes.objects import Condition, Object, Struct


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
