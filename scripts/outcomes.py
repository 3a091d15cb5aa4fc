"""A pytest plugin that writes down what came of a tier: python -m pytest -p scripts.outcomes.

The file that BERTH_OUTCOMES names gets one JSON object, an Outcomes, at the end of the run. A run
that was killed leaves none, so each try that failed is also printed at once.
"""

import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

VARIABLE: Final = "BERTH_OUTCOMES"
_CAUSE_COLUMNS: Final = 300


class Outcomes(msgspec.Struct, frozen=True, kw_only=True):
    """Counts, and a line for everything that a reader should not have to look for."""

    passed: dict[str, int]  # file -> how many of its tests
    failed: tuple[str, ...]  # "test: first line of its error"
    skipped: tuple[str, ...]  # "test: reason"
    rerun: tuple[str, ...]  # "test: first line of the error of its first try"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Print a try that failed, with its seconds."""
    if report.outcome in ("failed", "rerun") and "PYTEST_XDIST_WORKER" not in os.environ:
        told = f"\n{report.outcome} after {report.duration:.0f} s: {_line(report)}"
        print(told, file=sys.__stderr__, flush=True)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Write the outcomes; only the process that reports them has a terminal reporter."""
    found: dict[str, list[Any]] = terminalreporter.stats
    outcomes = Outcomes(
        passed=Counter(_file(each) for each in found.get("passed", ())),
        failed=tuple(_line(each) for kind in ("failed", "error") for each in found.get(kind, ())),
        skipped=tuple(
            _line(each) for kind in ("skipped", "xfailed") for each in found.get(kind, ())
        ),
        rerun=tuple(_line(each) for each in found.get("rerun", ())),
    )
    if path := os.environ.get(VARIABLE):
        Path(path).write_bytes(msgspec.json.encode(outcomes))


def _file(report: Any) -> str:
    name: str = report.nodeid
    return name.partition("::")[0]


def _line(report: Any) -> str:
    """Return the test and why: the message of the error that ended it, or the reason of a skip."""
    longrepr = report.longrepr
    if isinstance(longrepr, tuple):  # of a skip: file, line, reason
        why = str(longrepr[2]).removeprefix("Skipped: ")
    else:
        crash = getattr(longrepr, "reprcrash", None)
        text = getattr(report, "wasxfail", "") or (crash.message if crash else str(longrepr or ""))
        why = text.strip().partition("\n")[0]
    return f"{report.nodeid}: {why[:_CAUSE_COLUMNS]}"
