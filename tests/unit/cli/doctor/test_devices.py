"""What the doctor says of shared GPUs, of devices that are claimed, and of what starts gangs."""

from typing import Any

import msgspec
import pytest

from berthmaster.cli.doctor.core import diagnose
from berthmaster.cli.doctor.facts import DeviceDriver, GpuNode, Sharing, Survey
from berthmaster.cli.doctor.findings import Finding
from berthmaster.cli.doctor.objects import (
    DeviceClass,
    Node,
    ResourceSlice,
    drivers,
    gpu_nodes,
    manager_config,
)
from berthmaster.cli.doctor.rights import agent_rights
from berthmaster.lib.kube.resources import POD_GROUPS, VOLCANO_POD_GROUPS
from tests.unit.cli.doctor.surveys import worker

GPU = "nvidia.com/gpu"
REPLICAS = "nvidia.com/gpu.replicas"
STRATEGY = "nvidia.com/gpu.sharing-strategy"


def found(**changed: Any) -> list[Finding]:
    survey = Survey(mode="observe", namespace="sys", workers=(worker(**changed),))
    return diagnose(survey).findings


def node(
    offered: dict[str, str], labels: dict[str, str], annotations: dict[str, str] | None = None
) -> Node:
    metadata = {"name": "n", "labels": labels, "annotations": annotations or {}}
    return msgspec.convert({"metadata": metadata, "status": {"allocatable": offered}}, Node)


@pytest.mark.parametrize(
    ("offered", "labels", "sharing"),
    [
        ({GPU: "4"}, {}, ""),
        ({GPU: "4"}, {REPLICAS: "1"}, ""),
        ({GPU: "4"}, {REPLICAS: "4"}, "time slicing"),
        ({"nvidia.com/gpu.shared": "4"}, {}, "time slicing"),
        ({GPU: "4"}, {REPLICAS: "4", STRATEGY: "mps"}, "MPS"),
        ({GPU: "4"}, {REPLICAS: "4", "nvidia.com/mps.capable": "true"}, "MPS"),
        (
            {GPU: "4"},
            {REPLICAS: "4", STRATEGY: "time-slicing", "nvidia.com/mps.capable": "true"},
            "time slicing",
        ),
        ({"nvidia.com/mig-1g.10gb": "7"}, {}, "MIG"),
        ({GPU: "4"}, {"nvidia.com/gpu.product": "NVIDIA-A100-MIG-1g.5gb"}, "MIG"),
        ({GPU: "4"}, {REPLICAS: "many"}, ""),
        ({"berthmaster.io/gpu-milli": "4000"}, {}, "MPS"),
        ({"berthmaster.io/gpu-milli.shared": "4000"}, {}, "time slicing"),
    ],
)
def test_how_a_node_shares_its_gpus(
    offered: dict[str, str], labels: dict[str, str], sharing: str
) -> None:
    (one,) = gpu_nodes(node(offered, labels))
    assert one.sharing == sharing
    (hami,) = gpu_nodes(node(offered, labels, {"hami.io/node-nvidia-register": "[]"}))
    assert hami.sharing == "HAMi"


def test_how_hard_the_limits_of_shared_gpus_are_is_told() -> None:
    ways: tuple[Sharing, ...] = ("MPS", "time slicing", "time slicing")
    nodes = tuple(
        GpuNode(name=f"n{at}", gpus=1, model="T4", sharing=how) for at, how in enumerate(ways)
    )
    whats = [one.what for one in found(gpu_nodes=nodes)]
    assert "1 nodes share GPUs by MPS: each pod is held to its memory (isolation memory)" in whats
    assert (
        "2 nodes share GPUs by time slicing: nothing holds a pod to its part (isolation none)"
        in whats
    )


def test_devices_that_no_class_names_are_told_with_the_class_that_they_lack() -> None:
    slices = [
        msgspec.convert({"spec": {"driver": driver, "nodeName": on}}, ResourceSlice)
        for driver, on in (
            ("gpu.nvidia.com", "n1"),
            ("gpu.nvidia.com", "n2"),
            ("gpu.amd.com", "n3"),
            ("dra.net", "n1"),
        )
    ]
    selector = {"cel": {"expression": 'device.driver == "gpu.nvidia.com"'}}
    spec = {"metadata": {"name": "big"}, "spec": {"selectors": [selector]}}
    known = drivers(slices, [msgspec.convert(spec, DeviceClass)])
    assert known == (
        DeviceDriver(name="gpu.amd.com", nodes=1),
        DeviceDriver(name="gpu.nvidia.com", nodes=2, classes=("big",)),
    )
    told = {one.what: one for one in found(drivers=known, gpu_nodes=())}
    assert told["devices of gpu.nvidia.com on 2 nodes, claimed by DeviceClass big"].level == "ok"
    lacking = told["no DeviceClass names gpu.amd.com, which has devices on 1 nodes"]
    assert lacking.level == "warning"
    assert "device.driver == 'gpu.amd.com'" in lacking.change
    # Nodes that only have devices to be claimed are not without GPUs.
    assert not [what for what in told if "offers GPUs" in what]


def test_what_starts_gangs_is_named_and_what_happens_where_nothing_does() -> None:
    by = "gangs start together by KAI's scheduler, for its own pods; Kueue's waitForPodsReady"
    [one] = [one for one in found(together=("kai", "kueue")) if one.what.startswith(by)]
    assert one.level == "ok"
    [none] = [one for one in found(together=()) if one.level == "note"]
    assert none.what == "nothing starts all pods of a gang or none"
    assert "--gang-limit-s" in none.means
    assert not [one for one in found(together=(), gpu_nodes=()) if "gang" in one.what]


@pytest.mark.parametrize(
    ("text", "waits"),
    [
        ("waitForPodsReady: {timeout: 5m}", True),
        ("waitForPodsReady: {enable: true}", True),
        ("waitForPodsReady: {enable: false}", False),
        ("waitForPodsReady: yes", False),
        ("health: {}", False),
    ],
)
def test_whether_kueue_waits_for_pods(text: str, waits: bool) -> None:
    config = manager_config({"controller_manager_config.yaml": text}, None)
    assert config.waits_for_pods is waits


def test_rights_on_claims_and_groups_are_asked_for_where_they_are_used() -> None:
    plain = agent_rights(["ml"])
    assert not [right for right in plain if right.group.startswith(("resource", "scheduling"))]
    more = [r for r in agent_rights(["ml"], claims=True, groups=[POD_GROUPS]) if r not in plain]
    assert sorted((right.resource, right.verb, right.namespace) for right in more) == sorted(
        [
            *((kind, verb, "") for kind in ("deviceclasses", "resourceclaims", "resourceslices")
              for verb in ("get", "list", "watch")),
            *((kind, verb, "ml") for kind in ("podgroups", "resourceclaimtemplates")
              for verb in ("create", "get")),
        ]
    )  # fmt: skip


def test_where_volcano_runs_jobs_what_the_executor_needs_is_asked_for_and_said() -> None:
    plain = agent_rights(["ml"])
    group, kind = VOLCANO_POD_GROUPS.group, "podgroups"
    shown = [r for r in agent_rights(["ml"], groups=[VOLCANO_POD_GROUPS]) if r not in plain]
    assert sorted(r.verb for r in shown if (r.group, r.resource) == (group, kind)) == [
        "create", "get", "list", "watch",
    ]  # fmt: skip
    more = [right for right in agent_rights(["ml"], volcano_jobs=True) if right not in plain]
    assert sorted((right.group, right.verb, right.namespace) for right in more) == sorted(
        [
            *(("batch.volcano.sh", verb, "ml")
              for verb in ("create", "delete", "get", "list", "patch", "watch")),
            *((group, verb, "ml") for verb in ("list", "watch")),
        ]
    )  # fmt: skip
    said = [
        one for one in found(job_kinds=frozenset({"VolcanoJob"})) if "--jobs volcano" in one.what
    ]
    assert [one.level for one in said] == ["ok"]
    assert not [one for one in found() if "--jobs volcano" in one.what]
