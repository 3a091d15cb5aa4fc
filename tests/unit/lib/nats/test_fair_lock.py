"""Whose turn it is at long work, and that no turn is lost."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from berthmaster.lib.nats import fair_lock as module
from berthmaster.lib.nats.fair_lock import FairLock, TimeSlices
from tests.support.patience import hang_s


def test_one_who_has_much_of_it_costs_another_the_piece_that_is_under_way() -> None:
    async def run() -> list[str]:
        turns, done = FairLock(), list[str]()

        async def piece(asker: str, number: int) -> None:
            async with turns.turn(asker):
                await asyncio.sleep(0)
                done.append(f"{asker}{number}")

        loud = [asyncio.create_task(piece("loud", number)) for number in range(4)]
        await asyncio.sleep(0)
        await asyncio.gather(*loud, piece("one", 0), piece("two", 0))
        return done

    # The second of the loud one's was in its row before the others came.
    assert asyncio.run(run()) == ["loud0", "loud1", "one0", "two0", "loud2", "loud3"]


def test_who_gives_up_keeps_nobody_waiting_also_where_his_turn_comes_at_that_moment() -> None:
    async def run() -> None:
        turns = FairLock()
        await turns.take("first")
        early, late, last = (asyncio.create_task(turns.take(name)) for name in ("a", "b", "c"))
        await asyncio.sleep(0)
        early.cancel()
        turns.hand_over()
        late.cancel()  # it has the turn, and does not know it yet
        async with asyncio.timeout(hang_s()):
            await last
        assert (early.cancelled(), late.cancelled()) == (True, True)
        turns.hand_over()
        async with asyncio.timeout(hang_s()):
            await turns.take("next")  # nobody has it

    asyncio.run(run())


def test_an_error_within_a_turn_ends_it() -> None:
    async def run() -> None:
        turns = FairLock()
        with pytest.raises(ValueError, match="broken"):
            async with turns.turn("a"):
                raise ValueError("broken")
        async with asyncio.timeout(hang_s()):
            await turns.take("b")

    asyncio.run(run())


async def in_stretches(
    stretches: TimeSlices, asker: str, count: int, say: Callable[[str], object]
) -> None:
    for _ in range(count):
        await stretches.next(asker)
        say(asker)


def test_slices_of_two_go_on_in_turn_and_the_loop_runs_between_any_two() -> None:
    async def run() -> list[str]:
        stretches, said = TimeSlices(), list[str]()
        work: list[Awaitable[None]] = [
            in_stretches(stretches, name, 3, said.append) for name in "ab"
        ]
        await asyncio.gather(*work)
        return said

    assert asyncio.run(run()) == ["a", "b", "a", "b", "a", "b"]


def test_slice_waits_for_multiple_of_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_PER_SLICE", 1e9)

    async def run(*served: str) -> list[str]:
        stretches, said = TimeSlices(), list[str]()
        for name in served:
            stretches.served(name)
        work = asyncio.create_task(in_stretches(stretches, "loud", 3, said.append))
        await asyncio.wait({work}, timeout=0.1 if "other" in served else 5)
        work.cancel()
        return said

    assert asyncio.run(run("loud")) == ["loud"] * 3
    assert asyncio.run(run("loud", "other")) == ["loud"]
