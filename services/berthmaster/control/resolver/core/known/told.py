"""Values reported by decisions, as inputs of later ones."""

from typing import NamedTuple

import msgspec

from berthmaster.lib.engine.queueing.life_tables import NO_LIVES
from berthmaster.lib.engine.scoring.pod_mix import Sampled
from berthmaster.lib.engine.scoring.pressure import NO_PRESSURE
from berthmaster.lib.messages.placement import Expected, Lives, Pressure, ToldOutlook


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs that a decision reports. A repeated decision uses these values, because they depend on
    more than the log keeps.
    """

    mix: Sampled
    pressure: Pressure
    presses: bool  # the decision reports the scarcity
    outlook: ToldOutlook | None = None
    expected: tuple[Expected, ...] = ()
    lives: Lives
    tells_lives: bool  # the decision reports the tables


class ToldLives(NamedTuple):
    """Learned durations of the newest decision that reports any."""

    lives: Lives = NO_LIVES
    by: int = 0  # number of that decision


class Told(NamedTuple):
    """Scarcity of nodes of the newest decision that reports any."""

    pressure: Pressure = NO_PRESSURE
    by: int = 0  # number of that decision
    placed: int = 0  # pods placed by it and since
