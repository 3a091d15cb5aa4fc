"""How many bytes the messages take that travel most, so that growth is a decision, and what they
cost whoever keeps them."""

from types import ModuleType

import msgspec
import pytest

from berthmaster.lib.messages import fleet, placement, workload
from berthmaster.lib.messages.families import encode
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.telemetry import GpuProcess, GpuReading, NodeTelemetry
from berthmaster.lib.messages.workload import MAX_PODS, Claimed, Placed, PodSet, Running
from tests.support.builders import alive, job, node
from tests.support.lives import fitting, lived

MAX_PAYLOAD_BYTES = 1024 * 1024  # the server's


def telemetry(gpus: int) -> NodeTelemetry:
    return NodeTelemetry(
        cluster="c1",
        node="gpu-node-0001.eu-central.example.com",
        epoch=1_700_000_000_000,
        counter=86_400,
        observed_at_s=1_700_000_000.123,
        interval_s=1.0,
        source="nvml",
        gpus=tuple(
            GpuReading(
                index=index,
                uuid="GPU-8f6e6c9a-3f7a-4f6e-9f0e-0123456789ab",
                model="NVIDIA H100 80GB HBM3",
                memory_total_mib=81_559,
                memory_used_mib=70_123,
                utilization_percent=97.0,
                memory_bandwidth_percent=61.0,
                power_w=689.123,
                power_limit_w=700.0,
                temperature_c=64.0,
                sm_clock_mhz=1980,
                memory_clock_mhz=2619,
                ecc_corrected=0,
                ecc_uncorrected=0,
                processes=(GpuProcess(pid=123_456, memory_mib=70_000),),
            )
            for index in range(gpus)
        ),
    )


def placed(pods: int, gpus: int, node_name: str) -> Placed:
    request = job(pod_sets=(PodSet(count=pods, gpus=gpus),))
    event = fitting(
        Placed,
        lived(),
        request=request,
        pods=tuple(
            PodBinding(pod=f"main-{n}", node=node_name, gpus=tuple(range(gpus)))
            for n in range(pods)
        ),
    )
    assert isinstance(event, Placed)
    return event


@pytest.mark.parametrize(
    ("message", "limit_bytes"),
    [
        (alive(), 130),
        (telemetry(1), 650),
        (telemetry(8), 4_000),
        (node(gpus=8), 1_000),
        (placed(1, 1, "n1"), 380),
        (fitting(Claimed, lived()), 200),
        (fitting(Running, lived()), 230),
    ],
    ids=["alive", "telemetry of 1", "telemetry of 8", "node of 8", "placed", "claimed", "running"],
)
def test_what_travels_most_stays_small(message: object, limit_bytes: int) -> None:
    size_bytes = len(encode(message))  # type: ignore[arg-type]
    assert limit_bytes / 2 < size_bytes <= limit_bytes  # lower it when a message has shrunk


def test_the_largest_gang_on_nodes_with_long_names_fits_one_message() -> None:
    assert len(encode(placed(MAX_PODS, 8, "n" * 63))) < MAX_PAYLOAD_BYTES


@pytest.mark.parametrize("family", [fleet, placement, workload])
def test_collector_skips_frozen_messages(family: ModuleType) -> None:
    for made in vars(family).values():
        if isinstance(made, type) and issubclass(made, msgspec.Struct):
            assert made is msgspec.Struct or not made.__struct_config__.gc, made
