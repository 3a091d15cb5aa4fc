"""How long to wait before the next try: longer each time, and never in step with others.

Many clients that lost the same server must not return in the same instant, hence the jitter. Pure:
the chance is handed in, so that tests and the simulation own it.
"""

from dataclasses import dataclass
from typing import Protocol


class Chance(Protocol):
    """What we need of `random.Random`."""

    def random(self) -> float:
        """A number from 0 up to, but not including, 1."""
        ...


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """Waits of `first_s`, then `factor` times longer each, up to `most_s`, less a random share."""

    first_s: float = 0.1
    most_s: float = 10.0
    factor: float = 2.0
    jitter: float = 0.5  # up to this share is taken off; 0 = none, 1 = anything down to no wait

    def __post_init__(self) -> None:
        if not 0 < self.first_s <= self.most_s:
            raise ValueError(f"0 < first_s <= most_s, not {self.first_s} and {self.most_s}")
        if self.factor < 1:
            raise ValueError(f"factor >= 1, not {self.factor}")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"0 <= jitter <= 1, not {self.jitter}")

    def delay_s(self, failures: int, chance: Chance) -> float:
        """The wait after so many failures in a row; none before the first."""
        if failures < 1:
            return 0.0
        try:
            full_s = min(self.first_s * self.factor ** (failures - 1), self.most_s)
        except OverflowError:  # after a thousand failures the power is beyond a float
            full_s = self.most_s
        return full_s * (1 - self.jitter * chance.random())
