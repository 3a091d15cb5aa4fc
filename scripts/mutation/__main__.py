"""scripts/mutate: a seeded sample of small changes to pure modules, against their packages' tests.

Prints what nobody noticed as the lines of a diff, then the share that was caught, by package. Ends
with 1 if that is less than --at-least. A mutant is the same in each run with its seed as long as
its function keeps the expression, wherever else the code moves.
"""

import argparse
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from scripts.mutation.mutants import Mutant, mutants_in
from scripts.mutation.scope import ROOT, pure_modules
from scripts.mutation.worker import Baseline, Fate, Job, limit_of, work

SILENT_LIMIT_S = 1200.0  # no answer of a worker for so long: its tests hang
END_LIMIT_S = 5.0
FAILING_NAMED = 5
START_LIMIT_S = 60.0  # until a worker has imported and collected its tests
CAUGHT_PERCENT = 90.0
SEEDS = 8
# Who uses a library whose own tests are of its parts: their stories tell what it is for.
USERS = {
    "engine": ("resolver",),
    "fleetview": ("resolver", "multikueue"),
    "kubernetes": ("executor", "inventory"),
}


@dataclass(frozen=True)
class Result:
    """A mutant and what noticed it, "" if nothing did."""

    mutant: Mutant
    caught_by: str
    tests: int


def sample(mutants: list[Mutant], size: int, seed: int) -> list[Mutant]:
    """The mutants with the lowest lots, in the order of the source."""
    drawn = sorted(mutants, key=lambda mutant: mutant.lot(seed))[:size]
    return sorted(drawn, key=lambda mutant: (mutant.module, mutant.place))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/mutate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--sample", type=int, default=200, metavar="N", help="how many are drawn")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of the draw")
    parser.add_argument(
        "--package",
        action="append",
        metavar="NAME",
        help="draw only from this package or module (engine, resolver.deciding); repeatable",
    )
    parser.add_argument(
        "--seeds", type=int, default=SEEDS, metavar="N", help="worlds of the simulation a mutant"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every mutant's fate")
    parser.add_argument("--list", action="store_true", help="print the sample and stop")
    parser.add_argument(
        "--at-least", type=float, default=CAUGHT_PERCENT, metavar="PERCENT", help="default: 90"
    )
    asked = parser.parse_args(argv)
    if asked.sample < 1 or asked.seeds < 0:
        parser.error("--sample is at least 1, --seeds at least 0")
    paths = pure_modules()
    if asked.package:
        asked_for = tuple(f"berthmaster.{name}" for name in asked.package)
        for name in asked_for:
            if not any(f"{module}.".startswith(f"{name}.") for module in paths):
                parser.error(f"--package: no pure module is called {name}")
        paths = {
            module: path
            for module, path in paths.items()
            if any(f"{module}.".startswith(f"{name}.") for name in asked_for)
        }
    sources = {module: path.read_text() for module, path in paths.items()}
    every = [mutant for module, text in sources.items() for mutant in mutants_in(module, text)]
    drawn = sample(every, asked.sample, asked.seed)
    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    console.print(
        f"{len(drawn)} of {len(every)} mutants in {len(paths)} modules, seed {asked.seed}"
    )
    if asked.list:
        for mutant in drawn:
            console.print(diff(mutant, sources, paths), markup=False, soft_wrap=True)
        return 0

    def tell(result: Result) -> None:
        if not result.caught_by:
            reached = f"executed by {result.tests} tests" if result.tests else "no test executes it"
            text = f"{diff(result.mutant, sources, paths)}\n    {reached}"
            console.print(text, markup=False, soft_wrap=True)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that workers are ended, too
    results = run(drawn, sources, asked.seeds, console, tell)
    console.print(table(results))
    if asked.json is not None:
        told = [asdict(r.mutant) | {"caught_by": r.caught_by, "tests": r.tests} for r in results]
        asked.json.write_text(json.dumps({"seed": asked.seed, "mutants": told}, indent=2) + "\n")
    return int(percent(results) < asked.at_least)


def percent(results: list[Result]) -> float:
    return 100.0 * sum(bool(r.caught_by) for r in results) / len(results) if results else 100.0


def diff(mutant: Mutant, sources: dict[str, str], paths: dict[str, Path]) -> str:
    """Where it is, and the change as a diff has it."""
    path = paths[mutant.module].relative_to(ROOT)
    line = sources[mutant.module].splitlines()[mutant.line - 1].strip()
    was, now = mutant.was, mutant.now
    if line.count(was) == 1:  # spelled as it stands there, and on one line
        was, now = line, line.replace(was, now)
    return f"{path}:{mutant.line} in {mutant.function or 'the module'}\n  - {was}\n  + {now}"


def table(results: list[Result]) -> Table:
    shown = Table(show_edge=False, pad_edge=False)
    for name in ("PACKAGE", "MUTANTS", "CAUGHT", "%"):
        shown.add_column(name, justify="left" if name == "PACKAGE" else "right")
    groups = {name: [r for r in results if r.mutant.package == name] for name in _packages(results)}
    for name, group in (*groups.items(), ("all", results)):
        caught = sum(bool(r.caught_by) for r in group)
        shown.add_row(name, str(len(group)), str(caught), f"{percent(group):.0f}")
    return shown


def _packages(results: list[Result]) -> list[str]:
    return sorted({r.mutant.package for r in results})


def tests_of(package: str) -> tuple[str, ...]:
    folders = (f"tests/unit/{name}" for name in (package, *USERS.get(package, ())))
    return tuple(folder for folder in folders if (ROOT / folder).is_dir())


def run(
    drawn: list[Mutant],
    sources: dict[str, str],
    seeds: int,
    console: Console,
    tell: Callable[[Result], None],
) -> list[Result]:
    """Package by package, one process at a time."""
    results = []
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=len(drawn))
        for package in sorted({mutant.package for mutant in drawn}):
            progress.update(bar, description=package)
            mutants = tuple(mutant for mutant in drawn if mutant.package == package)
            job = Job(
                mutants,
                {mutant.module: sources[mutant.module] for mutant in mutants},
                tests_of(package),
                seeds,
            )
            for told in fates(job):
                if isinstance(told, Baseline):
                    if told.failing:
                        names = ", ".join(told.failing[:FAILING_NAMED])
                        text = f"left out, as they fail anyhow: {len(told.failing)} ({names})"
                        console.print(f"{package}: {text}", markup=False, soft_wrap=True)
                    continue
                results.append(Result(mutants[told.mutant], told.caught_by, told.tests))
                tell(results[-1])
                progress.advance(bar)
    results.sort(key=lambda result: (result.mutant.module, result.mutant.place))
    return results


def fates(job: Job) -> Iterator[Baseline | Fate]:
    """What a worker tells; what an import executes gets a process of its own."""
    alone = []
    baseline = Baseline((), 0.0)
    for told in answers(job, SILENT_LIMIT_S):
        if isinstance(told, Baseline):
            baseline = told
        if isinstance(told, Fate) and told.at_import:
            alone.append(told.mutant)
        else:
            yield told
    for number in alone:
        limit_s = limit_of(job, baseline.took_s)
        only = replace(job, alone=number, alone_limit_s=limit_s, without=baseline.failing)
        try:
            yield from answers(only, limit_s + START_LIMIT_S)
        except TimeoutError:
            yield Fate(number, "time limit")


def answers(job: Job, silent_s: float) -> Iterator[Baseline | Fate]:
    """One worker, from its start to its end."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(job, there))
    process.start()
    there.close()
    finished = False
    try:
        while here.poll(silent_s):
            told: Any = here.recv()
            if isinstance(told, str):
                finished = True
                if told:
                    raise SystemExit(f"scripts/mutate: {told}")
                return
            yield told
        raise TimeoutError(f"no answer for {silent_s:.0f} s")
    except EOFError:
        raise SystemExit("scripts/mutate: the process that runs the tests broke") from None
    finally:
        if not finished:
            process.terminate()  # it ends what it has forked
        process.join(END_LIMIT_S)
        if process.pid is not None and process.is_alive():
            os.killpg(process.pid, signal.SIGKILL)
        process.join()


if __name__ == "__main__":
    raise SystemExit(main())
