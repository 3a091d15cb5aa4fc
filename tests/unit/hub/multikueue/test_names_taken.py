"""Where another object has the name of a Workload's job, Kueue can make no job: the cluster is out
for that Workload, and the nomination goes on."""

from berthmaster.hub.multikueue.core.deciding.traps import JOB_NAME_TAKEN, NOT_CLEARED
from berthmaster.hub.multikueue.core.instructions import ClearNomination, SwitchOff, SwitchOn
from berthmaster.hub.multikueue.core.known.avoided import NAME_TAKEN, TAKEN_FOR_S
from berthmaster.lib.lifecycle.fold import Verdict
from berthmaster.lib.lifecycle.states import State
from tests.unit.hub.multikueue.hub_objects import copy_report
from tests.unit.hub.multikueue.world import World

BLOCKED = "Job team/train"
WORDS = "w1 has another Job of this name (team/train)"


def nominated(workers: int = 2, mode: str = "dispatch") -> World:
    """The best of so many workers is nominated: w1."""
    names = [f"w{n + 1}" for n in range(workers)]
    world = World(mode, workers=names)
    for number, name in enumerate(names):
        world.worker(name, free=8 - number)
    world.begin()
    world.submit()
    world.reserve()
    world.settle()
    return world


def block(world: World, *, admitted: bool = True, **how: object) -> None:
    report = copy_report("w1", "train", blocked_by=BLOCKED, admitted=admitted, **how)
    world.fact("copy", report)
    world.settle()


def switched(world: World) -> list[type]:
    return [type(write) for write in world.writes if isinstance(write, SwitchOff | SwitchOn)]


def evict(world: World) -> None:
    """Kueue sees that it is switched off, removes the copy and gives the quota back."""
    world.evict("train", "Deactivated", "The workload is deactivated")
    world.fact("copy", copy_report("w1", gone=True))
    world.settle()


def test_an_admitted_copy_that_can_have_no_job_is_given_up_and_the_next_cluster_comes() -> None:
    world = nominated()
    assert world.nominated() == ("w1",)
    block(world)
    name = world.name()
    assert switched(world) == [SwitchOff]
    assert world.kueue().spec.active is False
    trap = world.core.trapped[name]
    assert (trap.kind, trap.words.partition(",")[0]) == (JOB_NAME_TAKEN, WORDS)
    assert "submit this job under another name" in trap.words

    world.wait(5.0)  # Kueue has not seen it yet
    assert switched(world) == [SwitchOff]
    assert "Kueue is ending its attempt" in world.why(name)

    evict(world)
    assert world.kinds(name)[-1] == "evicted w1"
    assert world.log.folds[name].reason == f"{NAME_TAKEN}: {WORDS}"
    assert switched(world) == [SwitchOff, SwitchOn]
    assert world.kueue().spec.active is True
    world.reserve()
    world.settle()
    assert world.nominated() == ("w2",)
    assert world.core.know.demoted(world.policy, world.now_s) == {}  # of no other Workload
    assert set(world.log.verdicts) == {Verdict.COUNTED}
    assert world.broken == []


def test_a_copy_that_waits_is_taken_back_without_being_switched_off() -> None:
    world = nominated()
    block(world, admitted=False, message="insufficient unused quota", reason="Pending")
    world.wait(1.0)
    assert switched(world) == []
    assert any(isinstance(write, ClearNomination) for write in world.writes)
    world.fact("copy", copy_report("w1", gone=True))
    world.wait(3.0)
    assert world.log.folds[world.name()].reason == f"{NAME_TAKEN}: {WORDS}"
    assert world.nominated() == ("w2",)


def test_a_later_process_run_leaves_the_cluster_out_for_this_workload_alone() -> None:
    world = nominated()
    block(world)
    evict(world)
    world.restart()
    world.reserve()
    world.submit("other")
    world.reserve("other")
    world.wait(3.0)  # the new process run does not know whether the copies of the last are gone
    assert (world.nominated(), world.nominated("other")) == (("w2",), ("w1",))


def test_a_restart_between_off_and_on_goes_on_where_it_was() -> None:
    world = nominated()
    block(world)
    assert switched(world) == [SwitchOff]
    world.restart()
    world.settle()
    assert switched(world) == [SwitchOff]
    world.evict("train", "Deactivated", "The workload is deactivated")
    world.fact("copy", copy_report("w1", gone=True))
    world.restart()
    world.settle()
    assert switched(world) == [SwitchOff, SwitchOn]
    assert world.log.folds[world.name()].reason == f"{NAME_TAKEN}: {WORDS}"


def test_the_only_cluster_is_kept_and_the_state_says_what_helps() -> None:
    world = nominated(workers=1)
    block(world)
    world.wait(60.0, step_s=2.0)
    assert switched(world) == []
    assert world.nominated() == ("w1",)
    assert f"stuck: {WORDS}" in world.why(world.name())
    (note,) = [event.note for event in world.told if event.reason == JOB_NAME_TAKEN]
    assert note.startswith(WORDS)
    assert [event for event in world.told if event.reason == NOT_CLEARED] == []

    # Somebody removes that Job, and Kueue makes its own.
    world.fact("copy", copy_report("w1", admitted=True))
    world.admit("train", "w1")
    world.settle()
    assert world.core.trapped == {}
    assert world.log.folds[world.name()].state is State.ADMITTED


def test_a_cluster_is_tried_again_after_a_while() -> None:
    world = nominated()
    block(world)
    evict(world)
    name = world.name()
    why_not = world.core.know.names_taken.why_not
    assert why_not(name, "w1", world.now_s + TAKEN_FOR_S - 10.0) == WORDS.removeprefix("w1 ")
    assert why_not(name, "w1", world.now_s + TAKEN_FOR_S) == ""
    assert why_not(name, "w2", world.now_s) == ""


def test_what_is_said_of_a_cluster_that_is_out_names_the_object() -> None:
    world = nominated()
    block(world)
    evict(world)
    world.reserve()
    world.settle()
    (note,) = [event.note for event in world.told if event.note.startswith("attempt 2")]
    assert f"left out: {WORDS.replace(' has', ': has', 1)}" in note


def test_in_observe_it_is_told_and_left_alone() -> None:
    world = nominated(mode="observe")
    world.status(nominated_cluster_names=("w1",))
    block(world)
    assert world.core.trapped[world.name()].kind == JOB_NAME_TAKEN
    world.wait(10.0)
    assert switched(world) == []


def test_a_job_that_kueue_named_a_cluster_for_meanwhile_is_not_switched_off() -> None:
    world = nominated()
    world.admit("train", "w1")
    block(world)
    world.wait(5.0)
    assert switched(world) == []
    assert world.log.folds[world.name()].state is State.ADMITTED
