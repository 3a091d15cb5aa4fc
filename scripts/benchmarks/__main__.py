"""scripts/bench [NAME[:PART]…] [--json FILE]: runs benchmarks and prints their figures as a table.

Each benchmark is a module with ``measure() -> dict[str, float]``, the unit at the end of each
figure's name, and BUDGETS for those that design.md sets. Figures come with the machine's own, since
without them they say little. Where a benchmark has parts (PARTS), ``NAME:PART`` runs one of them.
It ends with 1 when something that must hold did not (FAILURES of a module).
"""

import argparse
import importlib
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

MODULES = {
    "pipeline": ("pipeline", "scoring"),
    "engine": ("engine",),
    "decisions": ("decisions",),
    "predict": ("predict", "arrivals"),
    "trials": ("trials",),
    "colocate": ("colocate",),
    "lookback": ("lookback",),
    "telemetry": ("telemetry",),
    "quality": ("quality",),
    "muri": ("muri", "lost_work", "muri_similar"),
    "kubernetes": ("kubernetes",),
    "scheduler": ("scheduler",),
    "ocm": ("ocm",),
    "placement": ("placement", "placement_hub"),
    "simulation": ("simulation",),
    "dashboard": ("dashboard",),
    "chaos": ("chaos",),
}
ONLY_BY_NAME = {
    "chaos",
    "dashboard",
    "kubernetes",
    "lookback",
    "muri",
    "ocm",
    "quality",
    "scheduler",
}  # take minutes


def machine() -> dict[str, float | str]:
    """What the figures were measured on."""
    load1, load5, _ = os.getloadavg()
    return {
        "cores": float(len(os.sched_getaffinity(0))),
        "load_1min": load1,
        "load_5min": load5,
        "python": platform.python_version(),
        "kernel": platform.release(),
    }


def table(name: str, figures: dict[str, float], budgets: dict[str, tuple[str, float]]) -> Table:
    """Figures beside their budgets."""
    shown = Table(title=name, title_justify="left", show_edge=False, pad_edge=False)
    shown.add_column("FIGURE")
    shown.add_column("MEASURED", justify="right")
    shown.add_column("BUDGET", justify="right")
    shown.add_column("")
    for figure, value in figures.items():
        sign, limit = budgets.get(figure, ("", 0.0))
        met = {"<=": value <= limit, ">=": value >= limit, "": True}[sign]
        budget = f"{sign} {limit:g}" if sign else ""
        verdict = ("met" if met else "NOT MET") if sign else ""
        shown.add_row(figure, f"{value:,.2f}", budget, verdict)
    return shown


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MODULES))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write {name: {figure: number}}")
    asked = parser.parse_args()
    unknown = [name for name in asked.names if name.partition(":")[0] not in MODULES]
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}; there are {', '.join(MODULES)}")
    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    results: dict[str, dict[str, Any]] = {"machine": machine()}
    console.print(" ".join(f"{key}={value}" for key, value in results["machine"].items()))
    failures: list[str] = []
    for wanted in asked.names or [each for each in MODULES if each not in ONLY_BY_NAME]:
        figures: dict[str, float] = {}
        budgets: dict[str, tuple[str, float]] = {}
        notes: list[str] = []
        name, _, part = wanted.partition(":")
        modules = [importlib.import_module(f"scripts.benchmarks.{each}") for each in MODULES[name]]
        parts = [each for module in modules for each in getattr(module, "PARTS", ())]
        if part and part not in parts:
            parser.error(f"no part {part!r} of {name}; there are {', '.join(parts) or 'none'}")
        for module in modules:
            if part and part not in getattr(module, "PARTS", ()):
                continue
            console.print(f"… {name}: {(module.__doc__ or '').splitlines()[0]}", style="dim")
            began_s = time.monotonic()
            figures |= module.measure(part) if part else module.measure()
            budgets |= getattr(module, "BUDGETS", {})
            notes += getattr(module, "NOTES", [])
            failures += getattr(module, "FAILURES", [])
            console.print(f"  {time.monotonic() - began_s:.0f} s", style="dim")
        results.setdefault(name, {}).update(figures)
        console.print(table(name, figures, budgets))
        for note in notes:
            console.print(note, style="dim")
        console.print()
    if asked.json is not None:
        asked.json.write_text(json.dumps(results, indent=2) + "\n")
    for failure in failures:
        console.print(f"FAILED {failure}", style="red")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
