"""Reports facts while this replica holds the lease. Other replicas mirror the facts and stand by.

Each time the replica gains the lease, a new incarnation of the writer begins, with an epoch above
all earlier ones. So readers recognise old reports of a replica that was suspended for a while.
"""

import asyncio
import secrets
import socket
from collections.abc import Callable
from typing import Any, Final

from berthmaster.lib.messages.fleet import FleetFact
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.reporting import FactReporter, Source, Writer
from berthmaster.lib.runtime.lease import Lease
from berthmaster.lib.runtime.periodic import stopped_within
from berthmaster.lib.runtime.service import Context

LOOK_S: Final = 0.05
LEASE_TTL_S: Final = 1.5  # until a standby replaces a silent replica
REPORT_INTERVAL_S: Final = 0.1  # minimum time between two reports of one subject
# of the hourly refresh, and of nodes where only Berthmaster's pods changed
REPORTS_PER_S: Final = 500.0
RELEASE_LIMIT_S: Final = 1.0


class FactPublisher:
    """The only writer of the facts in a scope."""

    def __init__(
        self,
        ctx: Context[Any],
        conn: Connection,
        source: Source,
        *,
        lease: Callable[..., Lease],
        writer: Writer,
    ) -> None:
        """``lease`` creates a lease from a holder's name and callbacks for gain and loss."""
        self._ctx = ctx
        self._reports = ctx.metrics.counter("reports", "Stored facts by kind", ["fact"])
        self._waited_s = ctx.metrics.histogram(
            "report_seconds", "Seconds from a watch event to the stored fact"
        )
        self._over = asyncio.Event()
        self._over.set()
        holder = f"{ctx.name}-{socket.gethostname()}-{secrets.token_hex(4)}"
        self.lease = lease(
            holder,
            on_gained=lambda _: self._over.clear(),
            on_lost=self._over.set,
            ttl_s=LEASE_TTL_S,
        )
        self.reporter = FactReporter(
            conn,
            source,
            writer,
            interval_s=REPORT_INTERVAL_S,
            rate_per_s=REPORTS_PER_S,
            may_tell=lambda: self.lease.held,
            on_told=self._count,
        )

    def _count(self, fact: FleetFact, waited_s: float | None) -> None:
        self._reports.labels(type(fact).__name__).inc()
        if waited_s is not None:
            self._waited_s.observe(waited_s)

    async def run(self, ready: Callable[[], bool]) -> None:
        """Report until the service stops. Nothing is reported until ``ready`` returns True: all is
        read.
        """
        lease = self._ctx.spawn(self.lease.run(), name="lease")
        stopping = self._ctx.stopping
        try:
            while not stopping.is_set():
                if not (self.lease.held and ready()):
                    await stopped_within(LOOK_S, stopping)
                    continue
                await self._live(stopping)
        finally:
            lease.cancel()
            await asyncio.wait({lease}, timeout=RELEASE_LIMIT_S)

    async def _live(self, stopping: asyncio.Event) -> None:
        """Run an incarnation until the lease is lost or the service stops."""
        over = asyncio.create_task(self._over.wait(), name="lease lost")
        stop = asyncio.create_task(stopping.wait(), name="stopping")
        until = asyncio.Event()
        for task in (over, stop):
            task.add_done_callback(lambda _: until.set())
        try:
            await self.reporter.run(until)
        finally:
            over.cancel()
            stop.cancel()

    def show(self) -> None:
        """Set readiness: some replica reports these facts."""
        known = self.lease.held or bool(self.lease.seen_holder)
        self._ctx.health.ready("lease", known, "nobody tells these facts")
