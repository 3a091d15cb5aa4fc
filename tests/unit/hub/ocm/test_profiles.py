"""ClusterProfiles: ours get properties, those of others nothing, and some are made."""

from math import inf

import pytest

from berthmaster.hub.ocm.core.hub import OcmKind
from berthmaster.hub.ocm.core.instructions import (
    CreateProfile,
    CreateScore,
    DeleteProfile,
    WriteProperties,
    WriteScore,
)
from berthmaster.hub.ocm.core.properties import wanted
from berthmaster.lib.kube.controller.shell_contract import Answer, KubeEvent, Outcome
from berthmaster.lib.kube.objects import Condition, timestamp
from berthmaster.lib.ocm.core.view import view
from tests.unit.hub.ocm.builders import NAME, binding, managed, profile, score
from tests.unit.hub.ocm.story import Story


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
def test_foreign_profile_is_never_written(spec: str, label: str, reasons: list[str]) -> None:
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


def test_while_nobody_tells_a_profile_keeps_its_amounts_and_their_time() -> None:
    story = Story()
    story.sees(profile(version=1))
    story.tell(free=7)
    [first] = story.settle()
    assert isinstance(first, WriteProperties)
    told_at = first.properties[0]["lastObservedTime"]
    [silent] = story.act(30)
    assert isinstance(silent, WriteProperties)
    before = {one["name"]: one for one in first.properties}
    after = {one["name"]: one for one in silent.properties}
    fresh = before.pop("berthmaster.io/freshness"), after.pop("berthmaster.io/freshness")
    assert before == after
    assert [one["value"] for one in fresh] == ["fresh", "nottold"]
    assert fresh[1]["lastObservedTime"] != told_at
    # What nobody has seen again is not renewed.
    story.stored(silent)
    assert (story.act(3600), story.hub.wake_at_s()) == ([], inf)
    story.tell(free=7)
    [back] = story.act()
    assert isinstance(back, WriteProperties)
    assert {one["lastObservedTime"] for one in back.properties} == {timestamp(story.now_s)}


def made(story: Story, cluster: str = "east") -> None:
    story.tell(cluster)
    kinds = [type(each) for each in story.settle()]
    assert kinds[-2:] == [CreateProfile, WriteProperties]


@pytest.mark.parametrize("how", ["learned", "bound"])
def test_a_profile_that_we_have_made_goes_where_ocm_makes_its_own(how: str) -> None:
    story = Story(create_profiles_in="fleet")
    made(story)
    thing = managed("east") if how == "learned" else binding()
    story.sees(thing)
    asked = story.settle()
    [gone] = [each for each in asked if isinstance(each, DeleteProfile)]
    assert (gone.key, gone.uid) == (("profile", "fleet", "east"), "uid-fleet-east")
    [told] = [each for each in asked if isinstance(each, KubeEvent)]
    why = {
        "learned": "Open Cluster Management has a ManagedCluster east",
        "bound": "namespace fleet is bound to the ManagedClusterSet global",
    }[how]
    assert (told.reason, told.note) == ("Deleted", why)
    story.tell("east", free=1)
    if how == "bound":
        story.tell("west")
    assert not [each for each in story.settle() if not isinstance(each, WriteScore)]
    # Open Cluster Management forgets it, or the namespace is not bound any more.
    story.sees(thing, gone=True)
    story.tell("east")
    assert CreateProfile(gone.key, "berthmaster") in story.settle()


def test_a_profile_that_people_have_made_for_us_stays_whatever_ocm_learns() -> None:
    story = Story(create_profiles_in="fleet")
    story.sees(profile("east"))
    story.sees(managed("east"))
    story.sees(binding())
    story.tell("east")
    assert not [each for each in story.settle() if isinstance(each, DeleteProfile)]


def test_a_deletion_that_fails_is_tried_again_and_not_answered_by_a_new_one() -> None:
    story = Story(create_profiles_in="fleet")
    made(story)
    story.sees(binding())
    [gone] = story.act()
    assert isinstance(gone, DeleteProfile)
    story.hub.on_answer(gone, Answer(Outcome.LATER, "TimedOut", "why"), story.now_s)
    assert story.act() == []
    [again] = story.act(1)
    assert isinstance(again, DeleteProfile)
    conflict = Answer(Outcome.CONFLICT, "Conflict", "why", found=None)
    story.hub.on_answer(again, conflict, story.now_s)
    assert story.act(1000) == []  # it is gone already


def test_no_profile_is_made_before_it_is_known_where_ocm_makes_its_own() -> None:
    story = Story(create_profiles_in="fleet")
    story.hub._listed.discard(OcmKind.BINDINGS)  # as before its list
    story.tell("east")
    assert story.act() == []
    story.hub.on_absent(OcmKind.BINDINGS.value)
    assert story.act() == [CreateProfile(("profile", "fleet", "east"), "berthmaster")]


def conditions(write: object) -> dict[str, tuple[object, object]]:
    assert isinstance(write, WriteProperties)
    return {
        str(one["type"]): (one["status"], one["lastTransitionTime"]) for one in write.conditions
    }


def test_conditions_of_our_profile_follow_the_agent_and_keep_their_times() -> None:
    story = Story()
    begin = timestamp(story.now_s)
    story.tell()
    theirs = Condition(
        type="Backup", status="True", reason="Done", message="", last_transition_time=begin
    )
    story.sees(profile("east", conditions=[theirs]))
    [first] = story.act()
    assert isinstance(first, WriteProperties)
    live = dict.fromkeys(("Backup", "ControlPlaneHealthy", "Joined"), ("True", begin))
    assert conditions(first) == live
    story.stored(first)
    for _ in range(8):  # longer than a cluster is given after its scores are told again
        story.now_s += 5
        story.tell()
    story.tell(freshness="stale")
    [stale] = [one for one in story.settle() if isinstance(one, WriteProperties)]
    assert conditions(stale)["ControlPlaneHealthy"][0] == "Unknown"
    assert conditions(stale)["Joined"] == ("True", begin)
    assert conditions(stale)["Backup"] == ("True", begin)


def test_cluster_that_never_reported_has_not_joined() -> None:
    story = Story()
    story.sees(profile("ghost"))
    for _ in range(8):
        story.now_s += 5
        story.tell("west")
    written = [one for one in story.settle() if isinstance(one, WriteProperties)]
    [write] = [one for one in written if one.key[2] == "ghost"]
    assert {name: status for name, (status, _) in conditions(write).items()} == {
        "ControlPlaneHealthy": "Unknown",
        "Joined": "False",
    }


def test_conditions_stay_while_nobody_tells_scores() -> None:
    story = Story()
    story.tell()
    story.sees(profile("east"))
    [first] = story.act()
    assert isinstance(first, WriteProperties)
    story.stored(first)
    told = [one for one in story.act(120) if isinstance(one, WriteProperties)]
    assert [conditions(one) for one in told] == [conditions(first)] * len(told) != []


def test_version_of_kubernetes_is_written_at_once_and_once() -> None:
    story = Story()
    story.tell()
    story.sees(profile("east"))
    story.settle()
    story.hub.on_version("east", "v1.36.3")
    [write] = story.act()
    assert isinstance(write, WriteProperties)
    assert write.version == "v1.36.3"
    story.stored(write)
    story.hub.on_version("east", "v1.36.3")
    story.hub.on_version("east", "")
    assert story.act() == []
