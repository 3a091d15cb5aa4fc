"""Patience is a worker's to lose: the time that the hub's own Kueue takes does not count."""

from berthmaster.hub.multikueue.core.instructions import Nudge
from berthmaster.lib.kube.controller.shell_contract import Answer, Outcome
from berthmaster.lib.messages.workload import Evicted
from tests.unit.hub.multikueue.hub_objects import cluster, copy_report
from tests.unit.hub.multikueue.world import World

MANY = [f"job-{number}" for number in range(20)]
WAITS = "waits for checks: budget is Pending"


def nominated(names: list[str]) -> World:
    """All at once, all to w1."""
    world = World(workers=("w1", "w2"), patience_s=10.0)
    world.worker("w1", gpus=64)
    world.worker("w2", gpus=8)
    world.begin()
    submitted(world, *names)
    assert {last_place(world, name) for name in names} == {"w1"}
    return world


def submitted(world: World, *names: str) -> None:
    for name in names:
        world.submit(name)
        world.reserve(name)
    world.settle()


def last_place(world: World, name: str) -> str:
    wanted = world.name(name).partition("/")[2]
    return [cluster for workload, cluster in world.placements() if workload == wanted][-1]


def test_it_counts_from_when_the_copy_is_there() -> None:
    world = nominated(MANY)
    world.wait(9.0, step_s=0.5)
    for name in MANY[10:]:  # the hub's manager has come to these at last
        world.fact(f"copy/{name}", copy_report("w1", name, message=WAITS))
    world.wait(9.0, step_s=0.5)  # a patience and more since their nomination
    assert {last_place(world, name) for name in MANY[10:]} == {"w1"}
    world.wait(2.0, step_s=0.5)
    assert last_place(world, "job-19") == "w2"


def test_one_that_the_hub_has_passed_over_waits_no_longer_than_the_others() -> None:
    world = nominated(MANY)
    world.wait(1.0)
    submitted(world, "late")
    world.fact("copy/late", copy_report("w1", "late", message=WAITS))
    world.wait(8.0, step_s=0.5)
    assert last_place(world, "job-19") == "w1"
    world.wait(5.0, step_s=0.5)
    assert last_place(world, "job-19") == "w2"


def test_a_copy_that_never_comes_is_waited_for_a_second_for_each_in_line_and_a_patience() -> None:
    world = nominated(["alone"])
    world.wait(10.5)
    assert last_place(world, "alone") == "w1"
    world.wait(3.0)  # two of them until no copy can be on its way any more
    assert last_place(world, "alone") == "w2"


# What the hub's manager holds back since its start


def nudges(world: World) -> list[str]:
    """The Workloads that were written, in this order."""
    return [write.at[1] for write in world.writes if isinstance(write, Nudge)]


def evictions(world: World, name: str) -> list[Evicted]:
    return [e for e in world.log.story(world.name(name)) if isinstance(e, Evicted)]


def test_held_workload_is_written_once_and_its_copy_comes() -> None:
    world = nominated(["alone"])
    world.wait(9.5)
    assert nudges(world) == []
    world.wait(1.0)
    assert nudges(world) == ["job-alone"]
    world.fact("copy/alone", copy_report("w1", "alone", message=WAITS))
    world.wait(9.0)
    assert nudges(world) == ["job-alone"]
    assert evictions(world, "alone") == []


def test_workload_whose_copy_came_in_time_is_not_written() -> None:
    world = nominated(MANY)
    for name in MANY:  # one a second
        world.fact(f"copy/{name}", copy_report("w1", name, message=WAITS))
        world.wait(0.9, step_s=0.3)
    assert nudges(world) == []


def test_passed_workloads_are_written_while_others_are_served() -> None:
    world = nominated(MANY)
    world.wait(1.0)
    later = [f"later-{number}" for number in range(12)]
    for name in later:
        submitted(world, name)
        world.fact(f"copy/{name}", copy_report("w1", name, message=WAITS))
        world.wait(0.8, step_s=0.4)
    world.wait(1.0)
    assert sorted(nudges(world)) == sorted(f"job-{name}" for name in MANY)


def test_cluster_is_not_blamed_for_held_workload() -> None:
    world = nominated(["held", "other"])
    world.fact("copy/other", copy_report("w1", "other", message=WAITS))
    world.admit("other", "w1")
    world.wait(14.0)
    assert [e.blameless for e in evictions(world, "held")] == [True]
    assert world.core.know.demoted(world.policy, world.now_s) == {}


def test_cluster_that_takes_no_copies_while_others_do_is_left_for_last() -> None:
    world = nominated(["refused"])
    world.wait(10.3)
    assert nudges(world) == ["job-refused"]
    world.worker("w2", gpus=128)
    submitted(world, "other")
    world.fact("copy/other", copy_report("w2", "other", message=WAITS))
    world.wait(4.0)
    assert [e.blameless for e in evictions(world, "refused")] == [False]
    assert list(world.core.know.demoted(world.policy, world.now_s)) == ["w1"]


def test_second_write_needs_new_signs_and_twice_the_time() -> None:
    world = World(workers=("w1",), patience_s=10.0, hub_mute_s=600.0)
    world.worker("w1", gpus=64)
    world.begin()
    submitted(world, "alone")
    world.wait(29.0, step_s=0.5)
    assert len(nudges(world)) == 1
    world.wait(3.0, step_s=0.5)
    assert len(nudges(world)) == 2
    world.wait(36.0, step_s=0.5)
    assert len(nudges(world)) == 2


def test_workload_of_unreachable_cluster_is_not_written() -> None:
    world = World(workers=("w1",), patience_s=30.0)
    world.worker("w1", gpus=64)
    world.begin()
    submitted(world, "alone")
    world.put(cluster("w1", active=False))
    world.wait(20.0, step_s=0.5)
    assert nudges(world) == []


def test_refused_write_changes_nothing() -> None:
    world = nominated(["alone"])
    answer = world.answer
    world.answer = lambda write: (  # type: ignore[method-assign]
        Answer(Outcome.DENIED, "Forbidden", "may not patch workloads")
        if isinstance(write, Nudge)
        else answer(write)
    )
    world.wait(10.5)
    assert nudges(world) == ["job-alone"]
    assert "may not patch" not in world.why(world.name("alone"))
    world.wait(3.5)
    assert last_place(world, "alone") == "w2"
