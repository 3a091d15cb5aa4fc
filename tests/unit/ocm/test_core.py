"""The hub's side, as stories: objects and scores come in, writes go out."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from berthmaster.kubernetes.objects import Condition, Object, seconds, timestamp
from berthmaster.ocm.core import Hub, Kind
from berthmaster.ocm.objects import PlacementScore
from berthmaster.ocm.pace import Rules
from berthmaster.ocm.properties import wanted
from berthmaster.ocm.scores import FIXED_NAMES, view
from berthmaster.ocm.settings import Policy
from berthmaster.ocm.words import (
    CreateProfile,
    CreateScore,
    Done,
    Instruction,
    Key,
    Tell,
    Write,
    WriteProperties,
    WriteScore,
)
from tests.unit.ocm.builders import NAME, T0_S, managed, metadata, placed, profile, score

EAST = ("score", "east", NAME)
T4 = "gpuGang-Tesla-T4"
RULES = Rules(settle_s=30.0, burst=6.0, refill_s=10.0, validity_s=300.0)


class Story:
    """A hub that is listed, a clock, and a server that does what it is told."""

    def __init__(self, **policy: Any) -> None:
        self.hub = Hub(Policy(rules=RULES, silent_after_s=30.0, **policy))
        self.now_s = T0_S
        self.version = 100
        self.written: dict[Key, Object] = {}
        self.hub.listen(self.now_s, blind=False)
        for kind in Kind:
            self.hub.on_listed(kind.value)

    def act(self, after_s: float = 0.0) -> list[Instruction]:
        """What is asked for after so long."""
        self.now_s += after_s
        return self.hub.act(self.now_s)

    def tell(self, cluster: str = "east", **rest: Any) -> None:
        """A score comes."""
        self.hub.on_score(score(cluster, **rest), self.now_s)

    def sees(self, thing: Object, *, gone: bool = False) -> None:
        """A watch brings an object."""
        self.hub.on_object(thing, gone=gone)

    def stored(self, write: Write) -> list[Instruction]:
        """The server does it."""
        self.version += 1
        thing: Object
        match write:
            case CreateScore(key):
                thing = placed(key[1], version=self.version, name=key[2])
            case WriteScore():
                thing = self.shows(write, self.version)
            case CreateProfile(key):
                thing = profile(key[2], namespace=key[1], version=self.version)
            case WriteProperties():
                listed = {one["name"]: one["value"] for one in write.properties}
                _, namespace, name = write.key
                thing = profile(
                    name, listed, namespace=namespace, version=self.version, at_s=self.now_s
                )
            case _:
                raise AssertionError(write)
        told = self.hub.on_done(Done(key=write.key, outcome="stored", thing=thing), self.now_s)
        self.written[write.key] = thing
        self.sees(thing)  # the watch comes after the answer
        return told

    @staticmethod
    def shows(write: WriteScore, version: int) -> PlacementScore:
        """The object that a write makes."""
        _, namespace, name = write.key
        return placed(
            namespace,
            write.scores,
            version=version,
            until_s=seconds(write.valid_until),
            reason=write.reason,
            message=write.message,
            name=name,
            since_s=seconds(write.since),
        )

    def settle(self, limit: int = 20) -> list[Instruction]:
        """Everything that is due now is done; what that was."""
        told: list[Instruction] = []
        for _ in range(limit):
            asked = self.act()
            if not asked:
                return told
            for each in asked:
                told.append(each)
                if not isinstance(each, Tell):
                    told += self.stored(each)
        raise AssertionError(f"it does not come to rest: {told[-3:]}")


def the_write(asked: Sequence[Instruction]) -> WriteScore:
    [write] = asked
    assert isinstance(write, WriteScore)
    return write


def reported(**rest: Any) -> Story:
    """A story in which one cluster's scores stand."""
    story = Story()
    story.sees(managed("east"))
    story.tell(**rest)
    story.settle()
    return story


def test_a_cluster_that_is_managed_and_reports_gets_its_scores() -> None:
    story = Story()
    story.tell()
    assert story.act() == []  # nobody manages it
    story.sees(managed("east"))
    assert story.act() == [CreateScore(EAST)]
    assert story.act() == []  # on its way
    assert story.stored(CreateScore(EAST)) == []
    write = the_write(story.act())
    assert write.resource_version == "101"
    assert write.scores["gpuClusterAvailable"] == 20
    assert write.scores[T4] == 20
    assert (write.status, write.reason, write.message) == ("True", "Live", "")
    assert (write.valid_until, write.since) == (timestamp(T0_S + 300), timestamp(T0_S))
    assert story.stored(write) == []
    # It stands: nothing more, until half its validity is over.
    assert story.act() == []
    for _ in range(29):
        story.now_s += 5
        story.tell()
        assert story.act() == []
    story.now_s += 5
    story.tell()
    renewed = the_write(story.act())
    assert renewed.scores == write.scores
    assert renewed.valid_until == timestamp(T0_S + 450)
    assert renewed.since == write.since  # nothing changed but the time
    assert renewed.told_at_s is None


def test_what_stands_from_an_earlier_life_is_not_written_again() -> None:
    before = reported()
    write = before.written[EAST]
    story = Story()
    story.sees(write)
    story.sees(managed("east"))
    story.tell()
    assert story.act() == []


def test_a_large_change_is_written_at_once_and_a_small_one_when_it_has_lasted() -> None:
    story = reported(free=12)
    story.now_s += 1
    story.tell(free=11)
    write = the_write(story.act())
    assert write.scores["gpuClusterAvailable"] == 10
    assert write.told_at_s == story.now_s  # the measure of how soon
    story.stored(write)
    story.tell(free=11, idle=54)
    assert story.act() == []
    for _ in range(5):
        story.now_s += 5
        story.tell(free=11, idle=54)
        assert story.act() == []
    story.now_s += 5
    story.tell(free=11, idle=53)
    late = the_write(story.act())
    assert (late.scores["gpuIdle"], late.told_at_s) == (6, None)
    story.stored(late)
    # A tiny one goes along when they are renewed.
    written_s = story.now_s
    for _ in range(29):
        story.now_s += 5
        story.tell(free=11, idle=54)
        assert story.act() == []
    story.now_s += 5
    assert story.now_s == written_s + 150
    story.tell(free=11, idle=54)
    assert the_write(story.act()).scores["gpuIdle"] == 8


@pytest.mark.parametrize("freshness", ["stale", "withdrawn"])
def test_old_inputs_are_the_worst_at_once_said_so_kept_so_and_taken_back(freshness: Any) -> None:
    story = reported()
    story.now_s += 10
    story.tell(freshness=freshness, note="no sign of life for 15 s")
    write = the_write(story.act())
    assert set(write.scores.values()) == {-100}
    assert set(write.scores) == {*FIXED_NAMES, T4}
    assert (write.status, write.reason) == ("False", freshness.capitalize())
    assert write.since == timestamp(story.now_s)
    [tell] = story.stored(write)
    assert isinstance(tell, Tell)
    assert (tell.about, tell.warning, tell.reason) == (
        "AddOnPlacementScore", True, freshness.capitalize(),
    )  # fmt: skip
    assert tell.note == "the worst scores stand: no sign of life for 15 s"
    # Never left to run out: it would count as 0, which is better than many.
    renewals = 0
    for _ in range(120):
        story.now_s += 5
        story.tell(freshness=freshness, note="no sign of life for 15 s")
        for each in story.settle():
            assert isinstance(each, WriteScore)
            assert set(each.scores.values()) == {-100}
            renewals += 1
    assert renewals == 4
    story.tell()
    back = the_write(story.act())
    assert back.reason == "Live"
    [tell] = story.stored(back)
    assert isinstance(tell, Tell)
    assert (tell.warning, tell.note) == (False, "the scores are live again")


def test_a_score_that_nobody_tells_any_more_is_the_worst_and_stays_so() -> None:
    story = reported()
    story.now_s += 29
    assert story.act() == []
    assert story.hub.wake_at_s() == T0_S + 30
    write = the_write(story.act(1))
    assert (write.reason, set(write.scores.values())) == ("NotTold", {-100})
    story.stored(write)
    assert (story.act(), story.hub.wake_at_s()) == ([], T0_S + 30 + 150)
    # Gone from the bus altogether, it is not better.
    story.hub.on_gone("east")
    [gone] = [each for each in story.settle() if isinstance(each, WriteScore)]
    assert (gone.reason, set(gone.scores.values())) == ("NoReport", {-100})


def test_a_cluster_that_never_reported_is_the_worst_once_it_had_its_time() -> None:
    story = Story()
    story.sees(managed("mute"))
    assert story.act(29) == []
    [create] = story.act(1)
    assert create == CreateScore(("score", "mute", NAME))
    story.stored(create)
    write = the_write(story.act())
    assert (write.reason, set(write.scores.values())) == ("NoReport", {-100})


def test_a_cluster_that_never_reported_is_left_alone_where_that_is_set() -> None:
    story = Story(unreported=False)
    story.sees(managed("mute"))
    assert story.act(1000) == []
    # One that has reported is not: its scores stand, and must not run out.
    story.tell("mute")
    story.settle()
    story.hub.on_gone("mute")
    assert story.act(10) == []


def test_without_the_bus_what_stands_becomes_the_worst_and_says_why() -> None:
    story = Story()
    story.hub.listen(story.now_s, blind=True)
    story.sees(placed("east", {"gpuIdle": 3}, until_s=T0_S + 100, reason="Live"))
    story.sees(managed("east"))
    assert story.act(29) == []
    write = the_write(story.act(1))
    assert (write.reason, write.message) == ("NotTold", "no score is heard of: the bus is away")
    assert set(write.scores.values()) == {-100}
    story.stored(write)
    story.hub.listen(story.now_s, blind=False)
    story.tell()
    assert the_write(story.act()).reason == "Live"


def test_every_cluster_has_every_model_of_the_fleet() -> None:
    story = reported()
    story.sees(managed("west"))
    story.tell("west", gangs={"NVIDIA A100": 5})
    writes = {one.key[1]: one for one in story.settle() if isinstance(one, WriteScore)}
    assert writes["west"].scores[T4] == -100
    assert writes["east"].scores["gpuGang-NVIDIA-A100"] == -100
    # A cluster that is away takes no names with it.
    story.tell("west", freshness="withdrawn")
    keys = {one.key[1] for one in story.settle() if isinstance(one, WriteScore)}
    assert keys == {"west"}


def test_a_foreign_object_is_told_about_once_and_left_alone() -> None:
    story = Story()
    story.sees(placed("east", {"gpuClusterAvailable": 7}, ours=False))
    story.sees(managed("east"))
    story.tell()
    [tell] = story.act()
    assert isinstance(tell, Tell)
    assert (tell.about, tell.warning, tell.reason) == ("AddOnPlacementScore", True, "NotOurs")
    assert tell.note == (
        "not done: its label app.kubernetes.io/managed-by is '', not 'berthmaster'"
    )
    for _ in range(100):
        story.now_s += 5
        story.tell(free=_ % 12)
        assert story.act() == []
    assert story.hub.desk.targets[EAST].trouble == tell.note
    # A person hands it over.
    story.sees(placed("east", {"gpuClusterAvailable": 7}, version=2))
    assert the_write(story.act()).resource_version == "2"
    assert story.hub.desk.targets[EAST].trouble == ""


def test_an_object_that_another_controller_owns_is_foreign_whatever_its_label() -> None:
    story = Story()
    story.sees(placed("east", {}, owner="resource-usage-collect"))
    story.sees(managed("east"))
    story.tell()
    [tell] = story.act()
    assert isinstance(tell, Tell)
    assert tell.note == "not done: Addon resource-usage-collect controls it"


def test_a_namespace_that_is_missing_is_waited_for_ever_longer_and_told_once() -> None:
    story = Story()
    story.sees(managed("east"))
    story.tell()
    tries = 0
    told: list[Instruction] = []
    end_s = story.now_s + 3600
    while story.now_s < end_s:
        story.tell()
        for each in story.act():
            if isinstance(each, Tell):
                told.append(each)
                continue
            tries += 1
            done = Done(key=each.key, outcome="missing", why="not found")
            told += story.hub.on_done(done, story.now_s)
        story.now_s += 5
    assert 10 <= tries <= 20  # 1, 2, 4 … 300 s
    [warning] = told
    assert isinstance(warning, Tell)
    assert (warning.about, warning.reason) == ("ManagedCluster", "NamespaceMissing")
    # It comes: at the next try all is well.
    story.now_s += 300
    story.tell()
    assert [type(each) for each in story.settle()] == [CreateScore, WriteScore]


@pytest.mark.parametrize("outcome", ["denied", "refused", "away"])
def test_what_fails_is_not_tried_in_a_circle(outcome: Any) -> None:
    story = Story()
    story.sees(managed("east"))
    tries = 0
    for _ in range(720):
        story.tell()
        for each in story.act():
            assert isinstance(each, CreateScore)
            tries += 1
            story.hub.on_done(Done(key=each.key, outcome=outcome, why="no"), story.now_s)
        story.now_s += 5
    assert 10 <= tries <= 20
    assert story.hub.desk.targets[EAST].trouble == "no"


def test_a_conflict_is_decided_anew_on_what_is_there() -> None:
    story = reported()
    story.tell(free=2)
    write = the_write(story.act())
    # Somebody else's write came first, and changed nothing of what matters.
    theirs = msgspec.structs.replace(
        Story.shows(write, 500), metadata=metadata(NAME, "east", version=500)
    )
    assert story.hub.on_done(Done(key=EAST, outcome="conflict", thing=theirs), story.now_s) == []
    [tell] = story.act()
    assert isinstance(tell, Tell)  # it has lost its label: not ours any more
    assert tell.reason == "NotOurs"


def test_one_that_vanished_under_a_write_is_made_anew() -> None:
    story = reported()
    story.tell(free=2)
    story.act()
    story.hub.on_done(Done(key=EAST, outcome="conflict", thing=None), story.now_s)
    assert story.act() == [CreateScore(EAST)]


def test_a_watch_that_is_behind_is_not_taken_for_somebody_elses_change() -> None:
    story = reported()
    stands = story.hub.desk.targets[EAST].thing
    assert stands is not None
    story.sees(placed("east", {"gpuIdle": 1}, version=50))
    assert story.act() == []
    assert story.hub.desk.targets[EAST].thing == stands
    # A later one is somebody's, and is put right.
    story.sees(placed("east", {"gpuIdle": 1}, version=900))
    assert the_write(story.act()).resource_version == "900"


def test_conditions_of_others_stay() -> None:
    story = reported()
    thing = story.hub.desk.targets[EAST].thing
    assert isinstance(thing, PlacementScore)
    theirs = Condition(type="Audited", status="True", reason="Yes")
    status = msgspec.structs.replace(thing.status, conditions=(theirs, *thing.status.conditions))
    meta = msgspec.structs.replace(thing.metadata, resource_version="900")
    story.sees(msgspec.structs.replace(thing, status=status, metadata=meta))
    assert story.act() == []
    story.tell(free=1)
    assert the_write(story.act()).others == (theirs,)


@pytest.mark.parametrize("until_s", [None, T0_S - 10, T0_S + 10_000_000])
def test_an_odd_validity_is_put_right(until_s: float | None) -> None:
    story = reported()
    thing = story.hub.desk.targets[EAST].thing
    assert isinstance(thing, PlacementScore)
    status = msgspec.structs.replace(
        thing.status, valid_until=timestamp(until_s) if until_s is not None else None
    )
    meta = msgspec.structs.replace(thing.metadata, resource_version="900")
    story.sees(msgspec.structs.replace(thing, status=status, metadata=meta))
    for _ in range(7):
        story.now_s += 5
        story.tell()
        if asked := story.act():
            assert the_write(asked).valid_until == timestamp(story.now_s + 300)
            return
    raise AssertionError("not within the settling time")


def test_a_cluster_that_is_not_accepted_leaves_or_is_gone_is_let_be() -> None:
    for thing in (managed("east", accepted=False), managed("east", leaving=True)):
        story = reported()
        story.sees(thing)
        story.tell(free=1)
        assert story.act(10) == []
    story = reported()
    story.sees(managed("east"), gone=True)
    story.tell(free=1)
    assert story.act(10) == []
    # And comes back, with what stands there.
    story.sees(managed("east"))
    assert the_write(story.act()).scores["gpuClusterAvailable"] == -90


def test_a_hub_without_open_cluster_management_stays_quiet_and_wakes_when_it_comes() -> None:
    story = Story()
    story.tell()
    for kind in Kind:
        story.hub.on_absent(kind.value)
    assert (story.act(60), story.hub.wake_at_s()) == ([], inf)
    story.tell()
    story.hub.on_listed(Kind.MANAGED.value)
    story.sees(managed("east"))
    assert story.act() == []  # its scores' kind is still not served
    story.hub.on_listed(Kind.SCORES.value)
    assert story.act() == [CreateScore(EAST)]


def test_a_kind_that_goes_takes_what_was_known_of_it() -> None:
    story = reported()
    story.hub.on_absent(Kind.SCORES.value)
    story.tell(free=1)
    assert story.act() == []
    story.hub.on_listed(Kind.SCORES.value)
    assert story.act() == [CreateScore(EAST)]
    story.hub.on_absent(Kind.MANAGED.value)
    assert story.hub.managed == {}
    assert story.act() == []


def test_not_all_of_a_large_fleet_is_written_at_once() -> None:
    story = Story()
    for at in range(100):
        story.sees(managed(f"c{at:03}"))
        story.tell(f"c{at:03}")
    first = story.act()
    assert len(first) == 16
    assert story.act() == []
    story.stored(first[0])  # type: ignore[arg-type]
    assert len(story.act()) == 1
    for each in first[1:]:
        story.stored(each)  # type: ignore[arg-type]
    assert len(story.act()) == 15


# ---- ClusterProfiles


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
    assert [each.reason for each in asked if isinstance(each, Tell)] == reasons
    assert len(asked) == len(reasons)


def test_a_profile_with_absurdly_many_properties_is_told_about_and_left_alone() -> None:
    story = Story()
    story.tell()
    story.sees(profile("east", {f"p{n}": "x" * 100 for n in range(10_000)}))
    [tell] = story.act()
    assert isinstance(tell, Tell)
    assert (tell.about, tell.reason) == ("ClusterProfile", "TooManyProperties")
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
    story.hub.on_absent(Kind.MANAGED.value)
    story.hub.on_absent(Kind.SCORES.value)
    story.tell("east")
    assert story.act() == [CreateProfile(("profile", "fleet", "east"), "berthmaster")]


def test_names_at_their_limits_are_no_trouble() -> None:
    long = ".".join(["x" * 63] * 3 + ["x" * 61])
    assert len(long) == 253
    story = Story(create_profiles_in="fleet")
    story.tell(long)
    assert story.act() == [CreateProfile(("profile", "fleet", long), "berthmaster")]
    story.sees(managed(long))
    [create] = [each for each in story.act() if not isinstance(each, Tell)]
    assert create == CreateScore(("score", long, NAME))


class Life(RuleBasedStateMachine):
    """Whatever is told in whatever order, and however writes end: laws hold at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.story = Story()
        self.told_s: dict[str, float] = {}
        self.fresh: dict[str, bool] = {}
        self.flying: list[Write] = []
        self.stands: dict[str, WriteScore] = {}

    clusters = st.sampled_from(["a", "b", "c"])

    @initialize()
    def begin(self) -> None:
        for cluster in ("a", "b"):
            self.story.sees(managed(cluster))

    @rule(cluster=clusters, free=st.integers(0, 20), fresh=st.booleans())
    def tell(self, cluster: str, free: int, fresh: bool) -> None:
        self.story.tell(cluster, free=free, freshness="fresh" if fresh else "stale")
        self.told_s[cluster], self.fresh[cluster] = self.story.now_s, fresh

    @rule(after_s=st.floats(0.0, 40.0))
    def act(self, after_s: float) -> None:
        for each in self.story.act(after_s):
            if not isinstance(each, Tell):
                assert each.key not in [other.key for other in self.flying]
                self.flying.append(each)

    @rule(outcome=st.sampled_from(["stored", "stored", "stored", "away", "denied", "missing"]))
    def land(self, outcome: Any) -> None:
        if not self.flying:
            return
        write = self.flying.pop(0)
        if outcome == "stored":
            self.story.stored(write)
            if isinstance(write, WriteScore):
                self.stands[write.key[1]] = write
        else:
            self.story.hub.on_done(Done(key=write.key, outcome=outcome, why="x"), self.story.now_s)

    @rule()
    def somebody_deletes(self) -> None:
        thing = self.story.hub.desk.targets[("score", "a", NAME)].thing
        if thing is not None:
            self.story.sees(thing, gone=True)

    @invariant()
    def old_news_are_never_written_as_live(self) -> None:
        for write in self.flying:
            if isinstance(write, WriteScore):
                assert len(write.scores) >= len(FIXED_NAMES)
                worst = set(write.scores.values()) == {-100}
                assert worst == (write.status == "False")
                if write.status == "True":
                    assert write.key[1] in self.told_s
        for key in self.story.hub.desk.targets:
            assert key[1] != "c"  # nobody manages it

    @invariant()
    def it_knows_when_to_wake(self) -> None:
        desk = self.story.hub.desk
        assert desk.on_the_way == sum(one.on_the_way for one in desk.targets.values())
        assert not self.flying or desk.on_the_way >= len(self.flying)

    def teardown(self) -> None:
        """In the end, with a server that answers, all is as it should be."""
        for write in self.flying:
            self.story.hub.on_done(Done(key=write.key, outcome="away"), self.story.now_s)
        for cluster in ("a", "b"):
            self.story.tell(cluster, free=7)
        for _ in range(200):
            self.story.now_s += 5
            for cluster in ("a", "b"):
                self.story.tell(cluster, free=7)
            self.story.settle()
        for cluster in ("a", "b"):
            thing = self.story.hub.desk.targets["score", cluster, NAME].thing
            assert isinstance(thing, PlacementScore)
            found: Mapping[str, int] = {one.name: one.value for one in thing.status.scores}
            assert found["gpuClusterAvailable"] == -30
            assert seconds(thing.status.valid_until) > self.story.now_s


Life.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestLife = Life.TestCase
