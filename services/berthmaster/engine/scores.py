"""How good a cluster is for a request: named parts, each 0..100, and their weighted mean.

Unknown is not zero and not full: a part whose input is missing counts as the worst value, so that
silence never makes a cluster look better.
"""

from typing import Final

import msgspec


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """What each part counts; the score is their weighted mean, so only proportions matter."""

    fit: float = 1.0  # share of the chosen node's free GPU room that the job fills
    room: float = 0.5  # free share of the cluster's GPUs
    idle: float = 0.5  # measured idle share of its GPUs
    fresh: float = 0.25  # how recently it was heard of


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a cluster at the moment of a decision, besides its nodes."""

    name: str
    age_s: float  # since its newest sign of life; infinite if there was none
    idle_percent: float | None
    closed: str = ""  # why it takes no new placements, or ""


PARTS: Final = ("fit", "room", "idle", "fresh")


def standing_parts(view: ClusterView, *, stale_after_s: float) -> tuple[float, float]:
    """The parts that depend on the cluster alone: (idle, fresh)."""
    idle = bounded(view.idle_percent) if view.idle_percent is not None else 0.0
    return idle, bounded(100.0 * (1.0 - view.age_s / stale_after_s))


def weighted(weights: Weights, *, fit: float, room: float, idle: float, fresh: float) -> float:
    """The weighted mean of the parts, 0..100; 0 if no part counts."""
    total = weights.fit + weights.room + weights.idle + weights.fresh
    if total <= 0:
        return 0.0
    return (
        weights.fit * fit + weights.room * room + weights.idle * idle + weights.fresh * fresh
    ) / total


def bounded(value: float) -> float:
    """Into 0..100; what is no number is worse than anything known."""
    if not value >= 0.0:
        return 0.0
    return min(value, 100.0)
