"""The table of what accelerators are asked for by."""

import ast
from pathlib import Path

import pytest

import berthmaster
from berthmaster.accelerators.mig import Profile, profile
from berthmaster.accelerators.table import TABLE, How, how_of

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
        ("habana.ai/gaudi", How.OTHER),
        ("cpu", None),
        ("hugepages-2Mi", None),
        ("feature.node.kubernetes.io/sgx", None),
        ("requests.nvidia.com/gpu", None),
    ],
)
def test_a_name_is_had_as_its_row_says_and_an_unknown_one_is_still_asked_for(
    name: str, how: How | None
) -> None:
    assert how_of(name) is how


@pytest.mark.parametrize(
    ("name", "has"),
    [
        ("1g.10gb", Profile(1, 10240)),
        ("1c.3g.40gb", Profile(3, 40960)),
        ("1g.10gb+me", Profile(1, 10240)),
        ("8g.80gb", None),
        ("1g.10gb\n", None),
        ("huge", None),
    ],
)
def test_a_profile_tells_its_slices_and_memory(name: str, has: Profile | None) -> None:
    assert profile(name) == has


def test_nobody_beside_the_table_keeps_a_list_of_its_names() -> None:
    names = {row.name for row in TABLE if row.end != ".shared"}
    found = [
        (path.relative_to(SERVICES).as_posix(), node.value)
        for path in SERVICES.rglob("*.py")
        if path.parent.name != "accelerators"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in names
    ]
    assert found == []
