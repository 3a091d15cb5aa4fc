"""Time limits of an executor, and the messages after each. Pure."""

from typing import Final, NamedTuple

from berthmaster.lib.lifecycle.states import State
from berthmaster.worker.executor.core.cluster_protocol import CreatePods
from berthmaster.worker.executor.core.job import Job, Pods

MAX_DOUBLINGS: Final = 30


class Limits(NamedTuple):
    start_s: float = 60.0  # from the order of the pods, or their admission, until all run
    queue_s: float = 300.0  # from asking for the pods until the cluster's own queueing lets them in
    gang_s: float = 30.0  # time that two half-started gangs may block each other
    first_pause_s: float = 0.1  # before the second eviction of a workload is told, then doubled
    longest_pause_s: float = 5.0  # limits the retry rate in a cluster that rejects

    def patience_s(self, job: Job) -> float:
        """Return the time until all pods must run, or until the admission if that comes first."""
        return self.queue_s if in_queue(job) else self.start_s

    def too_late(self, job: Job) -> str:
        """Why an attempt is given back whose pods did not run in time."""
        if in_queue(job):
            why = f"its cluster's queue did not let it in within {self.queue_s:g} s"
        else:
            why = f"not all pods ran within {self.start_s:g} s"
        return f"{why}: {job.waits_for or _mounts(job)}".removesuffix(": ")

    def in_the_way(self, job: Job) -> str:
        """Return the reason for ending a gang that blocks others."""
        told = f"half started for {self.gang_s:g} s, as another gang is: it gives way"
        return f"{told}: {job.waits_for}" if job.waits_for else told

    def pause_s(self, evictions: int) -> float:
        """Before an eviction is told, after so many."""
        if not evictions:
            return 0.0
        doubled = 2 ** min(evictions - 1, MAX_DOUBLINGS)
        return float(min(self.first_pause_s * doubled, self.longest_pause_s))


def _mounts(job: Job) -> str:
    """Return mounted objects that pods may wait for without a message."""
    used = job.request.runtime_used if job.request is not None else None
    volumes = used.template.volumes if used is not None else ()
    told = [f"Secret {one.secret}" for one in volumes if one.secret]
    told += [f"ConfigMap {one.config_map}" for one in volumes if one.config_map]
    told += [f"PersistentVolumeClaim {one.claim}" for one in volumes if one.claim]
    if not told:
        return ""
    return f"no reason is told; its runtime mounts {', '.join(told)}, which may not be there"


def in_queue(job: Job) -> bool:
    """Return whether Kueue in the cluster must still admit the job."""
    return job.queued or (job.target.via == "worker" and not job.admitted)


def left_s(job: Job, now_s: float) -> float | None:
    """Return the time to the job's own deadline, counted from the claim. At most the whole
    deadline, because with a slow local clock the pods must not outlive it.
    """
    deadline_s = job.request.deadline_s if job.request is not None else None
    if deadline_s is None:
        return None
    return min(deadline_s, job.claimed_at_s + deadline_s - now_s)


def max_run_ends_s(job: Job) -> float | None:
    """Return when all attempts together reach max_run_s; None = never, or not running."""
    most_s = job.request.max_run_s if job.request is not None else None
    if most_s is None or not job.running_at_s:
        return None
    return job.running_at_s + max(0.0, most_s - job.ran_s)


def stalled(job: Job, quiet_s: float) -> str:
    """Return why a running job without progress for so long is given up; "" = it is not."""
    most_s = job.request.stalls_after_s if job.request is not None else None
    if most_s is None or quiet_s < most_s or job.pods is not Pods.RUNNING:
        return ""
    return f"no new progress line for {quiet_s:.0f} s, and its stalls_after_s is {most_s:g} s"


def order_of(job: Job, executor: str, now_s: float) -> CreatePods:
    """Return the order to create the pods of a job with a request."""
    assert job.request is not None
    rest_s = left_s(job, now_s)
    return CreatePods(
        job.attempt,
        executor,
        job.placed,
        job.request,
        stop_after_s=rest_s,
        asked_at_s=None if rest_s is None else now_s,
        target=job.target,
        ran=job.logged is not State.CLAIMED,
        claimed_before=job.read_back,
        receipt=job.receipt,
        checkpoint=job.checkpoint,
    )
