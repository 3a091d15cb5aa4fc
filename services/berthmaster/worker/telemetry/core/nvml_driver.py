"""The NVIDIA driver as a protocol, and the meaning of its errors. Pure.

The reader (nvml_reader.py, nvml_gpu.py) uses `Nvml` and sees plain numbers and one exception.
nvml.py implements it with pynvml, and tests with a script. Each call may fail, and the caller acts
on the kind of the failure, never on its number.
"""

import math
from collections.abc import Sequence
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple, NewType, Protocol

# The driver's name for a device or MIG device; valid until `stop`.
Handle = NewType("Handle", int)
# The counters of a device at one time; valid until `stop`.
Counters = NewType("Counters", int)


class FaultKind(Enum):
    """Meaning of a failure for the caller."""

    UNSUPPORTED = "unsupported"  # this GPU or driver cannot tell: do not ask again soon
    FORBIDDEN = "forbidden"  # we may not know: do not ask again soon
    NOTHING = "nothing"  # there is nothing to tell at the moment
    GPU_LOST = "gpu lost"  # this GPU does not answer any more, or not before a reset
    DRIVER_GONE = "driver gone"  # no GPU answers until the driver is opened anew
    TROUBLE = "trouble"  # a single or unspecified failure


# NVML's return codes; others are TROUBLE. "Invalid argument" is TROUBLE too, because an outdated
# handle gives it.
KINDS: Final = MappingProxyType(
    {
        0: FaultKind.NOTHING,  # a success that pynvml takes for an error: an empty list of samples
        1: FaultKind.DRIVER_GONE,  # uninitialized
        3: FaultKind.UNSUPPORTED,  # not supported
        4: FaultKind.FORBIDDEN,  # no permission
        6: FaultKind.NOTHING,  # not found
        9: FaultKind.DRIVER_GONE,  # driver not loaded
        10: FaultKind.NOTHING,  # timeout: no event is waiting
        12: FaultKind.DRIVER_GONE,  # library not found
        13: FaultKind.UNSUPPORTED,  # function not found: an older driver
        15: FaultKind.GPU_LOST,  # GPU is lost
        16: FaultKind.GPU_LOST,  # reset required
        18: FaultKind.DRIVER_GONE,  # driver and library are of different versions
        21: FaultKind.NOTHING,  # no data
        22: FaultKind.UNSUPPORTED,  # ECC of a virtual GPU
        24: FaultKind.UNSUPPORTED,  # frequency
        25: FaultKind.UNSUPPORTED,  # version of an argument: an older driver
        26: FaultKind.UNSUPPORTED,  # deprecated
        28: FaultKind.GPU_LOST,  # GPU not found
    }
)

# Remedies, where the driver's message is not clear.
_ADVICE: Final = MappingProxyType({18: "it was replaced while in use, restart this agent"})


class NvmlFault(Exception):
    """The driver refused a call."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.kind = KINDS.get(code, FaultKind.TROUBLE)

    @property
    def why(self) -> str:
        """The refusal for people."""
        advice = _ADVICE.get(self.code)
        return f"{self} (NVML error {self.code})" + (f"; {advice}" if advice else "")


class Memory(NamedTuple):
    total_bytes: int
    used_bytes: int


class Rates(NamedTuple):
    """Shares of time in which something ran, since the driver's last sample."""

    gpu_percent: int
    memory_percent: int


class Remapped(NamedTuple):
    """Whether rows of memory wait to be remapped, and whether that failed."""

    pending: bool
    failed: bool


class Slice(NamedTuple):
    """Profile data of a MIG device."""

    gpu_slices: int
    compute_slices: int
    memory_mib: int


class Process(NamedTuple):
    """A process with a context on a device."""

    pid: int
    used_bytes: int | None


class Sample(NamedTuple):
    """How much of a GPU one process used."""

    pid: int
    at_us: int
    sm_percent: int


class Activity(NamedTuple):
    """Means over the while between two looks at a device's counters; NaN = not told."""

    engine_percent: float  # share of time with a running kernel
    sm_percent: float  # share of SMs with work
    tensor_percent: float = math.nan  # share of cycles with work in tensor cores
    dram_percent: float = math.nan  # share of the memory bandwidth in use
    pcie_mib_per_s: float = math.nan  # both directions together


class XidEvent(NamedTuple):
    """An XID error from the driver."""

    handle: Handle
    xid: int


class Nvml(Protocol):
    """The driver. Every method is one call and may raise NvmlFault."""

    # Lifecycle. After `stop`, or a fault of kind DRIVER_GONE, `start` opens it again.
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def driver_version(self) -> str: ...

    # Devices
    def count(self) -> int: ...
    def device(self, index: int, /) -> Handle: ...
    def uuid(self, handle: Handle, /) -> str: ...
    def name(self, handle: Handle, /) -> str: ...

    # Usage
    def memory(self, handle: Handle, /) -> Memory: ...
    def memory_v1(self, handle: Handle, /) -> Memory: ...
    def rates(self, handle: Handle, /) -> Rates: ...
    def power_mw(self, handle: Handle, /) -> int: ...
    def power_limit_mw(self, handle: Handle, /) -> int: ...
    def temperature_c(self, handle: Handle, /) -> int: ...
    def sm_clock_mhz(self, handle: Handle, /) -> int: ...
    def memory_clock_mhz(self, handle: Handle, /) -> int: ...
    def clock_reasons(self, handle: Handle, /) -> int: ...
    def clock_reasons_v1(self, handle: Handle, /) -> int: ...

    # Health
    def ecc_corrected(self, handle: Handle, /) -> int: ...
    def ecc_uncorrected(self, handle: Handle, /) -> int: ...
    def remapped_rows(self, handle: Handle, /) -> Remapped: ...
    def retired_pages_pending(self, handle: Handle, /) -> bool: ...
    def recovery_action(self, handle: Handle, /) -> int: ...

    # MIG
    def mig_enabled(self, handle: Handle, /) -> bool: ...
    def mig_places(self, handle: Handle, /) -> int: ...
    def mig_device(self, handle: Handle, place: int, /) -> Handle: ...
    def mig_slice(self, handle: Handle, /) -> Slice: ...

    # Processes
    def compute_processes(self, handle: Handle, /) -> Sequence[Process]: ...
    def mps_processes(self, handle: Handle, /) -> Sequence[Process]: ...
    def graphics_processes(self, handle: Handle, /) -> Sequence[Process]: ...
    def process_samples(self, handle: Handle, since_us: int, /) -> Sequence[Sample]: ...

    # Counters of Hopper and later (GPU performance monitoring). `count_mig` is called on the GPU,
    # for one of its GPU instances. `forget` never fails.
    def counts(self, handle: Handle, /) -> bool: ...
    def gpu_instance(self, handle: Handle, /) -> int: ...
    def count_gpu(self, handle: Handle, /) -> Counters: ...
    def count_mig(self, handle: Handle, gpu_instance: int, /) -> Counters: ...
    def activity(self, before: Counters, after: Counters, /) -> Activity: ...
    def forget(self, counters: Counters, /) -> None: ...

    # Events. `open_events` drops earlier watches. `next_xid` never waits (NOTHING = none).
    def open_events(self) -> None: ...
    def watch(self, handle: Handle, /) -> None: ...
    def next_xid(self) -> XidEvent: ...
