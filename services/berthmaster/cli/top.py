"""`berth top`: the fleet, one cluster's GPUs, and jobs, live.

On a terminal it listens to keys: rows are sorted, and one goes into a cluster or a job and back.
Elsewhere, with --once or --json, it writes what it shows, once or again and again.
"""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from berthmaster.cli.complain import complain
from berthmaster.cli.completion import CLUSTER
from berthmaster.cli.session import EXIT_FAILED, Session, bus_command, usage
from berthmaster.cli.top_screen import (
    COLUMNS,
    JobRow,
    Kind,
    Screen,
    View,
    column_named,
    in_order,
    job_rows,
    keys_in,
)
from berthmaster.client.errors import BerthError
from berthmaster.fleetview.rows import FleetView
from berthmaster.messages.telemetry import FIGURES_S, JobFigures, job_key

if TYPE_CHECKING:
    from rich.console import RenderableType

    from berthmaster.client import Client
    from berthmaster.messages.api import GetReply, WhyReply, WorkloadView

CONTROL_INTERVAL_S: Final = 2.0
JOBS_INTERVAL_S: Final = 2.0
FIRST_LIMIT_S: Final = 10.0
TELEMETRY_ROUND_S: Final = 1.2
OLD_FIGURES_S: Final = 3 * FIGURES_S
MOST_JOBS: Final = 1_000
MOST_ASKED: Final = 64  # jobs whose figures are asked for at once
OPEN: Final = ("queued", "placed", "claimed", "admitted", "running")


@click.command()
@click.argument("cluster", type=CLUSTER, required=False)
@click.option("--jobs", "with_jobs", is_flag=True, help="Jobs, with what their GPUs do.")
@click.option("--sort", metavar="COLUMN", help="By this column at first.")
@click.option("--reverse", is_flag=True, help="The other way round.")
@click.option("--interval", "interval_s", type=click.FloatRange(0.1, 60), default=1.0, metavar="S")
@click.option("--once", is_flag=True, help="Show it once and end.")
@bus_command
async def top(
    session: Session,
    cluster: str | None,
    with_jobs: bool,
    sort: str | None,
    reverse: bool,
    interval_s: float,
    once: bool,
) -> int:
    """Watch the fleet live, the nodes and GPUs of one cluster, or jobs. Ctrl-C ends.

    On a terminal: arrows move, Enter goes into a cluster or a job, Esc back, c and j show
    clusters and jobs, s sorts by the next column, r turns the order round, q ends.
    """
    if cluster is not None and with_jobs:
        usage("a cluster's nodes or --jobs, not both")
    kind: Kind = "jobs" if with_jobs else "nodes" if cluster else "clusters"
    column = 0
    if sort is not None:
        found = column_named(kind, sort)
        if found is None:
            titles = ", ".join(each.title.lower() for each in COLUMNS[kind])
            usage(f"--sort: there is no column {sort!r}; there are {titles}")
        column = found
    view = View(kind, (cluster,) if cluster else (), column)
    view.reverse = reverse
    async with session.client() as berth:
        watching = _Watching(berth, sees_all=not session.target.is_tenant)
        live = not once and not session.out.as_json and sys.stdout.isatty()
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(work) for work in watching.work(view, live=live)]
            async with asyncio.timeout(FIRST_LIMIT_S):
                await watching.known.wait()
            if kind != "clusters":
                await asyncio.sleep(TELEMETRY_ROUND_S)  # what is only heard takes a round to come
            if live and sys.stdin.isatty():
                await _Live(session, watching, Screen(view)).run(interval_s)
            else:
                await _write(session, watching, view, None if once else interval_s)
            for task in running:
                task.cancel()
    if cluster is None or watching.rows(View("nodes", (cluster,))):
        return 0
    complain(f"no node of {cluster} has reported; see `berth clusters`")
    return EXIT_FAILED


class _Watching:
    """What is known of the fleet and of jobs, kept up to date."""

    def __init__(self, berth: "Client", *, sees_all: bool) -> None:
        """``sees_all``: the fleet and everybody's figures, not only one tenant's jobs."""
        self.berth = berth
        self._sees_all = sees_all
        self.known = asyncio.Event()
        self._fleet = FleetView()
        self._views: Sequence[WorkloadView] = ()
        self._figures: dict[tuple[str, str], JobFigures] = {}
        self._heard_s: dict[tuple[str, str], float] = {}
        self._asked: set[tuple[str, str]] = set()
        self.note = ""

    def work(self, view: View, *, live: bool) -> Iterator[Any]:
        """What has to run. Alive, all of it, since a key may ask for it."""
        cluster = view.name[0] if view.kind == "nodes" else None
        live_fleet = live and self._sees_all
        fleet = live_fleet or view.kind != "jobs"
        if fleet:
            nodes = live_fleet or cluster is not None
            yield self._follow(nodes, None if live else cluster)
            yield self._follow_control()
        if live_fleet or cluster is not None:
            yield self._follow_telemetry(None if live else cluster)
        if live or view.kind == "jobs":
            yield self._list_jobs(tells=not fleet)
            yield self._follow_figures()

    def rows(self, view: View) -> list[Any]:
        """Of a view."""
        match view.kind:
            case "clusters":
                return list(self._fleet.rows(self.berth.now()))
            case "nodes":
                return list(self._fleet.node_rows(view.name[0]))
            case _:
                return list(job_rows(self._views, self._told(), self.berth.now()))

    def job_row(self, name: tuple[str, ...]) -> JobRow | None:
        """One job, if it is known."""
        rows = job_rows(self._views, self._told(), self.berth.now())
        return next((row for row in rows if (row.tenant, row.id) == name), None)

    def _told(self) -> dict[tuple[str, str], JobFigures]:
        """Without those of jobs of which nothing was heard for long."""
        since_s = asyncio.get_running_loop().time() - OLD_FIGURES_S
        return {name: one for name, one in self._figures.items() if self._heard_s[name] > since_s}

    async def _follow(self, nodes: bool, cluster: str | None) -> None:
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
            self._fleet.set_control(await self.berth.control())
            await asyncio.sleep(CONTROL_INTERVAL_S)

    async def _list_jobs(self, *, tells: bool) -> None:
        while True:
            reply = await self.berth.list(states=OPEN, limit=MOST_JOBS, parts=True)
            # What a divided job's GPUs do its parts tell, cluster by cluster.
            self._views = tuple(view for view in reply.workloads if not view.parts)
            await self._ask_figures()
            if tells:
                self.known.set()
            await asyncio.sleep(JOBS_INTERVAL_S)

    async def _ask_figures(self) -> None:
        """Of jobs that run and that nothing was heard of: it may be half a minute until it is."""
        names = [(view.tenant, view.id) for view in self._views if view.state == "running"]
        new = [name for name in names if name not in self._figures and name not in self._asked]
        new = new[:MOST_ASKED]
        self._asked |= set(new)
        found = await asyncio.gather(
            *(self.berth.get(workload) for _, workload in new), return_exceptions=True
        )
        for reply in found:
            if isinstance(reply, BaseException):
                continue  # it ended meanwhile, or the gateway has much to do
            for told in reply.figures:
                self._take(told)

    def _take(self, told: JobFigures) -> None:
        name = (told.tenant, job_key(told))
        if told.ended:
            self._figures.pop(name, None)
        else:
            self._figures[name] = told
            self._heard_s[name] = asyncio.get_running_loop().time()

    async def _follow_figures(self) -> None:
        async with aclosing(self.berth.job_figures(every_tenant=self._sees_all)) as source:
            async for told in source:
                self._take(told)


async def _write(
    session: Session, watching: _Watching, view: View, interval_s: float | None
) -> None:
    """Once, or one after the other."""
    while True:
        rows = in_order(view.kind, watching.rows(view), view.column, reverse=view.reverse)
        picture = partial(_picture, session, view, rows)
        if interval_s is None:
            session.out.document(rows, picture)
            return
        session.out.screen(rows, picture)
        await asyncio.sleep(interval_s)


def _picture(session: Session, view: View, rows: list[Any]) -> "RenderableType":
    from berthmaster.cli.render import fleet, top

    match view.kind:
        case "clusters":
            return fleet.clusters(rows, ascii_only=session.out.ascii_only)
        case "nodes":
            return fleet.nodes(rows, ascii_only=session.out.ascii_only)
        case _:
            return top.jobs(rows)


class _Live:
    """On a terminal, with keys."""

    def __init__(self, session: Session, watching: _Watching, screen: Screen) -> None:
        self._session = session
        self._watching = watching
        self._screen = screen
        self._stirred = asyncio.Event()
        self._over = False
        self._about: tuple[tuple[str, ...], GetReply | None, WhyReply | None, str] | None = None

    async def run(self, interval_s: float) -> None:
        """Until somebody has had enough."""
        from rich.live import Live

        console = self._session.out.console
        with _keys(self._pressed), Live(console=console, screen=True, auto_refresh=False) as live:
            while not self._over:
                live.update(await self._shown(console.height), refresh=True)
                self._stirred.clear()
                try:
                    async with asyncio.timeout(interval_s):
                        await self._stirred.wait()
                except TimeoutError:
                    pass

    def _pressed(self, data: bytes) -> None:
        for key in keys_in(data):
            rows = [] if self._screen.view.kind == "job" else self._rows()
            self._over |= self._screen.press(key, rows) == "quit"
        self._stirred.set()

    def _rows(self) -> list[Any]:
        return self._watching.rows(self._screen.view)

    async def _shown(self, height: int) -> "RenderableType":
        from berthmaster.cli.render import top

        view = self._screen.view
        if view.kind != "job":
            rows = view.settle(self._rows())
            ascii_only = self._session.out.ascii_only
            return top.table(view, rows, height, ascii_only=ascii_only)
        reply, why, note = await self._ask(view.name)
        row = self._watching.job_row(view.name)
        return top.job(row, reply, why, note, self._watching.berth.now())

    async def _ask(self, name: tuple[str, ...]) -> tuple["GetReply | None", "WhyReply | None", str]:
        """What the gateway and the decider say of a job of this tenant."""
        berth, (tenant, workload) = self._watching.berth, name
        if tenant != berth.tenant:
            whose = f"tenant {tenant}" if tenant else "nobody here: it did not come through us"
            return None, None, f"{workload} is of {whose}; --tenant shows its story"
        reply = why = None
        try:
            reply = await berth.get(workload, story=True)
            why = await berth.why(workload)
        except BerthError as error:
            return reply, None, str(error)
        return reply, why, ""


@contextmanager
def _keys(pressed: Any) -> Iterator[None]:
    """Each key as it is pressed, without an echo; the terminal is as it was afterwards."""
    import os
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    loop = asyncio.get_running_loop()
    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, lambda: pressed(os.read(descriptor, 64)))
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
