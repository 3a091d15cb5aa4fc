"""What no GPU can have is not measured, whichever source says it."""

import math
from typing import Any

import pytest
from msgspec.structs import replace

from berthmaster.lib.messages.telemetry import (
    MAX_MODEL_CHARS,
    GpuPodUse,
    GpuProcess,
    GpuReading,
    MigInstance,
)
from berthmaster.worker.telemetry.core.plausible import plausible

RIGHT = GpuReading(
    index=3,
    uuid="GPU-a",
    model="NVIDIA-H100",
    memory_total_mib=81_559,
    memory_used_mib=81_559,
    utilization_percent=100,
    sm_active_percent=0,
    memory_bandwidth_percent=100,
    power_w=0,
    power_limit_w=700,
    temperature_c=-10,
    sm_clock_mhz=1980,
    memory_clock_mhz=14_001,
    ecc_corrected=2**53,
    ecc_uncorrected=0,
    xid=154,
    mig=(MigInstance(uuid="MIG-a", profile="1g.10gb", memory_mib=9_984, memory_used_mib=1),),
    processes=(GpuProcess(pid=1, memory_mib=500, sm_percent=3),),
    pods=(GpuPodUse(pod_uid="u", memory_mib=500, sm_percent=3),),
)


def test_what_can_be_right_stays_as_it_is() -> None:
    assert plausible(RIGHT) == (RIGHT, [])
    nothing = GpuReading(index=0, uuid="", model="")
    assert plausible(nothing) == (nothing, [])


def test_long_model_name_is_cut_to_what_readers_take() -> None:
    cut, _ = plausible(replace(RIGHT, model="H" * 500))
    assert cut.model == "H" * MAX_MODEL_CHARS


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("memory_total_mib", 2**31),
        ("memory_used_mib", -1),
        ("memory_used_mib", 81_560),  # more than there is
        ("utilization_percent", 900.0),
        ("utilization_percent", math.nan),
        ("sm_active_percent", 101.0),
        ("memory_bandwidth_percent", -1.0),
        ("power_w", -0.1),
        ("power_w", math.inf),
        ("power_limit_w", 1e6),
        ("temperature_c", 151.0),
        ("temperature_c", -273.0),
        ("sm_clock_mhz", -1),
        ("memory_clock_mhz", 10**9),
        ("ecc_corrected", -1),
        ("ecc_uncorrected", 2**63),
        ("xid", -1),
        ("xid", 10**8),
    ],
)
def test_what_cannot_be_right_is_unknown_and_named(field: str, value: float) -> None:
    wrong: dict[str, Any] = {field: value}
    found, refused = plausible(replace(RIGHT, **wrong))
    assert found == replace(RIGHT, **{field: None})
    assert refused == [f"{field} of GPU 3 is {value:g}"]


def test_of_parts_of_a_gpu_the_same_bounds_hold() -> None:
    found, refused = plausible(
        replace(
            RIGHT,
            mig=(replace(RIGHT.mig[0], memory_used_mib=-1, utilization_percent=900),),
            processes=(replace(RIGHT.processes[0], memory_mib=2**44),),
            pods=(replace(RIGHT.pods[0], sm_percent=math.nan), RIGHT.pods[0]),
        )
    )
    assert found.mig == (replace(RIGHT.mig[0], memory_used_mib=None, utilization_percent=None),)
    assert found.processes == (replace(RIGHT.processes[0], memory_mib=None),)
    assert found.pods == (replace(RIGHT.pods[0], sm_percent=None), RIGHT.pods[0])
    assert len(refused) == 4
