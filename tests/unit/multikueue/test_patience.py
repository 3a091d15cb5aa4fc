"""Patience is a worker's to lose: the time that the hub's own Kueue takes does not count."""

from tests.unit.multikueue.hub_objects import copy_report
from tests.unit.multikueue.world import World

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
