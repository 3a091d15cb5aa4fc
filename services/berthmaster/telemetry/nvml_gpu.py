"""One GPU under NVML: which calls are made, how often, and what becomes of their refusals.

Two lanes. What changes from second to second is asked at every read. What changes seldom or is slow
to answer (limits, error counters, MIG, retired memory) is asked every `SLOW_S` and remembered. A
call that this GPU does not support, or that we are not allowed, is left alone for `DEAF_S`: eight
GPUs that each refuse five calls a second would cost more than all that they answer.

A refused call gives None for its figure. Only a GPU that answers nothing at all is lost, with the
driver's own words; so is one for which the driver says so. Pure.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from berthmaster.messages.telemetry import GpuPodUse, GpuProcess, GpuReading, MigInstance
from berthmaster.telemetry.gpu_health import Signs, throttle_names, verdict
from berthmaster.telemetry.nvml_driver import (
    FaultKind,
    Handle,
    Memory,
    Nvml,
    NvmlFault,
    Process,
    Rates,
    Slice,
)
from berthmaster.telemetry.source import percent
from berthmaster.telemetry.xid import Severity, look_up

T = TypeVar("T")
PodOf = Callable[[int], str | None]
ProcessKind = Literal["compute", "graphics", "mps"]

SLOW_S: Final = 10.0
DEAF_S: Final = 60.0
MIB: Final = 1024 * 1024
# Those with the most memory are told one by one, all of them by pod: a node of eight GPUs stays
# below the 64 KiB that the door passes on.
MAX_PROCESSES: Final = 32
MAX_PODS: Final = 32
MAX_MIG: Final = 16  # twice what any GPU can be cut into


class GpuGone(Exception):
    """This GPU does not answer; the text says why, for people."""


@dataclass
class _Slow:
    """What was learned in the slow lane."""

    due_s: float
    power_limit_w: float | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    retirement_pending: bool | None = None
    retirement_failed: bool | None = None
    recovery_action: int | None = None
    mig: tuple[MigInstance, ...] = ()


class Gpu:
    """A GPU as long as the agent lives: lost and found, it stays the same object."""

    def __init__(self, driver: Nvml, pod_of: PodOf, index: int, uuid: str, model: str) -> None:
        self.index = index
        self.uuid = uuid
        self.model = model
        self.why_lost = "not opened yet"  # "" = not lost
        self.handle: Handle | None = None  # kept when it is lost: it may come back under the same
        self._driver = driver
        self._pod_of = pod_of
        self._xid: int | None = None
        self._device_xid: int | None = None
        self._device_xid_at_s = 0.0
        self._slow = _Slow(due_s=float("-inf"))
        self._deaf_until_s: dict[str, float] = {}
        self._sampled_us = 0
        self._now_s = 0.0
        self._answers = 0
        self._trouble = ""

    def attach(self, handle: Handle) -> None:
        """The driver has named it anew: what an earlier handle refused may be answered now."""
        self.handle = handle
        self._slow = _Slow(due_s=float("-inf"))
        self._deaf_until_s.clear()
        self._sampled_us = 0

    def lose(self, why: str) -> None:
        """It does not answer any more."""
        self.why_lost = why

    def find(self) -> None:
        """It answers again. What reset it has also cleared whatever an XID had told of."""
        if self.why_lost:
            self.why_lost = ""
            self._device_xid = None

    def note_xid(self, xid: int, now_s: float) -> None:
        """The driver has reported an XID error on it."""
        self._xid = xid
        if look_up(xid).severity is Severity.DEVICE:
            self._device_xid, self._device_xid_at_s = xid, now_s

    def lost_reading(self) -> GpuReading:
        """What is still known of it."""
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
        processes, pods, others = self._processes()
        if self._answers == 0 and self._trouble:
            raise GpuGone(f"the driver answers nothing about it: {self._trouble}")
        slow = self._slow_lane(memory)
        signs = Signs(
            xid=self._device_xid,
            xid_at_s=self._device_xid_at_s,
            ecc_uncorrected=slow.ecc_uncorrected,
            retirement_failed=slow.retirement_failed,
            retirement_pending=slow.retirement_pending,
            recovery_action=slow.recovery_action,
            throttle_reasons=reasons,
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
            utilization_percent=percent(rates.gpu_percent),
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
            mig=slow.mig,
            processes=processes,
            pods=pods,
            other_processes=others,
        )

    # One call

    def _ask(
        self, what: str, call: Callable[[Handle], T], handle: Handle | None = None
    ) -> T | None:
        """The answer or None; only what concerns more than this one call is raised."""
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

    def _processes(self) -> tuple[tuple[GpuProcess, ...], tuple[GpuPodUse, ...], int]:
        """Those with the most memory, all of them by pod, and how many are in none."""
        driver = self._driver
        lists: tuple[tuple[ProcessKind, Sequence[Process]], ...] = (
            ("mps", self._ask("mps processes", driver.mps_processes) or ()),
            ("compute", self._ask("compute processes", driver.compute_processes) or ()),
            ("graphics", self._ask("graphics processes", driver.graphics_processes) or ()),
        )
        used: dict[tuple[int, ProcessKind], int | None] = {}
        for kind, processes in lists:
            for process in processes:
                key = (process.pid, kind)
                if key in used:  # one entry per MIG instance that it is in
                    used[key] = _sum(used[key], process.used_bytes)
                elif kind != "compute" or (process.pid, "mps") not in used:
                    used[key] = process.used_bytes
        if not used:
            return (), (), 0
        shares = self._shares()
        by_memory = sorted(used.items(), key=lambda item: item[1] or 0, reverse=True)
        pod_of = {pid: self._pod_of(pid) for pid in dict.fromkeys(pid for (pid, _), _ in by_memory)}
        told = tuple(
            GpuProcess(
                pid=pid,
                kind=kind,
                memory_mib=None if used_bytes is None else used_bytes // MIB,
                sm_percent=shares.get(pid),
                pod_uid=pod_of[pid],
            )
            for (pid, kind), used_bytes in sorted(by_memory[:MAX_PROCESSES])
        )
        memory: dict[int, int | None] = {}
        for (pid, _), used_bytes in used.items():  # a process may compute and draw
            memory[pid] = _sum(memory[pid], used_bytes) if pid in memory else used_bytes
        return told, *_by_pod(memory, shares, pod_of)

    def _shares(self) -> dict[int, float]:
        """What each process used of the GPU since we last asked: the mean of the samples."""
        since_us = self._sampled_us
        samples = self._ask(
            "process samples", lambda handle: self._driver.process_samples(handle, since_us)
        )
        sums: dict[int, tuple[int, int]] = {}
        for sample in samples or ():
            # A driver with nothing to tell has been seen to send old or absurd entries.
            if sample.at_us > since_us and percent(sample.sm_percent) is not None:
                total, count = sums.get(sample.pid, (0, 0))
                sums[sample.pid] = (total + sample.sm_percent, count + 1)
                self._sampled_us = max(self._sampled_us, sample.at_us)
        return {pid: round(total / count, 1) for pid, (total, count) in sums.items()}

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
            mig=self._mig(memory),
        )
        return self._slow

    def _mig(self, memory: Memory | None) -> tuple[MigInstance, ...]:
        if not self._ask("mig mode", self._driver.mig_enabled):
            return ()
        places = min(self._ask("mig places", self._driver.mig_places) or 0, MAX_MIG)
        found = (self._mig_instance(place, memory) for place in range(places))
        return tuple(instance for instance in found if instance is not None)

    def _mig_instance(self, place: int, memory: Memory | None) -> MigInstance | None:
        """The instance at this place; None for one that is not there, or that has no identity."""
        driver = self._driver
        handle = self._ask(f"mig device {place}", lambda parent: driver.mig_device(parent, place))
        if handle is None:
            return None
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


def profile_name(name: str, made_of: Slice | None, parent: Memory | None) -> str:
    """The profile as resources spell it: what the driver calls the device, else what it is made of.

    The size in a profile's name is no measurement: it is the parent's size, rounded up to whole GB,
    times the share of memory, in eighths.
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


def _by_pod(
    memory: Mapping[int, int | None], shares: Mapping[int, float], pod_of: Mapping[int, str | None]
) -> tuple[tuple[GpuPodUse, ...], int]:
    """What the processes of each pod have together, and how many processes are in none."""
    pids: dict[str, list[int]] = {}
    others = 0
    for pid, uid in pod_of.items():
        if uid is None:
            others += 1
        else:
            pids.setdefault(uid, []).append(pid)
    found = []
    for uid, own in pids.items():
        used = [memory[pid] for pid in own]
        known = [each for each in used if each is not None]
        told = [shares[pid] for pid in own if pid in shares]
        found.append(
            GpuPodUse(
                pod_uid=uid,
                processes=len(own),
                memory_mib=sum(known) // MIB if len(known) == len(used) else None,
                sm_percent=min(100.0, round(sum(told), 1)) if told else None,
            )
        )
    found.sort(key=lambda use: (-(use.memory_mib or 0), use.pod_uid))
    return tuple(found[:MAX_PODS]), others


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other
