"""What reading a Workload of a hub costs: what it asks for, and what is required of a cluster by
name. Each ranking does so once."""

import timeit

import msgspec

from berthmaster.kueue.workloads import KueueWorkload
from berthmaster.multikueue.known.requests import (
    read_asks,
    read_request,
    read_required,
    read_sets,
)

BUDGETS = {"plain_us": ("<=", 50.0), "rich_us": ("<=", 50.0)}
ROUNDS = 2000


def _workload(*asks: dict[str, str]) -> KueueWorkload:
    """A pod set of one container for each."""
    sets = [
        {
            "name": f"set-{number}",
            "count": 4,
            "template": {"spec": {"containers": [{"resources": {"requests": one, "limits": one}}]}},
        }
        for number, one in enumerate(asks)
    ]
    document = {"metadata": {"name": "w", "uid": "1"}, "spec": {"podSets": sets}}
    return msgspec.convert(document, KueueWorkload)


def _both_us(workload: KueueWorkload) -> float:
    request = read_request(workload).request

    def read() -> None:
        sets = read_sets(workload)
        read_request(workload, sets)
        read_required(workload, read_asks(workload, request, sets), sets)

    return min(timeit.repeat(read, number=ROUNDS, repeat=5)) / ROUNDS * 1e6


def measure() -> dict[str, float]:
    """One pod set of whole GPUs, and two with what the engine does not rank."""
    host = {"cpu": "8", "memory": "64Gi"}
    tpus = host | {"google.com/tpu": "4", "example.com/nic": "1"}
    return {
        "plain_us": _both_us(_workload(host | {"nvidia.com/gpu": "8"})),
        "rich_us": _both_us(_workload(host, tpus)),
    }
