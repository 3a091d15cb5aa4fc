"""Parts of GPUs: which of a node's offers a pod takes, and how much of a GPU that costs.

A node that offers none of its own is taken to hand out any part (emulated ones do). Slices (MIG)
and replicas (time slicing) are of fixed size: a pod takes one whole, however little it asks for.
Where software divides (HAMi, KAI) it gets what it asks for. GPUs that are handed out in parts only
are never whole: their inventory charges what they keep for themselves.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from berthmaster.messages.fleet import Share
from berthmaster.messages.workload import PodSet

DIVISIBLE: Final = ("hami", "kai")
_GPU_MILLI: Final = 1000


class Part(NamedTuple):
    """A part of one GPU, as it is asked for."""

    milli: int
    memory_mib: int  # at least; 0 = no matter


def share_for(shares: Sequence[Share], pods: PodSet) -> Share | None:
    """The smallest offer that is enough for one pod of the set; None if none is."""
    return enough(shares, Part(pods.gpu_milli, pods.gpu_memory_mib))


def enough(shares: Sequence[Share], part: Part) -> Share | None:
    """The smallest offer that is enough; None if none is."""
    fit = [
        share
        for share in shares
        if share.kind in DIVISIBLE
        or (
            share.milli >= part.milli
            and (not share.memory_mib or share.memory_mib >= part.memory_mib)
        )
    ]
    return min(fit, key=lambda s: (takes_milli(s, part), s.memory_mib, s.resource), default=None)


def takes_milli(share: Share, part: Part) -> int:
    """What of a GPU is charged to who takes this offer. A GPU that is handed out in parts only has
    one milli less than a whole one, and its pieces share what is left: the last one fits too."""
    if share.kind in DIVISIBLE:
        return part.milli
    pieces = max(1, _GPU_MILLI // share.milli) if share.milli else 1
    return min(share.milli, (_GPU_MILLI - 1) // pieces)


def counted(share: Share) -> bool:
    """Whether there are only so many pieces of it, whatever room the GPUs have."""
    return share.kind not in DIVISIBLE
