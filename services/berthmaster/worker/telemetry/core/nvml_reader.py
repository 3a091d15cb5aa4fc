"""All GPUs of this machine under NVML, with losses and recoveries. Pure.

A GPU can fall off the bus while jobs run on others, and the driver can be unloaded or replaced.
Neither raises. Each GPU seen once stays reported as lost, with reason and identity, until it
answers again or another GPU takes its place.

While a GPU is lost, the reader tries with growing pauses: first the old handle, then a new
enumeration, which needs the driver closed and opened, because a reset or added device is invisible
otherwise. ``now_s`` never goes back.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from berthmaster.lib.messages.telemetry import GpuReading, TelemetrySource
from berthmaster.lib.runtime.backoff import Backoff
from berthmaster.worker.telemetry.core.nvml_driver import FaultKind, Handle, Nvml, NvmlFault
from berthmaster.worker.telemetry.core.nvml_gpu import Gpu, GpuGone
from berthmaster.worker.telemetry.core.pods import Pods
from berthmaster.worker.telemetry.core.source import NodeReading, SourceAbsent

# Opening the driver takes from milliseconds to seconds; a GPU that is dead stays so for days.
RETRY: Final = Backoff(first_s=1.0, most_s=120.0, factor=2.0, jitter=0.0)
# Time without faults after which a loss is a new one.
STEADY_S: Final = 120.0
EVENTS_RETRY_S: Final = 10.0
MAX_EVENTS: Final = 64  # at one read; more are left for the next
NOT_LISTED: Final = "the driver does not list it any more"


class _NoChance:
    def random(self) -> float:
        return 0.0


class _Found(NamedTuple):
    """A GPU in the driver's present list."""

    place: int
    handle: Handle
    uuid: str
    model: str


class NvmlReader:
    """A source (source.py) on top of a driver (nvml_driver.py)."""

    kind: TelemetrySource = "nvml"

    def __init__(self, driver: Nvml, pods: Pods) -> None:
        self._driver = driver
        self._pods = pods
        self._gpus: list[Gpu] = []
        self._driver_gone = ""  # reason; "" while it answers
        self._failures = 0
        self._retry_at_s = 0.0
        self._well_since_s = 0.0
        self._events_open = False
        self._events_at_s = 0.0

    def open(self, now_s: float) -> str:
        """Open the driver, list the GPUs, and return its version. Raises SourceAbsent."""
        try:
            self._driver.start()
            self._list()
        except NvmlFault as fault:
            raise SourceAbsent(f"no usable NVIDIA driver: {fault.why}") from fault
        self._well_since_s = now_s
        try:
            return self._driver.driver_version()
        except NvmlFault:
            return "unknown"

    def close(self) -> None:
        """Let go of the driver."""
        try:
            self._driver.stop()
        except NvmlFault:
            pass  # gone already

    def read(self, now_s: float) -> tuple[NodeReading, ...]:
        """Return every present or lost GPU. Never raises."""
        if self._troubled() and now_s >= self._retry_at_s:
            self._recover(now_s)
        self._poll_events(now_s)
        self._pods.begin()
        readings = [self._read_gpu(gpu, now_s) for gpu in self._gpus]
        if self._driver_gone:  # found out in the middle: the first ones are gone as well
            readings = [gpu.lost_reading() for gpu in self._gpus]
        self._keep_pace(now_s)
        return (NodeReading("", tuple(readings), self._lacks(readings)),)

    def _lacks(self, readings: Sequence[GpuReading]) -> tuple[str, ...]:
        pods, lacks = self._pods, []
        if pods.unreadable and not any(reading.pods for reading in readings):
            why = f"whose processes they are: {pods.unreadable} cannot be looked up; is the host's "
            lacks.append(why + "/proc mounted, and are its process ids shared?")
        if any(gpu.processes.told_together for gpu in self._gpus if not gpu.why_lost):
            lacks.append(
                "what each of several clients of MPS does: the driver tells it of all together"
            )
        return tuple(lacks)

    def _read_gpu(self, gpu: Gpu, now_s: float) -> GpuReading:
        if not gpu.why_lost:
            try:
                return gpu.read(now_s)
            except GpuGone as gone:
                gpu.lose(str(gone))
            except NvmlFault as fault:
                self._lose_driver(fault.why)
        return gpu.lost_reading()

    # Losing and finding

    def _troubled(self) -> bool:
        return bool(self._driver_gone) or any(gpu.why_lost for gpu in self._gpus)

    def _lose_driver(self, why: str) -> None:
        self._driver_gone = f"the NVIDIA driver does not answer: {why}"
        self._events_open = False
        for gpu in self._gpus:
            gpu.lose(self._driver_gone)

    def _keep_pace(self, now_s: float) -> None:
        """Decide when to try again, after a read."""
        if not self._troubled():
            if now_s - self._well_since_s > STEADY_S:
                self._failures = 0
            return
        self._well_since_s = now_s
        if now_s >= self._retry_at_s:
            self._failures += 1
            self._retry_at_s = now_s + RETRY.delay_s(self._failures, _NoChance())

    def _recover(self, now_s: float) -> None:
        """Try to recover lost GPUs. The others keep their reasons."""
        self._events_open, self._events_at_s = False, now_s  # watches recovered GPUs too
        if not self._driver_gone:
            for gpu in self._gpus:
                if gpu.why_lost and gpu.handle is not None:
                    self._probe(gpu, now_s)
            if not self._troubled():
                return
        try:
            try:
                self._driver.stop()
            except NvmlFault:
                pass  # nothing left to close
            self._driver.start()
            self._driver_gone = ""
            self._list()
        except NvmlFault as fault:
            self._lose_driver(fault.why)

    def _probe(self, gpu: Gpu, now_s: float) -> None:
        """Try a lost GPU's old handle."""
        try:
            gpu.read(now_s)
            gpu.find()
        except GpuGone as gone:
            gpu.lose(str(gone))
        except NvmlFault as fault:
            self._lose_driver(fault.why)

    # Listing

    def _list(self) -> None:
        """Match the driver's list with known GPUs. Raises NvmlFault if there is no list."""
        found: list[_Found] = []
        broken: list[tuple[int, str]] = []
        for place in range(self._driver.count()):
            try:
                found.append(self._look(place))
            except NvmlFault as fault:
                if fault.kind is FaultKind.DRIVER_GONE:
                    raise
                broken.append((place, fault.why))
        unmatched = {gpu.uuid: gpu for gpu in self._gpus if gpu.uuid}
        newcomers: list[_Found] = []
        for one in found:
            known = unmatched.pop(one.uuid, None)
            if known is None:
                newcomers.append(one)
            else:
                self._attach(known, one)
        absent = list(unmatched.values())
        for gpu in absent:
            gpu.handle = None
            gpu.lose(NOT_LISTED)
        self._gpus = [gpu for gpu in self._gpus if gpu.uuid]  # the nameless are named below
        for one in newcomers:
            self._take_in(one, absent)
        for place, why in broken:
            self._mark_broken(place, why, absent)
        self._gpus.sort(key=lambda gpu: gpu.index)

    def _look(self, place: int) -> _Found:
        handle = self._driver.device(place)
        uuid = self._driver.uuid(handle)
        try:
            model = self._driver.name(handle)
        except NvmlFault as fault:
            if fault.kind in (FaultKind.DRIVER_GONE, FaultKind.GPU_LOST):
                raise
            model = ""
        return _Found(place, handle, uuid, model)

    def _attach(self, gpu: Gpu, found: _Found) -> None:
        gpu.model = found.model or gpu.model
        gpu.attach(found.handle)
        gpu.find()

    def _take_in(self, found: _Found, absent: list[Gpu]) -> None:
        """Add a new GPU. An absent GPU with its index was replaced."""
        for gpu in absent:
            if gpu.index == found.place:
                absent.remove(gpu)
                self._gpus.remove(gpu)
                break
        gpu = Gpu(self._driver, self._pods, self._free_index(found.place), found.uuid, "")
        self._attach(gpu, found)
        self._gpus.append(gpu)

    def _mark_broken(self, place: int, why: str, absent: list[Gpu]) -> None:
        """Mark an index without identity, probably an absent GPU."""
        for gpu in absent:
            if gpu.index == place:
                absent.remove(gpu)
                gpu.lose(why)
                return
        if absent:  # the driver's order has moved
            absent.pop(0).lose(why)
            return
        gpu = Gpu(self._driver, self._pods, self._free_index(place), "", "")
        gpu.lose(why)
        self._gpus.append(gpu)

    def _free_index(self, place: int) -> int:
        """Return an index that no GPU has, since the driver renumbers after a loss."""
        taken = {gpu.index for gpu in self._gpus}
        if place not in taken:
            return place
        return next(index for index in range(len(taken) + 1) if index not in taken)

    # XID errors

    def _poll_events(self, now_s: float) -> None:
        if self._driver_gone or now_s < self._events_at_s:
            return
        try:
            if not self._events_open:
                self._open_events()
            for _ in range(MAX_EVENTS):
                event = self._driver.next_xid()
                for gpu in self._gpus:
                    if gpu.handle == event.handle:
                        gpu.note_xid(event.xid, now_s)
        except NvmlFault as fault:
            if fault.kind is FaultKind.NOTHING:
                return  # all read
            # A wait fails at once while a lost GPU is watched: by the next time it is left out.
            self._events_open = False
            self._events_at_s = now_s + (
                0.0 if fault.kind is FaultKind.GPU_LOST else EVENTS_RETRY_S
            )

    def _open_events(self) -> None:
        self._driver.open_events()
        for gpu in self._gpus:
            if gpu.handle is not None and not gpu.why_lost:
                try:
                    self._driver.watch(gpu.handle)
                except NvmlFault as fault:
                    if fault.kind is FaultKind.DRIVER_GONE:
                        raise
                    # This GPU has no XID events, or is lost, as its own read shows.
        self._events_open = True
