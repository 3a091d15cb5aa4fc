"""Trials of a job: the workloads that try its configurations, and what they found. Pure.

Example: job ``train`` lists two configurations, 4 and 8 GPUs, with ``budget_s: 300``. The gateway
submits ``train-t0`` and ``train-t1``, which run for 300 s on GPUs that no other job wants. Their
progress lines show 2.0 and 3.2 steps a second. By time ``train`` then runs on 8 GPUs (0.31 s a
step), by cost on 4: 2.0 GPU seconds a step in place of 2.5.

Rules:

- A trial's step rate counts from its first to its last progress line, so start-up does not.
- A trial that failed has no result, whatever it reported before.
- Equal jobs share results (control/gateway/core/trial_watch.py).
- If no trial reported steps, the run times of those that succeeded are compared.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from berthmaster.lib.lifecycle.attempts import OWN
from berthmaster.lib.lifecycle.choices import configurations, trial_in
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.api import RecordedEvent
from berthmaster.lib.messages.workload import (
    TRIAL_PRIORITY,
    WHOLE_MILLI,
    Failed,
    JobRequest,
    Placed,
    Progressed,
    TrialEnd,
    TrialResult,
)

MOST_ATTEMPTS: Final = 3  # of one trial; after as many evictions it is cancelled
MAX_EVICTIONS: Final = 1000  # no limit of its own
_WHOLE: Final = 0.95  # share of the budget after which a failure without a cause is the time limit
_ENDS: Final[dict[State, TrialEnd]] = {
    State.SUCCEEDED: "succeeded",
    State.FAILED: "failed",
    State.CANCELLED: "not_run",
}


def trial_id(job: str, number: int) -> str:
    """Return the id of a trial, such as train-t0."""
    return f"{job}-t{number}"


def trial_ids(request: JobRequest) -> tuple[str, ...]:
    """Return the ids of a job's trials; () without any."""
    trial = trial_in(request)
    numbers = range(len(trial.configurations)) if trial is not None else ()
    return tuple(trial_id(request.id, number) for number in numbers)


def trial_requests(request: JobRequest) -> tuple[JobRequest, ...]:
    """Return the request of each trial: one configuration, below all other jobs, for a time."""
    trial = trial_in(request)
    if trial is None:
        return ()
    return tuple(
        msgspec.structs.replace(
            one,
            id=trial_id(request.id, number),
            trial_of=request.id,
            priority=TRIAL_PRIORITY,
            preemptible=True,
            max_evictions=MAX_EVICTIONS,
            expected_duration_s=trial.budget_s,
            max_run_s=trial.budget_s,
            retries=0,
            stalls_after_s=None,
            deadline_s=None,
            set="",
            set_at_most=None,
        )
        for number, one in enumerate(configurations(request))
    )


def trial_gpu_s(request: JobRequest) -> float:
    """Return the charge of a trial in GPU seconds: its GPUs for its whole time."""
    milli = sum(pods.count * pods.gpus * pods.gpu_milli for pods in request.pod_sets)
    return milli / WHOLE_MILLI * (request.max_run_s or 0.0)


def result_of(trial: Workload, story: Sequence[RecordedEvent], budget_s: float) -> TrialResult:
    """Return the outcome of an ended trial. ``story``: its whole history."""
    ended = _ENDS.get(trial.state, "not_run")
    ran_s = max(0.0, trial.changed_at_s - trial.running_at_s) if trial.running_at_s else 0.0
    failure = next((one.event for one in reversed(story) if isinstance(one.event, Failed)), None)
    if ended == "failed" and failure is not None and failure.exit_code is None:
        if failure.fault and failure.fault not in OWN:
            ended = "not_run"  # the cluster's fault
        elif not failure.fault and trial.ran_s + ran_s >= _WHOLE * budget_s:
            ended = "stopped"
    return TrialResult(
        ended=ended,
        steps_per_s=steps_per_s(progress_lines(story))
        if ended in ("succeeded", "stopped")
        else None,
        ran_s=round(ran_s, 3),
        cluster=trial.cluster,
        reason=trial.reason,
        at_s=trial.changed_at_s,
    )


Line = tuple[float, int]  # second of a progress line, and its step


def progress_lines(story: Sequence[RecordedEvent]) -> list[Line]:
    """Return the progress lines of the last attempt."""
    lines: list[Line] = []
    for one in story:
        if one.void:
            continue
        if isinstance(one.event, Placed):
            lines.clear()
        elif isinstance(one.event, Progressed):
            lines.append((one.stored_at_s - one.event.age_s, one.event.progress.step))
    return lines


def steps_per_s(lines: Sequence[Line]) -> float | None:
    """Return the step rate from the first to the last line; None without an advance."""
    if len(lines) < 2:
        return None
    (began_s, first), (ended_s, last) = lines[0], lines[-1]
    return (last - first) / (ended_s - began_s) if last > first and ended_s > began_s else None


def seconds_a_step(results: Sequence[TrialResult]) -> tuple[float | None, ...]:
    """Return the time of a step in each configuration, or of the run if no trial reported steps;
    None without a result.
    """
    if any(one.steps_per_s for one in results):
        return tuple(1.0 / one.steps_per_s if one.steps_per_s else None for one in results)
    return tuple(one.ran_s if one.ended == "succeeded" else None for one in results)


def all_failed(results: Sequence[TrialResult]) -> bool:
    """Return whether the job would fail in every configuration."""
    return bool(results) and all(one.ended == "failed" for one in results)


def summary(results: Sequence[TrialResult]) -> str:
    """Return the results in words, such as: 1 at 2.00 steps/s, 2 failed: exit code 1."""
    return "; ".join(f"trial {at} {outcome(one)}" for at, one in enumerate(results, start=1))


def outcome(one: TrialResult) -> str:
    """Return one result in words."""
    if one.steps_per_s:
        return f"made {one.steps_per_s:.3g} steps/s"
    if one.ended == "succeeded":
        return f"took {one.ran_s:.0f} s"
    if one.ended == "stopped":
        return "reported no steps in its time"
    what = "failed" if one.ended == "failed" else "did not run"
    return f"{what}: {one.reason}" if one.reason else what
