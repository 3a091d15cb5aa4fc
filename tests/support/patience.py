"""How long tests wait for what other processes do: until that hangs, however slow the machine is.

A wait ends as soon as its condition is true, so its limit costs nothing in a run that passes. It is
reached when the condition has not moved for ``HANG_S`` seconds of a machine that is free: where
twice as many processes want to run as there are cores, a second counts half.

    await until(lambda: seen == [1, 2], "both events")
    await until(lambda: len(seen) == 9000, "all messages", moves=lambda: len(seen))
    wait_until(lambda: process.poll() is not None, "the process ends")

Rules: a test names no seconds for what must happen. Where something must *not* happen, wait for
a later event that proves the decision was made; sleep only where there is no such event.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final, TypeVar
from unittest import mock

from berthmaster.lib.runtime.settings import CommonSettings, load

S = TypeVar("S", bound=CommonSettings)
T = TypeVar("T")

HANG_S: Final = 180.0  # without progress on a free machine, where steps take seconds
ANSWER_S: Final = 60.0  # for one answer that must come, of a request or to a connection
NEVER_S: Final = 3600.0  # a limit that must not be come to: of what fails or ends at once
POLL_S: Final = 0.005
SLOWEST_POLL_S: Final = 0.05


# Limits of services within which a machine that is free has long answered. Reached for slowness
# alone, they make wrong results: "nobody knows" of an answer, a second placement of a placement, a
# silent cluster of one that lives. Tests of such a limit set it themselves.
PATIENT: Final[dict[str, str]] = {
    "BERTH_GATEWAY_SETTLE_LIMIT_S": "20",
    "BERTH_GATEWAY_REQUEST_LIMIT_S": "60",
    "BERTH_RESOLVER_CLAIM_TIMEOUT_S": "120",
    "BERTH_RESOLVER_STALE_AFTER_S": "120",
    "BERTH_SCORER_STALE_AFTER_S": "120",
}


class Hung(AssertionError):
    """A condition did not move for so long that it never will."""


def patient(kind: type[S], service: str, **given: Any) -> S:
    """Return settings of a service that runs in the test itself: PATIENT, and what is given."""
    with mock.patch.dict(os.environ, PATIENT):
        return replace(load(kind, service), **given)


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


async def until(
    ask: Callable[[], T | None], what: object = "", *, moves: Callable[[], object] | None = None
) -> T:
    """Ask until the answer is true, and return the answer, in an event loop. Raises Hung."""
    patience = Patience(what or ask, moves=moves)
    while not (answer := ask()):
        patience.look()
        await asyncio.sleep(patience.pause_s)
    return answer


async def eventually(
    ask: Callable[[], Awaitable[T | None]],
    what: object = "",
    *,
    away: type[Exception] | tuple[type[Exception], ...] = (),
    moves: Callable[[], object] | None = None,
) -> T:
    """Ask, over something that may be away, until the answer is true, and return the answer.

    Errors of the kind ``away`` count as an answer that is not true. Raises Hung."""
    patience = Patience(what or ask, moves=moves)
    while True:
        failed = ""
        try:
            if answer := await ask():
                return answer
        except away as error:
            failed = repr(error)
        patience.look(failed)
        await asyncio.sleep(patience.pause_s)
