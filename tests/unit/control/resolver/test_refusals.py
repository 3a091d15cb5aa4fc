"""A workload whose commits the log refuses for ever holds up nobody else."""

import pytest

from berthmaster.control.resolver.core.answers.whatif import Budget
from berthmaster.control.resolver.core.deciding.preemptor import REFUSED
from berthmaster.control.resolver.replay import replay
from berthmaster.lib.lifecycle.commits import LONGEST_PAUSE_S
from berthmaster.lib.lifecycle.instructions import Refused
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Key, key
from berthmaster.lib.messages.api import WhatifReply, WhatifRequest, WhyReply
from berthmaster.lib.messages.control import ClusterLost, QueueSetting
from berthmaster.lib.messages.workload import WorkloadEvent
from tests.support.builders import alive, job, node, profile
from tests.support.deciding import TENANT, World, the_end_of


class Damaged(World):
    """Of one workload the server counts an event that nobody hears."""

    lost_of = key(TENANT, "bad")

    def _tail(self, event: WorkloadEvent) -> int:
        if key(event.tenant, event.id) == self.lost_of:
            return 10**9
        return super()._tail(event)


@pytest.fixture
def world() -> Damaged:
    world = Damaged()
    world.fact(profile(), alive(), node(gpus=16))
    return world


def why(world: World, name: str) -> str:
    reply = world.why(TENANT, name, world.now_s)
    assert isinstance(reply, WhyReply)
    return reply.summary


def preempt(world: World, name: str) -> str:
    request = WhatifRequest(preempt=name)
    reply = the_end_of(world.whatif(TENANT, request, world.now_s, Budget()))
    assert isinstance(reply, WhatifReply)
    return reply.summary


def placed(world: World) -> set[str]:
    return {choice.id for _, decision in world.decisions for choice in decision.placements}


def tries(world: World, name: Key, seconds: float) -> int:
    """How often it is tried in so long a time."""
    count, end_s = 0, world.now_s + seconds
    while world.now_s < end_s:
        plan = world.decide()
        count += plan is not None and name in {key(e.tenant, e.id) for e in plan.events}
        world.now_s += 0.05
        world.fact(alive())
    return count


def test_refused_job_delays_few_commits(world: Damaged) -> None:
    names = [f"job-{number}" for number in range(9)]
    for name in [*names[:4], "bad", *names[4:]]:
        world.submit(job(name))
    asked = 0
    while world.decide() is not None:
        asked += 1
        assert asked < 20
    assert placed(world) == set(names)
    assert why(world, "bad").startswith("suspended: the log refuses what is decided")
    # Who comes later is not held up either, and none of it is hard to repeat.
    world.submit(job("later"))
    assert world.decide() is not None
    assert "later" in placed(world)
    assert {each for _, d in world.decisions for each in d.suspended} == {world.lost_of}
    report = replay(world.inputs(), "all")
    assert (report.different, report.repeated) == (0, len(world.decisions))


def test_others_are_ended_for_it_once_and_not_again_and_again(world: Damaged) -> None:
    world.control(QueueSetting(queue="default"))
    low = [world.start(job(f"low-{n}", gpus=8)) for n in range(2)]
    bad = world.submit(job("bad", gpus=8, priority=5))
    asked = 0
    for _ in range(1200):
        plan = world.decide()
        asked += len(plan.decision.evictions) if plan is not None else 0
        for name in low:
            each = world.workloads[name]
            if each.leaving:
                world.evict(name, each.leaving)
            elif each.state is State.PLACED:
                world.claim(name)
                world.run(name)
        world.now_s += 0.05
        world.fact(alive(counter=int(world.now_s * 20)))
    assert asked == 1
    assert why(world, "bad").endswith(f"; {REFUSED}")
    assert REFUSED in preempt(world, "bad")
    # Who waits behind it and asks for the same has room made as ever.
    world.submit(job("good", gpus=8, priority=5))
    assert "would be ended" in preempt(world, "good")
    plan = world.decide()
    assert plan is not None
    assert [each.for_id for each in plan.decision.evictions] == ["good"]
    # What becomes free is tried, and taken where the log lets it.
    world.lost_of = key(TENANT, "another")
    world.now_s += LONGEST_PAUSE_S
    for name in low:
        world.evict(name, "node died")
    world.fact(alive(counter=10**6))
    world.settle()
    assert {world.placed_on(bad), world.placed_on(key(TENANT, "good"))} == {"c1"}
    report = replay(world.inputs(), "all")
    assert (report.different, report.repeated) == (0, len(world.decisions))


def test_refused_job_backs_off_until_news(world: Damaged) -> None:
    world.submit(job("bad"))
    name = world.lost_of
    assert 2 <= tries(world, name, 2.0) <= 6
    assert tries(world, name, 60.0) <= 6
    assert world.resolver.wake_at_s() > world.now_s
    world.lost_of = key(TENANT, "another")
    assert tries(world, name, 1.0) == 0  # its pause is long by now
    world.append(world.reprioritized(name, 5))
    assert tries(world, name, 0.1) == 1
    assert placed(world) == {"bad"}
    assert why(world, "bad").startswith("placed")


def test_an_ending_that_is_refused_for_ever_is_not_asked_for_without_end(world: Damaged) -> None:
    world.lost_of = key(TENANT, "another")
    runs = world.submit(job("bad"))
    world.settle()
    world.claim(runs)
    world.control(ClusterLost(cluster="c1", lost=True, reason="burnt down"))
    asked = 0
    for _ in range(400):
        for append in world.resolver.endings(world.now_s):
            asked += 1
            world.resolver.on_appended(append.ref, Refused())
        world.decide()
        world.now_s += 0.05
    assert 3 <= asked <= 10
