"""Why not yet: reasons with counts, places, the queue's account, first room, what would help."""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from berthmaster.control.resolver.core.answers import waiting
from berthmaster.lib.lifecycle.workload import Key, stated_end_s
from berthmaster.lib.messages.api import QueueAccount, WhyReply
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.fleet import Taint
from berthmaster.lib.messages.runtimes import Runtime
from berthmaster.lib.messages.workload import JobRequest, Progress, Progressed, RunSpec
from berthmaster.lib.requests.builtin_runtimes import BUILT_IN
from berthmaster.lib.requests.runtimes import filled_in
from tests.support.builders import alive, job, node, pod_set, profile
from tests.support.deciding import TENANT, World, placements

HOUR_S = 3600.0
GIB = 1024


def why(world: World, name: str) -> WhyReply:
    reply = world.why(TENANT, name, world.now_s)
    assert isinstance(reply, WhyReply)
    return reply


def fleet(**clusters: dict[str, Any]) -> World:
    world = World()
    for name, fields in clusters.items():
        world.fact(profile(name), alive(name), node(name, **fields))
    return world


def lasting(name: str, hours: float, **fields: object) -> JobRequest:
    return replace(job(name, **fields), expected_duration_s=hours * HOUR_S)  # type: ignore[arg-type]


def start(world: World, request: JobRequest) -> Key:
    name = world.submit(request)
    world.settle()
    world.claim(name)
    world.run(name)
    return name


def test_one_line_says_what_keeps_how_many_clusters_and_when_the_first_is_free() -> None:
    world = fleet(
        t1={"gpus": 8, "model": "T4"},
        t2={"gpus": 8, "model": "T4"},
        small={"gpus": 8, "model": "H100", "memory_mib": 40 * GIB},
        h1={"gpus": 8, "model": "H100", "memory_mib": 80 * GIB},
        h2={"gpus": 8, "model": "H100", "memory_mib": 80 * GIB},
    )
    world.now_s = 12 * HOUR_S
    world.fact(*(alive(name, counter=2) for name in ("t1", "t2", "small", "h1", "h2")))
    for name, hours in (("h1", 3.0), ("h2", 2.0 + 5 / 60)):
        start(world, lasting(f"on-{name}", hours, gpus=8, clusters=(name,)))
    world.submit(job("asks", gpus=4, gpu_models=("H100",), gpu_memory_mib=80 * GIB))
    assert world.settle() == []
    reply = why(world, "asks")
    assert reply.summary == (
        "waits: of 5 clusters: 2 have no H100, 1 too little GPU memory,"
        " 2 busy: first free about 14:05 UTC; capacity is reserved for the job on h2"
    )
    assert reply.first_free_s == pytest.approx(14 * HOUR_S + 300)
    assert reply.reasons == {"no such GPU model": 2, "busy": 2, "too little GPU memory": 1}
    assert reply.hints == ("less memory a GPU: a H100 with 40 GiB would fit now, on small",)
    # Said and done: with the second's end, there is room.
    world.now_s = 14 * HOUR_S + 300
    world.fact(alive("h1", counter=3), alive("h2", counter=3))
    world.succeed(next(k for k in world.workloads if k.endswith("on-h2")))
    world.settle()
    assert why(world, "asks").summary.startswith("placed on h2")


def test_room_comes_when_as_many_have_ended_as_the_request_needs() -> None:
    world = fleet(c1={"gpus": 4})
    for hours in (1.0, 2.0, 3.0, 4.0):
        start(world, lasting(f"h{hours:g}", hours))
    world.submit(job("three", gpus=3))
    world.settle()
    assert why(world, "three").first_free_s == world.now_s + 3 * HOUR_S


def test_what_said_nothing_or_is_late_has_no_known_end() -> None:
    world = fleet(c1={"gpus": 2})
    silent = start(world, job("silent"))
    late = start(world, lasting("late", 1.0))
    world.submit(job("asks"))
    world.settle()
    began_s = world.now_s
    assert stated_end_s(world.workloads[silent], world.now_s) is None
    assert why(world, "asks").first_free_s == began_s + HOUR_S
    world.now_s += 2 * HOUR_S
    world.fact(alive(counter=2))
    assert stated_end_s(world.workloads[late], world.now_s) is None
    reply = why(world, "asks")
    assert reply.summary.startswith("waits: of 1 clusters: 1 busy")


def test_what_a_running_job_says_of_its_end_counts_for_more_than_what_was_said_before() -> None:
    world = fleet(c1={"gpus": 1})
    name = start(world, lasting("told", 1.0))
    world.submit(job("asks"))
    world.settle()
    assert why(world, "asks").first_free_s == world.now_s + HOUR_S
    work = world.workloads[name]
    head = {"tenant": work.tenant, "id": work.id, "cluster": "c1", "attempt": 1}
    said = Progress(step=1, eta_s=3 * HOUR_S)
    world.append(
        Progressed(**head, after=work.sequence, at_s=world.now_s, by="x", progress=said)  # type: ignore[arg-type]
    )
    world.settle()
    assert why(world, "asks").first_free_s == world.now_s + 3 * HOUR_S
    assert stated_end_s(world.workloads[name], world.now_s + 3 * HOUR_S) is None  # late


def test_a_deadline_is_an_end_too_and_far_ones_are_told_in_days() -> None:
    world = fleet(c1={"gpus": 1})
    start(world, replace(lasting("long", 24 * 5), deadline_s=24 * 3 * HOUR_S))
    world.submit(job("asks"))
    world.settle()
    summary = why(world, "asks").summary
    assert summary.startswith("waits: of 1 clusters: 1 busy: first free in about 3 days")


def test_its_place_among_all_and_in_its_queue_and_the_queues_account() -> None:
    world = fleet(c1={"gpus": 4})
    world.control(QueueSetting(queue="first", priority=5))
    world.control(
        QueueSetting(
            queue="lab",
            guarantee_gpu_milli=1000,
            deserved_gpu_milli=2000,
            capability_gpu_milli=8000,
        )
    )
    start(world, job("runs", queue="lab", gpus=4))
    for name, queue in (("a", "lab"), ("b", "first"), ("c", "lab"), ("d", "other"), ("e", "lab")):
        world.submit(job(name, queue=queue, gpus=2 if name == "c" else 1))
    world.settle()
    reply = why(world, "e")
    assert (reply.position, reply.waiting, reply.queue_position) == (5, 5, 3)
    assert reply.account == QueueAccount(
        queue="lab",
        used_gpu_milli=4000,
        used={"cpu": 1000, "memory": 1024, "gpu": 4000, "gpu/T4": 4000},
        running=1,
        waiting=3,
        guarantee_gpu_milli=1000,
        deserved_gpu_milli=2000,
        capability_gpu_milli=8000,
        borrowed_gpu_milli=2000,
    )
    assert why(world, "d").account == QueueAccount(queue="other", waiting=1)
    # Of equal priority, the queue that has less goes first: the lab's four GPUs count against it.
    order = sorted("abcde", key=lambda name: why(world, name).position or 0)
    assert order == ["b", "d", "a", "c", "e"]


def test_queues_take_turns_and_so_do_the_places_of_their_jobs() -> None:
    world = fleet(c1={"gpus": 8})
    start(world, job("runs", gpus=8))
    for name in ("a1", "a2", "a3", "b1", "b2"):
        world.submit(job(name, queue=name[0], gpu_models=("T4",)))
    world.settle()
    found = {name: why(world, name).position for name in ("a1", "a2", "a3", "b1", "b2")}
    assert found == {"a1": 1, "b1": 2, "a2": 3, "b2": 4, "a3": 5}
    start(world, job("nobody", gpus=0))
    assert why(world, "a3").queue_position == 3


def test_behind_too_many_turns_the_static_order_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "TURNS", 2)
    world = fleet(c1={"gpus": 8})
    start(world, job("runs", gpus=8))
    for name in ("a1", "a2", "a3", "b1"):
        world.submit(job(name, queue=name[0], gpu_models=("T4",)))
    world.settle()
    assert [why(world, name).position for name in ("a1", "b1", "a2")] == [1, 2, 2]


def a_reservation() -> World:
    """Six of eight GPUs run for an hour; who wants eight has room kept from then on."""
    world = fleet(c1={"gpus": 8})
    world.now_s = 12 * HOUR_S
    world.fact(alive("c1", counter=2))
    start(world, lasting("runs", 1.0, gpus=6))
    world.submit(job("large", gpus=8))
    world.settle()
    return world


def test_a_job_that_room_is_kept_for_is_told_where_and_when() -> None:
    reply = why(a_reservation(), "large")
    assert reply.summary == (
        "waits: of 1 clusters: 1 busy: first free about 13:00 UTC;"
        " capacity is reserved for the job on c1"
    )
    assert reply.reservation is not None
    assert reply.reservation.expected_at_s == reply.first_free_s == 13 * HOUR_S
    assert reply.hints == ("fewer GPUs: 2 a pod would fit now, on c1",)


def test_a_job_that_would_take_kept_room_is_told_so_and_what_would_help() -> None:
    world = a_reservation()
    world.submit(job("small", gpus=2))
    assert world.settle() == []
    reply = why(world, "small")
    assert reply.summary == (
        "waits: of 1 clusters: 1 busy; it would fit,"
        " but the capacity is reserved for a job before it"
    )
    assert (reply.held_back, reply.reservation) == (1, None)
    assert reply.hints == ("a duration of at most 2880 s: until then the room may be used",)
    assert not world.dry_run(TENANT, job("asks", gpus=2), world.now_s).placed
    # Said and done.
    world.submit(lasting("short", 2880 / HOUR_S, gpus=2))
    assert [placement for plan in world.settle() for placement in placements(plan)] == ["short"]


def test_a_better_priority_minds_no_kept_room() -> None:
    world = a_reservation()
    urgent = job("urgent", gpus=2, priority=5)
    assert world.dry_run(TENANT, urgent, world.now_s).placed
    world.submit(urgent)
    assert len(world.settle()) == 1


HINTS = {
    "another model": ({"gpu_models": ("H100",)}, "another GPU model: T4 would fit now, on c1"),
    "less memory of the GPU": (
        {"gpu_memory_mib": 24 * GIB},
        "less memory a GPU: a T4 with 16 GiB would fit now, on c1",
    ),
    "fewer pods": ({"gpus": 2, "count": 7}, "fewer pods: 4 of 7 would fit now, 8 GPUs, on c1"),
    "fewer GPUs": ({"gpus": 16}, "fewer GPUs: 8 a pod would fit now, on c1"),
    "less memory": ({"memory_mib": 2000 * GIB}, "less memory: 768 GiB a pod would fit now, on c1"),
    "fewer CPUs": ({"cpu_milli": 200_000}, "fewer CPUs: 96 a pod would fit now, on c1"),
    "another cluster": ({"clusters": ("nowhere",)}, "another cluster: it would fit now, on c1"),
    "no cluster labels": (
        {"cluster_labels": {"region": "moon"}},
        "no cluster labels: it would fit now, on c1",
    ),
    "no node labels": (
        {"node_labels": {"disk": "fast"}},
        "no node labels: it would fit now, on c1",
    ),
}


@pytest.mark.parametrize(("fields", "hint"), HINTS.values(), ids=HINTS)
def test_each_hint_helps_as_told(fields: dict[str, Any], hint: str) -> None:
    world = fleet(c1={"gpus": 8})
    world.submit(job("asks", **fields))
    assert world.settle() == []
    assert why(world, "asks").hints[0] == hint


def test_a_smaller_part_of_a_gpu_helps_where_others_share() -> None:
    world = fleet(c1={"gpus": 1})
    start(world, job("half", gpu_milli=600))
    world.submit(job("asks", gpu_milli=500))
    world.settle()
    assert why(world, "asks").hints == ("a smaller part of a GPU: 0.4 would fit now, on c1",)
    world.submit(job("takes", gpu_milli=400))
    assert len(world.settle()) == 1


def test_clusters_whose_limits_are_too_soft_are_counted_and_a_softer_one_helps() -> None:
    world = fleet(c1={"gpus": 1}, c2={"gpus": 1})
    world.submit(job("asks", gpu_milli=500, isolation="memory"))
    assert world.settle() == []
    reply = why(world, "asks")
    assert reply.summary == ("waits: of 2 clusters: 2 have no GPU fraction with isolation memory")
    assert "a weaker isolation of the GPU fraction: it would fit now, on c1" in reply.hints


def test_a_toleration_helps_against_its_taint_and_not_against_two() -> None:
    mine, other = (Taint(key=key, effect="NoSchedule") for key in ("mine", "other"))
    world = fleet(c1={"taints": (mine,)}, c2={"taints": (mine, other)})
    world.submit(job("asks"))
    world.settle()
    assert why(world, "asks").hints == ("a toleration of mine: it would fit now, on c1",)


def test_another_queue_helps_if_one_may_use_it_and_it_has_room() -> None:
    world = fleet(c1={"gpus": 8})
    world.control(QueueSetting(queue="full", capability_gpu_milli=2000))
    world.control(QueueSetting(queue="closed", tenants=("somebody-else",)))
    world.control(QueueSetting(queue="held", held=True))
    world.control(QueueSetting(queue="gone", deleted=True))
    world.control(QueueSetting(queue="tight", capability_gpu_milli=1000))
    world.control(QueueSetting(queue="wide"))
    world.submit(job("asks", queue="full", gpus=4))
    assert world.settle() == []
    reply = why(world, "asks")
    assert reply.summary == "waits: its queue is at its capability of 2 GPUs"
    assert reply.hints == (
        "fewer GPUs: 2 a pod would fit now, on c1",
        "queue wide: it would fit now, on c1",
    )


def test_what_nothing_helps_gets_no_hint() -> None:
    world = fleet(c1={"gpus": 1})
    start(world, job("runs"))
    world.submit(job("asks"))
    world.settle()
    assert why(world, "asks").hints == ()


@settings(max_examples=60, deadline=None)
@given(
    running=st.lists(st.integers(1, 4), max_size=6),
    gpus=st.integers(0, 9),
    count=st.integers(1, 4),
    model=st.sampled_from([(), ("T4",), ("H100",)]),
    memory_gib=st.sampled_from([0, 16, 40]),
    cpu=st.sampled_from([1000, 64_000, 200_000]),
)
# Both clusters would have room for the sixth at the same time: its reservation stays where it is.
@example(running=[2, 4, 2, 1, 2, 3], gpus=1, count=2, model=(), memory_gib=0, cpu=1000)
def test_asking_why_changes_nothing_and_what_is_told_is_true(
    running: list[int], gpus: int, count: int, model: tuple[str, ...], memory_gib: int, cpu: int
) -> None:
    world = fleet(c1={"gpus": 4}, c2={"gpus": 8, "model": "A100", "memory_mib": 40 * GIB})
    for number, hours in enumerate(running):
        start_if_it_fits(world, lasting(f"r{number}", hours, gpus=hours))
    pods = pod_set(
        gpus=gpus, count=count, gpu_models=model, gpu_memory_mib=memory_gib * GIB, cpu_milli=cpu
    )
    world.submit(job("asks", pod_sets=(pods,)))
    world.settle()
    before = free(world)
    reply = why(world, "asks")
    assert free(world) == before
    assert reply == why(world, "asks")
    assert world.resolver.decide(world.now_s) is None
    if reply.first_free_s is not None:
        for name, workload in list(world.workloads.items()):
            ends_s = stated_end_s(workload, world.now_s) if workload.live else None
            if ends_s is not None and ends_s <= reply.first_free_s:
                world.succeed(name)
        assert len(world.settle()) >= 1


def start_if_it_fits(world: World, request: JobRequest) -> None:
    name = world.submit(request)
    world.settle()
    if world.workloads[name].live:
        world.claim(name)
        world.run(name)


def free(world: World) -> tuple[list[int], list[int], list[list[int]]]:
    fleet = world.resolver.know.fleet
    fleet.arrange()
    arrays = fleet.arrays
    return arrays.cpu.tolist(), arrays.memory.tolist(), arrays.gpu.tolist()


def test_recent_decisions_include_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("berthmaster.control.resolver.core.resolver.CHOICES_KEPT", 3)
    world = fleet(c1={"gpus": 8})
    for count in (1, 1, 1, 1, 4):  # so many jobs are placed by a decision
        for number in range(count):
            world.submit(job(f"j{len(world.decisions)}-{number}"))
        world.settle()
    kept = world.resolver.decisions
    assert [len(decision.placements) for decision in kept.values()] == [4]
    assert list(kept) == [world.decisions[-1][1].number]


def test_a_job_too_wide_for_any_cluster_is_told_what_a_division_would_change() -> None:
    world = World()
    for name, gpus in (("a", 4), ("b", 3), ("c", 2)):
        world.fact(profile(name), alive(name), node(name, "n", gpus=gpus))
    for count, said in (
        (7, "7 x 1: all fit on 2 clusters (a 4, b 3)"),
        (30, "30 x 1: 9 fit on 3 clusters (a 4, b 3, c 2)"),
    ):
        world.submit(job(f"wide{count}", gpus=1, count=count))
        assert world.settle() == []
        reply = why(world, f"wide{count}")
        end = "; dividing is off: all pods of a job run in one cluster"
        assert reply.hints[0] == said + end


def test_what_makes_the_pods_of_rays_runtime_is_told_by_what_its_cluster_serves() -> None:
    for kinds, told in (
        (("Job", "RayJob"), "a RayJob: KubeRay is served"),
        (("Job",), "pods of ours: no KubeRay there"),
    ):
        world = World()
        world.fact(replace(profile("c1"), job_kinds=kinds), alive("c1"), node("c1"))
        asked = replace(job("ray"), runtime=Runtime(name="ray"), run=RunSpec(args=("t.py",)))
        full = filled_in(asked, TENANT, BUILT_IN)
        assert isinstance(full, JobRequest)
        start(world, full)
        assert why(world, "ray").summary.endswith(f"; {told}")
        start(world, job("plain"))
        assert "RayJob" not in why(world, "plain").summary
