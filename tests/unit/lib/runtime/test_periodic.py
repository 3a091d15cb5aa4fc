import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from berthmaster.lib.runtime.periodic import beats, set_within, stopped_within, together
from tests.support.patience import hang_s
from tests.support.virtual import in_virtual_time

T = TypeVar("T")
Wait = Callable[[asyncio.Event], Awaitable[Any]]


def test_beats_keep_their_phase_and_count_what_slow_work_missed() -> None:
    async def story() -> list[tuple[float, int]]:
        stopping = asyncio.Event()
        seen: list[tuple[float, int]] = []
        work_s = iter([0.25, 0, 2.5, 0, 0])
        async for missed in beats(1, stopping):
            seen.append((asyncio.get_running_loop().time(), missed))
            await asyncio.sleep(next(work_s))
            if len(seen) == 5:
                stopping.set()
        return seen

    # The third beat's work ends at 4.5: those due at 3 and 4 are dropped, the next is on time.
    assert in_virtual_time(story()) == [(0, 0), (1, 0), (2, 0), (5, 2), (6, 0)]


def test_a_stop_ends_the_wait_for_the_next_beat_at_once() -> None:
    async def story() -> tuple[int, float]:
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.call_later(3, stopping.set)
        count = 0
        async for _ in beats(1000, stopping):
            count += 1
        return count, loop.time()

    assert in_virtual_time(story()) == (1, 3)


def test_waiting_for_a_stop_says_whether_it_came() -> None:
    async def story() -> list[bool]:
        stopping = asyncio.Event()
        before = await stopped_within(5, stopping)
        stopping.set()
        return [before, await stopped_within(5, stopping), await stopped_within(-1, stopping)]

    assert in_virtual_time(story()) == [False, True, True]


def test_a_period_of_nothing_is_refused() -> None:
    async def story() -> None:
        async for _ in beats(0, asyncio.Event()):
            pass

    with pytest.raises(ValueError, match="period_s > 0"):
        in_virtual_time(story())


def test_a_cancellation_in_the_turn_in_which_the_event_is_set_is_never_swallowed() -> None:
    async def for_ever(event: asyncio.Event, wait: Wait) -> int:
        turns = 0
        while True:
            await wait(event)
            event.clear()
            turns += 1
            if turns == 10:
                return turns  # it was cancelled long ago

    async def cancelled(wait: Wait) -> bool:
        event = asyncio.Event()
        task = asyncio.create_task(for_ever(event, wait))
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # for_ever waits, and so does what wait_for has made of it
        event.set()
        await asyncio.sleep(0)  # the inner wait has its result, which nobody has fetched
        task.cancel()
        await asyncio.wait({task}, timeout=hang_s())
        again = asyncio.get_running_loop().time() > 0
        task.cancel()
        await asyncio.wait({task})
        return task.cancelled() and not again

    assert in_virtual_time(cancelled(lambda event: set_within(1000, event)))
    if sys.version_info < (3, 12):  # what the test is about: this one waits on
        assert not in_virtual_time(
            cancelled(lambda event: asyncio.wait_for(event.wait(), hang_s()))
        )


def test_failure_of_one_work_cancels_the_others_and_leaves_later_time_limits_as_they_are() -> None:
    cancelled: list[bool] = []

    async def fails() -> None:
        await asyncio.sleep(1)
        raise ValueError("broken")

    async def waits() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            cancelled.append(True)

    async def story() -> None:
        with pytest.raises(ExceptionGroup) as failed:
            await together(waits(), fails())
        assert [str(each) for each in failed.value.exceptions] == ["broken"]
        assert cancelled == [True]
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0  # what asyncio.timeout asks, and a TaskGroup leaves at 1
        assert not await set_within(1, asyncio.Event())

    in_virtual_time(story())


def test_cancelled_wait_cancels_all_works() -> None:
    ended: list[int] = []

    async def waits(number: int) -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append(number)

    async def story() -> None:
        task = asyncio.ensure_future(together(waits(1), waits(2)))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    in_virtual_time(story())
    assert sorted(ended) == [1, 2]
