"""Whose turn it is, what is refused, and what is forgotten."""

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from berthmaster.lib.nats import fair_queue as module
from berthmaster.lib.nats.fair_queue import (
    AT_WORK,
    FEW,
    MUCH_MORE,
    PORTION,
    Beyond,
    FairQueue,
    Share,
)
from tests.support.patience import hang_s

SHARE = Share(in_hand=4, bytes_in_hand=100, per_s=1000.0)


def join(
    turns: FairQueue,
    asker: str,
    size: int = 1,
    work: int = 1,
    start: Callable[[], None] = lambda: None,
) -> Beyond | None:
    if (beyond := turns.beyond(asker, size)) is None:
        turns.join(asker, size, work, start)
    return beyond


def in_turns(work: Callable[[FairQueue, list[str]], None], share: Share = SHARE) -> list[str]:
    """What was begun, in order, once all had their turn; a bar wherever the event loop ran."""

    async def run() -> list[str]:
        turns, begun = FairQueue(share), list[str]()
        work(turns, begun)
        while turns.waiting:
            await asyncio.sleep(0)
            begun.append("|")
        return begun

    return asyncio.run(run())


def test_each_has_one_turn_before_any_has_a_second() -> None:
    def work(turns: FairQueue, begun: list[str]) -> None:
        for name in ("a1", "a2", "a3", "b1", "c1"):
            assert join(turns, name[0], start=partial(begun.append, name)) is None

    assert in_turns(work) == ["a1", "b1", "c1", "a2", "|", "a3", "|"]


def test_between_portions_the_event_loop_runs() -> None:
    def work(turns: FairQueue, begun: list[str]) -> None:
        for name in ("a1", "a2", "b1"):
            join(turns, name[0], 1, PORTION, partial(begun.append, name))

    assert in_turns(work) == ["a1", "|", "b1", "|", "a2", "|"]


def test_what_is_beyond_number_bytes_or_rate_is_refused_until_something_is_over() -> None:
    async def run() -> None:
        turns = FairQueue(SHARE)

        number = Beyond("at most 4 requests of one tenant at once", 0.25)
        assert [join(turns, "a") for _ in range(5)] == [*[None] * 4, number]
        assert join(turns, "b") is None
        turns.leave("a", 1)
        assert join(turns, "a", 98) == Beyond(
            "at most 100 bytes of one tenant's requests at once", 0.25
        )
        assert join(turns, "a", 97) is None
        slow = FairQueue(SHARE._replace(per_s=2.0))
        rate = Beyond("at most 2 requests of one tenant a second", 1.0)
        assert [join(slow, "a") for _ in range(3)] == [None, None, rate]

    asyncio.run(run())


def test_one_request_may_be_larger_than_all_that_may_be_in_hand() -> None:
    async def run() -> None:
        turns = FairQueue(SHARE)
        assert join(turns, "a", 1000) is None
        assert join(turns, "a", 1) is not None

    asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(hang_s()):
        while not condition():
            await asyncio.sleep(0.001)
    for _ in range(10):  # and what would come besides
        await asyncio.sleep(0)


LARGE = Share(in_hand=500, bytes_in_hand=1000, per_s=1000.0)


def test_busy_asker_waits_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 600.0)
    monkeypatch.setattr(module, "AT_WORK", 100)

    async def run() -> list[str]:
        turns, begun = FairQueue(LARGE), list[str]()
        for _ in range(2 * PORTION + FEW):
            join(turns, "many", start=partial(begun.append, "many"))
        join(turns, "few", start=partial(begun.append, "few"))
        for _ in range(2 * AT_WORK // PORTION):
            await asyncio.sleep(0)
        begun.append("|")
        turns.leave("few", 1)
        await until(lambda: not turns.waiting)
        return begun

    begun = asyncio.run(run())
    first, then = begun[: begun.index("|")], begun[begun.index("|") + 1 :]
    assert first.index("few") <= 1  # those with few come first
    assert first.count("many") == PORTION
    assert then == ["many"] * (PORTION + FEW)


def test_larger_load_yields_to_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHORTEST_REST_S", 600.0)

    async def run(beside: int) -> list[str]:
        turns, begun = FairQueue(LARGE), list[str]()
        for name, count in (("slow", FEW + 1), ("flood", beside), ("slow", 1)):
            for _ in range(count):
                join(turns, name, start=partial(begun.append, name))
        for _ in range(2 * FEW // PORTION):
            await asyncio.sleep(0)
        return begun

    mine = FEW + 2
    for far_more, served in ((MUCH_MORE * mine, mine), (mine, PORTION // 2)):
        assert asyncio.run(run(far_more)).count("slow") == served


def test_where_others_come_too_so_much_of_one_is_at_work_and_the_next_when_one_is_over() -> None:
    async def run() -> None:
        turns, begun = FairQueue(LARGE), list[int]()
        join(turns, "other")
        await asyncio.sleep(0)
        turns.leave("other", 1)
        for number in range(AT_WORK + FEW):
            join(turns, "many", start=partial(begun.append, number))
        await until(lambda: len(begun) >= AT_WORK)
        turns.leave("many", 1)
        await until(lambda: len(begun) > AT_WORK)
        assert begun == list(range(AT_WORK + 1))
        assert turns.in_hand == AT_WORK + FEW - 1

    asyncio.run(run())


def test_busy_asker_rests_only_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHORTEST_REST_S", 600.0)

    async def run(*, others: bool) -> int:
        turns, begun = FairQueue(LARGE), list[str]()
        for name in ("many", "other") if others else ("many",):
            join(turns, name)
            await asyncio.sleep(0)
            turns.leave(name, 1)
        for _ in range(FEW + 3 * PORTION):
            join(turns, "many", start=partial(begun.append, "many"))
        for _ in range(20):
            await asyncio.sleep(0)
        return len(begun)

    assert asyncio.run(run(others=False)) == FEW + 3 * PORTION
    assert asyncio.run(run(others=True)) == PORTION
