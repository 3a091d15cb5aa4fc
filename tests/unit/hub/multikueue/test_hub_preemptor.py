"""Room in workers for who holds quota on the hub: who goes for whom, what it costs, and that nobody
is moved back and forth."""

import msgspec
import pytest

from berthmaster.hub.multikueue.core.instructions import SendBack
from berthmaster.hub.multikueue.policy import ENGINE_VERSION
from berthmaster.lib.kube.selector import parse_selector
from berthmaster.lib.kueue.podsets.templates import PodToleration
from berthmaster.lib.kueue.queues import (
    BorrowPreemption,
    FlavorQuotas,
    Preemption,
    ResourceGroup,
    ResourceQuota,
)
from berthmaster.lib.lifecycle.fold import Verdict
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.fleet import Taint
from berthmaster.lib.messages.placement import EvictionOrder
from tests.unit.hub.multikueue.hub_objects import (
    CLUSTER_QUEUE,
    OWN_CHECK,
    QUEUE,
    checks,
    cluster_queue,
    condition,
    copy_report,
    local_queue,
    own_check,
    pods,
    queue_report,
)
from tests.unit.hub.multikueue.world import World

LOWER = Preemption(within_cluster_queue="LowerPriority")
GPU = "nvidia.com/gpu"
OTHER, OTHERS_QUEUE = "other-queue", "others"


def quota(gpus: int) -> tuple[ResourceGroup, ...]:
    amount = ResourceQuota(name=GPU, nominal_quota=gpus)
    return (ResourceGroup(flavors=(FlavorQuotas(name="default", resources=(amount,)),)),)


def two_queues(world: World, preemption: Preemption, own: int) -> None:
    """Of one cohort, each with so many GPUs of its own."""
    for name, rules in ((CLUSTER_QUEUE, preemption), (OTHER, None)):
        groups = quota(own)
        world.put(
            cluster_queue(
                own_check=True,
                name=name,
                cohort_name="all",
                resource_groups=groups,
                preemption=rules,
            )
        )
    world.put(local_queue(OTHERS_QUEUE, cluster_queue=OTHER))
    world.settle()


def world_of(preemption: Preemption | None = LOWER, evictions_per_hour: int = 120) -> World:
    """Two workers of 8 GPUs, and a ClusterQueue that displaces by priority."""
    world = World(workers=("w1", "w2"), evictions_per_hour=evictions_per_hour)
    for worker in ("w1", "w2"):
        world.worker(worker, local_queues=(QUEUE, OTHERS_QUEUE))
    world.put(cluster_queue(own_check=True, preemption=preemption))
    world.put(own_check())
    world.set_parameters(OWN_CHECK, parse_selector(""))
    world.begin()
    return world


def room(world: World, w1: int = 0, w2: int = 0) -> None:
    for worker, free in (("w1", w1), ("w2", w2)):
        world.worker(worker, free=free, local_queues=(QUEUE, OTHERS_QUEUE))


def run(world: World, name: str, worker: str, gpus: int = 4, **how: object) -> None:
    """It runs there, be it because there was no room elsewhere."""
    other = "w2" if worker == "w1" else "w1"
    room(world, **{worker: 8, other: 0})
    submit(world, name, gpus, **how)
    assert world.nominated(name) == (worker,)
    world.admit(name, worker)
    world.settle()
    world.start(name)
    world.settle()
    world.wait(2.0, step_s=1.0)


def submit(world: World, name: str, gpus: int = 4, **how: object) -> None:
    world.submit(name, pod_sets=[pods(gpus=gpus)], **how)
    world.reserve(name, own="Pending")
    world.settle()


def told_to_go(world: World) -> list[str]:
    return [write.at[1] for write in world.writes if isinstance(write, SendBack)]


def orders(world: World) -> list[EvictionOrder]:
    return [order for decision in world.decisions() for order in decision.evictions]


def kueue_ends(world: World, name: str) -> None:
    world.evict(name, "AdmissionCheck", "Evicted due to a check")
    world.settle()
    world.reserve(name, own="Pending")
    world.settle()


def test_who_is_urgent_is_sent_where_it_costs_least_and_its_place_is_told_with_who_goes() -> None:
    world = world_of()
    run(world, "old", "w1")
    world.wait(1000.0, step_s=250.0)
    run(world, "new", "w2")
    room(world)
    submit(world, "urgent", priority=10)
    assert told_to_go(world) == ["job-new"]  # has less to lose
    assert world.nominated("urgent") == ("w2",)
    decision = world.decisions()[-1]
    (order,), (choice,) = decision.evictions, decision.placements
    assert (order.right, order.for_id, order.cluster) == ("priority", choice.id, "w2")
    assert choice.cluster == "w2"
    assert decision.engine == ENGINE_VERSION
    assert "1 job was told to make room for it there" in world.why(world.name("urgent"))
    words = "it was told to go: a job of higher priority needs its room"
    assert words in world.why(world.name("new"))

    # It waits there for longer than is usual, and nobody else is told to go for it meanwhile.
    world.wait(60.0, step_s=2.0)
    assert world.nominated("urgent") == ("w2",)
    assert told_to_go(world) == ["job-new"]

    # Who went comes back and moves nobody: not the urgent one, nor an equal one.
    kueue_ends(world, "new")
    world.admit("urgent", "w2")
    world.settle()
    world.start("urgent")
    world.wait(120.0, step_s=2.0)
    assert told_to_go(world) == ["job-new"]
    assert "told to make room" not in world.why(world.name("urgent"))
    assert world.log.folds[world.name("new")].moves == 1
    assert world.broken == []
    assert set(world.log.verdicts) == {Verdict.COUNTED}


def test_nobody_goes_where_somebody_fits_or_the_queue_lets_nobody_displace() -> None:
    world = world_of()
    run(world, "old", "w1")
    room(world, w2=4)
    submit(world, "urgent", priority=10)
    assert world.nominated("urgent") == ("w2",)
    assert told_to_go(world) == []

    for preemption in (None, Preemption(within_cluster_queue="Never")):
        world = world_of(preemption)
        run(world, "old", "w1")
        room(world)
        submit(world, "urgent", priority=10)
        world.wait(40.0, step_s=2.0)
        assert told_to_go(world) == []
        assert orders(world) == []


def test_equals_those_without_our_check_and_those_that_kueue_ends_itself_stay() -> None:
    world = world_of()
    run(world, "equal", "w1", priority=10)
    run(world, "going", "w1")
    world.status(
        "going", conditions=(condition("QuotaReserved"), condition("Evicted", True, "Preempted"))
    )
    world.settle()
    room(world)
    submit(world, "urgent", priority=10)
    world.wait(5.0, step_s=1.0)
    assert orders(world) == []

    world = world_of()
    run(world, "bare", "w1")
    world.status("bare", admission_checks=checks("Ready"))
    room(world)
    submit(world, "urgent", priority=10)
    world.wait(5.0, step_s=1.0)
    assert orders(world) == []


def test_as_many_go_as_it_takes_and_none_for_room_that_is_being_made() -> None:
    world = world_of()
    for name in ("a", "b", "c"):
        run(world, name, "w1", gpus=2)
    room(world)
    submit(world, "urgent", gpus=2, priority=10)
    assert len(orders(world)) == 1
    submit(world, "second", gpus=2, priority=9)
    assert len(orders(world)) == 2
    gone = {order.id for order in orders(world)}
    assert len(gone) == 2
    assert {order.for_id[:9] for order in orders(world)} == {"job-urgen", "job-secon"}
    # Four GPUs would take two pods of two on one node, which nobody knows them to be on.
    submit(world, "wide", gpus=4, priority=20)
    world.wait(5.0, step_s=1.0)
    assert len(orders(world)) == 2


def test_the_hub_s_own_quota_is_what_a_guarantee_is_and_a_floor() -> None:
    def world_with(reclaim: str) -> World:
        world = world_of(None)
        mine = Preemption(reclaim_within_cohort=reclaim)
        two_queues(world, mine, 4)
        for name in ("own", "lent"):  # the second is beyond the other queue's own four
            run(world, name, "w1", queue=OTHERS_QUEUE, priority=5)
        room(world)
        return world

    world = world_with("Any")
    submit(world, "back")
    (order,) = orders(world)
    assert order.right == "guarantee"
    assert "what its queue borrowed is another queue's own quota" in world.why(
        f"{order.tenant}/{order.id}"  # type: ignore[arg-type]
    )
    # What is left is the other queue's own, and the next one would borrow itself.
    submit(world, "more")
    world.wait(40.0, step_s=2.0)
    assert len(orders(world)) == 1

    world = world_with("LowerPriority")
    submit(world, "back")
    world.wait(5.0, step_s=1.0)
    assert orders(world) == []
    submit(world, "urgent", priority=6)  # with the first its queue is beyond its own
    world.wait(5.0, step_s=1.0)
    assert orders(world) == []


def test_one_that_borrows_displaces_lesser_ones_of_the_cohort_up_to_its_threshold() -> None:
    for threshold, goes in ((None, 1), (4, 0)):
        world = world_of(None)
        borrow = BorrowPreemption(policy="LowerPriority", max_priority_threshold=threshold)
        mine = Preemption(reclaim_within_cohort="Any", borrow_within_cohort=borrow)
        two_queues(world, mine, 0)
        run(world, "theirs", "w1", queue=OTHERS_QUEUE, priority=5)
        room(world)
        submit(world, "urgent", priority=10)
        world.wait(5.0, step_s=1.0)
        assert [order.right for order in orders(world)] == ["priority"] * goes


def test_quota_of_a_worker_counts_too_unless_its_own_kueue_displaces() -> None:
    for preempts, goes in ((False, 1), (True, 0)):
        world = world_of()
        run(world, "old", "w1")
        room(world, w1=4, w2=4)  # nodes have some, quota has none
        for worker in ("w1", "w2"):
            full = queue_report(worker, gpus=8, used=8, preempts=preempts)
            world.fact(f"{worker}/queue", full)
        submit(world, "urgent", priority=10)
        world.wait(5.0, step_s=1.0)
        assert len(orders(world)) == goes


@pytest.mark.parametrize(("told", "goes"), [("ours", 1), ("theirs", 0)])
def test_what_goes_gives_back_quota_of_the_flavor_that_it_has_there(told: str, goes: int) -> None:
    world = world_of()
    room(world, w1=8)
    anywhere = PodToleration(operator="Exists")
    world.submit("old", pod_sets=[pods(gpus=4, tolerations=(anywhere,))])
    world.reserve("old", own="Pending")
    world.settle()
    world.admit("old", "w1")
    world.start("old")
    world.settle()
    room(world, w1=4)  # nodes have some, quota has none
    full = queue_report("w1", gpus=8, used=8)
    [either] = full.flavors
    taint = Taint(key="theirs", effect="NoSchedule")
    theirs = msgspec.structs.replace(either, flavor="theirs", taints=(taint,))
    ours = msgspec.structs.replace(either, flavor="ours")
    world.fact("w1/queue", msgspec.structs.replace(full, flavors=(theirs, ours)))
    flavors = ({"nvidia.com/gpu": told},)
    copy = copy_report("w1", "old", admitted=True, quota_reserved=True, flavors=flavors)
    world.fact("w1/copy", copy)
    submit(world, "urgent", priority=10)
    world.wait(5.0, step_s=1.0)
    assert len(orders(world)) == goes


def test_one_that_waits_in_a_worker_already_gets_room_there_once_the_worker_says_so() -> None:
    world = world_of()
    run(world, "old", "w1", priority=10)
    run(world, "low", "w2", priority=10)
    room(world)
    submit(world, "urgent", priority=10)
    (worker,) = world.nominated("urgent")
    victim = "old" if worker == "w1" else "low"
    world.admit("urgent", worker)
    world.settle()
    assert orders(world) == []

    # Its priority rises, and its pods find no node.
    found = world.kueue("urgent")
    spec = msgspec.structs.replace(found.spec, priority=50)
    world.put(msgspec.structs.replace(found, spec=spec))
    world.wait(20.0, step_s=2.0)
    assert orders(world) == []  # nothing says that it lacks room
    copy = copy_report(worker, "urgent", admitted=True, quota_reserved=True, unscheduled=1)
    world.fact(f"{worker}/copy", copy)
    world.wait(6.0, step_s=1.0)
    assert told_to_go(world) == [f"job-{victim}"]
    world.wait(60.0, step_s=2.0)
    assert len(orders(world)) == 1


def test_budgets_of_an_hour_hold() -> None:
    world = world_of(evictions_per_hour=1)
    for name in ("a", "b"):
        run(world, name, "w1")
    room(world)
    for name in ("first", "second"):
        submit(world, name, priority=10)
    world.wait(60.0, step_s=2.0)
    assert len(orders(world)) == 1

    world = world_of()
    run(world, "a", "w1")
    world.set(QueueSetting(queue=QUEUE, max_evictions_per_hour=0))
    room(world)
    submit(world, "first", priority=10)
    world.wait(5.0, step_s=1.0)
    assert orders(world) == []
