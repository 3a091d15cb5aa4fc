"""Which GPUs of a node belong together, as drivers, HAMi and annotations tell it."""

import json
from typing import Any

import pytest

from berthmaster.lib.kube.controller.problems import Problems
from berthmaster.lib.messages.fleet import Stamp
from berthmaster.worker.inventory.core.devices.dra import offered_by
from berthmaster.worker.inventory.core.devices.links import NUMA, NVLINK
from berthmaster.worker.inventory.core.node_index import NodeIndex
from berthmaster.worker.inventory.core.nodes import NodeShape, shape_of
from tests.unit.worker.inventory.objects import device, discovered, node, resource_slice

GPU = "nvidia.com/gpu"


def told(shape: NodeShape) -> list[tuple[int | None, int | None]]:
    return [(gpu.nvlink_domain, gpu.numa_node) for gpu in shape.gpus]


def shape(count: int = 4, annotations: dict[str, str] | None = None, **fields: Any) -> NodeShape:
    labels = discovered(count=count)
    one = node(allocatable={GPU: str(count)}, labels=labels, annotations=annotations, **fields)
    return shape_of(one, offered_by(()))


def test_a_device_plugin_tells_nothing() -> None:
    assert told(shape(2)) == [(None, None)] * 2


def test_annotations_tell_by_index() -> None:
    found = shape(annotations={NVLINK: "0,1 2,3", NUMA: "0,2 1"})
    assert told(found) == [(0, 0), (0, 1), (1, 0), (1, None)]
    assert found.problems == ()
    assert found.schedulable


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0-3", "'0-3' is no index of a GPU; right is such as 0,1,2,3 4,5,6,7"),
        ("0,1 1,2", "GPU 1 is in two groups"),
        ("0,1,2,3,4", "GPU 4 of 4: indices are from 0 to 3"),
        ("0,,1", "'' is no index of a GPU; right is such as 0,1,2,3 4,5,6,7"),
        ("²", "'²' is no index of a GPU; right is such as 0,1,2,3 4,5,6,7"),
        ("9" * 5000, f"'{'9' * 32}' is no index of a GPU; right is such as 0,1,2,3 4,5,6,7"),
    ],
)
def test_what_cannot_be_right_is_told_and_not_believed(text: str, problem: str) -> None:
    found = shape(annotations={NVLINK: text, NUMA: "0,1,2,3"})
    assert told(found) == [(None, 0)] * 4
    assert found.problems == (f"annotation {NVLINK}: {problem}",)
    assert found.schedulable  # the node itself is fine


def test_a_driver_tells_by_attributes_under_any_prefix() -> None:
    numbers = [{"gpu.example.com/nvlinkDomain": 0, "numaNode": 1}, {"numaNode": -1}]
    devices = [
        device(f"gpu-{at}", type="gpu", uuid=f"GPU-{at}", productName="Tesla T4", numbers=each)
        for at, each in enumerate(numbers)
    ]
    slices = offered_by([resource_slice("s", devices)])
    assert told(shape_of(node(), slices)) == [(0, 1), (None, None)]  # -1: nobody knows
    # Beside a device plugin that counts the same GPUs, and a person who knows better.
    counted = node(allocatable={GPU: "2"}, labels=discovered(count=2))
    assert told(shape_of(counted, slices)) == [(0, 1), (None, None)]
    labels = discovered(count=2)
    knows = node(allocatable={GPU: "2"}, labels=labels, annotations={NVLINK: "1 0"})
    assert told(shape_of(knows, slices)) == [(1, 1), (0, None)]


def test_the_fleet_is_told_and_told_anew_when_it_changes() -> None:
    book = NodeIndex("c1", Problems())
    labels = discovered(count=2)

    def reported(annotations: dict[str, str]) -> list[int | None]:
        book.set_node(node(allocatable={GPU: "2"}, labels=labels, annotations=annotations))
        report = book.report("n1", Stamp(epoch=1, counter=1), 0.0)
        assert report is not None
        return [gpu.nvlink_domain for gpu in report.gpus]

    assert reported({}) == [None, None]
    book.dirty.clear()
    assert reported({NVLINK: "0,1"}) == [0, 0]
    assert list(book.dirty) == ["n1"]


def test_hami_tells_numa_nodes_where_there_are_several() -> None:
    def listed(*numa: int) -> NodeShape:
        devices = [
            {"id": f"GPU-{at}", "devmem": 15_360, "type": "NVIDIA-Tesla T4", "health": True}
            | ({"numa": each} if each else {})
            for at, each in enumerate(numa)
        ]
        register = {"hami.io/node-nvidia-register": json.dumps(devices)}
        one = node(allocatable={GPU: "20"}, labels=discovered(count=2), annotations=register)
        return shape_of(one, offered_by(()))

    assert told(listed(0, 1)) == [(None, 0), (None, 1)]
    assert told(listed(0, 0)) == [(None, None)] * 2
