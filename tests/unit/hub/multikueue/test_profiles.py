"""Clusters for a hub's Workloads rank by the engine's profiles, as for requests on NATS."""

import pytest

from berthmaster.hub.multikueue.policy import HubPolicy
from berthmaster.lib.engine.scoring.profiles import COMPONENTS, HUB_PROFILES
from berthmaster.lib.event_log.reader_settings import weights_problem
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.fleet import ClusterScore, Stamp
from tests.support.builders import profile
from tests.unit.hub.multikueue.hub_objects import QUEUE, pods, queue_report
from tests.unit.hub.multikueue.world import World

PRICE = "berthmaster.io/price-per-gpu-hour"


def idle(world: World, cluster: str, percent: float) -> None:
    """What is measured of a cluster."""
    score = ClusterScore(
        cluster=cluster,
        stamp=Stamp(epoch=1, counter=1),
        freshness="fresh",
        input_age_s=0.0,
        idle_gpu_percent=percent,
    )
    world.fact(f"{cluster}/score", score)


def ranked(world: World, name: str = "train", **how: object) -> list[str]:
    """The clusters of a new job's record, best first."""
    world.submit(name, **how)
    world.reserve(name)
    world.settle()
    (choice,) = world.decisions()[-1].placements
    return [ranked.cluster for ranked in choice.ranking]


def test_by_default_free_gpus_count_then_idle_ones_then_the_configuration() -> None:
    world = World(workers=("first", "second", "idle", "free"))
    for name in world.workers:
        world.worker(name, gpus=40, free=20)
        idle(world, name, 50.0)
    world.worker("free", gpus=40, free=21)
    idle(world, "free", 0.0)
    idle(world, "idle", 51.0)
    world.begin()
    assert ranked(world) == ["free", "idle", "first", "second"]


def priced() -> World:
    """``dear`` has more free GPUs, ``cheap`` fewer, ``busy`` none and costs nearly nothing."""
    world = World(workers=("dear", "cheap", "busy"))
    for name, free, price in (("dear", 8, "4"), ("cheap", 2, "2.5"), ("busy", 0, "0.1")):
        world.worker(name, gpus=8, free=free)
        world.fact(f"{name}/profile", profile(name, labels={PRICE: price}))
    return world


def test_a_queue_s_profile_holds_for_people_who_use_kubectl_and_why_shows_its_parts() -> None:
    world = priced()
    world.begin()
    assert ranked(world, "before") == ["dear", "cheap", "busy"]

    world.set(QueueSetting(queue=QUEUE, profile="cheapest"))
    assert ranked(world, "train") == ["cheap", "dear", "busy"]
    reply = world.core.why("acme", world.name("train").partition("/")[2], world.now_s)
    assert reply is not None
    assert reply.choice is not None
    assert (reply.choice.profile, reply.choice.weights) == ("cheapest", {})
    parts = {each.cluster: each.parts for each in reply.choice.ranking}
    assert list(parts["cheap"]) == ["fit", "price", "tier", "headroom"]
    shown = {name: (each["price"], each["tier"], each["headroom"]) for name, each in parts.items()}
    assert shown == {
        "cheap": (100.0, 100.0, 28.5714),  # 2 of the 7 GPUs that dear has left
        "dear": (62.5, 100.0, 100.0),
        "busy": (100.0, 66.6667, 0.0),
    }


def test_single_weights_of_a_queue_and_of_the_service_replace_those_of_the_profile() -> None:
    world = priced()
    world.set(QueueSetting(queue=QUEUE, weights={"price": 3.0, "headroom": 0.5}))
    world.begin()
    assert ranked(world) == ["cheap", "dear", "busy"]
    (choice,) = world.decisions()[-1].placements
    assert (choice.profile, choice.weights) == (
        "",
        {"idle": 0.02, "price": 3.0, "tier": 10.0, "headroom": 0.5},
    )

    world.set(QueueSetting(queue=QUEUE))
    assert ranked(world, "as usual") == ["dear", "cheap", "busy"]
    world.policy = HubPolicy(mode="dispatch", weights="price=3,headroom=0.5")
    world.restart()
    assert ranked(world, "by the service") == ["cheap", "dear", "busy"]
    assert world.decisions()[-1].settings["weights"] == "price=3,headroom=0.5"


@pytest.mark.parametrize("name", HUB_PROFILES)
def test_a_better_tier_goes_before_all_that_a_profile_counts_besides(name: str) -> None:
    """``fits`` is the worst by every other part."""
    world = World(workers=("none", "later", "busy", "fits"), profile=name)
    world.worker("fits", gpus=64, free=2)
    world.worker("busy", gpus=64, free=1)
    world.worker("none", gpus=64)
    world.fact("none/queue", queue_report("none", gpus=100, used=100, queue="worker-queue"))
    world.alive("later")
    world.fact("later/queue", queue_report("later"))
    for cluster, price, percent in (("fits", "90", 0.0), ("busy", "1", 99.0), ("none", "1", 100.0)):
        world.fact(f"{cluster}/profile", profile(cluster, labels={PRICE: price}))
        idle(world, cluster, percent)
    world.begin()
    assert ranked(world, pod_sets=(pods(gpus=2),)) == ["fits", "busy", "later", "none"]


def test_weights_of_the_service_are_parts_and_numbers_within_bounds() -> None:
    assert weights_problem((), COMPONENTS) == ""
    assert weights_problem(("price=3", "headroom=-0.5"), COMPONENTS) == ""
    for wrong in ("price", "price=", "price=x", "price=11", "price=nan", "carbon=1", "=1"):
        assert weights_problem((wrong,), COMPONENTS).startswith("PART=N, N from -10 to 10"), wrong
