"""Read, decide, and write with the resource version. After a conflict, start again.

This is the only safe way to change part of an object that others write too. The number of attempts
is limited. An object with conflicts for so long is a mistake of some writer, so the last Conflict
is raised.
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
LONGEST_TOLD_S: Final = 30.0  # longest accepted Retry-After


async def on_conflict(
    read: Callable[[], Awaitable[T]],
    change: Callable[[T], object | None],
    write: Callable[[T, object], Awaitable[R]],
    *,
    attempts: int = 5,
    chance: Callable[[], float] = random.random,
) -> R | None:
    """Return the result of ``write``, or None if ``change`` found nothing to write.

    ``change`` gets the object just read, at each attempt. ``write`` must send the resource version
    of that object to the server. Conflicts are retried soon. Refusals with a Retry-After (429, 503)
    are retried after that time. Raise the last error after ``attempts``, and any other error at
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
    """Return whether to retry. A failed server must have named a time, or may never recover."""
    if isinstance(error, ServerError):
        return 0 < error.retry_after_s <= LONGEST_TOLD_S
    return error.retry_after_s <= LONGEST_TOLD_S


def pause_s(attempt: int, error: ApiError, chance: float) -> float:
    """Return the pause: the server's Retry-After plus a random part of a growing time."""
    growing_s = min(FIRST_PAUSE_S * 2.0 ** min(attempt, 16), LONGEST_PAUSE_S)
    return error.retry_after_s + growing_s * chance
