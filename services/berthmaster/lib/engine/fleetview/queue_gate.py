"""What stands between a request and the clusters besides their nodes: queues that clusters govern.

A request that is made directly in a cluster has no gate. The resolver's gate for queues with
``via: worker`` asks each cluster's own Kueue for quota and for who is in line there. A hub's gate
knows its MultiKueueConfig too; there a cluster that is busy now is a candidate all the same, since
Kueue makes the copy wait, and ``tier`` and ``headroom`` say how soon and how much.

For a hub: subclass ``Gate`` for one Workload, with ``is_tiered = True``; give its policy
``profiles`` = lib/engine/scoring/profiles.py's HUB_PROFILES; call ``FleetView.snapshot`` once a
decision (``also``: clusters without nodes) and ``filter_and_rank`` for each Workload.
"""

from typing import Final

from berthmaster.lib.engine.scoring.cluster_scores import UNKNOWN
from berthmaster.lib.messages.placement import Via

NO_LINE: Final = None


class Gate:
    """Of one request. As it stands here, everything is open and nothing is known."""

    via: Via = "direct"  # who makes its pods there, see cluster_filters.py
    is_tiered = False  # ``tier`` and ``headroom`` are known, and being busy keeps nobody out

    def why_not(self, cluster: str) -> str:
        """Why the cluster is out, whatever room its nodes have, or ""."""
        del cluster
        return ""

    def in_line(self, cluster: str) -> tuple[int, int, bool] | None:
        """Of the queue that governs there: jobs that wait, jobs that were let in, whether the
        request would have to borrow. None: not known."""
        del cluster
        return NO_LINE

    def tier(self, cluster: str) -> float:
        """One of components.py's."""
        del cluster
        return UNKNOWN

    def headroom(self, cluster: str) -> float:
        """GPUs that it could have there now: the lesser of what is free and what quota is left (CPU
        cores for what asks for no GPU)."""
        del cluster
        return UNKNOWN
