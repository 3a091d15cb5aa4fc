"""Devices by dynamic allocation: by which class they are claimed, and what is charged of them."""

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.lib.kube.controller.problems import Problems
from berthmaster.lib.messages.fleet import DeviceClaim, NodeReport, PodUse, Share
from berthmaster.worker.inventory.core.devices.device_classes import Claimable, claimable
from berthmaster.worker.inventory.core.node_index import NodeIndex
from tests.unit.worker.inventory.objects import (
    NOW_S,
    STAMP,
    Json,
    claim,
    device,
    device_class,
    node,
    ours,
    pod,
    resource_slice,
)

DRIVER: Final = "gpu.nvidia.com"
A100: Final = "NVIDIA A100-SXM4-80GB"
BY_DRIVER: Final = f"device.driver == '{DRIVER}'"

MIG: Final = Claimable("c", DRIVER, "mig")


def of_type(kind: str) -> str:
    return f"{BY_DRIVER} && device.attributes['{DRIVER}'].type == '{kind}'"


def index(*devices: Json, problems: Problems | None = None) -> NodeIndex:
    nodes = NodeIndex("east", problems or Problems())
    nodes.set_node(node())
    nodes.set_slice(resource_slice("n1-gpus", devices))
    return nodes


def told(nodes: NodeIndex) -> NodeReport:
    report = nodes.report("n1", STAMP, NOW_S)
    assert report is not None
    return report


def gpu(number: int = 0, **more: Any) -> Json:
    fields = {"type": "gpu", "productName": A100, "memory": "80Gi", "uuid": f"GPU-{number}"}
    return device(f"gpu-{number}", **(fields | more))


CLAIM: Final = DeviceClaim(driver=DRIVER, device_class=DRIVER, product=A100)


@pytest.mark.parametrize(
    ("expressions", "meant"),
    [
        ((BY_DRIVER,), Claimable("c", DRIVER)),
        ((of_type("gpu"),), Claimable("c", DRIVER, "gpu")),
        ((BY_DRIVER, f'device.attributes["{DRIVER}"]["type"] == "mig"'), MIG),
        ((f'(device.driver == "{DRIVER}")',), Claimable("c", DRIVER)),
        # What may mean fewer devices than we would think is not believed.
        ((f"{BY_DRIVER} && device.attributes['{DRIVER}'].productName == 'A100'",), None),
        ((f"{BY_DRIVER} || true",), None),
        ((BY_DRIVER, "device.driver == 'other.example.com'"), None),
        (("true",), None),
        ((), None),
        (("x" * 5000,), None),
    ],
)  # fmt: skip
def test_a_class_means_what_its_expressions_say(
    expressions: tuple[str, ...], meant: Claimable | None
) -> None:
    assert claimable(device_class("c", *expressions)) == meant


def test_devices_are_claimed_by_their_class_and_counted_where_it_has_a_resource() -> None:
    problems = Problems()
    nodes = index(gpu(), problems=problems)
    # Nobody may read classes: it is taken that devices can be had as ever.
    assert [(g.resource, g.claim, g.healthy) for g in told(nodes).gpus] == [("", None, True)]

    # There is none: nobody can have them, and it is told.
    nodes.know_classes()
    assert [g.healthy for g in told(nodes).gpus] == [False]
    why = f"no DeviceClass means the devices of {DRIVER}: nobody can claim them"
    assert [problem.text for problem in problems.take_new()] == [why]

    nodes.set_class(device_class("mig.nvidia.com", of_type("mig")))
    nodes.set_class(device_class(DRIVER, of_type("gpu")))
    named = f"deviceclass.resource.kubernetes.io/{DRIVER}"
    assert [(g.resource, g.claim, g.healthy) for g in told(nodes).gpus] == [(named, CLAIM, True)]
    assert problems.count() == {}

    nodes.set_class(device_class(DRIVER, of_type("gpu"), resource="nvidia.com/gpu"))
    assert [(g.resource, g.claim) for g in told(nodes).gpus] == [("", None)]
    nodes.set_class(device_class(DRIVER, of_type("gpu"), resource="example.com/a100"))
    assert [(g.resource, g.claim) for g in told(nodes).gpus] == [("example.com/a100", None)]

    nodes.drop_class(DRIVER)
    assert [g.healthy for g in told(nodes).gpus] == [False]


def test_mig_devices_are_slices_that_are_claimed() -> None:
    parts = [
        device(f"mig-{n}", type="mig", parentUUID="GPU-0", profile="3g.40gb", memory="40Gi")
        for n in range(2)
    ]
    nodes = index(*parts)
    nodes.set_class(device_class("mig.nvidia.com", of_type("mig")))
    by_class = DeviceClaim(driver=DRIVER, device_class="mig.nvidia.com")
    assert told(nodes).shares == (
        Share(
            resource="nvidia.com/mig-3g.40gb",
            milli=428,
            memory_mib=40_960,
            count=2,
            kind="mig",
            claim=by_class,
        ),
    )


def test_what_several_claims_may_have_is_charged_by_what_each_has_consumed() -> None:
    nodes = index(gpu(0, shared=True), gpu(1, shared=True))
    nodes.set_class(device_class(DRIVER, BY_DRIVER, resource="nvidia.com/gpu"))
    divisible = DeviceClaim(driver=DRIVER, device_class=DRIVER, product=A100, divisible=True)
    # Counting would give as much of it as its policy says by default, so it is claimed.
    assert [g.claim for g in told(nodes).gpus] == [divisible, divisible]
    assert told(nodes).shares == (Share(resource=DRIVER, milli=0, count=2, claim=divisible),)

    nodes.set_pod(pod("theirs"))
    nodes.set_pod(ours("main-0", {}))
    nodes.set_claim(claim("a", ["gpu-0"], pods=["theirs"], consumed={"memory": "40Gi"}))
    nodes.set_claim(claim("b", ["gpu-0"], pods=["train-main-0"], consumed={"memory": "20Gi"}))
    nodes.set_claim(claim("c", ["gpu-0"], consumed={"memory": "8Gi"}))  # nobody's yet
    report = told(nodes)
    assert [g.foreign_milli for g in report.gpus] == [500 + 100, 0]
    part = PodUse(
        tenant="acme", workload="train", attempt=1, pod="main-0", gpu_milli=250, gpus=(0,)
    )
    assert report.pods == (part,)

    # Two shares of one device are one part of it; they end with their claim.
    nodes.set_claim(
        claim("b", ["gpu-0", "gpu-0"], pods=["train-main-0"], consumed={"memory": "10Gi"})
    )
    assert [(use.gpu_milli, use.gpus) for use in told(nodes).pods] == [(250, (0,))]
    nodes.drop_claim(("team", "a"))
    assert [g.foreign_milli for g in told(nodes).gpus] == [100, 0]


@pytest.mark.parametrize(
    ("consumed", "milli"),
    [
        ({"memory": "1Mi"}, 1),
        ({"example.com/memory": "80Gi"}, 1000),
        ({"memory": "800Gi"}, 1000),  # more than there is
        ({"memory": "much"}, 1000),
        ({"memory": "-1Gi"}, 1000),
        ({"memory": "0"}, 1000),
        ({"cores": "1"}, 1000),  # of what the device does not have
        ({}, 1000),
    ],
)
def test_unstated_consumption_counts_as_all(consumed: dict[str, str], milli: int) -> None:
    nodes = index(gpu(shared=True))
    nodes.set_pod(pod("theirs"))
    nodes.set_claim(claim("a", ["gpu-0"], pods=["theirs"], consumed=consumed))
    assert [g.foreign_milli for g in told(nodes).gpus] == [milli]


@pytest.mark.parametrize(
    ("devices", "why"),
    [
        ([gpu(), gpu()], "device gpu-0 is there twice"),
        ([gpu(0), gpu(1, uuid="GPU-0")], "two devices are GPU-0"),
        ([gpu(memory="much")], "memory: 'much' is"),
        ([gpu(memory="-1")], "memory: '-1' is negative"),
        ([gpu(0), gpu(1, memory="9999999Gi")], "device gpu-1: more memory than any has"),
    ],
)
def test_a_driver_that_lies_adds_nothing_and_is_told(devices: list[Json], why: str) -> None:
    problems = Problems()
    nodes = index(*devices, problems=problems)
    nodes.set_slice(resource_slice("others", [device("t")], driver="tpu.google.com"))
    report = told(nodes)
    # The pools of others are as they were.
    assert (report.gpus, report.shares, report.allocatable.tpus) == ((), (), 1)
    [problem] = problems.take_new()
    assert problem.text.startswith(f"pool n1 of {DRIVER}: {why}")


def test_a_device_of_two_pools_counts_once_and_tpus_have_a_bound() -> None:
    problems = Problems()
    nodes = index(gpu(0), problems=problems)
    nodes.set_slice(resource_slice("again", [gpu(1, uuid="GPU-0")], pool="z"))
    tpus, google = [device(f"t{n}") for n in range(4)], "tpu.google.com"
    nodes.set_slice(resource_slice("tpus", tpus, driver=google, pool="a"))
    nodes.set_slice(resource_slice("same", tpus[:1], driver=google, pool="b"))
    many = [device(f"m{n}") for n in range(61)]
    nodes.set_slice(resource_slice("many", many, driver=google, pool="c"))
    report = told(nodes)
    assert (len(report.gpus), report.allocatable.tpus) == (1, 4)
    assert [problem.text for problem in problems.take_new()] == [
        f"pool z of {DRIVER}: GPU-0 is in another pool",
        f"pool b of {google}: device t0 is in another pool",
        f"pool c of {google}: 65 TPUs: more than any node has (64)",
    ]


def test_more_slices_than_the_pool_says_are_no_pool() -> None:
    nodes = index(gpu(0))
    nodes.set_slice(resource_slice("more", [gpu(1)]))
    assert told(nodes).gpus == ()


def test_tpus_are_offered_where_a_class_has_them_counted() -> None:
    problems = Problems()
    nodes = NodeIndex("east", problems)
    nodes.set_node(node())
    driver = "tpu.google.com"
    nodes.set_slice(resource_slice("tpus", [device("t0"), device("t1")], driver=driver))
    assert told(nodes).allocatable.tpus == 2  # classes may not be read
    nodes.set_class(device_class("tpus", f"device.driver == '{driver}'"))
    assert told(nodes).allocatable.tpus == 0
    why = f"no DeviceClass has the devices of {driver} counted as google.com/tpu"
    assert [problem.text for problem in problems.take_new()] == [why]
    counted = device_class("tpus", f"device.driver == '{driver}'", resource="google.com/tpu")
    nodes.set_class(counted)
    assert told(nodes).allocatable.tpus == 2
    assert problems.count() == {}


TEXT: Final = st.text(max_size=12)


@given(
    st.lists(st.one_of(TEXT, st.sampled_from([BY_DRIVER, of_type("gpu"), "&&", "'"])), max_size=4)
)
def test_any_expression_can_be_read(expressions: list[str]) -> None:
    found = claimable(device_class("c", *expressions))
    assert found is None or found.driver
