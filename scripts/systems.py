"""The real systems of other projects that tests run, and when their tests last passed.

The tests of a project are in the files `test_<project>_real.py`, those of Kueue in all files that
name Kueue. A project's tests passed in a run where some of them passed and none failed. The cache,
~/.cache/berthmaster/systems.json, keeps that by project and version. Example:

    {"kueue 0.19.2": "2026-11-28 05:50 UTC on b7be6c42"}
"""

import json
import os
import re
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from berthmaster.lab.controlplane.compiling import cache_root
from berthmaster.lab.controlplane.projects import PROJECTS, handed_in

ROOT: Final = Path(__file__).resolve().parent.parent
KUEUE: Final = "kueue"


def system_of(file: str) -> str:
    """Return the project that the tests of a file run; "" = none."""
    stem = Path(file).stem
    real = re.fullmatch(r"test_(\w+)_real", stem)
    return real[1] if real is not None else KUEUE if KUEUE in stem else ""


def versions(files: Iterable[str]) -> dict[str, str]:
    """Return the projects that these files and projects.py name, with their versions."""
    names = sorted({system_of(file) for file in files} - {""} | set(PROJECTS))
    return {name: _version(name) for name in names}


def _version(name: str) -> str:
    project = PROJECTS.get(name)
    if project is None or handed_in(project) is not None:
        return "as handed in"
    return project.version


def lines(passed: Mapping[str, int], failed: Iterable[str]) -> list[str]:
    """Keep what passed in this run, and return a line for each project. ``passed``: by file, how
    many tests; ``failed``: files with a test that failed."""
    kept = cache_root(os.environ).parent / "systems.json"
    known: dict[str, str] = json.loads(kept.read_text()) if kept.exists() else {}
    files = [str(file) for file in (ROOT / "tests").rglob("test_*_real.py")]
    broken = {system_of(file) for file in failed}
    met = {system_of(file) for file, count in passed.items() if count} - broken
    now = f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC on {commit()}"
    found = []
    for name, version in versions(files).items():
        if name in met:
            known[f"{name} {version}"] = now
        when = known.get(f"{name} {version}")
        told = f"tests last passed {when}" if when else "tests have not passed on this machine yet"
        found.append(f"real system: {name} {version}: {told}")
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(known, indent=1) + "\n")
    return found


def commit() -> str:
    """Return the commit of the working tree, with -dirty if changed."""
    argv = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "an unknown commit"
