"""Only the log changes what is known: deciding and answering read, and leave everything as it was.

A story drawn from a seed is stopped at every step. There all that is known is written down, then
questions are asked and the same is decided twice, and compared.
"""

import random
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from berthmaster.control.resolver.core.answers.whatif import Budget
from berthmaster.control.resolver.core.deciding import cycle
from berthmaster.control.resolver.core.deciding.decide import decide, planned
from berthmaster.control.resolver.core.known.knowledge import Knowledge
from berthmaster.control.resolver.core.known.stored import snapshot_of
from berthmaster.control.resolver.policy import Policy
from berthmaster.lib.engine.fleetview.shortlist import bind
from berthmaster.lib.messages.api import SubmitRequest, WhatifRequest
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.workload import JobRequest
from tests.support.builders import alive, job, node, profile
from tests.support.deciding import TENANT, World

STEPS = 25
WHAT_IF = msgspec.convert(msgspec.to_builtins(job("what-if", gpus=4)), SubmitRequest)
POLICIES = {
    "as they came": Policy(stale_after_s=1e9, reserve_wait_s=20.0),
    "as they are due": Policy(stale_after_s=1e9, order="due", reservations=2, backfill=0.8),
}


def known(know: Knowledge) -> bytes:
    """All that is known, and the room and the accounts that follow from it."""
    fleet = know.fleet
    fleet.arrange()
    arrays = (
        fleet.arrays.cpu,
        fleet.arrays.memory,
        fleet.arrays.gpu,
        fleet.arrays.whole,
        fleet.arrays.milli,
        fleet.arrays.free_milli,
    )
    return msgspec.msgpack.encode(
        {
            "log": snapshot_of(know),
            "sequences": (know.view.fleet_sequence, know.view.control_sequence),
            "nodes": list(fleet.reports()),
            "clusters": know.clusters.known(),
            "queues": know.queues,
            "cordons": sorted(know.view.cordons),
            "holdings": [(name, fleet.holdings(name)) for name in sorted(know.open)],
            "room": [array.tolist() for array in arrays],
            "accounts": getattr(know.derived.ledger, "_used"),  # noqa: B009
            "waits": sorted(n for line in know.derived.lines.lines() for n in line.members),
        }
    )


def told(world: World) -> list[bytes]:
    resolver, now_s = world.resolver, world.now_s
    lines = resolver.know.derived.lines.lines()
    ids = [name.partition("/")[2] for line in lines for name in line.members][:6]
    answers: list[object] = [world.why(TENANT, each, now_s) for each in (*ids, None)]
    answers.append(world.dry_run(TENANT, job("try", gpus=2), now_s))
    steps = world.whatif(None, WhatifRequest(submit=WHAT_IF), now_s, Budget())
    try:
        while True:
            next(steps)
    except StopIteration as done:
        answers.append(done.value)
    answers.append(sorted(planned(resolver.know, world.policy, now_s).items()))
    return [msgspec.json.encode(each, order="sorted") for each in answers]


def request(chance: random.Random, number: int) -> JobRequest:
    gpus = chance.choice((1, 1, 2, 4, 8))
    made = job(
        f"j{number}",
        gpus=gpus,
        count=chance.choice((1, 1, 2)),
        gpu_milli=chance.choice((1000, 300)) if gpus == 1 else 1000,
        priority=chance.choice((0, 0, 5)),
        queue=chance.choice(("default", "research")),
    )
    return replace(made, expected_duration_s=chance.choice((None, 30.0, 200.0, 900.0)))


def begin(policy: Policy) -> World:
    world = World(policy)
    for cluster, nodes in (("c1", 2), ("c2", 1)):
        world.fact(profile(cluster), alive(cluster))
        world.fact(*(node(cluster, f"n{at}", gpus=8) for at in range(nodes)))
    world.control(QueueSetting(queue="research", guarantee_gpu_milli=8000, weight=2.0))
    return world


def step(world: World, chance: random.Random, number: int) -> None:
    """Something happens: mostly a job comes, at times one ends."""
    world.now_s += chance.uniform(1.0, 30.0)
    world.submit(request(chance, number))
    if chance.random() < 0.3:
        world.submit(request(chance, 1000 + number))
    running = [n for n, w in world.workloads.items() if w.live and w.running_at_s]
    if running and chance.random() < 0.4:
        world.succeed(chance.choice(running))


def store(world: World) -> None:
    for plan in world.settle():
        for choice in plan.decision.placements:
            name = next(n for n in world.workloads if n.endswith(f"/{choice.id}"))
            world.claim(name)
            world.run(name)


@pytest.mark.parametrize("policy", POLICIES)
def test_deciding_and_answering_twice_is_the_same_twice_and_changes_nothing(policy: str) -> None:
    chance = random.Random(policy)
    world = begin(POLICIES[policy])
    know = world.resolver.know
    plans = kept = 0
    for number in range(STEPS):
        step(world, chance, number)
        before = known(know)
        answers = told(world)
        assert told(world) == answers
        assert known(know) == before
        plan = decide(know, world.policy, world.now_s, "first")
        assert known(know) == before
        again = decide(know, world.policy, world.now_s, "first")
        assert known(know) == before
        assert (again is None) == (plan is None)
        if plan is not None and again is not None:
            assert msgspec.json.encode(again.decision) == msgspec.json.encode(plan.decision)
            assert again.events == plan.events
            plans += 1
            kept += plan.decision.reserved
        if policy == "as they came":  # guesses, and so the order, are renewed by a decision only
            assert told(world) == answers
        store(world)
    assert plans > STEPS / 3
    assert kept > 0


class Failing:
    """Places that can be found so often, and then not any more."""

    def __init__(self, times: int) -> None:
        self._left = times
        self._bind = bind

    def bind(self, *args: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise ArithmeticError("the engine has a fault")
        return self._bind(*args)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_draft_that_fails_gives_everything_back(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(policy)
    world = begin(POLICIES[policy])
    know = world.resolver.know
    failed = 0
    for number in range(STEPS):
        step(world, chance, number)
        before = known(know)
        failing = Failing(chance.randrange(3))
        with monkeypatch.context() as patch:
            patch.setattr(cycle, "bind", failing.bind)
            try:
                decide(know, world.policy, world.now_s, "first")
            except ArithmeticError:
                failed += 1
        assert known(know) == before
        store(world)
    assert failed > STEPS / 3
