"""What a queue lets its requests ask for."""

from typing import Any

import pytest

from berthmaster.lib.messages.control import QueueAllows, QueueSetting
from berthmaster.lib.messages.workload import JobRequest, PodSet, RunSpec, Toleration
from berthmaster.lib.requests.queues import priority_refusal, request_refusal


def asked(*, image: str = "", priority: int = 0, **pods: Any) -> JobRequest:
    return JobRequest(
        id="a", priority=priority, run=RunSpec(image=image), pod_sets=(PodSet(**pods),)
    )


def field(allows: QueueAllows, request: JobRequest) -> str:
    """Of the refusal, "" = it is taken."""
    refusal = request_refusal(QueueSetting(queue="q", allows=allows), request)
    return refusal.field if refusal is not None else ""


def test_without_bounds_everything_is_taken() -> None:
    wild = asked(
        image="anywhere/x",
        priority=1_000_000,
        gpus=8,
        node_labels={"zone": "a"},
        tolerations=(Toleration(operator="Exists"),),
    )
    assert request_refusal(QueueSetting(queue="q"), wild) is None


def test_a_priority_above_the_queue_s_is_refused_and_one_below_is_not() -> None:
    setting = QueueSetting(queue="q", max_priority=10)
    assert request_refusal(setting, asked(priority=10)) is None
    refusal = request_refusal(setting, asked(priority=11))
    assert refusal is not None
    assert (refusal.field, refusal.value) == ("priority", "11")
    assert "at most 10 in the queue 'q'" in refusal.expected
    assert priority_refusal(setting, -5) is None


@pytest.mark.parametrize(
    ("image", "taken"),
    [
        ("reg.example/team/train:1", True),
        ("reg.example/base:2", True),
        ("reg.example/base:3", False),
        ("reg.example/team-evil/x", False),
        ("other/team/x", False),
        ("", True),
    ],
)
def test_image_matches_whole_or_prefix(image: str, taken: bool) -> None:
    allows = QueueAllows(images=("reg.example/team/", "reg.example/base:2"))
    assert field(allows, asked(image=image)) == ("" if taken else "run.image")


def test_a_toleration_of_every_taint_needs_a_queue_that_allows_all() -> None:
    allows = QueueAllows(tolerations=("gpu",))
    assert field(allows, asked(tolerations=(Toleration(key="gpu"),))) == ""
    everything = asked(tolerations=(Toleration(key="gpu"), Toleration(operator="Exists")))
    assert field(allows, everything) == "pod_sets[0].tolerations[1].key"
    assert field(QueueAllows(tolerations=()), asked(tolerations=(Toleration(key="gpu"),))) != ""


def test_labels_are_listed_by_their_keys() -> None:
    allows = QueueAllows(node_labels=("zone",))
    assert field(allows, asked(node_labels={"zone": "a"})) == ""
    assert field(allows, asked(node_labels={"zone": "a", "pool": "b"})) == "pod_sets[0].node_labels"


def test_where_models_are_listed_a_request_for_gpus_names_some_of_them() -> None:
    allows = QueueAllows(gpu_models=("L4", "T4"))
    assert field(allows, asked(gpus=1, gpu_models=("l4",))) == ""
    assert field(allows, asked(gpus=1, gpu_models=("L4", "H100"))) == "pod_sets[0].gpu_models"
    assert field(allows, asked(gpus=1)) == "pod_sets[0].gpu_models"
    assert field(allows, asked(gpus=0)) == ""


def test_tpus_are_among_the_models_and_claims_are_what_no_list_can_bound() -> None:
    allows = QueueAllows(gpu_models=("L4", "tpu-v6e-slice"))
    assert field(allows, asked(tpus=4, tpu_accelerators=("tpu-v6e-slice",))) == ""
    assert field(allows, asked(tpus=4)) == "pod_sets[0].tpu_accelerators"
    wrong = asked(tpus=4, tpu_accelerators=("tpu-v5p-slice",))
    assert field(allows, wrong) == "pod_sets[0].tpu_accelerators"
    assert field(allows, asked(claims=("nic",))) == "pod_sets[0].claims"
    assert field(QueueAllows(), asked(tpus=4, claims=("nic",))) == ""


@pytest.mark.parametrize(
    "name",
    [
        "huawei.com/Ascend910",
        "habana.ai/gaudi",
        "cambricon.com/mlu",
        "aws.amazon.com/neuroncore",
        "nvidia.com/a100-half",
        "aliyun.com/gpu-mem",
        "devices.kubevirt.io/kvm",
        "github.com/fuse",
        "rdma/hca",
    ],
)
def test_listed_models_refuse_resources_that_are_not_listed(name: str) -> None:
    request = asked(gpus=1, gpu_models=("A100",), resources={name: 1})
    models = ("A100",)
    assert field(QueueAllows(), request) == ""
    assert field(QueueAllows(gpu_models=models), request) == f'pod_sets[0].resources["{name}"]'
    assert field(QueueAllows(gpu_models=models, resources=("other/x",)), request) != ""
    assert field(QueueAllows(gpu_models=models, resources=(name,)), request) == ""
    assert field(QueueAllows(resources=("other/x",)), request) != ""
    assert field(QueueAllows(resources=(name,)), asked(resources={name: 2})) == ""


def test_listed_models_refuse_resources_of_pods_without_gpus() -> None:
    refusal = request_refusal(
        QueueSetting(queue="q", allows=QueueAllows(gpu_models=("A100",))),
        asked(resources={"huawei.com/Ascend910": 8}),
    )
    assert refusal is not None
    assert "the queue 'q' allows: (none)" in refusal.expected
