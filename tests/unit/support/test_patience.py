"""The clock that waits of tests are counted on."""

import ast
import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.patience import HANG_S, Hung, Patience, eventually, slowness, until, wait_until

TESTS = Path(__file__).resolve().parents[2]
BARRED_FROM = (
    "unit",
    "simulation",
    "gpu",
)  # no other processes, virtual time, a driver's own times


def seconds_waited_for(text: str) -> Iterator[str]:
    """Yield each wait whose limit is a number of seconds, as its source."""
    waits = {"asyncio.timeout": 0, "asyncio.wait_for": 1}
    for call in ast.walk(ast.parse(text)):
        if not isinstance(call, ast.Call) or (name := ast.unparse(call.func)) not in waits:
            continue
        limits = call.args[waits[name] : waits[name] + 1]
        for limit in limits:
            if isinstance(limit, ast.Constant) and isinstance(limit.value, int | float):
                yield ast.unparse(call)


def test_tests_of_processes_wait_for_no_number_of_seconds() -> None:
    assert list(seconds_waited_for("asyncio.timeout(5)")) == ["asyncio.timeout(5)"]
    found = {
        f"{path.relative_to(TESTS)}: {wait}"
        for path in TESTS.rglob("*.py")
        if path.relative_to(TESTS).parts[0] not in BARRED_FROM
        for wait in seconds_waited_for(path.read_text())
    }
    assert found == set(), "use tests/support/patience.py"


class Machine:
    """A clock, and how slow it is."""

    def __init__(self, slow: float = 1.0) -> None:
        self.now_s, self.slow = 0.0, slow

    def clock(self) -> float:
        return self.now_s


def test_patience_without_progress_ends_at_the_hang_limit() -> None:
    machine = Machine()
    patience = Patience("the pod", clock=machine.clock, slow=lambda: machine.slow)
    machine.now_s = HANG_S
    patience.look()
    machine.now_s += 1
    with pytest.raises(Hung, match=r"not within 181 s: the pod"):
        patience.look()


def test_patience_of_a_machine_half_as_fast_lasts_twice_as_long() -> None:
    machine = Machine(slow=2.0)
    patience = Patience("the pod", clock=machine.clock, slow=lambda: machine.slow)
    machine.now_s = 2 * HANG_S
    patience.look()
    machine.now_s += 3
    with pytest.raises(Hung, match=r"not within 363 s"):
        patience.look()


def test_patience_begins_anew_with_each_move() -> None:
    machine, seen = Machine(), [1]
    patience = Patience("all", moves=lambda: len(seen), clock=machine.clock, slow=lambda: 1.0)
    for number in range(5):
        machine.now_s += HANG_S
        seen.append(number)
        patience.look()
    machine.now_s += HANG_S + 1
    with pytest.raises(Hung, match=r"not within 1081 s: all; stands at 6"):
        patience.look()


def test_slowness_is_one_on_a_free_machine() -> None:
    assert slowness() >= 1.0


def test_waits_return_the_first_true_answer() -> None:
    answers = iter((0, "", [7]))
    assert wait_until(lambda: next(answers)) == [7]
    later = iter((0, None, "b"))
    assert asyncio.run(until(lambda: next(later))) == "b"


def test_eventually_asks_again_after_an_error_of_the_kind_away() -> None:
    answers = iter((OSError("refused"), False, "there"))

    async def ask() -> object:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert asyncio.run(eventually(ask, away=OSError)) == "there"


def test_eventually_raises_other_errors_at_once() -> None:
    async def ask() -> bool:
        raise ValueError("malformed")

    with pytest.raises(ValueError, match="malformed"):
        asyncio.run(eventually(ask, away=OSError))
