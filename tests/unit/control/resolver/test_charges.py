"""Limits count what nodes charge for parts of GPUs, not what requests ask for."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from berthmaster.cli.audit.core import Auditor
from berthmaster.control.resolver.replay import replay
from berthmaster.lib.engine.queueing.queues import GPU, used_of
from berthmaster.lib.lifecycle.pods import gpu_milli_of
from berthmaster.lib.lifecycle.workload import Key, key
from berthmaster.lib.messages.api import DryRunReply, WhyReply
from berthmaster.lib.messages.control import QueueAmounts, QueueSetting
from berthmaster.lib.messages.fleet import NodeReport, Share
from berthmaster.lib.messages.workload import Divide, JobRequest, Running, WorkloadEvent
from tests.support.builders import alive, job, node, pod_set, profile
from tests.support.deciding import TENANT, World

GIB = 1024
SMALL, LARGE = 16 * GIB, 80 * GIB  # of a GPU: 8 GiB cost 0.5 and 0.1


def fleet(**memory_mib: int) -> World:
    """Clusters with one node of eight GPUs of so much memory; each is a model of its own."""
    world = World()
    for cluster, mib in memory_mib.items():
        model = {SMALL: "T4", LARGE: "A100"}.get(mib, "H100")
        world.fact(profile(cluster), alive(cluster), node(cluster, memory_mib=mib, model=model))
    return world


def queue(world: World, name: str = "q", **fields: Any) -> None:
    world.control(QueueSetting(queue=name, **fields))


def part(name: str, gib: int = 8, **fields: Any) -> JobRequest:
    """As ``--gpus 8Gi`` has it."""
    usual: dict[str, Any] = {"queue": "q", "cpu_milli": 1, "memory_mib": 1, "gpu_milli": 1}
    return job(name, gpu_memory_mib=gib * GIB, **usual | fields)


def summary(world: World, name: str) -> str:
    reply = world.why(TENANT, name, world.now_s)
    assert isinstance(reply, WhyReply)
    return reply.summary


def used_milli(world: World, name: str = "q") -> int:
    return world.resolver.know.derived.ledger.used_together(name).get(GPU, 0)


def begin(world: World, *requests: JobRequest) -> list[str]:
    """Submit all; where each was placed, in order."""
    names = [world.submit(request) for request in requests]
    world.settle()
    return [world.placed_on(name) for name in names]


def audited(world: World) -> int:
    """The log repeats itself and is clean; the most that it promises of one GPU."""
    auditor = Auditor()
    for sequence, at_s, event in world.events:
        auditor.on_event(event, sequence, at_s)
    for sequence, at_s, _, fact in world.facts:
        if isinstance(fact, NodeReport):
            auditor.on_node(fact, sequence, at_s)
    report = auditor.report()
    assert report.findings == ()
    repeated = replay(world.inputs(), "all")
    assert (repeated.equal, repeated.first_difference) == (repeated.decisions, None)
    return report.peak_gpu_milli


def test_limit_counts_memory_of_every_pod() -> None:
    world = fleet(c1=SMALL)
    queue(world, capability_gpu_milli=1000)
    assert begin(world, part("many", count=16), part("two", count=2), part("more")) == [
        "",
        "c1",
        "",
    ]
    assert summary(world, "many") == "waits: its queue is at its capability of 1 GPUs"
    assert used_milli(world) == 1000
    assert audited(world) == 1000


def test_max_job_counts_memory_of_every_pod() -> None:
    world = fleet(c1=LARGE)
    queue(world, max_job_gpu_milli=1000)
    assert begin(world, part("eleven", count=11), part("ten", count=9)) == ["", "c1"]
    assert summary(world, "eleven") == "waits: its queue takes no job of more than 1 GPUs"


@pytest.mark.parametrize(("limit", "placed"), [(749, ""), (750, "c1")])
def test_limit_counts_the_larger_of_compute_and_memory(limit: int, placed: str) -> None:
    """``--gpus 0.5 --gpu-memory 60Gi`` of a GPU of 80 GiB is 0.75."""
    world = fleet(c1=LARGE)
    queue(world, capability_gpu_milli=limit)
    assert begin(world, part("a", 60, gpu_milli=500)) == [placed]
    assert used_milli(world) == (750 if placed else 0)


def test_slice_counts_as_the_slice_that_the_node_has() -> None:
    """A request for 0.1 takes a half where the node offers halves."""
    world = World()
    halves = Share(resource="nvidia.com/gpu.shared", milli=500, count=16)
    world.fact(profile(), alive(), replace(node(), shares=(halves,)))
    queue(world, capability_gpu_milli=998)
    tenth = [job(name, queue="q", gpu_milli=100) for name in "abc"]
    assert begin(world, *tenth) == ["c1", "c1", ""]
    assert used_milli(world) == 998  # two of 499: one milli of each GPU is nobody's
    assert audited(world) == 998


def test_dear_cluster_is_out_while_a_cheap_one_is_within_the_limit() -> None:
    world = fleet(c1=SMALL, c2=LARGE)
    queue(world, capability_gpu_milli=300)
    assert begin(world, *(part(name, clusters=("c1",)) for name in "ab")) == ["", ""]
    assert summary(world, "a") == (
        "waits: of 2 clusters: 1 not among the clusters asked for, "
        "1 charges more for a part of a GPU than its queue has left"
    )
    assert begin(world, *(part(name) for name in "cdef")) == ["c2", "c2", "c2", ""]
    assert used_milli(world) == 300


def test_limit_of_a_model_counts_what_its_gpus_charge() -> None:
    world = fleet(c1=SMALL, c2=LARGE)
    queue(world, resources={"gpu/T4": QueueAmounts(capability=600)})
    assert begin(world, part("t4", clusters=("c1",))) == ["c1"]
    assert begin(world, part("again", clusters=("c1",))) == [""]
    assert begin(world, part("any", count=10)) == ["c2"]


def test_pods_of_one_job_may_not_mix_into_too_much() -> None:
    """One cluster has both kinds of GPUs, and the cheap ones have room for three pods."""
    world = World()
    cheap = node(name="n2", gpus=1, memory_mib=LARGE, model="A100", foreign_milli=(700,))
    world.fact(profile(), alive(), node(memory_mib=SMALL), cheap)
    queue(world, capability_gpu_milli=900)
    assert begin(world, part("four", count=4), part("three", count=2)) == ["", "c1"]
    assert used_milli(world) <= 900


def test_elastic_job_has_as_many_pods_as_its_limit_pays_for() -> None:
    world = fleet(c1=SMALL)
    queue(world, capability_gpu_milli=1500)
    name = world.submit(part("e", count=8, min_count=1, max_count=16))
    world.settle()
    assert len(world.workloads[name].pods) == 3
    world.claim(name)
    world.run(name)
    world.pass_s(600.0)
    world.settle()
    assert len(world.workloads[name].pods) == 3


def test_elastic_job_grows_up_to_the_largest_job_of_its_queue() -> None:
    world = fleet(c1=SMALL)
    queue(world, max_job_gpu_milli=1500)
    name = world.submit(part("e", count=2, min_count=1, max_count=16))
    world.settle()
    world.claim(name)
    world.run(name)
    world.pass_s(600.0)
    world.settle()
    assert len(world.workloads[name].pods) == 3


def test_divided_job_counts_all_its_parts() -> None:
    world = fleet(c1=SMALL, c2=SMALL)
    queue(world, max_job_gpu_milli=9000)
    request = part("d", count=20, divide=Divide())
    name = world.submit(request)
    world.settle()
    assert world.workloads[name].parts == ()
    less = world.submit(part("e", count=18, divide=Divide()))
    world.settle()
    parts = [key(TENANT, each.id) for each in world.workloads[less].parts]
    assert sorted(world.placed_on(each) for each in parts) == ["c1", "c2"]
    assert used_milli(world) == 9000


def test_parent_counts_what_its_children_are_charged() -> None:
    world = fleet(c1=SMALL)
    queue(world, "top", capability_gpu_milli=1000)
    queue(world, parent="top")
    queue(world, "r", parent="top")
    assert begin(world, part("a"), part("b", queue="r"), part("c")) == ["c1", "c1", ""]
    assert used_milli(world, "top") == 1000


def test_dry_run_says_what_the_limit_lets_in() -> None:
    world = fleet(c1=SMALL, c2=LARGE)
    queue(world, capability_gpu_milli=300)
    fits = world.dry_run(TENANT, part("a"), world.now_s)
    assert isinstance(fits, DryRunReply)
    assert fits.choice is not None
    assert fits.choice.cluster == "c2"
    dear = world.dry_run(TENANT, part("a", clusters=("c1",)), world.now_s)
    assert isinstance(dear, DryRunReply)
    assert not dear.placed


def test_decision_stores_what_a_part_is_charged_with() -> None:
    world = fleet(c1=SMALL)
    queue(world)
    whole, half = job("whole", queue="q"), part("half")
    begin(world, whole, half)
    [first], [second] = (world.workloads[key(TENANT, name)].pods for name in ("whole", "half"))
    assert (first.charged_milli, second.charged_milli) == (0, 500)
    assert gpu_milli_of(world.workloads[key(TENANT, "half")]) == 500


def test_agent_cannot_change_what_a_pod_is_charged_with() -> None:
    world = fleet(c1=SMALL)
    queue(world)
    begin(world, part("a"))
    name = key(TENANT, "a")
    world.claim(name)
    told = tuple(replace(each, charged_milli=3) for each in world.workloads[name].pods)
    running = replace_pods(world, name, told)
    world.append(running)
    assert [each.charged_milli for each in world.workloads[name].pods] == [500]


def replace_pods(world: World, name: Key, pods: Any) -> WorkloadEvent:
    workload = world.workloads[name]
    return Running(
        tenant=workload.tenant,
        id=workload.id,
        after=workload.sequence,
        at_s=world.now_s,
        by="executor",
        cluster=workload.cluster,
        attempt=workload.attempt,
        pods=pods,
    )


def test_extended_resources_count_against_their_limit() -> None:
    world = World()
    report = node()
    there = replace(report.allocatable, pieces={"rdma/hca": 8})
    world.fact(profile(), alive(), replace(report, allocatable=there))
    queue(world, resources={"rdma/hca": QueueAmounts(capability=2)})
    asked = [job(name, queue="q", gpus=0, resources={"rdma/hca": 2}) for name in "ab"]
    assert begin(world, *asked) == ["c1", ""]
    assert summary(world, "b") == "waits: its queue is at its capability of 2 rdma/hca"


def test_room_is_made_by_ending_as_many_parts_as_fill_a_gpu() -> None:
    """Ten parts of 8 GiB have all of a GPU: whoever is guaranteed one gets it."""
    world = World()
    world.fact(profile(), alive(), node(gpus=1, memory_mib=LARGE))
    queue(world)
    queue(world, "owner", guarantee_gpu_milli=1000)
    for number in range(9):
        world.start(part(f"p{number}"))
    world.submit(job("whole", queue="owner"))
    plans = world.settle()
    ended = [order.id for plan in plans for order in plan.decision.evictions]
    assert len(ended) == 9


PARTS = st.fixed_dictionaries(
    {
        "gib": st.sampled_from((1, 8, 12, 30)),
        "count": st.integers(1, 5),
        "gpu_milli": st.sampled_from((1, 100, 400, 1000)),
    }
)


@settings(max_examples=150)
@given(
    memories=st.lists(st.sampled_from((SMALL, 40 * GIB, LARGE)), min_size=1, max_size=3),
    limit=st.integers(0, 4000),
    of_t4=st.none() | st.integers(0, 2000),
    most=st.none() | st.integers(0, 3000),
    asked=st.lists(st.lists(PARTS, min_size=1, max_size=2), max_size=6),
    ends=st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_no_queue_or_job_is_ever_charged_more_than_its_limits(
    memories: list[int],
    limit: int,
    of_t4: int | None,
    most: int | None,
    asked: list[list[dict[str, int]]],
    ends: list[bool],
) -> None:
    world = World()
    for at, memory in enumerate(memories):  # two sizes in one cluster, the third in another
        cluster, model = f"c{at // 2}", "T4" if memory == SMALL else "A100"
        world.fact(profile(cluster), alive(cluster))
        world.fact(node(cluster, f"n{at}", gpus=2, memory_mib=memory, model=model))
    resources = {} if of_t4 is None else {"gpu/T4": QueueAmounts(capability=of_t4)}
    queue(world, capability_gpu_milli=limit, max_job_gpu_milli=most, resources=resources)
    for at, sets in enumerate(asked):
        pods = tuple(
            pod_set(
                name=f"s{number}",
                gpus=1,
                count=each["count"],
                gpu_milli=each["gpu_milli"],
                gpu_memory_mib=each["gib"] * GIB,
                cpu_milli=1,
                memory_mib=1,
            )
            for number, each in enumerate(sets)
        )
        name = world.submit(job(f"j{at}", queue="q", pod_sets=pods))
        world.settle()
        used = world.resolver.know.derived.ledger.used("q")
        assert used.get(GPU, 0) <= limit
        assert of_t4 is None or used_of(used, "gpu/T4") <= of_t4
        assert (
            most is None
            or gpu_milli_of(world.workloads[name]) <= most
            or not (world.placed_on(name))
        )
        if ends[at] and world.placed_on(name):
            world.claim(name)
            world.succeed(name)
    ledger = world.resolver.know.derived.ledger.used("q").get(GPU, 0)
    assert ledger == sum(gpu_milli_of(each) for each in world.workloads.values() if each.live)
    assert audited(world) <= 1000
