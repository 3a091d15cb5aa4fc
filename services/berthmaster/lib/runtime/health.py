"""Whether a service lives and whether it is ready, for whoever restarts it or sends it work.

Alive means that the event loop turns: a beat is noted once a second, and one that is too old
means that the loop is stuck, which a restart cures. Ready means that every part that the service
has named (its connection, its mirror) is in order; before the first is named nothing is known, and
unknown is not ready. Asked from the HTTP thread, told from the loop's.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

STALL_LIMIT_S = 10.0  # several times the longest pause that a loaded machine causes


@dataclass(frozen=True)
class HealthPart:
    """One thing that a service needs in order to do its work."""

    ok: bool
    why: str


class Health:
    """The state that /healthz and /readyz show."""

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
        """The event loop has turned."""
        self._beat_at_s = self._clock()

    def stop(self) -> None:
        """The service drains: alive, and no longer ready for anything new."""
        self._stopping = True

    def ready(self, part: str, ok: bool, why: str = "", *, note: str = "") -> None:
        """A part is in order, or is not and why; the last word about a part counts. ``note``: what
        people should know of a part that is in order."""
        with self._lock:
            self._parts[part] = HealthPart(ok, note if ok else why)

    def alive(self) -> tuple[bool, dict[str, object]]:
        """Whether the loop turns, and the answer's fields."""
        silent_s = self._clock() - self._beat_at_s
        ok = silent_s < self.stall_limit_s
        return ok, {"alive": ok, "loop_silent_s": round(silent_s, 3)}

    def readiness(self) -> tuple[bool, dict[str, object]]:
        """Whether every part is in order and the loop turns, and the answer's fields."""
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
