"""What was learned of how long jobs take, as a snapshot keeps it."""

from typing import Final

import msgspec

from berthmaster.lib.engine.queueing.life_tables import NO_LIVES
from berthmaster.lib.lifecycle.workload import Key
from berthmaster.lib.messages.placement import Lives

DEGREES: Final = 3  # of likeness, beside having nothing in common

Kind = tuple[str, ...]
Ending = tuple[float, float]  # when it was submitted, and how long it ran


class KindHistory(msgspec.Struct, frozen=True, array_like=True):
    """The endings of one kind, as a snapshot keeps them: oldest first."""

    kind: Kind
    endings: list[Ending]


class LearnedDurations(msgspec.Struct, frozen=True, kw_only=True):
    """All that ``Durations`` knows."""

    kinds: list[KindHistory] = []  # in the order of forgetting
    judged: tuple[float, ...] = (0.0,) * DEGREES  # expectations of each degree, faded
    off: tuple[float, ...] = (0.0,) * DEGREES  # by which factor they missed: its mean logarithm


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """What ``Expectations`` keeps in a snapshot."""

    durations: LearnedDurations = LearnedDurations()
    sizes: list[float] = []
    lives: Lives = NO_LIVES
    expected_s: dict[Key, float] = {}  # of open jobs that do not say themselves
    untold: list[Key] = []
    submitted: int = 0
    late: int = 0
