"""Liveness and readiness of a service, for the supervisor and for its clients.

Alive: the event loop runs. The loop records a tick once a second. An old tick means a stuck loop,
which a restart cures. Ready: every registered component (the connection, the mirror) is in order.
Before the first is registered the state is unknown, and unknown is not ready. The HTTP thread
reads, the event loop writes.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

STALL_LIMIT_S = 10.0  # several times the longest pause on a loaded machine


@dataclass(frozen=True)
class HealthPart:
    """State of a component that a service needs."""

    ok: bool
    why: str


class Health:
    """The state behind /healthz and /readyz."""

    def __init__(
        self,
        *,
        stall_limit_s: float = STALL_LIMIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stall_limit_s = stall_limit_s
        self._clock = clock
        self._lock = threading.Lock()
        self._parts: dict[str, HealthPart] = {}
        self._beat_at_s = clock()
        self._stopping = False

    def beat(self) -> None:
        """Record that the event loop runs."""
        self._beat_at_s = self._clock()

    def stop(self) -> None:
        """Record that the service drains: alive, but not ready."""
        self._stopping = True

    def ready(self, part: str, ok: bool, why: str = "", *, note: str = "") -> None:
        """Set a component's state, replacing the previous one. ``why``: the reason if not in order.
        ``note``: information for operators on a component in order.
        """
        with self._lock:
            self._parts[part] = HealthPart(ok, note if ok else why)

    def alive(self) -> tuple[bool, dict[str, object]]:
        """Return whether the loop runs, and the fields of the HTTP answer."""
        silent_s = self._clock() - self._beat_at_s
        ok = silent_s < self.stall_limit_s
        return ok, {"alive": ok, "loop_silent_s": round(silent_s, 3)}

    def readiness(self) -> tuple[bool, dict[str, object]]:
        """Return whether every component is in order and the loop runs, and the fields of the HTTP
        answer.
        """
        with self._lock:
            parts = dict(sorted(self._parts.items()))
        alive, _ = self.alive()
        why = ""
        if self._stopping:
            why = "stopping"
        elif not alive:
            why = "event loop is stuck"
        elif not parts:
            why = "no part has reported yet"
        elif bad := [name for name, part in parts.items() if not part.ok]:
            why = f"not ready: {', '.join(bad)}"
        return not why, {"ready": not why, "why": why, "parts": msgspec.to_builtins(parts)}
