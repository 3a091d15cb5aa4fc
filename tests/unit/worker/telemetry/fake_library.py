"""A stand-in for libnvidia-ml.so.1 below pynvml: functions that fill the structures they are given.

pynvml looks its functions up by name on the object that it loaded. This object has them, so that
the adapter is tested through pynvml itself, with its structures, its two-step lists and its quirks.
One GPU at address 0x1000, with one MIG device at 0x2000. What is not defined here is a symbol that
the driver does not have.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

SUCCESS, NOT_SUPPORTED, NOT_FOUND, INSUFFICIENT_SIZE, TIMEOUT, GPU_IS_LOST = 0, 3, 6, 7, 10, 15
GPU, MIG = 0x1000, 0x2000
NOT_AVAILABLE = 2**64 - 1
MIB = 1024 * 1024


def _point(reference: Any, address: int) -> None:
    """Make the pointer behind this reference point to an address."""
    value = ctypes.c_void_p(address)
    ctypes.memmove(ctypes.addressof(reference._obj), ctypes.byref(value), ctypes.sizeof(value))


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _set(reference: Any, value: int) -> int:
    reference._obj.value = value
    return SUCCESS


class Library:
    def __init__(self) -> None:
        self.processes: Sequence[tuple[int, int]] = ()
        self.samples: Sequence[tuple[int, int, int]] = ()  # pid, time stamp, share
        self.xids: list[int] = []
        self.lost = False
        self.name = b"NVIDIA A100-SXM4-40GB"
        self.opened = 0
        self.mig = True
        self.has_counters = False
        self.refuses_sm = False
        self.counters: dict[int, int | None] = {}  # address -> GPU instance, None = the GPU
        self._allocated = 0

    # pynvml calls these by their names in C, hence the spelling.

    def nvmlInitWithFlags(self, flags: int) -> int:  # noqa: N802
        self.opened += 1
        return SUCCESS

    def nvmlShutdown(self) -> int:  # noqa: N802
        self.opened -= 1
        return SUCCESS

    def nvmlSystemGetDriverVersion(self, buffer: Any, size: Any) -> int:  # noqa: N802
        buffer.value = b"550.54.15"
        return SUCCESS

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        return _set(count, 1)

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, device: Any) -> int:  # noqa: N802
        _point(device, GPU)
        return SUCCESS

    def nvmlDeviceGetUUID(self, device: Any, buffer: Any, size: Any) -> int:  # noqa: N802
        buffer.value = b"MIG-a" if _address(device) == MIG else b"GPU-a"
        return SUCCESS

    def nvmlDeviceGetName(self, device: Any, buffer: Any, size: Any) -> int:  # noqa: N802
        buffer.value = self.name + (b" MIG 1g.5gb" if _address(device) == MIG else b"")
        return SUCCESS

    def nvmlDeviceGetMemoryInfo_v2(self, device: Any, memory: Any) -> int:  # noqa: N802
        assert memory._obj.version == 0x02000028  # size 40, version 2
        memory._obj.total, memory._obj.reserved = 40_960 * MIB, 600 * MIB
        memory._obj.used, memory._obj.free = 1_000 * MIB, 39_360 * MIB
        return SUCCESS

    def nvmlDeviceGetMemoryInfo(self, device: Any, memory: Any) -> int:  # noqa: N802
        if _address(device) == MIG:
            memory._obj.total, memory._obj.used = 4_864 * MIB, 12 * MIB
        else:
            memory._obj.total, memory._obj.used = 40_960 * MIB, 1_600 * MIB
        return SUCCESS

    def nvmlDeviceGetUtilizationRates(self, device: Any, rates: Any) -> int:  # noqa: N802
        if self.lost:
            return GPU_IS_LOST
        rates._obj.gpu, rates._obj.memory = 50, 20
        return SUCCESS

    def nvmlDeviceGetPowerUsage(self, device: Any, power: Any) -> int:  # noqa: N802
        return _set(power, 200_500)

    def nvmlDeviceGetEnforcedPowerLimit(self, device: Any, limit: Any) -> int:  # noqa: N802
        return _set(limit, 400_000)

    def nvmlDeviceGetTemperature(self, device: Any, sensor: Any, value: Any) -> int:  # noqa: N802
        assert sensor.value == 0
        return _set(value, 55)

    def nvmlDeviceGetClockInfo(self, device: Any, domain: Any, value: Any) -> int:  # noqa: N802
        return _set(value, {1: 1410, 2: 1215}[domain.value])

    def nvmlDeviceGetCurrentClocksThrottleReasons(  # noqa: N802
        self, device: Any, reasons: Any
    ) -> int:
        return _set(reasons, 0x4)

    def nvmlDeviceGetTotalEccErrors(  # noqa: N802
        self, device: Any, kind: Any, since: Any, count: Any
    ) -> int:
        assert since.value == 0  # since the driver was loaded
        return _set(count, {0: 7, 1: 0}[kind.value])

    def nvmlDeviceGetRemappedRows(  # noqa: N802
        self, device: Any, corrected: Any, uncorrected: Any, pending: Any, failure: Any
    ) -> int:
        for reference, value in ((corrected, 1), (uncorrected, 0), (pending, 0), (failure, 0)):
            _set(reference, value)
        return SUCCESS

    def nvmlDeviceGetRetiredPagesPendingStatus(self, device: Any, on: Any) -> int:  # noqa: N802
        return NOT_SUPPORTED

    def nvmlDeviceGetFieldValues(self, device: Any, count: Any, values: Any) -> int:  # noqa: N802
        (value,) = values._obj
        assert value.fieldId == 230  # the recovery action
        value.nvmlReturn, value.value.uiVal = SUCCESS, 0
        return SUCCESS

    def nvmlDeviceGetMigMode(self, device: Any, current: Any, pending: Any) -> int:  # noqa: N802
        _set(pending, 1)
        return _set(current, int(self.mig))

    def nvmlDeviceGetMaxMigDeviceCount(self, device: Any, count: Any) -> int:  # noqa: N802
        return _set(count, 7)

    def nvmlDeviceGetMigDeviceHandleByIndex(  # noqa: N802
        self, device: Any, index: Any, found: Any
    ) -> int:
        if index.value:
            return NOT_FOUND
        _point(found, MIG)
        return SUCCESS

    def nvmlDeviceGetAttributes_v2(self, device: Any, found: Any) -> int:  # noqa: N802
        assert _address(device) == MIG
        found._obj.gpuInstanceSliceCount = found._obj.computeInstanceSliceCount = 1
        found._obj.memorySizeMB = 4_864
        return SUCCESS

    def nvmlDeviceGetComputeRunningProcesses_v3(  # noqa: N802
        self, device: Any, count: Any, array: Any
    ) -> int:
        room = count._obj.value
        count._obj.value = len(self.processes)
        if not self.processes:
            return SUCCESS
        if array is None or room < len(self.processes):
            return INSUFFICIENT_SIZE
        for place, (pid, used) in enumerate(self.processes):
            array[place].pid, array[place].usedGpuMemory = pid, used
        return SUCCESS

    def nvmlDeviceGetMPSComputeRunningProcesses_v3(  # noqa: N802
        self, device: Any, count: Any, array: Any
    ) -> int:
        return SUCCESS

    def nvmlDeviceGetProcessUtilization(  # noqa: N802
        self, device: Any, array: Any, count: Any, since: Any
    ) -> int:
        new = [sample for sample in self.samples if sample[1] > since.value]
        count._obj.value = len(new)
        if array is None:  # pynvml takes the success of having none for an error
            return INSUFFICIENT_SIZE if new else SUCCESS
        for place, (pid, at_us, share) in enumerate(new):
            array[place].pid, array[place].timeStamp, array[place].smUtil = pid, at_us, share
        return SUCCESS

    def nvmlGpmQueryDeviceSupport(self, device: Any, support: Any) -> int:  # noqa: N802
        support._obj.isSupportedDevice = int(self.has_counters)
        return SUCCESS

    def nvmlDeviceGetGpuInstanceId(self, device: Any, found: Any) -> int:  # noqa: N802
        assert _address(device) == MIG
        return _set(found, 5)

    def nvmlGpmSampleAlloc(self, sample: Any) -> int:  # noqa: N802
        self._allocated += 1
        _point(sample, 0x5000 + self._allocated)
        return SUCCESS

    def nvmlGpmSampleFree(self, sample: Any) -> int:  # noqa: N802
        del self.counters[_address(sample)]
        return SUCCESS

    def nvmlGpmSampleGet(self, device: Any, sample: Any) -> int:  # noqa: N802
        self.counters[_address(sample)] = None
        return NOT_SUPPORTED if self.mig else SUCCESS

    def nvmlGpmMigSampleGet(self, device: Any, instance: Any, sample: Any) -> int:  # noqa: N802
        assert _address(device) == GPU
        self.counters[_address(sample)] = instance
        return SUCCESS

    def nvmlGpmMetricsGet(self, asked: Any) -> int:  # noqa: N802
        first, second = (_address(one) for one in (asked._obj.sample1, asked._obj.sample2))
        assert asked._obj.version == 1
        assert first < second
        assert self.counters[first] == self.counters[second]
        for place in range(asked._obj.numMetrics):
            metric = asked._obj.metrics[place]
            metric.value = {1: 75.5, 2: 12.5, 5: 9.5, 10: 31.0, 20: 64.0, 21: 32.0}[metric.metricId]
            refused = metric.metricId == 2 and self.refuses_sm
            metric.nvmlReturn = NOT_SUPPORTED if refused else SUCCESS
        return SUCCESS

    def nvmlEventSetCreate(self, events: Any) -> int:  # noqa: N802
        _point(events, 0x9000)
        return SUCCESS

    def nvmlEventSetFree(self, events: Any) -> int:  # noqa: N802
        return SUCCESS

    def nvmlDeviceRegisterEvents(self, device: Any, kinds: Any, events: Any) -> int:  # noqa: N802
        assert kinds.value == 0x8
        return SUCCESS

    def nvmlEventSetWait_v2(self, events: Any, data: Any, timeout_ms: Any) -> int:  # noqa: N802
        assert timeout_ms.value == 0
        if not self.xids:
            return TIMEOUT
        value = ctypes.c_void_p(GPU)
        ctypes.memmove(ctypes.addressof(data._obj), ctypes.byref(value), ctypes.sizeof(value))
        data._obj.eventType, data._obj.eventData = 0x8, self.xids.pop(0)
        return SUCCESS
