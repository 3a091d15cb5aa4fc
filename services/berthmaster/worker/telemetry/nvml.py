"""The source "nvml": pynvml behind the protocol of nvml_driver.py, without decisions.

pynvml (distribution nvidia-ml-py) is imported when the source is opened, so other sources run
without it. It loads the driver's library, and `open_nvml` reports a missing driver in one sentence.
Used from one thread only, because no handle may be used while the driver is reopened.
"""

import ctypes
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

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
from berthmaster.worker.telemetry.core.nvml_reader import NvmlReader
from berthmaster.worker.telemetry.core.pods import Pods
from berthmaster.worker.telemetry.core.source import SourceAbsent
from berthmaster.worker.telemetry.proc import ProcFolder

_UNKNOWN = 999  # NVML's "unknown error", for pynvml's own failures


def open_nvml(proc: Path) -> tuple[NvmlReader, str]:
    """The source, opened, and the driver's version. Raises SourceAbsent."""
    try:
        import pynvml
    except ModuleNotFoundError as error:
        raise SourceAbsent(
            "pynvml is not installed; pip install 'berthmaster[telemetry]' brings it"
        ) from error
    reader = NvmlReader(Pynvml(pynvml), Pods(ProcFolder(proc), time.monotonic))
    return reader, reader.open(time.monotonic())


class Pynvml:
    """Each method is one call of pynvml. Handles are addresses from the driver."""

    def __init__(self, pynvml: Any) -> None:
        self._nvml = pynvml
        self._handles: dict[Handle, Any] = {}
        self._counters: dict[Counters, Any] = {}
        self._events: Any = None

    def _ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except self._nvml.NVMLError as error:
            raise NvmlFault(int(error.value), str(error)) from error
        except self._nvml.NVMLLibraryMismatchError as error:
            raise NvmlFault(self._nvml.NVML_ERROR_FUNCTION_NOT_FOUND, str(error)) from error
        except UnicodeDecodeError as error:  # a name that is not text
            raise NvmlFault(_UNKNOWN, f"{type(error).__name__}: {error}") from error

    def _about(self, handle: Handle, call: Callable[..., Any], *arguments: Any) -> Any:
        device = self._handles.get(handle)
        if device is None:
            raise NvmlFault(self._nvml.NVML_ERROR_INVALID_ARGUMENT, "a handle of another life")
        return self._ask(call, device, *arguments)

    def _keep(self, device: Any) -> Handle:
        handle = Handle(ctypes.cast(device, ctypes.c_void_p).value or 0)
        self._handles[handle] = device
        return handle

    # Lifecycle

    def start(self) -> None:
        self._ask(self._nvml.nvmlInit)

    def stop(self) -> None:
        events, self._events = self._events, None
        self._handles.clear()
        for counters in list(self._counters):
            self.forget(counters)
        if events is not None:
            try:
                self._ask(self._nvml.nvmlEventSetFree, events)
            except NvmlFault:
                pass  # gone with the driver; the library is closed
        self._ask(self._nvml.nvmlShutdown)

    def driver_version(self) -> str:
        return str(self._ask(self._nvml.nvmlSystemGetDriverVersion))

    # Devices

    def count(self) -> int:
        return int(self._ask(self._nvml.nvmlDeviceGetCount))

    def device(self, index: int) -> Handle:
        return self._keep(self._ask(self._nvml.nvmlDeviceGetHandleByIndex, index))

    def uuid(self, handle: Handle) -> str:
        return str(self._about(handle, self._nvml.nvmlDeviceGetUUID))

    def name(self, handle: Handle) -> str:
        return str(self._about(handle, self._nvml.nvmlDeviceGetName))

    # Usage

    def memory(self, handle: Handle) -> Memory:
        version = self._nvml.nvmlMemory_v2
        info = self._about(handle, self._nvml.nvmlDeviceGetMemoryInfo, version)
        return Memory(info.total, info.used)

    def memory_v1(self, handle: Handle) -> Memory:
        info = self._about(handle, self._nvml.nvmlDeviceGetMemoryInfo)
        return Memory(info.total, info.used)

    def rates(self, handle: Handle) -> Rates:
        rates = self._about(handle, self._nvml.nvmlDeviceGetUtilizationRates)
        return Rates(rates.gpu, rates.memory)

    def power_mw(self, handle: Handle) -> int:
        return int(self._about(handle, self._nvml.nvmlDeviceGetPowerUsage))

    def power_limit_mw(self, handle: Handle) -> int:
        return int(self._about(handle, self._nvml.nvmlDeviceGetEnforcedPowerLimit))

    def temperature_c(self, handle: Handle) -> int:
        nvml = self._nvml
        # Its successor is missing in some drivers, and this call is in all.
        return int(self._about(handle, nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU))

    def sm_clock_mhz(self, handle: Handle) -> int:
        return int(self._about(handle, self._nvml.nvmlDeviceGetClockInfo, self._nvml.NVML_CLOCK_SM))

    def memory_clock_mhz(self, handle: Handle) -> int:
        return int(
            self._about(handle, self._nvml.nvmlDeviceGetClockInfo, self._nvml.NVML_CLOCK_MEM)
        )

    def clock_reasons(self, handle: Handle) -> int:
        return int(self._about(handle, self._nvml.nvmlDeviceGetCurrentClocksEventReasons))

    def clock_reasons_v1(self, handle: Handle) -> int:
        return int(self._about(handle, self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons))

    # Health

    def ecc_corrected(self, handle: Handle) -> int:
        return self._ecc(handle, self._nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED)

    def ecc_uncorrected(self, handle: Handle) -> int:
        return self._ecc(handle, self._nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)

    def _ecc(self, handle: Handle, kind: int) -> int:
        since_load = self._nvml.NVML_VOLATILE_ECC
        return int(self._about(handle, self._nvml.nvmlDeviceGetTotalEccErrors, kind, since_load))

    def remapped_rows(self, handle: Handle) -> Remapped:
        rows = self._about(handle, self._nvml.nvmlDeviceGetRemappedRows)
        _corrected, _uncorrected, pending, failed = rows
        return Remapped(bool(pending), bool(failed))

    def retired_pages_pending(self, handle: Handle) -> bool:
        return bool(self._about(handle, self._nvml.nvmlDeviceGetRetiredPagesPendingStatus))

    def recovery_action(self, handle: Handle) -> int:
        field = self._nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
        (value,) = self._about(handle, self._nvml.nvmlDeviceGetFieldValues, [field])
        if value.nvmlReturn != self._nvml.NVML_SUCCESS:
            raise NvmlFault(int(value.nvmlReturn), "no recovery action")
        return int(value.value.uiVal)

    # MIG

    def mig_enabled(self, handle: Handle) -> bool:
        current, _pending = self._about(handle, self._nvml.nvmlDeviceGetMigMode)
        return bool(current == self._nvml.NVML_DEVICE_MIG_ENABLE)

    def mig_places(self, handle: Handle) -> int:
        return int(self._about(handle, self._nvml.nvmlDeviceGetMaxMigDeviceCount))

    def mig_device(self, handle: Handle, place: int) -> Handle:
        found = self._about(handle, self._nvml.nvmlDeviceGetMigDeviceHandleByIndex, place)
        return self._keep(found)

    def mig_slice(self, handle: Handle) -> Slice:
        found = self._about(handle, self._nvml.nvmlDeviceGetAttributes_v2)
        return Slice(
            found.gpuInstanceSliceCount, found.computeInstanceSliceCount, found.memorySizeMB
        )

    # Processes

    def compute_processes(self, handle: Handle) -> Sequence[Process]:
        return self._processes(handle, self._nvml.nvmlDeviceGetComputeRunningProcesses_v3)

    def mps_processes(self, handle: Handle) -> Sequence[Process]:
        return self._processes(handle, self._nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3)

    def graphics_processes(self, handle: Handle) -> Sequence[Process]:
        return self._processes(handle, self._nvml.nvmlDeviceGetGraphicsRunningProcesses_v3)

    def _processes(self, handle: Handle, call: Callable[..., Any]) -> Sequence[Process]:
        found = self._about(handle, call)
        return [Process(one.pid, one.usedGpuMemory) for one in found] if found else ()

    def process_samples(self, handle: Handle, since_us: int) -> Sequence[Sample]:
        found = self._about(handle, self._nvml.nvmlDeviceGetProcessUtilization, since_us)
        return [Sample(one.pid, one.timeStamp, one.smUtil) for one in found]

    # Counters

    def counts(self, handle: Handle) -> bool:
        return bool(self._about(handle, self._nvml.nvmlGpmQueryDeviceSupport).isSupportedDevice)

    def gpu_instance(self, handle: Handle) -> int:
        return int(self._about(handle, self._nvml.nvmlDeviceGetGpuInstanceId))

    def count_gpu(self, handle: Handle) -> Counters:
        return self._count(handle, self._nvml.nvmlGpmSampleGet)

    def count_mig(self, handle: Handle, gpu_instance: int) -> Counters:
        return self._count(handle, self._nvml.nvmlGpmMigSampleGet, gpu_instance)

    def _count(self, handle: Handle, call: Callable[..., Any], *arguments: int) -> Counters:
        sample = self._ask(self._nvml.nvmlGpmSampleAlloc)
        counters = Counters(ctypes.cast(sample, ctypes.c_void_p).value or 0)
        self._counters[counters] = sample
        try:
            self._about(handle, call, *arguments, sample)
        except NvmlFault:
            self.forget(counters)
            raise
        return counters

    def activity(self, before: Counters, after: Counters) -> Activity:
        nvml = self._nvml
        first, second = self._counters.get(before), self._counters.get(after)
        if first is None or second is None:
            raise NvmlFault(nvml.NVML_ERROR_INVALID_ARGUMENT, "counters of another life")
        wanted = (
            nvml.NVML_GPM_METRIC_GRAPHICS_UTIL,
            nvml.NVML_GPM_METRIC_SM_UTIL,
            nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
            nvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
            nvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC,
            nvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC,
        )
        asked = nvml.c_nvmlGpmMetricsGet_t()
        asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(wanted)
        asked.sample1, asked.sample2 = first, second
        for place, metric in enumerate(wanted):
            asked.metrics[place].metricId = metric
        self._ask(nvml.nvmlGpmMetricsGet, asked)
        told = (asked.metrics[place] for place in range(len(wanted)))
        engine, sm, tensor, dram, sent, received = (
            one.value if one.nvmlReturn == nvml.NVML_SUCCESS else math.nan for one in told
        )
        return Activity(engine, sm, tensor, dram, sent + received)

    def forget(self, counters: Counters) -> None:
        sample = self._counters.pop(counters, None)
        if sample is not None:
            try:
                self._ask(self._nvml.nvmlGpmSampleFree, sample)
            except NvmlFault:
                pass  # nothing left to free

    # Events

    def open_events(self) -> None:
        if self._events is not None:
            events, self._events = self._events, None
            self._ask(self._nvml.nvmlEventSetFree, events)
        self._events = self._ask(self._nvml.nvmlEventSetCreate)

    def watch(self, handle: Handle) -> None:
        kinds = self._nvml.nvmlEventTypeXidCriticalError
        self._about(handle, self._nvml.nvmlDeviceRegisterEvents, kinds, self._events)

    def next_xid(self) -> XidEvent:
        data = self._ask(self._nvml.nvmlEventSetWait_v2, self._events, 0)
        handle = Handle(ctypes.cast(data.device, ctypes.c_void_p).value or 0)
        return XidEvent(handle, int(data.eventData))
