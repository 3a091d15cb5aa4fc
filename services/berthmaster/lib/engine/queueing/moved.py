"""Who was ended lately to make room, by what decisions told: what budgets are held against."""

from collections import deque
from collections.abc import Iterable

KEPT_S = 3600.0


class Moved:
    """Times of decisions, and whose queue's attempts they ended. Seconds since 1970."""

    def __init__(self, kept: Iterable[tuple[float, str]] = ()) -> None:
        self._kept = deque(kept)

    def take(self, at_s: float, queue: str) -> None:
        self._kept.append((at_s, queue))
        while self._kept[0][0] < at_s - KEPT_S:
            self._kept.popleft()

    def within(self, since_s: float, queue: str | None = None) -> int:
        """How many since then, of a queue or of all."""
        return sum(
            at_s > since_s and queue in (None, whose)  # a clock may have gone back
            for at_s, whose in self._kept
        )

    def state(self) -> list[tuple[float, str]]:
        """To be kept and begun from again."""
        return list(self._kept)
