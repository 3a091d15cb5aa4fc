"""What pytest reported of a tier: counts, reasons, and the seconds of each test."""

import ast
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_CAUSE_LINES: Final = 12
_CAUSE_COLUMNS: Final = 400


@dataclass
class Row:
    """One line of the summary."""

    name: str
    verdict: str = "passed"
    wall_s: float = 0.0
    cpu_s: float = 0.0
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    skips: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    causes: dict[str, list[str]] = field(default_factory=dict)  # last lines, by failed test
    unstable: list[str] = field(default_factory=list)  # passed when run once more
    skipped_tests: set[str] = field(default_factory=set)
    tests_s: dict[str, float] = field(default_factory=dict)  # with setup and teardown

    @property
    def passed_at_once(self) -> set[str]:
        """The tests that ran, whole and once, without an error."""
        return self.tests_s.keys() - self.skipped_tests - {*self.failures, *self.unstable}

    def add_repeated(self, again: "Row") -> None:
        """Count the failed tests anew, as they came out when run once more."""
        self.unstable = [name for name in self.failures if name not in again.failures]
        self.causes |= again.causes
        self.passed += again.passed
        self.skipped += again.skipped
        self.skips += again.skips
        self.failed, self.failures = again.failed, again.failures


def read_report(tier: str, report: Path) -> Row:
    """Count pytest's JUnit report; without one, nothing was counted."""
    row = Row(tier)
    if not report.exists():
        return row
    for case in ET.parse(report).iter("testcase"):
        skip = case.find("skipped")
        where = f"{case.get('classname', '')}.{case.get('name', '')}".strip(".")
        row.tests_s[where] = row.tests_s.get(where, 0.0) + float(case.get("time", "0"))
        failure = case.find("failure")
        failure = case.find("error") if failure is None else failure
        if failure is not None:
            row.failed += 1
            row.causes.setdefault(where, _cause(failure))
            if where not in row.failures:  # a test and its teardown
                row.failures.append(where)
        elif skip is not None:
            row.skipped += 1
            row.skipped_tests.add(where)
            row.skips.append(f"{where}: {skip_reason(skip)}")
        else:
            row.passed += 1
    return row


def _cause(failure: ET.Element) -> list[str]:
    """What pytest marks as the error, and where that was raised: the end of it, for a summary that
    is read where the rest of the output was cut off."""
    told = (failure.text or failure.get("message") or "").splitlines()
    marked = [line for line in told if line.startswith("E ")]
    lines = [*(marked or told)[-_CAUSE_LINES:], *[line for line in told[-1:] if marked]]
    return [line[:_CAUSE_COLUMNS] for line in lines]


def skip_reason(skip: ET.Element) -> str:
    """Why a test was skipped; for a whole module pytest puts that into a printed tuple."""
    message = skip.get("message", "no reason given")
    if message != "collection skipped":
        return message
    try:
        *_, reason = ast.literal_eval(skip.text or "")
    except (ValueError, SyntaxError, TypeError):
        return skip.text or message
    return str(reason).removeprefix("Skipped: ")
