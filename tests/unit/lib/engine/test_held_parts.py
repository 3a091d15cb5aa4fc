"""Which nodes are cheapest to make room on: the same as weighing every attempt by itself."""

import math
import random

import pytest

from berthmaster.lib.engine.fleet.fleet import WHOLE, Fleet, Holding
from berthmaster.lib.engine.queueing.held_parts import HeldParts, Takes
from berthmaster.lib.engine.queueing.preemption import Loss, PodNeed
from berthmaster.lib.lifecycle.workload import Key
from tests.support.builders import node

NOW_S = 10_000.0
RESTART_S = 60.0
ALL = 1000


def fleet_of(nodes: int, gpus: int = 4) -> Fleet:
    fleet = Fleet()
    for at in range(nodes):
        fleet.put_node(node("c", f"n{at:03}", gpus=gpus, cpu_milli=64_000))
    fleet.arrange()
    return fleet


def asked(
    held: HeldParts, fleet: Fleet, need: PodNeed, most: int = ALL
) -> list[tuple[str, list[str]]]:
    found = held.cheapest_first(fleet, need, lambda _, p: p < 5, NOW_S, RESTART_S, most, "c")
    return [(name, list(keys)) for name, keys in found]


def test_the_worked_example() -> None:
    fleet, held = fleet_of(2, gpus=8), HeldParts()
    for at, (gpus, cost) in enumerate(((1, 10.0), (2, 30.0), (4, 35.0))):
        loss = Loss(cost / RESTART_S, 0.0, math.inf)
        held.add(Key(f"j{at}"), "q", 0, -at, loss, {"n000": Takes(1000 * gpus, 0, 0)})
    fleet.charge([Holding("c", "n000", 0, 0, WHOLE, tuple(range(7)))], +1)
    # On the other node a job of four goes for 36: dearer than 35, cheaper than the 40 of two.
    held.add(
        Key("dear"), "q", 0, 0, Loss(36 / RESTART_S, 0.0, math.inf), {"n001": Takes(4000, 0, 0)}
    )
    fleet.charge([Holding("c", "n001", 0, 0, WHOLE, tuple(range(8)))], +1)
    four = PodNeed(0, 0, 4, WHOLE)
    assert asked(held, fleet, four) == [("n000", ["j0", "j1", "j2"]), ("n001", ["dear"])]
    # Without the one of four, the other node is cheaper; and it is gone from then on.
    held.drop(Key("j2"))
    assert asked(held, fleet, four) == [("n001", ["dear"]), ("n000", ["j0", "j1"])]
    assert Key("j2") not in held
    assert len(held) == 3


def slow(
    fleet: Fleet, jobs: dict[str, tuple[int, int, Loss, dict[str, Takes]]], need: PodNeed
) -> list[str]:
    costs = []
    for slot, (_, name) in enumerate(fleet.names):
        here = [
            (round(1000 * _lost(loss)), before, on[name].gpu_milli)
            for priority, before, loss, on in jobs.values()
            if name in on and priority < 5
        ]
        lacks = need.gpus * need.gpu_milli - WHOLE * int(fleet.arrays.whole[slot])
        options = [cost for cost, _, milli in here if milli >= lacks or lacks <= 0]
        total = freed = 0
        for cost, _, milli in sorted(here):
            total, freed = total + cost, freed + milli
            if freed >= lacks:
                options.append(total)
                break
        if options:
            costs.append((min(options), slot, name))
    return [name for _, _, name in sorted(costs)]


def _lost(loss: Loss) -> float:
    ran_s = NOW_S - loss.since_s if loss.since_s else 0.0
    return loss.gpus * ((ran_s if math.isinf(loss.every_s) else ran_s % loss.every_s) + RESTART_S)


@pytest.mark.parametrize("seed", range(8))
def test_nodes_come_in_the_order_of_what_they_cost_whoever_came_and_went_before(seed: int) -> None:
    chance = random.Random(seed)
    fleet, held = fleet_of(20), HeldParts()
    jobs: dict[str, tuple[int, int, Loss, dict[str, Takes]]] = {}
    for number in range(150):
        if jobs and chance.random() < 0.4:
            gone = chance.choice(sorted(jobs))
            held.drop(Key(gone))
            del jobs[gone]
            continue
        on = {
            f"n{at:03}": Takes(WHOLE * chance.randrange(1, 5), 0, 0)
            for at in chance.sample(range(20), chance.choice([1, 1, 1, 3]))
        }
        loss = Loss(
            float(chance.randrange(1, 9)),
            chance.choice([0.0, 1000.0, 5000.0, 9990.0]),
            chance.choice([math.inf, 600.0]),
        )
        job = chance.randrange(7), -number, loss, on
        jobs[f"j{number}"] = job
        held.add(Key(f"j{number}"), "q", *job)
    ordered: list[str] = []
    need = PodNeed(0, 0, 0, WHOLE)
    for gpus in (1, 2, 4):
        need = PodNeed(0, 0, gpus, WHOLE)
        for slot in range(0, 20, 3):
            _, name = fleet.names[slot]
            fleet.charge([Holding("c", name, 0, 0, WHOLE, (gpus - 1,))], +1)
        ordered = slow(fleet, jobs, need)
        assert [name for name, _ in asked(held, fleet, need)] == ordered
        for most in (1, 5):
            assert [name for name, _ in asked(held, fleet, need, most)] == ordered[:most]
    # Closed nodes and those that went do not count.
    fleet.drop_node("c", ordered[0])
    fleet.set_cordon("c", ordered[1], True)
    fleet.arrange()
    assert [name for name, _ in asked(held, fleet, need)] == ordered[2:]
