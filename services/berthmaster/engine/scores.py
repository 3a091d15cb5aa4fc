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


def score_parts(
    view: ClusterView, *, fit: float, free_milli: int, capacity_milli: int, stale_after_s: float
) -> dict[str, float]:
    """The parts of a cluster's score, rounded so that a record shows what was compared."""
    return {
        "fit": _bounded(100.0 * fit),
        "room": _bounded(100.0 * free_milli / capacity_milli) if capacity_milli > 0 else 0.0,
        "idle": _bounded(view.idle_percent) if view.idle_percent is not None else 0.0,
        "fresh": _bounded(100.0 * (1.0 - view.age_s / stale_after_s)),
    }


def weighted(parts: dict[str, float], weights: Weights) -> float:
    """The weighted mean of the parts, 0..100."""
    total = weights.fit + weights.room + weights.idle + weights.fresh
    if total <= 0:
        return 0.0
    return round(
        (
            weights.fit * parts["fit"]
            + weights.room * parts["room"]
            + weights.idle * parts["idle"]
            + weights.fresh * parts["fresh"]
        )
        / total,
        4,
    )


def _bounded(value: float) -> float:
    if value != value:  # NaN: worse than anything known
        return 0.0
    return round(min(100.0, max(0.0, value)), 4)
