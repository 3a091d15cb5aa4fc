"""Whether the bus stores a connection's writes, for all writers of a service.

One failed write is normal: a message is lost, or replicas elect a leader. Writes that keep failing
without a success are a fault for an operator. Either the stream is at its limit, or the disk is or
was full. nats-server then answers no write to the stream until a restart.

Each stream is reported separately. A report ends with the first stored write, with a reconnection,
and ``FORGET_S`` after the last failure. After a reconnection only the next write shows the state of
a restarted server.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from berthmaster.lib.nats.errors import ApiError, BusError, NoAnswer
from berthmaster.lib.nats.stream_names import stream_of
from berthmaster.lib.runtime.log import LogLike

TROUBLE_AFTER_S: Final = 3.0  # an election is over by then
FORGET_S: Final = 30.0
LOG_EVERY_S: Final = 10.0
# About the message, not the store: a failed guard, or a size above the limit.
_MESSAGE_ERRORS: Final = frozenset({10054, 10071, 10164})


@dataclass
class _Failing:
    """Failed writes to a stream since the last success."""

    since_s: float
    last_s: float
    tries: int
    why: str


class WriteHealth:
    """The results of the writes of one connection."""

    def __init__(self, log: LogLike, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.failures = 0  # since the start
        self._log = log
        self._monotonic = monotonic
        self._failing: dict[str, _Failing] = {}
        self._next_line_s: dict[str, float] = {}

    def began(self) -> float:
        """Return the time at which a write begins, for ``failed``."""
        return self._monotonic()

    def stored(self, subject: str) -> None:
        if not self._failing:
            return
        stream = stream_of(subject)
        if self._failing.pop(stream, None) is not None and stream in self._next_line_s:
            del self._next_line_s[stream]
            self._log.info("NATS stores writes again", stream=stream)

    def failed(self, subject: str, error: BusError, began_s: float) -> None:
        """Record a write that was not stored or not acknowledged."""
        if not isinstance(error, NoAnswer | ApiError):
            return  # without a connection or permission, the store's state is unknown
        if isinstance(error, ApiError) and error.code in _MESSAGE_ERRORS:
            return
        self.failures += 1
        stream, now_s = stream_of(subject), self._monotonic()
        failing = self._failing.get(stream)
        if failing is None or now_s - failing.last_s > FORGET_S:
            failing = self._failing[stream] = _Failing(began_s, now_s, 0, "")
        failing.last_s, failing.why = now_s, str(error)
        failing.tries += 1
        if self._is_trouble(failing) and now_s >= self._next_line_s.get(stream, 0.0):
            self._next_line_s[stream] = now_s + LOG_EVERY_S
            for_s = round(now_s - failing.since_s, 1)
            self._log.warning(
                "NATS does not store writes",
                stream=stream,
                why=failing.why,
                tries=failing.tries,
                for_s=for_s,
            )

    def restarted(self) -> None:
        """Forget the failures after a reconnection: the server may be a new one."""
        self._failing.clear()

    def trouble(self, stream: str = "") -> str:
        """Return why this stream, or any if "", stores nothing; "" = writes are stored."""
        for name, failing in self._failing.items():
            if stream in ("", name) and self._is_trouble(failing):
                return f"the bus stores nothing in {name}, its disk may be full: {failing.why}"
        return ""

    def _is_trouble(self, failing: _Failing) -> bool:
        lasted_s = failing.last_s - failing.since_s
        forgotten = self._monotonic() - failing.last_s > FORGET_S
        return failing.tries > 1 and lasted_s >= TROUBLE_AFTER_S and not forgotten
