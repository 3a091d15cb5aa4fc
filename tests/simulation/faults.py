"""What can go wrong, each kind with a chance of its own: a kind that is switched off changes no
draw of the others, so that a failing seed can be reduced to the kinds that it needs."""

import random
from collections.abc import Iterable
from typing import Final

# How the bus misbehaves, what befalls processes and clusters, what people do; and no fault, but a
# way of deciding: jobs go by when they are due, and half of them do not say how long they take.
BUS: Final = ("delay", "repeat", "telemetry", "unknown", "void")
PROCESSES: Final = ("crash", "pause", "partition", "bus_away", "two_deciders", "clocks")
CLUSTERS: Final = ("gpus_die", "nodes_flap", "foreign", "pods_fail")
PEOPLE: Final = ("cancel", "reprioritize", "cordon", "queues", "lost", "deadlines", "shapes")
DECIDING: Final = ("due",)
FORGING: Final = ("lies",)  # see lies.py
DAMAGE: Final = ("damage",)  # of the log, see damage.py
MOVING: Final = ("room",)  # jobs that may not be moved, or lose little
ORDERING: Final = ("verbs",)  # people hold, evict, move and drain; jobs tell of checkpoints
RESIZING: Final = ("elastic",)  # jobs whose number of pods changes while they run
SHARING: Final = ("parents",)  # queues are put below others, where they may be and where not
BALANCING: Final = ("balance",)  # jobs move so that others fit who have waited for long
DIVIDING: Final = ("divided",)  # jobs that may be divided over clusters
MEASURING: Final = ("idle",)  # running jobs are said to be idle, rightly or not
TRYING: Final = ("trials",)  # jobs that try configurations first
# No fault, but a way of deciding: reservations and backfill go by similar jobs, and the estimates
# are wrong by ten times either way, or by any factor.
FORESEEING: Final = ("similar",)
KINDS: Final = (
    *BUS,
    *PROCESSES,
    *CLUSTERS,
    *PEOPLE,
    *DECIDING,
    *FORGING,
    *DAMAGE,
    *MOVING,
    *RESIZING,
    *ORDERING,
    *SHARING,
    *BALANCING,
    *DIVIDING,
    *MEASURING,
    *FORESEEING,
    *TRYING,
)
SHARE: Final = 0.5  # of the kinds that a seed has


class Faults:
    """The kinds of one seed, and the dice of each."""

    def __init__(self, seed: int, without: Iterable[str] = ()) -> None:
        self._dice = {kind: random.Random(f"{seed}/{kind}") for kind in KINDS}
        chooser = random.Random(f"{seed}/kinds")
        chosen = {kind for kind in KINDS if chooser.random() < SHARE}
        self.kinds = tuple(k for k in KINDS if k in chosen and k not in set(without))
        self.quiet = False  # faults have stopped

    def has(self, kind: str) -> bool:
        return kind in self.kinds

    def dice(self, kind: str) -> random.Random:
        return self._dice[kind]

    @property
    def leaves_durations_open(self) -> bool:
        """Whether half of the jobs do not state how long they take."""
        return self.has("due") or self.has("similar")

    def happens(self, kind: str, chance: float) -> bool:
        if self.quiet or kind not in self.kinds:
            return False
        return self._dice[kind].random() < chance
