"""The budget of trials: GPU hours within 24 hours, by queue. Pure.

A placed trial is charged its GPUs times its whole run time, because its end is not known then. The
decision that places a trial is the record, so a repeated decision and a restarted resolver find the
same budget.

Example: queue research has 20 GPU hours a day. A trial of 8 GPUs for 600 s is charged 1.33 GPU
hours, so 15 of them run within 24 hours. The next one waits until the first charge is a day old.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

from berthmaster.lib.lifecycle.trials import trial_gpu_s
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.workload import JobRequest

DAY_S: Final = 86_400.0
_HOUR_S: Final = 3600.0
_ROUNDING_S: Final = 1e-6


class RecentTrials:
    """Charges of the last 24 hours in decisions. Times are those of decisions, in seconds since
    1970.
    """

    def __init__(self, recorded: Iterable[tuple[float, str, float]] = ()) -> None:
        self._recorded = deque(recorded)  # time, queue, GPU seconds

    def add(self, at_s: float, queue: str, gpu_s: float) -> None:
        self._recorded.append((at_s, queue, gpu_s))
        while self._recorded[0][0] < at_s - DAY_S:
            self._recorded.popleft()

    def used_gpu_s(self, queue: str, now_s: float) -> float:
        """Return the charges of a queue within the last 24 hours."""
        return sum(
            gpu_s for at_s, of, gpu_s in self._recorded if of == queue and at_s > now_s - DAY_S
        )

    def free_at_s(
        self, queue: str, gpu_s: float, budget_gpu_s: float, now_s: float
    ) -> float | None:
        """Return the time at which the budget allows a charge; None = never."""
        used = self.used_gpu_s(queue, now_s)
        if used + gpu_s <= budget_gpu_s + _ROUNDING_S:
            return now_s
        for at_s, of, charged in self._recorded:
            if of == queue and at_s > now_s - DAY_S:
                used -= charged
                if used + gpu_s <= budget_gpu_s + _ROUNDING_S:
                    return at_s + DAY_S
        return None

    def state(self) -> list[tuple[float, str, float]]:
        """Return the data for a snapshot."""
        return list(self._recorded)


def trial_refusal(
    recent: RecentTrials,
    setting: QueueSetting | None,
    request: JobRequest,
    now_s: float,
    drafted_gpu_s: float = 0.0,
) -> str:
    """Return why a trial is not placed now by its queue's budget; "" = it may be.

    ``drafted_gpu_s``: charges of the same decision.
    """
    budget_h = setting.trial_gpu_h_a_day if setting is not None else None
    if budget_h is None:
        return "its queue allows no trials any more"
    budget, asked = budget_h * _HOUR_S, trial_gpu_s(request)
    free_at_s = recent.free_at_s(request.queue, asked + drafted_gpu_s, budget, now_s)
    if free_at_s is not None and free_at_s <= now_s:
        return ""
    used_h = (recent.used_gpu_s(request.queue, now_s) + drafted_gpu_s) / _HOUR_S
    need = f"{asked / _HOUR_S:.3g} more are needed"
    told = f"trials of its queue took {used_h:.3g} of {budget_h:g} GPU hours in 24 h, and {need}"
    return told if free_at_s is None else f"{told}, free in {free_at_s - now_s:.0f} s"
