"""What leaves its worker because a person says so: Kueue is told by our check, and room is kept."""

import msgspec
import pytest

from berthmaster.kubernetes.selector import parse_selector
from berthmaster.lifecycle.fold import Verdict
from berthmaster.messages.control import Cordon
from berthmaster.messages.workload import MoveRequested
from berthmaster.multikueue.instructions import SendBack
from tests.unit.multikueue.hub_objects import OWN_CHECK, cluster_queue, own_check
from tests.unit.multikueue.world import World

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


@pytest.mark.parametrize("mode", ["observe", "order"])
def test_other_modes_write_nothing_for_it(mode: str) -> None:
    world = with_check()
    world.restart(mode)
    ask(world, "evict")
    world.wait(2.0)
    assert sent_back(world) == []
    assert f"in mode {mode} nothing is moved on the hub" in world.why(world.name())
