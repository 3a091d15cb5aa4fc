"""A token bucket with a rate per second and a burst."""


class Bucket:
    """A bucket that is full at first."""

    def __init__(self, rate_per_s: float, burst: int) -> None:
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._left = float(burst)
        self._at_s = float("-inf")

    def take(self, now_s: float) -> bool:
        """Take one, and return whether there was one."""
        gained = (now_s - self._at_s) * self._rate_per_s
        self._at_s = now_s
        self._left = min(float(self._burst), self._left + gained)
        if self._left < 1:
            return False
        self._left -= 1
        return True
