"""The checks and the tiers: what runs, in which order, by how many processes, and what it needs."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
TESTS: Final = ROOT / "tests"
# Limits end what hangs and nothing else, so that a slow machine fails nothing. A test that hangs is
# ended far earlier, by pytest's own limit a test (pyproject.toml).
LIMIT_S: Final = 3600.0  # of a tier and of a check: several times what the longest takes
CHECKS: Final[dict[str, list[str]]] = {
    "ruff check": ["ruff", "check", "."],
    "ruff format": ["ruff", "format", "--check", "."],
    "mypy": ["mypy"],
    "lint-imports": ["lint-imports"],
}
BUILD: Final = [sys.executable, "-m", "tests.controlplane.build"]
# The programs are found or built before the tests start. Where that fails, the tests are skipped
# and told why.
_WITH_CONTROL_PLANE: Final = (*BUILD, "--")
_WITH_CHROMIUM: Final = ("sh", str(ROOT / "scripts" / "chromium.sh"))
_WITH_ENGINE: Final = ("sh", str(ROOT / "scripts" / "engine.sh"))


@dataclass(frozen=True, kw_only=True)
class Tier:
    """A folder of tests/ and how it is run."""

    processes: int = 1  # that share its files. More than cores where tests wait more than compute
    real_time: bool = True  # real servers: a few failed tests are run once more, by themselves
    within: tuple[str, ...] = ()  # the command that the tests are run by
    folders: tuple[str, ...] = ()  # of tests/; (): the one of its name
    options: tuple[str, ...] = ()  # of pytest
    needs_control_plane: bool = False
    test_bed: bool = False  # tests the tests' own means: not run while a proof of them is kept


# What needs the control plane comes last: it is compiled in the background meanwhile.
TIERS: Final[dict[str, Tier]] = {
    "unit": Tier(processes=2, real_time=False),
    "simulation": Tier(real_time=False),  # it uses all cores by itself
    "bus": Tier(processes=3),
    # Each process here has a whole `berth up` under it: one for each core, or they starve.
    "pipeline": Tier(processes=2),
    "web": Tier(within=_WITH_CHROMIUM),
    "gpu": Tier(),  # of this machine, where it has one that nobody uses
    "containers": Tier(within=_WITH_ENGINE),
    "cluster": Tier(
        processes=3,
        within=_WITH_CONTROL_PLANE,
        needs_control_plane=True,
    ),
    "bed": Tier(
        processes=3,
        within=_WITH_CONTROL_PLANE,
        needs_control_plane=True,
        test_bed=True,
    ),
}
