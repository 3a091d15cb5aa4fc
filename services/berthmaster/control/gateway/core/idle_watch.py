"""Find running jobs that leave all their GPUs idle, by the clusters' measurements. Pure.

``take`` gets each usage message of a job, twice a minute. ``due`` returns the changes to record in
the log: a job is idle, still idle, or no longer idle.

Example: queue research has the limits 2 h and 5 %. From 12:00 on, every message of job train shows
1 % for the busiest GPU. At 14:00 the gateway records that train is idle since 12:00, and repeats
this every ten minutes if the queue acts on idle jobs. At 14:35 a GPU is at 80 %, and the gateway
records this at once.

Rules:

- A sample is idle only if all GPUs of all pods were measured, no source contradicts another, and
  the busiest GPU stayed below the limit.
- Any other sample, a gap of ``GAP_S`` or a progress report restarts the period. Missing data never
  counts as idle, and withdraws a verdict.
- Times are the server's. A cluster's clock is never used.
- Parts of divided jobs and jobs that Kueue governs are left out: the gateway decides nothing about
  them.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from berthmaster.control.gateway.core.job_verbs import Order
from berthmaster.lib.engine.queueing.idle import VALID_S
from berthmaster.lib.lifecycle.attempts import is_ours_to_end
from berthmaster.lib.lifecycle.pods import set_of
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Key, Workload
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.telemetry import FIGURES_S, JobFigures
from berthmaster.lib.messages.workload import Idle

GAP_S: Final = 4 * FIGURES_S  # without a message, after which the usage is unknown
RENEW_S: Final = VALID_S * 2 / 3
BUSY: Final = "its GPUs work again"
UNMEASURED: Final = "not all of its GPUs are measured any more"
WHO: Final = "gateway: measured"


class _Seen(NamedTuple):
    """State of one attempt by its newest messages."""

    attempt: int
    last_s: float
    since_s: float | None  # start of the idle period, None if the newest sample was not idle
    percent: float  # maximum of any GPU in the idle period


class IdleWatch:
    def __init__(self) -> None:
        self._seen: dict[Key, _Seen] = {}
        self._flagged: dict[Key, float] = {}  # idle by the log -> known here since
        self._wanted: dict[Key, Order] = {}

    @property
    def idle(self) -> int:
        """Return the number of jobs idle by the log."""
        return len(self._flagged)

    def forget(self) -> None:
        """Drop everything after a replacement of the log."""
        self._seen.clear()
        self._flagged.clear()
        self._wanted.clear()

    def follow(self, work: Workload, now_s: float) -> None:
        """Follow a workload's state in the log."""
        name = work.key
        if work.idle is not None and not work.ended:
            self._flagged.setdefault(name, now_s)
        else:
            self._flagged.pop(name, None)
        if work.state is not State.RUNNING:
            self._seen.pop(name, None)
            self._wanted.pop(name, None)

    def take(self, told: JobFigures, work: Workload, setting: QueueSetting, now_s: float) -> None:
        """Take one message about a job. ``setting`` is the setting of the job's queue, with an idle
        limit.
        """
        name = work.key
        if not _is_watched(work) or (told.cluster, told.attempt) != (work.cluster, work.attempt):
            return
        if told.ended:
            self._seen.pop(name, None)
            return
        known = self._seen.get(name)
        if known is not None and known.attempt != told.attempt:
            known = None
        percent = _idle_percent(told, work, setting.idle_below_percent)
        if percent is None:
            self._seen[name] = _Seen(told.attempt, now_s, None, 0.0)
            self._want(work, None, BUSY if _is_measured(told, work) else UNMEASURED)
            return
        since_s = now_s - told.window_s
        if known is not None and known.since_s is not None and now_s - known.last_s <= GAP_S:
            since_s, percent = known.since_s, max(percent, known.percent)
        if work.progress_at_s > since_s:  # a progress report outweighs the measurement
            since_s = work.progress_at_s
        self._seen[name] = _Seen(told.attempt, now_s, since_s, percent)
        after_s = setting.idle_after_s
        if after_s is None or now_s - since_s < after_s:
            return
        acts = setting.idle_then != "report"
        if work.idle is None or (acts and now_s - work.idle.seen_s >= RENEW_S):
            self._want(work, Idle(since_s=since_s, utilization_percent=percent), "")

    def due(self, find: Callable[[str, str], Workload | None], now_s: float) -> list[Order]:
        """Return the changes to record. ``find`` returns an open workload by tenant and id."""
        for name, since_s in self._flagged.items():
            seen = self._seen.get(name)
            last_s = seen.last_s if seen is not None else since_s
            if now_s - last_s > GAP_S and (work := find(*name.split("/"))) is not None:
                self._want(work, None, UNMEASURED)
        for name, seen in list(self._seen.items()):
            if now_s - seen.last_s > GAP_S:
                del self._seen[name]
        wanted, self._wanted = self._wanted, {}
        return list(wanted.values())

    def _want(self, work: Workload, idle: Idle | None, reason: str) -> None:
        if idle is None and work.idle is None:
            self._wanted.pop(work.key, None)
            return
        self._wanted[work.key] = Order(
            work.tenant, work.id, "idle", WHO, reason=reason, idle=idle, attempt=work.attempt
        )


def _is_watched(work: Workload) -> bool:
    request = work.request
    return (
        work.state is State.RUNNING
        and request is not None
        and request.part is None
        and is_ours_to_end(work)
    )


def _is_measured(told: JobFigures, work: Workload) -> bool:
    request = work.request
    sets = {pods.name for pods in request.pod_sets if pods.gpus} if request is not None else set()
    holding = sum(set_of(pod.pod) in sets for pod in work.pods)
    use = told.use
    return (
        0 < holding <= told.pods
        and 0 < use.gpus == use.measured
        and use.utilization_max_percent is not None
        and told.window_s <= GAP_S
        and not told.disagreements
    )


def _idle_percent(told: JobFigures, work: Workload, below_percent: float) -> float | None:
    """Return the usage of the busiest GPU if the sample is idle, else None."""
    most = told.use.utilization_max_percent
    if most is None or most >= below_percent or not _is_measured(told, work):
        return None
    return most
