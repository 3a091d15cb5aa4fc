"""How good a cluster is for a request: named parts, each 0..100, and their weighted mean.

Unknown is not zero and not full: a part whose input is missing counts as the worst value, so that
silence never makes a cluster look better.
"""

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from berthmaster.engine.needs import wants_fraction
from berthmaster.engine.value import Worth
from berthmaster.messages.workload import PodSet


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """What each part counts; the score is their weighted mean, so only proportions matter."""

    fit: float = 4.0  # how little a pod costs beyond itself on the cluster's best node
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


def packing_part(pods: PodSet, best: NDArray[np.float32], worth: Worth) -> NDArray[np.float64]:
    """The part "fit" of clusters, from what their best nodes score: 50 where a pod costs what its
    GPUs are worth, 0 where it spoils as much again, 100 where it saves as much (on GPUs that had no
    CPU for another)."""
    own = float(worth.hole[pods.gpu_milli]) if wants_fraction(pods) else 0.0
    a_gpu = 50.0 / max(1, pods.gpus)
    part = a_gpu * best.astype(np.float64) + (50.0 + a_gpu * own)
    return np.minimum(np.maximum(part, 0.0), 100.0)


def bounded(value: float) -> float:
    """Into 0..100; what is no number is worse than anything known."""
    if not value >= 0.0:
        return 0.0
    return min(value, 100.0)
