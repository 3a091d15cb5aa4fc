"""Parts of GPUs: which of a node's offers a pod takes, and how much of a GPU that costs.

A node that offers none of its own is taken to hand out any part (emulated ones do). Slices (MIG)
and replicas (time slicing) are of fixed size: a pod takes one whole, however little it asks for.
Where software divides (HAMi, KAI) it gets what it asks for. GPUs that are handed out in parts only
are never whole: their inventory charges what they keep for themselves.
"""

from collections.abc import Sequence
from typing import Final

from berthmaster.messages.fleet import Share
from berthmaster.messages.workload import PodSet

DIVISIBLE: Final = ("hami", "kai")


def share_for(shares: Sequence[Share], pods: PodSet) -> Share | None:
    """The smallest offer that is enough for one pod of the set; None if none is."""
    enough = [
        share
        for share in shares
        if share.kind in DIVISIBLE
        or (
            share.milli >= pods.gpu_milli
            and (not share.memory_mib or share.memory_mib >= pods.gpu_memory_mib)
        )
    ]
    return min(enough, key=lambda s: (takes_milli(s, pods), s.memory_mib, s.resource), default=None)


def takes_milli(share: Share, pods: PodSet) -> int:
    """What of a GPU a pod is charged for that takes this offer."""
    return pods.gpu_milli if share.kind in DIVISIBLE else share.milli
