"""A limit of bytes per second, applied after reading: a fast reader waits. Pure."""


class Pace:
    """The limit of one reader, or of all readers together."""

    def __init__(self, bytes_per_s: float, burst_s: float = 1.0) -> None:
        self._rate = bytes_per_s
        self._burst_s = burst_s
        self._free_at_s = 0.0

    def wait_s(self, now_s: float) -> float:
        """Return the seconds to wait before reading on."""
        return max(0.0, self._free_at_s - now_s - self._burst_s)

    def read(self, size: int, now_s: float) -> None:
        self._free_at_s = max(self._free_at_s, now_s) + size / self._rate
