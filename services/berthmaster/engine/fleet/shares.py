"""Parts of GPUs: which of a node's offers a pod takes, and how much of a GPU that costs.

A node that offers none of its own is taken to hand out any part (emulated ones do). Slices (MIG)
and replicas (time slicing) are of fixed size: a pod takes one whole, however little it asks for.
Where software divides (HAMi, KAI) it gets what it asks for. GPUs that are handed out in parts only
are never whole: their inventory charges what they keep for themselves.

Memory that a part is to have counts too: where a part can be had in any size it is as large as its
compute or its memory asks for, whichever is more. A MIG profile is that slice and nothing else.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from berthmaster.accelerators import mig
from berthmaster.accelerators.table import HAMI_CORES, HAMI_MEMORY, MIG
from berthmaster.messages.fleet import Share
from berthmaster.messages.workload import PodSet

DIVISIBLE: Final = ("hami", "kai")
_GPU_MILLI: Final = 1000


class Part(NamedTuple):
    """A part of one GPU, as it is asked for."""

    milli: int
    memory_mib: int  # at least; 0 = no matter
    profile: str = ""  # of MIG; "" = any part that is enough


def part_of(pods: PodSet) -> Part:
    """What each pod of a set that shares GPUs asks for."""
    return Part(pods.gpu_milli, pods.gpu_memory_mib, pods.mig_profile)


def share_for(shares: Sequence[Share], pods: PodSet) -> Share | None:
    """The smallest offer that is enough for one pod of the set; None if none is."""
    return enough(shares, part_of(pods))


def enough(shares: Sequence[Share], part: Part) -> Share | None:
    """The smallest offer that is enough; None if none is."""
    fit = [share for share in shares if _is_enough(share, part)]
    return min(fit, key=lambda s: (takes_milli(s, part), s.memory_mib, s.resource), default=None)


def _is_enough(share: Share, part: Part) -> bool:
    if part.profile and profile_of(share) != part.profile:
        return False
    if share.kind in DIVISIBLE:
        return True
    return share.milli >= part.milli and (
        not share.memory_mib or share.memory_mib >= part.memory_mib
    )


def profile_of(share: Share) -> str:
    """The MIG profile that an offer is, "" if it is none."""
    if share.kind != "mig":
        return ""
    return share.profile or share.resource.removeprefix(MIG)


def profile_milli(profile: str) -> int | None:
    """What a MIG profile comes to of a GPU's compute; None if it is spelt as none is. The whole of
    a GPU is a part of it as well: it is handed out as one."""
    found = mig.profile(profile)
    if found is None:
        return None
    return min(found.slices * _GPU_MILLI // mig.SLICES, _GPU_MILLI - 1)


def profile_memory_mib(profile: str) -> int:
    """The memory that a MIG profile's name tells; 0 if it is none."""
    found = mig.profile(profile)
    return found.memory_mib if found is not None else 0


def takes_milli(share: Share, part: Part, gpu_memory_mib: int = 0) -> int:
    """What of a GPU is charged to who takes this offer. A GPU that is handed out in parts only has
    one milli less than a whole one, and its pieces share what is left: the last one fits too."""
    if share.kind in DIVISIBLE:
        return sized_milli(part, gpu_memory_mib)
    pieces = max(1, _GPU_MILLI // share.milli) if share.milli else 1
    return min(share.milli, (_GPU_MILLI - 1) // pieces)


def sized_milli(part: Part, gpu_memory_mib: int) -> int:
    """What a part comes to that is had in any size, of a GPU with so much memory (0 = not told)."""
    if not part.memory_mib or not gpu_memory_mib:
        return part.milli
    return max(part.milli, -(-part.memory_mib * _GPU_MILLI // gpu_memory_mib))


def counted(share: Share) -> bool:
    """Whether there are only so many pieces of it, whatever room the GPUs have."""
    return share.kind not in DIVISIBLE


def asked_as(share: Share, pods: PodSet, milli: int, whole_gpu: str) -> dict[str, int]:
    """The extended resources by which a pod asks for this offer. ``milli``: what it comes to where
    it can be had in any size; ``whole_gpu``: the resource that a whole GPU is there."""
    if share.kind == "kai":
        return {}  # its own scheduler is told otherwise
    if share.kind != "hami":
        return {share.resource: 1}
    asked = {whole_gpu: 1, HAMI_CORES: max(1, milli // 10)}  # percent
    if pods.gpu_memory_mib:
        asked[HAMI_MEMORY] = pods.gpu_memory_mib
    return asked
