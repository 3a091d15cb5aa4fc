"""SM activity of a GPU or its MIG slices, from the counters of Hopper and later. Pure.

Counters only grow, so rare reads miss nothing, but one costs 2 to 3 ms of CPU (H200, driver 580).
They are read every `COUNTERS_S` and give the mean of that time.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from berthmaster.worker.telemetry.core.nvml_driver import Activity, Counters, Handle, Nvml
from berthmaster.worker.telemetry.core.nvml_processes import Ask

COUNTERS_S: Final = 30.0
NOTHING: Final[Mapping[str, Activity]] = MappingProxyType({})


class Counting:
    """Counters of one GPU, or of its slices."""

    def __init__(self, driver: Nvml, ask: Ask) -> None:
        self._driver = driver
        self._ask = ask
        self.begin()

    def begin(self) -> None:
        """The driver has named the GPU anew: what an earlier handle has counted is no use."""
        self._due_s = float("-inf")
        self._last: dict[str, Counters] = {}  # by UUID
        self._told = NOTHING

    def read(
        self, now_s: float, devices: Mapping[str, Callable[[Handle], Counters]]
    ) -> Mapping[str, Activity]:
        """Return the activity of devices by UUID over the last interval, as far as known."""
        if now_s < self._due_s:
            return self._told
        self._due_s = now_s + COUNTERS_S
        before, self._last, self._told = self._last, {}, NOTHING
        told: dict[str, Activity] = {}
        try:
            for uuid, count in devices.items():
                counters = self._ask(f"counters of {uuid}", count)
                if counters is None:
                    continue
                self._last[uuid] = counters
                activity = self._between(before[uuid], counters) if uuid in before else None
                if activity is not None:
                    told[uuid] = activity
        finally:
            for counters in before.values():
                self._driver.forget(counters)
        self._told = told
        return told

    def _between(self, before: Counters, after: Counters) -> Activity | None:
        return self._ask("activity", lambda _: self._driver.activity(before, after))
