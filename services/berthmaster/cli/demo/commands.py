"""`berth demo [run] | replay`: placement on emulated and on real clusters.

`run` starts all services in a separate folder, submits a stream of jobs, and shows a live view.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import click
from msgspec.structs import replace

from berthmaster.cli.demo import load, screen
from berthmaster.cli.demo.replay import replay
from berthmaster.cli.demo.screen import DemoReport, PlacementLine
from berthmaster.cli.demo.stats import RECENT, WorkloadStats
from berthmaster.cli.fleet.rows import fleet_rows
from berthmaster.cli.job.screen import reason_of
from berthmaster.cli.session import DefaultGroup, Output, run, usage
from berthmaster.cli.up.commands import (
    cannot_start,
    options_of,
    say_slow,
    stack_flags,
    until_signal,
)
from berthmaster.client import BerthError, Client
from berthmaster.lab.emulator.workloads import Arrival, generated
from berthmaster.lib.engine.fleetview.rows import FleetView
from berthmaster.lib.lifecycle.pods import charged_gpu_milli
from berthmaster.lib.messages.workload import JobRequest, PodSet
from berthmaster.lib.supervisor.faults import FAULTS
from berthmaster.lib.supervisor.plan import PlanError, UpOptions
from berthmaster.lib.supervisor.processes import NO_LIMIT_S, unless
from berthmaster.lib.supervisor.stack import Stack, ephemeral_folder

DURATION_S: Final = 30.0
JOBS: Final = 600
SPEED: Final = 60.0  # a minute of a job's duration takes a second
NODES: Final = 64  # few enough that the jobs fill them
ODD: Final = 5  # number of the job that requests a missing model
GANG_SHARE: Final = 0.15
REFRESH_S: Final = 0.25
LINE_INTERVAL_S: Final = 1.0
SUBMIT_SHARE: Final = 0.8  # fraction of the duration; the rest shows the outcome of the last jobs
FLEET_LIMIT_S: Final = 10.0


@click.group(cls=DefaultGroup)
def demo() -> None:
    """Demonstrate placement. Without a command: `run`, on emulated clusters.

    Options of the run: `berth demo run --help`.
    """


@demo.command("run", context_settings={"default_map": {"speed": SPEED, "nodes": NODES}})
@stack_flags
@click.option(
    "--duration",
    "duration_s",
    type=click.FloatRange(1, 86400),
    default=DURATION_S,
    show_default=True,
    metavar="S",
    help="Duration of the demo in seconds.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1, 1_000_000),
    default=JOBS,
    show_default=True,
    metavar="N",
    help="Number of jobs to submit.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Folder to keep data and logs in. [default: a temporary folder]",
)
@click.option("--no-live", is_flag=True, help="Print lines instead of the live view.")
@click.option("--json", "as_json", is_flag=True, help="Print only the summary, as JSON.")
def emulated(
    duration_s: float, jobs: int, data: Path | None, no_live: bool, as_json: bool, **flags: Any
) -> None:
    """Bring up everything with emulated clusters, submit jobs, watch them, sum up."""
    began_s = time.monotonic()
    output = Output(as_json=as_json)
    with contextlib.ExitStack() as owned:
        folder = data or Path(owned.enter_context(ephemeral_folder()))
        flags["sync"] = flags["sync"] or ("always" if data else "default")
        try:
            options = options_of(folder, flags)
        except PlanError as error:
            usage(str(error))
        shown = sys.stdout.isatty() and not no_live and not as_json
        code = run(_demo(options, output, duration_s, jobs, shown, began_s), output)
    sys.exit(code)


async def _demo(
    options: UpOptions, output: Output, duration_s: float, jobs: int, live: bool, began_s: float
) -> int:
    async with until_signal() as stopping:
        output.say(f"Starting NATS, {', '.join(options.services)} …")
        stack = Stack(options, announce=False, start_limit_s=NO_LIMIT_S, slow=say_slow)
        try:
            if await unless(stopping, stack.__aenter__()) is None:
                return 0
        except FAULTS as error:
            return cannot_start(output, error)
        try:
            if stack.page:
                output.say(f"Dashboard: {stack.page}")
            output.say(f"Up after {stack.took_s:.1f} s; submitting {jobs:,} jobs.")
            demo_run = DemoRun(stack, output, duration_s, jobs, began_s, live=live)
            report = await demo_run.play(stopping)
        finally:
            await stack.__aexit__(None, None, None)
    output.document(report, lambda: screen.demo(report))
    return 0 if report.summary.placed_at_least_once else 1


def with_an_odd_one(arrivals: Iterable[Arrival]) -> Iterator[Arrival]:
    """Yield the arrivals, with one job for a model that no cluster has.

    That job waits, and the demo can show a reason.
    """
    for number, arrival in enumerate(arrivals, 1):
        request = arrival.request
        if number == ODD:
            wants = PodSet(gpus=1, gpu_models=("H100",))
            request = replace(request, id=f"{request.id}-wants-h100", pod_sets=(wants,))
        yield arrival._replace(request=request)


class DemoRun:
    def __init__(
        self,
        stack: Stack,
        output: Output,
        duration_s: float,
        jobs: int,
        began_s: float,
        *,
        live: bool,
    ) -> None:
        self._stack = stack
        self._output = output
        self._duration_s = duration_s
        self._jobs = jobs
        self._began_s = began_s
        self._live = live
        self._stats = WorkloadStats()
        self._fleet = FleetView()
        self._reasons: dict[tuple[str, int], str] = {}
        self._requests: dict[str, JobRequest] = {}
        self._first_placed_s: float | None = None

    async def play(self, stopping: asyncio.Event) -> DemoReport:
        """Submit, show, and sum up after the duration or Ctrl-C."""
        at = self._stack.connection
        client = Client.connect(
            at.url,
            tenant=at.tenant,
            creds_file=at.creds_file,
            inbox_prefix=at.inbox_prefix,
            ca_file=at.ca_file or None,
        )
        async with client as berth:
            shown_s = time.monotonic()
            submitting = load.Load(berth, before=self._before)
            work = [self._events(berth), self._decisions(berth), self._facts(berth)]
            tasks = [asyncio.create_task(each) for each in work]
            tasks.append(asyncio.create_task(self._submit(submitting)))
            showing = asyncio.create_task(self._show(shown_s))
            try:
                await self._until_over(stopping, [*tasks, showing])
            finally:
                for task in (showing, *tasks):
                    task.cancel()
                await asyncio.wait([showing, *tasks])
            return await self._report(berth, shown_s, submitting.result)

    async def _until_over(
        self, stopping: asyncio.Event, tasks: Iterable[asyncio.Task[None]]
    ) -> None:
        """Wait for the end. A task that fails earlier fails the demo."""
        stop = asyncio.create_task(stopping.wait())
        pending: set[asyncio.Task[Any]] = {stop, *tasks}
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._duration_s
        while not stopping.is_set() and (left_s := end_s - loop.time()) > 0:
            done, pending = await asyncio.wait(
                pending, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()
        stop.cancel()

    # Concurrent tasks

    async def _submit(self, submitting: load.Load) -> None:
        await self._fleet_there()
        rate_per_s = self._jobs / (self._duration_s * SUBMIT_SHARE)
        arrivals = generated(
            seed=self._stack.options.seed,
            rate_per_s=rate_per_s,
            count=self._jobs,
            gang_share=GANG_SHARE,
        )
        await submitting.run(with_an_odd_one(arrivals), 1.0)

    async def _fleet_there(self) -> None:
        """Wait until all clusters have scores, so that the first jobs can use every cluster."""
        deadline = time.monotonic() + FLEET_LIMIT_S
        while time.monotonic() < deadline:
            rows = self._fleet.rows(0)
            if sum(row.freshness == "fresh" for row in rows) >= self._stack.options.clusters:
                return
            await asyncio.sleep(0.02)

    def _before(self, request: JobRequest) -> None:
        self._requests[request.id] = request

    async def _events(self, berth: Client) -> None:
        async with aclosing(berth.watch(tenant="*", since=0)) as events:
            async for seen in events:
                self._stats.take(seen)
                if self._first_placed_s is None and self._stats.recent:
                    self._first_placed_s = time.monotonic() - self._began_s

    async def _decisions(self, berth: Client) -> None:
        async with aclosing(berth.decisions(since=0)) as decisions:
            async for seen in decisions:
                for choice in seen.decision.placements:
                    self._reasons[choice.id, choice.attempt] = reason_of(choice)
                while len(self._reasons) > 100 * RECENT:
                    del self._reasons[next(iter(self._reasons))]

    async def _facts(self, berth: Client) -> None:
        async with aclosing(berth.facts()) as facts:
            async for seen in facts:
                self._fleet.take(seen)

    async def _show(self, began_s: float) -> None:
        if self._live:
            await self._show_live(began_s)
        while True:
            await asyncio.sleep(LINE_INTERVAL_S)
            gpus = sum(row.gpus for row in self._fleet.rows(0))
            line = screen.progress_line(time.monotonic() - began_s, self._stats.summary(), gpus)
            self._output.say(line)

    async def _show_live(self, began_s: float) -> None:
        from rich.live import Live

        console = self._output.console
        with Live(console=console, auto_refresh=False, transient=True) as shown:
            while True:
                summary = self._stats.summary()
                left_s = max(0.0, self._duration_s - (time.monotonic() - began_s))
                room = console.height - self._stack.options.clusters - 10
                placements = self._placements()[-max(1, room) :] if room > 0 else []
                picture = screen.live(
                    self._fleet.rows(0),
                    summary,
                    placements,
                    head=f"Berthmaster demo: {left_s:.0f} s to go, Ctrl-C ends it",
                    held=self._stats.held_by_cluster(),
                    width=console.width,
                    ascii_only=self._output.ascii_only,
                )
                shown.update(picture, refresh=True)
                await asyncio.sleep(REFRESH_S)

    def _placements(self) -> list[PlacementLine]:
        return [
            PlacementLine(
                at_s=recent.stored_at_s,
                id=recent.event.id,
                gpus=charged_gpu_milli(recent.event.request, recent.event.pods) / 1000,
                cluster=recent.event.cluster,
                waited_s=recent.waited_s,
                reason=self._reasons.get((recent.event.id, recent.event.attempt), ""),
            )
            for recent in self._stats.recent
        ]

    async def _report(self, berth: Client, began_s: float, result: load.LoadResult) -> DemoReport:
        waiting = None
        rows = self._fleet.rows(0)
        try:
            rows = await fleet_rows(berth)
            waiting = await berth.why()
        except BerthError as error:
            self._output.say(f"The last questions were not answered: {error}")
        known = [row.free_gpus for row in rows if row.free_gpus is not None]
        gpus = sum(row.gpus for row in rows)
        return DemoReport(
            summary=self._stats.summary(),
            took_s=round(time.monotonic() - began_s, 3),
            started_in_s=round(self._stack.took_s, 3),
            first_placed_s=self._first_placed_s,
            gpus=gpus,
            gpus_used=gpus - sum(known) if len(known) == len(rows) and rows else None,
            waiting=waiting,
            restarts=sum(watched.restarts for watched in self._stack.supervisor.watched),
            refused=result.refused,
        )


demo.add_command(replay)
