"""Runs the checks and the tiers of tests, and sums them up without hiding a skip.

A tier is a folder under tests/, run by pytest. In tiers of real servers, which a slow minute of the
machine can disturb, a failed test gets one more try. The summary names each test that needed one,
and `--reruns 0` allows none. The bed, which tests the tests' own means, runs by its name or by
`--all`. Where `--all` asks for everything, however long it takes, tests find BERTH_ALL=1.

`--kubernetes` runs another version of the control plane, `--kueue` the one that KUEUE_BIN and
KUEUE_CRDS hand in. `--record` keeps what came of the cluster tier for the table in
docs/reference/versions.md (scripts/versions.py).

mypy, and the build of the control plane for the last tiers, run in the background meanwhile.
The last line is always `N passed, N failed, N skipped`, where a check counts as one.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import IO, Final

import msgspec

from berthmaster.lab.controlplane.compiling import KUBERNETES, KUBERNETES_VARIABLE
from berthmaster.lab.controlplane.projects import KUEUE
from scripts import systems, versions
from scripts.outcomes import VARIABLE, Outcomes

ROOT: Final = Path(__file__).resolve().parent.parent
TESTS: Final = ROOT / "tests"
# Ends what hangs and nothing else: several times what the longest tier takes. A hanging test ends
# far earlier, at the `timeout` in pyproject.toml.
LIMIT_S: Final = 3600.0
BACKGROUND_NICE: Final = 15
BUILD: Final = (sys.executable, "-m", "berthmaster.lab.controlplane.build")
NOTHING: Final[Mapping[str, str]] = {}
NO_TESTS: Final = 5  # pytest's exit code when nothing was collected

BESIDE: Final = {"mypy": ("mypy",)}  # the slow check, on one core
CHECKS: Final = {
    "ruff check": ("ruff", "check", "."),
    "ruff format": ("ruff", "format", "--check", "."),
    "lint-imports": ("lint-imports",),
    "prose": (sys.executable, "-m", "scripts.prose", "--check"),
}


@dataclass(frozen=True, kw_only=True)
class Tier:
    """How the tests of a folder run."""

    processes: int = 1  # that share its files; more than cores where tests wait more than compute
    reruns: int = 1  # of a failed test; 0 = none
    within: tuple[str, ...] = ()  # the command that runs pytest
    needs_build: bool = False  # of the control plane
    only_named: bool = False  # neither a run without names nor CI runs it


# The control plane builds in the background, so what needs it comes last.
TIERS: Final[dict[str, Tier]] = {
    "unit": Tier(processes=2, reruns=0, within=(*BUILD, "helm", "--")),  # renders the chart
    "simulation": Tier(reruns=0),  # uses all cores by itself
    "bus": Tier(processes=3),
    "pipeline": Tier(processes=2),  # each process has a whole `berth up` under it
    "web": Tier(within=("sh", "scripts/chromium.sh")),
    "gpu": Tier(reruns=0),
    "containers": Tier(within=("sh", "scripts/engine.sh")),
    "cluster": Tier(processes=2, within=(*BUILD, "--"), needs_build=True),
    "bed": Tier(processes=3, within=(*BUILD, "--"), needs_build=True, only_named=True),
}


@dataclass
class Row:
    """One line of the summary."""

    name: str
    verdict: str
    seconds: float
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    notes: list[str] = field(default_factory=list)
    found: Outcomes | None = None  # of a tier that pytest finished


class Step:
    """A command in a session of its own, so that its end is the end of all that it started."""

    def __init__(
        self, *argv: str, output: IO[bytes] | None = None, own: Mapping[str, str] = NOTHING
    ) -> None:
        """``own``: variables beside those of the environment. With an output the command runs in
        the background and yields to everything else."""
        self._began_s = time.monotonic()
        if output is not None:
            argv = ("nice", "-n", str(BACKGROUND_NICE), *argv)
        self._process = subprocess.Popen(
            argv,
            cwd=ROOT,
            env=os.environ | dict(own),
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )

    def wait(self) -> tuple[int, float]:
        """Return exit code and seconds. At the limit the command is killed."""
        try:
            code = self._process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            print(f"\n{self._process.args!r}: not done after {LIMIT_S:.0f} s, killed", flush=True)
            code = -signal.SIGKILL
        finally:
            self.kill()
        return code, time.monotonic() - self._began_s

    def kill(self) -> None:
        """Kill the command and all of its session that still runs."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Background:
    """A step beside others, whose output is printed when it is waited for."""

    def __init__(self, name: str, argv: Sequence[str]) -> None:
        self.name = name
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 # open until the step is waited for
        self._step = Step(*argv, output=self._output)
        self._ended: Future[tuple[int, float]] = Future()
        Thread(target=lambda: self._ended.set_result(self._step.wait()), daemon=True).start()

    def wait(self) -> tuple[int, float]:
        """Return exit code and seconds, and print what the command said."""
        if not self._ended.done():
            print(f"\n== {self.name}: waiting for its end", flush=True)
        ended = self._ended.result()
        self._output.seek(0)
        print(f"\n== {self.name}\n{self._output.read().decode(errors='replace')}", flush=True)
        return ended

    def kill(self) -> None:
        """Kill the command."""
        self._step.kill()


def check_row(name: str, code: int, seconds: float) -> Row:
    """Return the row of a check, which counts as one."""
    return Row(name, "FAILED" if code else "passed", seconds, passed=not code, failed=bool(code))


def run_check(name: str) -> Row:
    """Run one static check."""
    print(f"\n== {name}", flush=True)
    return check_row(name, *Step(*CHECKS[name]).wait())


def run_tier(name: str, tier: Tier, options: list[str], reruns: int | None) -> Row:
    """Run one folder of tests under pytest and count what came of them."""
    print(f"\n== {name}", flush=True)
    reruns = tier.reruns if reruns is None else min(reruns, tier.reruns)
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "outcomes.json"
        argv = [*tier.within, sys.executable, "-m", "pytest", "-q", "-p", "scripts.outcomes"]
        argv += [f"--reruns={reruns}", "--durations=10", "--durations-min=5", *shared(name, tier)]
        code, seconds = Step(*argv, *options, own={VARIABLE: str(report)}).wait()
        found = msgspec.json.decode(report.read_bytes(), type=Outcomes) if report.exists() else None
    return tier_row(name, code, seconds, found, selects=bool(options))


def tier_row(
    name: str, code: int, seconds: float, found: Outcomes | None, *, selects: bool = False
) -> Row:
    """Return the row of a tier. ``found``: None where pytest did not come to its end. ``selects``:
    options may have left no test."""
    if found is None:
        why = f"pytest did not come to its end (exit code {code}), see the lines of {name} above"
        return Row(name, "FAILED", seconds, failed=1, notes=[f"FAILED in {name}: {why}"])
    counts = sum(found.passed.values()), len(found.failed), len(found.skipped)
    row = Row(name, "passed", seconds, *counts, found=found)
    row.notes += [f"skipped in {name}: {each}" for each in found.skipped]
    row.notes += [f"run again in {name}: {each}" for each in found.rerun]
    row.notes += [f"FAILED in {name}: {each}" for each in found.failed]
    if code == NO_TESTS and (found.skipped or selects):
        code = 0
    if code or found.failed:
        row.verdict = "FAILED"
        row.failed = max(
            row.failed, 1
        )  # a crash of a worker counts too, and so does no test at all
    elif not row.passed:
        row.verdict = "skipped" if found.skipped else "nothing selected"
    return row


def shared(name: str, tier: Tier) -> list[str]:
    """Return what to run and by how many processes: file by file, the largest files first, so that
    none is left with a long one at the end."""
    folder = TESTS / name
    if tier.processes == 1:
        return [str(folder)]
    files = sorted(folder.rglob("test_*.py"), key=lambda file: -file.stat().st_size)
    options = [f"--numprocesses={tier.processes}", "--dist=loadfile", "--no-loadscope-reorder"]
    # A process that died is no reason to go on as if nothing had happened.
    return [*options, "--max-worker-restart=0", *map(str, files)]


def real_systems(rows: list[Row]) -> list[str]:
    """Return the lines about other projects' systems, if a tier ran that meets them."""
    found = [row.found for row in rows if row.found is not None and TIERS[row.name].needs_build]
    if not found:
        return []
    passed = {file: count for each in found for file, count in each.passed.items()}
    return systems.lines(
        passed, [line.partition("::")[0] for each in found for line in each.failed]
    )


def summarize(rows: list[Row], about: Sequence[str] = ()) -> list[str]:
    """Return the lines of the summary: ``about`` before the total, which is the last one."""
    lines = [f"{'step':14}{'verdict':18}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>10}"]
    for row in rows:
        counts = f"{row.passed:8}{row.failed:8}{row.skipped:9}"
        lines.append(f"{row.name:14}{row.verdict:18}{counts}{row.seconds:10.1f}")
    lines += [*(note for row in rows for note in row.notes), *about]
    passed, failed, skipped = (
        sum(getattr(row, each) for row in rows) for each in ("passed", "failed", "skipped")
    )
    return [*lines, f"{passed} passed, {failed} failed, {skipped} skipped"]


def run(
    names: list[str],
    options: list[str],
    *,
    everything: bool,
    reruns: int | None,
    record: str = "",
) -> int:
    """Run what was asked for, or all of it, and return the exit code. ``record``: Kueue's version
    to keep the result by; "" = not kept."""
    checks = not names or "checks" in names
    tiers = {name: tier for name, tier in TIERS.items() if not names or name in names}
    left_out = [name for name, tier in tiers.items() if tier.only_named and not names]
    left_out = [] if everything else left_out
    if everything:
        os.environ["BERTH_ALL"] = "1"  # for the build and the tests
    rows: list[Row] = []
    beside = [Background(*each) for each in BESIDE.items()] if checks else []
    build = None
    if any(tier.needs_build for name, tier in tiers.items() if name not in left_out):
        build = Background("control plane", BUILD)
    try:
        rows += [run_check(name) for name in CHECKS] if checks else []
        for name, tier in tiers.items():
            if tier.needs_build and build is not None:
                _, seconds = build.wait()  # whether that went well, the tier finds out
                rows.append(Row("control plane", "", seconds))
                build = None
            if name in left_out:
                why = (
                    f"skipped: all of {name}: `scripts/test {name}` or `scripts/test --all` runs it"
                )
                rows.append(Row(name, "left out", 0.0, skipped=1, notes=[why]))
            else:
                rows.append(run_tier(name, tier, options, reruns))
        rows += [check_row(each.name, *each.wait()) for each in beside]
    finally:
        for each in (*beside, *([build] if build is not None else [])):
            each.kill()
    if record:
        for row in rows:
            if row.name == "cluster" and row.found is not None:
                versions.record(row.found, record)
    print("\n" + "\n".join(summarize(rows, real_systems(rows))), flush=True)
    return 1 if any(row.failed for row in rows) else 0


def main(argv: list[str]) -> int:
    """Read the arguments and run."""
    cut = argv.index("--") if "--" in argv else len(argv)
    parser = argparse.ArgumentParser(
        prog="scripts/test",
        usage="%(prog)s [--all] [--reruns N] [--kubernetes V] [--kueue V] [--record] [NAME …] "
        "[-- PYTEST OPTION …]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(("checks", *TIERS)))
    parser.add_argument("--all", action="store_true", help="the bed too, and what takes long")
    parser.add_argument("--reruns", type=int, metavar="N", help="most tries again of a failed test")
    parser.add_argument("--kubernetes", choices=KUBERNETES, help="version, the first by default")
    parser.add_argument("--kueue", metavar="V", default=KUEUE.version, help="its version")
    parser.add_argument("--record", action="store_true", help="keep the result of the cluster tier")
    asked = parser.parse_args(argv[:cut])
    if unknown := set(asked.names) - {"checks", *TIERS}:
        parser.error(f"no tier {min(unknown)!r}; there are {', '.join(TIERS)}, and checks")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the steps end too
    if why := versions.check_kueue(asked.kueue):
        parser.error(f"--kueue {asked.kueue}: {why}")
    if asked.kubernetes is not None:
        os.environ[KUBERNETES_VARIABLE] = asked.kubernetes  # for the build and the tests
    return run(
        asked.names,
        argv[cut + 1 :],
        everything=asked.all,
        reruns=asked.reruns,
        record=asked.kueue if asked.record else "",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
