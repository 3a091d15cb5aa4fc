"""Why a Workload has no quota, as a family: what is to be thought of it, whichever Kueue says it.

Up to 0.19 QuotaReserved=False has two reasons, ``Pending`` and ``Inadmissible``, and only the
message tells a full queue from one that is too small. From 0.20 on the reasons are finer. Reasons
that are known by themselves decide; the others, those of Kueues to come among them, leave it to
the message, and one that says nothing known either is ``UNDECIDED``: it waits, as it would without
this file. Pure.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Family(StrEnum):
    """What waiting there is good for."""

    BUSY = "busy"  # what it asks for is taken now
    HOPELESS = "hopeless"  # time alone will not change it
    UNDECIDED = "undecided"  # nothing is known of it


_FAMILIES: Final[Mapping[str, Family]] = MappingProxyType(
    {
        "Inadmissible": Family.HOPELESS,  # up to 0.19: a queue that is missing, stopped, inactive
        "ExceedsMaxQuota": Family.HOPELESS,
        "Misconfigured": Family.HOPELESS,
        "NoMatchingFlavor": Family.HOPELESS,
        "Suspended": Family.HOPELESS,
        "TopologyPlacementFailed": Family.BUSY,
        "WaitingForPodsReady": Family.BUSY,
        "WaitingForPreemptedWorkloads": Family.BUSY,
        "WaitingForQuota": Family.BUSY,
    }
)
# Words of messages, for reasons that say less; what is hopeless counts first.
_HOPELESS_WORDS: Final = (
    "maximum capacity",
    "doesn't exist",
    "does not exist",
    "is inactive",
    "is stopped",
    "unavailable in ClusterQueue",
    "not found",
)
_BUSY_WORDS: Final = ("insufficient",)


def family_of(reason: str, message: str) -> Family:
    """Of a copy, or of a Workload, that has no quota."""
    known = _FAMILIES.get(reason)
    if known is not None:
        return known
    if any(words in message for words in _HOPELESS_WORDS):
        return Family.HOPELESS
    if any(words in message for words in _BUSY_WORDS):
        return Family.BUSY
    return Family.UNDECIDED
