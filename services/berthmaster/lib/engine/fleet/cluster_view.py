"""What is known of one cluster at the moment of a decision.

cluster_table.py holds the same for many clusters at once.
"""

import msgspec


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a cluster at the moment of a decision, besides its nodes."""

    name: str
    age_s: float  # since its newest sign of life; infinite if there was none
    idle_percent: float | None
    closed: str = ""  # why it takes no new placements, or ""
