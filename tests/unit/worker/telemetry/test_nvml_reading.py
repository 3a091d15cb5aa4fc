"""What one healthy GPU says, and what becomes of each thing that it will not say."""

from dataclasses import replace
from uuid import UUID

import msgspec
import pytest

from berthmaster.control.door.core.bounds import Limits
from berthmaster.lib.messages.families import encode
from berthmaster.lib.messages.telemetry import (
    GpuPodUse,
    GpuProcess,
    GpuReading,
    MigInstance,
    NodeTelemetry,
)
from berthmaster.worker.telemetry.core.nvml_counting import COUNTERS_S
from berthmaster.worker.telemetry.core.nvml_driver import (
    Activity,
    Memory,
    Process,
    Rates,
    Remapped,
    Sample,
    Slice,
)
from berthmaster.worker.telemetry.core.nvml_gpu import DEAF_S, SLOW_S, profile_name
from berthmaster.worker.telemetry.core.nvml_processes import MAX_PODS, MAX_PROCESSES, SHARES_S
from berthmaster.worker.telemetry.core.nvml_reader import NvmlReader
from berthmaster.worker.telemetry.core.pods import Pods
from tests.unit.worker.telemetry.fake_driver import (
    ANY,
    DRIVER_NOT_LOADED,
    FUNCTION_NOT_FOUND,
    MIB,
    NO_PERMISSION,
    NOT_FOUND,
    NOT_SUPPORTED,
    UNKNOWN,
    FakeDriver,
    FakeGpu,
    FakeMig,
)
from tests.unit.worker.telemetry.fake_proc import FakeProc, pods_of

PODS = {101: "6bd8f2f5-1a3c-4d0e-9f67-0a1b2c3d4e5f"}

WHOLE = GpuReading(
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
    ecc_corrected=0,
    ecc_uncorrected=0,
)


def opened(driver: FakeDriver) -> NvmlReader:
    reader = NvmlReader(driver, pods_of(PODS))
    assert reader.open(now_s=0.0) == "550.54.15"
    return reader


def read(reader: NvmlReader, now_s: float) -> list[GpuReading]:
    (node,) = reader.read(now_s)
    assert node.node == ""
    return list(node.gpus)


def test_a_healthy_gpu_says_everything() -> None:
    assert read(opened(FakeDriver(FakeGpu("GPU-a"))), 0.0) == [WHOLE]


def test_what_was_read_can_be_sent() -> None:
    reading = read(opened(FakeDriver(FakeGpu("GPU-a"))), 0.0)[0]
    assert msgspec.json.decode(msgspec.json.encode(reading), type=GpuReading) == reading


REFUSED = {
    "rates": {"utilization_percent": None, "memory_bandwidth_percent": None},
    "power_mw": {"power_w": None},
    "power_limit_mw": {"power_limit_w": None},
    "temperature_c": {"temperature_c": None},
    "sm_clock_mhz": {"sm_clock_mhz": None},
    "memory_clock_mhz": {"memory_clock_mhz": None},
    "ecc_corrected": {"ecc_corrected": None},
    "ecc_uncorrected": {"ecc_uncorrected": None},
    "clock_reasons": {},
    "remapped_rows": {},
    "retired_pages_pending": {},
    "recovery_action": {},
    "mig_enabled": {},
    "compute_processes": {},
    "mps_processes": {},
    "graphics_processes": {},
    "watch": {},
}


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, UNKNOWN])
@pytest.mark.parametrize(("call", "missing"), REFUSED.items(), ids=REFUSED)
def test_refused_call_leaves_one_figure_unknown(
    call: str, missing: dict[str, None], code: int
) -> None:
    driver = FakeDriver(FakeGpu("GPU-a"))
    driver.faults[0, call] = code
    assert read(opened(driver), 0.0) == [msgspec.structs.replace(WHOLE, **missing)]


def test_an_old_driver_is_asked_for_memory_and_clock_reasons_in_the_old_way() -> None:
    driver = FakeDriver(FakeGpu("GPU-a", clock_reasons=0x1))
    driver.faults[0, "memory"] = FUNCTION_NOT_FOUND
    driver.faults[0, "clock_reasons"] = FUNCTION_NOT_FOUND
    expected = msgspec.structs.replace(WHOLE, memory_used_mib=1_500, throttle_reasons=("gpu_idle",))
    reader = opened(driver)
    assert read(reader, 0.0) == [expected]
    assert read(reader, 1.0) == [expected]
    assert driver.asked["memory"] == 1  # once is enough to know that it is an old driver


def test_a_gpu_that_supports_nothing_at_all_is_there_and_says_nothing() -> None:
    driver = FakeDriver(FakeGpu("GPU-a"))
    reader = opened(driver)
    driver.faults[0, ANY] = NOT_SUPPORTED
    assert read(reader, 0.0) == [GpuReading(index=0, uuid="GPU-a", model="NVIDIA A100-SXM4-40GB")]


def test_what_is_not_supported_is_left_alone_for_a_while_and_then_asked_again() -> None:
    driver = FakeDriver(FakeGpu("GPU-a"))
    driver.faults[0, "power_mw"] = NOT_SUPPORTED
    reader = opened(driver)
    for second in range(30):
        read(reader, float(second))
    assert driver.asked["power_mw"] == 1

    # MIG was switched off, or we were given the permission.
    del driver.faults[0, "power_mw"]
    assert read(reader, DEAF_S)[0].power_w == 200.5


def test_what_changes_seldom_is_asked_seldom() -> None:
    driver = FakeDriver(FakeGpu("GPU-a"))
    reader = opened(driver)
    for second in range(30):
        read(reader, float(second))
    assert driver.asked["rates"] == 30
    assert driver.asked["ecc_uncorrected"] == 30 / SLOW_S


def test_absurd_figures_of_a_driver_are_unknown() -> None:
    driver = FakeDriver(FakeGpu("GPU-a", rates=Rates(4_294_967_295, 20)))
    assert read(opened(driver), 0.0)[0].utilization_percent is None


def test_processes_carry_their_memory_share_and_pod() -> None:
    gpu = FakeGpu(
        "GPU-a",
        compute_processes=[Process(101, 512 * MIB), Process(102, None), Process(103, 4 * MIB)],
        mps_processes=[Process(103, 64 * MIB)],  # a client of MPS, listed twice
        graphics_processes=[Process(104, 8 * MIB)],
        samples=[Sample(101, 10, 40), Sample(101, 20, 50), Sample(102, 20, 3_000_000)],
    )
    reader = opened(FakeDriver(gpu))
    assert read(reader, 0.0)[0].processes == (
        GpuProcess(pid=101, memory_mib=512, sm_percent=45.0, pod_uid=PODS[101]),
        GpuProcess(pid=102),
        GpuProcess(pid=103, kind="mps", memory_mib=64),
        GpuProcess(pid=104, kind="graphics", memory_mib=8, sm_percent=0.0),
    )
    assert read(reader, 0.5)[0].pods == (
        GpuPodUse(pod_uid=PODS[101], memory_mib=512, sm_percent=45.0),
    )
    assert read(reader, 0.5)[0].other_processes == 3
    assert read(reader, SHARES_S - 0.1)[0].processes[0].sm_percent == 45.0
    # No sample since: how much it uses now is not known, rather than as much as before.
    assert read(reader, SHARES_S)[0].processes[0].sm_percent is None


def test_of_a_gpu_that_does_nothing_no_process_does_anything() -> None:
    two = [Process(101, 512 * MIB), Process(102, 4 * MIB)]
    driver = FakeDriver(FakeGpu("GPU-a", rates=Rates(0, 0), compute_processes=two))
    assert [one.sm_percent for one in read(opened(driver), 0.0)[0].processes] == [0.0, 0.0]
    assert driver.asked["process_samples"] == 0


def test_one_process_alone_does_what_its_gpu_does_and_samples_are_not_asked() -> None:
    driver = FakeDriver(FakeGpu("GPU-a", compute_processes=[Process(101, 512 * MIB)]))
    reader = opened(driver)
    assert read(reader, 0.0)[0].pods[0].sm_percent == 50.0
    driver.gpus[0].rates = Rates(7, 2)
    assert read(reader, 1.0)[0].pods[0].sm_percent == 7.0
    assert driver.asked["process_samples"] == 0


SERVER = "nvidia-cuda-mps"


def under_mps(*clients: int, busy: int) -> tuple[FakeDriver, NvmlReader]:
    """A server of MPS in a pod of its own, which the driver sees do everything (as on an H200)."""
    driver = FakeDriver(
        FakeGpu(
            "GPU-a",
            rates=Rates(busy, 0),
            compute_processes=[Process(7, 66 * MIB), *(Process(pid, MIB) for pid in clients)],
            mps_processes=[Process(pid, MIB) for pid in clients],
            samples=[Sample(7, 10, busy)],
        )
    )
    pods = pods_of({7: "0a1b2c3d-0000-0000-0000-000000000007"} | {pid: pod(pid) for pid in clients})
    assert isinstance(pods._proc, FakeProc)
    pods._proc.names[7] = SERVER
    reader = NvmlReader(driver, pods)
    reader.open(now_s=0.0)
    return driver, reader


def pod(pid: int) -> str:
    return f"6bd8f2f5-1a3c-4d0e-9f67-{pid:012}"


def test_what_the_server_of_mps_does_is_its_only_clients() -> None:
    _, reader = under_mps(101, busy=80)
    (node,) = reader.read(0.0)
    (gpu,) = node.gpus
    assert gpu.processes[0] == GpuProcess(pid=7, serves_mps=True, memory_mib=66, sm_percent=80.0)
    assert gpu.pods == (GpuPodUse(pod_uid=pod(101), memory_mib=1, sm_percent=80.0),)
    assert (gpu.other_processes, node.lacks) == (0, ())


def test_of_several_clients_of_mps_it_is_known_only_that_none_does_anything() -> None:
    driver, reader = under_mps(101, 102, busy=80)
    (node,) = reader.read(0.0)
    assert [use.sm_percent for use in node.gpus[0].pods] == [None, None]
    assert node.lacks == (
        "what each of several clients of MPS does: the driver tells it of all together",
    )
    driver.gpus[0].rates = Rates(0, 0)
    (node,) = reader.read(1.0)
    assert [use.sm_percent for use in node.gpus[0].pods] == [0.0, 0.0]
    assert (node.gpus[0].other_processes, node.lacks) == (0, ())


def test_a_server_of_mps_that_nobody_uses_is_no_process_of_anybody() -> None:
    _, reader = under_mps(busy=0)
    (gpu,) = read(reader, 0.0)
    assert (gpu.pods, gpu.other_processes) == ((), 0)


def test_counters_tell_what_was_done_since_they_were_last_read() -> None:
    driver = FakeDriver(FakeGpu("GPU-a", activity=Activity(99.0, 4.04)))
    reader = opened(driver)
    assert read(reader, 0.0)[0].sm_active_percent is None  # since when?
    assert read(reader, COUNTERS_S)[0].sm_active_percent == 4.0
    assert len(driver.counters) == 1
    driver.faults[0, "count_gpu"] = UNKNOWN
    assert read(reader, 2 * COUNTERS_S)[0].sm_active_percent is None
    assert not driver.counters
    del driver.faults[0, "count_gpu"]
    driver.gpus[0].activity = Activity(99.0, float("nan"))
    read(reader, 3 * COUNTERS_S)
    assert read(reader, 4 * COUNTERS_S)[0].sm_active_percent is None


def test_counters_of_a_driver_that_was_opened_anew_are_begun_anew() -> None:
    driver = FakeDriver(FakeGpu("GPU-a", activity=Activity(99.0, 50.0)))
    reader = opened(driver)
    read(reader, 0.0)
    driver.faults[None, "next_xid"] = DRIVER_NOT_LOADED
    driver.faults[0, "rates"] = DRIVER_NOT_LOADED
    assert read(reader, 1.0)[0].health == "lost"
    driver.faults.clear()
    found = [read(reader, 2.0 + second)[0].sm_active_percent for second in range(40)]
    assert found[0] is None
    assert found[-1] == 50.0


def test_an_idle_gpu_is_not_asked_who_uses_how_much() -> None:
    driver = FakeDriver(FakeGpu("GPU-a"))
    read(opened(driver), 0.0)
    assert driver.asked["process_samples"] == 0


def test_of_very_many_processes_those_with_the_most_memory_are_reported() -> None:
    many = [Process(pid, pid * MIB) for pid in range(1, 3 * MAX_PROCESSES + 1)]
    reading = read(opened(FakeDriver(FakeGpu("GPU-a", compute_processes=many))), 0.0)[0]
    assert [one.pid for one in reading.processes] == list(
        range(2 * MAX_PROCESSES + 1, 3 * MAX_PROCESSES + 1)
    )


def test_a_thousand_processes_of_a_gpu_are_told_by_pod_and_still_fit_one_message() -> None:
    """Eight GPUs: whole sums by pod, however few processes are told one by one."""
    uids = [str(UUID(int=number)) for number in range(1, 41)]
    gpus: list[FakeGpu] = []
    groups: dict[int, str] = {}
    for place in range(8):
        pids = range(10_000 * place + 1, 10_000 * place + 1001)
        groups |= {pid: uids[pid % 40] for pid in pids}
        gpus.append(
            FakeGpu(f"GPU-{place}", compute_processes=[Process(pid, 10 * MIB) for pid in pids])
        )
    now_s = [0.0]
    proc = pods_of(groups)._proc
    reader = NvmlReader(FakeDriver(*gpus), Pods(proc, lambda: now_s[0]))
    reader.open(now_s=0.0)
    seen = []
    for _ in range(17):  # 512 processes that nobody knows yet are looked up at each read
        now_s[0] += 1.0
        seen = read(reader, now_s[0])
    for reading in seen:
        assert len(reading.processes) == MAX_PROCESSES
        assert len(reading.pods) == MAX_PODS
        assert {(use.processes, use.memory_mib) for use in reading.pods} == {(25, 250)}
        assert reading.other_processes == 0
    told = NodeTelemetry(
        cluster="c", node="n" * 63, epoch=1, counter=1, observed_at_s=now_s[0], interval_s=1.0,
        source="nvml", gpus=tuple(seen),
    )  # fmt: skip
    assert len(encode(told)) < Limits().max_telemetry_bytes


def test_a_process_in_two_mig_instances_is_one_process() -> None:
    twice = [Process(101, 10 * MIB), Process(101, 20 * MIB)]
    driver = FakeDriver(FakeGpu("GPU-a", compute_processes=twice))
    driver.faults[0, "rates"] = NOT_SUPPORTED  # as real ones in MIG mode
    reading = read(opened(driver), 0.0)[0]
    assert reading.processes == (GpuProcess(pid=101, memory_mib=30, pod_uid=PODS[101]),)


MIG_A = FakeMig("MIG-a", "NVIDIA A100-SXM4-40GB MIG 3g.20gb", Slice(3, 3, 19_968), used_mib=12)
MIG_B = FakeMig("MIG-b", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", Slice(1, 1, 4_864), used_mib=1_000)


def test_a_gpu_in_mig_mode_lists_its_instances() -> None:
    driver = FakeDriver(FakeGpu("GPU-a", mig=[MIG_A, MIG_B]))
    driver.faults[0, "rates"] = NOT_SUPPORTED  # as real ones in MIG mode
    expected = msgspec.structs.replace(
        WHOLE,
        utilization_percent=None,
        memory_bandwidth_percent=None,
        mig=(
            MigInstance(uuid="MIG-a", profile="3g.20gb", memory_mib=19_968, memory_used_mib=12),
            MigInstance(uuid="MIG-b", profile="1g.5gb", memory_mib=4_864, memory_used_mib=1_000),
        ),
    )
    assert read(opened(driver), 0.0) == [expected]


def test_an_instance_with_counters_says_what_it_does_unless_it_shares_them() -> None:
    alone = replace(MIG_A, gpu_instance=2, activity=Activity(30.0, 12.0))
    halves = [replace(MIG_B, uuid=f"MIG-{n}", gpu_instance=5) for n in "bc"]
    driver = FakeDriver(FakeGpu("GPU-a", mig=[alone, *halves], activity=Activity(0.0, 0.0)))
    reader = opened(driver)
    read(reader, 0.0)
    found = read(reader, COUNTERS_S)[0]
    assert found.sm_active_percent is None
    assert [(one.utilization_percent, one.sm_active_percent) for one in found.mig] == [
        (30.0, 12.0), (None, None), (None, None),
    ]  # fmt: skip
    assert len(driver.counters) == 1


def test_an_instance_whose_memory_may_not_be_read_is_listed_without() -> None:
    driver = FakeDriver(FakeGpu("GPU-a", mig=[MIG_B]))
    driver.faults[0, "mig_memory"] = NO_PERMISSION
    driver.faults[0, "mig_name"] = NOT_SUPPORTED
    assert read(opened(driver), 0.0)[0].mig == (
        MigInstance(uuid="MIG-b", profile="1g.5gb", memory_mib=4_864),
    )


def test_an_instance_without_identity_is_not_listed() -> None:
    driver = FakeDriver(FakeGpu("GPU-a", mig=[MIG_B]))
    driver.faults[0, "mig_uuid"] = UNKNOWN
    assert read(opened(driver), 0.0)[0].mig == ()


# What a GPU instance measures in MiB, and how its profile is called all the same.
A100_40 = Memory(40_960 * MIB, 0)
H100_80 = Memory(81_559 * MIB, 0)
PROFILES = {
    "1g.5gb": (Slice(1, 1, 4_864), A100_40),
    "2g.10gb": (Slice(2, 2, 9_984), A100_40),
    "3g.20gb": (Slice(3, 3, 19_968), A100_40),
    "7g.40gb": (Slice(7, 7, 40_320), A100_40),
    "1c.3g.20gb": (Slice(3, 1, 19_968), A100_40),
    "1g.10gb": (Slice(1, 1, 9_984), H100_80),
    "7g.80gb": (Slice(7, 7, 80_896), H100_80),
    "4g.40gb": (Slice(4, 4, 40_448), H100_80),
}


@pytest.mark.parametrize(("profile", "made"), PROFILES.items(), ids=PROFILES)
def test_a_profile_is_named_by_what_it_is_made_of(profile: str, made: tuple[Slice, Memory]) -> None:
    assert profile_name("", *made) == profile


def test_a_profile_is_named_even_when_the_gpu_keeps_its_size_to_itself() -> None:
    assert profile_name("", Slice(1, 1, 4_864), None) == "1g.5gb"
    assert profile_name("", None, None) == ""
    assert profile_name("NVIDIA H100 MIG 1g.10gb+me", None, None) == "1g.10gb+me"


UNWELL = {
    "uncorrected errors": (
        {"ecc_uncorrected": 3},
        {"ecc_uncorrected": 3},
        "3 uncorrected memory errors",
    ),
    "rows waiting to be remapped": (
        {"remapped_rows": Remapped(pending=True, failed=False)},
        {},
        "memory waits to be retired: the GPU needs a reset",
    ),
    "a driver that asks for a reboot": (
        {"recovery_action": 2},
        {},
        "the driver asks for a reboot of the node",
    ),
    "heat": (
        {"clock_reasons": 0x48},
        {"throttle_reasons": ("hw_slowdown", "hw_thermal_slowdown")},
        "slowed down by heat",
    ),
}


@pytest.mark.parametrize(("given", "shown", "why"), UNWELL.values(), ids=UNWELL)
def test_a_gpu_is_degraded_by(given: dict[str, object], shown: dict[str, object], why: str) -> None:
    gpu = replace(FakeGpu("GPU-a"), **given)  # type: ignore[arg-type] # a table of figures
    expected = msgspec.structs.replace(WHOLE, health="degraded", health_reason=why, **shown)
    assert read(opened(FakeDriver(gpu)), 0.0) == [expected]


def test_an_older_gpu_that_retires_pages_instead_of_rows_is_degraded_alike() -> None:
    driver = FakeDriver(FakeGpu("GPU-a", retired_pages_pending=True))
    driver.faults[0, "remapped_rows"] = NOT_SUPPORTED
    assert read(opened(driver), 0.0)[0].health == "degraded"
