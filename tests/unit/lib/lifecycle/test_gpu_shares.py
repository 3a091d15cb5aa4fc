"""What a job with fractions of GPUs was granted, and what of its use exceeds that."""

from typing import Any

import pytest

from berthmaster.lib.lifecycle.gpu_shares import ShareUse, is_sharing, share_use
from berthmaster.lib.messages.telemetry import GpuUse
from berthmaster.lib.messages.workload import JobRequest, PodSet


def request(**fields: Any) -> JobRequest:
    return JobRequest(id="a", pod_sets=(PodSet(**({"gpus": 1} | fields)),))


def measured(percent: float | None, used_mib: int | None, devices: int = 2) -> GpuUse:
    return GpuUse(
        gpus=devices,
        measured=devices if percent is not None else 0,
        utilization_percent=percent,
        memory_used_mib=used_mib,
        memory_total_mib=80_000 * devices,
    )


HALVES = request(count=2, gpu_milli=500)


@pytest.mark.parametrize(
    ("use", "exceeded"),
    [
        (measured(50.0, 80_000), ()),
        (measured(55.0, 84_000), ()),  # the slack of the measurement
        (measured(56.0, 80_000), ("compute",)),
        (measured(10.0, 84_100), ("memory",)),
        (measured(100.0, 160_000), ("compute", "memory")),
        (measured(None, None), ()),  # not measured is not exceeded
    ],
)
def test_share_use_names_the_limits_that_are_exceeded(
    use: GpuUse, exceeded: tuple[str, ...]
) -> None:
    found = share_use(HALVES, use)
    assert found is not None
    assert (found.granted_milli, found.granted_mib) == (1000, 80_000)
    assert found.exceeded == exceeded


def test_share_use_of_a_fraction_by_memory_limits_memory_alone() -> None:
    by_memory = request(gpu_milli=1, gpu_memory_mib=10_000)
    found = share_use(by_memory, measured(90.0, 10_600, 1))
    assert found == ShareUse(1, None, 900, 10_000, 10_600)
    assert found is not None
    assert found.exceeded == ("memory",)


def test_share_use_is_none_without_fractions_or_with_devices_missing() -> None:
    assert share_use(request(), measured(90.0, 10, 1)) is None
    assert share_use(HALVES, measured(90.0, 10, 1)) is None
    assert not is_sharing(request(gpu_milli=300, mig_profile="1g.10gb"))
    assert not is_sharing(JobRequest(id="a", pod_sets=(PodSet(cpu_milli=1),)))
