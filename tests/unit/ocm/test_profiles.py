"""ClusterProfiles: ours get properties, those of others nothing, and some are made."""

import pytest

from berthmaster.controller.instructions import KubeEvent
from berthmaster.kubernetes.objects import timestamp
from berthmaster.ocm.core import OcmKind
from berthmaster.ocm.instructions import (
    CreateProfile,
    CreateScore,
    WriteProperties,
    WriteScore,
)
from berthmaster.ocm.properties import wanted
from berthmaster.ocm.scores import view
from tests.unit.ocm.builders import NAME, managed, profile, score
from tests.unit.ocm.story import Story


def test_a_profile_that_we_manage_gets_our_properties_and_keeps_the_others() -> None:
    story = Story()
    story.tell()
    story.sees(profile("east", {"zone": "b"}))
    [write] = story.act()
    assert isinstance(write, WriteProperties)
    told = {one["name"]: one["value"] for one in write.properties}
    assert told == {"zone": "b"} | wanted(view(score(), silent_s=0))
    story.stored(write)
    assert story.act() == []
    # Renewed, so that a reader sees that somebody keeps it; a change at once.
    for _ in range(29):
        story.now_s += 5
        story.tell()
        assert story.act() == []
    story.now_s += 5
    story.tell()
    [again] = story.act()
    assert isinstance(again, WriteProperties)
    assert {one["lastObservedTime"] for one in again.properties if one["name"] != "zone"} == {
        timestamp(story.now_s)
    }
    story.stored(again)
    story.tell(free=1)
    assert [type(each) for each in story.settle()] == [WriteProperties]


@pytest.mark.parametrize(
    ("spec", "label", "reasons"),
    [
        ("open-cluster-management", "open-cluster-management", []),
        ("berthmaster", "open-cluster-management", ["ManagerMismatch"]),
        ("open-cluster-management", "berthmaster", ["ManagerMismatch"]),
        ("berthmaster", "", ["ManagerMismatch"]),
    ],
)
def test_a_profile_of_another_manager_is_never_written(
    spec: str, label: str, reasons: list[str]
) -> None:
    story = Story()
    story.tell()
    story.sees(profile("east", spec=spec, label=label))
    asked = [*story.act(), *story.act(5)]
    assert [each.reason for each in asked if isinstance(each, KubeEvent)] == reasons
    assert len(asked) == len(reasons)


def test_a_profile_with_absurdly_many_properties_is_told_about_and_left_alone() -> None:
    story = Story()
    story.tell()
    story.sees(profile("east", {f"p{n}": "x" * 100 for n in range(10_000)}))
    [tell] = story.act()
    assert isinstance(tell, KubeEvent)
    assert (tell.resource.kind, tell.reason) == ("ClusterProfile", "TooManyProperties")
    story.tell(free=3)
    assert story.act(5) == []
    story.sees(profile("east", {"p": "x"}, version=2))
    assert [type(each) for each in story.act()] == [WriteProperties]


def test_a_profile_of_a_cluster_that_is_not_known_says_so() -> None:
    story = Story()
    story.sees(profile("ghost"))
    assert story.act(29) == []
    [write] = story.act(1)
    assert isinstance(write, WriteProperties)
    told = {one["name"]: one["value"] for one in write.properties}
    assert told["berthmaster.io/freshness"] == "noreport"


def test_profiles_are_made_only_where_that_is_set_and_only_of_what_nobody_manages() -> None:
    story = Story()
    story.tell("east")
    assert story.act() == []
    story = Story(create_profiles_in="fleet")
    story.sees(managed("ocms"))
    story.sees(profile("theirs", namespace="elsewhere", spec="fleetmanager", label="fleetmanager"))
    for cluster in ("east", "ocms", "theirs", "Not A Name", "x" * 254, "lost"):
        story.tell(cluster, freshness="withdrawn" if cluster == "lost" else "fresh")
    made = [each for each in story.settle() if not isinstance(each, CreateScore | WriteScore)]
    east = ("profile", "fleet", "east")
    assert made[0] == CreateProfile(east, "berthmaster")
    assert [type(each) for each in made] == [CreateProfile, WriteProperties]
    assert set(story.hub.problems) == {"Not A Name", "x" * 254}
    # Somebody else takes the cluster over before the next is made.
    story.tell("next")
    story.sees(managed("next"))
    assert not [each for each in story.act() if isinstance(each, CreateProfile)]


def test_a_hub_without_ocm_but_with_profiles_makes_them_too() -> None:
    story = Story(create_profiles_in="fleet")
    story.hub.on_absent(OcmKind.MANAGED.value)
    story.hub.on_absent(OcmKind.SCORES.value)
    story.tell("east")
    assert story.act() == [CreateProfile(("profile", "fleet", "east"), "berthmaster")]


def test_names_at_their_limits_are_no_trouble() -> None:
    long = ".".join(["x" * 63] * 3 + ["x" * 61])
    assert len(long) == 253
    story = Story(create_profiles_in="fleet")
    story.tell(long)
    assert story.act() == [CreateProfile(("profile", "fleet", long), "berthmaster")]
    story.sees(managed(long))
    [create] = [each for each in story.act() if not isinstance(each, KubeEvent)]
    assert create == CreateScore(("score", long, NAME))
