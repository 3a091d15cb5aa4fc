"""Events of the scorer's core. Facts and telemetry are the messages themselves. Times are the
server's clock, in seconds.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from berthmaster.control.scorer.core.mix import PodSetLike
from berthmaster.lib.messages.fleet import (
    ClusterAlive,
    ClusterProfile,
    ClusterScore,
    Membership,
    NodeGone,
    NodeReport,
)
from berthmaster.lib.messages.telemetry import NodeTelemetry

InputFact = ClusterAlive | ClusterProfile | Membership | NodeReport | NodeGone


class FactSeen(msgspec.Struct, frozen=True):
    """A fact was stored at ``stored_at_s``."""

    fact: InputFact
    stored_at_s: float


class ScoreSeen(msgspec.Struct, frozen=True):
    """A score was stored, by this scorer, an earlier one or another replica."""

    score: ClusterScore


class FactForgotten(msgspec.Struct, frozen=True):
    """The bus no longer has this fact (no reporter deletes facts), or a membership has no measured
    capacity (the usual case).
    """

    cluster: str
    kind: Literal["alive", "profile", "membership", "node"]
    node: str = ""


class TelemetryHeard(msgspec.Struct, frozen=True):
    """Telemetry was just received."""

    telemetry: NodeTelemetry


class WorkloadSubmitted(msgspec.Struct, frozen=True):
    """A workload with these pods was submitted at ``at_s``."""

    pod_sets: Sequence[PodSetLike]
    at_s: float


class Led(msgspec.Struct, frozen=True):
    """This scorer publishes for its shard from now on, under this epoch."""

    epoch: int


class Deposed(msgspec.Struct, frozen=True):
    """This scorer no longer publishes."""


class ScoreNotStored(msgspec.Struct, frozen=True):
    """A PutScore failed, or its outcome is unknown."""

    cluster: str


class Tick(msgspec.Struct, frozen=True):
    """Time has passed: do the due work."""


Event = (
    FactSeen
    | ScoreSeen
    | FactForgotten
    | TelemetryHeard
    | WorkloadSubmitted
    | Led
    | Deposed
    | ScoreNotStored
    | Tick
)
