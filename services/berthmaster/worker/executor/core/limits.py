"""How long an executor waits for what, and what it says when that is over. Pure."""

from typing import Final, NamedTuple

from berthmaster.lib.lifecycle.states import State
from berthmaster.worker.executor.core.cluster_protocol import CreatePods
from berthmaster.worker.executor.core.job import Job

MAX_DOUBLINGS: Final = 30


class Limits(NamedTuple):
    start_s: float = 60.0  # from asking for the pods, or their admission, until all of them run
    queue_s: float = 300.0  # from asking for the pods until the cluster's own queueing lets them in
    gang_s: float = 30.0  # that two half-started gangs may hold room that each other waits for
    first_pause_s: float = 0.1  # before the second eviction of a workload is told, then doubled
    longest_pause_s: float = 5.0  # so that a place that refuses is not tried in a tight circle

    def patience_s(self, job: Job) -> float:
        """From now until all its pods must run, or it must be let in first."""
        return self.queue_s if in_queue(job) else self.start_s

    def too_late(self, job: Job) -> str:
        """Why an attempt is given back whose pods did not run in time."""
        if in_queue(job):
            why = f"its cluster's queue did not let it in within {self.queue_s:g} s"
        else:
            why = f"not all pods ran within {self.start_s:g} s"
        return f"{why}: {job.waits_for or _mounts(job)}".removesuffix(": ")

    def in_the_way(self, job: Job) -> str:
        """Why a gang is given back that others wait for, as it waits for them."""
        told = f"half started for {self.gang_s:g} s, as another gang is: it gives way"
        return f"{told}: {job.waits_for}" if job.waits_for else told

    def pause_s(self, evictions: int) -> float:
        """Before an eviction is told, after so many."""
        if not evictions:
            return 0.0
        doubled = 2 ** min(evictions - 1, MAX_DOUBLINGS)
        return float(min(self.first_pause_s * doubled, self.longest_pause_s))


def _mounts(job: Job) -> str:
    """What its pods may wait for without a word: what is mounted, and perhaps is not there."""
    used = job.request.runtime_used if job.request is not None else None
    volumes = used.template.volumes if used is not None else ()
    told = [f"Secret {one.secret}" for one in volumes if one.secret]
    told += [f"ConfigMap {one.config_map}" for one in volumes if one.config_map]
    told += [f"PersistentVolumeClaim {one.claim}" for one in volumes if one.claim]
    if not told:
        return ""
    return f"no reason is told; its runtime mounts {', '.join(told)}, which may not be there"


def in_queue(job: Job) -> bool:
    """Whether the cluster's own queueing has yet to let it in."""
    return job.queued or (job.target.via == "worker" and not job.admitted)


def left_s(job: Job, now_s: float) -> float | None:
    """Until its own deadline, which runs from the claim. Never more than all of it: a clock of
    ours that is behind must not let the pods outlive it."""
    deadline_s = job.request.deadline_s if job.request is not None else None
    if deadline_s is None:
        return None
    return min(deadline_s, job.claimed_at_s + deadline_s - now_s)


def max_run_ends_s(job: Job) -> float | None:
    """When it will have run for as long as it may, all attempts together; None = never, or its
    pods do not run."""
    most_s = job.request.max_run_s if job.request is not None else None
    if most_s is None or not job.running_at_s:
        return None
    return job.running_at_s + max(0.0, most_s - job.ran_s)


def order_of(job: Job, executor: str, now_s: float) -> CreatePods:
    """To have its pods made. Its request is known."""
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
