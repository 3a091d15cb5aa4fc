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
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final, TypeVar
from unittest import mock

from berthmaster.lab.controlplane.patience import (
    HANG_S,
    Hung,
    Patience,
    hang_s,
    slowness,
    wait_until,
)
from berthmaster.lib.runtime.settings import CommonSettings, load

__all__ = [
    "ANSWER_S",
    "HANG_S",
    "NEVER_S",
    "PATIENT",
    "Hung",
    "Patience",
    "eventually",
    "hang_s",
    "patient",
    "slowness",
    "until",
    "wait_until",
]

S = TypeVar("S", bound=CommonSettings)
T = TypeVar("T")

ANSWER_S: Final = 60.0  # for one answer that must come, of a request or to a connection
NEVER_S: Final = 3600.0  # a limit that must not be come to: of what fails or ends at once


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


def patient(kind: type[S], service: str, **given: Any) -> S:
    """Return settings of a service that runs in the test itself: PATIENT, and what is given."""
    with mock.patch.dict(os.environ, PATIENT):
        return replace(load(kind, service), **given)


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
