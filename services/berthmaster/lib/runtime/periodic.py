"""Waits with an end: a periodic tick, a pause, an event with a time limit, cancellable work, and
several works at once.

The tick keeps its phase, whatever the duration of the work. Ticks missed because of slow work or a
slow machine are dropped and counted, not repeated in a burst.

``asyncio.wait_for`` is forbidden (ruff refuses it). Until Python 3.12 ``wait_for`` returns the
result when a cancellation arrives in the same pass of the event loop, and the cancelled task then
runs for ever. ``asyncio.timeout`` does not.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def beats(period_s: float, stopping: asyncio.Event) -> AsyncIterator[int]:
    """Yield at once and then every `period_s` until `stopping` is set: the number of missed
    ticks.
    """
    if period_s <= 0:
        raise ValueError(f"period_s > 0, not {period_s}")
    loop = asyncio.get_running_loop()
    due_s = loop.time()
    missed = 0
    while not stopping.is_set():
        yield missed
        late_s = loop.time() - due_s
        missed = max(0, int(late_s / period_s))
        due_s += (missed + 1) * period_s
        if await stopped_within(due_s - loop.time(), stopping):
            return


async def stopped_within(limit_s: float, stopping: asyncio.Event) -> bool:
    """Wait up to `limit_s` for the service to stop. Return whether `stopping` is set."""
    return await set_within(limit_s, stopping)


async def set_within(limit_s: float, event: asyncio.Event) -> bool:
    """Wait up to `limit_s` for an event. Return whether the event is set. A cancellation always
    ends the wait, also in the same pass of the event loop.
    """
    try:
        async with asyncio.timeout(max(0.0, limit_s)):
            await event.wait()
    except TimeoutError:
        pass
    return event.is_set()


async def any_set_within(limit_s: float, *events: asyncio.Event) -> bool:
    """Wait up to `limit_s` for the first of some events. Return whether one is set."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=max(0.0, limit_s), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    return any(event.is_set() for event in events)


async def unless_stopped(work: Coroutine[Any, Any, T], stopping: asyncio.Event) -> T | None:
    """Return the result of the work; None, with the work cancelled, if the service stops first."""
    task = asyncio.ensure_future(work)
    stop = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        stop.cancel()
        task.cancel()


async def together(*works: Coroutine[Any, Any, object]) -> None:
    """Wait for all works. The first failure cancels the others, and is raised in a group.

    The works get a task of their own. A task whose ``TaskGroup`` has failed keeps a request to be
    cancelled. Until Python 3.11.3 every later ``asyncio.timeout`` of that task then raises
    CancelledError in place of TimeoutError, which ends the task without a word.
    """

    async def group() -> None:
        async with asyncio.TaskGroup() as tasks:
            for work in works:
                tasks.create_task(work)

    await asyncio.ensure_future(group())
