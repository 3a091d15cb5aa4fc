"""Events that an executor writes to the log, and the reasons of endings."""

from typing import Any, NamedTuple

import msgspec

from berthmaster.lib.lifecycle.attempts import (
    MAX_REASON_CHARS,
    SAME_WAY,
    backoff_s,
    is_tried_again,
    may_give_way,
    repeats_after,
)
from berthmaster.lib.messages.workload import (
    Admitted,
    Cancelled,
    Checkpoint,
    Checkpointed,
    Claimed,
    Evicted,
    Failed,
    Progress,
    Progressed,
    Resized,
    Running,
    Succeeded,
    WorkloadEvent,
)
from berthmaster.worker.executor.core.job import FinalResult, How, Job
from berthmaster.worker.executor.core.limits import max_run_ends_s


class LogEvents(NamedTuple):
    name: str
    cluster: str

    def claimed(self, job: Job, now_s: float) -> Claimed:
        """Before anything is created."""
        return Claimed(**self._head(job, now_s), executor=self.name)

    def admitted(self, job: Job, now_s: float) -> Admitted:
        return Admitted(**self._head(job, now_s), resizable=job.resizable)

    def running(self, job: Job, now_s: float) -> Running:
        return Running(**self._head(job, now_s), pods=job.observed)

    def resized(self, job: Job, now_s: float) -> Resized:
        reason = job.resize_failed[:MAX_REASON_CHARS]
        return Resized(**self._head(job, now_s), pods=job.observed, reason=reason)

    def checkpointed(self, job: Job, checkpoint: Checkpoint, now_s: float) -> Checkpointed:
        return Checkpointed(**self._head(job, now_s), checkpoint=checkpoint)

    def progressed(self, job: Job, progress: Progress, now_s: float) -> Progressed:
        progress = counted_from(progress, job.said_at_s, now_s)
        age_s = round(job.said_age_s + max(0.0, now_s - job.said_at_s), 3)
        return Progressed(**self._head(job, now_s), progress=progress, age_s=age_s)

    def ending(self, job: Job, verdict: FinalResult, now_s: float) -> WorkloadEvent:
        """Return the ending. A cancel request outranks an eviction. Too many evictions make a
        failure, blameless ones excepted.
        """
        how, reason, exit_code, blameless, fault, node, _ = verdict
        head = self._head(job, now_s)
        if how is How.FAILED and _is_tried_again(job, verdict, now_s):
            return Evicted(
                **head,
                reason=_try_again(job, verdict)[:MAX_REASON_CHARS],
                fault=fault,
                node=node,
                exit_code=exit_code,
            )
        if how is How.EVICTED:
            evictions = (job.evictions or 0) + 1
            if job.cancel:
                how, reason = How.CANCELLED, job.cancel_reason or reason
            elif job.leaving:
                return Evicted(**head, reason=job.leaving[:MAX_REASON_CHARS], blameless=True)
            elif blameless and may_give_way(job.request, job.logged, job.attempt.number):
                return Evicted(**head, reason=reason[:MAX_REASON_CHARS], blameless=True)
            elif (times := repeats_after(fault, job.last_fault, job.repeats)) >= SAME_WAY:
                reason = f"ended the same way {times} times in a row, wherever it was: {reason}"
            elif job.request is not None and evictions <= job.request.max_evictions:
                cut = reason[:MAX_REASON_CHARS]
                return Evicted(**head, reason=cut, fault=fault, node=node)
            else:
                reason = f"evicted {evictions} times, at last: {reason}"
        head |= {
            "digest": job.digest,
            "submitted_at_s": job.submitted_at_s,
            "reason": reason[:MAX_REASON_CHARS],
        }
        if how is How.COMPLETED:
            return Succeeded(**head)
        if how is How.CANCELLED:
            return Cancelled(**head)
        return Failed(**head, exit_code=exit_code, fault=fault, node=node)

    def _head(self, job: Job, now_s: float) -> dict[str, Any]:
        return {
            "tenant": job.attempt.tenant,
            "id": job.attempt.id,
            "after": job.sequence,
            "at_s": now_s,
            "by": self.name,
            "cluster": self.cluster,
            "attempt": job.attempt.number,
        }


def counted_from(progress: Progress, said_at_s: float, now_s: float) -> Progress:
    """Return the progress with its expected end counted from now."""
    if progress.eta_s is None:
        return progress
    left_s = max(0.0, progress.eta_s - max(0.0, now_s - said_at_s))
    return msgspec.structs.replace(progress, eta_s=left_s)


def _is_tried_again(job: Job, verdict: FinalResult, now_s: float) -> bool:
    if job.request is None or job.cancel or job.leaving or verdict.hopeless:
        return False
    ends_s = max_run_ends_s(job)
    if ends_s is not None and now_s >= ends_s:
        return False  # it used its whole max_run_s
    return is_tried_again(job.request, job.failures, verdict.exit_code)


def _try_again(job: Job, verdict: FinalResult) -> str:
    assert job.request is not None
    pause_s = backoff_s(job.request, job.failures + 1)
    tries = f"failure {job.failures + 1} of at most {job.request.retries + 1}"
    return f"{tries}, tried again after {pause_s:g} s: {verdict.reason}"
