"""Runs the checks and the tiers of tests, each timed, and sums them up without hiding a skip.

The last line is always `N passed, N failed, N skipped`, where a check counts as one. Standard
library only. A tier is a folder under tests/; one whose folder is not there yet is shown as absent.

Tiers of real servers in real time can fail for the machine's sake. There a few failed tests are
run once more, by themselves: what passes then is counted as passed and named as unstable, with its
first failure printed above, for it still wants mending. More than a few are a failure at once.
"""

import ast
import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHECKS: dict[str, list[str]] = {
    "ruff check": ["ruff", "check", "."],
    "ruff format": ["ruff", "format", "--check", "."],
    "mypy": ["mypy"],
    "lint-imports": ["lint-imports"],
}
# Each tier's limit is several times what it takes on two cores: it is there to end a hang. The
# cluster's holds a control plane's first build too, which takes some 13 minutes, once.
TIER_LIMITS_S = {
    "unit": 600,
    "simulation": 1200,
    "bus": 1200,
    "cluster": 5400,
    "pipeline": 2400,
    "containers": 2400,
}
# What a tier runs in: a control plane's programs are found or built for the cluster, and a Docker
# engine is found or started for the containers. Where that fails the tier is skipped, told why.
WITHIN = {
    "cluster": [sys.executable, "-m", "tests.controlplane.build", "--"],
    "containers": ["sh", str(ROOT / "scripts" / "engine.sh")],
}
# Tiers that two processes share, file by file. Not those of real servers in real time, which would
# disturb each other.
SHARED = ("unit",)
BY_FILE = ["--numprocesses", "2", "--dist", "loadfile"]
REPEATED = ("bus", "cluster", "pipeline", "containers")  # real servers, real time
MOST_REPEATED = 4  # failed tests of a tier; more are no accident
CHECK_LIMIT_S = 600
FAILURES = 1  # pytest's exit code when tests ran and some failed
NO_TESTS = 5  # and when nothing was collected
USAGE = f"usage: scripts/test [checks] [{'] ['.join(TIER_LIMITS_S)}] [-- PYTEST OPTION…]"


@dataclass
class Row:
    """One line of the summary."""

    name: str
    verdict: str
    took_s: float = 0.0
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    skips: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    unstable: list[str] = field(default_factory=list)  # passed when run once more


def call(argv: list[str], limit_s: float) -> tuple[int, float]:
    """Run one step with its output shown; past its limit the step and its children are ended."""
    started_s = time.monotonic()
    with subprocess.Popen(argv, cwd=ROOT, start_new_session=True) as process:
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            print(f"\n{argv[0]}: not done after {limit_s:.0f} s, ended", flush=True)
            code = -1
        finally:  # also on Ctrl-C, which a session of its own does not receive
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return code, time.monotonic() - started_s


def run_check(name: str) -> Row:
    """One static check: passed or failed, counted as one."""
    print(f"\n== {name}", flush=True)
    code, took_s = call(CHECKS[name], CHECK_LIMIT_S)
    if code:
        return Row(name, "FAILED", took_s, failed=1)
    return Row(name, "passed", took_s, passed=1)


def run_tier(tier: str, extra: list[str]) -> Row:
    """One folder of tests under pytest, counted from its report."""
    folder = ROOT / "tests" / tier
    if not folder.is_dir():
        return Row(tier, "absent", skips=[f"tests/{tier} does not exist yet"])
    print(f"\n== {tier}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        argv = [sys.executable, "-m", "pytest", "-q", str(folder), f"--junit-xml={report}", *extra]
        argv = [*WITHIN.get(tier, []), *argv, "-o", f"cache_dir={scratch}/cache"]
        argv += BY_FILE if tier in SHARED else []
        code, took_s = call(argv, TIER_LIMITS_S[tier])
        row = read_report(tier, report)
        if code == FAILURES and tier in REPEATED and len(row.failures) <= MOST_REPEATED:
            code, took_again_s = repeat_failed(row, argv, report)
            took_s += took_again_s
    row.took_s = took_s
    if code == NO_TESTS and extra and not row.skipped:
        row.verdict = "nothing selected"
    elif code and not (code == NO_TESTS and row.skipped):  # whole modules skipped: none collected
        row.verdict = "FAILED"
        row.failed = max(row.failed, 1)  # nothing collected, a crash or a hang fails as well
    elif row.skipped and not row.passed:
        row.verdict = "skipped"
    return row


def repeat_failed(row: Row, argv: list[str], report: Path) -> tuple[int, float]:
    """Run a tier's failed tests once more and count anew: (exit code, seconds)."""
    print(f"\n== {row.name}, once more: {', '.join(row.failures)}", flush=True)
    report.unlink()
    code, took_s = call([*argv, "--last-failed"], TIER_LIMITS_S[row.name])
    again = read_report(row.name, report)
    row.unstable = [name for name in row.failures if name not in again.failures]
    if again.passed + again.failed + again.skipped < len(row.failures):  # it crashed, say
        return code or FAILURES, took_s
    row.passed += again.passed
    row.skipped += again.skipped
    row.skips += again.skips
    row.failed, row.failures = again.failed, again.failures
    return code, took_s


def read_report(tier: str, report: Path) -> Row:
    """Count pytest's JUnit report; without one, nothing was counted."""
    row = Row(tier, "passed")
    if not report.exists():
        return row
    for case in ET.parse(report).iter("testcase"):
        skip = case.find("skipped")
        where = f"{case.get('classname', '')}.{case.get('name', '')}".strip(".")
        if case.find("failure") is not None or case.find("error") is not None:
            row.failed += 1
            if where not in row.failures:  # a test and its teardown
                row.failures.append(where)
        elif skip is not None:
            row.skipped += 1
            row.skips.append(f"{where}: {skip_reason(skip)}")
        else:
            row.passed += 1
    return row


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


def summarize(rows: list[Row]) -> int:
    """Print the table, every skip with its reason, what was unstable, and the total; return the
    exit code."""
    print(f"\n{'step':14}{'verdict':18}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>10}")
    for row in rows:
        counts = f"{row.passed:8}{row.failed:8}{row.skipped:9}"
        print(f"{row.name:14}{row.verdict:18}{counts}{row.took_s:10.1f}")
    for row in rows:
        for skip in row.skips:
            print(f"skipped in {row.name}: {skip}")
        for name in row.unstable:
            print(f"unstable in {row.name}: {name} failed, and passed when run once more")
    passed, failed, skipped = (
        sum(row.passed for row in rows),
        sum(row.failed for row in rows),
        sum(row.skipped for row in rows),
    )
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return 1 if failed else 0


def main(argv: list[str]) -> int:
    """Run what was asked for, or all of it."""
    cut = argv.index("--") if "--" in argv else len(argv)
    names, extra = argv[:cut], argv[cut + 1 :]
    if unknown := [name for name in names if name != "checks" and name not in TIER_LIMITS_S]:
        print(f"scripts/test: no tier {unknown[0]!r}\n{USAGE}", file=sys.stderr)
        return 2
    rows: list[Row] = []
    if not names or "checks" in names:
        rows += [run_check(name) for name in CHECKS]
    rows += [run_tier(tier, extra) for tier in TIER_LIMITS_S if not names or tier in names]
    return summarize(rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
