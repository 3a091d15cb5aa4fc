"""What leaves its worker because a person says so: Kueue is told by our check, and room is kept."""

import msgspec

from berthmaster.hub.multikueue.core.instructions import MakeJob, SendBack, SwitchOff, SwitchOn
from berthmaster.lib.kube.selector import parse_selector
from berthmaster.lib.lifecycle.fold import Verdict
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import key
from berthmaster.lib.messages.control import Cordon
from berthmaster.lib.messages.workload import (
    Held,
    HoldReleased,
    JobRequest,
    MoveRequested,
    PodSet,
    RunSpec,
)
from tests.unit.hub.multikueue.hub_objects import (
    OWN_CHECK,
    checks,
    cluster_queue,
    condition,
    own_check,
)
from tests.unit.hub.multikueue.world import World

DRAIN = Cordon(cluster="w1", cordoned=True, drain=True, reason="new kernel", set_by="ann")


def with_check(*, free: int = 8) -> World:
    """One job runs on the first of two workers, in a queue that has our check."""
    world = World(workers=("w1", "w2"))
    world.worker("w1", free=8)
    world.worker("w2", free=free)
    world.put(cluster_queue(own_check=True))
    world.put(own_check())
    world.set_parameters(OWN_CHECK, parse_selector(""))
    world.begin()
    run(world, "train")
    return world


def run(world: World, name: str, worker: str = "w1", own: str = "Pending") -> None:
    world.submit(name)
    world.reserve(name, own=own)
    world.settle()
    assert world.nominated(name) == (worker,)
    world.admit(name, worker)
    world.settle()
    world.start(name)
    world.settle()


def ask(world: World, how: str, to: str = "", name: str = "train") -> None:
    work = world.log.folds[world.name(name)]
    world.write_event(
        MoveRequested(
            tenant=work.tenant,
            id=work.id,
            after=work.sequence,
            at_s=world.now_s,
            by="gateway/1",
            cluster=work.cluster,
            attempt=work.attempt,
            how=how,  # type: ignore[arg-type]
            who="operator ann",
            to=to,
            reason="new kernel",
        )
    )
    world.settle()


def sent_back(world: World) -> list[SendBack]:
    return [write for write in world.writes if isinstance(write, SendBack)]


def kueue_ends_it(world: World, name: str = "train") -> None:
    """It does so for a check that says Retry, and queues it again."""
    state = world.kueue(name).check(OWN_CHECK)
    assert state is not None
    assert state.state == "Retry"
    world.evict(name, "AdmissionCheck", f"Evicted due to {state.message}")
    world.settle()
    world.reserve(name, own="Pending")
    world.settle()


def test_an_eviction_is_our_check_s_retry_and_it_waits_again_with_its_age() -> None:
    world = with_check()
    name = world.name()
    before = world.log.folds[name].submitted_sequence
    ask(world, "evict")
    (write,) = sent_back(world)
    words = "evicted by operator ann: new kernel"
    assert (write.check, write.message, write.again_s) == (OWN_CHECK, words, 5)
    assert "it was told to go: " + words in world.why(name)
    (order,) = world.decisions()[-1].moves
    assert (order.why, order.to, order.who) == ("asked", "", "operator ann")
    world.wait(5.0)
    assert len(sent_back(world)) == 1  # Kueue is at it

    kueue_ends_it(world)
    work = world.log.folds[name]
    assert (work.submitted_sequence, work.moves, work.evictions) == (before, 1, 0)
    assert world.kinds(name)[5:] == [
        "moverequested w1",
        "evictionrequested w1",
        "evicted w1",
        "placed w1",
        "claimed w1",
    ]
    assert world.broken == []
    assert set(world.log.verdicts) == {Verdict.COUNTED}


def test_a_move_waits_for_room_and_keeps_it_from_others() -> None:
    world = with_check(free=0)
    name = world.name()
    ask(world, "move", to="w2")
    assert sent_back(world) == []
    assert "operator ann wants it in w2; it goes when there is room" in world.why(name)
    world.worker("w2", gpus=8, free=1)
    world.wait(6.0)
    (write,) = sent_back(world)
    assert (write.message, write.again_s) == ("moved to w2 by operator ann: new kernel", 0)

    # Its room is kept while Kueue ends it; whoever comes meanwhile finds none there.
    world.worker("w1", gpus=8, free=0)
    world.submit("late")
    world.reserve("late", own="Pending")
    world.settle()
    assert world.nominated("late") != ("w2",)
    world.restart()
    kueue_ends_it(world)
    assert world.nominated() == ("w2",)
    (choice,) = world.decisions()[-1].placements
    assert (choice.cluster, choice.follows) == ("w2", "room is kept for it there")
    assert world.broken == []


def test_a_drain_moves_what_runs_there_and_ends_the_rest_at_its_last_moment() -> None:
    world = with_check(free=1)
    run(world, "other")
    world.set(DRAIN)
    world.wait(1.0)
    (write,) = sent_back(world)
    left = "other" if write.workload == world.name() else "train"
    assert write.message == "w1 is drained: new kernel"
    assert "it waits for room elsewhere" in world.why(world.name(left))

    world.set(msgspec.structs.replace(DRAIN, drain_by_s=world.now_s + 60.0))
    world.wait(15.0)
    assert len(sent_back(world)) == 1
    world.wait(10.0)  # the usual grace and some seconds are left
    assert [each.workload for each in sent_back(world)][1:] == [world.name(left)]
    assert world.broken == []


def test_without_a_check_of_ours_it_stays_and_why_says_what_is_missing() -> None:
    world = World(workers=("w1", "w2"))
    world.all_workers()
    world.begin()
    run(world, "train", own="")
    ask(world, "evict")
    world.wait(2.0)
    assert sent_back(world) == []
    assert "has no AdmissionCheck of berthmaster.io/placement" in world.why(world.name())


def test_one_that_kueue_has_taken_back_meanwhile_is_not_sent_back_again() -> None:
    world = with_check()
    ask(world, "evict")
    world.evict("train")  # by its own preemption, before our word was heard
    world.settle()
    world.reserve("train", own="Pending")
    world.settle()
    assert len(sent_back(world)) == 1
    assert world.kinds(world.name())[-1] == "claimed w1"
    assert world.broken == []


def test_observe_writes_nothing_for_it() -> None:
    world = with_check()
    world.restart("observe")
    ask(world, "evict")
    world.wait(2.0)
    assert sent_back(world) == []
    assert "in mode observe nothing is moved on the hub" in world.why(world.name())


def hold(world: World, name: str = "train", *, held: bool = True) -> None:
    work = world.log.folds[world.name(name)]
    tenant, id_, after = work.tenant, work.id, work.sequence
    if held:
        event: Held | HoldReleased = Held(
            tenant=tenant, id=id_, after=after, at_s=0, by="gateway", who="ann", reason="not yet"
        )
    else:
        event = HoldReleased(tenant=tenant, id=id_, after=after, at_s=0, by="gateway", who="ann")
    world.write_event(event)
    world.settle()


def switched(world: World) -> list[type]:
    return [type(write) for write in world.writes if isinstance(write, SwitchOff | SwitchOn)]


def test_what_is_held_is_ended_by_our_check_and_switched_off_only_after_that() -> None:
    world = with_check()
    before = world.log.folds[world.name()].submitted_sequence
    hold(world)
    (write,) = sent_back(world)
    assert write.message == "held by ann: not yet"
    (order,) = world.decisions()[-1].moves
    assert (order.why, order.who) == ("held", "ann")

    # Kueue is at it, and has its quota still: its copy would be dropped with the word on its pods.
    conditions = (condition("QuotaReserved"), condition("Evicted", True, "AdmissionCheck"))
    world.status(conditions=conditions, cluster_name=None, admission_checks=checks(own="Pending"))
    world.wait(2.0)
    assert switched(world) == []
    assert world.log.folds[world.name()].state is State.QUEUED
    assert "; held by ann: not yet" in world.why(world.name())
    world.evict("train", "AdmissionCheck")
    world.settle()
    assert switched(world) == [SwitchOff]
    assert world.kueue().spec.active is False
    assert "held by ann: not yet" in world.why(world.name())
    world.restart()
    world.wait(30.0, step_s=5.0)
    assert switched(world) == [SwitchOff]

    hold(world, held=False)
    assert switched(world) == [SwitchOff, SwitchOn]
    assert world.kueue().spec.active is True
    world.reserve("train", own="Pending")
    world.settle()
    assert world.nominated() == ("w1",)
    assert world.log.folds[world.name()].submitted_sequence == before
    assert world.broken == []
    assert set(world.log.verdicts) == {Verdict.COUNTED}


def test_what_waits_is_switched_off_at_once_be_it_without_a_check_of_ours() -> None:
    world = World(workers=("w1", "w2"))
    world.all_workers()
    world.begin()
    world.submit("train")
    world.settle()
    hold(world)
    assert switched(world) == [SwitchOff]
    hold(world, held=False)
    assert switched(world) == [SwitchOff, SwitchOn]

    # What a person has switched off is left alone.
    world.submit("theirs")
    found = world.kueue("theirs")
    spec = msgspec.structs.replace(found.spec, active=False)
    world.put(msgspec.structs.replace(found, spec=spec))
    world.settle()
    hold(world, "theirs")
    hold(world, "theirs", held=False)
    world.wait(2.0)
    assert switched(world) == [SwitchOff, SwitchOn]


def test_one_that_has_quota_and_no_cluster_goes_nowhere_while_it_is_held() -> None:
    world = with_check(free=0)
    world.submit("late")
    world.settle()
    hold(world, "late")
    found = world.kueue("late")  # Kueue was quicker than we were
    assert found.spec.active is False
    spec = msgspec.structs.replace(found.spec, active=True)
    world.put(msgspec.structs.replace(found, spec=spec))
    world.reserve("late", own="Pending")
    world.settle()
    assert switched(world) == [SwitchOff, SwitchOff]
    assert world.nominated("late") == ()
    state = world.kueue("late").check(OWN_CHECK)
    assert state is not None
    assert state.state == "Pending"


def test_a_nomination_that_another_mode_left_is_taken_back_from_what_is_held() -> None:
    world = with_check()
    world.submit("late")
    world.settle()
    world.reserve("late", own="Pending")
    world.settle()
    assert world.nominated("late")
    world.restart("observe")
    hold(world, "late")
    world.restart("dispatch")
    world.wait(3.0)
    assert world.nominated("late") == ()
    assert switched(world) == [SwitchOff]


def test_where_the_hubs_kueue_begins_what_is_held_the_log_follows() -> None:
    world = with_check()
    world.submit("late")
    world.settle()
    world.restart("observe")
    world.reserve("late", own="Pending")
    world.settle()
    hold(world, "late")
    world.admit("late", "w2")
    world.wait(3.0)
    assert world.kinds(world.name("late"))[-1] == "admitted w2"


def test_a_request_of_the_bus_that_is_held_gets_no_job_until_it_is_released() -> None:
    world = World(workers=("w1",))
    world.all_workers()
    world.begin()
    request = JobRequest(id="train", queue="gpu", pod_sets=(PodSet(),), run=RunSpec(image="a/b:1"))
    world.asked_for(request)
    work = world.log.folds[key("acme", "train")]
    world.write_event(
        Held(tenant="acme", id="train", after=work.sequence, at_s=0.0, by="gateway/1", who="ann")
    )
    world.wait(2.0)
    assert [write for write in world.writes if isinstance(write, MakeJob)] == []
    assert "held by ann" in world.why(key("acme", "train"))
