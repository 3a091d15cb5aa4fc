"""A small module and its tests, with every mutant run in a worker as scripts/mutate starts it."""

import textwrap
from pathlib import Path

import pytest

from scripts.mutation.__main__ import fates
from scripts.mutation.mutants import mutants_in
from scripts.mutation.worker import Baseline, Fate, Job

MODULE = """
    import functools

    BACK = -1

    @functools.cache
    def double(n):
        return n + n

    def before(n):
        return n + BACK

    def count(n):
        done = 0
        while n > 0:
            n -= 1
            done += 1
        return done

    def unused(n):
        return not n
"""
TESTS = """
    from mutated_sample import before, count, double

    def test_double_first():
        assert double(2)

    def test_double_then():
        assert double(2) == 4

    def test_before():
        assert before(3) == 2

    def test_count():
        assert count(3) == 3

    def test_fails_anyhow():
        assert double(2) == 5
"""


def test_every_mutant_meets_the_tests_that_execute_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, tests = tmp_path / "mutated_sample.py", tmp_path / "test_sample.py"
    module.write_text(textwrap.dedent(MODULE))
    tests.write_text(textwrap.dedent(TESTS))
    monkeypatch.syspath_prepend(tmp_path)
    source = module.read_text()
    mutants = tuple(mutants_in("mutated_sample", source))
    job = Job(mutants, {"mutated_sample": source}, (str(tests),), least_limit_s=2.0)

    told = list(fates(job))
    assert isinstance(told[0], Baseline)
    # Beside a checkout in the same folder, pytest names tests from there.
    assert [each.rpartition("/")[2] for each in told[0].failing] == [
        "test_sample.py::test_fails_anyhow"
    ]
    fate = {mutants[each.mutant].now: each for each in told[1:] if isinstance(each, Fate)}
    caught = {now: each.caught_by.rpartition("test_sample.py::")[2] for now, each in fate.items()}
    # The quicker of two goes first: which one that is, is the machine's affair.
    assert caught.pop("n - n") in {"test_double_first", "test_double_then"}
    assert fate["n - n"].tests == 2, "the first has not left its 4 in the cache for the second"
    assert caught == {
        # An import executes this one: a worker of its own has run all tests.
        "1": "test_before",
        "n - BACK": "test_before",
        "n >= 0": "test_count",
        "n <= 0": "test_count",
        "n += 1": "time limit",
        "done -= 1": "test_count",
        "n": "",
    }
    assert (fate["1"].tests, fate["n"].tests) == (4, 0)
    # Nothing stays behind: no file was changed and none was added.
    assert module.read_text() == source
    assert sorted(path.name for path in tmp_path.iterdir()) == [module.name, tests.name]
