"""The lab's waits for other processes: until a process hangs, however slow the machine is.

A wait ends as soon as its condition is true. A wait fails when the condition has not changed for
``HANG_S`` seconds of an idle machine. Example: if twice as many processes want to run as there are
cores, a second counts half.

    wait_until(lambda: process.poll() is not None, "the process ends")
"""

import os
import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

HANG_S: Final = 180.0  # without progress on an idle machine, where steps take seconds
POLL_S: Final = 0.01
SLOWEST_POLL_S: Final = 0.25
POLL_SHARE: Final = 0.1  # of the time waited so far: a check costs both sides computing time


class Hung(AssertionError):
    """A condition did not change within the limit."""


def slowness() -> float:
    """Return the factor by which work takes longer than on an idle machine; at least 1.0.

    The kernel's load counts runnable processes and processes waiting for a disk.
    """
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def hang_s() -> float:
    """Return the present hang limit, for a thread's join or asyncio.timeout."""
    return HANG_S * slowness()


class Patience:
    """Counts how long one condition has not changed.

    ``hang_s`` may exceed the default for a single long step.
    """

    def __init__(
        self,
        what: object,
        *,
        moves: Callable[[], object] | None = None,
        hang_s: float = HANG_S,
        clock: Callable[[], float] = time.monotonic,
        slow: Callable[[], float] = slowness,
    ) -> None:
        self._what, self._moves, self._hang_s = what, moves, hang_s
        self._clock, self._slow = clock, slow
        self._began_s = self._looked_s = clock()
        self._still_s = 0.0  # since the last change, in seconds of an idle machine
        self._last = moves() if moves is not None else None

    @property
    def pause_s(self) -> float:
        """Return the pause before the next check, because checks slow down the processes in
        question."""
        waited_s = self._looked_s - self._began_s
        return min(max(POLL_S, POLL_SHARE * waited_s), SLOWEST_POLL_S)

    def look(self, found: object = "") -> None:
        """Count the time since the last check. Raises Hung at the limit.

        ``found`` is the present state for the error message. A new ``found`` is no progress.
        """
        now_s = self._clock()
        self._still_s += (now_s - self._looked_s) / self._slow()
        self._looked_s = now_s
        if self._moves is not None and (now := self._moves()) != self._last:
            self._last, self._still_s = now, 0.0
        if self._still_s > self._hang_s:
            at = "" if self._moves is None else f"; stands at {self._last!r}"
            found = f"; found {found}" if found else ""
            raise Hung(f"not within {now_s - self._began_s:.0f} s: {self._what}{at}{found}")


def wait_until(
    ask: Callable[[], T | None],
    what: object = "",
    *,
    moves: Callable[[], object] | None = None,
    poll_s: float = 0.0,
    hang_s: float = HANG_S,
) -> T:
    """Call ``ask`` until the result is true, and return the result. Raises Hung.

    ``poll_s`` is the minimum pause between two costly checks.
    """
    patience = Patience(what or ask, moves=moves, hang_s=hang_s)
    while not (answer := ask()):
        patience.look()
        time.sleep(max(poll_s, patience.pause_s))
    return answer
