"""A token bucket. Pure: the time is passed in.

Archiving is never urgent, and shares the streams with the main path.
"""


class Pace:
    """At most ``per_s`` slots a second on average, ``burst`` of them at once."""

    def __init__(self, per_s: float, burst: float) -> None:
        if per_s <= 0 or burst < 1:
            raise ValueError(f"per_s > 0 and burst >= 1, not {per_s} and {burst}")
        self._per_s = per_s
        self._burst = burst
        self._left = burst
        self._at_s = 0.0

    def take(self, now_s: float) -> float:
        """Take a slot, and return the seconds to wait before using it. Slots are given in order."""
        if now_s > self._at_s:
            self._left = min(self._burst, self._left + (now_s - self._at_s) * self._per_s)
            self._at_s = now_s
        self._left -= 1
        return max(0.0, -self._left / self._per_s)
