"""`berth demo replay`: submits a trace or a generated stream at a speed, and accounts for all jobs.

The replay ends when nothing changes any more. Jobs that run for days, and jobs that fit nowhere,
are then still open, and counted in their state.
"""

import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import aclosing
from pathlib import Path
from typing import Final

import click

from berthmaster.cli.demo import screen
from berthmaster.cli.demo.load import Load, account
from berthmaster.cli.demo.screen import ReplayReport
from berthmaster.cli.demo.stats import SHOWN_STATES, WorkloadStats
from berthmaster.cli.session import EXIT_FAILED, Session, bus_command, usage
from berthmaster.cli.up.commands import until_signal
from berthmaster.client import Client
from berthmaster.lib.messages.workload import JobRequest

REQUEST_LIMIT_S: Final = 30.0
LINE_INTERVAL_S: Final = 2.0
READ_ON_LIMIT_S: Final = 10.0
TRACES: Final = ("default", "gpushare100", "multigpu50")
GENERATED: Final = 1000  # number of requests without a limit


@click.command()
@click.argument("trace", default="default", metavar="[TRACE]")
@click.option(
    "--speed",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    metavar="X",
    help="Speed-up over the original times; 0 = no waits.",
)
@click.option(
    "--limit", type=click.IntRange(1), metavar="N", help="Replay only the first N requests."
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    metavar="N",
    help="Requests per second, for a trace without times.",
)
@click.option(
    "--duration-median",
    "median_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="Median duration of generated jobs, in simulated seconds.",
)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option(
    "--prefix", default=None, help="Prefix of every job id. [default: unique for each replay]"
)
@click.option("--queue", default="default", show_default=True)
@click.option(
    "--settle",
    "settle_s",
    type=click.FloatRange(0.5, 86400),
    default=10.0,
    show_default=True,
    metavar="S",
    help="Seconds without any change after which the replay ends.",
)
@click.option(
    "--at-most",
    "at_most_s",
    type=click.FloatRange(1),
    default=3600.0,
    show_default=True,
    metavar="S",
    help="Maximum duration of the replay in seconds.",
)
@click.option("--in-flight", type=click.IntRange(1, 10_000), default=256, show_default=True)
@bus_command
async def replay(
    session: Session,
    trace: str,
    speed: float,
    limit: int | None,
    rate: float,
    median_s: float | None,
    seed: int,
    prefix: str | None,
    queue: str,
    settle_s: float,
    at_most_s: float,
    in_flight: int,
) -> int:
    """Submit a trace at a speed and account for every workload.

    TRACE is 'generated', a pod list in openb's form, or the name of an openb list (default,
    gpushare100, multigpu50) in the folder of BERTH_TRACES. Jobs run at the speed of their clusters:
    start the clusters with the same --speed (see `berth up`).
    """
    prefix = f"r{int(time.time()) % 100_000_000:x}-" if prefix is None else prefix
    arrivals = read_arrivals(
        trace, seed=seed, prefix=prefix, queue=queue, rate=rate, limit=limit, median_s=median_s
    )
    async with session.client(timeout_s=REQUEST_LIMIT_S) as berth, until_signal() as stopping:
        run = Replay(session, berth, arrivals, speed, settle_s, in_flight)
        report = await run.play(stopping, at_most_s)
        session.out.document(report, lambda: screen.replay(report))
        return 0 if report.balanced else EXIT_FAILED


def read_arrivals(
    trace: str,
    *,
    seed: int,
    prefix: str,
    queue: str,
    rate: float,
    limit: int | None,
    median_s: float | None,
) -> list[tuple[float, JobRequest]]:
    """Return the requests with their times. An unreadable trace is a usage error."""
    from berthmaster.lab.emulator import workloads

    try:
        if trace == "generated":
            made: Iterable[workloads.Arrival] = workloads.generated(
                seed=seed,
                rate_per_s=rate,
                count=GENERATED if limit is None else limit,
                prefix=prefix.rstrip("-") or "job",
                queue=queue,
                median_duration_s=workloads.MEDIAN_DURATION_S if median_s is None else median_s,
            )
        else:
            path = trace_path(trace)
            made = workloads.parse_workloads(
                path.read_text(), seed=seed, prefix=prefix, queue=queue, rate_per_s=rate
            )[:limit]
    except workloads.WorkloadError as error:
        usage(f"{trace}: {error}")
    except OSError as error:
        usage(f"cannot read {error.filename or trace}: {error.strerror}")
    except UnicodeDecodeError:
        usage(f"{trace} is not a text file")
    return [(arrival.at_s, arrival.request) for arrival in made]


def trace_path(trace: str) -> Path:
    """Return the file of a trace: a path, or one of openb's by name."""
    from berthmaster.lab.emulator.workloads import OPENB_PODS

    if trace not in TRACES:
        return Path(trace)
    folder = os.environ.get("BERTH_TRACES")
    if not folder:
        usage(
            f"set BERTH_TRACES to the folder with {OPENB_PODS[trace]}, or give a pod list's path, "
            "or 'generated'"
        )
    return Path(folder) / OPENB_PODS[trace]


class Replay:
    def __init__(
        self,
        session: Session,
        berth: Client,
        arrivals: list[tuple[float, JobRequest]],
        speed: float,
        settle_s: float,
        in_flight: int,
    ) -> None:
        self._out = session.out
        self._berth = berth
        self._arrivals = arrivals
        self._speed = speed
        self._settle_s = settle_s
        self._stats = WorkloadStats(only=(request.id for _, request in arrivals))
        self._load = Load(berth, max_in_flight=in_flight)
        self._changed_s = time.monotonic()
        self._news = asyncio.Event()  # set by an event, or when no more events come

    async def play(self, stopping: asyncio.Event, at_most_s: float) -> ReplayReport:
        """Submit, follow, and account."""
        since = await self._berth.last_sequence()
        began_s = time.monotonic()
        events = asyncio.create_task(self._follow(since))
        submitting = asyncio.create_task(self._load.run(self._arrivals, self._speed))
        took_s = 0.0
        showing = asyncio.create_task(self._show(began_s))
        try:
            async with asyncio.timeout(at_most_s):
                await _first(stopping, submitting, events)
                took_s = time.monotonic() - began_s
                self._changed_s = time.monotonic()
                while not stopping.is_set() and not self._settled():
                    if events.done():
                        events.result()
                    await asyncio.sleep(0.05)
        except TimeoutError:
            self._out.say(f"The time is over ({at_most_s:g} s).")
        finally:
            for task in (showing, submitting):
                task.cancel()
            await asyncio.wait([showing, submitting])
            await self._read_on(events)
            events.cancel()
            await asyncio.wait([events])
        return self._report(took_s or time.monotonic() - began_s, time.monotonic() - began_s)

    async def _follow(self, since: int) -> None:
        try:
            async with aclosing(self._berth.watch(since=since)) as events:
                async for seen in events:
                    before = self._stats.sequence
                    self._stats.take(seen)
                    self._news.set()
                    if self._stats.sequence != before:
                        self._changed_s = time.monotonic()
        finally:
            self._news.set()

    async def _read_on(self, events: asyncio.Task[None]) -> None:
        """Read events up to the last accepted job.

        Without this, a stopped replay would report running jobs as missing while their events are
        in flight.
        """
        try:
            async with asyncio.timeout(READ_ON_LIMIT_S):
                while self._stats.sequence < self._load.last_sequence and not events.done():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            self._out.say(f"Not all events came within {READ_ON_LIMIT_S:g} s.")

    def _settled(self) -> bool:
        everything_seen = self._stats.known >= len(self._load.accepted_ids)
        if everything_seen and not self._stats.open:
            return True
        return time.monotonic() - self._changed_s > self._settle_s

    def _report(self, submit_s: float, took_s: float) -> ReplayReport:
        summary = self._stats.summary()
        states: Counter[str] = Counter(summary.states)
        balance = account(
            self._load.result,
            states,
            expected=self._load.accepted_ids,
            seen=set(self._stats.ids(*SHOWN_STATES)),
        )
        return ReplayReport(
            account=balance,
            balanced=balance.balanced,
            load=self._load.result,
            latencies=summary.latencies,
            took_s=round(took_s, 3),
            evictions=summary.evictions,
            submits_per_s=round(self._load.result.accepted / max(submit_s, 1e-9), 1),
        )

    async def _show(self, began_s: float) -> None:
        """Show a progress bar on a terminal, lines elsewhere, and nothing with --json."""
        if self._out.as_json:
            return
        if not sys.stderr.isatty():
            while True:
                await asyncio.sleep(LINE_INTERVAL_S)
                elapsed_s = time.monotonic() - began_s
                self._out.say(screen.progress_line(elapsed_s, self._stats.summary(), 0))
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns = (TextColumn("{task.description:<9}"), BarColumn(), MofNCompleteColumn())
        total = len(self._arrivals)
        with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
            offered = bars.add_task("submitted", total=total)
            placed = bars.add_task("placed", total=total)
            ended = bars.add_task("ended", total=total)
            while True:
                summary = self._stats.summary()
                bars.update(offered, completed=self._load.result.offered)
                bars.update(placed, completed=summary.placed_at_least_once)
                bars.update(ended, completed=summary.ended)
                await asyncio.sleep(0.25)


async def _first(
    stopping: asyncio.Event, submitting: asyncio.Task[None], events: asyncio.Task[None]
) -> None:
    """Wait until all is submitted or Ctrl-C. The first failed task raises its error."""
    stop = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait({stop, submitting, events}, return_when=asyncio.FIRST_COMPLETED)
        for task in (submitting, events):
            if task.done():
                task.result()
    finally:
        stop.cancel()
