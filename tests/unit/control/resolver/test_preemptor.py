"""Stories of room that is made: who is ended for whom, at what cost, and what never is."""

from typing import Any

import msgspec
import pytest

from berthmaster.control.resolver.core.deciding.preemptor import EQUAL, EQUALS_EVERY_S
from berthmaster.control.resolver.core.known.stored import Snapshot, restore, snapshot_of
from berthmaster.control.resolver.core.resolver import Resolver
from berthmaster.control.resolver.policy import Policy
from berthmaster.control.resolver.replay import replay
from berthmaster.lib.lifecycle.workload import Key
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.placement import EvictionOrder
from berthmaster.lib.messages.workload import CancelRequested, Evicted
from tests.support.builders import alive, job, node, profile
from tests.support.deciding import TENANT, World


def fleet(*sizes: int, policy: Policy | None = None) -> World:
    """One cluster with nodes of so many GPUs."""
    world = World(policy)
    world.fact(profile(), alive(), *(node(name=f"n{at}", gpus=n) for at, n in enumerate(sizes)))
    queue(world, "default")
    return world


def queue(world: World, name: str, **fields: Any) -> None:
    world.control(QueueSetting(queue=name, **fields))


def wait(world: World, name: str, queue: str = "default", **fields: Any) -> Key:
    return world.submit(job(name, queue=queue, **fields))


def start(world: World, name: str, queue: str = "default", **fields: Any) -> Key:
    return world.start(job(name, queue=queue, **fields))


def ended(world: World) -> list[tuple[str, str, str]]:
    """Who is told to make room, for whom and by what right, of all that is decided now."""
    orders = [order for plan in world.settle() for order in plan.decision.evictions]
    return [(order.id, order.for_id, order.right) for order in orders]


def make_room(world: World, name: Key) -> None:
    world.now_s += 3.0
    world.fact(alive(counter=int(world.now_s)))
    head = world._attempt(name)
    reason = world.workloads[name].leaving
    world.append(Evicted(**head, reason=reason, blameless=True))  # type: ignore[arg-type]


def test_what_is_guaranteed_comes_back_from_those_who_borrowed_it() -> None:
    world = fleet(4)
    queue(world, "a", guarantee_gpu_milli=2000)
    queue(world, "b")
    lent = [start(world, f"b{n}", "b", gpus=1) for n in range(4)]
    world.now_s += 10.0
    world.fact(alive(counter=2))
    mine = wait(world, "a0", "a", gpus=1)
    # All cost the same but for when they began: the youngest has done least.
    assert ended(world) == [("b3", "a0", "guarantee")]
    assert (
        world.workloads[lent[3]].leaving == "what its queue borrowed is another queue's guarantee"
    )
    # Nothing more happens until that one has ended: the room is not free yet, and is owed.
    other = wait(world, "c0", "c", gpus=1, priority=100)
    assert ended(world) == []
    assert not world.placed_on(mine)
    make_room(world, lent[3])
    world.settle()
    assert (world.placed_on(mine), world.placed_on(lent[3]), world.placed_on(other)) == (
        "c1",
        "",
        "",
    )
    assert (world.workloads[lent[3]].moves, world.workloads[lent[3]].evictions) == (1, 0)


def test_nobody_is_taken_below_a_guarantee_of_its_own() -> None:
    world = fleet(4)
    queue(world, "a", guarantee_gpu_milli=4000)  # more is promised than there is
    queue(world, "b", guarantee_gpu_milli=3000)
    for n in range(4):
        start(world, f"b{n}", "b", gpus=1)
    first, second = wait(world, "a0", "a", gpus=1), wait(world, "a1", "a", gpus=1)
    assert len(ended(world)) == 1
    gone = next(name for name, each in world.workloads.items() if each.leaving)
    make_room(world, gone)
    assert ended(world) == []
    assert (world.placed_on(first), world.placed_on(second)) == ("c1", "")


def test_a_deserved_share_comes_back_from_queues_above_theirs_and_of_no_higher_priority() -> None:
    world = fleet(4)
    queue(world, "a", deserved_gpu_milli=2000)
    queue(world, "b", deserved_gpu_milli=1000)
    queue(world, "vip", priority=5)
    start(world, "v0", "vip", gpus=2)
    start(world, "b0", "b", gpus=1)
    start(world, "b1", "b", gpus=1)
    wait(world, "a0", "a", gpus=1)
    wait(world, "a1", "a", gpus=1)
    assert [right for _, _, right in ended(world)] == ["deserved"]  # b keeps one, vip keeps all
    assert not world.workloads[Key(f"{TENANT}/v0")].leaving


@pytest.mark.parametrize(
    ("preempts", "said"),
    [
        ("never", []),
        ("queue", [("low", "high", "priority")]),
        ("all", [("other", "high", "priority")]),  # cheaper, as it has just begun
    ],
)
def test_priority_moves_whom_the_queue_says(preempts: str, said: list[Any]) -> None:
    world = fleet(2)
    queue(world, "q", preempts=preempts)
    start(world, "low", "q", gpus=1)
    world.now_s += 5.0
    world.fact(alive(counter=2))
    start(world, "other", "p", gpus=1)
    world.now_s += 1.0
    wait(world, "high", "q", gpus=1, priority=10)
    assert ended(world) == said


def test_where_nobody_has_set_a_queue_priorities_move_nobody() -> None:
    world = fleet(1)
    start(world, "low", "unset", gpus=1)
    wait(world, "high", "unset", gpus=1, priority=10)
    assert ended(world) == []


def test_equal_priorities_move_nobody() -> None:
    world = fleet(1)
    start(world, "first", gpus=1, priority=10)
    wait(world, "second", gpus=1, priority=10)
    assert ended(world) == []


def test_who_may_not_be_ended_is_not() -> None:
    world = fleet(1, 1, 1)
    start(world, "never", gpus=1, preemptible=False)
    cancelled = start(world, "going", gpus=1)
    unclaimed = wait(world, "unclaimed", gpus=1)
    world.settle()
    assert world.placed_on(unclaimed)
    world.append(CancelRequested(**world._head(cancelled), cluster="c1"))  # type: ignore[arg-type]
    wait(world, "high", gpus=1, priority=10)
    assert ended(world) == []


def test_the_cheapest_set_on_one_node_is_ended_and_nobody_else() -> None:
    """Two nodes of four: on one many that began lately, on the other one that has run for long."""
    world = fleet(4, 4)
    start(world, "long", gpus=4)
    world.now_s += 3600.0
    world.fact(alive(counter=2))
    for n in range(4):
        start(world, f"short{n}", gpus=1)
    world.now_s += 60.0
    world.fact(alive(counter=3))
    wait(world, "pair", gpus=2, priority=1)
    assert sorted(name for name, _, _ in ended(world)) == ["short2", "short3"]


def test_a_checkpoint_makes_a_long_run_cheap_and_each_move_makes_it_dearer() -> None:
    world = fleet(1, 1)
    kept = start(world, "kept", gpus=1, checkpoint_every_s=600.0)
    world.now_s += 6010.0
    world.fact(alive(counter=2))
    start(world, "new", gpus=1)
    world.now_s += 90.0
    world.fact(alive(counter=3))
    wait(world, "high", gpus=1, priority=1)
    plans = world.settle()
    # kept has lost 100 s since its last checkpoint and 60 s to start: 160; new 90 + 60 = 150.
    assert [order for plan in plans for order in plan.decision.evictions] == [
        EvictionOrder(
            tenant=TENANT,
            id="new",
            attempt=1,
            cluster="c1",
            lost_gpu_s=150.0,
            for_tenant=TENANT,
            for_id="high",
            right="priority",
        )
    ]
    assert not world.workloads[kept].leaving


def test_a_gang_is_one_whether_it_makes_room_or_gets_it() -> None:
    world = fleet(2, 2, 2)
    start(world, "gang", gpus=2, count=2)
    start(world, "one", gpus=2)
    high = wait(world, "high", gpus=2, count=2, priority=1)
    orders = ended(world)
    assert sorted(name for name, _, _ in orders) in (["gang"], ["gang", "one"])
    assert len(orders) == 1  # the gang's two nodes are enough
    make_room(world, Key(f"{TENANT}/gang"))
    world.settle()
    assert world.placed_on(high)


def test_it_does_not_help_so_nobody_is_ended() -> None:
    world = fleet(2, 2)
    queue(world, "a", guarantee_gpu_milli=4000)
    start(world, "safe", "b", gpus=1, preemptible=False)
    start(world, "b1", "b", gpus=1)
    start(world, "safe2", "b", gpus=1, preemptible=False)
    start(world, "b2", "b", gpus=1)
    wait(world, "wide", "a", gpus=2)  # two of one node, and each node keeps one that stays
    assert ended(world) == []


def test_nobody_is_moved_back_and_forth() -> None:
    """Two queues whose guarantees fill the fleet, both with more to do than they may."""
    world = fleet(4)
    queue(world, "a", guarantee_gpu_milli=2000)
    queue(world, "b", guarantee_gpu_milli=2000)
    for n in range(4):
        start(world, f"a{n}", "a", gpus=1)
    for n in range(4):
        wait(world, f"b{n}", "b", gpus=1)
    moved = 0
    for _ in range(20):
        world.settle()
        for name, each in list(world.workloads.items()):
            if each.leaving and each.live:
                moved += 1
                make_room(world, name)
        world.settle()
        for name, each in list(world.workloads.items()):
            if each.state == "placed":
                world.claim(name)
                world.run(name)
    assert moved == 2
    running = sorted(each.id[0] for each in world.workloads.values() if each.live)
    assert running == ["a", "a", "b", "b"]


def test_beyond_the_budget_nobody_is_ended_until_an_hour_has_passed() -> None:
    world = fleet(3, policy=Policy(evictions_per_hour=1))
    for n in range(3):
        start(world, f"low{n}", gpus=1)
    first = wait(world, "high0", gpus=1, priority=1)
    assert len(ended(world)) == 1
    make_room(world, next(name for name, each in world.workloads.items() if each.leaving))
    world.settle()
    world.claim(first)
    wait(world, "high1", gpus=1, priority=1)
    assert ended(world) == []
    world.now_s += 3601.0
    world.fact(alive(counter=9000))
    assert len(ended(world)) == 1


def test_a_queue_has_a_budget_of_its_own() -> None:
    world = fleet(2)
    queue(world, "b", max_evictions_per_hour=0)
    queue(world, "a", guarantee_gpu_milli=1000)
    start(world, "b0", "b", gpus=2)
    wait(world, "a0", "a", gpus=1)
    assert ended(world) == []


def test_no_set_goes_beyond_a_budget() -> None:
    """Two would have to go, and one may."""
    world = fleet(2)
    queue(world, "b", max_evictions_per_hour=1)
    queue(world, "a", guarantee_gpu_milli=2000)
    for n in range(2):
        start(world, f"b{n}", "b", gpus=1)
    wait(world, "a0", "a", gpus=2)
    assert ended(world) == []
    # Where one is enough, it goes, and then nobody.
    wait(world, "a1", "a", gpus=1)
    assert [order[1:] for order in ended(world)] == [("a1", "guarantee")]
    world = fleet(2, policy=Policy(evictions_per_hour=1))
    queue(world, "a", guarantee_gpu_milli=2000)
    for n in range(2):
        start(world, f"b{n}", gpus=1)
    wait(world, "a0", "a", gpus=2)
    assert ended(world) == []


def test_room_is_made_in_a_commit_that_places_others_too() -> None:
    world = fleet(1, 1)
    queue(world, "a", guarantee_gpu_milli=3000)
    start(world, "b0", gpus=1)
    for n in range(2):
        wait(world, f"a{n}", "a", gpus=1)
    plan = world.decide()
    assert plan is not None
    assert [choice.id for choice in plan.decision.placements] == ["a0"]
    assert [(order.id, order.for_id) for order in plan.decision.evictions] == [("b0", "a1")]


def test_what_was_ended_waits_with_its_age_and_its_room_is_owed() -> None:
    world = fleet(1)
    queue(world, "a", guarantee_gpu_milli=1000)
    queue(world, "b")
    low = start(world, "old", "b", gpus=1, priority=50)
    mine = wait(world, "mine", "a", gpus=1)
    assert len(ended(world)) == 1
    make_room(world, low)
    world.settle()
    assert (world.placed_on(mine), world.placed_on(low)) == ("c1", "")
    world.claim(mine)
    world.succeed(mine)
    younger = wait(world, "younger", "b", gpus=1, priority=50)
    world.settle()
    assert (world.placed_on(low), world.placed_on(younger)) == ("c1", "")


def test_a_beneficiary_that_is_cancelled_owes_nobody_and_holds_nothing() -> None:
    world = fleet(1)
    low = start(world, "low", gpus=1)
    mine = wait(world, "high", gpus=1, priority=1)
    assert len(ended(world)) == 1
    world.append(world.cancelled(mine))
    make_room(world, low)
    world.settle()
    assert world.placed_on(low) == "c1"  # it starts again


def test_who_waits_and_who_goes_are_told_why() -> None:
    world = fleet(1)
    start(world, "low", gpus=1)
    wait(world, "high", gpus=1, priority=1)
    ended(world)
    waits = world.why(TENANT, "high", world.now_s)
    goes = world.why(TENANT, "low", world.now_s)
    assert "room is being made for it on c1: 1 job is ending" in waits.summary  # type: ignore[union-attr]
    assert "told to go: a job of higher priority needs its room" in goes.summary  # type: ignore[union-attr]


def test_it_is_repeated_bit_for_bit_from_the_log_and_from_a_snapshot() -> None:
    world = fleet(4)
    queue(world, "a", guarantee_gpu_milli=2000)
    queue(world, "b")
    for n in range(4):
        start(world, f"b{n}", "b", gpus=1)
    wait(world, "a0", "a", gpus=2)
    assert len(ended(world)) == 2
    for name, each in list(world.workloads.items()):
        if each.leaving:
            make_room(world, name)
    world.settle()
    report = replay(world.inputs(), "all")
    assert (report.first_difference, report.equal) == (None, len(world.decisions)), report

    other = Resolver("all", "resolver/other", world.policy)
    raw = msgspec.msgpack.encode(snapshot_of(world.resolver.know))
    restore(other.know, msgspec.msgpack.decode(raw, type=Snapshot))
    assert other.know.recent_evictions.state() == world.resolver.know.recent_evictions.state()
    assert len(other.know.recent_evictions.state()) == 2


def test_what_is_laid_out_ahead_decides_nothing() -> None:
    """Before the first decision, and again after a node came: the same is ended for whom."""
    told = []
    for ahead in (False, True):
        world = fleet(1, 1)
        queue(world, "a", guarantee_gpu_milli=3000)
        for n in range(2):
            start(world, f"b{n}", "b", gpus=1)
        world.fact(node(name="n00", gpus=1))
        if ahead:
            world.resolver.prepare()
            world.resolver.prepare()  # nothing is left to do
        assert world.resolver.know.fleet.arranged is ahead
        for n in range(2):
            wait(world, f"a{n}", "a", gpus=1)
        told.append([plan.decision for plan in world.settle()])
    assert told[0] == told[1]
    assert [order.id for order in told[0][0].evictions] == ["b0"]


# Equals


def of_equals(policy: Policy | None = None, *sizes: int, **fields: Any) -> World:
    """One whose queue has its jobs stop each other."""
    world = fleet(*sizes or (8,), policy=policy)
    queue(world, "default", preempts_equals=True, **fields)
    return world


LONG: dict[str, Any] = {"gpus": 8, "expected_duration_s": 36_000.0, "checkpoint_every_s": 600.0}
SHORT: dict[str, Any] = {"gpus": 1, "expected_duration_s": 600.0, "checkpoint_every_s": 600.0}


def test_one_with_clearly_less_left_stops_an_equal_which_goes_on_from_its_checkpoint() -> None:
    world = of_equals(Policy(order="due"))
    long = start(world, "long", **LONG)
    world.pass_s(1500.0)
    short = wait(world, "short", **SHORT)
    [plan] = world.settle()
    # 300 s since the last checkpoint and 60 to start, of 8 GPUs.
    assert plan.decision.evictions == (
        EvictionOrder(
            tenant=TENANT,
            id="long",
            attempt=1,
            cluster="c1",
            lost_gpu_s=8 * 360.0,
            for_tenant=TENANT,
            for_id="short",
            right="priority",
            left_s=34_500.0,
            for_left_s=600.0,
        ),
    )
    assert world.workloads[long].leaving == EQUAL
    make_room(world, long)
    world.settle()
    world.claim(short)
    world.run(short)
    assert (world.placed_on(short), world.placed_on(long)) == ("c1", "")
    # It waits, has 34,800 s to do yet, and does not stop the one that it was stopped for.
    world.pass_s(30.0)
    assert ended(world) == []
    order = world.resolver.know.derived.due_order
    assert order.known_left_s(world.workloads[long], world.now_s) == 34_800.0
    world.pass_s(570.0)
    world.succeed(short)
    world.settle()
    world.claim(long)
    world.run(long)
    assert order.ends_s(world.workloads[long], world.now_s) == world.now_s + 34_800.0
    # What it took is learned in whole: what was kept of the first attempt, and the second.
    world.pass_s(34_800.0)
    world.succeed(long)
    learned = world.resolver.know.expectations.durations.kept().kinds
    [endings] = [each.endings for each in learned if each.kind == ("size", "8000")]
    assert endings == [(1000.0, 36_000.0)]
    report = replay(world.inputs(), "all")
    assert (report.first_difference, report.equal) == (None, len(world.decisions)), report


@pytest.mark.parametrize(
    ("set_so", "running", "waiting"),
    [
        ({"preempts_equals": False}, {}, {}),
        ({}, {"preemptible": False}, {}),
        ({}, {"checkpoint_every_s": None, "expected_duration_s": 2000.0}, {}),  # loses too much
        ({}, {}, {"expected_duration_s": 30_000.0}),  # not clearly less
        ({}, {"expected_duration_s": None}, {}),  # nobody knows, and nothing is learned
        ({}, {}, {"expected_duration_s": None}),
        ({}, {"priority": 1}, {}),
        ({"max_evictions_per_hour": 0}, {}, {}),
    ],
)
def test_equals_stop_nobody_where_that_would_not_do(
    set_so: dict[str, Any], running: dict[str, Any], waiting: dict[str, Any]
) -> None:
    world = of_equals()
    queue(world, "default", **{"preempts_equals": True} | set_so)
    start(world, "long", **LONG | running)
    world.pass_s(1500.0)
    wait(world, "short", **SHORT | waiting)
    assert ended(world) == []


def test_equals_of_another_queue_are_left_alone_and_lower_priority_goes_first() -> None:
    world = of_equals(None, 8, 8)
    queue(world, "other")
    start(world, "theirs", "other", **LONG)
    low = start(world, "low", **LONG | {"priority": -1, "checkpoint_every_s": None})
    world.pass_s(5000.0)
    wait(world, "short", **SHORT)
    assert ended(world) == [("low", "short", "priority")]
    make_room(world, low)
    world.settle()
    queue(world, "default", preempts_equals=True, preempts="never")
    wait(world, "wide", **LONG | {"expected_duration_s": 60.0})
    assert ended(world) == []


def test_what_was_learned_of_equals_counts_where_they_go_by_due_times() -> None:
    world = of_equals(Policy(order="due"))
    kind: dict[str, Any] = {"checkpoint_every_s": 60.0}
    for at in range(4):
        for name, gpus, lasts_s in (("wide", 8, 9000.0), ("narrow", 1, 100.0)):
            one = start(world, f"{name}{at}", gpus=gpus, **kind)
            world.pass_s(lasts_s)
            world.succeed(one)
    start(world, "wide", gpus=8, **kind)
    world.pass_s(60.0)
    wait(world, "narrow", gpus=1, **kind)
    assert ended(world) == [("wide", "narrow", "priority")]
    report = replay(world.inputs(), "all")
    assert (report.first_difference, report.equal) == (None, len(world.decisions)), report


def short_and_long(world: World, narrow: dict[str, Any]) -> None:
    """It is learned that narrow ones end soon, and of wide ones some soon and some late."""
    for at in range(6):
        for name, gpus, lasts_s in (("wide", 8, 90.0 if at % 3 else 9000.0), ("narrow", 1, 600.0)):
            one = start(world, f"{name}-{at}", gpus=gpus, **narrow)
            world.pass_s(lasts_s)
            world.succeed(one)


def test_who_has_run_for_longer_than_most_is_stopped_when_those_who_wait_look_again() -> None:
    world = of_equals(Policy(order="due"))
    kind: dict[str, Any] = {"checkpoint_every_s": 60.0}
    short_and_long(world, kind)
    start(world, "wide", gpus=8, **kind)
    world.pass_s(5.0)
    wait(world, "narrow", gpus=1, **kind)
    assert ended(world) == []  # most wide ones end within 90 s
    core = world.resolver
    assert core.wake_at_s() == world.now_s + EQUALS_EVERY_S
    world.pass_s(1200.0)
    assert ended(world) == [("wide", "narrow", "priority")]
    [order] = world.decisions[-1][1].evictions
    assert order.left_s is not None
    assert order.left_s > 2000  # though a new one needs less than 200 s for an ending
    report = replay(world.inputs(), "all")
    assert (report.first_difference, report.equal) == (None, len(world.decisions)), report
    # Without the decision that told what this went by, it cannot be repeated.
    told = [d.number for _, d in world.decisions if d.lives is not None]
    assert 1 < len(told) < len(world.decisions)
    assert world.decisions[-1][1].lives_by == told[-1]
    inputs = world.inputs()
    decisions = [
        (at, msgspec.structs.replace(d, lives=None, lives_by=0) if d.number == told[-1] else d)
        for at, d in inputs.decisions
    ]
    after = replay(inputs._replace(decisions=decisions), "all", last=1)
    assert (after.not_repeatable, after.why_not) == (
        1,
        "how long jobs went on was told too long ago",
    )
    # Who starts from what was kept, and has heard no ending, decides the same.
    kept = snapshot_of(core.know)
    again = Resolver("all", "again", core.policy).know
    restore(again, msgspec.json.decode(msgspec.json.encode(kept), type=Snapshot))
    assert (again.told_lives, again.expectations.lives.tabulated()) == (
        core.know.told_lives,
        core.know.expectations.lives.tabulated(),
    )


def test_equals_wait_in_the_order_in_which_they_would_stop_each_other() -> None:
    """Who came first and is largest goes last, whatever the dial of the due times is at."""
    world = of_equals(Policy(order="due", short_first=0.0))
    first = start(world, "first", **LONG | {"preemptible": False})
    sizes = {"large": 36_000.0, "middle": 3600.0, "small": 600.0}
    for name, lasts_s in sizes.items():
        wait(world, name, **LONG | {"expected_duration_s": lasts_s})
        world.pass_s(9000.0)
    world.settle()
    lines = world.resolver.know.derived.lines
    order = {name: lines.position(Key(f"{TENANT}/{name}")) for name in sizes}
    assert order == {"small": 1, "middle": 2, "large": 3}
    queue(world, "default", preempts_equals=False)
    world.settle()
    order = {name: lines.position(Key(f"{TENANT}/{name}")) for name in sizes}
    assert order["large"] == 1  # it is due by now
    world.succeed(first)
    report = replay(world.inputs(), "all")
    assert (report.first_difference, report.equal) == (None, len(world.decisions)), report


def test_of_equals_those_are_stopped_that_would_end_last() -> None:
    """One of the two loses less work, the other has more to do yet."""
    world = of_equals(None, 8, 8)
    start(world, "sooner", **LONG | {"checkpoint_every_s": 60.0})
    start(world, "later", **LONG | {"expected_duration_s": 90_000.0})
    world.pass_s(900.0)
    wait(world, "short", **SHORT)
    assert ended(world) == [("later", "short", "priority")]
