"""The usage service: store the usage of ended jobs, and answer reports.

The service has two database threads, one that writes and one that reads. Beside the streams, its
inputs are the nodes' GPUs, the jobs' GPU usage, the quality reports of deciders, and the prices
file. Webhooks are notified of the ends of jobs (control/usage/notifying.py). Several replicas may
write to one PostgreSQL. A SQLite file belongs to one replica.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Final

from berthmaster.control.usage.core.prices import Prices, parse_prices
from berthmaster.control.usage.core.traces import Traces
from berthmaster.control.usage.core.usage import Usage
from berthmaster.control.usage.endpoints import Answers
from berthmaster.control.usage.filling import Filling
from berthmaster.control.usage.log_ends import look_at_log_ends
from berthmaster.control.usage.metrics import UsageMetrics
from berthmaster.control.usage.notifying import Notifying
from berthmaster.control.usage.operators_file import OperatorsFile
from berthmaster.control.usage.settings import UsageSettings
from berthmaster.control.usage.store.database import Database
from berthmaster.control.usage.store.sqlite import Sqlite
from berthmaster.control.usage.store.thread import DatabaseThread
from berthmaster.control.usage.tracing import TraceExporter, open_exporter
from berthmaster.control.usage.webhooks import Webhooks, parse_webhooks
from berthmaster.lib.event_log.guard import LogGuard
from berthmaster.lib.messages.families import JOB_FIGURES, QUALITY, UNREADABLE
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.fact_stamps import Seen
from berthmaster.lib.nats.facts import FactMirror
from berthmaster.lib.nats.stream_connection import (
    RequestConnections,
    request_connections,
    stream_connection,
)
from berthmaster.lib.nats.streams import ARCHIVE, FLEET, WORKLOADS
from berthmaster.lib.nats.worker import Worker
from berthmaster.lib.runtime.errors import CannotStart
from berthmaster.lib.runtime.periodic import beats, set_within
from berthmaster.lib.runtime.service import Context, Service

NAME: Final = "usage"
FACTS_LIMIT_S: Final = 30.0  # maximum wait for the nodes' facts, to know GPU models from the start
ROUND_S: Final = 0.25  # between two reads of the streams: jobs are booked once a second
LOOK_AT_FILES_S: Final = 10.0
FACT_SUBJECTS: Final = (subjects.fleet_facts("profile"), subjects.node_facts())


class Shell:
    def __init__(
        self,
        ctx: Context[UsageSettings],
        conn: Connection,
        heard_by: RequestConnections,
        open_: Callable[[], Database],
        prices: OperatorsFile[Prices],
        webhooks: OperatorsFile[Webhooks],
    ) -> None:
        self._traces: Traces | None = None
        self._exporter: TraceExporter | None = None
        self._dropped = 0  # spans dropped by the core, as counted so far
        self._ctx = ctx
        self._conn = conn
        self._heard_by = heard_by
        self._prices = prices
        self._webhooks = webhooks
        self._figures = UsageMetrics(ctx.metrics)
        if endpoint := ctx.settings.traces_endpoint:
            self._traces = Traces()
            self._exporter = open_exporter(endpoint, self._figures, version("berthmaster"))
        self._core = Usage(ctx.settings.owner_label, self._traces)
        self._store = DatabaseThread(open_, "store")
        self._reports = DatabaseThread(open_, "reports")
        guard = LogGuard(ctx, conn, NAME)
        self._notifying = Notifying(conn, self._figures, lambda: guard.sound)
        self._workers: list[Worker] = []
        self._buried = 0  # dead letters of the workers, as counted so far
        self._filling = Filling(ctx, conn, self._core, self._store, self._figures, guard)
        self._mirror = FactMirror(conn, NAME, FACT_SUBJECTS, on_fact=self._on_fact)
        self._facts_read = asyncio.Event()

    async def run(self) -> None:
        """Serve until the service is asked to stop, then store the jobs that have ended."""
        ctx, conn = self._ctx, self._conn
        ctx.health.ready("store", False, "not opened yet")
        ctx.health.ready("log", False, "the log has not been read to its end")
        ctx.spawn(self._mirror.run(caught_up=self._facts_read.set), name="mirror facts")
        self._look_at_webhooks()
        if ctx.settings.webhooks_file is not None:
            self._workers = self._notifying.workers()
        for number, worker in enumerate(self._workers):
            ctx.spawn(worker.run(ctx.stopping), name=f"webhooks {number}")
        ctx.spawn(self._keep_house(), name="files and figures")
        ctx.spawn(self._check_log_ends(), name="log ends")
        if self._exporter is not None:
            self._exporter.start()
        await conn.subscribe("berth.quality.*", self._on_quality)
        await self._heard_by.observed.observe(subjects.job_figures_of(), self._on_figures)
        answers = Answers(
            conn,
            self._heard_by.general,
            self._reports,
            self._figures,
            prices=lambda: self._prices.found,
            filled=lambda: (self._filling.filled_until_s, self._filling.is_behind),
            opened=lambda: self._filling.opened,
            core=self._core,
        )
        endpoints = await answers.serve(version("berthmaster"))
        await set_within(FACTS_LIMIT_S, self._facts_read)
        await self._filling.run()
        await endpoints.stop()
        self._send_spans()
        if self._exporter is not None:
            await asyncio.to_thread(self._exporter.stop)
        self._store.stop()
        self._reports.stop()

    def _on_fact(self, seen: Seen) -> None:
        self._core.catalogue.take(seen.fact)

    def _on_quality(self, subject: str, data: bytes) -> None:
        try:
            report = QUALITY.decode(data)
        except UNREADABLE:
            self._figures.unreadable.labels("quality").inc()
            return
        if subjects.quality(report.cell) == subject:
            self._core.trends.quality(report, self._conn.now())

    def _on_figures(self, subject: str, data: bytes) -> None:
        try:
            figures = JOB_FIGURES.decode(data)
            tenant, cluster, job = subjects.parse_job_figures(subject)
        except (*UNREADABLE, subjects.SubjectError):
            self._figures.unreadable.labels("figures").inc()
            return
        if (tenant or "", cluster, job) == (figures.tenant, figures.cluster, figures.id):
            self._core.on_figures(figures, self._conn.now())

    async def _keep_house(self) -> None:
        next_look_s = 0.0
        loop = asyncio.get_running_loop()
        async for _ in beats(1.0, self._ctx.stopping):
            self._ctx.health.ready("bus", self._is_connected, "no connection to NATS")
            self._filling.tick()
            self._send_spans()
            self._show_profiles()
            if loop.time() >= next_look_s:
                next_look_s = loop.time() + LOOK_AT_FILES_S
                wrong = self._prices.look()
                self._figures.prices_wrong.set(bool(wrong))
                self._ctx.health.ready("prices", True, note=wrong)
                self._look_at_webhooks()

    async def _check_log_ends(self) -> None:
        """Read log ends apart from the housekeeping, because a read may wait for its time limit."""
        async for _ in beats(1.0, self._ctx.stopping):
            if self._is_connected:
                await look_at_log_ends(self._conn, self._core.profiles, self._conn.now())

    @property
    def _is_connected(self) -> bool:
        return self._conn.connected and self._heard_by.general.connected

    def _send_spans(self) -> None:
        if self._traces is None or self._exporter is None:
            return
        self._exporter.offer(self._traces.take())
        self._figures.spans.labels("dropped").inc(self._traces.dropped - self._dropped)
        self._dropped = self._traces.dropped

    def _show_profiles(self) -> None:
        core, figures = self._core, self._figures
        figures.profiles.set(len(core.profiles))
        figures.profiles_left_out.set(core.profiles.left_out)
        figures.show_queues(core.profiles.by_queue(core.queue_of, self._conn.now()))

    def _look_at_webhooks(self) -> None:
        wrong = self._webhooks.look()
        self._notifying.file = self._webhooks.found
        self._figures.webhooks_wrong.set(bool(wrong))
        self._ctx.health.ready("webhooks", True, note=wrong)
        buried = sum(worker.dead_letters for worker in self._workers)
        self._figures.undelivered.inc(buried - self._buried)
        self._buried = buried


def opener(settings: UsageSettings) -> Callable[[], Database]:
    """Return a function that opens the configured store. Raises CannotStart without its driver."""
    if not settings.postgres_url:
        return partial(Sqlite, settings.store_dir)
    try:
        from berthmaster.control.usage.store.postgres import Postgres
    except ImportError as error:
        raise CannotStart(
            f"PostgreSQL needs {error.name}: pip install 'berthmaster[postgres]'"
        ) from error
    return partial(Postgres, settings.postgres_url)


async def main(ctx: Context[UsageSettings]) -> None:
    settings, open_ = ctx.settings, opener(ctx.settings)
    prices = OperatorsFile("the prices", settings.prices_file, parse_prices)
    webhooks = OperatorsFile("the webhooks", settings.webhooks_file, parse_webhooks)
    async with stream_connection(ctx, WORKLOADS, ARCHIVE, FLEET, round_s=ROUND_S) as conn:
        if conn is None:
            return
        async with request_connections(ctx, conn, lanes=0) as heard_by:
            if heard_by is not None:
                await Shell(ctx, conn, heard_by, open_, prices, webhooks).run()


SERVICE = Service(NAME, UsageSettings, main)
