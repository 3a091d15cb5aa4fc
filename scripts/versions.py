"""Runs of the cluster tier against versions of Kubernetes and Kueue, and their table in the docs.

::

    scripts/test cluster --kubernetes 1.35.4 --record -- -k multikueue   keep the result of a run
    python -m scripts.versions                                           write the table

Kubernetes is compiled in the version asked for. Another Kueue than that of the module is handed in
by KUEUE_BIN and KUEUE_CRDS, and `--kueue` says which one that is.

A run is kept by its versions and by the files that ran, in versions.json beside this module. A
later run of the same replaces the earlier one, whatever came of it.
"""

import os
import sys
import time
from pathlib import Path
from typing import Final

import msgspec

from berthmaster.lab.controlplane.compiling import kubernetes_version
from berthmaster.lab.controlplane.projects import KUEUE, handed_in
from scripts.generated import ROOT, write_or_check
from scripts.outcomes import Outcomes
from scripts.systems import commit

KEPT: Final = Path(__file__).with_suffix(".json")
PAGE: Final = ROOT / "docs" / "reference" / "versions.md"
NONE_YET: Final = "| | | no run is recorded yet | | | | | |"
HEAD: Final = "| Kubernetes | Kueue | tests | passed | failed | skipped | when | commit |"


class Run(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """What came of one run."""

    kubernetes: str
    kueue: str
    tests: tuple[str, ...]  # files of tests/cluster
    passed: int
    failed: int
    skipped: int
    rerun: int  # tests that passed at their second try
    when: str
    commit: str


def check_kueue(version: str) -> str:
    """Return why this Kueue cannot be run, or ""."""
    if version == KUEUE.version or handed_in(KUEUE) is not None:
        return ""
    variables = " and ".join(KUEUE.variables)
    return f"the module here is Kueue {KUEUE.version}; {variables} hand in {version}"


def record(found: Outcomes, kueue: str, kept: Path = KEPT) -> None:
    """Keep the outcome of a run, and write the table. ``kueue``: version."""
    lines = (*found.failed, *found.skipped)
    files = {*found.passed, *(line.partition("::")[0] for line in lines)}
    run = Run(
        kubernetes=kubernetes_version(os.environ),
        kueue=kueue,
        tests=tuple(sorted(Path(file).stem.removeprefix("test_") for file in files)),
        passed=sum(found.passed.values()),
        failed=len(found.failed),
        skipped=len(found.skipped),
        rerun=len(found.rerun),
        when=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        commit=commit(),
    )
    others = [each for each in runs(kept) if _key(each) != _key(run)]
    kept.write_bytes(msgspec.json.format(msgspec.json.encode(sorted([*others, run]))) + b"\n")
    if kept == KEPT:
        PAGE.write_text(page())


def _key(run: Run) -> tuple[str, str, tuple[str, ...]]:
    return run.kubernetes, run.kueue, run.tests


def runs(kept: Path = KEPT) -> list[Run]:
    """Return the kept runs. Raises msgspec.MsgspecError for a malformed file."""
    return msgspec.json.decode(kept.read_bytes(), type=list[Run]) if kept.exists() else []


def table(found: list[Run]) -> list[str]:
    """Return the lines of the table, newest versions first."""
    rows = [
        f"| {run.kubernetes} | {run.kueue} | {', '.join(f'`{each}`' for each in run.tests)} "
        f"| {run.passed}{f' ({run.rerun} at the second try)' if run.rerun else ''} "
        f"| {run.failed} | {run.skipped} | {run.when} | {run.commit} |"
        for run in sorted(found, reverse=True)
    ]
    return [HEAD, "|---|---|---|---|---|---|---|---|", *(rows or [NONE_YET])]


def page() -> str:
    """Return the page with the table as it should be."""
    lines = PAGE.read_text().splitlines()
    first = lines.index(HEAD)
    last = next(
        (number for number, line in enumerate(lines) if number > first and line[:1] != "|"),
        len(lines),
    )
    return "\n".join([*lines[:first], *table(runs()), *lines[last:]]) + "\n"


if __name__ == "__main__":
    sys.exit(write_or_check({PAGE: page()}, "scripts.versions", sys.argv[1:]))
