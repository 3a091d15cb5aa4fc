"""GPU fractions: the offer of a node that a pod takes, and the charge on the GPU.

Example: ``charged_milli`` of a part with 8 GiB of memory is 500 on a GPU of 16 GiB.

Rules of this file:

- A node without offers allows any fraction (emulated nodes).
- MIG slices and replicas (time slicing) have a fixed size, and a pod takes a whole one.
- Where software divides the GPU (HAMi, KAI, `berth serve shares`, DRA's consumable capacity), a pod
  gets the requested size, rounded up: to hundredths for HAMi and KAI, to thousandths for shares.
- HAMi limits the number of pods on a GPU (10 by default). The charge has a matching minimum: ten
  small fractions fill a GPU.
- A GPU that is only allocated in fractions is never whole. Its inventory charges the reserve.
- Memory counts too. A fraction of any size is charged by its compute or its memory, whichever is
  larger. A MIG profile is exactly that slice. KAI gets the request in MiB of slightly less than the
  GPU's memory (``Share.memory_mib``), or in hundredths if the memory is unknown.

Isolation differs: a MIG slice is a device of its own (``hardware``). MPS and HAMi-core limit memory
(``memory``). Replicas and schedulers that only count limit nothing (``none``). A request names its
minimum.
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
from berthmaster.lib.messages.workload import WHOLE_MILLI, Isolation, PodSet

_DIVISIBLE: Final = ("hami", "kai", "milli")
NOT_HELD: Final = "none"
# The softest first.
ISOLATIONS: Final = (NOT_HELD, "memory", "hardware")
_ISOLATION_OF: Final[Mapping[str, Isolation]] = {
    "mig": "hardware",
    "hami": "memory",
    "kai": NOT_HELD,
}


# GPU model and charge of a fraction in milli: each price once, in order.
Charges = tuple[tuple[str, int], ...]


class Part(NamedTuple):
    """A fraction of one GPU, as requested."""

    milli: int
    memory_mib: int  # at least; 0 = no matter
    profile: str = ""  # MIG profile in canonical spelling; "" = any sufficient fraction
    isolation: str = ""  # minimum isolation; "" = any


def part_of(pods: PodSet) -> Part:
    """Return the fraction that each pod of a set requests."""
    profile = mig.one_spelling(pods.mig_profile) if pods.mig_profile else ""
    return Part(pods.gpu_milli, pods.gpu_memory_mib, profile, pods.isolation)


def wants_fraction(pods: PodSet) -> bool:
    """Return whether each pod takes a part of one GPU."""
    return pods.gpus == 1 and pods.gpu_milli < WHOLE_MILLI


def share_for(shares: Sequence[Share], pods: PodSet) -> Share | None:
    """Return the smallest sufficient offer for one pod of the set, or None."""
    return enough(shares, part_of(pods))


def enough(shares: Sequence[Share], part: Part) -> Share | None:
    """Return the smallest sufficient offer, or None."""
    fit = [share for share in shares if _is_enough(share, part)]
    return min(fit, key=lambda s: (takes_milli(s, part), s.memory_mib, s.resource), default=None)


def _is_enough(share: Share, part: Part) -> bool:
    if part.profile and mig.one_spelling(profile_of(share)) != part.profile:
        return False
    if not is_hard_enough(isolation_of(share), part.isolation):
        return False
    if part.profile or not counted(share):
        return True  # a profile is exact, whatever the size of its slices on this GPU
    return share.milli >= part.milli and (
        not share.memory_mib or share.memory_mib >= part.memory_mib
    )


def isolation_of(share: Share) -> Isolation:
    """How hard the limit of a part is that is had so."""
    return share.isolation or _ISOLATION_OF.get(share.kind, NOT_HELD)


def is_hard_enough(isolation: str, least: str) -> bool:
    """Return whether the isolation reaches the minimum; "" accepts any."""
    return not least or ISOLATIONS.index(isolation) >= ISOLATIONS.index(least)


def profile_of(share: Share) -> str:
    """Return the MIG profile of an offer; "" if not MIG."""
    if share.kind != "mig":
        return ""
    return share.profile or share.resource.removeprefix(MIG)


def profile_milli(profile: str) -> int | None:
    """Return the milli of a MIG profile in requests, in sevenths of a GPU; None if misspelt.

    A node charges the real size of the slice. The largest profile counts as a fraction too.
    """
    found = mig.profile(profile)
    if found is None:
        return None
    return min(found.slices * WHOLE_MILLI // mig.MOST_SLICES, WHOLE_MILLI - 1)


def profile_memory_mib(profile: str) -> int:
    """Return the memory in the name of a MIG profile; 0 if misspelt."""
    found = mig.profile(profile)
    return found.memory_mib if found is not None else 0


def takes_milli(share: Share, part: Part, gpu_memory_mib: int = 0) -> int:
    """Return the charge of this offer for a fraction.

    GPUs that are only allocated in fractions have one milli less than whole ones. Their units
    divide the rest, so that the last unit fits.
    """
    if not counted(share):
        grain = max(1, share.milli)
        if share.kind == "kai" and share.memory_mib:
            milli = -(-part.milli // grain) * grain
            by_memory = -(-part.memory_mib * WHOLE_MILLI // share.memory_mib)
            # KAI rounds down only below the memory of the GPU
            if part.memory_mib <= gpu_memory_mib:
                by_memory = min(by_memory, WHOLE_MILLI)
            return max(milli, by_memory)
        milli = -(-sized_milli(part, gpu_memory_mib) // grain) * grain
        return max(least_milli(share), milli)
    return piece_milli(share.milli)


def piece_milli(milli: int) -> int:
    """Return the charge of a unit of fixed size. All units of a GPU leave one milli: four quarters
    are 249 each.
    """
    pieces = max(1, WHOLE_MILLI // milli) if milli else 1
    return min(milli, (WHOLE_MILLI - 1) // pieces)


def charged_milli(
    part: Part,
    shares: Sequence[Share],
    gpu_memory_mib: int,
    index: int | None = None,
    *,
    fractions: bool = True,
) -> int:
    """Return the GPU milli that one pod is charged for one GPU of a node.

    ``index`` selects the GPU where offers differ by GPU; None = any. All limits, accounts and
    reports use this function. Example: ``Part(1, 8192)``, 8 GiB of memory, costs 500 on a GPU of 16
    GiB, 103 on a GPU of 80,000 MiB, and 333 on a node with replicas of a third. Whole GPUs, and
    nodes without ``fractions``, cost 1000. A fraction by memory also costs 1000, the maximum, if
    the GPU's memory is unknown (0).
    """
    if part.milli >= WHOLE_MILLI or not fractions:
        return WHOLE_MILLI
    if not shares and not part.memory_mib:
        return part.milli  # of most requests: no need to look further
    if index is not None and any(share.gpus for share in shares):
        shares = [share for share in shares if not share.gpus or index in share.gpus]
    share = enough(shares, part)
    if part.memory_mib and not gpu_memory_mib and (share is None or not counted(share)):
        return WHOLE_MILLI
    if share is None:
        return min(WHOLE_MILLI, sized_milli(part, gpu_memory_mib))
    return min(WHOLE_MILLI, takes_milli(share, part, gpu_memory_mib))


def least_milli(share: Share) -> int:
    """Return the minimum charge of a fraction on a GPU with a limited number of fractions.

    With a limit of 3 the charge is 330, so that a fourth does not fit.
    """
    if not share.parts:
        return 0
    grain = max(1, share.milli)
    least = WHOLE_MILLI // share.parts // grain * grain
    return least if least * (share.parts + 1) > WHOLE_MILLI else least + grain


def is_packed(shares: Sequence[Share]) -> bool:
    """Return whether the node's software fills the fullest GPU with enough capacity first. KAI does
    so, and HAMi is configured so. Then the engine must expect the same.
    """
    return any(share.kind in _DIVISIBLE for share in shares)


def sized_milli(part: Part, gpu_memory_mib: int) -> int:
    """Return the charge of a fraction of any size on a GPU with this memory (0 = unknown)."""
    if not part.memory_mib or not gpu_memory_mib:
        return part.milli
    return max(part.milli, -(-part.memory_mib * WHOLE_MILLI // gpu_memory_mib))


def counted(share: Share) -> bool:
    """Return whether the offer has a limited number of units."""
    return share.kind not in _DIVISIBLE and not (share.claim is not None and share.claim.divisible)


def asked_as(share: Share, pods: PodSet, gpu_memories_mib: Sequence[int]) -> dict[str, int]:
    """Return the extended resources with which a pod requests this offer.

    ``gpu_memories_mib``: memory of the possible GPUs. Empty for KAI's scheduler and for DRA.
    """
    if share.kind == "kai" or share.claim is not None:
        return {}
    if counted(share):
        return {share.resource: 1}
    milli = takes_milli(share, part_of(pods), min(gpu_memories_mib, default=0))
    if share.kind == "milli":
        return {share.resource: min(milli, WHOLE_MILLI)}
    asked = {NVIDIA: 1, HAMI_CORES: min(100, milli // 10)}  # percent
    # Without a memory resource HAMi grants the GPU's whole memory. With both it uses the first.
    if is_by_memory(pods, gpu_memories_mib, least_milli(share)):
        return asked | {HAMI_MEMORY: pods.gpu_memory_mib}
    return asked | {HAMI_MEMORY_PERCENT: min(100, milli // 10)}


def is_by_kais_memory(share: Share, pods: PodSet) -> bool:
    """Return whether the requested memory exceeds the fraction's share of KAI's memory."""
    percent = -(-pods.gpu_milli // 10)
    return 0 < share.memory_mib * percent // 100 < pods.gpu_memory_mib


def is_by_memory(pods: PodSet, gpu_memories_mib: Sequence[int], least_milli: int = 0) -> bool:
    """Return whether the requested memory exceeds the fraction's share of each GPU's memory."""
    most_mib = max(gpu_memories_mib, default=0)
    percent = -(-max(pods.gpu_milli, least_milli) // 10)
    return pods.gpu_memory_mib > most_mib * percent // 100
