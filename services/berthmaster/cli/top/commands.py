"""`berth top`: clusters, the nodes of one, jobs or queues, in a refreshing table.

On a terminal the table stays in place. Elsewhere it is written again after each interval, and with
--once or -o one time.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from berthmaster.cli.completion import CLUSTER
from berthmaster.cli.output.errors import complain
from berthmaster.cli.output.listing import Form, form_option, write_list
from berthmaster.cli.session import EXIT_FAILED, Session, bus_command, usage
from berthmaster.cli.top.rows import COLUMNS, Kind, column_named, in_order, job_rows, name_of
from berthmaster.client.errors import UnavailableError
from berthmaster.lib.engine.fleetview.rows import FleetView
from berthmaster.lib.messages.placement import MAIN_CELL
from berthmaster.lib.messages.telemetry import FIGURES_S, JobFigures, job_key

if TYPE_CHECKING:
    from rich.console import RenderableType

    from berthmaster.client import Client
    from berthmaster.lib.messages.api import WorkloadView
    from berthmaster.lib.messages.quality import QualityReport

CONTROL_INTERVAL_S: Final = 2.0
JOBS_INTERVAL_S: Final = 2.0
FIRST_LIMIT_S: Final = 12.0  # seconds; a resolver reports every five seconds
TELEMETRY_ROUND_S: Final = 1.2
OLD_FIGURES_S: Final = 3 * FIGURES_S
MAX_JOBS: Final = 1_000
MAX_REQUESTS: Final = 64  # requests for usage metrics at once
OPEN: Final = ("queued", "placed", "claimed", "admitted", "running")


@click.command()
@click.argument("cluster", type=CLUSTER, required=False)
@click.option("--jobs", "with_jobs", is_flag=True, help="Show open jobs with their GPU usage.")
@click.option(
    "--queues", "with_queues", is_flag=True, help="Show queues: waits, GPUs, completions."
)
@click.option("--cell", default=MAIN_CELL, show_default=True, help="Cell for --queues.")
@click.option("--sort", metavar="COLUMN", help="Column to sort by.")
@click.option("--reverse", is_flag=True, help="Reverse the order.")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(0.1, 60),
    default=1.0,
    show_default=True,
    metavar="S",
    help="Seconds between two updates.",
)
@click.option("--once", is_flag=True, help="Print one table and exit; implied by -o.")
@form_option
@bus_command
async def top(
    session: Session,
    cluster: str | None,
    with_jobs: bool,
    with_queues: bool,
    cell: str,
    sort: str | None,
    reverse: bool,
    interval_s: float,
    once: bool,
    form: Form | None,
) -> int:
    """Watch the clusters, the nodes and GPUs of one CLUSTER, jobs, or queues. Ctrl-C ends.

    --queues also shows allocation, fragmentation and fairness. Details are on the dashboard, and in
    `berth job` and `berth why`.
    """
    if (cluster is not None) + with_jobs + with_queues > 1:
        usage("give one of CLUSTER, --jobs and --queues")
    kind: Kind = "jobs" if with_jobs else "queues" if with_queues else "clusters"
    if cluster is not None:
        kind = "nodes"
    column = 0 if reverse else None
    if sort is not None:
        column = column_named(kind, sort)
        if column is None:
            titles = ", ".join(each.title.lower() for each in COLUMNS[kind])
            usage(f"--sort: there is no column {sort!r}; there are {titles}")
    async with session.client() as berth:
        watching = _Watching(berth, kind, cluster or "", sees_all=not session.target.is_tenant)
        table = _Table(session, watching, column, reverse=reverse)
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(work) for work in watching.work(cell)]
            try:
                async with asyncio.timeout(FIRST_LIMIT_S):
                    await watching.known.wait()
            except TimeoutError:
                what = f"resolver of cell {cell}" if with_queues else "service"
                raise UnavailableError(
                    f"no {what} has reported within {FIRST_LIMIT_S:g} s"
                ) from None
            if kind in ("nodes", "jobs"):
                await asyncio.sleep(TELEMETRY_ROUND_S)  # telemetry is only published, never stored
            if once or form is not None:
                table.write(form)
            else:
                await table.follow(interval_s)
            for task in running:
                task.cancel()
    if cluster is None or watching.rows():
        return 0
    complain(f"no node of {cluster} has reported; see `berth top`")
    return EXIT_FAILED


class _Table:
    """The table of one kind of rows, written once or repeatedly."""

    def __init__(
        self, session: Session, watching: "_Watching", column: int | None, *, reverse: bool
    ) -> None:
        self._out = session.out
        self._watching = watching
        self._column = column  # None = unsorted
        self._reverse = reverse

    def write(self, form: Form | None) -> None:
        """Write all rows once, in one form."""
        rows, document = self._now()
        write_list(
            self._out,
            form,
            document,
            rows,
            lambda row: "/".join(part for part in name_of(row) if part),
            lambda wide: self._picture(rows, document, wide=wide),
        )

    async def follow(self, interval_s: float) -> None:
        """Show the rows until the command is interrupted."""
        from rich.live import Live

        out = self._out
        if out.as_json or not out.console.is_terminal:
            while True:
                self._write_one()
                await asyncio.sleep(interval_s)
        with Live(console=out.console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(self._picture(*self._now()), refresh=True)
                await asyncio.sleep(interval_s)

    def _write_one(self) -> None:
        rows, document = self._now()
        self._out.screen(document, lambda: self._picture(rows, document))

    def _now(self) -> tuple[list[Any], Any]:
        """Return the rows in order, and the JSON document of them."""
        watching = self._watching
        rows = watching.rows()
        if self._column is not None:
            rows = in_order(watching.kind, rows, self._column, reverse=self._reverse)
        if watching.quality is None:
            return rows, rows
        return rows, msgspec.structs.replace(watching.quality, queues=tuple(rows))

    def _picture(self, rows: list[Any], document: Any, *, wide: bool = False) -> "RenderableType":
        from berthmaster.cli.fleet.screen import clusters, nodes
        from berthmaster.cli.top import screen

        ascii_only = self._out.ascii_only
        match self._watching.kind:
            case "clusters":
                return clusters(rows, ascii_only=ascii_only, wide=wide)
            case "nodes":
                return nodes(rows, ascii_only=ascii_only)
            case "queues":
                return screen.quality(document)
            case _:
                return screen.jobs(rows, wide=wide)


class _Watching:
    """The known rows of one kind, kept up to date."""

    def __init__(self, berth: "Client", kind: Kind, cluster: str, *, sees_all: bool) -> None:
        """``cluster``: of the nodes. ``sees_all``: usage metrics of all tenants, not of one."""
        self.berth = berth
        self.kind = kind
        self._cluster = cluster
        self._sees_all = sees_all
        self.known = asyncio.Event()
        self.quality: QualityReport | None = None
        self._fleet = FleetView()
        self._views: Sequence[WorkloadView] = ()
        self._figures: dict[tuple[str, str], JobFigures] = {}
        self._received_s: dict[tuple[str, str], float] = {}
        self._requested: set[tuple[str, str]] = set()

    def work(self, cell: str) -> Iterator[Any]:
        """Yield the coroutines that must run for these rows."""
        match self.kind:
            case "jobs":
                yield self._list_jobs()
                yield self._follow_figures()
            case "queues":
                yield self._follow_quality(cell)
            case "nodes":
                yield self._follow(True, self._cluster)
                yield self._follow_control()
                yield self._follow_telemetry(self._cluster)
            case _:
                yield self._follow(False, None)
                yield self._follow_control()

    def rows(self) -> list[Any]:
        match self.kind:
            case "clusters":
                return list(self._fleet.rows(self.berth.now()))
            case "nodes":
                return list(self._fleet.node_rows(self._cluster))
            case "queues":
                return [] if self.quality is None else list(self.quality.queues)
            case _:
                return list(job_rows(self._views, self._recent_figures(), self.berth.now()))

    def _recent_figures(self) -> dict[tuple[str, str], JobFigures]:
        """Return the usage metrics without those older than OLD_FIGURES_S."""
        since_s = asyncio.get_running_loop().time() - OLD_FIGURES_S
        return {
            name: one for name, one in self._figures.items() if self._received_s[name] > since_s
        }

    async def _follow_quality(self, cell: str) -> None:
        async with aclosing(self.berth.quality(cell)) as reports:
            async for report in reports:
                self.quality = report
                self.known.set()

    async def _follow(self, nodes: bool, cluster: str | None) -> None:
        self._fleet.set_control(await self.berth.control())  # so that the first table has cordons
        facts = self.berth.facts(nodes=nodes, cluster=cluster, caught_up=self.known.set)
        async with aclosing(facts) as source:
            async for seen in source:
                self._fleet.take(seen)

    async def _follow_telemetry(self, cluster: str | None) -> None:
        async with aclosing(self.berth.telemetry(cluster)) as source:
            async for report in source:
                self._fleet.take_telemetry(report)

    async def _follow_control(self) -> None:
        while True:
            await asyncio.sleep(CONTROL_INTERVAL_S)
            self._fleet.set_control(await self.berth.control())

    async def _list_jobs(self) -> None:
        while True:
            reply = await self.berth.list(states=OPEN, limit=MAX_JOBS, parts=True)
            # The parts of a divided job report its GPUs, cluster by cluster.
            self._views = tuple(view for view in reply.workloads if not view.parts)
            await self._request_figures()
            self.known.set()
            await asyncio.sleep(JOBS_INTERVAL_S)

    async def _request_figures(self) -> None:
        """Request usage metrics of running jobs without any, which may take 30 s."""
        names = [(view.tenant, view.id) for view in self._views if view.state == "running"]
        new = [name for name in names if name not in self._figures and name not in self._requested]
        new = new[:MAX_REQUESTS]
        self._requested |= set(new)
        found = await asyncio.gather(
            *(self.berth.get(workload) for _, workload in new), return_exceptions=True
        )
        for reply in found:
            if isinstance(reply, BaseException):
                continue  # the job ended meanwhile, or the gateway is busy
            for figures in reply.figures:
                self._take(figures)

    def _take(self, figures: JobFigures) -> None:
        name = (figures.tenant, job_key(figures))
        if figures.ended:
            self._figures.pop(name, None)
        else:
            self._figures[name] = figures
            self._received_s[name] = asyncio.get_running_loop().time()

    async def _follow_figures(self) -> None:
        async with aclosing(self.berth.job_figures(every_tenant=self._sees_all)) as source:
            async for figures in source:
                self._take(figures)
