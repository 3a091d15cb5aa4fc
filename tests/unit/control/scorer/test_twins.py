"""A cluster that is in the fleet under two names is scored under one."""

from msgspec.structs import replace

from berthmaster.control.scorer.core.events import FactForgotten
from berthmaster.lib.messages.fleet import ClusterProfile
from tests.unit.control.scorer.builders import Story, alive, profile, report


def known(name: str, since_s: float, counter: int = 1, uid: str = "5c1e") -> ClusterProfile:
    return replace(profile(counter, cluster=name), uid=uid, uid_since_s=since_s)


def two_names() -> Story:
    story = Story()
    for name, since_s in (("east", 1.0), ("copy", 2.0)):
        story.fact(alive(cluster=name))
        story.fact(report(cluster=name))
        story.fact(known(name, since_s))
    return story


def test_score_of_the_second_name_is_withdrawn_with_the_first_name() -> None:
    story = two_names()
    assert (story.score("east").freshness, story.score("east").free_gpus) == ("fresh", 8.0)
    twin = story.score("copy")
    assert (twin.freshness, twin.note) == ("withdrawn", "the same cluster as another: east")
    assert (twin.free_gpus, twin.resources) == (0.0, {})


def test_second_name_is_scored_once_the_first_is_silent_or_forgotten() -> None:
    story = two_names()
    story.wait(130.0)
    story.fact(alive(2, cluster="copy"))
    assert story.score("copy").freshness == "fresh"
    story = two_names()
    told = story.scorer.handle(FactForgotten("east", "profile", ""), story.now_s)
    assert told == []
    [again] = [score for score in story.wait(0.005) if score.cluster == "copy"]
    assert again.freshness == "fresh"


def test_reader_is_told_at_once_that_a_cluster_is_a_twin() -> None:
    story = Story()
    for name in ("east", "copy"):
        story.fact(alive(cluster=name))
        story.fact(report(cluster=name))
    story.fact(known("east", 1.0))
    [told] = story.fact(known("copy", 2.0))
    assert (told.cluster, told.freshness) == ("copy", "withdrawn")
    [back] = story.fact(known("copy", 2.0, counter=2, uid="77aa"))
    assert (back.cluster, back.freshness) == ("copy", "fresh")
