"""Keep the NATS server's clock. All ages are measured by the server's clock, never by the local
clock.

Example: a request leaves at 100.0 and is answered at 100.2 of the monotonic clock. The server's
time in the answer belongs to some point in between, so the error is at most 0.1 s. A later
observation replaces the first if the error is smaller, or once drift has made the first worse.

Between observations the monotonic clock advances the time, so a change of this machine's clock has
no effect.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final

import msgspec

from berthmaster.lib.nats.errors import BusError

DRIFT: Final = 1e-4  # seconds per second, an upper bound: no quartz crystal drifts as much
SMALL_STEP_S: Final = 1.0  # up to this, a backward correction is waited out instead of shown
SYNC_INTERVAL_S: Final = 30.0
FIRST_SYNC_INTERVAL_S: Final = 1.0  # until the first answer


class _TimeReply(msgspec.Struct):
    ts: str = ""  # of JetStream's answers
    now_s: float = 0.0  # of answers to ``hello``


_TIME_REPLY: Final = msgspec.json.Decoder(_TimeReply)


class ServerClock:
    """The server's time, as estimated here."""

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall = wall
        self.monotonic = monotonic
        self._offset_s: float | None = None  # server's time minus local monotonic time
        self._doubt_s = 0.0
        self._observed_at_s = 0.0
        self._latest_s = 0.0

    @property
    def known(self) -> bool:
        """Return whether the server has answered. Before that, the local clock is used."""
        return self._offset_s is not None

    def observe(self, sent_s: float, received_s: float, server_s: float) -> None:
        """Record the server's time, valid between the two times of ``monotonic``."""
        offset_s = server_s - (sent_s + received_s) / 2
        doubt_s = max(0.0, received_s - sent_s) / 2
        if self._offset_s is not None:
            old_doubt_s = self._doubt_s + DRIFT * max(0.0, received_s - self._observed_at_s)
            stepped = abs(offset_s - self._offset_s) > doubt_s + old_doubt_s
            if doubt_s > old_doubt_s and not stepped:
                return
        self._offset_s, self._doubt_s, self._observed_at_s = offset_s, doubt_s, received_s

    def now(self) -> float:
        """Return seconds since 1970. A small correction never sets the time back."""
        now_s = self._wall() if self._offset_s is None else self.monotonic() + self._offset_s
        if not 0 < self._latest_s - now_s < SMALL_STEP_S:
            self._latest_s = now_s
        return self._latest_s


class ClockSync:
    """Observes a clock by requests over one connection."""

    def __init__(
        self,
        clock: ServerClock,
        request: Callable[[], Awaitable[bytes | None]],
        is_connected: Callable[[], bool],
    ) -> None:
        """``request`` returns the body of an answer; None = no server to ask. ``request`` may raise
        BusError.
        """
        self._clock = clock
        self._request = request
        self._is_connected = is_connected
        self._task: asyncio.Task[None] | None = None

    async def observe(self) -> None:
        """Observe the clock once. Without an answer the clock stays unchanged until the next
        time.
        """
        sent_s = self._clock.monotonic()
        try:
            body = await self._request()
            received_s = self._clock.monotonic()
            if body is None:
                return
            reply = _TIME_REPLY.decode(body)
            server_s = datetime.fromisoformat(reply.ts).timestamp() if reply.ts else reply.now_s
        except (BusError, msgspec.DecodeError, ValueError):
            return
        if server_s:
            self._clock.observe(sent_s, received_s, server_s)

    def start(self, name: str) -> None:
        """Observe the clock until ``stop``."""
        self._task = asyncio.create_task(self._run(), name=name)

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(SYNC_INTERVAL_S if self._clock.known else FIRST_SYNC_INTERVAL_S)
            if self._is_connected():
                await self.observe()
