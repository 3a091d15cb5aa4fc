"""Stories of jobs with a least and a most number of pods: they start with what there is, shrink
before anybody is ended, and grow into what nobody else has a right to."""

from typing import Any

import msgspec

from berthmaster.control.resolver.policy import Policy
from berthmaster.control.resolver.replay import replay
from berthmaster.lib.lifecycle.workload import Key
from berthmaster.lib.messages.api import WhyReply
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.placement import PodBinding, Target
from berthmaster.lib.messages.workload import JobRequest, Succeeded
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


def sized(name: str, sizes: tuple[int | None, int, int | None], **fields: Any) -> JobRequest:
    """With a least, wished and most number of pods."""
    least, count, most = sizes
    return job(name, gpus=1, count=count, min_count=least, max_count=most, **fields)


def wait(world: World, name: str, sizes: tuple[int | None, int, int | None], **fields: Any) -> Key:
    return world.submit(sized(name, sizes, **fields))


def start(world: World, name: str, sizes: tuple[int | None, int, int | None], **fields: Any) -> Key:
    return world.start(sized(name, sizes, **fields))


def pods(world: World, name: Key) -> list[str]:
    return [each.pod for each in world.workloads[name].pods]


def carry_out(world: World, name: Key, pods: tuple[PodBinding, ...] | None = None) -> None:
    world.pass_s(1.0)
    world.resized(name, pods)


def orders(world: World) -> list[tuple[str, int, int, str, str]]:
    """Whose number is changed, from what to what, for whom and by what right, of all that is
    decided now; nobody is ended."""
    plans = world.settle()
    assert not any(plan.decision.evictions for plan in plans)
    told = [each for plan in plans for each in plan.decision.resizes]
    return [(o.id, o.pods_before, o.pods, o.for_id, o.right) for o in told]


def test_it_starts_with_as_many_as_there_is_room_for_and_not_with_fewer_than_it_can() -> None:
    world = fleet(4)
    first = start(world, "rigid", (None, 1, None))
    second = wait(world, "elastic", (2, 8, 8))
    third = wait(world, "needy", (4, 8, None))
    world.settle()
    assert (len(pods(world, second)), world.placed_on(third)) == (3, "")
    workload = world.workloads[second]
    assert workload.request is not None
    assert workload.wished is not None
    assert (workload.request.pod_sets[0].count, workload.wished.pod_sets[0].count) == (3, 8)
    assert world.resolver.know.derived.ledger.used("default")["gpu"] == 4000
    # When it waits again it asks for as much as before.
    world.claim(second)
    world.evict(second)
    request = world.workloads[second].request
    assert request is not None
    assert (request.pod_sets[0].count, world.placed_on(first)) == (8, "c1")


def test_why_and_a_dry_run_know_how_many_there_are() -> None:
    world = fleet(4)
    found = start(world, "elastic", (1, 3, 8))
    waits = wait(world, "needy", (2, 6, None))
    told = world.why(TENANT, "elastic", world.now_s)
    assert isinstance(told, WhyReply)
    assert "with 3 pods, 3 are wished for" in told.summary
    assert world.placed_on(waits) == ""
    request = msgspec.structs.replace(world.workloads[waits].request, id="other")  # type: ignore[type-var]
    assert request is not None
    pods = msgspec.structs.replace(request.pod_sets[0], min_count=1)
    request = msgspec.structs.replace(request, pod_sets=(pods,))
    tried = world.dry_run(TENANT, request, world.now_s)
    assert (tried.placed, tried.summary) == (
        True,
        "would run on c1, n0; 1 wait already, with 1 of 6 pods",
    )
    assert len(world.workloads[found].pods) == 3
    world.resolver.know.open[found].target = Target(via="worker")
    told = world.why(TENANT, "elastic", world.now_s)
    assert isinstance(told, WhyReply)
    assert "with as many pods as it lets in it goes on" in told.summary


def test_its_queues_limit_counts_as_room_does() -> None:
    world = fleet(8)
    queue(world, "a", capability_gpu_milli=3000)
    found = wait(world, "elastic", (2, 8, None), queue="a")
    none = wait(world, "needy", (4, 8, None), queue="a")
    world.settle()
    assert (len(pods(world, found)), world.placed_on(none)) == (3, "")


def test_it_shrinks_before_anybody_is_ended_and_only_its_executor_says_when() -> None:
    world = fleet(8)
    queue(world, "a", guarantee_gpu_milli=3000)
    queue(world, "b")
    elastic = start(world, "elastic", (2, 6, 6), queue="b")
    rigid = start(world, "rigid", (None, 2, None), queue="b")
    mine = wait(world, "mine", (None, 3, None), queue="a")
    assert orders(world) == [("elastic", 6, 3, "mine", "guarantee")]
    # The room is its alone and not free: all six pods hold it until the executor has said so.
    other = wait(world, "other", (None, 1, None), queue="b")
    assert orders(world) == []
    assert (len(pods(world, elastic)), world.placed_on(mine)) == (6, "")
    carry_out(world, elastic)
    world.settle()
    assert pods(world, elastic) == ["main-0", "main-1", "main-2"]
    assert (world.placed_on(mine), world.placed_on(other)) == ("c1", "")
    assert world.workloads[rigid].leaving == ""
    assert replay(world.inputs(), "all").first_difference is None


def test_nobody_shrinks_below_the_least_nor_for_whom_has_no_better_right() -> None:
    world = fleet(4)
    queue(world, "a", guarantee_gpu_milli=4000)
    queue(world, "b", guarantee_gpu_milli=3000)
    start(world, "elastic", (2, 4, None), queue="b")
    wait(world, "equal", (None, 1, None), queue="b")
    assert orders(world) == []
    wait(world, "mine", (None, 1, None), queue="a")  # down to what is guaranteed to it
    assert orders(world) == [("elastic", 4, 3, "mine", "guarantee")]
    wait(world, "more", (None, 1, None), queue="a")
    carry_out(world, next(iter(world.workloads)))
    assert orders(world) == []


def test_the_cheapest_shrink_and_as_few_of_them_as_will_do() -> None:
    world = fleet(12)
    queue(world, "a", guarantee_gpu_milli=6000)
    queue(world, "b")
    large = start(world, "large", (1, 6, None), queue="b")
    small = start(world, "small", (2, 4, None), queue="b")
    start(world, "least", (2, 2, None), queue="b")
    wait(world, "mine", (None, 2, None), queue="a")
    # Finding together again costs the small one least, and its two pods are enough.
    assert orders(world) == [("small", 4, 2, "mine", "guarantee")]
    carry_out(world, small)
    world.settle()
    wait(world, "next", (None, 4, None), queue="a")
    assert orders(world) == [("large", 6, 2, "next", "guarantee")]
    assert len(pods(world, large)) == 6


def test_it_grows_into_what_is_idle_when_that_has_lasted_and_gives_back_what_is_lent() -> None:
    world = fleet(4, 4)
    elastic = start(world, "elastic", (1, 2, 7))
    assert orders(world) == []
    world.pass_s(59.0)
    assert orders(world) == []
    assert world.resolver.wake_at_s() == 1060.0
    world.pass_s(1.0)
    assert orders(world) == [("elastic", 2, 7, "", "")]
    assert len(pods(world, elastic)) == 7  # all hold room before they run
    carry_out(world, elastic)
    # Whoever comes gets what is free, and then what was lent, whatever its rank.
    wait(world, "one", (None, 1, None), priority=-5)
    assert orders(world) == []
    wait(world, "three", (None, 3, None), priority=-5)
    assert orders(world) == [("elastic", 7, 4, "three", "")]
    carry_out(world, elastic)
    world.settle()
    wait(world, "many", (None, 4, None))
    assert orders(world) == []  # that is more than it has beyond what it wished for
    world.pass_s(300.0)
    assert orders(world) == []
    assert replay(world.inputs(), "all").first_difference is None


def test_nobody_grows_past_who_waits_and_may_run_nor_into_what_is_kept() -> None:
    world = fleet(4)
    elastic = start(world, "elastic", (1, 2, 4))
    waiting = wait(world, "whole", (None, 4, None))
    world.settle()
    world.pass_s(100.0)
    assert orders(world) == []
    # Who could never run here, or may not run, is passed.
    wait(world, "elsewhere", (None, 1, None), gpu_models=("H100",))
    queue(world, "held", held=True)
    wait(world, "held", (None, 1, None), queue="held")
    head = world._attempt(elastic)
    workload = world.workloads[elastic]
    world.append(
        Succeeded(**head, digest=workload.digest, submitted_at_s=workload.submitted_at_s)  # type: ignore[arg-type]
    )
    world.settle()
    assert world.placed_on(waiting)
    world.pass_s(1.0)
    world.claim(waiting)
    world.run(waiting)
    head = world._attempt(waiting)
    workload = world.workloads[waiting]
    world.append(
        Succeeded(**head, digest=workload.digest, submitted_at_s=workload.submitted_at_s)  # type: ignore[arg-type]
    )
    again = start(world, "again", (1, 2, 4))
    world.pass_s(61.0)
    assert orders(world) == [("again", 2, 4, "", "")]
    assert len(pods(world, again)) == 4


def test_new_pods_that_did_not_come_are_let_go_of_and_not_tried_again_at_once() -> None:
    world = fleet(4)
    elastic = start(world, "elastic", (1, 2, 4))
    world.pass_s(61.0)
    assert orders(world) == [("elastic", 2, 4, "", "")]
    before = tuple(world.workloads[elastic].pods[:2])
    carry_out(world, elastic, before)
    assert (pods(world, elastic), orders(world)) == (["main-0", "main-1"], [])
    world.pass_s(59.0)
    assert orders(world) == []
    world.pass_s(2.0)
    assert orders(world) == [("elastic", 2, 4, "", "")]


def test_it_grows_no_further_than_its_queue_and_those_above_may() -> None:
    world = fleet(8)
    queue(world, "all", capability_gpu_milli=5000)
    queue(world, "a", parent="all", max_running_jobs=1)
    start(world, "elastic", (1, 2, 8), queue="a")
    world.pass_s(61.0)
    assert orders(world) == [("elastic", 2, 5, "", "")]
