"""The hub's side, as stories: objects and scores come in, writes go out."""

from math import inf
from typing import Any

import msgspec
import pytest

from berthmaster.hub.ocm.core.hub import OcmKind
from berthmaster.hub.ocm.core.instructions import CreateScore, Instruction, Write, WriteScore
from berthmaster.hub.ocm.core.objects import PlacementScore
from berthmaster.hub.ocm.core.placed import look
from berthmaster.hub.ocm.core.scores import FIXED_NAMES
from berthmaster.lib.kube.controller.shell_contract import Answer, KubeEvent, Outcome
from berthmaster.lib.kube.objects import Condition, seconds, timestamp
from berthmaster.lib.ocm.core.kept_objects import Key, Look
from tests.unit.hub.ocm.builders import NAME, T0_S, managed, placed
from tests.unit.hub.ocm.story import EAST, T4, Story, reported, the_scores, the_write


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
    for _ in range(26):
        story.now_s += 5
        story.tell()
    story.settle()
    story.now_s += 5
    story.tell(freshness=freshness, note="no sign of life for 15 s")
    write = the_write(story.act())
    assert set(write.scores.values()) == {-100}
    assert set(write.scores) == {*FIXED_NAMES, T4}
    assert (write.status, write.reason) == ("False", freshness.capitalize())
    assert write.since == timestamp(story.now_s)
    [tell] = story.stored(write)
    assert isinstance(tell, KubeEvent)
    assert (tell.resource.kind, tell.warning, tell.reason) == (
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
    assert isinstance(tell, KubeEvent)
    assert (tell.warning, tell.note) == (False, "the scores are live again")


def test_a_score_that_nobody_tells_any_more_stays_and_says_so() -> None:
    story = reported()
    before = the_scores(story)
    story.now_s += 29
    assert story.act() == []
    assert story.hub.wake_at_s() == T0_S + 30
    write = the_write(story.act(1))
    assert (write.status, write.reason, write.scores) == ("False", "NotTold", before)
    assert write.message == "nobody has told its score for 30 s"
    [tell] = story.stored(write)
    assert isinstance(tell, KubeEvent)
    assert tell.note == "the last scores stay: nobody has told its score for 30 s"
    assert (story.act(), story.hub.wake_at_s()) == ([], T0_S + 30 + 150)
    # The stream was lost with all that was in it: whoever could tell is still away.
    story.hub.on_gone("east")
    story.now_s += 3600
    lost = [each for each in story.settle() if isinstance(each, WriteScore)]
    assert lost[-1].message == "no score of any cluster is told: the scorer is away"
    assert (lost[-1].reason, lost[-1].scores) == ("NotTold", before)
    # It is back: the cluster has its time to be heard, then the silence is its own.
    for _ in range(5):
        story.tell("west")
        assert all(isinstance(one, WriteScore) and one.scores == before for one in story.settle())
        story.now_s += 5
    story.tell("west")
    story.now_s += 5
    [gone] = [each for each in story.settle() if isinstance(each, WriteScore)]
    assert (gone.reason, set(gone.scores.values())) == ("NoReport", {-100})


@pytest.mark.parametrize("away_s", [12, 60, 7200])
def test_after_the_bus_was_away_a_cluster_has_its_time_to_be_heard(away_s: float) -> None:
    story = reported()
    before = the_scores(story)
    story.now_s += away_s
    story.settle()
    assert the_scores(story) == before
    # All are back. What the scorer knows of the cluster is as old as that.
    heard_s = story.now_s
    for _ in range(6):
        story.tell(freshness="withdrawn", age_s=away_s + story.now_s - heard_s, note="no sign")
        story.settle()
        assert the_scores(story) == before
        story.now_s += 5
    story.tell(freshness="withdrawn", age_s=away_s + 30, note="no sign")
    [own, _] = story.settle()
    assert isinstance(own, WriteScore)
    assert (own.reason, set(own.scores.values())) == ("Withdrawn", {-100})


def test_a_cluster_that_was_heard_since_and_fell_silent_is_believed_at_once() -> None:
    story = reported()
    story.now_s += 60
    story.tell()
    story.settle()
    for _ in range(3):
        story.now_s += 6
        story.tell()
    story.settle()
    story.now_s += 6
    story.tell(freshness="stale", age_s=16.0)
    assert the_write(story.act()).reason == "Stale"


def test_another_scorer_that_has_not_measured_yet_takes_nothing_away() -> None:
    story = reported(idle=75)
    assert the_scores(story)["gpuIdle"] == 50
    story.now_s += 3
    story.tell(idle=None, epoch=2)
    assert story.act() == []
    story.now_s += 1
    story.tell(idle=25, epoch=2)
    assert the_write(story.act()).scores["gpuIdle"] == -50
    # What stays unmeasured is unknown in the end.
    story = reported(idle=75)
    for _ in range(7):
        story.tell(idle=None, epoch=2)
        story.now_s += 5
    assert the_write(story.act()).scores["gpuIdle"] == -100


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


def test_without_the_bus_what_stands_stays_and_says_why() -> None:
    story = Story()
    story.hub.listen(story.now_s, blind=True)
    story.sees(placed("east", {"gpuIdle": 3}, until_s=T0_S + 100, reason="Live"))
    story.sees(managed("east"))
    assert story.act(29) == []
    write = the_write(story.act(1))
    assert (write.reason, write.message) == ("NotTold", "no score is heard of: the bus is away")
    assert {name for name, points in write.scores.items() if points != -100} == {"gpuIdle"}
    assert write.scores["gpuIdle"] == 3
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
    assert isinstance(tell, KubeEvent)
    assert (tell.resource.kind, tell.warning, tell.reason) == (
        "AddOnPlacementScore",
        True,
        "NotOurs",
    )
    assert tell.note == (
        "not done: its label app.kubernetes.io/managed-by is '', not 'berthmaster'"
    )
    for _ in range(100):
        story.now_s += 5
        story.tell(free=_ % 12)
        assert story.act() == []
    assert story.hub.targets.all[EAST].trouble == tell.note
    # A person hands it over.
    story.sees(placed("east", {"gpuClusterAvailable": 7}, version=2))
    assert the_write(story.act()).resource_version == "2"
    assert story.hub.targets.all[EAST].trouble == ""


def test_an_object_that_another_controller_owns_is_foreign_whatever_its_label() -> None:
    story = Story()
    story.sees(placed("east", {}, owner="resource-usage-collect"))
    story.sees(managed("east"))
    story.tell()
    [tell] = story.act()
    assert isinstance(tell, KubeEvent)
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
            if isinstance(each, KubeEvent):
                told.append(each)
                continue
            tries += 1
            answer = Answer(Outcome.GONE, "NotFound", "not found")
            told += story.hub.on_answer(each, answer, story.now_s)
        story.now_s += 5
    assert 10 <= tries <= 20  # 1, 2, 4 … 300 s
    [warning] = told
    assert isinstance(warning, KubeEvent)
    assert (warning.resource.kind, warning.reason) == ("ManagedCluster", "NamespaceMissing")
    # It comes: at the next try all is well.
    story.now_s += 300
    story.tell()
    assert [type(each) for each in story.settle()] == [CreateScore, WriteScore]


@pytest.mark.parametrize("outcome", [Outcome.DENIED, Outcome.LATER])
def test_what_fails_is_not_tried_in_a_circle(outcome: Outcome) -> None:
    story = Story()
    story.sees(managed("east"))
    tries = 0
    for _ in range(720):
        story.tell()
        for each in story.act():
            assert isinstance(each, CreateScore)
            tries += 1
            story.hub.on_answer(each, Answer(outcome, why="no"), story.now_s)
        story.now_s += 5
    assert 10 <= tries <= 20
    assert story.hub.targets.all[EAST].trouble == "no"


def test_a_conflict_is_decided_anew_on_what_is_there() -> None:
    story = reported()
    story.tell(free=2)
    write = the_write(story.act())
    # Somebody else's write came first, and changed nothing of what matters.
    theirs = placed("east", write.scores, version=500, ours=False)
    conflict = Answer(Outcome.CONFLICT, "Conflict", "modified", found=theirs)
    assert story.hub.on_answer(write, conflict, story.now_s) == []
    [tell] = story.act()
    assert isinstance(tell, KubeEvent)  # it has lost its label: not ours any more
    assert tell.reason == "NotOurs"


@pytest.mark.parametrize("ahead_s", [-3600.0, 400.0, 3.0])
def test_how_long_scores_count_goes_by_the_hubs_clock(ahead_s: float) -> None:
    story = Story()
    story.ahead_s = ahead_s
    story.sees(managed("east"))
    story.tell()
    writes = [each for each in story.settle() if isinstance(each, WriteScore)]
    hub_s = story.now_s + ahead_s
    left_s = seconds(writes[-1].valid_until) - hub_s
    assert 290 <= left_s <= 310
    # Known from then on: renewed at half its time, and not before.
    for _ in range(28):
        story.now_s += 5
        story.tell()
        assert story.act() == []
    story.now_s += 15
    story.tell()
    renewal = the_write(story.act())
    assert renewal.valid_until == timestamp(story.now_s + story.hub.ahead_s + 300)
    # The clocks agree again: that is learned by the next write, and then put right.
    story.ahead_s = 0.0
    story.stored(renewal)
    assert story.hub.ahead_s == 0.0
    for _ in range(8):
        story.settle()
        story.now_s += 5
        story.tell()
    stands = story.hub.targets.all[EAST].thing
    assert isinstance(stands, PlacementScore)
    assert 250 <= seconds(stands.status.valid_until) - story.now_s <= 305


@pytest.mark.parametrize("outcome", [Outcome.CONFLICT, Outcome.GONE])
def test_one_that_vanished_under_a_write_is_made_anew(outcome: Outcome) -> None:
    story = reported()
    story.tell(free=2)
    write = the_write(story.act())
    story.hub.on_answer(write, Answer(outcome, "NotFound", "not found"), story.now_s)
    assert story.act() == [CreateScore(EAST)]


def test_a_watch_that_is_behind_is_not_taken_for_somebody_elses_change() -> None:
    story = reported()
    stands = story.hub.targets.all[EAST].thing
    assert stands is not None
    story.sees(placed("east", {"gpuIdle": 1}, version=50))
    assert story.act() == []
    assert story.hub.targets.all[EAST].thing == stands
    # A later one is somebody's, and is put right.
    story.sees(placed("east", {"gpuIdle": 1}, version=900))
    assert the_write(story.act()).resource_version == "900"


def test_conditions_of_others_stay() -> None:
    story = reported()
    thing = story.hub.targets.all[EAST].thing
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
    thing = story.hub.targets.all[EAST].thing
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
    for kind in OcmKind:
        story.hub.on_absent(kind.value)
    assert (story.act(60), story.hub.wake_at_s()) == ([], inf)
    story.tell()
    story.hub.on_listed(OcmKind.MANAGED.value)
    story.sees(managed("east"))
    assert story.act() == []  # its scores' kind is still not served
    story.hub.on_listed(OcmKind.SCORES.value)
    assert story.act() == [CreateScore(EAST)]


def test_a_kind_that_goes_takes_what_was_known_of_it() -> None:
    story = reported()
    story.hub.on_absent(OcmKind.SCORES.value)
    story.tell(free=1)
    assert story.act() == []
    story.hub.on_listed(OcmKind.SCORES.value)
    assert story.act() == [CreateScore(EAST)]
    story.hub.on_absent(OcmKind.MANAGED.value)
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


def test_raising_cluster_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(key: Key, *args: Any, **rest: Any) -> Look[Write]:
        if key[1] == "odd":
            raise RuntimeError("what nobody thought of")
        return look(key, *args, **rest)

    monkeypatch.setattr("berthmaster.hub.ocm.core.placed.look", odd)
    story = Story()
    for cluster in ("east", "odd"):
        story.sees(managed(cluster))
        story.tell(cluster)
    assert [type(each) for each in story.settle()] == [CreateScore, WriteScore]
    [oddity] = story.hub.aside.take_unreported()
    assert (oddity.metadata.namespace, oddity.event.reason) == ("odd", "CannotBeHandled")
    # It is looked at again after a growing pause, and told of once.
    pauses_s = []
    for _ in range(4):
        due_s = story.hub.targets.all["score", "odd", NAME].due_s
        pauses_s.append(due_s - story.now_s)
        story.now_s = due_s
        story.settle()
    assert pauses_s == [1, 2, 4, 8]
    assert story.hub.aside.take_unreported() == []
    monkeypatch.undo()
    story.now_s += 16
    story.tell("odd")
    assert CreateScore(("score", "odd", NAME)) in story.settle()
    assert len(story.hub.aside) == 0
