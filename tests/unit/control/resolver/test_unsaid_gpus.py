"""Kubernetes says where a pod runs, and not which GPUs it has: what was promised stays so."""

import msgspec

from berthmaster.control.resolver.core.known.stored import restore, snapshot_of
from berthmaster.lib.lifecycle.workload import Key
from berthmaster.lib.messages.workload import Running
from tests.support.builders import alive, job, node, profile
from tests.support.deciding import World


def fleet(*nodes: str) -> World:
    """One cluster whose nodes have eight GPUs each."""
    world = World()
    world.fact(profile(), alive(), *(node(name=name, gpus=8) for name in nodes))
    return world


def run(world: World, name: Key, *, on: str = "") -> None:
    """It is told as an executor on Kubernetes tells it; ``on``: all ran elsewhere than placed."""
    world.claim(name)
    told = tuple(
        msgspec.structs.replace(each, gpus=(), node=on or each.node)
        for each in world.workloads[name].pods
    )
    world.append(Running(**world._attempt(name), pods=told))  # type: ignore[arg-type]


def charged(world: World, name: Key) -> list[tuple[str, tuple[int, ...]]]:
    return [(held.node, held.gpus) for held in world.resolver.know.fleet.holdings(name)]


def free(world: World) -> list[list[int]]:
    return [[int(milli) for milli in row] for row in world.resolver.know.fleet.arrays.gpu]


PAIRS = [("a", (0, 1)), ("a", (2, 3)), ("a", (4, 5)), ("a", (6, 7))]


def test_pods_on_one_node_keep_the_gpus_that_each_was_placed_on() -> None:
    world = fleet("a")
    name = world.submit(job("four", gpus=2, count=4))
    world.settle()
    assert charged(world, name) == PAIRS
    run(world, name)
    assert charged(world, name) == PAIRS
    other = world.submit(job("other", gpus=4))
    world.settle()
    assert world.placed_on(other) == ""  # it would have had GPUs of others


def test_pods_that_ran_elsewhere_are_charged_to_gpus_of_their_own() -> None:
    world = fleet("a", "b")
    name = world.submit(job("four", gpus=2, count=4))
    world.settle()
    [placed] = {each.node for each in world.workloads[name].pods}
    [elsewhere] = {"a", "b"} - {placed}
    run(world, name, on=elsewhere)
    assert charged(world, name) == [(elsewhere, gpus) for _, gpus in PAIRS]


def test_who_starts_from_a_snapshot_before_nodes_are_known_charges_them_as_they_come() -> None:
    world = fleet("a", "b")
    went = world.submit(job("went", gpus=2, count=4))
    world.settle()
    [placed] = {each.node for each in world.workloads[went].pods}
    [elsewhere] = {"a", "b"} - {placed}
    run(world, went, on=elsewhere)
    after = World()
    restore(after.resolver.know, snapshot_of(world.resolver.know))
    after.fact(profile(), alive(), node(name="a", gpus=8), node(name="b", gpus=8))
    after.resolver.know.fleet.arrange()
    assert charged(after, went) == [(elsewhere, gpus) for _, gpus in PAIRS]
    assert sorted(free(after)) == [[0] * 8, [1000] * 8]
