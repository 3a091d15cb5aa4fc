"""The server's clock, kept by ours: ages are measured by one clock, whatever the local one says.

An observation bounds the server's time between our sending and our receiving; the tighter one wins
until drift may have made it worse. Between observations the monotonic clock carries it on, so that
somebody who sets this machine's clock changes nothing.
"""

import time
from collections.abc import Callable
from typing import Final

DRIFT: Final = 1e-4  # seconds a second: more than a crystal is wrong, so the figure stays honest
SMALL_STEP_S: Final = 1.0  # a correction backwards up to this is waited out instead of shown


class ServerClock:
    """What time it is on the server, as far as we know."""

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall = wall
        self.monotonic = monotonic
        self._offset_s: float | None = None  # server's time less our monotonic one
        self._doubt_s = 0.0
        self._observed_at_s = 0.0
        self._latest_s = 0.0

    @property
    def known(self) -> bool:
        """Whether the server was asked with success; before that, the local clock serves."""
        return self._offset_s is not None

    def observe(self, sent_s: float, received_s: float, server_s: float) -> None:
        """The server said ``server_s`` at some moment between two readings of ``monotonic``."""
        offset_s = server_s - (sent_s + received_s) / 2
        doubt_s = max(0.0, received_s - sent_s) / 2
        if self._offset_s is not None:
            old_doubt_s = self._doubt_s + DRIFT * max(0.0, received_s - self._observed_at_s)
            stepped = abs(offset_s - self._offset_s) > doubt_s + old_doubt_s
            if doubt_s > old_doubt_s and not stepped:
                return
        self._offset_s, self._doubt_s, self._observed_at_s = offset_s, doubt_s, received_s

    def now(self) -> float:
        """Seconds since 1970; it does not go back by corrections that are small."""
        now_s = self._wall() if self._offset_s is None else self.monotonic() + self._offset_s
        if not 0 < self._latest_s - now_s < SMALL_STEP_S:
            self._latest_s = now_s
        return self._latest_s
