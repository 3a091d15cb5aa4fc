"""Facts of the fleet for a controller, and whether facts still arrive.

A controller continues without the bus: ``silent`` reports the outage, and the core decides what is
allowed then.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.fact_stamps import Seen
from berthmaster.lib.runtime.service import Context

PART = "fleet"  # component of the health report


class FleetMirror(Protocol):
    """A mirror of facts, read from the stream or polled from the agent API (door)."""

    @property
    def last_heard_s(self) -> float:
        """Event loop time of the last message or answer."""

    def run(self, *, caught_up: Callable[[], None]) -> Coroutine[Any, Any, None]: ...


class FleetFacts:
    """Facts under some subjects, as they change."""

    def __init__(
        self,
        ctx: Context[Any],
        *,
        silent_s: float,
        on_fact: Callable[[Seen], None],
        on_gone: Callable[[str], None],
        on_change: Callable[[], None],
        on_fault: Callable[[], None],
    ) -> None:
        """``silent_s``: seconds without a heartbeat until the bus counts as unreachable."""
        self._ctx = ctx
        self._silent_s = silent_s
        self._on_fact = on_fact
        self._on_gone = on_gone
        self._on_change = on_change
        self._on_fault = on_fault
        self._mirror: FleetMirror | None = None
        self._now = asyncio.get_running_loop().time
        self._began_s = self._now()
        self.conn: Connection | None = None
        self.caught_up = False

    def join(self, conn: Connection, mirror: Callable[..., FleetMirror]) -> None:
        """Begin to mirror. ``mirror`` is FactMirror or DoorMirror, with all but its callbacks."""
        self.conn = conn
        self._ctx.health.ready(PART, False, "catching up")
        self._mirror = mirror(on_fact=self._fact, on_gone=self._gone)
        running = self._mirror.run(caught_up=self._is_caught_up)
        self._ctx.spawn(running, name="mirror of the fleet")

    @property
    def silent(self) -> bool:
        """Whether the bus is silent, so that no replica can hold a lease either."""
        received_s = self._mirror.last_heard_s if self._mirror is not None else 0.0
        return self._now() - max(received_s, self._began_s) > self._silent_s

    def show(self) -> None:
        if self.conn is None:
            return
        self._ctx.health.ready("bus", self.conn.connected, "no connection to NATS")
        if self.caught_up:
            self._ctx.health.ready(PART, not self.silent, "nothing is heard of the fleet's stream")

    def _fact(self, seen: Seen) -> None:
        self._guarded(seen.subject, lambda: self._on_fact(seen))

    def _gone(self, subject: str) -> None:
        self._guarded(subject, lambda: self._on_gone(subject))

    def _guarded(self, subject: str, handle: Callable[[], None]) -> None:
        """Handle one fact. After an exception, later facts of the subject are handled as usual."""
        try:
            handle()
        except Exception as error:  # noqa: BLE001 - see above
            self._on_fault()
            self._ctx.log.error("fact not understood", error=error, subject=subject)
        self._on_change()

    def _is_caught_up(self) -> None:
        self.caught_up = True
        self._ctx.health.ready(PART, True)
        self._on_change()
