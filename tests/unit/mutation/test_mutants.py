"""Small modules, all changes that could be made to them, and what they do with one switched on."""

import ast

import pytest

from scripts.mutation.__main__ import sample
from scripts.mutation.mutants import SWITCHES, Mutant, mutants_in, woven
from scripts.mutation.worker import Switches


def changes(source: str) -> list[str]:
    return [f"{mutant.was}  ->  {mutant.now}" for mutant in mutants_in("m", source)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", ["a < b  ->  a <= b", "a < b  ->  a >= b"]),
        (
            "a <= b == c",
            [
                "a <= b == c  ->  a < b == c",
                "a <= b == c  ->  a > b == c",
                "a <= b == c  ->  a <= b != c",
            ],
        ),
        ("a is None", ["a is None  ->  a is not None"]),
        ("a not in b", ["a not in b  ->  a in b"]),
        ("if a: pass", ["a  ->  not a"]),
        ("if not a: pass", ["not a  ->  a"]),
        (
            "a and b.c or d",
            [
                "a and b.c or d  ->  (a and b.c) and d",
                "a and b.c  ->  a or b.c",
                "a  ->  not a",
                "b.c  ->  not b.c",
                "d  ->  not d",
            ],
        ),
        ("[a for a in b if a.c]", ["a.c  ->  not a.c"]),
        ("a + b", ["a + b  ->  a - b"]),
        ("a // -b", ["a // -b  ->  a * -b", "-b  ->  b"]),
        ("a -= 1", ["a -= 1  ->  a += 1"]),
        ("def f(a: int = -b) -> c | None: ...", ["-b  ->  b"]),
    ],
)
def test_what_could_be_changed(source: str, expected: list[str]) -> None:
    assert changes(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        "assert a < b",
        "'a' + b",
        "a += f'{b}'",
        "a: b[not c]",
        "while True: break",
        "if TYPE_CHECKING: pass",
    ],
)
def test_what_is_left_alone(source: str) -> None:
    assert changes(source) == []


STEPS = """
def steps(limit, back=False):
    done = []
    while len(done) < limit:
        done.append(len(done) + 1)
    if back:
        done.reverse()
    match done:
        case [1, *_] if limit > 2:
            limit -= 1
    return done, limit
"""


def results(on: int) -> tuple[object, set[int]]:
    """What comes of one call, and which switches it passed."""
    places = {mutant.place: mutant.place for mutant in mutants_in("m", STEPS)}
    switches = Switches(on)
    space = {SWITCHES: switches}
    exec(compile(woven("m", STEPS, places), "m", "exec"), space)
    return space["steps"](3), switches.executed  # type: ignore[operator]


def test_a_switch_makes_its_change_and_no_other() -> None:
    found = {mutant.place: mutant.now for mutant in mutants_in("m", STEPS)}
    assert results(on=-1) == (([1, 2, 3], 2), set(found))
    assert {now: results(place)[0] for place, now in found.items()} == {
        "len(done) <= limit": ([1, 2, 3, 4], 2),
        "len(done) >= limit": ([], 3),
        "len(done) - 1": ([-1, 0, 1], 3),
        "not back": ([3, 2, 1], 3),
        "limit >= 2": ([1, 2, 3], 2),
        "limit <= 2": ([1, 2, 3], 3),
        "limit += 1": ([1, 2, 3], 4),
    }


def test_without_a_switch_a_module_stays_as_it_is() -> None:
    assert ast.dump(woven("m", STEPS, {})) == ast.dump(ast.parse(STEPS))


def test_a_draw_stays_what_it_was_when_other_code_moves() -> None:
    def told(mutants: list[Mutant]) -> list[tuple[str, str, int]]:
        return [(each.function, each.now, each.nth) for each in mutants]

    before = mutants_in("m", STEPS)
    moved = mutants_in("m", f"def first(a):\n    return a\n{STEPS}")
    assert [each.line for each in before] != [each.line for each in moved]
    assert told(sample(before, 3, seed=1)) == told(sample(moved, 3, seed=1))
    assert len({tuple(told(sample(before, 3, seed))) for seed in range(20)}) > 5


def test_equal_changes_of_one_function_have_lots_of_their_own() -> None:
    first, second = mutants_in("m", "def f():\n    return -a, -a\n")
    assert (first.nth, second.nth) == (0, 1)
    assert first.lot(1) != second.lot(1)
