"""One cluster at one moment, and what of its score depends on it alone.

Unknown is not zero and not full: a part whose input is missing counts as the worst value, so that
silence never makes a cluster look better. Of many clusters at once: parts/ and cluster_table.py.
"""

import msgspec


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a cluster at the moment of a decision, besides its nodes."""

    name: str
    age_s: float  # since its newest sign of life; infinite if there was none
    idle_percent: float | None
    closed: str = ""  # why it takes no new placements, or ""


def standing_parts(view: ClusterView, *, stale_after_s: float) -> tuple[float, float]:
    """The parts that depend on the cluster alone: (idle, fresh)."""
    idle = bounded(view.idle_percent) if view.idle_percent is not None else 0.0
    return idle, bounded(100.0 * (1.0 - view.age_s / stale_after_s))


def bounded(value: float) -> float:
    """Into 0..100; what is no number is worse than anything known."""
    if not value >= 0.0:
        return 0.0
    return min(value, 100.0)
