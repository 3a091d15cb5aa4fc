"""How long the lab waits for other processes: until one hangs, however slow the machine is.

A wait ends as soon as its condition is true. The limit is reached when the condition has not moved
for ``HANG_S`` seconds of a machine that is free: where twice as many processes want to run as there
are cores, a second counts half.

    wait_until(lambda: process.poll() is not None, "the process ends")
"""

import os
import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

HANG_S: Final = 180.0  # without progress on a free machine, where steps take seconds
POLL_S: Final = 0.005
SLOWEST_POLL_S: Final = 0.05


class Hung(AssertionError):
    """A condition did not move for so long that it never will."""


def slowness() -> float:
    """Return how many times longer work takes than on a free machine; 1.0 at least.

    The kernel's load counts what wants to run and what waits for a disk."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def hang_s() -> float:
    """Return the present hang limit, for what takes a number: a thread's join, asyncio.timeout."""
    return HANG_S * slowness()


class Patience:
    """Counts how long one condition has not moved.

    ``hang_s`` may be larger than the default for a single step that is long by itself.
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
        self._still_s = 0.0  # since the last move, in seconds of a free machine
        self._last = moves() if moves is not None else None

    @property
    def pause_s(self) -> float:
        """How long to sleep before the next look: looking costs those who bring it about."""
        return min(max(POLL_S, (self._looked_s - self._began_s) / 20), SLOWEST_POLL_S)

    def look(self, found: object = "") -> None:
        """Count the time since the last look. Raises Hung when all patience is used up.

        ``found`` is what the look has found instead, for the error; it counts as no move."""
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
    """Ask until the answer is true, and return the answer. Raises Hung.

    ``poll_s`` is the least pause between two looks, for looks that are expensive."""
    patience = Patience(what or ask, moves=moves, hang_s=hang_s)
    while not (answer := ask()):
        patience.look()
        time.sleep(max(poll_s, patience.pause_s))
    return answer
