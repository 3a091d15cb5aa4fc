"""The table of what accelerators are asked for by."""

import ast
from pathlib import Path

import pytest

import berthmaster
from berthmaster.lib.accelerators.table import (
    ASKED_BY,
    INSTANCE_TYPE,
    MODEL_LABELS,
    TABLE,
    How,
    how_of,
    is_resource_name,
)
from berthmaster.lib.accelerators.tpu import (
    ACCELERATOR_LABEL,
    POOL_LABEL,
    TOPOLOGY_LABEL,
    chips_of,
    spans_nodes,
)

SERVICES = Path(berthmaster.__file__).parent


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("nvidia.com/gpu", How.WHOLE),
        ("amd.com/gpu", How.WHOLE),
        ("gpu.intel.com/i915", How.WHOLE),
        ("gpu.intel.com/xe", How.WHOLE),
        ("google.com/tpu", How.TPU),
        ("nvidia.com/mig-1g.10gb", How.MIG),
        ("nvidia.com/gpu.shared", How.SHARED),
        ("nvidia.com/mig-1g.10gb.shared", How.SHARED),
        ("nvidia.com/gpumem-percentage", How.LIMIT),
        ("nvidia.com/gpumem", How.LIMIT),
        ("nvidia.com/gpucores", How.LIMIT),
        ("nvidia.com/gpus", How.OTHER),
        ("deviceclass.resource.kubernetes.io/gpu.nvidia.com", How.CLASS),
        ("habana.ai/gaudi", How.OTHER),
        ("cpu", None),
        ("hugepages-2Mi", None),
        ("feature.node.kubernetes.io/sgx", None),
        ("requests.nvidia.com/gpu", None),
    ],
)
def test_accelerator_name_follows_its_row(name: str, how: How | None) -> None:
    assert how_of(name) is how


def test_nobody_beside_the_table_keeps_a_list_of_its_names() -> None:
    names = {row.name for row in TABLE if row.end != ".shared"}
    names |= {*MODEL_LABELS, ACCELERATOR_LABEL, TOPOLOGY_LABEL, POOL_LABEL} - {INSTANCE_TYPE}
    found = [
        (path.relative_to(SERVICES).as_posix(), node.value)
        for path in SERVICES.rglob("*.py")
        if path.parent.name != "accelerators"
        if "controlplane" not in path.parts  # the lab makes up nodes and quotas
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in names
    ]
    assert found == []


def test_what_has_a_row_has_a_field_that_it_is_asked_by() -> None:
    assert set(ASKED_BY) == {row.how for row in TABLE}


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("rdma/hca", True),
        ("vpc.amazonaws.com/efa", True),
        ("example.com/A_b.c-d", True),
        ("hca", False),
        ("/hca", False),
        ("rdma/", False),
        ("rdma/hca/x", False),
        ("RDMA/hca", False),
        ("a..b/hca", False),
        (f"{'a' * 254}/hca", False),
        (f"rdma/{'a' * 64}", False),
        ("rdma/hca\n", False),
        ("kubernetes.io/x", False),
        ("notkubernetes.io/x", False),  # Kubernetes takes it for its own
        ("requests.rdma/hca", False),
    ],
)
def test_a_resources_name_is_one_that_a_node_could_offer(name: str, is_one: bool) -> None:
    assert is_resource_name(name) is is_one


def test_a_topology_tells_its_chips_and_whether_several_nodes_make_it_up() -> None:
    sizes = {"2x4": 8, "2x2x4": 16, "16x16x24": 6144, "1x1": 1}
    assert {topology: chips_of(topology) for topology in sizes} == sizes
    wrong = ("", "8", "2x", "x2", "0x4", "2x-4", "2X4", "2x2x2x2", "2x4\n", "99999x99999")
    assert [chips_of(text) for text in wrong] == [None] * len(wrong)
    assert spans_nodes("2x4", 4)
    assert not spans_nodes("2x4", 8)
    assert not spans_nodes("", 4)
