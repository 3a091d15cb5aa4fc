"""GPU utilization of jobs over time, while a job runs and for a while after. Pure.

A job's whole run fits in at most MOST points. When all points are used, two neighbours are merged.
From then on a point covers twice the time.
"""

from collections import OrderedDict
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from berthmaster.control.dashboard.core.grid import UNKNOWN
from berthmaster.lib.lifecycle.workload import Key

MOST: Final = 240
MAX_JOBS: Final = 4_000  # some 10 KiB each


class Series:
    """One attempt of a job: time, mean, minimum and maximum utilization, memory, in percent."""

    __slots__ = ("_step", "_waiting", "attempt", "points")

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        self.points: list[tuple[float, float, float, float, float]] = []
        self._step = 1  # samples in a point
        self._waiting: list[tuple[float, float, float, float, float]] = []

    def add(self, now_s: float, busy: NDArray[Any], memory: NDArray[Any]) -> None:
        """Add one sample over the job's GPUs. The caller leaves out unmeasured GPUs."""
        if not len(busy):
            return
        full = float(memory.mean()) if len(memory) else -1.0
        sample = (now_s, float(busy.mean()), float(busy.min()), float(busy.max()), full)
        self._waiting.append(sample)
        if len(self._waiting) < self._step:
            return
        self.points.append(_merged(self._waiting))
        self._waiting = []
        if len(self.points) >= MOST:
            self.points = [_merged(self.points[at : at + 2]) for at in range(0, MOST, 2)]
            self._step *= 2

    def columns(self) -> dict[str, Any]:
        """Return the points in the form of plots: one list for each value."""
        points = [*self.points, *([_merged(self._waiting)] if self._waiting else [])]
        if not points:
            return {"attempt": self.attempt, "at_s": []}
        at, mean, low, high, memory = zip(*points, strict=True)
        return {
            "attempt": self.attempt,
            "at_s": [round(each, 1) for each in at],
            "mean": [round(each, 1) for each in mean],
            "low": list(low),
            "high": list(high),
            "memory": [None if each < 0 else round(each, 1) for each in memory],
        }


def _merged(
    points: list[tuple[float, float, float, float, float]],
) -> tuple[float, float, float, float, float]:
    count = len(points)
    measured = [point[4] for point in points if point[4] >= 0]
    return (
        points[-1][0],
        sum(point[1] for point in points) / count,
        min(point[2] for point in points),
        max(point[3] for point in points),
        sum(measured) / len(measured) if measured else -1.0,
    )


class AllSeries:
    """Series of running jobs and of the last ended ones."""

    def __init__(self, most: int = MAX_JOBS) -> None:
        self._most = most
        self._of: OrderedDict[Key, Series] = OrderedDict()

    def of(self, name: Key, attempt: int) -> Series:
        """Return the series of a job, a new one for each attempt."""
        series = self._of.get(name)
        if series is None or series.attempt != attempt:
            series = self._of[name] = Series(attempt)
        self._of.move_to_end(name)
        while len(self._of) > self._most:
            self._of.popitem(last=False)
        return series

    def known(self, name: Key) -> Series | None:
        """Return the series of a job, or None."""
        return self._of.get(name)


def measured(values: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the measured values only."""
    known: NDArray[np.uint8] = values[values != UNKNOWN]
    return known
