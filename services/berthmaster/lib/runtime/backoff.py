"""Pauses between retries: longer each time, and different for each client.

Many clients that lost the same server must not return at the same time, hence the jitter. Example:
the defaults give pauses of up to 0.1, 0.2, 0.4 … 10 s, each reduced by up to half at random. Pure:
the caller passes the randomness, so that tests and the simulation control the pauses.
"""

from dataclasses import dataclass
from typing import Protocol


class Chance(Protocol):
    """The used part of `random.Random`."""

    def random(self) -> float:
        """Return a number from 0 up to, but not including, 1."""
        ...


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """Pauses of `first_s`, then `factor` times longer each, up to `most_s`, minus a random
    fraction.
    """

    first_s: float = 0.1
    most_s: float = 10.0
    factor: float = 2.0
    jitter: float = 0.5  # maximum fraction subtracted; 0 = none, 1 = down to no pause

    def __post_init__(self) -> None:
        if not 0 < self.first_s <= self.most_s:
            raise ValueError(f"0 < first_s <= most_s, not {self.first_s} and {self.most_s}")
        if self.factor < 1:
            raise ValueError(f"factor >= 1, not {self.factor}")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"0 <= jitter <= 1, not {self.jitter}")

    def delay_s(self, failures: int, chance: Chance) -> float:
        """Return the pause after this many failures in a row; 0 before the first."""
        if failures < 1:
            return 0.0
        try:
            full_s = min(self.first_s * self.factor ** (failures - 1), self.most_s)
        except OverflowError:  # after a thousand failures the power exceeds a float
            full_s = self.most_s
        return full_s * (1 - self.jitter * chance.random())
