"""Stops a service while the log differs from the log that the service has read or written.

``LogGuard`` has ``begin`` (compare before the service reads), ``run`` (compare from then on),
``sound`` and ``why`` (may the service decide?). The comparison is in damage.py. The high-water
marks are in marks.py.

Example: the resolver has read WORKLOADS up to 930 when the server restarts and loses the newest
block.

    0.0 s   reconnected: the resolver decides nothing until the logs are compared
    0.1 s   the log ends at 512, below 930. A new leader may not see all messages yet.
    1.1 s   the log still ends at 512: damaged. The resolver is not ready, and reports the reason.

Rules:

- At ``begin``, at each connection and while damaged, the logs are compared with the marks of all
  services. Otherwise the service compares them with the own mark, every second.
- While a log is damaged, the service is not ready, decides and stores nothing, and reports why.
  Executors keep their jobs running.
- When `berth recover` has built another log, ``run`` raises StreamReplaced. The service then folds
  the new log from its beginning.
- A service stores a mark only while the logs are undamaged.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from berthmaster.lib.event_log.damage import REMEDY, StreamState, by_service, digest_of, is_replaced
from berthmaster.lib.event_log.marks import WATCHED, check, read_marks, restore_mark, store_mark
from berthmaster.lib.messages.records import LogMark, StreamMark
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import BusError, StreamReplaced
from berthmaster.lib.nats.stream_messages import Recorded
from berthmaster.lib.nats.stream_names import stream_of
from berthmaster.lib.nats.stream_reads import last_message
from berthmaster.lib.nats.streams import CONTROL, WORKLOADS
from berthmaster.lib.nats.subjects import ALL_CONTROL
from berthmaster.lib.runtime.periodic import any_set_within, stopped_within, unless_stopped
from berthmaster.lib.runtime.service import Context

CHECK_S: Final = 1.0
FIRST_CHECKS_S: Final = 0.25
SETTLE_S: Final = 1.0  # a new leader may need some time to see all stored messages
PART: Final = "logs"
UNCHECKED: Final = "the log was not compared since the connection was lost"
MEMORY_HELP: Final = (
    "folder in which to remember how far the logs were, beside what the bus remembers of it; "
    "empty = only on the bus"
)


class LogGuard:
    """One service's guard of the logs."""

    def __init__(
        self,
        ctx: Context[Any],
        conn: Connection,
        name: str,
        *,
        folder: str = "",
        on_change: Callable[[str], None] = lambda _: None,
    ) -> None:
        """``folder``: where to store the mark besides the bus; "" = only on the bus. ``on_change``:
        called with the reason why the service may not decide ("" = it may) at each change.
        """
        self._ctx = ctx
        self._conn = conn
        self._name = name
        self._folder = Path(folder) if folder else None
        self._on_change = on_change
        self._compared_through = -1  # number of reconnections at the last comparison
        self._last: tuple[int, str, bytes] | None = None  # newest of WORKLOADS, read or written
        self._own: dict[str, StreamMark] = {}
        self._stored_marks: tuple[StreamMark, ...] = ()
        self._damaged_since_s: float | None = None
        self._reason = ""
        self._reported: str | None = None
        self._begun = False
        conn.when_stored(self._on_stored)
        self._gauge = ctx.metrics.gauge("log_damaged", "1 while a log is damaged or replaced")

    @property
    def sound(self) -> bool:
        """Return whether the service may decide on the log."""
        return self._begun and not self.why

    @property
    def why(self) -> str:
        """Return why the service may not decide; "" = it may."""
        if self._reason:
            return self._reason
        return UNCHECKED if self._compared_through != self._conn.reconnects else ""

    async def begin(self) -> bool:
        """Compare until the logs are undamaged. Return False if the service is stopped before."""
        stopping = self._ctx.stopping
        self._begun = False
        self._own, self._last, self._reported = {}, None, None
        # A reader that met another stream before ``run`` did begins again: without this, nothing
        # would be left to compare that stream with.
        self._compared_through = -1
        self._ctx.health.ready(PART, False, "the logs have not been compared yet")
        while not stopping.is_set():
            try:
                await unless_stopped(self._compare(), stopping)
            except (BusError, OSError) as error:
                self._ctx.health.ready(PART, False, f"the logs cannot be compared: {error}")
            else:
                if not stopping.is_set() and self._damaged_since_s is None:
                    self._begun = True
                    self._report()
                    return True
            if await stopped_within(FIRST_CHECKS_S, stopping):
                break
        return False

    def saw(self, recorded: Recorded) -> None:
        """Record a message of WORKLOADS that the service has read."""
        self._last = (recorded.sequence, recorded.subject, recorded.data)

    def _on_stored(self, subject: str, data: bytes, sequence: int) -> None:
        """Record an acknowledged write of this service."""
        newest = self._last[0] if self._last is not None else 0
        if stream_of(subject) == WORKLOADS and sequence > newest:
            self._last = (sequence, subject, data)

    async def run(self) -> None:
        """Compare every second and at each connection, and store the service's mark. Raises
        StreamReplaced when `berth recover` has replaced the compared log.
        """
        connected = asyncio.Event()

        def reconnected() -> None:
            self._report()
            connected.set()

        forget = self._conn.when_reconnected(reconnected)
        try:
            while True:
                await any_set_within(CHECK_S, self._ctx.stopping, connected)
                if self._ctx.stopping.is_set():
                    return
                connected.clear()
                try:
                    await self._compare()
                    await self._store_mark()
                except StreamReplaced:
                    raise
                except (BusError, OSError) as error:
                    self._conn.log.info("log comparison failed", why=str(error))
        finally:
            forget()

    async def _compare(self) -> None:
        """Compare once. Raises BusError, OSError, StreamReplaced."""
        through = self._conn.reconnects
        own = [(mark, self._name) for mark in (*self._own.values(), *self._newest())]
        marks = own
        if through != self._compared_through or self._damaged_since_s is not None:
            marks = [*own, *by_service(await read_marks(self._conn, self._folder))]
        checked = {stream: await check(self._conn, stream, marks) for stream in WATCHED}
        seen = {stream: one for stream, (one, _) in checked.items() if one is not None}
        if self._begun and is_replaced(seen, list(self._own.values())):
            self._begun = False
            raise StreamReplaced("`berth recover` has built another log")
        damages = "; ".join(why for _, why in checked.values() if why)
        loop = asyncio.get_running_loop()
        if not damages:
            self._damaged_since_s, self._reason = None, ""
            self._compared_through = through
            await self._remember(seen)
        else:
            self._damaged_since_s = self._damaged_since_s or loop.time()
            if self._folder is not None:
                await restore_mark(self._conn, self._name, self._folder)
            if loop.time() - self._damaged_since_s >= SETTLE_S:
                self._reason = damages
            else:
                self._compared_through = -1  # unverified until the damage lasts
        self._report()

    def _newest(self) -> list[StreamMark]:
        """Return a mark of the last message read or written by the service, of the same stream
        incarnation as the previous mark.
        """
        known = self._own.get(WORKLOADS)
        if known is None or self._last is None or self._last[0] <= known.sequence:
            return []
        sequence, subject, data = self._last
        return [
            StreamMark(
                stream=WORKLOADS,
                incarnation=known.incarnation,
                sequence=sequence,
                digest=digest_of(sequence, subject, data),
                subject=subject,
            )
        ]

    async def _remember(self, seen: dict[str, StreamState]) -> None:
        """Update the marks for later comparisons. Raises BusError."""
        newest = {mark.stream: mark for mark in self._newest()}
        for stream, one in seen.items():
            known = self._own.get(stream)
            if stream == WORKLOADS and stream in newest:
                self._own[stream] = newest[stream]
            elif known is None or (one.last > known.sequence and not self._follows(stream)):
                self._own[stream] = await self._mark_of(stream, one)

    def _follows(self, stream: str) -> bool:
        return stream == WORKLOADS and self._last is not None

    async def _mark_of(self, stream: str, seen: StreamState) -> StreamMark:
        subject = ALL_CONTROL if stream == CONTROL else "berth.>"
        last = await last_message(self._conn, stream, subject) if seen.last else None
        return StreamMark(
            stream=stream,
            incarnation=seen.incarnation,
            sequence=last.sequence if last is not None else seen.last,
            digest=digest_of(last.sequence, last.subject, last.data) if last is not None else "",
            subject=last.subject if last is not None else "",
        )

    async def _store_mark(self) -> None:
        """Store the marks if they changed. Raises BusError, OSError."""
        marks = tuple(self._own[stream] for stream in WATCHED if stream in self._own)
        if self._damaged_since_s is None and marks and marks != self._stored_marks:
            mark = LogMark(service=self._name, at_s=self._conn.now(), streams=marks)
            await store_mark(self._conn, mark, self._folder)
            self._stored_marks = marks

    def _report(self) -> None:
        """Report to health, metrics, the service's log, and ``on_change``."""
        why = self.why
        if why == self._reported:
            return
        self._reported = why
        self._gauge.set(1 if self._reason else 0)
        if self._reason:
            self._ctx.log.error("log damaged", why=self._reason, remedy=REMEDY)
        if self._reason or not why:
            self._ctx.health.ready(PART, not why, f"nothing is decided: {why}; {REMEDY}")
        self._on_change(f"nothing is decided: {why}" if why else "")
