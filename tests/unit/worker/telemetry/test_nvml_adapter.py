"""The adapter over the installed pynvml: its names exist, and its calls mean what we think."""

import ast
import inspect
import os
import sys
from pathlib import Path

import pynvml
import pytest

from berthmaster.lib.messages.telemetry import GpuPodUse, GpuProcess, GpuReading, MigInstance
from berthmaster.worker.telemetry import nvml
from berthmaster.worker.telemetry.core.nvml_counting import COUNTERS_S
from berthmaster.worker.telemetry.core.nvml_processes import SHARES_S
from berthmaster.worker.telemetry.core.nvml_reader import NvmlReader
from berthmaster.worker.telemetry.core.source import SourceAbsent
from berthmaster.worker.telemetry.nvml import Pynvml, open_nvml
from berthmaster.worker.telemetry.proc import ProcFolder
from tests.unit.worker.telemetry.fake_library import GPU, MIB, NOT_AVAILABLE, Library
from tests.unit.worker.telemetry.fake_proc import pods_of

UIDS = ("6bd8f2f5-1a3c-4d0e-9f67-0a1b2c3d4e5f", "0123456789abcdef0123456789abcdef")


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    monkeypatch.setattr(pynvml, "nvmlLib", made)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "_nvmlLib_refcount", 0)
    return made


def names_used() -> set[str]:
    """Every attribute of pynvml that the adapter mentions."""
    return {
        node.attr
        for node in ast.walk(ast.parse(inspect.getsource(nvml)))
        if isinstance(node, ast.Attribute)
        and (
            (isinstance(node.value, ast.Attribute) and node.value.attr == "_nvml")
            or (isinstance(node.value, ast.Name) and node.value.id in ("nvml", "pynvml"))
        )
    }


def test_every_name_that_is_used_exists_in_the_pynvml_that_is_installed() -> None:
    used = names_used()
    assert {"nvmlInit", "nvmlDeviceGetUtilizationRates", "NVMLError", "NVML_CLOCK_SM"} <= used
    assert len(used) > 40
    assert {name for name in used if not hasattr(pynvml, name)} == set()


def test_a_gpu_is_read_through_pynvml(library: Library) -> None:
    library.processes = [(101, 512 * MIB), (102, NOT_AVAILABLE)]
    library.samples = [(101, 10, 40), (101, 20, 60)]
    library.xids = [31]
    reader = NvmlReader(Pynvml(pynvml), pods_of({101: UIDS[0], 102: UIDS[1]}))
    assert reader.open(now_s=0.0) == "550.54.15"
    ((_, readings, *_),) = reader.read(0.0)
    assert readings == (
        GpuReading(
            index=0,
            uuid="GPU-a",
            model="NVIDIA A100-SXM4-40GB",
            memory_total_mib=40_960,
            memory_used_mib=1_000,
            utilization_percent=50,
            memory_bandwidth_percent=20,
            power_w=200.5,
            power_limit_w=400.0,
            temperature_c=55,
            sm_clock_mhz=1410,
            memory_clock_mhz=1215,
            throttle_reasons=("sw_power_cap",),
            ecc_corrected=7,
            ecc_uncorrected=0,
            xid=31,
            mig=(
                MigInstance(uuid="MIG-a", profile="1g.5gb", memory_mib=4_864, memory_used_mib=12),
            ),
            processes=(
                GpuProcess(pid=101, memory_mib=512, sm_percent=50.0, pod_uid=UIDS[0]),
                GpuProcess(pid=102, sm_percent=0.0, pod_uid=UIDS[1]),
            ),
            pods=(
                GpuPodUse(pod_uid=UIDS[0], memory_mib=512, sm_percent=50.0),
                GpuPodUse(pod_uid=UIDS[1], sm_percent=0.0),
            ),
        ),
    )

    # No new samples: pynvml raises an error that says "success".
    ((_, (again,), *_),) = reader.read(SHARES_S)
    assert [(one.pid, one.sm_percent) for one in again.processes] == [(101, None), (102, None)]
    reader.close()
    assert library.opened == 0


def test_counters_are_read_through_pynvml(library: Library) -> None:
    library.has_counters = True
    reader = NvmlReader(Pynvml(pynvml), pods_of({}))
    reader.open(now_s=0.0)
    reader.read(0.0)
    ((_, (reading,), *_),) = reader.read(COUNTERS_S)
    (instance,) = reading.mig
    assert (instance.utilization_percent, instance.sm_active_percent) == (75.5, 12.5)
    assert (instance.tensor_active_percent, instance.dram_active_percent) == (9.5, 31.0)
    assert library.counters == {0x5000 + 2: 5}  # of GPU instance 5
    library.mig = False
    reader.read(2 * COUNTERS_S)
    library.refuses_sm = True
    ((_, (reading,), *_),) = reader.read(3 * COUNTERS_S)
    assert reading.sm_active_percent is None
    library.refuses_sm = False
    ((_, (reading,), *_),) = reader.read(4 * COUNTERS_S)
    assert reading.sm_active_percent == 12.5
    assert reading.pcie_bytes_per_s == 96 * MIB
    reader.close()
    assert not library.counters


def test_a_lost_gpu_is_lost_through_pynvml(library: Library) -> None:
    reader = NvmlReader(Pynvml(pynvml), pods_of({}))
    reader.open(now_s=0.0)
    reader.read(0.0)
    library.lost = True
    ((_, (reading,), *_),) = reader.read(1.0)
    assert (reading.health, reading.uuid) == ("lost", "GPU-a")
    assert reading.health_reason == "GPU is lost (NVML error 15)"
    library.lost = False
    ((_, (reading,), *_),) = reader.read(2.0)
    assert reading.health == "ok"


def test_a_name_that_is_no_text_costs_only_the_name(library: Library) -> None:
    library.name = b"NVIDIA \xff"
    reader = NvmlReader(Pynvml(pynvml), pods_of({}))
    reader.open(now_s=0.0)
    ((_, (reading,), *_),) = reader.read(0.0)
    assert (reading.uuid, reading.model, reading.health) == ("GPU-a", "", "ok")


def test_handles_are_the_drivers_own_addresses(library: Library) -> None:
    adapter = Pynvml(pynvml)
    adapter.start()
    assert adapter.device(0) == GPU


def test_a_machine_without_the_drivers_library_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_here(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "CDLL", none_here)
    with pytest.raises(
        SourceAbsent, match=r"^no usable NVIDIA driver: NVML Shared Library Not Found"
    ):
        open_nvml(Path("/proc"))


def test_without_pynvml_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(SourceAbsent, match=r"pip install 'berthmaster\[telemetry\]'"):
        open_nvml(Path("/proc"))


def test_the_control_groups_of_a_process_are_read_from_proc(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_bytes(b"0::/kubepods/\xff\n" + b"x" * 100_000)
    proc = ProcFolder(tmp_path)
    text = proc.cgroup(7)
    assert text.startswith("0::/kubepods/\ufffd\n")
    assert len(text) == 64 * 1024
    with pytest.raises(FileNotFoundError):
        proc.cgroup(8)


def test_the_start_of_a_process_is_read_behind_whatever_it_calls_itself(tmp_path: Path) -> None:
    assert ProcFolder(Path("/proc")).started(os.getpid()) > 0
    stat = tmp_path / "7" / "stat"
    stat.parent.mkdir()
    stat.write_bytes(b"7 (a) b (c)) S 1 7 7 0 -1 4194304 1 0 0 0 1 1 0 0 20 0 1 0 4711 0 0")
    assert ProcFolder(tmp_path).started(7) == 4711
    stat.write_bytes(b"7 (a) S 1")  # gone in the middle
    with pytest.raises(ProcessLookupError):
        ProcFolder(tmp_path).started(7)
