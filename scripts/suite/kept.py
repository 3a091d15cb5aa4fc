"""What is kept from run to run, in ~/.cache/berthmaster/suite (BERTH_CACHE moves it): figures,
proofs of the test bed, and the tests that passed only when repeated.

What cannot be read is treated as not there: the cache of another version, or half of a write.
"""

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from scripts.suite.report import Row

MOST_TIMES: Final = 3  # that a test may pass only when repeated, until it fails the run
SLOWEST: Final = 15
KEPT_PROOFS: Final = 20


def folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Beside the control plane's programs (tests/controlplane/build.py)."""
    if own := environment.get("BERTH_CACHE"):
        return Path(own) / "suite"
    usual = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return usual / "berthmaster" / "suite"


def write(path: Path, text: str) -> None:
    """All of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(text)
    unfinished.replace(path)


def read(path: Path) -> dict[str, Any]:
    """A JSON object; an empty one where there is none."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


# ---------------------------------------------------------------- figures


class Figures:
    """figures.json: of each tier, its last run."""

    def __init__(self, home: Path) -> None:
        self.path = home / "figures.json"

    def file_seconds(self, tier: str) -> dict[str, float]:
        """What each module of the tier took when it was run last, by its dotted name."""
        try:
            files = read(self.path)[tier]["files_s"]
            return {str(name): float(took_s) for name, took_s in files.items()}
        except (KeyError, TypeError, ValueError, AttributeError):
            return {}

    def keep(self, rows: Sequence[Row], commit: str) -> None:
        """Replace the figures of the tiers that were run."""
        known = read(self.path)
        for row in rows:
            known[row.name] = {
                "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "commit": commit,
                "cores": os.cpu_count(),
                "load": round(os.getloadavg()[1], 1),
                "wall_s": round(row.wall_s, 1),
                "cpu_s": round(row.cpu_s, 1),
                "passed": row.passed,
                "failed": row.failed,
                "skipped": row.skipped,
                "files_s": {name: round(s, 2) for name, s in sorted(by_file(row).items())},
                "slowest_s": {name: round(s, 2) for name, s in slowest([row])},
            }
        write(self.path, json.dumps(known, indent=1))


def by_file(row: Row) -> dict[str, float]:
    """Seconds of each module of tests: a test's name is its module's, its class's and its own."""
    found: dict[str, float] = {}
    for test, took_s in row.tests_s.items():
        parts = test.partition("[")[0].split(".")
        module = next((n for n, part in enumerate(parts) if part.startswith("test_")), None)
        if module is not None:
            name = ".".join(parts[: module + 1])
            found[name] = found.get(name, 0.0) + took_s
    return found


def slowest(rows: Sequence[Row]) -> list[tuple[str, float]]:
    """The slowest tests of all, the slowest first."""
    every = [(name, took_s) for row in rows for name, took_s in row.tests_s.items()]
    return sorted(every, key=lambda each: (-each[1], each[0]))[:SLOWEST]


# ---------------------------------------------------------------- proofs


@dataclass(frozen=True, kw_only=True)
class Proof:
    """All tests of something passed, at these sources."""

    sources: str  # a hash
    passed: int
    wall_s: float
    at: str
    commit: str

    def __str__(self) -> str:
        return (
            f"all {self.passed} tests passed in {self.wall_s:.0f} s on {self.at}"
            f" (commit {self.commit}) with these same sources ({self.sources})"
        )


class Proofs:
    """One file for each hash of sources, of the tier's last ones."""

    def __init__(self, home: Path) -> None:
        self._home = home / "proofs"

    def find(self, tier: str, sources: str) -> Proof | None:
        """The proof for exactly these sources."""
        try:
            proof = Proof(**read(self._path(tier, sources)))
        except TypeError:
            return None
        return proof if proof.sources == sources and proof.passed > 0 else None

    def keep(self, row: Row, sources: str, commit: str) -> None:
        """Keep one of a tier whose every test has passed, none of them at its second try."""
        if row.failed or row.skipped or row.unstable or not row.passed:
            return
        proof = Proof(
            sources=sources,
            passed=row.passed,
            wall_s=round(row.wall_s, 1),
            at=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
            commit=commit,
        )
        path = self._path(row.name, sources)
        write(path, json.dumps(asdict(proof), indent=1))
        oldest_first = sorted(self._home.glob("*.json"), key=lambda each: each.stat().st_mtime)
        for old in oldest_first[:-KEPT_PROOFS]:
            old.unlink(missing_ok=True)

    def _path(self, tier: str, sources: str) -> Path:
        return self._home / f"{tier}-{sources}.json"


# ---------------------------------------------------------------- tests that are not stable


class Unstable:
    """unstable.txt: a line for each test that passed only when repeated, with how often it did.

    Each run in which it passed at once takes one off: neither a test that was mended nor a machine
    that was slow for once needs somebody to edit the file."""

    def __init__(self, home: Path) -> None:
        self.path = home / "unstable.txt"

    def times(self) -> dict[str, int]:
        """How often, by "TIER TEST". Lines that are not of this form are passed over."""
        try:
            lines = self.path.read_text().splitlines()
        except OSError:
            return {}
        found: dict[str, int] = {}
        for line in lines:
            count, _, name = line.strip().partition(" ")
            if count.isdigit() and name:
                found[name] = int(count)
        return found

    def add(self, rows: Sequence[Row]) -> None:
        """One more for each that was seen now, one less for each that passed at once."""
        known = self.times()
        before = dict(known)
        for row in rows:
            for test in row.passed_at_once:
                name = f"{row.name} {test}"
                if name in known:
                    known[name] -= 1
            for test in row.unstable:
                name = f"{row.name} {test}"
                known[name] = known.get(name, 0) + 1
        if known != before:
            lines = [f"{count} {name}\n" for name, count in sorted(known.items()) if count > 0]
            write(self.path, "".join(lines))
