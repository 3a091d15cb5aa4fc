"""scripts/test counts what pytest reports, and a run that broke off never counts as passed."""

import subprocess
from pathlib import Path

import pytest

from berthmaster.lab.controlplane.projects import PROJECTS
from scripts import run_tests, systems
from scripts.outcomes import Outcomes
from scripts.run_tests import Row, Step, Tier, run_tier, summarize, tier_row
from tests.support.patience import wait_until

TESTS = """
import pathlib, pytest
MARK = pathlib.Path(__file__).with_name("mark")

def test_passes():
    pass

def test_fails_once():
    if not MARK.exists():
        MARK.touch()
        raise ValueError("too early")

def test_fails():
    assert 1 == 2

@pytest.mark.skip(reason="no engine")
def test_skips():
    pass
"""
CRASHES = """
import os

def test_passes():
    pass

def test_crashes():
    os._exit(3)
"""


def tier_of(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> Path:
    """Make a tier "some" with one file."""
    file = folder / "some" / "test_some.py"
    file.parent.mkdir()
    file.write_text(text)
    monkeypatch.setattr(run_tests, "TESTS", folder)
    return file


def test_a_tier_with_one_rerun_names_every_test_that_needed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tier_of(monkeypatch, tmp_path, TESTS)
    options = [f"--rootdir={tmp_path}"]
    row = run_tier("some", Tier(), options, None)
    assert (row.verdict, row.passed, row.failed, row.skipped) == ("FAILED", 2, 1, 1)
    assert row.notes == [
        "skipped in some: some/test_some.py::test_skips: no engine",
        "run again in some: some/test_some.py::test_fails_once: ValueError: too early",
        "run again in some: some/test_some.py::test_fails: assert 1 == 2",
        "FAILED in some: some/test_some.py::test_fails: assert 1 == 2",
    ]
    file.with_name("mark").unlink()
    row = run_tier("some", Tier(), options, 0)
    assert (row.passed, row.failed, row.skipped) == (1, 2, 1)
    assert not [note for note in row.notes if note.startswith("run again")]


def test_a_tier_whose_worker_crashes_fails_and_names_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier_of(monkeypatch, tmp_path, CRASHES)
    row = run_tier("some", Tier(processes=2), [f"--rootdir={tmp_path}"], None)
    assert (row.verdict, row.failed) == ("FAILED", 1)
    assert "test_crashes" in row.notes[-1]
    assert "crashed" in row.notes[-1]


def test_tier_row_fails_without_outcomes_and_without_tests() -> None:
    assert tier_row("bus", -9, 5.0, None).failed == 1
    nothing = Outcomes(passed={}, failed=(), skipped=(), rerun=())
    assert tier_row("bus", run_tests.NO_TESTS, 5.0, nothing).verdict == "FAILED"
    selected = tier_row("bus", run_tests.NO_TESTS, 5.0, nothing, selects=True)
    assert (selected.verdict, selected.failed) == ("nothing selected", 0)
    skipped = Outcomes(passed={}, failed=(), skipped=("x: no engine",), rerun=())
    assert tier_row("bus", run_tests.NO_TESTS, 5.0, skipped).verdict == "skipped"
    assert (
        tier_row("bus", 3, 5.0, Outcomes(passed={"a": 9}, failed=(), skipped=(), rerun=())).failed
        == 1
    )


def test_summarize_ends_with_every_note_and_the_total() -> None:
    rows = [
        Row("mypy", "passed", 20.0, passed=1),
        Row("bus", "passed", 61.0, passed=16, skipped=1, notes=["skipped in bus: x: no engine"]),
    ]
    lines = summarize(rows)
    assert lines[2].split() == ["bus", "passed", "16", "0", "1", "61.0"]
    assert lines[-2:] == ["skipped in bus: x: no engine", "17 passed, 0 failed, 1 skipped"]


def test_lines_name_each_real_system_and_when_its_tests_last_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTH_CACHE", str(tmp_path))
    monkeypatch.setattr(systems, "commit", lambda: "abc")
    version = PROJECTS["kueue"].version
    kueue = f"real system: kueue {version}: tests "
    passed = {"tests/cluster/test_multikueue.py": 3, "tests/cluster/test_karmada_real.py": 0}

    def lines(failed: list[str]) -> list[str]:
        found = systems.lines(passed, failed)
        return [line for line in found if " kueue " in line or " volcano " in line]

    nothing = "tests have not passed on this machine yet"
    assert lines(["tests/cluster/test_kueue_contract.py"]) == [
        kueue + nothing.removeprefix("tests "),
        f"real system: volcano as handed in: {nothing}",
    ]
    first = lines([])[0]
    assert first.startswith(kueue + "last passed ")
    assert first.endswith(" UTC on abc")
    monkeypatch.setattr(systems, "commit", lambda: "def")
    assert lines(["tests/cluster/test_kueue_contract.py"])[0] == first


def test_a_step_is_killed_at_its_limit_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "pid"
    step = Step("sh", "-c", f"sleep 600 & echo $! >{mark}; wait")
    wait_until(lambda: mark.exists() and mark.read_text().strip(), "its child runs")
    monkeypatch.setattr(run_tests, "LIMIT_S", 0.0)
    assert step.wait()[0] < 0
    child = ["ps", "-o", "stat=", "-p", mark.read_text().strip()]
    assert subprocess.run(child, capture_output=True, check=False).stdout.strip()[:1] in (b"", b"Z")


def test_main_refuses_a_tier_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_tests.main(["unti"])
    assert "no tier 'unti'; there are unit, simulation" in capsys.readouterr().err
