"""Whose turn it is, what is refused, and what is forgotten."""

import asyncio
from collections.abc import Callable
from functools import partial

from berthmaster.bus.turns import PORTION, Share, Turns

SHARE = Share(in_hand=4, bytes_in_hand=100, per_s=1000.0)


def in_turns(work: Callable[[Turns, list[str]], None], share: Share = SHARE) -> list[str]:
    """What was begun, in order, once all had their turn; a bar wherever the event loop ran."""

    async def run() -> list[str]:
        turns, begun = Turns(share), list[str]()
        work(turns, begun)
        while turns.waiting:
            await asyncio.sleep(0)
            begun.append("|")
        return begun

    return asyncio.run(run())


def test_each_has_one_turn_before_any_has_a_second() -> None:
    def work(turns: Turns, begun: list[str]) -> None:
        for name in ("a1", "a2", "a3", "b1", "c1"):
            assert turns.join(name[0], 1, 1, partial(begun.append, name)) == ""

    assert in_turns(work) == ["a1", "b1", "c1", "a2", "a3", "|"]


def test_between_portions_the_event_loop_runs() -> None:
    def work(turns: Turns, begun: list[str]) -> None:
        for name in ("a1", "a2", "b1"):
            turns.join(name[0], 1, PORTION, partial(begun.append, name))

    assert in_turns(work) == ["a1", "|", "b1", "|", "a2", "|"]


def test_what_is_beyond_number_bytes_or_rate_is_refused_until_something_is_over() -> None:
    async def run() -> None:
        turns = Turns(SHARE)

        def join(size: int = 1, who: str = "a") -> str:
            return turns.join(who, size, 1, lambda: None)

        assert [join() for _ in range(4)] == [""] * 4
        assert join() == "at most 4 requests of one tenant at once"
        assert join(who="b") == ""
        turns.leave("a", 1)
        assert join(98) == "at most 100 bytes of one tenant's requests at once"
        assert join(97) == ""
        slow = Turns(SHARE._replace(per_s=2.0))
        told = [slow.join("a", 1, 1, lambda: None) for _ in range(3)]
        assert told == ["", "", "at most 2 requests of one tenant a second"]

    asyncio.run(run())


def test_one_request_may_be_larger_than_all_that_may_be_in_hand() -> None:
    async def run() -> None:
        turns = Turns(SHARE)
        assert turns.join("a", 1000, 1, lambda: None) == ""
        assert turns.join("a", 1, 1, lambda: None) != ""

    asyncio.run(run())
