"""The health of a GPU, from the driver's signs. Pure.

All sources use this function, so NVML and dcgm-exporter agree. A GPU without an answer has no
signs, and its source reports it lost. A fatal XID, such as 79, also makes a GPU lost, even while
samples arrive. The worst sign comes first, because one reason is shown.
"""

from typing import Final, NamedTuple

from berthmaster.lib.messages.telemetry import HARDWARE_THROTTLES, GpuHealth
from berthmaster.worker.telemetry.core.xid import Severity, look_up

# After this time a driver that names no recovery action overrides an XID: long enough for the
# driver to notice, short enough not to avoid a repaired GPU for a day.
XID_SETTLES_S: Final = 300.0

THROTTLE_REASONS: Final = (
    (0x001, "gpu_idle"),
    (0x002, "clocks_setting"),
    (0x004, "sw_power_cap"),
    (0x008, "hw_slowdown"),
    (0x010, "sync_boost"),
    (0x020, "sw_thermal_slowdown"),
    (0x040, "hw_thermal_slowdown"),
    (0x080, "hw_power_brake"),
    (0x100, "display_clocks"),
    (0x200, "board_limit"),
    (0x400, "reliability"),
)
_SLOWED_BY: Final = {
    "hw_power_brake": "the power supply",
    "hw_thermal_slowdown": "heat",
    "hw_slowdown": "the hardware",
}

NO_UUID: Final = "its source reports no UUID of it"
# Recovery actions that a driver may request.
RECOVERY: Final = {
    1: "a reset of the GPU",
    2: "a reboot of the node",
    3: "an end to peer-to-peer traffic",
    4: "to be drained, then reset",
    5: "a recovery of its IMEX domain",
    6: "a reset of its bus",
    7: "a reboot of the system",
}


class Signs(NamedTuple):
    """Known signs of one GPU. None is unknown and never counts against it."""

    xid: int | None = None  # newest XID that is not transient, since transient ones often follow
    xid_at_s: float = 0.0
    ecc_uncorrected: int | None = None
    retirement_failed: bool | None = None  # memory rows could not be remapped
    retirement_pending: bool | None = None  # rows or pages wait for a reset
    recovery_action: int | None = None  # 0 = the driver asks for nothing
    throttle_reasons: tuple[str, ...] = ()
    named: bool = True  # False: no UUID, so the GPU is not identified


def throttle_names(bits: int) -> tuple[str, ...]:
    """Return the names of the driver's bit mask; an unknown bit keeps its number."""
    if bits == 0:
        return ()
    names = [name for bit, name in THROTTLE_REASONS if bits & bit]
    if rest := bits & ~0x7FF:
        names.append(f"0x{rest:x}")
    return tuple(names)


def verdict(signs: Signs, now_s: float) -> tuple[GpuHealth, str]:
    """Return the health and, unless ok, the reason."""
    by_xid = _xid(signs, now_s)
    if by_xid and signs.xid is not None and look_up(signs.xid).severity is Severity.FATAL:
        return "lost", by_xid
    if signs.recovery_action:
        asked = RECOVERY.get(signs.recovery_action, f"recovery action {signs.recovery_action}")
        return "degraded", f"the driver asks for {asked}"
    if signs.retirement_failed:
        return "degraded", "memory rows could not be remapped: the GPU needs replacing"
    if by_xid:
        return "degraded", by_xid
    if signs.retirement_pending:
        return "degraded", "memory waits to be retired: the GPU needs a reset"
    if signs.ecc_uncorrected:
        return "degraded", f"{signs.ecc_uncorrected} uncorrected memory errors"
    for name in HARDWARE_THROTTLES:
        if name in signs.throttle_reasons:
            return "degraded", f"slowed down by {_SLOWED_BY[name]}"
    if not signs.named:
        return "degraded", NO_UUID
    return "ok", ""


def _xid(signs: Signs, now_s: float) -> str:
    if signs.xid is None:
        return ""
    entry = look_up(signs.xid)
    if entry.severity is Severity.PASSING:
        return ""
    cleared = signs.recovery_action == 0 and now_s - signs.xid_at_s > XID_SETTLES_S
    return "" if cleared else f"XID {signs.xid}: {entry.meaning}"
