"""Jobs of MultiKueue that a worker may delete before the hub has read their end. Pure.

Kueue copies ``ttlSecondsAfterFinished`` to the worker's job. With 0 there, the worker deletes the
job within milliseconds of its end, the hub finds none, and runs the job again (kueue#14734). A hub
that does not reach a worker for ``LOST_S`` runs its jobs again anyway, so that more time than that
adds no risk.
"""

from typing import Final

from berthmaster.lib.kueue.jobs import HubJob
from berthmaster.lib.kueue.names import MULTIKUEUE

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
