"""When a GPU is closed to new pods because of its telemetry, and when opened. Pure.

``follow`` takes one sample of one GPU. A lost GPU, or one with uncorrectable memory errors, is
closed at once. A GPU throttled by its own hardware is closed after ``throttle_s``. A closed GPU
opens after ``heal_s`` of healthy samples without a gap. Missing telemetry proves nothing, neither
way.

Example (heal_s=600): lost at 12:00, closed. Healthy at 12:10, and at 12:15 telemetry is missing for
a minute. Healthy from 12:16 on: the GPU opens at 12:26.

Rules:

- ``since_s`` is the time of the newest sign: the fault itself, one more memory error, or the same
  fault after the GPU was healthy. An operator who opens a GPU overrides earlier signs
  (lib/engine/fleet/clusters.py).
- The agent judges health. A sample with health ``ok`` has no sign at all.
"""

from typing import Final

import msgspec

from berthmaster.lib.messages.fleet import ClosedGpu, GpuFault
from berthmaster.lib.messages.telemetry import HARDWARE_THROTTLES, GpuReading

THROTTLE_GAP_S: Final = 60.0  # a shorter time at full speed does not end a period of throttling
_WORDS: Final[dict[GpuFault, str]] = {
    "lost": "lost",
    "ecc": "uncorrectable memory errors",
    "throttled": "throttled for long",
}


class FaultRules(msgspec.Struct, frozen=True):
    heal_s: float = 600.0  # until a GPU that is healthy again takes pods
    throttle_s: float = 900.0  # of throttling by hardware, until the GPU is closed


class GpuState(msgspec.Struct, frozen=True):
    """State of a GPU that is closed, or throttled now."""

    fault: GpuFault | None = None  # None: open
    since_s: float = 0.0
    reason: str = ""
    errors: int | None = None  # uncorrectable memory errors so far, None: unknown
    well_since_s: float | None = None  # of a closed GPU, None: not healthy
    slow_since_s: float | None = None  # None: at full speed
    slow_until_s: float = 0.0  # newest throttled sample

    def closed(self, index: int) -> ClosedGpu | None:
        """Return the entry in the score, or None if the GPU is open."""
        if self.fault is None:
            return None
        return ClosedGpu(index=index, fault=self.fault, since_s=self.since_s, reason=self.reason)


def recalled(gpu: ClosedGpu) -> GpuState:
    """Return the state published by an earlier scorer."""
    return GpuState(fault=gpu.fault, since_s=gpu.since_s, reason=gpu.reason)


def follow(
    known: GpuState | None, gpu: GpuReading, now_s: float, rules: FaultRules, *, gap: bool
) -> GpuState | None:
    """Return the state after a sample. None: open and healthy. ``gap``: telemetry was missing
    before the sample, so the time between is unknown.
    """
    state = known or GpuState()
    if gap:
        state = msgspec.structs.replace(state, well_since_s=None, slow_since_s=None)
    if known is not None or gpu.health != "ok":
        state = _slowed(state, gpu, now_s)
    sign = _sign(state, gpu, now_s, rules)
    if sign is not None:
        return _closed(state, sign, gpu, now_s)
    if state.fault is None:
        return state if state.slow_since_s is not None else None
    well_s = now_s if state.well_since_s is None else state.well_since_s
    if now_s - well_s < rules.heal_s:
        return msgspec.structs.replace(state, well_since_s=well_s)
    if state.slow_since_s is None:
        return None
    return GpuState(slow_since_s=state.slow_since_s, slow_until_s=state.slow_until_s)


def unseen(state: GpuState) -> GpuState | None:
    """Return the state of a GPU missing in its node's telemetry."""
    if state.fault is None:
        return None
    return msgspec.structs.replace(state, well_since_s=None, slow_since_s=None)


def shifted(state: GpuState, by_s: float) -> GpuState:
    """Return the state after a clock change. ``since_s`` is published and stays."""
    well_s, slow_s = state.well_since_s, state.slow_since_s
    return msgspec.structs.replace(
        state,
        well_since_s=None if well_s is None else well_s + by_s,
        slow_since_s=None if slow_s is None else slow_s + by_s,
        slow_until_s=state.slow_until_s + by_s,
    )


def _slowed(state: GpuState, gpu: GpuReading, now_s: float) -> GpuState:
    if gpu.health != "ok" and any(name in gpu.throttle_reasons for name in HARDWARE_THROTTLES):
        since_s = now_s if state.slow_since_s is None else state.slow_since_s
        return msgspec.structs.replace(state, slow_since_s=since_s, slow_until_s=now_s)
    if state.slow_since_s is not None and now_s - state.slow_until_s >= THROTTLE_GAP_S:
        return msgspec.structs.replace(state, slow_since_s=None)
    return state


def _sign(state: GpuState, gpu: GpuReading, now_s: float, rules: FaultRules) -> GpuFault | None:
    if gpu.health == "lost":
        return "lost"
    if gpu.health != "ok" and gpu.ecc_uncorrected:
        return "ecc"
    if state.slow_since_s is None:
        return None
    lasts = state.slow_until_s == now_s and now_s - state.slow_since_s >= rules.throttle_s
    return "throttled" if lasts or state.fault == "throttled" else None


def _closed(state: GpuState, sign: GpuFault, gpu: GpuReading, now_s: float) -> GpuState:
    errors = gpu.ecc_uncorrected if gpu.ecc_uncorrected is not None else state.errors
    more = state.errors is not None and errors is not None and errors > state.errors
    is_new = sign != state.fault or state.well_since_s is not None or more
    words = _WORDS[sign]
    reason = gpu.health_reason or words
    return msgspec.structs.replace(
        state,
        fault=sign,
        since_s=now_s if is_new else state.since_s,
        reason=reason if is_new else state.reason,
        errors=errors,
        well_since_s=None,
    )
