"""One nomination at a time: moving on, what is found at the start, copies admitted late, rivals."""

import msgspec
import pytest

from berthmaster.hub.multikueue.core.deciding.steps import REPORT_S
from berthmaster.hub.multikueue.core.instructions import ClearNomination, Nominate
from berthmaster.lib.messages.workload import Evicted
from tests.unit.hub.multikueue.hub_objects import checks, cluster, condition, copy_report
from tests.unit.hub.multikueue.world import World

ROOM = {"w1": 8, "w2": 4, "w3": 2}


def ranked(**policy: object) -> World:
    """w1 is better than w2, which is better than w3."""
    world = World(**policy)  # type: ignore[arg-type]
    world.removes_copies = False
    for name, gpus in ROOM.items():
        world.worker(name, gpus=gpus)
    world.begin()
    return world


def sent(**policy: object) -> World:
    """One job, nominated to w1, where its copy waits."""
    world = ranked(**policy)
    world.submit()
    world.settle()
    world.reserve()
    world.settle()
    assert world.nominated() == ("w1",)
    world.fact("w1/copy", copy_report("w1", message="couldn't preempt"))
    world.settle()
    return world


def writes(world: World) -> list[str]:
    """Of nominations."""
    out = []
    for write in world.writes:
        if isinstance(write, Nominate):
            out.append(f"nominate {write.cluster}")
        elif isinstance(write, ClearNomination):
            out.append(f"clear {','.join(write.clusters)}")
    return out


def test_after_its_patience_it_is_cleared_and_goes_on_when_its_copy_is_gone() -> None:
    world = sent()
    world.wait(29.0)
    assert world.nominated() == ("w1",)
    world.wait(2.0)
    name = world.name()
    assert world.nominated() == ()
    assert world.kinds(name)[-1] == "evicted w1"
    assert "its copy in w1 has to go first" in world.why(name)
    assert "not admitted within 30 s: couldn't preempt" in world.why(name)
    world.wait(5.0)
    assert world.nominated() == ()
    world.fact("w1/copy", copy_report("w1", gone=True))
    world.settle()
    assert world.nominated() == ("w2",)
    assert world.kinds(name)[-2:] == ["placed w2", "claimed w2"]
    assert writes(world) == ["nominate w1", "clear w1", "nominate w2"]
    assert world.broken == []


def test_killed_between_clearing_and_nominating_it_waits_for_the_copy_all_the_same() -> None:
    world = sent()
    world.wait(31.0)
    world.restart()
    world.wait(5.0)
    assert world.nominated() == ()
    world.fact("w1/copy", copy_report("w1", gone=True))
    world.wait(1.0)
    (where,) = world.nominated()  # whom it has tried, the new life does not know
    assert where in ("w1", "w2")


def test_killed_after_clearing_a_copy_that_nobody_has_reported_yet_may_come_for_two_seconds() -> (
    None
):
    world = sent()
    world.fact("w1/copy", copy_report("w1", gone=True))
    world.wait(31.0)
    world.restart()
    for _ in range(3):
        world.wait(0.5)
    at_s = world.now_s
    world.wait(3.0)
    assert len(world.nominated()) == 1
    assert world.now_s - at_s < 5
    assert world.broken == []


def test_cleared_nomination_without_reported_copy_waits_for_the_hubs_pace() -> None:
    """The hub's manager takes 8 s for a Workload just now: it may make the copy after the clearing,
    and remove it 8 s later."""
    world = ranked(patience_s=20.0, hub_mute_s=600.0)
    for name in ("train", "slow"):
        world.submit(name)
        world.reserve(name)
        world.settle()
        assert world.nominated(name) == ("w1",)
    world.wait(8.0)
    world.fact("slow/copy", copy_report("w1", "slow"))
    world.wait(13.5)
    assert world.nominated() == ()
    world.wait(7.0)
    assert world.nominated() == ()
    assert "Kueue is to remove its copies" in world.why(world.name())
    world.wait(2.0)
    assert world.nominated() == ("w2",)


def test_cleared_nomination_goes_on_when_the_hub_serves_later_news() -> None:
    world = ranked(patience_s=20.0, hub_mute_s=600.0)
    for name in ("train", "slow"):
        world.submit(name)
        world.reserve(name)
        world.settle()
    world.wait(8.0)
    world.fact("slow/copy", copy_report("w1", "slow"))
    world.wait(13.5)
    assert world.nominated() == ()
    world.wait(1.0)
    world.submit("later")
    world.reserve("later")
    world.settle()
    world.fact("later/copy", copy_report(world.nominated("later")[0], "later"))
    world.wait(0.5)
    assert world.nominated() == ("w2",)


def test_cleared_nomination_waits_while_the_hubs_kueue_is_silent() -> None:
    world = ranked(patience_s=4.0, hub_mute_s=6.5)
    world.submit()
    world.reserve()
    world.submit("other")
    world.status("other", conditions=())  # it waits for Kueue, which has not looked at it
    world.wait(5.5)
    assert world.nominated() == ()
    world.wait(4.0)  # two seconds of an idle hub and more
    assert world.core.kueue.silent
    assert world.nominated() == ()
    world.reserve("other")
    world.wait(1.0)
    assert world.nominated() == ()
    world.wait(2.0)
    assert world.nominated() == ("w2",)


@pytest.mark.parametrize("reported", ["", "w1", "w2"])
@pytest.mark.parametrize(("reason", "kind"), [("Succeeded", "succeeded"), ("Failed", "failed")])
def test_history_names_a_cluster_only_if_something_proves_it(
    reported: str, reason: str, kind: str
) -> None:
    """The agent of w1 is up and silent: Kueue may have run the job there although w2 is nominated
    by now."""
    world = ranked(patience_s=10.0)
    world.submit()
    world.reserve()
    world.wait(15.0)
    assert world.nominated() == ("w2",)
    name = world.name()
    if reported:
        copy = copy_report(reported, admitted=True)
        world.fact(f"{reported}/copy", copy)
        world.fact(f"{reported}/copy", msgspec.structs.replace(copy, gone=True))  # before a look
    world.finish("train", reason)
    world.wait(REPORT_S + 1.0)
    assert world.kinds(name)[-1] == f"{kind} {reported or 'unknown'}"
    assert world.log.folds[name].cluster == (reported or "unknown")
    if not reported:
        assert "the hub does not say in which cluster it ran" in world.log.folds[name].reason


def test_history_of_moved_job_is_unproven_after_restart() -> None:
    world = ranked(patience_s=10.0)
    world.submit()
    world.reserve()
    world.wait(15.0)
    assert world.nominated() == ("w2",)
    name = world.name()
    world.restart()
    world.finish("train")
    world.wait(REPORT_S + 1.0)
    assert world.kinds(name)[-1] == "succeeded unknown"


def moved_and_named() -> World:
    """Nominated to w1, then to w2, which Kueue has named."""
    world = sent(patience_s=10.0)
    world.wait(11.0)
    world.fact("w1/copy", copy_report("w1", gone=True))
    world.wait(1.0)
    assert world.nominated() == ("w2",)
    world.fact("w2/copy", copy_report("w2", admitted=True))
    world.admit("train", "w2")
    world.settle()
    assert world.kinds(world.name())[-1] == "admitted w2"
    return world


@pytest.mark.parametrize("life", ["one", "another"])
def test_history_names_the_cluster_that_reported_the_end(life: str) -> None:
    """Kueue reached w1 again, where the job had ended, and left w2 as the cluster's name."""
    world = moved_and_named()
    ended = copy_report("w1", admitted=True, finished=True, succeeded=1)
    world.fact("w1/copy", ended)
    world.fact("w1/copy", copy_report("w1", gone=True, succeeded=1))
    world.fact("w2/copy", copy_report("w2", gone=True))
    world.finish("train")
    if life == "another":
        world.restart()
    world.settle()
    name = world.name()
    assert world.kinds(name)[-1] == "admitted w2"  # w2 may have ended too, and report so
    world.wait(REPORT_S + 1.0)
    assert world.kinds(name)[-4:] == ["evicted w2", "placed w1", "claimed w1", "succeeded w1"]


def test_history_of_moved_job_waits_for_the_report_of_its_end() -> None:
    world = moved_and_named()
    world.finish("train")
    world.wait(1.0)
    name = world.name()
    assert world.kinds(name)[-1] == "admitted w2"
    world.fact("w2/copy", copy_report("w2", gone=True, succeeded=1))
    world.settle()
    assert world.kinds(name)[-1] == "succeeded w2"


def test_history_waits_for_the_report_where_kueue_runs_it_elsewhere_than_named() -> None:
    """Both copies were admitted within a second: Kueue named w1, and started the job in w2."""
    world = ranked(mode="observe")
    world.submit()
    world.reserve()
    world.status(nominated_cluster_names=("w1", "w2"))
    world.fact("w1/copy", copy_report("w1", admitted=True))
    world.admit("train", "w1")
    world.settle()
    world.fact("w1/copy", copy_report("w1", gone=True))
    world.fact("w2/copy", copy_report("w2", admitted=True))
    world.finish("train")
    world.wait(1.0)
    name = world.name()
    assert world.kinds(name)[-1] == "admitted w1"
    world.fact("w2/copy", copy_report("w2", admitted=True, finished=True, succeeded=1))
    world.wait(REPORT_S)  # w1 may have ended it too
    assert world.kinds(name)[-4:] == ["evicted w1", "placed w2", "claimed w2", "succeeded w2"]


def test_history_of_moved_job_whose_end_nobody_reports_names_where_its_copy_ran() -> None:
    world = moved_and_named()
    world.finish("train")
    world.wait(REPORT_S + 1.0)
    assert world.kinds(world.name())[-1] == "succeeded w2"


def test_history_of_job_that_kueue_took_back_is_proven_by_its_only_nomination() -> None:
    world = ranked(patience_s=10.0)
    world.submit()
    world.reserve()
    world.wait(15.0)
    world.evict("train")
    world.settle()
    world.reserve()
    world.settle()
    (only,) = world.nominated()
    world.finish("train")
    world.wait(REPORT_S + 1.0)
    assert world.kinds(world.name())[-1] == f"succeeded {only}"


def test_a_copy_that_stays_although_its_worker_speaks_is_waited_for_a_minute() -> None:
    world = sent()
    world.wait(31.0)
    world.wait(55.0)
    assert world.nominated() == ()
    world.wait(10.0)
    assert world.nominated() == ("w2",)


@pytest.mark.parametrize("how", ["silent", "no connection"])
def test_a_worker_out_of_reach_is_waited_for_a_quarter_of_a_minute(how: str) -> None:
    world = sent(patience_s=20.0)
    others = ("w2", "w3")
    if how == "silent":
        heard: tuple[str, ...] = others
        world.wait(20.5, heard=heard)
    else:
        heard = ("w1", *others)
        world.put(cluster("w1", active=False))
        world.wait(1.0)
    assert world.nominated() == ()
    assert "though w1 does not say so" in world.why(world.name())
    world.wait(11.0, heard=heard)
    assert world.nominated() == ()
    world.wait(5.0, heard=heard)
    assert world.nominated() == ("w2",)


def test_whoever_was_admitted_while_it_was_taken_back_is_nominated_again() -> None:
    world = sent()
    world.wait(31.0)
    world.fact("w1/copy", copy_report("w1", admitted=True))
    world.settle()
    assert world.nominated() == ("w1",)  # so that the hub can take it over
    name = world.name()
    world.admit("train", "w1")
    world.settle()
    assert world.kinds(name)[-4:] == ["evicted w1", "placed w1", "claimed w1", "admitted w1"]
    assert writes(world) == ["nominate w1", "clear w1", "nominate w1"]


def test_whoever_was_admitted_late_is_preferred_to_who_was_nominated_since() -> None:
    world = sent()
    world.wait(31.0)
    world.fact("w1/copy", copy_report("w1", gone=True))
    world.settle()
    assert world.nominated() == ("w2",)
    world.fact("w1/copy", copy_report("w1", admitted=True))
    world.settle()
    assert world.nominated() == ("w1",)
    ended = [e for e in world.log.story(world.name()) if isinstance(e, Evicted)]
    assert [(e.cluster, e.blameless) for e in ended] == [("w1", False), ("w2", True)]


def test_all_were_tried_and_the_last_one_stays_until_another_fits() -> None:
    world = ranked(patience_s=5.0)
    for name, gpus in ROOM.items():
        world.worker(name, gpus=gpus, free=0)
    world.removes_copies = True
    world.submit()
    world.reserve()
    words = "couldn't assign flavors: insufficient unused quota for nvidia.com/gpu"
    for _ in range(40):
        for name in world.nominated():
            world.fact(f"{name}/copy", copy_report(name, message=words))
        world.wait(1.0)
    assert writes(world)[-1] == "nominate w3"
    assert len(writes(world)) == 5
    world.worker("w2", gpus=4, free=4)
    world.wait(4.0)
    assert world.nominated() == ("w2",)
    assert len(writes(world)) == 7


def test_a_nomination_that_is_found_is_taken_over() -> None:
    world = World("observe")
    for name, gpus in ROOM.items():
        world.worker(name, gpus=gpus)
    world.begin()
    world.submit()
    world.reserve()
    world.status(nominated_cluster_names=("w3",))
    world.settle()
    world.restart("dispatch")
    world.settle()
    assert world.nominated() == ("w3",)
    assert world.kinds(world.name()) == ["submitted", "placed w3", "claimed w3"]
    assert writes(world) == []
    world.fact("w3/copy", copy_report("w3", message="waits for checks: budget is Pending"))
    world.wait(33.0)  # its patience begins with us
    assert writes(world) == ["clear w3", "nominate w1"]
    assert world.broken == []


@pytest.mark.parametrize("copies", [True, False])
def test_several_that_are_found_are_cleared_and_one_is_nominated(copies: bool) -> None:
    """Coming from AllAtOnce, or from Incremental with time."""
    world = World("observe")
    for name, gpus in ROOM.items():
        world.worker(name, gpus=gpus)
    world.begin()
    world.submit()
    world.reserve()
    world.status(nominated_cluster_names=("w1", "w2", "w3"))
    world.removes_copies = False
    for name in ROOM if copies else ():
        world.fact(f"{name}/copy", copy_report(name))
    world.settle()
    world.restart("dispatch")
    world.settle()
    assert world.nominated() == ()
    assert writes(world) == ["clear w1,w2,w3"]
    for name in ROOM if copies else ():
        world.fact(f"{name}/copy", copy_report(name, gone=True))
    world.wait(3.0)
    assert world.nominated() == ("w1",)
    assert world.broken == []


def test_several_of_which_one_was_admitted_are_left_to_kueue() -> None:
    world = World("observe")
    for name, gpus in ROOM.items():
        world.worker(name, gpus=gpus)
    world.begin()
    world.submit()
    world.reserve()
    world.status(nominated_cluster_names=("w1", "w2", "w3"))
    world.fact("w2/copy", copy_report("w2", admitted=True))
    world.settle()
    world.restart("dispatch")
    world.wait(3.0)
    assert writes(world) == []
    world.admit("train", "w2")
    world.settle()
    assert world.kinds(world.name())[-1] == "admitted w2"


def test_a_cluster_that_is_nominated_and_was_taken_from_the_configuration_is_cleared() -> None:
    world = ranked()
    world.submit()
    world.reserve()
    world.status(nominated_cluster_names=("elsewhere",))
    world.wait(3.0)
    assert writes(world) == ["clear elsewhere", "nominate w1"]


# Somebody else who writes


def fights(world: World, seconds: float, nominated: tuple[str, ...] | None) -> None:
    """Whatever stands there, somebody else puts his own word in its place."""
    end_s = world.now_s + seconds
    while world.now_s < end_s:
        if world.nominated() != (nominated or ()):
            world.status(nominated_cluster_names=nominated)
        world.wait(0.25)


@pytest.mark.parametrize("theirs", [None, ("w3",), ("w1", "w2", "w3")])
def test_a_second_dispatcher_is_named_and_fought_less_and_less(
    theirs: tuple[str, ...] | None,
) -> None:
    world = sent()
    world.others = ("rival",)
    fights(world, 15.0, theirs)
    name = world.name()
    assert len(writes(world)) <= 8
    why = world.why(name)
    assert "rival has written its nomination as well" in why
    assert "only one dispatcher may do so" in why
    (note, *_) = [t.note for t in world.told if t.reason == "SecondDispatcher"]
    assert note.startswith("rival has written its nomination as well")
    assert world.kinds(name) == ["submitted", "placed w1", "claimed w1"]  # nobody's eviction
    assert world.core.contested == 1
    fights(world, 300.0, theirs)
    assert len(writes(world)) <= 22
    assert len([t for t in world.told if t.reason == "SecondDispatcher"]) <= 10
    # The other one is gone.
    world.fact("w1/copy", copy_report("w1", gone=True))
    world.wait(63.0)
    assert len(world.nominated()) == 1
    assert world.broken == []


def test_who_wins_by_a_fight_is_followed_and_nobody_is_blamed() -> None:
    world = sent()
    world.others = ("rival",)
    world.status(nominated_cluster_names=("w3",))
    world.settle()
    world.admit("train", "w3")
    world.settle()
    name = world.name()
    assert world.kinds(name)[-4:] == ["evicted w1", "placed w3", "claimed w3", "admitted w3"]
    (evicted,) = [e for e in world.log.story(name) if isinstance(e, Evicted)]
    assert evicted.blameless
    assert "rival" in evicted.reason
    assert world.log.folds[name].evictions == 0


def test_what_kueue_takes_back_with_its_own_attempt_is_no_fight() -> None:
    world = sent()
    for seconds in range(3):
        world.evict("train")
        if seconds:  # and with, as well as without, our having seen it between
            world.settle()
        world.fact("w1/copy", copy_report("w1", gone=True))
        made = f"2026-01-01T00:00:0{seconds}Z"
        reserved = msgspec.structs.replace(condition("QuotaReserved"), last_transition_time=made)
        world.status(conditions=(reserved,), admission_checks=checks())
        world.settle()
    assert world.core.contests == 0
    assert world.nominated() == ("w1",)


def test_one_whom_the_api_server_does_not_name_is_told_as_that() -> None:
    world = sent()
    fights(world, 5.0, None)
    assert "somebody whom managedFields do not name" in world.why(world.name())
