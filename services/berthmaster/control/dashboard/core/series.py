"""How busy a job's GPUs were over time, for as long as it runs and a while after. Pure.

A job's whole life stands in at most MOST points: when those are full, two neighbours become one,
and from then on a point stands for twice the time.
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
    """One attempt of a job: time, mean, lowest, highest utilization, memory, in percent."""

    __slots__ = ("_step", "_waiting", "attempt", "points")

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        self.points: list[tuple[float, float, float, float, float]] = []
        self._step = 1  # samples in a point
        self._waiting: list[tuple[float, float, float, float, float]] = []

    def add(self, now_s: float, busy: NDArray[Any], memory: NDArray[Any]) -> None:
        """One sample over its GPUs; unmeasured ones are left out before."""
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
        """As plots want it: a list for each figure."""
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
    """Those of the jobs that run and of those that ran last."""

    def __init__(self, most: int = MAX_JOBS) -> None:
        self._most = most
        self._of: OrderedDict[Key, Series] = OrderedDict()

    def of(self, name: Key, attempt: int) -> Series:
        """One job's, begun anew with each attempt."""
        series = self._of.get(name)
        if series is None or series.attempt != attempt:
            series = self._of[name] = Series(attempt)
        self._of.move_to_end(name)
        while len(self._of) > self._most:
            self._of.popitem(last=False)
        return series

    def known(self, name: Key) -> Series | None:
        """One job's, if there is any."""
        return self._of.get(name)


def measured(values: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Without those that were not measured."""
    known: NDArray[np.uint8] = values[values != UNKNOWN]
    return known
