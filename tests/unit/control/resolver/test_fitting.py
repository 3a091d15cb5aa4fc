"""Stories of what a request asks of nodes and GPUs: preferred models, MIG, memory, topology."""

from typing import Any

import pytest
from msgspec.structs import replace

from berthmaster.control.resolver.replay import replay
from berthmaster.lib.engine.fleetview.shortlist import LESS_LIKED
from berthmaster.lib.messages.api import WhyReply
from berthmaster.lib.messages.fleet import NodeReport, Share
from berthmaster.lib.messages.placement import Choice
from berthmaster.lib.messages.workload import Topology
from tests.support.builders import alive, job, node, pod_set, profile
from tests.support.deciding import TENANT, World, placements

MIG = Share(resource="nvidia.com/mig-1g.10gb", milli=142, memory_mib=10_240, count=2, kind="mig")


def world_of(*reports: NodeReport) -> World:
    world = World()
    for cluster in sorted({report.cluster for report in reports}):
        world.fact(profile(cluster), alive(cluster))
    world.fact(*reports)
    return world


def why(world: World, name: str) -> WhyReply:
    reply = world.why(TENANT, name, world.now_s)
    assert isinstance(reply, WhyReply)
    return reply


def place(world: World, **pods: Any) -> str:
    """Where the next job goes; "" if it waits."""
    name = f"j{len(world.workloads)}"
    world.submit(job(name, **pods))
    return placements(world.decide()).get(name, "")


# Preferences among models


def two_models() -> World:
    return world_of(
        node("old", gpus=2, model="A100"), node("new", gpus=2, model="NVIDIA-H100-80GB-HBM3")
    )


def test_the_preferred_model_is_taken_first_and_another_rather_than_waiting() -> None:
    world = two_models()
    wants: dict[str, Any] = {"gpu_models": ("A100", "H100"), "prefer_gpu_models": ("H100",)}
    assert [place(world, **wants) for _ in range(5)] == ["new", "new", "old", "old", ""]
    again = replay(world.inputs(), "all")  # each of them can be repeated from the log
    assert (again.decisions, again.equal, again.different) == (4, 4, 0)


def test_of_several_the_best_that_is_free_counts() -> None:
    world = world_of(node("a", gpus=1, model="T4"), node("b", gpus=1, model="A100"))
    prefers = ("H100", "A100", "T4")
    assert [place(world, prefer_gpu_models=prefers) for _ in range(3)] == ["b", "a", ""]


def test_without_a_list_of_acceptable_ones_any_will_do() -> None:
    world = world_of(node("a", gpus=1, model="T4"), node("b", gpus=1, model="A100"))
    assert [place(world, prefer_gpu_models=("A100",)) for _ in range(2)] == ["b", "a"]


def test_a_preferred_model_that_is_not_acceptable_is_not_taken() -> None:
    world = two_models()
    assert place(world, gpu_models=("A100",), prefer_gpu_models=("H100", "A100")) == "old"


def test_a_gang_is_of_the_preferred_model_whole_or_of_another() -> None:
    wants: dict[str, Any] = {"count": 3, "prefer_gpu_models": ("H100",)}
    assert (
        place(world_of(node("a", gpus=4, model="A100"), node("h", gpus=2, model="H100")), **wants)
        == "a"
    )
    both = world_of(node("a", gpus=4, model="A100"), node("h", gpus=4, model="H100"))
    assert [place(both, **wants), place(both, **wants)] == ["h", "a"]


def test_a_gang_that_only_a_mix_can_hold_gets_the_mix() -> None:
    world = world_of(node("c1", "n1", gpus=2, model="A100"), node("c1", "n2", gpus=2, model="H100"))
    assert place(world, count=3, prefer_gpu_models=("H100", "A100")) == "c1"


def test_pod_sets_may_prefer_different_models() -> None:
    world = world_of(node("c1", "n1", gpus=2, model="A100"), node("c1", "n2", gpus=2, model="H100"))
    sets = (
        pod_set(name="trainer", prefer_gpu_models=("H100",)),
        pod_set(name="scorer", prefer_gpu_models=("A100",)),
    )
    world.submit(job("both", pod_sets=sets))
    plan = world.decide()
    assert plan is not None
    [choice] = plan.decision.placements
    assert [(b.pod, b.node) for b in choice.pods] == [("trainer-0", "n2"), ("scorer-0", "n1")]


def test_the_record_says_who_was_passed_over_for_a_better_model() -> None:
    world = two_models()
    world.submit(job("asks", prefer_gpu_models=("H100",)))
    plan = world.decide()
    assert plan is not None
    [choice] = plan.decision.placements
    assert isinstance(choice, Choice)
    assert choice.filtered == {"old": LESS_LIKED}
    assert [ranked.cluster for ranked in choice.ranking] == ["new"]


# MIG and memory


def test_a_mig_profile_is_found_by_name_until_there_is_none() -> None:
    sliced = replace(node("mig", gpus=1, foreign_milli=(716,)), shares=(MIG,))
    world = world_of(sliced, node("plain", gpus=1))
    asks: dict[str, Any] = {"mig_profile": "1g.10gb", "gpu_milli": 142}
    assert [place(world, **asks) for _ in range(3)] == ["mig", "mig", ""]
    waits = why(world, "j2")
    assert waits.summary == "waits: of 2 clusters: 1 busy, 1 has no MIG 1g.10gb"
    assert place(world, mig_profile="2g.20gb", gpu_milli=285) == ""
    assert why(world, "j3").summary == "waits: of 2 clusters: 2 have no MIG 2g.20gb"


def test_parts_are_had_by_memory() -> None:
    world = world_of(node("c1", gpus=1, memory_mib=16_384))
    asks: dict[str, Any] = {"gpu_milli": 1, "gpu_memory_mib": 8192}
    assert [place(world, **asks) for _ in range(3)] == ["c1", "c1", ""]
    key = next(iter(world.resolver.know.open))
    world.claim(key)
    world.succeed(key)
    assert placements(world.decide()) == {"j2": "c1"}


# Topology


def racks(**gpus: int) -> World:
    """One cluster, a node with so many GPUs in each rack."""
    return world_of(
        *(node("c1", f"n-{rack}", gpus=each, labels={"rack": rack}) for rack, each in gpus.items())
    )


def test_a_gang_waits_for_a_rack_and_goes_there_when_it_is_free() -> None:
    world = racks(a=4, b=2)
    [first] = [world.submit(job("first", gpus=2, cpu_milli=0))]
    assert placements(world.decide()) == {"first": "c1"}
    spread = {b.node for b in world.workloads[first].pods}
    assert spread == {"n-b"}
    world.submit(job("blocker", gpus=1))
    world.decide()
    world.submit(job("gang", count=4, topology=Topology(same="rack")))
    assert world.decide() is None
    waits = why(world, "gang")
    assert waits.summary.startswith("waits: of 1 clusters: 1 busy")
    assert waits.reasons == {"busy": 1}
    blocker = next(k for k in world.workloads if k.endswith("blocker"))
    world.claim(blocker)
    world.succeed(blocker)
    plan = world.decide()
    assert plan is not None
    [choice] = plan.decision.placements
    assert {b.node for b in choice.pods} == {"n-a"}


@pytest.mark.parametrize(
    ("asks", "reason"),
    [
        (
            {"count": 5, "topology": Topology(same="rack")},
            "1 no place large enough for its pods, even if nothing ran there",
        ),
        (
            {"count": 3, "topology": Topology(max_pods_a_node=1)},
            "1 too few nodes for its pods, even if nothing ran there",
        ),
        ({"topology": Topology(same="zone")}, "1 no node has the label"),
        (
            {"gpus": 2, "topology": Topology(gpu_domain="required")},
            "1 has no node with 2 GPUs in one NVLink domain",
        ),
    ],
)
def test_what_cannot_be_is_told_as_such(asks: dict[str, Any], reason: str) -> None:
    world = racks(a=4, b=2)
    world.submit(job("never", **asks))
    assert world.decide() is None
    assert why(world, "never").summary == f"waits: of 1 clusters: {reason}"


def test_what_would_help_is_to_ask_for_less_of_it() -> None:
    world = racks(a=4, b=2)
    world.submit(job("gang", count=5, topology=Topology(same="rack")))
    assert world.decide() is None
    hints = why(world, "gang").hints
    assert "pods anywhere in the cluster: it would fit now, on c1" in hints
    assert "fewer pods: 4 of 5 would fit now, 4 GPUs, on c1" in hints


def test_a_gang_is_never_split_over_clusters() -> None:
    world = world_of(*(node(f"c{at}", gpus=4) for at in range(5)))
    assert place(world, count=5) == ""
    assert place(world, count=4) == "c0"
    for cluster in ("c0", "c1"):
        pods = [b.node for w in world.workloads.values() if w.cluster == cluster for b in w.pods]
        assert len(pods) in (0, 4)


def test_seven_whole_gpus_never_fit_where_two_are_shared() -> None:
    """Of eight GPUs two are handed out as replicas only."""
    report = node(gpus=8)
    gpus = tuple(
        replace(gpu, parts_only=gpu.index > 5, foreign_milli=int(gpu.index > 5))
        for gpu in report.gpus
    )
    world = World()
    world.fact(profile(), alive(), replace(report, gpus=gpus))
    world.submit(job("seven", gpus=7))
    world.submit(job("six", gpus=6))
    plan = world.decide()
    assert plan is not None
    assert [choice.id for choice in plan.decision.placements] == ["six"]
    assert why(world, "seven").summary == (
        "waits: of 1 clusters: 1 too few whole GPUs a node even if nothing ran there, as others "
        "are shared or cut"
    )


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (
            {"gpus": 7},
            (
                "too few GPUs a node even if nothing ran there, as others are unhealthy "
                "(6 of 8: 2 unhealthy)"
            ),
        ),
        ({"gpus": 1, "cpu_milli": 97_000}, "too few CPUs a node, even if nothing ran there (96)"),
        (
            {"gpus": 1, "memory_mib": 786_433},
            "too little memory a node, even if nothing ran there (786432 MiB)",
        ),
        ({"gpus": 1, "count": 7}, "too few nodes for its pods, even if nothing ran there"),
        ({"gpus": 6}, "busy: no room now"),
        ({"gpus": 1, "count": 6}, "busy: no room now"),
    ],
)
def test_busy_is_said_only_of_what_can_be(asked: dict[str, Any], reason: str) -> None:
    """The node has six healthy GPUs, all of them in use."""
    world = World()
    world.fact(profile(), alive(), node(gpus=8, unhealthy=(6, 7)))
    world.submit(job("first", gpus=6, cpu_milli=0, memory_mib=0))
    world.decide()
    world.submit(job("second", **asked))
    world.decide()
    assert why(world, "second").filtered == {"c1": reason}


def test_pod_sets_that_fit_only_one_by_one_are_not_called_busy() -> None:
    world = World()
    world.fact(profile(), alive(), node(gpus=8))
    sets = tuple(pod_set(name=name, gpus=5) for name in ("a", "b"))
    world.submit(job("both", pod_sets=sets))
    world.decide()
    assert why(world, "both").filtered == {
        "c1": "too few nodes for its pods, even if nothing ran there"
    }


def test_answers_do_not_change_what_decisions_record() -> None:
    world = World()
    world.fact(profile(), alive(), node(gpus=8, unhealthy=(6, 7)))
    world.fact(profile("c2"), alive("c2"), node("c2"))
    world.submit(job("waits", gpus=7, clusters=("c1",)))
    world.decide()
    why(world, "waits")
    world.dry_run(TENANT, job("tried", gpus=7), world.now_s)
    world.submit(job("other", gpus=7))
    plan = world.decide()
    assert plan is not None
    assert plan.decision.placements[0].filtered == {"c1": "busy: no room now"}
