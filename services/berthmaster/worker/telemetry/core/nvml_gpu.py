"""One GPU under NVML: calls, their frequency, and handling of failures. Pure.

Fast values are read each time. Slow or rarely changing ones (limits, error counters, MIG, retired
memory) are read every `SLOW_S` and cached. An unsupported or forbidden call is skipped for
`DEAF_S`: eight GPUs with five failing calls a second would cost more than all successful ones.

A failed call gives None. Only a GPU without any answer is lost, with the driver's message, or a GPU
that the driver reports lost.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

import msgspec

from berthmaster.lib.messages.telemetry import GpuReading, MigInstance
from berthmaster.worker.telemetry.core.gpu_health import Signs, throttle_names, verdict
from berthmaster.worker.telemetry.core.nvml_counting import Counting
from berthmaster.worker.telemetry.core.nvml_driver import (
    Activity,
    Counters,
    FaultKind,
    Handle,
    Memory,
    Nvml,
    NvmlFault,
    Rates,
    Slice,
)
from berthmaster.worker.telemetry.core.nvml_processes import MIB, Processes, Whose
from berthmaster.worker.telemetry.core.slices import of_slices
from berthmaster.worker.telemetry.core.source import percent
from berthmaster.worker.telemetry.core.xid import outweighs

T = TypeVar("T")

SLOW_S: Final = 10.0
DEAF_S: Final = 60.0
NOT_COUNTED: Final = Activity(math.nan, math.nan)
MAX_MIG: Final = 16  # twice the maximum number of instances


class GpuGone(Exception):
    """This GPU does not answer; the text says why, for people."""


@dataclass
class _Slow:
    """Cached values of slow reads."""

    due_s: float
    power_limit_w: float | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    retirement_pending: bool | None = None
    retirement_failed: bool | None = None
    recovery_action: int | None = None
    mig: tuple[MigInstance, ...] = ()
    counted: Mapping[str, Callable[[Handle], Counters]] = field(default_factory=dict)  # by UUID


class Gpu:
    """A GPU as long as the agent lives: lost and found, it stays the same object."""

    def __init__(self, driver: Nvml, whose: Whose, index: int, uuid: str, model: str) -> None:
        self.index = index
        self.uuid = uuid
        self.model = model
        self.why_lost = "not opened yet"  # "" = not lost
        self.handle: Handle | None = None  # kept for a lost GPU, which may return under it
        self.processes = Processes(driver, self._ask, whose)
        self._counting = Counting(driver, self._ask)
        self._driver = driver
        self._xid: int | None = None
        self._device_xid: int | None = None
        self._device_xid_at_s = 0.0
        self._slow = _Slow(due_s=float("-inf"))
        self._deaf_until_s: dict[str, float] = {}
        self._now_s = 0.0
        self._answers = 0
        self._trouble = ""

    def attach(self, handle: Handle) -> None:
        """Set a new handle, and retry calls that failed under the old one."""
        self.handle = handle
        self._slow = _Slow(due_s=float("-inf"))
        self._deaf_until_s.clear()
        self._counting.begin()
        self.processes.begin()

    def lose(self, why: str) -> None:
        self.why_lost = why

    def find(self) -> None:
        """Note that it answers again. The reset also cleared the cause of an XID."""
        if self.why_lost:
            self.why_lost = ""
            self._device_xid = None

    def note_xid(self, xid: int, now_s: float) -> None:
        """Note an XID error."""
        self._xid = xid
        if outweighs(xid, self._device_xid):
            self._device_xid, self._device_xid_at_s = xid, now_s

    def lost_reading(self) -> GpuReading:
        """Return the known values of a lost GPU."""
        return GpuReading(
            index=self.index,
            uuid=self.uuid,
            model=self.model,
            health="lost",
            health_reason=self.why_lost,
            xid=self._xid,
        )

    def read(self, now_s: float) -> GpuReading:
        """Ask all that is due. Raises GpuGone, or NvmlFault of kind DRIVER_GONE; nothing else."""
        self._now_s, self._answers, self._trouble = now_s, 0, ""
        driver = self._driver
        # The newer call tells the driver's own reserve apart from what is used.
        memory = self._either("memory", driver.memory, driver.memory_v1)
        rates = self._ask("rates", driver.rates) or Rates(-1, -1)  # -1 is no percentage
        power_mw = self._ask("power", driver.power_mw)
        temperature_c = self._ask("temperature", driver.temperature_c)
        sm_clock = self._ask("sm clock", driver.sm_clock_mhz)
        memory_clock = self._ask("memory clock", driver.memory_clock_mhz)
        bits = self._either("clock reasons", driver.clock_reasons, driver.clock_reasons_v1)
        reasons = throttle_names(bits or 0)
        busy = percent(rates.gpu_percent)
        processes, pods, others = self.processes.read(now_s, busy)
        if self._answers == 0 and self._trouble:
            raise GpuGone(f"the driver answers nothing about it: {self._trouble}")
        slow = self._slow_lane(memory)
        activity = self._counting.read(now_s, slow.counted)
        active = activity.get(self.uuid, NOT_COUNTED)
        mig = tuple(_with_activity(one, activity.get(one.uuid)) for one in slow.mig)
        signs = Signs(
            xid=self._device_xid,
            xid_at_s=self._device_xid_at_s,
            ecc_uncorrected=slow.ecc_uncorrected,
            retirement_failed=slow.retirement_failed,
            retirement_pending=slow.retirement_pending,
            recovery_action=slow.recovery_action,
            throttle_reasons=reasons,
            named=bool(self.uuid),
        )
        health, why = verdict(signs, now_s)
        return GpuReading(
            index=self.index,
            uuid=self.uuid,
            model=self.model,
            health=health,
            health_reason=why,
            memory_total_mib=memory.total_bytes // MIB if memory else None,
            memory_used_mib=memory.used_bytes // MIB if memory else None,
            utilization_percent=of_slices(mig, self.model) if busy is None else busy,
            sm_active_percent=_rounded(active.sm_percent),
            tensor_active_percent=_rounded(active.tensor_percent),
            dram_active_percent=_rounded(active.dram_percent),
            pcie_bytes_per_s=_pcie(active.pcie_mib_per_s),
            memory_bandwidth_percent=percent(rates.memory_percent),
            power_w=None if power_mw is None else power_mw / 1000,
            power_limit_w=slow.power_limit_w,
            temperature_c=temperature_c,
            sm_clock_mhz=sm_clock,
            memory_clock_mhz=memory_clock,
            throttle_reasons=reasons,
            ecc_corrected=slow.ecc_corrected,
            ecc_uncorrected=slow.ecc_uncorrected,
            xid=self._xid,
            mig=mig,
            processes=processes,
            pods=pods,
            other_processes=others,
        )

    # A call

    def _ask(
        self, what: str, call: Callable[[Handle], T], handle: Handle | None = None
    ) -> T | None:
        """Return the answer or None. Only failures beyond this call are raised."""
        if self._deaf_until_s and self._deaf_until_s.get(what, 0.0) > self._now_s:
            return None
        asked = self.handle if handle is None else handle
        if asked is None:
            raise GpuGone("the driver has no handle for it")
        try:
            answer = call(asked)
        except NvmlFault as fault:
            match fault.kind:
                case FaultKind.GPU_LOST:
                    raise GpuGone(fault.why) from fault
                case FaultKind.DRIVER_GONE:
                    raise
                case FaultKind.UNSUPPORTED | FaultKind.FORBIDDEN:
                    self._deaf_until_s[what] = self._now_s + DEAF_S
                case FaultKind.TROUBLE:
                    self._trouble = fault.why
                case FaultKind.NOTHING:
                    self._answers += 1  # "nothing" is an answer
            return None
        self._answers += 1
        return answer

    # The fast lane

    def _either(
        self, what: str, newer: Callable[[Handle], T], older: Callable[[Handle], T]
    ) -> T | None:
        """The newer call's answer; where that is not to be had, the older one's."""
        answer = self._ask(what, newer)
        if answer is None and what in self._deaf_until_s:
            return self._ask(f"{what}, the old way", older)
        return answer

    # The slow lane

    def _slow_lane(self, memory: Memory | None) -> _Slow:
        if self._now_s < self._slow.due_s:
            return self._slow
        driver = self._driver
        limit_mw = self._ask("power limit", driver.power_limit_mw)
        rows = self._ask("remapped rows", driver.remapped_rows)
        pages = self._ask("retired pages", driver.retired_pages_pending) if rows is None else None
        self._slow = _Slow(
            due_s=self._now_s + SLOW_S,
            power_limit_w=None if limit_mw is None else limit_mw / 1000,
            ecc_corrected=self._ask("ecc corrected", driver.ecc_corrected),
            ecc_uncorrected=self._ask("ecc uncorrected", driver.ecc_uncorrected),
            retirement_pending=pages if rows is None else rows.pending,
            retirement_failed=None if rows is None else rows.failed,
            recovery_action=self._ask("recovery action", driver.recovery_action),
        )
        if self._ask("mig mode", driver.mig_enabled):
            self._cut(memory)
        elif self._ask("counters", driver.counts):
            self._slow.counted = {self.uuid: driver.count_gpu}
        return self._slow

    def _cut(self, memory: Memory | None) -> None:
        """Read MIG instances, and which of them have counters."""
        driver = self._driver
        places = min(self._ask("mig places", driver.mig_places) or 0, MAX_MIG)
        counts = self._ask("counters", driver.counts)
        within: dict[str, int] = {}
        found: list[MigInstance] = []
        for place in range(places):
            handle = self._mig_handle(place)
            instance = None if handle is None else self._mig_instance(handle, memory)
            if handle is None or instance is None:
                continue
            found.append(instance)
            number = self._ask("gpu instance", driver.gpu_instance, handle) if counts else None
            if number is not None:
                within[instance.uuid] = number
        # Counters are per GPU instance: several devices in one are indistinguishable.
        devices = Counter(within.values())
        self._slow.mig = tuple(found)
        self._slow.counted = {
            uuid: partial(_count_mig, driver, number)
            for uuid, number in within.items()
            if devices[number] == 1
        }

    def _mig_handle(self, place: int) -> Handle | None:
        driver = self._driver
        return self._ask(f"mig device {place}", lambda parent: driver.mig_device(parent, place))

    def _mig_instance(self, handle: Handle, memory: Memory | None) -> MigInstance | None:
        """Return an instance; None without an identity."""
        driver = self._driver
        uuid = self._ask("mig uuid", driver.uuid, handle)
        made_of = self._ask("mig slice", driver.mig_slice, handle)
        name = self._ask("mig name", driver.name, handle) or ""
        own = self._ask("mig memory", driver.memory_v1, handle)
        if uuid is None or (made_of is None and own is None):
            return None
        size_mib = made_of.memory_mib if made_of else own.total_bytes // MIB if own else 0
        return MigInstance(
            uuid=uuid,
            profile=profile_name(name, made_of, memory),
            memory_mib=size_mib,
            memory_used_mib=own.used_bytes // MIB if own else None,
        )


def _count_mig(driver: Nvml, number: int, parent: Handle) -> Counters:
    return driver.count_mig(parent, number)


def _rounded(value: float) -> float | None:
    return percent(round(value, 1))


def _pcie(mib_per_s: float) -> float | None:
    return float(round(mib_per_s * MIB)) if 0 <= mib_per_s < math.inf else None


def _with_activity(instance: MigInstance, activity: Activity | None) -> MigInstance:
    if activity is None:
        return instance
    return msgspec.structs.replace(
        instance,
        utilization_percent=_rounded(activity.engine_percent),
        sm_active_percent=_rounded(activity.sm_percent),
        tensor_active_percent=_rounded(activity.tensor_percent),
        dram_active_percent=_rounded(activity.dram_percent),
    )


def profile_name(name: str, made_of: Slice | None, parent: Memory | None) -> str:
    """Return the profile in the spelling of resources: from the driver's name, else computed. The
    size in a profile's name is the parent's memory, rounded up to whole GB, times its share in
    eighths.
    """
    _, found, profile = name.rpartition("MIG ")
    if found and profile.strip():
        return profile.strip()
    if made_of is None:
        return ""
    gpu, compute = made_of.gpu_slices, made_of.compute_slices
    cut = f"{compute}c.{gpu}g" if compute != gpu else f"{gpu}g"
    if parent is None or parent.total_bytes <= 0:
        return f"{cut}.{-(-made_of.memory_mib // 1024)}gb"
    eighths = -(-made_of.memory_mib * 8 * MIB // parent.total_bytes)
    whole_gb = -(-parent.total_bytes // (1024 * MIB))
    return f"{cut}.{round(eighths * whole_gb / 8)}gb"
