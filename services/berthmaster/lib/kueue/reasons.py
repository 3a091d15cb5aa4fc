"""Families of reasons why a Workload has no quota, the same for every Kueue version. Pure.

Up to 0.19 QuotaReserved=False has two reasons, ``Pending`` and ``Inadmissible``. Only the message
distinguishes a full queue from a too small one. From 0.20 on the reasons are finer. A specific
reason decides by itself. For any other reason, future ones included, the message decides. Without a
known message the family is ``UNDECIDED``, and the Workload waits.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Family(StrEnum):
    """Whether waiting can help."""

    BUSY = "busy"  # the requested quota is in use now
    HOPELESS = "hopeless"  # waiting alone cannot help
    UNDECIDED = "undecided"  # unknown reason


_FAMILIES: Final[Mapping[str, Family]] = MappingProxyType(
    {
        "Inadmissible": Family.HOPELESS,  # up to 0.19: queue missing, stopped or inactive
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
# Messages of unspecific reasons. Hopeless ones are matched first.
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
    """Return the family of a Workload or copy without quota."""
    known = _FAMILIES.get(reason)
    if known is not None:
        return known
    if any(words in message for words in _HOPELESS_WORDS):
        return Family.HOPELESS
    if any(words in message for words in _BUSY_WORDS):
        return Family.BUSY
    return Family.UNDECIDED
