"""The last hour of the whole fleet, a point every few seconds. Pure. The usage service has longer
trends.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

STEP_S: Final = 5.0
KEPT: Final = 720
COLUMNS: Final = ("at_s", "held_percent", "busy_percent", "waiting", "live")


class Pulse:
    def __init__(self) -> None:
        self._points: deque[list[float | None]] = deque(maxlen=KEPT)
        self._next_s = 0.0

    def due(self, now_s: float) -> bool:
        return now_s >= self._next_s

    def add(
        self, now_s: float, fleet: Mapping[str, Any], waiting: int, live: int
    ) -> dict[str, float | None]:
        """Add and return one point."""
        self._next_s = now_s + STEP_S
        held, busy = fleet["held_percent"], fleet["busy_percent"]
        point = [round(now_s, 1), held, busy, waiting, live]
        self._points.append(point)
        return dict(zip(COLUMNS, point, strict=True))

    def columns(self) -> dict[str, list[float | None]]:
        """Return all points, as one list for each value."""
        return {name: [point[at] for point in self._points] for at, name in enumerate(COLUMNS)}
