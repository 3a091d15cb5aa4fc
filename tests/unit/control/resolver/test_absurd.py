"""Absurd input: a clear answer in bounded time, and no decision that breaks an invariant.

More of it stands beside what it is about: priorities at their limits, a thousand queues and ten
thousand equal jobs in test_queues.py, a clock that is ahead in test_decide.py.
"""

import msgspec
import pytest

from berthmaster.lib.messages.api import WhyReply
from berthmaster.lib.messages.fleet import Amounts, GpuDevice, NodeReport
from tests.support.builders import alive, job, node, profile
from tests.support.deciding import TENANT, World


@pytest.fixture
def world() -> World:
    world = World()
    world.fact(profile(), alive(), node(name="n1", gpus=4), node(name="n2", gpus=4))
    return world


def why(world: World, name: str) -> WhyReply:
    reply = world.why(TENANT, name, world.now_s)
    assert isinstance(reply, WhyReply)
    return reply


def test_a_gang_larger_than_the_fleet_waits_with_a_reason_and_holds_up_nobody(world: World) -> None:
    world.submit(job("huge", gpus=8, count=4096))
    world.submit(job("wide", gpus=1, count=4096))
    world.submit(job("small", gpus=1))
    plan = world.decide()
    assert plan is not None
    assert [choice.id for choice in plan.decision.placements] == ["small"]
    assert plan.decision.reserved == 0  # nothing is kept for whom the fleet can never hold
    assert why(world, "huge").filtered == {"c1": "too few GPUs a node"}
    assert why(world, "wide").filtered == {
        "c1": "too few nodes for its pods, even if nothing ran there"
    }


@pytest.mark.parametrize(
    "report",
    [
        node(name="odd", gpus=0, cpu_milli=0, node_memory_mib=0),
        msgspec.structs.replace(
            node(name="odd", gpus=2),
            foreign=Amounts(cpu_milli=10**9, memory_mib=10**9, gpu_milli=10**9),
        ),
        msgspec.structs.replace(
            node(name="odd", gpus=2),
            gpus=tuple(
                GpuDevice(index=i, uuid="", model="", memory_mib=0, foreign_milli=10**12)
                for i in range(2)
            ),
        ),
    ],
    ids=["a node of nothing", "more in use than there is", "GPUs in use a million times"],
)
def test_absurd_node_gets_no_job(world: World, report: NodeReport) -> None:
    world.fact(report)
    for number in range(10):
        world.submit(job(f"j{number}", gpus=1))
    world.settle()
    placed = [pod.node for w in world.workloads.values() for pod in w.pods]
    assert sorted(placed) == ["n1"] * 4 + ["n2"] * 4


@pytest.mark.parametrize("amount", [1 << 62, 1 << 63, 1 << 80])
def test_amounts_that_no_machine_has_end_no_resolver(world: World, amount: int) -> None:
    odd = msgspec.structs.replace(
        node(name="odd", gpus=1), allocatable=Amounts(cpu_milli=amount, memory_mib=amount)
    )
    world.fact(odd, node(name="n3", gpus=1))
    foreign = msgspec.structs.replace(odd, foreign=Amounts(cpu_milli=amount, memory_mib=amount))
    world.fact(foreign)
    for number in range(10):
        world.submit(job(f"j{number}", gpus=1))
    world.settle()
    placed = {pod.node for w in world.workloads.values() for pod in w.pods}
    assert {"n1", "n2", "n3"} <= placed


@pytest.mark.parametrize("jump_s", [-1e9, 1e9])
def test_a_clock_that_jumps_loses_no_job_and_places_none_twice(world: World, jump_s: float) -> None:
    world.submit(job("before", gpus=1))
    world.decide()
    world.now_s += jump_s
    world.submit(job("after", gpus=1))
    world.settle()
    world.now_s += 60.0  # by when a cluster whose jobs seem not to be claimed is trusted again
    world.fact(alive(counter=2))
    world.settle()
    assert {w.id for w in world.workloads.values() if w.pods} == {"before", "after"}
