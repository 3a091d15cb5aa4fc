"""What the scorer's core is told. Facts and telemetry come as the messages themselves; times are
the server's clock, in seconds."""

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
    """A fact was stored then."""

    fact: InputFact
    stored_at_s: float


class ScoreSeen(msgspec.Struct, frozen=True):
    """A score was stored, by this scorer or by one before it or beside it."""

    score: ClusterScore


class FactForgotten(msgspec.Struct, frozen=True):
    """The bus no longer holds this fact: it was deleted, which no reporter does. Or it is a
    membership without room, as most are."""

    cluster: str
    kind: Literal["alive", "profile", "membership", "node"]
    node: str = ""


class TelemetryHeard(msgspec.Struct, frozen=True):
    """Telemetry arrived just now."""

    telemetry: NodeTelemetry


class WorkloadSubmitted(msgspec.Struct, frozen=True):
    """Somebody asked for these pods at that time."""

    pod_sets: Sequence[PodSetLike]
    at_s: float


class Led(msgspec.Struct, frozen=True):
    """This scorer publishes for its shard from now on, under this epoch."""

    epoch: int


class Deposed(msgspec.Struct, frozen=True):
    """It no longer does."""


class ScoreNotStored(msgspec.Struct, frozen=True):
    """A PutScore was not carried out, or nobody knows."""

    cluster: str


class Tick(msgspec.Struct, frozen=True):
    """Time has passed: do what is due."""


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
