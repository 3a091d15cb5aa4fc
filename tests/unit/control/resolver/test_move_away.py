"""Stories of who leaves a place because a person says so: holds, evictions, moves and drains."""

from typing import Any

from berthmaster.control.resolver.core.answers.whatif import Budget
from berthmaster.control.resolver.policy import Policy
from berthmaster.control.resolver.replay import replay
from berthmaster.lib.lifecycle.workload import Key
from berthmaster.lib.messages.api import (
    CordonsReply,
    DrainRequest,
    Refusal,
    StrictPodSet,
    SubmitRequest,
    WhatifReply,
    WhatifRequest,
    WhyReply,
)
from berthmaster.lib.messages.control import Cordon, QueueAmounts, QueueSetting
from berthmaster.lib.messages.fleet import Taint
from berthmaster.lib.messages.placement import Target
from berthmaster.lib.messages.workload import (
    Checkpoint,
    Checkpointed,
    Evicted,
    EvictionRequested,
    Held,
    HoldReleased,
    HubObject,
    MoveRequested,
)
from tests.support.builders import alive, job, node, profile
from tests.support.deciding import TENANT, World


def fleet(**clusters: int) -> World:
    """Clusters of one node with so many GPUs each."""
    world = World()
    for name, gpus in clusters.items():
        world.fact(profile(name), alive(name), node(name, name=f"{name}-n", gpus=gpus))
    return world


def start(world: World, name: str, **fields: Any) -> Key:
    return world.start(job(name, **fields))


def head(world: World, name: Key) -> dict[str, Any]:
    work = world.workloads[name]
    return {"tenant": work.tenant, "id": work.id, "after": work.sequence, "at_s": 0.0, "by": "g"}


def here(world: World, name: Key) -> dict[str, Any]:
    work = world.workloads[name]
    return {"cluster": work.cluster, "attempt": work.attempt}


def moves(world: World) -> list[tuple[str, str, str]]:
    """Who is told to go, why and to where, of all that is decided now."""
    orders = [order for plan in world.settle() for order in plan.decision.moves]
    return [(order.id, order.why, order.to) for order in orders]


def gone(world: World, name: Key) -> None:
    reason = world.workloads[name].leaving
    world.append(Evicted(**head(world, name), **here(world, name), reason=reason, blameless=True))


def why(world: World, name: Key) -> str:
    reply = world.why(TENANT, world.workloads[name].id, world.now_s)
    assert isinstance(reply, WhyReply)
    return reply.summary


def cordons(world: World) -> CordonsReply:
    return world.cordons("", world.now_s)


def test_a_held_job_waits_until_it_is_released_and_says_for_whom() -> None:
    world = fleet(c1=1)
    name = world.submit(job("a", gpus=1))
    world.append(Held(**head(world, name), who="operator ada", operator=True, reason="audit"))
    assert (world.settle(), why(world, name)) == ([], "waits: held by operator ada for 0 s: audit")
    world.append(HoldReleased(**head(world, name), who="operator ada"))
    world.settle()
    assert world.placed_on(name) == "c1"


def test_one_that_runs_is_ended_when_it_is_held_and_does_not_come_back() -> None:
    world = fleet(c1=1)
    name = start(world, "a", gpus=1)
    world.append(Held(**head(world, name), who="tenant t"))
    assert moves(world) == [("a", "held", "")]
    assert moves(world) == []  # told once
    gone(world, name)
    assert world.settle() == []
    assert world.workloads[name].evictions == 0


def test_one_that_is_evicted_waits_again_and_may_begin_where_it_was() -> None:
    world = fleet(c1=1)
    name = start(world, "a", gpus=1)
    asked = MoveRequested(**head(world, name), **here(world, name), how="evict", who="tenant t")
    world.append(asked)
    assert moves(world) == [("a", "asked", "")]
    gone(world, name)
    world.settle()
    assert (world.placed_on(name), world.workloads[name].attempt) == ("c1", 2)


def test_a_binding_of_karmadas_goes_by_way_of_its_hub_and_is_moved_like_any_other() -> None:
    world = fleet(c1=1)
    origin = HubObject(namespace="team", name="a-job", uid="u", hub="h", system="karmada")
    name = world.submit(job("a", gpus=1), origin)
    world.settle()
    work = world.workloads[name]
    assert (work.cluster, work.target) == ("c1", Target(via="hub", namespace="team"))
    world.claim(name)
    world.run(name)
    asked = MoveRequested(**head(world, name), **here(world, name), how="evict", who="tenant t")
    world.append(asked)
    assert moves(world) == [("a", "asked", "")]


def test_a_move_ends_nothing_before_there_is_room_and_begins_in_the_room_that_was_kept() -> None:
    world = fleet(c1=4, c2=2)
    name = start(world, "a", gpus=2, clusters=())
    there = world.placed_on(name)
    other = {"c1": "c2", "c2": "c1"}[there]
    blocker = start(world, "b", gpus=4 if other == "c1" else 2, clusters=(other,))
    asked = MoveRequested(
        **head(world, name), **here(world, name), how="move", who="tenant t", to=other
    )
    world.append(asked)
    assert moves(world) == []
    assert f"tenant t wants it in {other}" in why(world, name)
    world.succeed(blocker)
    assert moves(world) == [("a", "asked", other)]
    # While it ends nobody else is given its room, whatever their priority.
    late = world.submit(job("c", gpus=4 if other == "c1" else 2, clusters=(other,), priority=9))
    world.settle()
    assert world.placed_on(late) == ""
    gone(world, name)
    world.settle()
    assert world.placed_on(name) == other
    assert name not in world.resolver.know.reservations


def test_one_that_moves_and_does_not_fit_says_nothing_of_those_who_were_there_before_it() -> None:
    """It has its turn before them, and the commit is full before they have theirs."""
    world = World(Policy(commit_limit=1))
    world.fact(profile("c1"), alive("c1"), node("c1", gpus=1))
    first = world.submit(job("first", gpus=1))
    world.append(Held(**head(world, first), who="ada"))
    name = start(world, "a", gpus=1)
    world.fact(profile("c2"), alive("c2"), node("c2", gpus=1))
    asked = MoveRequested(
        **head(world, name), **here(world, name), how="move", who="tenant t", to="c2"
    )
    world.append(asked)
    assert moves(world) == [("a", "asked", "c2")]
    gone(world, name)
    world.fact(node("c2", gpus=1, taints=(Taint(key="broken"),), counter=2))
    world.fact(profile("c3"), alive("c3"), node("c3", gpus=1))
    world.append(HoldReleased(**head(world, first), who="ada"))
    urgent = world.submit(job("urgent", gpus=1, priority=9))
    world.settle()
    assert (world.placed_on(name), bool(world.placed_on(urgent))) == ("", True)
    assert world.placed_on(first)
    report = replay(world.inputs(), "all")
    assert (report.equal, report.first_difference) == (report.decisions, None)


def drain(world: World, cluster: str, by_s: float | None = None, node: str | None = None) -> None:
    world.control(
        Cordon(
            cluster=cluster,
            node=node,
            cordoned=True,
            drain=True,
            drain_by_s=by_s,
            set_by="ada",
            reason="firmware",
        )
    )


def test_a_drain_moves_what_has_room_elsewhere_and_ends_the_rest_before_its_deadline() -> None:
    world = fleet(c1=2, c2=1)
    blocker = start(world, "x", gpus=1, clusters=("c2",))
    first, second = (start(world, name, gpus=1) for name in "ab")
    world.succeed(blocker)
    world.pass_s(100.0, "c1", "c2")
    drain(world, "c1", by_s=world.now_s + 200.0)
    (order,) = moves(world)
    assert order[1:] == ("drain", "c2")
    left = next(n for n in (first, second) if not world.workloads[n].leaving)
    (view,) = cordons(world).cordons
    assert (view.set_by, view.matches, view.jobs) == ("ada", True, 2)
    told = {one.id: one.why for one in view.still_there}
    assert told[world.workloads[left].id].startswith("it waits for room elsewhere; in 160 s")
    world.pass_s(161.0, "c1", "c2")
    assert moves(world) == [(world.workloads[left].id, "drain", "")]
    assert world.workloads[left].leaving == "c1 is drained: firmware"


def bounded(world: World, *, t4: int | None = None, **fields: Any) -> None:
    """The queue may have so many milli of T4s."""
    amounts = {"gpu/T4": QueueAmounts(capability=t4)} if t4 is not None else {}
    world.control(QueueSetting(queue="default", resources=amounts, **fields))


def test_nobody_is_ended_for_a_place_in_which_its_queue_may_not_have_it() -> None:
    world = World()
    for name, model in (("h", "H100"), ("t", "T4")):
        world.fact(profile(name), alive(name), node(name, name=f"{name}-n", gpus=2, model=model))
    bounded(world, t4=1000)
    name = start(world, "a", gpus=2)
    assert world.placed_on(name) == "h"
    world.pass_s(100.0, "h", "t")
    drain(world, "h")
    assert moves(world) == []
    world.control(Cordon(cluster="h", cordoned=False, set_by="ada", reason=""))
    wish = MoveRequested(**head(world, name), **here(world, name), how="move", who="ada", to="t")
    world.append(wish)
    assert moves(world) == []
    assert "ada wants it in t, which is out: its queue may have no more T4" in why(world, name)
    bounded(world, t4=2000, held=True)
    assert moves(world) == []
    assert "in t, where it might not begin: its queue is held" in why(world, name)
    bounded(world, t4=2000, max_running_jobs=1)  # which it is itself
    assert moves(world) == [("a", "asked", "t")]


def test_room_is_kept_for_nobody_whose_queue_may_not_have_it_any_more() -> None:
    world = World()
    for name, model in (("h", "H100"), ("t", "T4")):
        world.fact(profile(name), alive(name), node(name, name=f"{name}-n", gpus=2, model=model))
    name = start(world, "a", gpus=2)
    there, other = ("h", "t") if world.placed_on(name) == "h" else ("t", "h")
    world.append(
        MoveRequested(**head(world, name), **here(world, name), how="move", who="ada", to=other)
    )
    assert moves(world) == [("a", "asked", other)]
    resource = "gpu/T4" if other == "t" else "gpu/H100"
    amounts = {resource: QueueAmounts(capability=1000)}
    world.control(QueueSetting(queue="default", resources=amounts))
    gone(world, name)
    late = world.submit(job("late", queue="late", gpus=2, clusters=(other,)))
    world.settle()
    # It begins again where it may, and the room that was kept is another's.
    assert (world.placed_on(name), world.placed_on(late)) == (there, other)
    assert not world.resolver.know.reservations
    report = replay(world.inputs(), "all")
    assert (report.first_difference, report.equal) == (None, len(world.decisions)), report


def test_who_is_not_preemptible_stays_unless_the_drain_has_a_deadline() -> None:
    world = fleet(c1=1, c2=1)
    name = start(world, "a", gpus=1, preemptible=False)
    place = world.placed_on(name)
    drain(world, place)
    assert moves(world) == []
    assert why(world, name).endswith("it is not preemptible, and the drain has no deadline")
    drain(world, place, by_s=world.now_s + 41.0)
    assert moves(world) == []
    world.pass_s(2.0, "c1", "c2")
    assert [each[:2] for each in moves(world)] == [("a", "drain")]


def test_a_drain_waits_for_a_checkpoint_that_is_near() -> None:
    world = fleet(c1=1, c2=1)
    name = start(world, "a", gpus=1, checkpoint_every_s=600.0)
    place = world.placed_on(name)
    world.append(
        Checkpointed(
            **head(world, name), **here(world, name), checkpoint=Checkpoint(step=1, uri="s3://a/1")
        )
    )
    world.pass_s(500.0, "c1", "c2")
    drain(world, place)
    assert moves(world) == []
    assert "writes a checkpoint in 105 s" in why(world, name)
    assert world.resolver.wake_at_s() <= world.now_s + 105.0
    world.append(
        Checkpointed(
            **head(world, name), **here(world, name), checkpoint=Checkpoint(step=2, uri="s3://a/2")
        )
    )
    orders = [order for plan in world.settle() for order in plan.decision.moves]
    assert [(order.why, order.lost_gpu_s) for order in orders] == [("drain", 60.0)]
    gone(world, name)
    world.settle()
    assert world.workloads[name].checkpoint == Checkpoint(step=2, uri="s3://a/2")
    assert world.placed_on(name) != place


def test_a_cordon_of_nothing_says_what_may_have_been_meant() -> None:
    world = fleet(c1=1)
    drain(world, "c1", node="c1-m")
    (view,) = cordons(world).cordons
    assert (view.matches, view.nearest, view.jobs) == (False, "c1-n", 0)


def test_all_of_it_is_repeated_from_the_log() -> None:
    world = fleet(c1=2, c2=2)
    names = [start(world, f"j{n}", gpus=1) for n in range(3)]
    drain(world, world.placed_on(names[0]))
    told = moves(world)
    assert told
    world.append(Held(**head(world, names[2]), who="tenant t"))
    world.settle()
    report = replay(world.inputs(), "all")
    assert (report.equal, report.decisions) == (report.decisions, report.decisions)


def test_one_that_is_held_in_a_place_that_is_drained_is_told_once() -> None:
    world = fleet(c1=1, c2=1)
    name = start(world, "a", gpus=1)
    placed = world.submit(job("b", gpus=1))
    world.settle()
    world.append(Held(**head(world, name), who="tenant t"))
    for cluster in ("c1", "c2"):
        drain(world, cluster, by_s=world.now_s + 1.0)
    world.append(Held(**head(world, placed), who="tenant t"))
    (plan,) = world.settle()
    assert [order.id for order in plan.decision.moves] == ["a"]
    assert [each.id for each in plan.decision.withdrawals] == ["b"]


def test_who_is_to_leave_a_place_is_not_told_to_make_room_as_well() -> None:
    """No batch has two events of one workload: it would be refused for ever."""
    world = World()
    world.fact(profile("c1"), alive("c1"), node("c1", "n1", gpus=1), node("c1", "n2", gpus=1))
    world.control(QueueSetting(queue="theirs", guarantee_gpu_milli=1000))
    start(world, "lent", gpus=1, count=2)
    world.submit(job("theirs", gpus=1, queue="theirs"))
    world.control(Cordon(cluster="c1", node="n1", cordoned=True, drain=True, drain_by_s=0.0))
    plan = world.decide()
    assert plan is not None
    assert [type(each) for each in plan.events] == [EvictionRequested]
    assert [order.id for order in plan.decision.moves] == ["lent"]
    assert plan.decision.evictions == ()


def asked(world: World, tenant: str | None = None, **question: Any) -> WhatifReply | Refusal:
    steps = world.whatif(tenant, WhatifRequest(**question), world.now_s, Budget())
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]


def test_what_a_drain_would_do_is_told_and_nothing_is_done() -> None:
    world = fleet(c1=2, c2=1)
    blocker = start(world, "x", gpus=1, clusters=("c2",))
    for name in "ab":
        start(world, name, gpus=1)
    world.succeed(blocker)
    reply = asked(world, drain=DrainRequest(cluster="c1"))
    assert isinstance(reply, WhatifReply)
    assert [(each.to, each.why) for each in reply.ended] == [
        ("c2", "room is kept elsewhere"),
        ("", "it waits for room elsewhere, and the drain has no deadline"),
    ]
    assert (world.settle(), cordons(world).cordons) == ([], ())
    wrong = asked(world, drain=DrainRequest(cluster="c7"))
    assert isinstance(wrong, Refusal)
    assert (wrong.field, wrong.expected) == ("drain.cluster", "one of c1, c2")


def test_who_would_be_ended_for_a_job_is_told_at_its_cost() -> None:
    world = fleet(c1=1)
    world.control(QueueSetting(queue="default"))
    low = start(world, "low", gpus=1)
    world.pass_s(40.0, "c1")
    high = SubmitRequest(id="high", priority=1, pod_sets=(StrictPodSet(gpus=1),))
    reply = asked(world, TENANT, preempt_for=high)
    assert isinstance(reply, WhatifReply)
    assert [(each.id, each.lost_gpu_s, each.for_id) for each in reply.ended] == [
        ("low", 100.0, f"{TENANT}/high")
    ]
    assert world.workloads[low].leaving == ""
    unknown = asked(world, TENANT, preempt="nobody")
    assert isinstance(unknown, Refusal)
    assert unknown.field == "preempt"
