"""What decisions told, as later ones are made with it."""

from typing import NamedTuple

import msgspec

from berthmaster.lib.engine.queueing.life_tables import NO_LIVES
from berthmaster.lib.engine.scoring.pod_mix import Sampled
from berthmaster.lib.engine.scoring.pressure import NO_PRESSURE
from berthmaster.lib.messages.placement import Expected, Lives, Pressure, ToldOutlook


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What a decision told that it was made with: when it is repeated, it counts in place of what
    follows here, as that follows from more than the log keeps."""

    mix: Sampled
    pressure: Pressure
    presses: bool  # it told the pressure
    outlook: ToldOutlook | None = None
    expected: tuple[Expected, ...] = ()
    lives: Lives
    tells_lives: bool  # it told them


class ToldLives(NamedTuple):
    """What was learned of how long jobs go on, by the newest decision that told it."""

    lives: Lives = NO_LIVES
    by: int = 0  # its number


class Told(NamedTuple):
    """Which nodes are scarce, by the newest decision that told any."""

    pressure: Pressure = NO_PRESSURE
    by: int = 0  # its number
    placed: int = 0  # pods by it and since
