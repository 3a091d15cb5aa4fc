"""Read, decide, write with the resource version; on a conflict read and decide again.

That is the only safe way to change part of an object which others write too. It is bounded: an
object that is fought over for long is somebody's mistake, and the last Conflict is raised.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from berthmaster.lib.kube.errors import ApiError, Conflict, ServerError, TooManyRequests

T = TypeVar("T")
R = TypeVar("R")

FIRST_PAUSE_S: Final = 0.01
LONGEST_PAUSE_S: Final = 1.0
LONGEST_TOLD_S: Final = 30.0  # a Retry-After beyond it is not waited for


async def on_conflict(
    read: Callable[[], Awaitable[T]],
    change: Callable[[T], object | None],
    write: Callable[[T, object], Awaitable[R]],
    *,
    attempts: int = 5,
    chance: Callable[[], float] = random.random,
) -> R | None:
    """What ``write`` returned; None if ``change`` found nothing to write.

    ``change`` gets what was just read and decides anew each time; ``write`` must hand the resource
    version of what was read to the server. Conflicts are tried again soon, refusals that name a
    time (429, 503) after that time. Raises the last error after so many attempts, and others at
    once.
    """
    if attempts < 1:
        raise ValueError(f"attempts >= 1, not {attempts}")
    for attempt in range(1, attempts + 1):
        try:
            current = await read()
            wanted = change(current)
            if wanted is None:
                return None
            return await write(current, wanted)
        except (Conflict, TooManyRequests, ServerError) as error:
            if attempt == attempts or not _worth_it(error):
                raise
            await asyncio.sleep(pause_s(attempt, error, chance()))
    raise AssertionError("the last attempt returns or raises")


def _worth_it(error: ApiError) -> bool:
    """A server's failure is repeated only if it named a time: else nothing says it will pass."""
    if isinstance(error, ServerError):
        return 0 < error.retry_after_s <= LONGEST_TOLD_S
    return error.retry_after_s <= LONGEST_TOLD_S


def pause_s(attempt: int, error: ApiError, chance: float) -> float:
    """How long to wait after so many attempts: as told, else a random part of a growing time."""
    growing_s = min(FIRST_PAUSE_S * 2.0 ** min(attempt, 16), LONGEST_PAUSE_S)
    return error.retry_after_s + growing_s * chance
