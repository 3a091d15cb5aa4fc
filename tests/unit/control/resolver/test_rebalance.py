"""Stories of a fleet that is rebalanced: who moves so that a job fits that waits, and who never."""

from typing import Any

import msgspec
import pytest

from berthmaster.control.resolver.core.answers.whatif import Budget
from berthmaster.control.resolver.core.deciding.rebalance import REBALANCED
from berthmaster.control.resolver.core.known.stored import Snapshot, restore, snapshot_of
from berthmaster.control.resolver.core.resolver import Resolver
from berthmaster.control.resolver.policy import Policy
from berthmaster.control.resolver.replay import replay
from berthmaster.lib.lifecycle.workload import Key
from berthmaster.lib.messages.api import (
    Ended,
    Rebalanced,
    RebalanceRequest,
    Refusal,
    WhatifReply,
    WhatifRequest,
    WhyReply,
)
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.placement import Rebalance, RebalanceMove
from berthmaster.lib.messages.workload import Evicted, EvictionRequested
from tests.support.builders import alive, job, node, profile
from tests.support.deciding import TENANT, World


def fleet(*sizes: int, policy: Policy | None = None, rebalances: str = "queue") -> World:
    """One cluster with nodes of so many GPUs, and one queue."""
    world = World(policy)
    world.fact(profile(), alive(), *(node(name=f"n{at}", gpus=n) for at, n in enumerate(sizes)))
    world.control(QueueSetting(queue="default", preempts="never", rebalances=rebalances))  # type: ignore[arg-type]
    return world


def wait(world: World, name: str, queue: str = "default", **fields: Any) -> Key:
    return world.submit(job(name, queue=queue, **fields))


def start(world: World, name: str, queue: str = "default", **fields: Any) -> Key:
    return world.start(job(name, queue=queue, **fields))


def gone(world: World, name: Key) -> None:
    reason = world.workloads[name].leaving
    world.append(Evicted(**world._attempt(name), reason=reason, blameless=True))  # type: ignore[arg-type]


def moved(world: World) -> list[tuple[str, list[str]]]:
    """For whom and who, of all that is decided now."""
    found = [each for plan in world.settle() for each in plan.decision.rebalances]
    return [(each.id, [move.id for move in each.moves]) for each in found]


def on(world: World, name: Key) -> list[str]:
    return sorted({binding.node for binding in world.workloads[name].pods})


def why(world: World, name: Key) -> str:
    reply = world.why(TENANT, world.workloads[name].id, world.now_s)
    assert isinstance(reply, WhyReply)
    return reply.summary


def pieces(
    world: World,
    checkpoint_every_s: float | None = 600.0,
    running_after_s: float = 0.0,
    **fields: Any,
) -> list[Key]:
    """Two nodes of four GPUs, two of each free, in pieces: of four pairs the two that stand
    together on neither of the nodes have ended."""
    pairs = [
        wait(world, f"p{n}", gpus=2, checkpoint_every_s=checkpoint_every_s, **fields)
        for n in range(4)
    ]
    world.settle()
    stay: dict[str, Key] = {}
    for name in pairs:
        world.claim(name)
        if on(world, name)[0] in stay:
            world.run(name)
            world.succeed(name)
        else:
            stay[on(world, name)[0]] = name
    late, other = sorted(stay.values())
    world.run(other)
    if running_after_s:
        wait(world, "wide", gpus=4)
        world.pass_s(running_after_s)
    world.run(late)
    world.settle()
    return [late, other]


def test_fruitless_rebalance_backs_off() -> None:
    world = fleet(4, 4)
    whole = wait(world, "whole", gpus=4)
    half = wait(world, "half", gpus=2)
    world.settle()
    for name in (whole, half):
        world.claim(name)
        world.run(name)
    wait(world, "wide", gpus=4)  # the half could only go where it is

    def pauses(looks: int) -> list[float]:
        found = []
        for _ in range(looks):
            assert moved(world) == []
            wakes_in_s = world.resolver.wake_at_s() - world.now_s
            found.append(round(wakes_in_s, 3))
            for _ in range(round(wakes_in_s)):  # else its cluster would be back from silence
                world.pass_s(1.0)
        return found

    assert pauses(1) == [600.0]
    assert pauses(8) == [10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 320.0, 320.0]
    world.fact(node(name="n2", gpus=1))
    assert pauses(4) == [10.0, 20.0, 40.0, 80.0]


def test_one_job_moves_so_that_another_fits_which_has_waited_for_long() -> None:
    world = fleet(4, 4)
    kept = pieces(world)
    wide = wait(world, "wide", gpus=4)
    assert moved(world) == []
    world.pass_s(590.0)
    assert moved(world) == []
    world.pass_s(30.0)
    decisions = [plan for plan in world.settle() if plan.decision.rebalances]
    [plan] = decisions
    decision, [event] = plan.decision, plan.events
    victim = Key(f"{event.tenant}/{event.id}")
    assert victim in kept
    assert isinstance(event, EvictionRequested)
    assert (event.reason, event.to) == (REBALANCED, "c1")
    [from_], [to] = on(world, victim), on(world, kept[kept[0] == victim])
    # It has run for 620 s, and writes a checkpoint every 600: 2 GPUs lose 20 s, and 60 to start.
    assert decision.rebalances == (
        Rebalance(
            tenant=TENANT,
            id="wide",
            cluster="c1",
            moves=(
                RebalanceMove(
                    tenant=TENANT, id=event.id, attempt=1, cluster="c1", to="c1", lost_gpu_s=160.0
                ),
            ),
            gpus=4.0,
            waited_s=620.0,
            saves_s=580.0,
            gain_gpu_s=2320.0,
            cost_gpu_s=160.0,
        ),
    )
    assert decision.reservations is not None
    assert {r.id: (r.owed, r.moving, r.held[0].node) for r in decision.reservations} == {
        event.id: (True, True, to),
        "wide": (True, False, from_),
    }
    assert why(world, wide).endswith(
        "; 1 job was told to move for it by decision "
        f"{decision.number}: 2,320 GPU seconds of waiting are saved, 160 of work lost"
    )
    assert why(world, victim).endswith(
        f"; told to move from c1 to c1 by decision {decision.number}, so that a job fits that had "
        "waited for 620 s: 160 GPU seconds of its work are lost, 2,320 of waiting saved"
    )
    # Until it has gone nobody begins; then both do, each in its own room.
    assert world.settle() == []
    late = wait(world, "late", gpus=2, priority=9)
    world.settle()
    assert (world.placed_on(wide), world.placed_on(late)) == ("", "")
    gone(world, victim)
    world.settle()
    assert (on(world, wide), on(world, victim), world.placed_on(late)) == ([from_], [to], "")
    assert (world.workloads[victim].moves, world.workloads[victim].evictions) == (1, 0)
    report = replay(world.inputs(), "all")
    assert (report.first_difference, report.equal) == (None, len(world.decisions)), report
    # Whoever begins from a snapshot has counted it against the budget as well.
    kept_ = msgspec.msgpack.decode(
        msgspec.msgpack.encode(snapshot_of(world.resolver.know)), type=Snapshot
    )
    other = Resolver("all", "another", Policy())
    restore(other.know, kept_)
    assert other.know.recent_evictions.count(0.0, "default") == 1


@pytest.mark.parametrize(
    ("rebalances", "policy"),
    [
        ("never", Policy()),
        ("all", Policy(rebalance_moves=0)),
        ("all", Policy(evictions_per_hour=0)),
        ("all", Policy(rebalance_gain=20.0)),
        ("all", Policy(rebalance_after_s=3600.0)),
    ],
)
def test_nobody_moves_where_that_is_off_or_does_not_pay(rebalances: str, policy: Policy) -> None:
    world = fleet(4, 4, policy=policy, rebalances=rebalances)
    pieces(world)
    wait(world, "wide", gpus=4)
    world.pass_s(620.0)
    assert moved(world) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"preemptible": False},
        {"priority": 1},  # more than that of the one that waits
        {"expected_duration_s": 640.0},  # it has ended before going would pay
        {"checkpoint_every_s": 630.0},  # it writes one in ten seconds
    ],
)
def test_who_is_not_moved(fields: dict[str, Any]) -> None:
    world = fleet(4, 4)
    pieces(world, **fields)
    wait(world, "wide", gpus=4)
    world.pass_s(625.0)
    assert moved(world) == []


def test_who_has_just_begun_is_not_moved() -> None:
    world = fleet(4, 4)
    _, other = pieces(world, running_after_s=300.0)
    assert moved(world) == []
    world.pass_s(540.0)  # late would lose 540 s of its work, other 240
    assert moved(world) == [("wide", [world.workloads[other].id])]
    world = fleet(4, 4)
    late, _ = pieces(world, checkpoint_every_s=None, running_after_s=300.0)
    world.pass_s(540.0)  # for late it would pay, and it has run for less than ten minutes
    assert moved(world) == []
    world.pass_s(61.0)
    assert moved(world) == [("wide", [world.workloads[late].id])]


def test_nobody_is_moved_for_one_that_has_made_room_itself() -> None:
    """So those who moved for one another never make a circle."""
    world = fleet(4, 4)
    kept = pieces(world)
    wide = wait(world, "wide", gpus=4)
    world.pass_s(620.0)
    [(_, [name])] = moved(world)
    victim = Key(f"{TENANT}/{name}")
    other = kept[kept[0] == victim]
    gone(world, victim)
    # What was kept for it cannot be had any more: it waits again, as long as wide had.
    world.fact(node(name=on(world, other)[0], gpus=2))
    world.settle()
    assert (world.placed_on(wide), world.placed_on(victim)) == ("c1", "")
    world.claim(wide)
    world.run(wide)
    world.pass_s(3600.0)
    assert moved(world) == []
    assert "made room itself" in str(whatif(world, RebalanceRequest()).rebalances)


def whatif(world: World, asked: RebalanceRequest, tenant: str | None = None) -> WhatifReply:
    steps = world.whatif(tenant, WhatifRequest(rebalance=asked), world.now_s, Budget())
    while True:
        try:
            next(steps)
        except StopIteration as done:
            reply: WhatifReply | Refusal = done.value
            assert isinstance(reply, WhatifReply), reply
            return reply


def test_as_many_move_as_are_set_at_most_and_one_without_room_elsewhere_stays() -> None:
    """Three singles on each of two nodes; a job of four waits, and each node has room for one."""
    for most, told in ((2, []), (3, ["four"])):
        world = fleet(4, 4, 2, policy=Policy(rebalance_moves=most))
        singles = [start(world, f"s{n}", gpus=1, checkpoint_every_s=600.0) for n in range(10)]
        there = {name: on(world, name) for name in singles}
        for each in ("n0", "n1"):
            world.succeed(next(name for name in singles if there[name] == [each]))
        for name in singles:
            if there[name] == ["n2"]:
                world.succeed(name)
        world.settle()
        four = wait(world, "four", gpus=4)
        world.pass_s(610.0)
        found = moved(world)
        assert [name for name, _ in found] == told
        if not found:
            continue
        [(_, names)] = found
        assert len(names) == 3
        for each in names:
            gone(world, Key(f"{TENANT}/{each}"))
        world.settle()
        assert world.placed_on(four)
        assert {world.placed_on(Key(f"{TENANT}/{name}")) for name in names} == {"c1"}
    # Where all that is free would be in the way of each other, nobody moves.
    world = fleet(4, 4)
    pieces(world)
    wait(world, "all", gpus=8, count=1)
    wait(world, "wide", gpus=4, count=2)
    world.pass_s(620.0)
    assert moved(world) == []


@pytest.mark.parametrize(
    ("rebalances", "priority", "told"),
    [("queue", 0, []), ("all", 0, ["wide"]), ("all", -1, ["wide"]), ("all", 1, [])],
)
def test_other_queues_jobs_move_where_that_is_said_and_theirs_is_no_higher(
    rebalances: str, priority: int, told: list[str]
) -> None:
    world = fleet(4, 4, rebalances=rebalances)
    world.control(QueueSetting(queue="other", priority=priority))
    pieces(world, queue="other")
    wait(world, "wide", gpus=4)
    world.pass_s(620.0)
    assert [name for name, _ in moved(world)] == told


def test_a_queue_s_budget_counts_moves() -> None:
    world = fleet(4, 4, rebalances="all")
    world.control(QueueSetting(queue="other", max_evictions_per_hour=0))
    pieces(world, queue="other")
    wait(world, "wide", gpus=4)
    world.pass_s(620.0)
    assert moved(world) == []


def test_it_is_looked_for_when_it_is_time_and_by_itself() -> None:
    world = fleet(4, 4)
    pieces(world)
    wait(world, "wide", gpus=4)
    world.settle()
    since_s = world.now_s
    assert world.resolver.wake_at_s() == since_s + 600.0
    world.pass_s(601.0)
    [plan] = world.settle()
    assert plan.decision.rebalances
    # While it is too dear it is looked at now and then.
    world = fleet(4, 4, policy=Policy(rebalance_gain=20.0))
    pieces(world)
    wait(world, "wide", gpus=4)
    world.pass_s(601.0)
    assert world.settle() == []
    assert world.resolver.wake_at_s() == world.now_s + 10.0


def test_what_if_says_who_would_move_for_whom_although_it_is_off() -> None:
    world = fleet(4, 4, rebalances="never")
    kept = pieces(world)
    wait(world, "wide", gpus=4)
    world.now_s += 1.0
    wait(world, "later", gpus=3)
    world.pass_s(619.0)
    assert moved(world) == []
    before = snapshot_of(world.resolver.know)
    reply = whatif(world, RebalanceRequest(after_s=619.5))
    [ended] = reply.ended
    victim = Key(f"{TENANT}/{ended.id}")
    assert victim in kept
    [from_], [to] = on(world, victim), on(world, kept[kept[0] == victim])
    assert reply == WhatifReply(
        change="rebalance",
        summary="rebalance: 1 would move so that 1 could begin, at a cost of 160 GPU seconds for "
        "2,320 of waiting; for 1 more nothing would move",
        ended=(
            Ended(
                tenant=TENANT,
                id=ended.id,
                queue="default",
                cluster="c1",
                gpus=2.0,
                lost_gpu_s=160.0,
                why=REBALANCED,
                to="c1",
                for_id=f"{TENANT}/wide",
                nodes=(from_,),
                to_nodes=(to,),
            ),
        ),
        lost_gpu_s=160.0,
        rebalances=(
            Rebalanced(
                tenant=TENANT,
                id="wide",
                queue="default",
                gpus=4.0,
                cluster="c1",
                nodes=(from_,),
                moves=1,
                waited_s=620.0,
                saves_s=580.0,
                gain_gpu_s=2320.0,
                cost_gpu_s=160.0,
            ),
            Rebalanced(
                tenant=TENANT,
                id="later",
                queue="default",
                gpus=3.0,
                waited_s=619.0,
                why_not="it has waited for 619 s only, of 620",
            ),
        ),
    )
    assert snapshot_of(world.resolver.know) == before  # nothing of it came about
    dear = whatif(world, RebalanceRequest(whose="queue", moves=1))
    assert len(dear.ended) == 1
    steps = world.whatif(TENANT, WhatifRequest(rebalance=RebalanceRequest()), world.now_s, Budget())
    with pytest.raises(StopIteration) as refused:
        next(steps)
    assert refused.value.value == Refusal(
        code="invalid",
        field="rebalance",
        value="",
        expected="to be asked by an operator, as it is about all tenants'",
    )
