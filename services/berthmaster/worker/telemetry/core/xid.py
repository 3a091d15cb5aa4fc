"""Meaning of the driver's XID errors.

An XID is the driver's number of a GPU error. Usually a program did something forbidden, and the GPU
is fine. Some mean an impaired GPU until a reset or replacement, and some a GPU on which nothing
runs until then. Example: 31 is a fault of the program, 79 a lost GPU. An unknown number counts as
an impaired GPU, because unknown must not look better.
"""

from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple


class Severity(Enum):
    """Severity of an XID for placement."""

    PASSING = "passing"  # a program's own fault, its ending, or mere news: the GPU goes on
    DEVICE = "device"  # impaired until a reset, or for good
    FATAL = "fatal"  # nothing runs until a reset or replacement: the GPU is lost


class Xid(NamedTuple):
    """One entry of the table."""

    severity: Severity
    meaning: str


_P, _D, _F = Severity.PASSING, Severity.DEVICE, Severity.FATAL
_WEIGHT: Final = MappingProxyType({_P: 0, _D: 1, _F: 2})

XIDS: Final = MappingProxyType(
    {
        8: Xid(_P, "a program ran past the driver's watchdog"),
        13: Xid(_P, "exception in a program's kernel"),
        31: Xid(_P, "a program touched memory that is not its own"),
        32: Xid(_P, "a program's command stream is broken"),
        38: Xid(_D, "firmware error"),
        43: Xid(_P, "a program's channel was stopped after a fault of its own"),
        44: Xid(_P, "fault while switching between programs"),
        45: Xid(_P, "a program's channels were cleaned up after it ended or failed"),
        46: Xid(_F, "the GPU stopped processing"),
        48: Xid(_D, "double-bit memory error"),
        54: Xid(_D, "auxiliary power is not connected"),
        61: Xid(_D, "breakpoint in the internal micro-controller"),
        62: Xid(_F, "halt of the internal micro-controller"),
        63: Xid(_D, "memory retired or remapped, in effect after a reset"),
        64: Xid(_D, "memory could not be retired or remapped"),
        68: Xid(_P, "exception in the video decoder"),
        69: Xid(_P, "a program used a graphics class wrongly"),
        74: Xid(_D, "NVLink error"),
        79: Xid(_F, "the GPU has fallen off the bus"),
        92: Xid(_D, "many single-bit memory errors"),
        94: Xid(_D, "memory error, contained to one program"),
        95: Xid(_F, "memory error that reached several programs"),
        109: Xid(_P, "switching between programs took too long"),
        119: Xid(_F, "the GPU's system processor does not answer"),
        120: Xid(_F, "error in the GPU's system processor"),
        121: Xid(_D, "error on the link between processor and GPU"),
        136: Xid(_D, "NVLink failed to start"),
        140: Xid(_F, "memory error that was not recovered"),
        143: Xid(_F, "the GPU failed to start"),
        **dict.fromkeys(range(144, 151), Xid(_D, "NVLink error")),
        # The recovery action is read and judged separately.
        154: Xid(_P, "the driver changed what it asks for to recover the GPU"),
    }
)


def look_up(number: int) -> Xid:
    """Return the entry of an XID; unknown ones are impairing."""
    return XIDS.get(number) or Xid(Severity.DEVICE, "not known to this agent")


def outweighs(number: int, known: int | None) -> bool:
    """Return whether an XID is worse than the known one. A transient XID never is, and lesser ones
    often follow a fatal one.
    """
    weight = _WEIGHT[look_up(number).severity]
    return weight > 0 and (known is None or weight >= _WEIGHT[look_up(known).severity])
