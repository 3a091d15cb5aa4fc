"""Which values a GPU can have: one table for all sources. Pure.

A driver or an exporter that reports 2 PB of used memory, or -3 W, does not know. Such a value
becomes None, "not measured", and is named in the agent's log, in ``lacks`` of the node's message
and in the metric ``values_refused``. For example ``utilization_percent=900`` becomes None, and
``memory_used_mib=90_000`` does on a GPU of 81,559 MiB.
"""

from typing import Any, Final

from msgspec import structs

from berthmaster.lib.messages.telemetry import MAX_MODEL_CHARS, GpuReading
from berthmaster.lib.profiles.metrics import RATE, Bounds

MEMORY_MIB: Final = Bounds(0, 4 * 1024 * 1024)  # 4 TiB, several times any GPU's memory
PERCENT: Final = Bounds(0, 100)
SHARE: Final = Bounds(0, 1.0005)  # profiling counters round
POWER_W: Final = Bounds(0, 10_000)
TEMPERATURE_C: Final = Bounds(-50, 150)  # GPUs switch off far below
CLOCK_MHZ: Final = Bounds(0, 100_000)
BYTES_PER_S: Final = RATE
COUNT: Final = Bounds(0, 2**53)  # larger numbers are inexact in other languages
XID: Final = Bounds(0, 9_999)
MAX_INDEX: Final = 1023  # of a GPU on its node

_OF_READING: Final = (
    ("memory_total_mib", MEMORY_MIB),
    ("memory_used_mib", MEMORY_MIB),
    ("utilization_percent", PERCENT),
    ("sm_active_percent", PERCENT),
    ("tensor_active_percent", PERCENT),
    ("dram_active_percent", PERCENT),
    ("pcie_bytes_per_s", BYTES_PER_S),
    ("memory_bandwidth_percent", PERCENT),
    ("power_w", POWER_W),
    ("power_limit_w", POWER_W),
    ("temperature_c", TEMPERATURE_C),
    ("sm_clock_mhz", CLOCK_MHZ),
    ("memory_clock_mhz", CLOCK_MHZ),
    ("ecc_corrected", COUNT),
    ("ecc_uncorrected", COUNT),
    ("xid", XID),
)
_OF_PART: Final = (  # of a MIG instance, a process, a pod
    ("memory_used_mib", MEMORY_MIB),
    ("utilization_percent", PERCENT),
    ("sm_active_percent", PERCENT),
    ("tensor_active_percent", PERCENT),
    ("dram_active_percent", PERCENT),
    ("sm_percent", PERCENT),
)


def plausible(reading: GpuReading) -> tuple[GpuReading, list[str]]:
    """Return the sample without impossible values, and those values."""
    refused = _refused(reading, _OF_READING)
    used, total = reading.memory_used_mib, reading.memory_total_mib
    if used is not None and total and "memory_total_mib" not in refused and used > total:
        refused.setdefault("memory_used_mib", used)
    named = [f"{name} of GPU {reading.index} is {value:g}" for name, value in refused.items()]
    changed: dict[str, Any] = dict.fromkeys(refused)
    if len(reading.model) > MAX_MODEL_CHARS:
        changed["model"] = reading.model[:MAX_MODEL_CHARS]
    for kind in ("mig", "processes", "pods"):
        parts = getattr(reading, kind)
        if not parts:
            continue
        right = []
        for part in parts:
            wrong = _refused(part, _OF_PART)
            if (
                kind != "mig"
                and (held := part.memory_mib) is not None
                and not MEMORY_MIB.hold(held)
            ):
                wrong["memory_mib"] = held
            named += [
                f"{name} of {kind} on GPU {reading.index} is {value:g}"
                for name, value in wrong.items()
            ]
            right.append(structs.replace(part, **dict.fromkeys(wrong)) if wrong else part)
        if any(one is not other for one, other in zip(parts, right, strict=True)):
            changed[kind] = tuple(right)
    return (structs.replace(reading, **changed) if changed else reading), named


def _refused(of: Any, bounds: tuple[tuple[str, Bounds], ...]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, each in bounds:
        value = getattr(of, name, None)
        if value is not None and not each.hold(value):
            found[name] = value
    return found
