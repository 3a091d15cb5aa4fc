"""A driver that follows a script: GPUs with plain figures, and a table of refusals.

A refusal is written as NVML's return code under (place, call); place ALL stands for every GPU, the
call ANY for every call, and a place of None for calls that concern no GPU. Handles carry the number
of the driver's life, so that one from an earlier life is refused as a real driver would.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from berthmaster.worker.telemetry.core.nvml_driver import (
    Activity,
    Counters,
    Handle,
    Memory,
    NvmlFault,
    Process,
    Rates,
    Remapped,
    Sample,
    Slice,
    XidEvent,
)

ALL = -1
ANY = "*"

UNINITIALIZED = 1
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
MISMATCH = 18
UNKNOWN = 999

TEXTS = {
    UNINITIALIZED: "Uninitialized",
    NOT_SUPPORTED: "Not Supported",
    NO_PERMISSION: "Insufficient Permissions",
    DRIVER_NOT_LOADED: "Driver Not Loaded",
    GPU_IS_LOST: "GPU is lost",
    RESET_REQUIRED: "GPU requires restart",
    MISMATCH: "Driver/library version mismatch",
    UNKNOWN: "Unknown Error",
}
MIB = 1024 * 1024


STILL = Activity(0.0, 0.0)


@dataclass
class FakeMig:
    uuid: str
    name: str
    made_of: Slice
    used_mib: int = 0
    gpu_instance: int = 1
    activity: Activity = STILL


@dataclass
class FakeGpu:
    """One GPU; every figure as the driver would say it."""

    uuid: str
    name: str = "NVIDIA A100-SXM4-40GB"
    memory: Memory = field(default_factory=lambda: Memory(40_960 * MIB, 1_000 * MIB))
    memory_v1: Memory = field(default_factory=lambda: Memory(40_960 * MIB, 1_500 * MIB))
    rates: Rates = field(default_factory=lambda: Rates(50, 20))
    power_mw: int = 200_500
    power_limit_mw: int = 400_000
    temperature_c: int = 55
    sm_clock_mhz: int = 1410
    memory_clock_mhz: int = 1215
    clock_reasons: int = 0
    ecc_corrected: int = 0
    ecc_uncorrected: int = 0
    remapped_rows: Remapped = field(default_factory=lambda: Remapped(False, False))
    retired_pages_pending: bool = False
    recovery_action: int = 0
    compute_processes: Sequence[Process] = ()
    mps_processes: Sequence[Process] = ()
    graphics_processes: Sequence[Process] = ()
    samples: Sequence[Sample] = ()
    activity: Activity | None = None  # None: it has no counters
    mig: Sequence[FakeMig] | None = None  # None: MIG is off


class FakeDriver:
    def __init__(self, *gpus: FakeGpu) -> None:
        self.gpus = list(gpus)
        self.faults: dict[tuple[int | None, str], int] = {}
        self.events: list[tuple[int, int]] = []  # (place, xid)
        self.asked: Counter[str] = Counter()
        self.life = 0
        self.open = False
        self.watched: list[Handle] = []
        self.counters: dict[Counters, Activity] = {}  # by what will be told at the next

    def _refuse(self, place: int | None, call: str) -> None:
        keys = [(place, call), (place, ANY)]
        if place is not None:
            keys += [(ALL, call), (ALL, ANY)]
        for key in keys:
            if code := self.faults.get(key):
                raise NvmlFault(code, TEXTS.get(code, f"error {code}"))

    def _node(self, call: str) -> None:
        self.asked[call] += 1
        self._refuse(None, call)
        if not self.open:
            raise NvmlFault(UNINITIALIZED, TEXTS[UNINITIALIZED])

    def _gpu(self, handle: Handle, call: str) -> FakeGpu:
        life, place = divmod(int(handle), 100_000)
        if not self.open:
            raise NvmlFault(UNINITIALIZED, TEXTS[UNINITIALIZED])
        if life != self.life or place % 1000 >= len(self.gpus):
            raise NvmlFault(INVALID_ARGUMENT, "Invalid Argument")
        self.asked[call] += 1
        self._refuse(place % 1000, call)
        return self.gpus[place % 1000]

    def _mig(self, handle: Handle, call: str) -> FakeMig | None:
        """MIG devices have handles of their own: 1000 for each place in their GPU."""
        instance = int(handle) % 100_000 // 1000
        if not instance:
            return None
        gpu = self._gpu(handle, call)
        return (gpu.mig or [])[instance - 1]

    # Its life

    def start(self) -> None:
        self.asked["start"] += 1
        self._refuse(None, "start")
        self.life += 1
        self.open = True

    def stop(self) -> None:
        self._node("stop")
        self.open = False
        self.counters.clear()

    def driver_version(self) -> str:
        self._node("driver_version")
        return "550.54.15"

    # What there is

    def count(self) -> int:
        self._node("count")
        return len(self.gpus)

    def device(self, index: int) -> Handle:
        self._node("device")
        handle = Handle(self.life * 100_000 + index)
        self._gpu(handle, "device")
        return handle

    def uuid(self, handle: Handle) -> str:
        if mig := self._mig(handle, "mig_uuid"):
            return mig.uuid
        return self._gpu(handle, "uuid").uuid

    def name(self, handle: Handle) -> str:
        if mig := self._mig(handle, "mig_name"):
            return mig.name
        return self._gpu(handle, "name").name

    # How it is now

    def memory(self, handle: Handle) -> Memory:
        return self._gpu(handle, "memory").memory

    def memory_v1(self, handle: Handle) -> Memory:
        if mig := self._mig(handle, "mig_memory"):
            return Memory(mig.made_of.memory_mib * MIB, mig.used_mib * MIB)
        return self._gpu(handle, "memory_v1").memory_v1

    def rates(self, handle: Handle) -> Rates:
        return self._gpu(handle, "rates").rates

    def power_mw(self, handle: Handle) -> int:
        return self._gpu(handle, "power_mw").power_mw

    def power_limit_mw(self, handle: Handle) -> int:
        return self._gpu(handle, "power_limit_mw").power_limit_mw

    def temperature_c(self, handle: Handle) -> int:
        return self._gpu(handle, "temperature_c").temperature_c

    def sm_clock_mhz(self, handle: Handle) -> int:
        return self._gpu(handle, "sm_clock_mhz").sm_clock_mhz

    def memory_clock_mhz(self, handle: Handle) -> int:
        return self._gpu(handle, "memory_clock_mhz").memory_clock_mhz

    def clock_reasons(self, handle: Handle) -> int:
        return self._gpu(handle, "clock_reasons").clock_reasons

    def clock_reasons_v1(self, handle: Handle) -> int:
        return self._gpu(handle, "clock_reasons_v1").clock_reasons

    # Its health

    def ecc_corrected(self, handle: Handle) -> int:
        return self._gpu(handle, "ecc_corrected").ecc_corrected

    def ecc_uncorrected(self, handle: Handle) -> int:
        return self._gpu(handle, "ecc_uncorrected").ecc_uncorrected

    def remapped_rows(self, handle: Handle) -> Remapped:
        return self._gpu(handle, "remapped_rows").remapped_rows

    def retired_pages_pending(self, handle: Handle) -> bool:
        return self._gpu(handle, "retired_pages_pending").retired_pages_pending

    def recovery_action(self, handle: Handle) -> int:
        return self._gpu(handle, "recovery_action").recovery_action

    # MIG

    def mig_enabled(self, handle: Handle) -> bool:
        return self._gpu(handle, "mig_enabled").mig is not None

    def mig_places(self, handle: Handle) -> int:
        self._gpu(handle, "mig_places")
        return 7

    def mig_device(self, handle: Handle, place: int) -> Handle:
        gpu = self._gpu(handle, "mig_device")
        if place >= len(gpu.mig or ()):
            raise NvmlFault(NOT_FOUND, "Not Found")
        return Handle(int(handle) + 1000 * (place + 1))

    def mig_slice(self, handle: Handle) -> Slice:
        mig = self._mig(handle, "mig_slice")
        assert mig is not None
        return mig.made_of

    # Processes

    def compute_processes(self, handle: Handle) -> Sequence[Process]:
        return self._gpu(handle, "compute_processes").compute_processes

    def mps_processes(self, handle: Handle) -> Sequence[Process]:
        return self._gpu(handle, "mps_processes").mps_processes

    def graphics_processes(self, handle: Handle) -> Sequence[Process]:
        return self._gpu(handle, "graphics_processes").graphics_processes

    def process_samples(self, handle: Handle, since_us: int) -> Sequence[Sample]:
        # All of them, also those from before `since_us`: drivers have been seen to do that.
        return self._gpu(handle, "process_samples").samples

    # Counters

    def counts(self, handle: Handle) -> bool:
        return self._gpu(handle, "counts").activity is not None

    def gpu_instance(self, handle: Handle) -> int:
        mig = self._mig(handle, "gpu_instance")
        assert mig is not None
        return mig.gpu_instance

    def count_gpu(self, handle: Handle) -> Counters:
        activity = self._gpu(handle, "count_gpu").activity
        assert activity is not None
        return self._count(activity)

    def count_mig(self, handle: Handle, gpu_instance: int) -> Counters:
        gpu = self._gpu(handle, "count_mig")
        return self._count(
            next(one.activity for one in gpu.mig or () if one.gpu_instance == gpu_instance)
        )

    def _count(self, activity: Activity) -> Counters:
        self.asked["count"] += 1
        counters = Counters(self.asked["count"])
        self.counters[counters] = activity
        return counters

    def activity(self, before: Counters, after: Counters) -> Activity:
        if before not in self.counters:
            raise NvmlFault(INVALID_ARGUMENT, "Invalid Argument")
        return self.counters[after]

    def forget(self, counters: Counters) -> None:
        del self.counters[counters]

    # Events

    def open_events(self) -> None:
        self._node("open_events")
        self.watched = []

    def watch(self, handle: Handle) -> None:
        self._gpu(handle, "watch")
        self.watched.append(handle)

    def next_xid(self) -> XidEvent:
        self._node("next_xid")
        for place, xid in list(self.events):
            handle = Handle(self.life * 100_000 + place)
            if handle in self.watched:
                self.events.remove((place, xid))
                return XidEvent(handle, xid)
        for handle in self.watched:  # a real driver fails the wait as long as one of them is lost
            if self.faults.get((int(handle) % 1000, ANY)) == GPU_IS_LOST:
                raise NvmlFault(GPU_IS_LOST, TEXTS[GPU_IS_LOST])
        raise NvmlFault(TIMEOUT, "Timeout")
