"""`berth simulate`: fleets and job lists in virtual time, under named policies. Needs no bus."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, get_args

import click
import msgspec

from berthmaster.cli.session import EXIT_FAILED, EXIT_INTERRUPTED, Output, usage
from berthmaster.lab.simulate.figures import RunSummary, summarize
from berthmaster.lab.simulate.model import Knowing, Progress, SimulationError, told
from berthmaster.lab.simulate.plot import draw, span_text
from berthmaster.lab.simulate.policies import POLICIES

if TYPE_CHECKING:
    from rich.console import RenderableType

    from berthmaster.lab.emulator.fleets import ClusterSpec
    from berthmaster.lab.simulate.model import Job

LEGEND: Final = (
    "COMPLETION   from submission to end (WAIT: to start): mean, P50, P99 of all jobs",
    "MAKESPAN     until all jobs have ended",
    "USED         GPUs in use, from the first job to the last that came",
    "WHEN BUSY    the same, while any job waits",
    "FRAGMENTED   of the free GPUs, what no usual job of the list fits into",
    "FAIRNESS     1: all are slowed down alike; 1/n: one of n bears all",
)


class Simulation(msgspec.Struct, frozen=True, kw_only=True):
    fleet: str
    jobs: str
    durations: Knowing
    seed: int
    gpus: int
    policies: tuple[RunSummary, ...]


@click.command()
@click.option(
    "--fleet",
    default="8x8",
    show_default=True,
    metavar="FLEET",
    help="Fleet: NxG = N nodes with G GPUs; builtin; openb; or the path of a node list.",
)
@click.option("--clusters", type=click.IntRange(1, 1000), default=1, show_default=True)
@click.option(
    "--nodes", type=click.IntRange(1, 100_000), help="Number of nodes to scale a listed fleet to."
)
@click.option(
    "--jobs",
    default="generated",
    show_default=True,
    metavar="JOBS",
    help=(
        "Jobs: generated, muri-1, muri-3, default, gpushare100, multigpu50, or the path of a "
        "pod list."
    ),
)
@click.option(
    "--limit", type=click.IntRange(1), metavar="N", help="Simulate only the first N jobs."
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    default=0.2,
    show_default=True,
    metavar="N",
    help="Arrivals per second, for a list without times.",
)
@click.option(
    "--policy",
    "policies",
    type=click.Choice(POLICIES),
    multiple=True,
    metavar="NAME",
    help=f"Policy to simulate: {', '.join(POLICIES)}; may be repeated. [default: all]",
)
@click.option(
    "--durations",
    type=click.Choice(get_args(Knowing)),
    default="exact",
    show_default=True,
    help="Durations known to policies: exact, within a factor of two, or learned from ended jobs.",
)
@click.option(
    "--short-first",
    type=click.FloatRange(0, 1),
    default=0.0,
    show_default=True,
    help="Setting of the policy berthmaster: 0 = no job waits long, 1 = the smallest jobs first.",
)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a chart (SVG) to this file.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def simulate(
    fleet: str,
    clusters: int,
    nodes: int | None,
    jobs: str,
    limit: int | None,
    rate: float,
    policies: tuple[str, ...],
    durations: Knowing,
    short_first: float,
    seed: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Simulate a list of jobs on a fleet under several policies, in virtual time.

    The policy berthmaster is the resolver's core. The others are baselines: fifo, sjf (shortest
    first) and easy (backfill behind a reservation) queue strictly, bestfit skips jobs without a
    fitting node. The same input and seed always give the same results. Named traces are in the
    folder of BERTH_TRACES.
    """
    from berthmaster.lab.simulate import traces

    output = Output(as_json=as_json)
    names = tuple(dict.fromkeys(policies or POLICIES))
    try:
        specs = traces.fleet_named(fleet, clusters=clusters, nodes=nodes)
        listed = traces.jobs_named(jobs, seed=seed, limit=limit, rate_per_s=rate)
    except SimulationError as error:
        usage(str(error))
    try:
        summaries = play(names, specs, told(listed, durations, seed), output, short_first)
        gpus = sum(sum(cluster.gpus.values()) for cluster in specs)
        result = Simulation(
            fleet=fleet, jobs=jobs, durations=durations, seed=seed, gpus=gpus, policies=summaries
        )
        if plot is not None:
            title = f"{len(listed)} jobs ({jobs}) on {gpus} GPUs ({fleet}), durations {durations}"
            plot.write_text(draw(summaries, gpus, title))
            output.say(f"The picture is in {plot}.")
    except SimulationError as error:
        output.say(f"berth: {error}")
        sys.exit(EXIT_FAILED)
    except OSError as error:
        output.say(f"berth: cannot write {plot}: {error.strerror}")
        sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    output.document(result, lambda: screen(result))


def play(
    names: Sequence[str],
    specs: "Sequence[ClusterSpec]",
    jobs: "Sequence[Job]",
    output: Output,
    short_first: float,
) -> tuple[RunSummary, ...]:
    """Run all policies, with bars on a terminal."""
    from berthmaster.lab.simulate.compare import play_all

    with bars(len(jobs), output) as began:
        runs = play_all(names, specs, jobs, began=began, short_first=short_first)
    return tuple(summarize(run) for run in runs)


@contextmanager
def bars(jobs: int, output: Output) -> "Iterator[Callable[[str], Progress]]":
    """Show a bar per policy on a terminal, else nothing."""
    if output.as_json or not sys.stderr.isatty():
        yield lambda name: lambda ended: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description:<12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    )  # fmt: skip
    with Bars(*columns, console=Console(stderr=True), transient=True) as shown:

        def began(name: str) -> Progress:
            task = shown.add_task(name, total=jobs)
            return lambda ended: shown.update(task, completed=ended)

        yield began


def screen(result: Simulation) -> "RenderableType":
    """Return two lines per policy, because eleven figures exceed 80 columns."""
    from rich.console import Group

    from berthmaster.cli.output.terminal import plain_table, safe

    times = ("COMPLETION", "P50", "P99", "WAIT", "P50", "P99")
    shares = ("MAKESPAN", "USED", "WHEN BUSY", "FRAGMENTED", "FAIRNESS")
    first = plain_table("POLICY", *times, right=times)
    second = plain_table("POLICY", *shares, right=shares)
    for one in result.policies:
        spans = (
            value
            for summary in (one.completion, one.wait)
            for value in (summary.mean_s, summary.p50_s, summary.p99_s)
        )
        first.add_row(one.policy, *map(span_text, spans))
        used = (one.allocation_arriving, one.allocation_busy, one.fragmentation)
        second.add_row(
            one.policy,
            span_text(one.makespan_s),
            *(f"{100 * share:.1f}%" for share in used),
            f"{one.fairness:.3f}",
        )
    jobs = result.policies[0].jobs
    head = (
        f"{jobs} jobs ({result.jobs}) on {result.gpus} GPUs ({result.fleet}), "
        f"durations {result.durations}, seed {result.seed}"
    )
    legend = [safe(line, style="dim") for line in LEGEND]
    return Group(safe(head, style="bold"), first, safe(), second, safe(), *legend)
