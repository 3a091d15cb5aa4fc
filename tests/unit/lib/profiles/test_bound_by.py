"""What a job is bound by, from its medians."""

import pytest

from berthmaster.lib.profiles.bound_by import bound_by

GPU = "gpu_utilization_percent"
SM = "gpu_sm_active_percent"
DRAM = "gpu_dram_active_percent"
TENSOR = "gpu_tensor_active_percent"
BANDWIDTH = "gpu_memory_bandwidth_percent"
RECEIVED = "network_receive_bytes_per_s"
SENT = "network_transmit_bytes_per_s"


@pytest.mark.parametrize(
    ("values", "pods", "expected"),
    [
        ({GPU: 100.0, SM: 99.0, DRAM: 0.0, TENSOR: 0.0}, 1, "compute"),  # a kernel that spins
        ({GPU: 100.0, SM: 95.0, DRAM: 30.0, TENSOR: 70.0}, 1, "compute"),  # matrix products
        ({GPU: 100.0, SM: 95.0, DRAM: 86.0, TENSOR: 0.0}, 1, "memory"),  # a copy
        ({GPU: 100.0, SM: 90.0, DRAM: 50.0, TENSOR: 80.0}, 1, "compute"),  # nearer to its own end
        ({GPU: 100.0, BANDWIDTH: 90.0}, 1, "memory"),  # without counters
        ({GPU: 100.0, BANDWIDTH: 30.0}, 1, "compute"),
        ({GPU: 50.0, SM: 49.0}, 1, "input"),  # sleeps between steps
        ({GPU: 2.0, "cpu_cores": 4.0}, 1, "input"),  # its CPU works, its GPU waits
        ({GPU: 2.0, "cpu_cores": 0.01}, 1, "idle"),
        ({GPU: 0.0}, 1, "idle"),
        ({GPU: 60.0, RECEIVED: 200e6, SENT: 190e6}, 2, "network"),
        ({GPU: 60.0, RECEIVED: 200e6, SENT: 2e6}, 2, "input"),  # it reads its data from afar
        ({GPU: 60.0, RECEIVED: 2e6, SENT: 2e6}, 2, "input"),
        ({"cpu_cores": 4.0}, 1, ""),  # no GPU was measured
    ],
)
def test_bound_by_names_what_the_medians_say(
    values: dict[str, float], pods: int, expected: str
) -> None:
    assert bound_by(values, pods).bound_by == expected


def test_bound_by_tells_the_shares_that_it_rests_on() -> None:
    verdict = bound_by({GPU: 100.0, SM: 95.0, DRAM: 86.0, TENSOR: 0.0})
    assert verdict.shares == {"waiting": 0.0, "compute": 0.95, "tensor": 0.0, "memory": 0.86}
