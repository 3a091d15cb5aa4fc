"""When a difference from the wanted state is worth a write. Pure: time is passed in.

Telemetry changes scores all the time, an API server wants few writes, and readers want recent
values. Rules:

- A large difference (``points`` and more, or not in numbers) is written at once.
- A small difference waits ``settle_s``, counted from its beginning. Noise, which disappears by
  itself, is never written.
- A tiny difference, less than half of ``points``, and equality wait for the renewal.
- Each write of an object costs a token. ``burst`` tokens exist, and one returns in ``refill_s``. So
  an hour has at most burst + 3600 / refill_s writes.
- Written and wanted state therefore differ for at most settle_s + refill_s, by a tiny difference
  for at most renew_after_s + refill_s, apart from failures.
- After a failure the pause doubles each time, up to ``longest_pause_s``.
"""

from math import inf
from typing import Final

import msgspec

SMALL: Final = 1.0  # points of a difference without a number
LARGE: Final = inf
CONFLICTS: Final = 3  # in a row that are retried at once


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of writes. Times are in seconds."""

    points: float = 2.0  # 1 % of a score's range
    settle_s: float = 30.0  # duration of a smaller difference before its write: half OCM's resync
    burst: float = 6.0  # writes of one object in immediate succession
    refill_s: float = 10.0  # until one more write is allowed: 360 an hour
    validity_s: float = 86_400.0  # a day to restore this service before OCM counts scores as 0
    rest_s: float = 150.0
    first_pause_s: float = 1.0
    longest_pause_s: float = 300.0

    @property
    def renew_after_s(self) -> float:
        """The time from a write to its renewal, which also corrects tiny differences."""
        return min(self.validity_s / 2, self.rest_s)


class Pace:
    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._tokens = rules.burst
        self._filled_at_s = -inf
        self._since_s: float | None = None  # beginning of the difference; None = none
        self._not_before_s = -inf
        self.failures = 0  # in a row

    def due_s(self, gap: float, renew_at_s: float, now_s: float) -> float:
        """Return when to write: now or in the past = at once, infinite = never.

        ``gap``: the difference in points, 0 = equal. ``renew_at_s``: time of a write in any case.
        """
        if gap <= 0:
            self._since_s = None
            due_s = renew_at_s
        else:
            # A clock that was set back must not prolong the wait.
            self._since_s = now_s if self._since_s is None else min(self._since_s, now_s)
            points = self._rules.points
            wait_s = 0.0 if gap >= points else self._rules.settle_s if 2 * gap >= points else inf
            due_s = min(self._since_s + wait_s, renew_at_s)
        return max(due_s, self._not_before_s, self._token_at_s(now_s))

    def _token_at_s(self, now_s: float) -> float:
        missing = 1.0 - self._filled(now_s)
        return -inf if missing <= 1e-9 else now_s + missing * self._rules.refill_s

    def _filled(self, now_s: float) -> float:
        passed_s = max(0.0, now_s - self._filled_at_s)
        return min(self._rules.burst, self._tokens + passed_s / self._rules.refill_s)

    def began(self, now_s: float) -> None:
        """Charge a token for a write in flight, whatever its result."""
        self._tokens = self._filled(now_s) - 1.0
        self._filled_at_s = now_s

    def wrote(self) -> None:
        self._since_s = None
        self._not_before_s = -inf
        self.failures = 0

    def conflicted(self, now_s: float) -> None:
        """Record a conflict: retry at once, up to ``CONFLICTS`` times."""
        self.failures += 1
        if self.failures > CONFLICTS:
            self._wait(now_s, self.failures - CONFLICTS)

    def failed(self, now_s: float) -> float:
        """Record a failed write. Return the time of the next try."""
        self.failures += 1
        return self._wait(now_s, self.failures)

    def _wait(self, now_s: float, times: int) -> float:
        rules = self._rules
        pause_s = min(rules.first_pause_s * 2.0 ** min(times - 1, 30), rules.longest_pause_s)
        self._not_before_s = now_s + pause_s
        return self._not_before_s
