"""The window of a connection's requests: how it opens, narrows, and what it does not repeat."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from berthmaster.lib.nats.window import LEAST, LONGEST_HOLD_S, MOST, Key, Window
from tests.support.patience import hang_s


def key(number: int) -> Key:
    return ("$JS.API.STREAM.INFO.WORKLOADS", b"%d" % number)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(hang_s()):
            await test()

    asyncio.run(within())


async def entering(window: Window, number: int) -> "asyncio.Task[None]":
    """Somebody who wants to ask, and has come as far as the window lets them."""
    task = asyncio.create_task(window.enter(key(number)))
    await turns()
    return task


async def turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_those_beyond_the_window_wait_in_turn_and_each_answer_lets_one_in() -> None:
    async def story() -> None:
        window = Window(first=2)
        tasks = [await entering(window, number) for number in range(5)]
        assert [task.done() for task in tasks] == [True, True, False, False, False]

        window.failed()  # no answer, and none to come
        await turns()
        assert [task.done() for task in tasks] == [True, True, True, False, False]

        window.answered(key(1))  # the window grows: 2.5 is still 2
        await turns()
        assert (window.size, [task.done() for task in tasks]) == (
            2.5,
            [True, True, True, True, False],
        )
        window.answered(key(2))  # 2.9
        window.answered(key(3))  # 3.2: room for three now
        await turns()
        assert tasks[4].done()
        assert (window.taken, int(window.size)) == (1, 3)

    run(story)


def test_it_grows_by_one_for_each_window_of_timely_answers_up_to_its_limit() -> None:
    async def story() -> None:
        window = Window(first=64)
        for number in range(64):
            await window.enter(key(number))
        for number in range(64):
            window.answered(key(number))
        assert 64.9 < window.size <= 65
        for number in range(100_000):
            await window.enter(key(number))
            window.answered(key(number))
        assert (window.size, window.taken) == (MOST, 0)

    run(story)


def test_answers_that_are_late_together_halve_it_once_and_keep_their_places() -> None:
    async def story() -> None:
        window = Window(first=64)
        for number in range(64):
            await window.enter(key(number))
        for number in range(64):
            window.late(str(number), key(number), limit_s=60)
        assert (window.size, window.taken) == (32, 64)
        waiting = await entering(window, 99)
        assert not waiting.done()  # all that it may have before the server still stands there

        for number in range(33):
            window.came(str(number))
        await turns()
        assert (waiting.done(), window.taken) == (True, 32)
        window.came("3")  # told twice: it was over
        assert window.taken == 32
        window.forget()
        assert window.taken == 1

    run(story)


def test_those_sent_since_halve_it_again_but_some_are_always_let_in() -> None:
    async def story() -> None:
        window = Window(first=40)
        await window.enter(key(0))
        window.late("0", key(0), limit_s=60)
        sizes = [window.size]
        for number in range(1, 4):
            await window.enter(key(number))
            await asyncio.sleep(0.02)
            window.late(str(number), key(number), limit_s=0.01)  # sent 0.01 s ago
            sizes.append(window.size)
        assert sizes == [20, LEAST, LEAST, LEAST]
        window.forget()
        assert window.taken == 0

    run(story)


def test_a_request_is_not_sent_again_while_its_predecessor_stands_in_the_queue() -> None:
    async def story() -> None:
        window = Window()
        await window.enter(key(1))
        window.late("a", key(1), limit_s=60)
        again, other = await entering(window, 1), await entering(window, 2)
        assert (again.done(), other.done()) == (False, True)
        window.came("a")
        await turns()
        assert (again.done(), window.taken) == (True, 2)

    run(story)


def test_unanswered_request_is_given_up_later(monkeypatch: pytest.MonkeyPatch) -> None:
    holds: list[float] = []

    async def story() -> None:
        loop = asyncio.get_running_loop()
        plain = loop.call_later

        def at_once(delay_s: float, call: Callable[..., Any], *args: Any) -> asyncio.TimerHandle:
            if delay_s in (10, 0.01):  # of this test
                return plain(delay_s, call, *args)
            holds.append(delay_s)
            return plain(0, call, *args)

        monkeypatch.setattr(loop, "call_later", at_once)
        window = Window()
        for number in range(6):
            await window.enter(key(1))
            window.late(str(number), key(1), limit_s=2)
            await asyncio.sleep(0.01)
            assert window.taken == 0
        assert holds == [2, 4, 8, 16, LONGEST_HOLD_S, LONGEST_HOLD_S]

        # An answer, however late, makes up for all that was lost.
        await window.enter(key(1))
        window.answered(key(1))
        await window.enter(key(1))
        window.late("later", key(1), limit_s=2)
        await asyncio.sleep(0.01)
        assert holds[-1] == 2

    run(story)


def test_who_gives_up_in_the_queue_leaves_no_hole_and_takes_no_place() -> None:
    async def story() -> None:
        window = Window(first=1)
        await window.enter(key(0))
        first, second = await entering(window, 1), await entering(window, 2)
        first.cancel()
        await turns()
        window.failed()
        await turns()
        assert (first.cancelled(), second.done(), window.taken) == (True, True, 1)

        # Given a place and cancelled in the same turn: the place goes on to the next.
        third, fourth = await entering(window, 3), await entering(window, 4)
        window.failed()
        third.cancel()
        await turns()
        assert (third.cancelled(), fourth.done(), window.taken) == (True, True, 1)

    run(story)
