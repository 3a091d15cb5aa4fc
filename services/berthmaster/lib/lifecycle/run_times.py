"""Run time of a workload, its saved part, and the expected end. Pure.

Durations are in seconds. Points in time are in seconds since 1970, by the server's clock.
"""

from collections.abc import Iterator
from typing import Final

from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Workload

PROGRESS_EVERY_S: Final = 10.0
PROGRESS_SHARE: Final = 0.01  # of what it has run


def progress_every_s(ran_s: float) -> float:
    """Return the minimum interval between progress reports of a job, in seconds.

    The interval grows with the run to keep histories short: some 90 reports in the first 15
    minutes, and 230 more in each tenfold of the time.
    """
    return max(PROGRESS_EVERY_S, PROGRESS_SHARE * ran_s)


def ends_as_told_s(workload: Workload) -> float | None:
    """Return the end of the attempt as the running job reported; None without a report."""
    progress = workload.progress
    if progress is None or progress.eta_s is None or workload.state is not State.RUNNING:
        return None
    return workload.progress_at_s + progress.eta_s


def unsaved_s(workload: Workload, now_s: float) -> float:
    """Return the run time lost if the attempt ends now.

    Lost is the time since the last reported checkpoint. Without a report, count from the last
    checkpoint that was due. Without checkpoints, the whole run is lost. Example at 2,000 s: an
    attempt began at 1,000 s and writes a checkpoint every 600 s. With a checkpoint reported at
    1,900 s, 100 s are lost. Without reports, 400 s are lost.
    """
    if not workload.running_at_s:
        return 0.0
    ran_s = max(0.0, now_s - workload.running_at_s)
    if workload.checkpoint_at_s > workload.running_at_s:
        return min(ran_s, max(0.0, now_s - workload.checkpoint_at_s))
    every_s = workload.request.checkpoint_every_s if workload.request is not None else None
    return ran_s if every_s is None else ran_s % every_s


def counted_s(workload: Workload, over_at_s: float, *, blameless: bool) -> float:
    """Return the part of a finished attempt that counts towards max_run_s: the whole run, or only
    the saved part if the job is not to blame for the end.
    """
    if not workload.running_at_s:
        return 0.0
    ran_s = max(0.0, over_at_s - workload.running_at_s)
    return ran_s - unsaved_s(workload, over_at_s) if blameless else ran_s


def saved_s(workload: Workload) -> float:
    """Return the saved run time of finished attempts: the part toward max_run_s for jobs with
    checkpoints, else 0.
    """
    request = workload.request
    writes = request is not None and request.checkpoint_every_s is not None
    return workload.ran_s if writes or workload.checkpoint is not None else 0.0


def age_s(workload: Workload, now_s: float) -> float:
    """Return the run time of a job: the saved time of finished attempts and the running attempt."""
    running = workload.live and workload.running_at_s > 0
    return saved_s(workload) + (max(0.0, now_s - workload.running_at_s) if running else 0.0)


def stated_end_s(workload: Workload, now_s: float) -> float | None:
    """Return the next stated end of a live attempt, from its progress or its request; None without
    a future end.
    """
    return min((at_s for at_s in _stated_ends_s(workload, now_s) if at_s > now_s), default=None)


def first_stated_end_s(workload: Workload) -> float | None:
    """Return the first stated end of a live attempt, past ends included; None without one. Constant
    until the next event.
    """
    return min(_stated_ends_s(workload, float("-inf")), default=None)


def _stated_ends_s(workload: Workload, now_s: float) -> Iterator[float]:
    """Yield the reported end if in the future, else the expected end, and the deadline."""
    request = workload.request
    if request is None or not workload.live:
        return
    reported_s = ends_as_told_s(workload)
    if reported_s is not None and reported_s > now_s:
        yield reported_s
    elif request.expected_duration_s is not None:
        began_s = workload.running_at_s or workload.claimed_at_s or workload.placed_at_s
        yield began_s + request.expected_duration_s - saved_s(workload)
    if request.deadline_s is not None:
        yield (workload.claimed_at_s or workload.placed_at_s) + request.deadline_s
