"""Stories of idle jobs: who loses GPUs for whom, what follows, and what never is decided."""

from typing import Any

import msgspec

from berthmaster.control.resolver.policy import Policy
from berthmaster.control.resolver.replay import replay
from berthmaster.lib.engine.queueing.idle import VALID_S
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Key
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.placement import EvictionOrder, ResizeOrder
from berthmaster.lib.messages.workload import Evicted, IdleChanged
from tests.support.builders import alive, job, node, profile
from tests.support.deciding import World

IDLE: dict[str, Any] = {"idle_after_s": 7200.0, "idle_below_percent": 5.0}
WORDS = "its GPUs were idle for as long as its queue allows, and a job waits for them"


def fleet(then: str, *, policy: Policy | None = None, **fields: Any) -> World:
    """One cluster of 4 GPUs; queue research says what idle jobs do, queue product says nothing."""
    world = World(policy)
    world.fact(profile(), alive(), node(name="n1", gpus=4))
    world.control(QueueSetting(queue="research", **(IDLE | {"idle_then": then} | fields)))
    world.control(QueueSetting(queue="product", preempts="never"))
    return world


def idle(world: World, name: Key, *, for_s: float = 7200.0, percent: float = 1.0) -> None:
    """The gateway says so."""
    head = world._attempt(name)
    since_s = world.now_s - for_s
    world.append(
        IdleChanged(**head, idle=True, since_s=since_s, utilization_percent=percent)  # type: ignore[arg-type]
    )


def orders(world: World) -> list[tuple[str, str, str]]:
    """Who is evicted or shrunk, for whom and by which right, of all that is decided now."""
    decisions = [plan.decision for plan in world.settle()]
    found: list[EvictionOrder | ResizeOrder] = []
    for each in decisions:
        found += [*each.evictions, *each.resizes]
    return [(o.id, o.for_id, o.right) for o in found]


def evict(world: World, name: Key) -> None:
    world.pass_s(3.0)
    head = world._attempt(name)
    reason = world.workloads[name].leaving
    world.append(Evicted(**head, reason=reason, blameless=True))  # type: ignore[arg-type]


def started(world: World, name: str, **fields: Any) -> Key:
    return world.start(job(name, queue="research", gpus=2, **fields))


def test_idle_job_is_held_and_the_pending_job_gets_its_gpus() -> None:
    world = fleet("hold", guarantee_gpu_milli=4000)  # the guarantee keeps nobody idle
    a, b = started(world, "a"), started(world, "b")
    idle(world, a)
    assert orders(world) == []  # nobody waits
    beneficiary = world.submit(job("c", queue="product", gpus=2))
    assert orders(world) == [("a", "c", "idle")]
    assert (world.workloads[a].leaving, world.workloads[a].after_eviction) == (WORDS, "hold")
    evict(world, a)
    world.settle()
    held = world.workloads[a]
    assert (held.state, held.hold is not None and held.hold.who) == (State.QUEUED, "queue research")
    assert world.workloads[beneficiary].state is State.PLACED
    assert world.workloads[b].state is State.RUNNING
    assert replay(world.inputs(), "all").first_difference is None


def test_idle_job_ends_where_its_queue_says_so() -> None:
    world = fleet("end")
    a, _ = started(world, "a"), started(world, "b")
    idle(world, a)
    world.submit(job("c", queue="product", gpus=2))
    assert orders(world) == [("a", "c", "idle")]
    evict(world, a)
    (ending,) = world.resolver.endings(world.now_s)
    assert (type(ending.event).__name__, ending.event.reason) == ("Cancelled", WORDS)  # type: ignore[union-attr]


def test_idle_elastic_job_shrinks_to_its_least_and_does_not_grow() -> None:
    world = fleet("shrink")
    a = world.start(job("a", queue="research", gpus=1, count=4, min_count=1, max_count=4))
    idle(world, a)
    world.submit(job("c", queue="product", gpus=2))
    assert orders(world) == [("a", "c", "idle")]
    world.pass_s(1.0)
    world.resized(a)
    world.settle()
    assert len(world.workloads[a].pods) == 2
    world.pass_s(600.0)
    assert orders(world) == []


def test_nothing_is_taken_where_the_verdict_or_the_queue_does_not_allow_it() -> None:
    def taken(world: World, request: dict[str, Any], verdict: dict[str, Any]) -> list[Any]:
        a, _ = started(world, "a", **request), started(world, "b")
        idle(world, a, **verdict)
        world.submit(job("c", queue="product", gpus=2))
        return orders(world)

    assert taken(fleet("hold"), {}, {}) == [("a", "c", "idle")]
    assert taken(fleet("report"), {}, {}) == []
    assert taken(fleet("shrink"), {}, {}) == []  # it cannot shrink
    assert taken(fleet("hold"), {"preemptible": False}, {}) == []
    # The queue asks for more than what was measured, since it was set anew.
    assert taken(fleet("hold"), {}, {"for_s": 7100.0}) == []
    assert taken(fleet("hold"), {}, {"percent": 5.0}) == []
    # Budgets of preemption hold.
    assert taken(fleet("hold", policy=Policy(evictions_per_hour=0)), {}, {}) == []
    assert taken(fleet("hold", max_evictions_per_hour=0), {}, {}) == []


def test_old_verdict_counts_for_nothing() -> None:
    world = fleet("hold")
    a, _ = started(world, "a"), started(world, "b")
    idle(world, a)
    world.pass_s(VALID_S + 1.0)
    world.submit(job("c", queue="product", gpus=2))
    assert orders(world) == []
    idle(world, a, for_s=7200.0 + VALID_S)
    assert orders(world) == [("a", "c", "idle")]


def test_verdict_that_was_taken_back_counts_for_nothing() -> None:
    world = fleet("hold")
    a, _ = started(world, "a"), started(world, "b")
    idle(world, a)
    busy = IdleChanged(**world._attempt(a), idle=False, reason="its GPUs work again")  # type: ignore[arg-type]
    world.append(busy)
    world.submit(job("c", queue="product", gpus=2))
    assert orders(world) == []
    assert msgspec.json.decode(msgspec.json.encode(busy), type=IdleChanged) == busy
