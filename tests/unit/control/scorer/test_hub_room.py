"""Clusters of which only their hub has measured something: scored by that, as old as it is."""

from typing import Any

from berthmaster.control.scorer.core.events import FactForgotten, FactSeen
from berthmaster.control.scorer.core.intake import Intake
from berthmaster.control.scorer.core.rules import ScoringRules
from berthmaster.control.scorer.core.shard import Shard
from berthmaster.lib.messages.fleet import Amounts, HubRoom, Membership
from berthmaster.lib.nats import subjects
from tests.unit.control.scorer.builders import START_S, Story, report, stamp

WEST = subjects.membership("west")
NOTE = "as its hub has measured it: nothing of ours reports there"


def membership(counter: int = 1, *, at_s: float = START_S, room: bool = True, **left: Any) -> Any:
    measured = HubRoom(
        allocatable=Amounts(cpu_milli=100_000, memory_mib=1024 * 1024, gpu_milli=10_000),
        available=Amounts(**left),
        observed_at_s=at_s,
        interval_s=60.0,
    )
    return Membership(
        cluster="west",
        stamp=stamp(counter),
        observed_at_s=at_s,
        room=measured if room else None,
    )


def test_what_is_available_is_scored_on_the_scale_of_the_fleet() -> None:
    story = Story(ScoringRules(refresh_s=1000.0))
    [told] = story.fact(membership(cpu_milli=50_000, gpu_milli=10_000))[-1:]
    amounts = {name: (each.score, each.available) for name, each in told.resources.items()}
    assert amounts == {
        "cpuClusterAvailable": (0, 50.0),
        "memClusterAvailable": (-100, 0.0),
        "gpuClusterAvailable": (100, 10.0),
        "tpuClusterAvailable": (-100, 0.0),
    }
    assert (told.freshness, told.free_gpus, told.nodes, told.note) == ("fresh", 10.0, 0, NOTE)
    [told] = story.fact(membership(2, at_s=story.now_s, gpu_milli=2000))[-1:]
    assert told.resources["gpuClusterAvailable"].available == 2.0


def test_it_is_as_fresh_as_its_observation_however_often_it_is_told() -> None:
    story = Story()
    story.fact(membership(at_s=START_S - 170.0, cpu_milli=1000))
    assert story.score("west").freshness == "fresh"
    story.wait(10.0)
    assert story.score("west").freshness == "stale"
    story.fact(membership(2, at_s=START_S - 170.0, cpu_milli=1000))
    assert story.score("west").freshness == "stale"
    story.wait(180.0)
    assert (story.score("west").freshness, story.score("west").resources) == ("withdrawn", {})
    # A clock that runs ahead keeps nothing fresh for longer.
    story.fact(membership(3, at_s=story.now_s + 9000.0, cpu_milli=1000))
    story.wait(181.0)
    assert story.score("west").freshness == "stale"


def test_what_a_cluster_says_itself_counts_and_its_hub_s_word_keeps_it_not_alive() -> None:
    story = Story()
    story.fact(membership(cpu_milli=1000))
    story.fact(report(cluster="west"))
    own = story.score("west")
    assert own.nodes == 1
    assert "cpuNodeAvailable" in own.resources
    assert NOTE not in own.note
    for counter in range(2, 30):
        story.wait(5.0)
        story.fact(membership(counter, at_s=story.now_s, cpu_milli=1000))
    assert story.score("west").freshness == "withdrawn"


def test_a_membership_without_room_makes_no_score_and_ends_one() -> None:
    intake = Intake(Shard())
    without = membership(room=False)
    assert intake.fact(WEST, without, START_S) == FactForgotten("west", "membership")
    some = membership(2, cpu_milli=1000)
    assert intake.fact(WEST, some, START_S) == FactSeen(some, START_S)

    story = Story()
    forgotten = FactForgotten("west", "membership")
    assert story.scorer.handle(forgotten, story.now_s) == []
    story.fact(some)
    [last] = story.scorer.handle(forgotten, story.now_s)
    assert (last.fact.freshness, last.fact.resources) == ("withdrawn", {})
    story.fact(report(cluster="west"))
    assert story.scorer.handle(forgotten, story.now_s) == []
