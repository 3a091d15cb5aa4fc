"""How long a workload has run, what of that is saved, and when it says that it will end. Pure.

Times are seconds; moments are seconds since 1970 by the server's clock.
"""

from typing import Final

from berthmaster.lifecycle.states import State
from berthmaster.lifecycle.workload import Workload

PROGRESS_EVERY_S: Final = 10.0
PROGRESS_SHARE: Final = 0.01  # of what it has run


def progress_every_s(ran_s: float) -> float:
    """How seldom a job says how far it is: so a story stays short however long it runs (some 90 in
    the first 15 minutes, 230 more in each tenfold of that)."""
    return max(PROGRESS_EVERY_S, PROGRESS_SHARE * ran_s)


def ends_as_told_s(workload: Workload) -> float | None:
    """When its attempt ends, as the job itself said while it ran; None if it did not."""
    progress = workload.progress
    if progress is None or progress.eta_s is None or workload.state is not State.RUNNING:
        return None
    return workload.progress_at_s + progress.eta_s


def unsaved_s(workload: Workload, now_s: float) -> float:
    """Of what its attempt has run, what is lost if it ends now: since the checkpoint that it told
    last; if it told none, since the last that it should have written; without any, all of it.

    For example, an attempt that began at 1,000 s, writes a checkpoint every 600 s and told one at
    1,900 s loses 100 s at 2,000 s; one that never told any loses 400 s.
    """
    if not workload.running_at_s:
        return 0.0
    ran_s = max(0.0, now_s - workload.running_at_s)
    if workload.checkpoint_at_s > workload.running_at_s:
        return min(ran_s, max(0.0, now_s - workload.checkpoint_at_s))
    every_s = workload.request.checkpoint_every_s if workload.request is not None else None
    return ran_s if every_s is None else ran_s % every_s


def counted_s(workload: Workload, over_at_s: float, *, blameless: bool) -> float:
    """What max_run_s counts of an attempt that is over: all that it ran; of one that was ended
    through no fault of its own, what was not lost, as far as that is known."""
    if not workload.running_at_s:
        return 0.0
    ran_s = max(0.0, over_at_s - workload.running_at_s)
    return ran_s - unsaved_s(workload, over_at_s) if blameless else ran_s


def saved_s(workload: Workload) -> float:
    """Of what its attempts that are over have run, what is kept: of a job that writes checkpoints
    what max_run_s counts, of any other nothing."""
    request = workload.request
    writes = request is not None and request.checkpoint_every_s is not None
    return workload.ran_s if writes or workload.checkpoint is not None else 0.0


def age_s(workload: Workload, now_s: float) -> float:
    """How long a job has run, as far as that is kept: its attempts that are over, and the one that
    runs."""
    running = workload.live and workload.running_at_s > 0
    return saved_s(workload) + (max(0.0, now_s - workload.running_at_s) if running else 0.0)
