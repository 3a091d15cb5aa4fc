"""Parts of GPUs: which of a node's offers a pod takes, and how much of a GPU that costs.

A node that offers none of its own is taken to hand out any part (emulated ones do). Slices (MIG)
and replicas (time slicing) are of fixed size: a pod takes one whole, however little it asks for.
Where software divides (HAMi, KAI, `berth serve shares`, DRA's consumable capacity) it gets what it
asks for, rounded up to what it can say: HAMi and KAI count in hundredths, shares in thousandths.
HAMi lets only so many pods have a GPU at once (ten, as it is installed), so no part of one is
smaller than that makes it: ten that ask for less fill a GPU. GPUs that are handed out in parts only
are never whole: their inventory charges what they keep for themselves.

Memory that a part is to have counts too: where a part can be had in any size it is as large as its
compute or its memory asks for, whichever is more. A MIG profile is that slice and nothing else. KAI
is asked for MiB then, which it counts one by one, of a little less than the GPU has
(``Share.memory_mib``); where its node does not tell it how much that is, for hundredths.

How hard a limit is differs: a MIG slice is a device of its own (``hardware``), MPS and HAMi-core
hold a pod to its memory (``memory``), and where replicas take turns or a scheduler only counts
nothing does (``none``). A request names the least that it accepts.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from berthmaster.lib.accelerators import mig
from berthmaster.lib.accelerators.table import (
    HAMI_CORES,
    HAMI_MEMORY,
    HAMI_MEMORY_PERCENT,
    MIG,
    NVIDIA,
)
from berthmaster.lib.messages.fleet import Share
from berthmaster.lib.messages.workload import Isolation, PodSet

_DIVISIBLE: Final = ("hami", "kai", "milli")
NOT_HELD: Final = "none"
# The softest first.
ISOLATIONS: Final = (NOT_HELD, "memory", "hardware")
_ISOLATION_OF: Final[Mapping[str, Isolation]] = {
    "mig": "hardware",
    "hami": "memory",
    "kai": NOT_HELD,
}
_GPU_MILLI: Final = 1000


# GPU model, milli that a part of such a GPU is charged with: once for each price, in order.
Charges = tuple[tuple[str, int], ...]


class Part(NamedTuple):
    """A part of one GPU, as it is asked for."""

    milli: int
    memory_mib: int  # at least; 0 = no matter
    profile: str = ""  # of MIG, in its one spelling; "" = any part that is enough
    isolation: str = ""  # the least that will do; "" = any


def part_of(pods: PodSet) -> Part:
    """What each pod of a set that shares GPUs asks for."""
    profile = mig.one_spelling(pods.mig_profile) if pods.mig_profile else ""
    return Part(pods.gpu_milli, pods.gpu_memory_mib, profile, pods.isolation)


def wants_fraction(pods: PodSet) -> bool:
    """Return whether each pod takes a part of one GPU."""
    return pods.gpus == 1 and pods.gpu_milli < _GPU_MILLI


def share_for(shares: Sequence[Share], pods: PodSet) -> Share | None:
    """The smallest offer that is enough for one pod of the set; None if none is."""
    return enough(shares, part_of(pods))


def enough(shares: Sequence[Share], part: Part) -> Share | None:
    """The smallest offer that is enough; None if none is."""
    fit = [share for share in shares if _is_enough(share, part)]
    return min(fit, key=lambda s: (takes_milli(s, part), s.memory_mib, s.resource), default=None)


def _is_enough(share: Share, part: Part) -> bool:
    if part.profile and mig.one_spelling(profile_of(share)) != part.profile:
        return False
    if not is_hard_enough(isolation_of(share), part.isolation):
        return False
    if part.profile or not counted(share):
        return True  # a profile is what it is, whatever its slices come to on that board
    return share.milli >= part.milli and (
        not share.memory_mib or share.memory_mib >= part.memory_mib
    )


def isolation_of(share: Share) -> Isolation:
    """How hard the limit of a part is that is had so."""
    return share.isolation or _ISOLATION_OF.get(share.kind, NOT_HELD)


def is_hard_enough(isolation: str, least: str) -> bool:
    """Whether a limit will do for who accepts no softer one; "" accepts any."""
    return not least or ISOLATIONS.index(isolation) >= ISOLATIONS.index(least)


def profile_of(share: Share) -> str:
    """The MIG profile that an offer is, "" if it is none."""
    if share.kind != "mig":
        return ""
    return share.profile or share.resource.removeprefix(MIG)


def profile_milli(profile: str) -> int | None:
    """What a MIG profile comes to in requests, in sevenths; None if it is spelt as none is. A node
    charges what the slice is on its board. The whole of a GPU is a part of it as well: it is handed
    out as one."""
    found = mig.profile(profile)
    if found is None:
        return None
    return min(found.slices * _GPU_MILLI // mig.MOST_SLICES, _GPU_MILLI - 1)


def profile_memory_mib(profile: str) -> int:
    """The memory that a MIG profile's name tells; 0 if it is none."""
    found = mig.profile(profile)
    return found.memory_mib if found is not None else 0


def takes_milli(share: Share, part: Part, gpu_memory_mib: int = 0) -> int:
    """What of a GPU is charged to who takes this offer. A GPU that is handed out in parts only has
    one milli less than a whole one, and its pieces share what is left: the last one fits too."""
    if not counted(share):
        grain = max(1, share.milli)
        if share.kind == "kai" and share.memory_mib:
            milli = -(-part.milli // grain) * grain
            by_memory = -(-part.memory_mib * _GPU_MILLI // share.memory_mib)
            if part.memory_mib <= gpu_memory_mib:  # what KAI rounds off comes with all of the GPU
                by_memory = min(by_memory, _GPU_MILLI)
            return max(milli, by_memory)
        milli = -(-sized_milli(part, gpu_memory_mib) // grain) * grain
        return max(least_milli(share), milli)
    return piece_milli(share.milli)


def piece_milli(milli: int) -> int:
    """Return what a piece of fixed size is charged as, so that all pieces of a GPU together leave
    one milli: four quarters are 249 each."""
    pieces = max(1, _GPU_MILLI // milli) if milli else 1
    return min(milli, (_GPU_MILLI - 1) // pieces)


def charged_milli(
    part: Part,
    shares: Sequence[Share],
    gpu_memory_mib: int,
    index: int | None = None,
    *,
    fractions: bool = True,
) -> int:
    """Return the GPU milli that one pod is charged with for one GPU of a node. ``index``: of the
    GPU, where the node's GPUs are offered in different parts; None = any.

    Every limit, account and report counts by this function. Example: ``Part(1, 8192)``, which is 8
    GiB of memory, costs 500 on a GPU of 16 GiB, 103 on one of 80,000 MiB, and 333 on a node that
    offers replicas of a third. Whole GPUs, and nodes without ``fractions``, cost 1000. A part by
    memory costs 1000 too where nobody reports the GPU's memory (0): more it cannot take.
    """
    if part.milli >= _GPU_MILLI or not fractions:
        return _GPU_MILLI
    if not shares and not part.memory_mib:
        return part.milli  # of most requests: no need to look further
    if index is not None and any(share.gpus for share in shares):
        shares = [share for share in shares if not share.gpus or index in share.gpus]
    share = enough(shares, part)
    if part.memory_mib and not gpu_memory_mib and (share is None or not counted(share)):
        return _GPU_MILLI
    if share is None:
        return min(_GPU_MILLI, sized_milli(part, gpu_memory_mib))
    return min(_GPU_MILLI, takes_milli(share, part, gpu_memory_mib))


def least_milli(share: Share) -> int:
    """What the smallest part comes to where a GPU is split into so many at most: as many of it fit
    and not one more. Of 3 it is 330: a fourth has no room."""
    if not share.parts:
        return 0
    grain = max(1, share.milli)
    least = _GPU_MILLI // share.parts // grain * grain
    return least if least * (share.parts + 1) > _GPU_MILLI else least + grain


def is_packed(shares: Sequence[Share]) -> bool:
    """Whether whoever divides GPUs here takes the fullest one with room, as KAI does and HAMi is
    told to, whatever we would have liked: only so does it have room where we think that it has."""
    return any(share.kind in _DIVISIBLE for share in shares)


def sized_milli(part: Part, gpu_memory_mib: int) -> int:
    """What a part comes to that is had in any size, of a GPU with so much memory (0 = not told)."""
    if not part.memory_mib or not gpu_memory_mib:
        return part.milli
    return max(part.milli, -(-part.memory_mib * _GPU_MILLI // gpu_memory_mib))


def counted(share: Share) -> bool:
    """Whether there are only so many pieces of it, whatever room the GPUs have."""
    return share.kind not in _DIVISIBLE and not (share.claim is not None and share.claim.divisible)


def asked_as(share: Share, pods: PodSet, gpu_memories_mib: Sequence[int]) -> dict[str, int]:
    """The extended resources by which a pod asks for this offer. ``gpu_memories_mib``: of the GPUs
    that it may get. KAI's own scheduler and DRA are told otherwise: nothing."""
    if share.kind == "kai" or share.claim is not None:
        return {}
    if counted(share):
        return {share.resource: 1}
    milli = takes_milli(share, part_of(pods), min(gpu_memories_mib, default=0))
    if share.kind == "milli":
        return {share.resource: min(milli, _GPU_MILLI)}
    asked = {NVIDIA: 1, HAMI_CORES: min(100, milli // 10)}  # percent
    # Without either of these HAMi gives all memory of the GPU; of both it takes the first.
    if is_by_memory(pods, gpu_memories_mib, least_milli(share)):
        return asked | {HAMI_MEMORY: pods.gpu_memory_mib}
    return asked | {HAMI_MEMORY_PERCENT: min(100, milli // 10)}


def is_by_kais_memory(share: Share, pods: PodSet) -> bool:
    """Whether the memory that a part is to have is more than its share of what KAI hands out of a
    GPU."""
    percent = -(-pods.gpu_milli // 10)
    return 0 < share.memory_mib * percent // 100 < pods.gpu_memory_mib


def is_by_memory(pods: PodSet, gpu_memories_mib: Sequence[int], least_milli: int = 0) -> bool:
    """Whether the memory that a part is to have is more than its share of each of these GPUs, of
    which a part is at least so much."""
    most_mib = max(gpu_memories_mib, default=0)
    percent = -(-max(pods.gpu_milli, least_milli) // 10)
    return pods.gpu_memory_mib > most_mib * percent // 100
