"""GPUs of this node in NVIDIA's driver, and whether the driver can use them.

pynvml loads the driver's library. Each function is a blocking pass over all GPUs.
"""

from collections.abc import Sequence
from typing import Any, Final

from berthmaster.lib.runtime.errors import CannotStart
from berthmaster.worker.shares.core.shares import Gpu

_MIB: Final = 2**20


class Driver:
    """NVML, opened."""

    def __init__(self) -> None:
        """Raises CannotStart without a driver."""
        import pynvml

        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise CannotStart(f"no NVIDIA driver answers here: {error}") from error

    def gpus(self) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
        """Return the GPUs that can be shared, and the reasons for the others. Raises
        CannotStart.
        """
        nvml, found, left_out = self._nvml, [], []
        try:
            for index in range(nvml.nvmlDeviceGetCount()):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                uuid = str(nvml.nvmlDeviceGetUUID(handle))
                if self._is_cut(handle):
                    left_out.append(f"{uuid}: MIG is on, so its slices are had instead of shares")
                    continue
                total = nvml.nvmlDeviceGetMemoryInfo(handle).total
                minor = int(nvml.nvmlDeviceGetMinorNumber(handle))
                found.append(Gpu(uuid, minor, total // _MIB))
        except nvml.NVMLError as error:
            raise CannotStart(f"the NVIDIA driver does not list its GPUs: {error}") from error
        return tuple(found), tuple(left_out)

    def _is_cut(self, handle: Any) -> bool:
        try:
            current, _ = self._nvml.nvmlDeviceGetMigMode(handle)
        except self._nvml.NVMLError:
            return False  # this model has no MIG
        return bool(current)

    def faults(self, gpus: Sequence[Gpu]) -> dict[str, str]:
        """Return the fault of each unusable GPU by UUID."""
        nvml, found = self._nvml, {}
        for gpu in gpus:
            try:
                handle = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
                nvml.nvmlDeviceGetMemoryInfo(handle)
            except nvml.NVMLError as error:
                found[gpu.uuid] = f"driver: {error}"
        return found

    def sm_percents(self, uuid: str, since_us: int) -> tuple[dict[int, float], int]:
        """Return the mean use of a GPU's SMs by each process, and the time of the newest sample.

        Nothing where the driver has no newer samples, or does not take any.
        """
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            samples = nvml.nvmlDeviceGetProcessUtilization(handle, since_us)
        except nvml.NVMLError:
            return {}, since_us
        found: dict[int, list[int]] = {}
        for one in samples:
            found.setdefault(int(one.pid), []).append(int(one.smUtil))
        newest = max((int(one.timeStamp) for one in samples), default=since_us)
        return {pid: sum(many) / len(many) for pid, many in found.items()}, newest
