"""Stories of queues with parents: whose turn it is, whose room comes back, and what binds."""

from typing import Any

import msgspec

from berthmaster.control.resolver.core.answers.explain import why
from berthmaster.control.resolver.core.known.stored import restore, snapshot_of
from berthmaster.control.resolver.replay import replay
from berthmaster.lib.lifecycle.workload import Key
from berthmaster.lib.messages.control import QueueSetting
from tests.support.builders import alive, job, node, profile
from tests.support.deciding import TENANT, World
from tests.unit.control.resolver.test_preemptor import ended, make_room, start


def fleet(gpus: int, **queues: dict[str, Any]) -> World:
    """One node of so many GPUs, and these queues."""
    world = World()
    world.fact(profile(), alive(), node(gpus=gpus))
    for name, fields in queues.items():
        world.control(QueueSetting(queue=name, **fields))
    return world


def placed_in_order(world: World, names: list[str]) -> list[str]:
    """Who of these, submitted in this order, gets room."""
    for name in names:
        world.submit(job(name, queue=name.rstrip("0123456789"), gpus=1))
    plans = world.settle()
    return [choice.id for plan in plans for choice in plan.decision.placements]


def test_the_turn_goes_to_a_top_queue_then_to_its_children_by_their_shares() -> None:
    """Two parents of equal weight, one with three children: the fleet is halved between the
    parents, and the children of the first share its half by their weights."""
    world = fleet(
        8,
        left={},
        right={},
        a={"parent": "left", "weight": 2.0},
        b={"parent": "left"},
        c={"parent": "left"},
        d={"parent": "right"},
    )
    names = [f"{queue}{n}" for queue in "abcd" for n in range(8)]
    got = placed_in_order(world, names)
    assert {queue: sum(name[0] == queue for name in got) for queue in "abcd"} == {
        "a": 2,
        "b": 1,
        "c": 1,
        "d": 4,
    }


def test_priority_counts_among_siblings_only() -> None:
    world = fleet(
        4,
        left={},
        right={"priority": 1},
        a={"parent": "left", "priority": 100},
        b={"parent": "right"},
        c={"parent": "right", "priority": 1},
    )
    got = placed_in_order(world, ["a0", "a1", "b0", "b1", "c0", "c1", "c2"])
    assert got == ["c0", "c1", "c2", "b0"]


def test_room_comes_back_to_a_parent_and_no_sibling_is_taken_below_its_own() -> None:
    world = fleet(
        6,
        left={"guarantee_gpu_milli": 4000},
        right={"guarantee_gpu_milli": 2000},
        a={"parent": "left", "guarantee_gpu_milli": 1000},
        b={"parent": "left"},
        c={"parent": "right", "guarantee_gpu_milli": 1000},
        d={"parent": "right"},
    )
    for name in ("c0", "d0", "d1", "d2", "d3", "d4"):
        start(world, name, name[0], gpus=1)
        world.now_s += 1.0
    moved = []
    for number in range(6):
        world.submit(job(f"b{number}", queue="b", gpus=1))
        moved += ended(world)
        for name, each in list(world.workloads.items()):
            if each.leaving and each.live:
                make_room(world, name)
    # left has back what it is guaranteed, although b is not; right keeps 2, and of them c its own.
    assert [right for _, _, right in moved] == ["guarantee"] * 4
    assert {each[0][0] for each in moved} == {"d"}
    for number in range(4):
        world.claim(Key(f"{TENANT}/b{number}"))
    # Then a comes for what it is guaranteed: from its sibling, as right has no more than its own.
    world.submit(job("a0", queue="a", gpus=1))
    assert [(end[0], why) for end, _, why in ended(world)] == [("b", "guarantee")]


def test_a_childs_guarantee_is_had_beside_everybody_however_much_its_siblings_borrow() -> None:
    world = fleet(
        4, left={}, a={"parent": "left", "guarantee_gpu_milli": 1000}, b={"parent": "left"}, c={}
    )
    borrowers = [start(world, name, "b", gpus=1) for name in ("b0", "b1", "b2")]
    start(world, "c0", "c", gpus=1)
    world.submit(job("a0", queue="a", gpus=1))
    said = ended(world)
    assert [(who, right) for _, who, right in said] == [("a0", "guarantee")]
    assert said[0][0] == "c0"  # all cost the same: the youngest
    assert all(world.workloads[name].live for name in borrowers)


def test_why_names_the_queue_whose_limit_binds_and_how_those_above_stand() -> None:
    world = fleet(
        8,
        top={"capability_gpu_milli": 2000},
        leaf={"parent": "top", "guarantee_gpu_milli": 1000, "capability_gpu_milli": 8000},
        beside={"parent": "top"},
    )
    start(world, "x", "beside", gpus=1)
    start(world, "y", "leaf", gpus=1)
    world.submit(job("z", queue="leaf", gpus=1))
    assert world.settle() == []
    reply = why(world.resolver.know, world.policy, world.now_s, TENANT, "z", {})
    assert reply.summary.startswith(  # type: ignore[union-attr]
        "waits: the queue top, above its own, is at its capability of 2 GPUs"
    )
    account = reply.account  # type: ignore[union-attr]
    assert account is not None
    assert (account.used_gpu_milli, account.running) == (1000, 1)
    assert [(p.queue, p.used_gpu_milli, p.running) for p in account.parents] == [("top", 2000, 2)]


def test_settings_that_make_no_tree_stop_nobody() -> None:
    world = fleet(4, a={"parent": "b"}, b={"parent": "a"}, c={"parent": "nobody"})
    assert placed_in_order(world, ["a0", "b0", "c0"]) == ["a0", "b0", "c0"]
    # A queue with jobs becomes a parent: those that it has go on, and wait beside its children.
    world.submit(job("c1", queue="c", gpus=9))
    world.submit(job("c2", queue="c", gpus=1))
    world.control(QueueSetting(queue="d", parent="c", guarantee_gpu_milli=1000))
    assert placed_in_order(world, ["d0"]) == ["d0"]  # it is guaranteed that
    assert world.placed_on(Key(f"{TENANT}/c0"))
    world.claim(Key(f"{TENANT}/d0"))
    world.succeed(Key(f"{TENANT}/d0"))
    assert [choice.id for plan in world.settle() for choice in plan.decision.placements] == ["c2"]


def test_decisions_below_parents_are_repeated_also_from_a_snapshot() -> None:
    settings: dict[str, Any] = {
        "left": {"guarantee_gpu_milli": 2000},
        "a": {"parent": "left", "guarantee_gpu_milli": 1000},
        "b": {"parent": "left", "weight": 3.0},
    }
    world = fleet(4, **settings)
    for name in ("b0", "b1", "b2", "c0"):
        start(world, name, name[0], gpus=1)
    other = World().resolver
    restore(other.know, snapshot_of(world.resolver.know))
    for sequence, at_s, _, fact in world.facts:
        other.on_fact(fact, sequence, at_s)
    for number, control in world.controls:
        other.on_control(control, number)
    event = world.submit(job("a0", queue="a", gpus=1))
    other.on_event(world.events[-1][2], *world.events[-1][:2])
    again = other.decide(world.now_s)
    plans = world.settle()
    assert [order.for_id for plan in plans for order in plan.decision.evictions] == ["a0"]
    assert again is not None
    assert again.decision == msgspec.structs.replace(
        plans[0].decision, saw=again.decision.saw, decider=again.decision.decider
    )
    assert not world.placed_on(event)
    report = replay(world.inputs(), "all")
    assert (report.decisions, report.different) == (len(world.decisions), 0)
