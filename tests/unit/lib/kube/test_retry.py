"""Read, decide, write: who loses a race reads again, and gives up in the end."""

import asyncio

import pytest

from berthmaster.lib.kube.errors import (
    ApiError,
    Conflict,
    Invalid,
    NotFound,
    ServerError,
    TooManyRequests,
)
from berthmaster.lib.kube.retry import on_conflict, pause_s


class Register:
    """A number with a version, and writers who come in between."""

    def __init__(self, *refusals: ApiError | None) -> None:
        self.value = 10
        self.version = 1
        self.refusals = list(refusals)
        self.reads = 0

    async def read(self) -> tuple[int, int]:
        self.reads += 1
        return self.value, self.version

    async def write(self, current: tuple[int, int], wanted: object) -> int:
        assert isinstance(wanted, int)
        refused = self.refusals.pop(0) if self.refusals else None
        if isinstance(refused, Conflict):
            self.value += 100  # somebody else was here
            self.version += 1
        if refused is not None:
            raise refused
        assert current[1] == self.version
        self.value = wanted
        return wanted


def conflict() -> Conflict:
    return Conflict(409, "Conflict", "the object has been modified", "/p")


def test_after_a_conflict_the_decision_is_made_anew_on_what_is_there_now() -> None:
    register = Register(conflict(), conflict())
    answer = asyncio.run(on_conflict(register.read, lambda now: now[0] + 1, register.write))
    assert answer == register.value == 211
    assert register.reads == 3


def test_nothing_to_write_is_an_answer_and_costs_no_call() -> None:
    register = Register(conflict())
    done = on_conflict(
        register.read, lambda now: now[0] + 1 if now[0] < 50 else None, register.write
    )
    assert asyncio.run(done) is None  # the other writer had done it
    assert (register.value, register.reads) == (110, 2)


def test_an_object_that_is_fought_over_is_given_up_with_the_last_conflict() -> None:
    register = Register(*[conflict() for _ in range(9)])
    with pytest.raises(Conflict):
        asyncio.run(on_conflict(register.read, lambda now: now[0] + 1, register.write, attempts=3))
    assert register.reads == 3


@pytest.mark.parametrize("error", [Invalid, NotFound, ServerError])
def test_what_will_not_pass_by_waiting_is_raised_at_once(error: type[ApiError]) -> None:
    register = Register(error(500, "", "no", "/p"))
    with pytest.raises(error):
        asyncio.run(on_conflict(register.read, lambda now: 1, register.write))
    assert register.reads == 1


def test_who_is_told_when_to_come_back_does_so_then() -> None:
    async def story() -> float:
        busy = TooManyRequests(429, "TooManyRequests", "later", "/p", 0.2)
        down = ServerError(503, "ServiceUnavailable", "later", "/p", 0.1)
        register = Register(busy, down)
        before_s = asyncio.get_running_loop().time()
        assert await on_conflict(register.read, lambda now: 1, register.write) == 1
        return asyncio.get_running_loop().time() - before_s

    assert asyncio.run(story()) >= 0.3


def test_nobody_waits_for_hours_because_a_server_said_so() -> None:
    register = Register(TooManyRequests(429, "TooManyRequests", "later", "/p", 3600.0))
    with pytest.raises(TooManyRequests):
        asyncio.run(on_conflict(register.read, lambda now: 1, register.write))


def test_pauses_grow_and_are_spread_so_that_rivals_part() -> None:
    error = conflict()
    assert [round(pause_s(attempt, error, 1.0), 3) for attempt in (1, 2, 3, 9)] == [
        0.02,
        0.04,
        0.08,
        1.0,
    ]
    assert pause_s(3, error, 0.0) == 0.0
    assert pause_s(10_000, error, 1.0) == 1.0


def test_no_attempt_at_all_is_a_mistake_of_the_caller() -> None:
    register = Register()
    with pytest.raises(ValueError, match="attempts >= 1, not 0"):
        asyncio.run(on_conflict(register.read, lambda now: 1, register.write, attempts=0))
