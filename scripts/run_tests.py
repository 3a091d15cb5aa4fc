"""Runs the checks and the tiers of tests, each timed, and sums them up without hiding a skip.

The last line is always `N passed, N failed, N skipped`, where a check counts as one. A tier is a
folder under tests/; one whose folder is not there is shown as absent. Standard library only.

Tiers of real servers in real time can fail for the machine's sake. There a few failed tests are
run once more, by themselves: what passes then is counted as passed and named as unstable, with its
first failure printed above, for it still wants mending. More than a few are a failure at once, and
so is a test that was unstable three times more often than it passed at once since.

The tests of the test bed are not run while a proof of them is kept that was made with the same
sources: the summary names it and counts them as skipped. `--all` runs them, and so does their name.
"""

import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from scripts.suite import bed, kept
from scripts.suite.report import Row, read_report
from scripts.suite.steps import Step, call
from scripts.suite.summary import stability, summarize
from scripts.suite.tiers import BUILD, CHECKS, LIMIT_S, ROOT, TESTS, TIERS, Tier

MOST_REPEATED: Final = 8  # failed tests of a tier: a slow minute of the machine meets several
FAILURES: Final = 1  # pytest's exit code when tests ran and some failed
NO_TESTS: Final = 5  # and when nothing was collected
USAGE: Final = f"usage: scripts/test [--all] [checks] [{'] ['.join(TIERS)}] [-- PYTEST OPTION…]"


class Run:
    """One run: what was asked for, and what is kept of earlier ones."""

    def __init__(self, names: list[str], extra: list[str], *, everything: bool) -> None:
        self.extra = extra
        self.checks = list(CHECKS) if not names or "checks" in names else []
        self.tiers = [name for name in TIERS if not names or name in names]
        self.always = set(TIERS) if everything else set(names)
        home = kept.folder()
        self.figures, self.proofs, self.unstable = (
            kept.Figures(home),
            kept.Proofs(home),
            kept.Unstable(home),
        )
        self.commit = commit()
        self._home = home
        self._build: Step | None = None

    def run(self) -> int:
        """All of it; returns the exit code."""
        self._start_build()
        try:
            rows = [run_check(name) for name in self.checks]
            for name in self.tiers:
                if TIERS[name].needs_control_plane:
                    rows += self._wait_for_build()
                rows.append(self._run_tier(name))
        finally:
            if self._build is not None:
                self._build.end()
        return self._close(rows)

    # ------------------------------------------------------------ the control plane, beside it all

    def _start_build(self) -> None:
        """Compile it in the background if there is something to do meanwhile."""
        earlier = [name for name in self.tiers if not TIERS[name].needs_control_plane]
        if len(earlier) < len(self.tiers) and (self.checks or earlier):
            self._home.mkdir(parents=True, exist_ok=True)
            self._build = Step(BUILD, log=self._home / "build.log")

    def _wait_for_build(self) -> list[Row]:
        """Until it is compiled. Whether that went well is found out, and told, by the tier."""
        if self._build is None:
            return []
        build, self._build = self._build, None
        if build.poll() is None:
            print(
                f"\n== control plane: still compiling, see {self._home / 'build.log'}", flush=True
            )
        took = build.wait(LIMIT_S)
        return [
            Row(
                "control plane", "built" if took.code == 0 else "not built", took.wall_s, took.cpu_s
            )
        ]

    # ------------------------------------------------------------ tiers

    def _run_tier(self, name: str) -> Row:
        tier = TIERS[name]
        sources = bed.sources_hash() if tier.test_bed else ""
        if tier.test_bed and name not in self.always:
            proof = self.proofs.find(name, sources)
            if proof is not None:
                told = f"{proof}; `scripts/test --all` runs them"
                return Row(name, "proven earlier", skipped=proof.passed, skips=[told])
        row = run_tier(name, tier, self.extra, self.figures.file_seconds(name))
        if tier.test_bed and not self.extra:
            self.proofs.keep(row, sources, self.commit)
        return row

    def _close(self, rows: list[Row]) -> int:
        ran = [row for row in rows if row.tests_s]
        if not self.extra:
            self.figures.keep(ran, self.commit)
        self.unstable.add(ran)
        print()
        told = stability(rows, self.unstable.times(), self.unstable.path)
        rows += [told] if told is not None else []
        lines = summarize(rows)
        print("\n".join(lines), flush=True)
        return 1 if any(row.failed for row in rows) else 0


def commit() -> str:
    """What is tested, for whoever reads the figures later."""
    argv = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        told = subprocess.run(
            argv, cwd=ROOT, capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return told.stdout.strip() or "unknown"


def run_check(name: str) -> Row:
    """One static check: passed or failed, counted as one."""
    print(f"\n== {name}", flush=True)
    took = call(CHECKS[name], LIMIT_S)
    row = Row(name, "FAILED" if took.code else "passed", took.wall_s, took.cpu_s)
    row.failed, row.passed = (1, 0) if took.code else (0, 1)
    return row


def run_tier(name: str, tier: Tier, extra: list[str], known_s: dict[str, float]) -> Row:
    """One folder of tests under pytest, counted from its report."""
    folders = [TESTS / each for each in tier.folders or (name,)]
    if missing := [folder for folder in folders if not folder.is_dir()]:
        told = f"{missing[0].relative_to(TESTS.parent)} does not exist yet"
        return Row(name, "absent", skips=[told])
    print(f"\n== {name}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        argv = [*tier.within, sys.executable, "-m", "pytest", "-q", f"--junit-xml={report}"]
        argv += ["-o", f"cache_dir={scratch}/cache", *tier.options, *extra]
        took = call([*argv, *shared(folders, tier, known_s)], LIMIT_S)
        row = read_report(name, report)
        if took.code == FAILURES and tier.real_time and len(row.failures) <= MOST_REPEATED:
            print(f"\n== {name}, once more: {', '.join(row.failures)}", flush=True)
            report.unlink()
            took += call([*argv, *map(str, folders), "--last-failed"], LIMIT_S)
            again = read_report(name, report)
            if again.passed + again.failed + again.skipped >= len(row.failures):  # else it crashed
                row.add_repeated(again)
    row.wall_s, row.cpu_s = took.wall_s, took.cpu_s
    if took.code == NO_TESTS and extra and not row.skipped:
        row.verdict = "nothing selected"
    elif took.code and not (took.code == NO_TESTS and row.skipped):  # whole modules were skipped
        row.verdict = "FAILED"
        row.failed = max(row.failed, 1)  # nothing collected, a crash or a hang fails as well
    elif row.skipped and not row.passed:
        row.verdict = "skipped"
    return row


def shared(folders: list[Path], tier: Tier, known_s: dict[str, float]) -> list[str]:
    """What to run and by how many processes: file by file, those that took longest first, so that
    no process is left with a long one at the end. A new file counts as long."""
    if tier.processes == 1:
        return [*map(str, folders)]

    def took_s(file: Path) -> float:
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        return known_s.get(module, float("inf"))

    files = sorted(
        (file for folder in folders for file in folder.rglob("test_*.py")),
        key=lambda file: (-took_s(file), -file.stat().st_size),
    )
    by_file = [
        "--numprocesses",
        str(tier.processes),
        "--dist",
        "loadfile",
        "--no-loadscope-reorder",
    ]
    return [*by_file, *map(str, files)]


def main(argv: list[str]) -> int:
    """Run what was asked for, or all of it."""
    cut = argv.index("--") if "--" in argv else len(argv)
    words, extra = argv[:cut], argv[cut + 1 :]
    if {"-h", "--help"} & set(words):
        print(f"{USAGE}\n\n{__doc__}\nKept from run to run: {kept.folder()}")
        return 0
    names = [word for word in words if word != "--all"]
    if unknown := [name for name in names if name != "checks" and name not in TIERS]:
        print(f"scripts/test: no tier {unknown[0]!r}\n{USAGE}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that steps are ended as well
    return Run(names, extra, everything="--all" in words).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
