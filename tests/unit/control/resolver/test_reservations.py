"""Stories of large jobs among small ones: room is kept, the rest is used, waiting has a bound."""

import random
from typing import Any

import msgspec
import pytest

from berthmaster.control.resolver.core.answers import explain
from berthmaster.control.resolver.core.deciding.decide import planned
from berthmaster.control.resolver.core.known.knowledge import Knowledge
from berthmaster.control.resolver.core.known.stored import restore, snapshot_of
from berthmaster.control.resolver.policy import Policy
from berthmaster.control.resolver.replay import replay
from berthmaster.lib.lifecycle.workload import Key, key, request_digest
from berthmaster.lib.messages.control import Cordon, QueueSetting
from berthmaster.lib.messages.fleet import Share
from berthmaster.lib.messages.placement import HeldNode, Reservation
from berthmaster.lib.messages.workload import Cancelled, JobRequest, Submitted
from tests.support.builders import alive, job, node, pod_set, profile
from tests.support.deciding import TENANT, World, placements

HOUR_S = 3600.0


def lasting(seconds: float | None, name: str, **fields: Any) -> JobRequest:
    return msgspec.structs.replace(job(name, **fields), expected_duration_s=seconds)


def fleet(gpus: int = 4, nodes: int = 1, policy: Policy | None = None) -> World:
    world = World(policy or Policy(stale_after_s=1e9))
    world.fact(profile(), alive())
    for number in range(nodes):
        world.fact(node(name=f"n{number + 1}", gpus=gpus))
    return world


def start(world: World, *requests: JobRequest) -> list[Key]:
    """Submit, place and run; all of them must fit."""
    names = [world.submit(request) for request in requests]
    world.settle()
    for name in names:
        assert world.placed_on(name), name
        world.claim(name)
        world.run(name)
    return names


def waits(world: World, *names: Key) -> None:
    world.settle()
    assert [name for name in names if world.placed_on(name)] == []


def reservations(world: World) -> dict[str, Reservation]:
    kept = planned(world.resolver.know, world.policy, world.now_s)
    return {name.split("/")[1]: r for name, r in kept.items()}


def test_who_does_not_fit_gets_the_room_that_is_free_first_and_others_use_it_until_then() -> None:
    world = fleet(gpus=4, policy=Policy(stale_after_s=1e9, reservations=1))
    long, short = start(world, lasting(3000, "long", gpus=2), lasting(1000, "short", gpus=1))
    large = world.submit(lasting(500, "large", gpus=2))
    waits(world, large)
    # One GPU is free, another is in 1000 s: then the large one has two.
    [kept] = reservations(world).values()
    assert kept == Reservation(
        tenant=TENANT,
        id="large",
        cluster="c1",
        held=(HeldNode(node="n1", cpu_milli=1000, memory_mib=1024, gpus=(2, 3)),),
        expected_at_s=world.now_s + 1000,
    )
    waits(world, world.submit(lasting(1300, "too-long")))
    in_time = world.submit(lasting(700, "in-time"))
    world.settle()
    assert world.placed_on(in_time) == "c1"
    assert world.decisions[-1][1].reservations == (kept,)
    assert world.decisions[-1][1].reserved == 1

    world.now_s += 700
    world.claim(in_time)
    world.succeed(in_time)
    waits(world, large, world.submit(lasting(None, "nobody-knows")))
    fits = world.submit(lasting(200, "fits"))
    world.settle()
    assert world.placed_on(fits) == "c1"
    world.now_s += 300
    for name in (fits, short):
        if not world.workloads[name].claimed_at_s:
            world.claim(name)
        world.succeed(name)
    world.settle()
    assert world.placed_on(large) == "c1"
    assert "large" not in reservations(world)
    assert world.placed_on(long) == "c1"
    report = replay(world.inputs(), "all")
    assert (report.equal, report.first_difference) == (report.decisions, None)


def test_who_would_last_too_long_is_looked_at_again_once_the_clock_was_put_back() -> None:
    """Whoever repeats what is decided then knows no other time."""
    world = fleet(gpus=4, policy=Policy(stale_after_s=1e9, reservations=1))
    start(world, lasting(3000, "long", gpus=2), lasting(1000, "short", gpus=1))
    waits(world, world.submit(lasting(500, "large", gpus=2)))
    world.now_s += 400
    late = world.submit(lasting(700, "late"))
    waits(world, late)
    world.now_s -= 350
    world.settle()
    assert world.placed_on(late) == "c1"
    report = replay(world.inputs(), "all")
    assert (report.equal, report.first_difference) == (report.decisions, None)


def test_earlier_job_is_considered_during_commit() -> None:
    """It need not leave alone what the other must, whatever is told first: that it came, or that
    the commit was stored."""
    world = fleet(gpus=4, policy=Policy(stale_after_s=1e9, reservations=1))
    start(world, lasting(3000, "long", gpus=2), lasting(1000, "short", gpus=1))
    waits(world, world.submit(lasting(500, "large", gpus=2, priority=5)))
    world.submit(lasting(1300, "late"))
    world.submit(job("no-gpu", pod_sets=(pod_set(gpus=0, cpu_milli=100),)))
    urgent = lasting(1300, "urgent", priority=9)
    plan = world.decide(
        before_storing=Submitted(
            tenant=TENANT,
            id=urgent.id,
            after=0,
            at_s=world.now_s,
            by="gateway",
            request=urgent,
            digest=request_digest(urgent),
        )
    )
    assert list(placements(plan)) == ["no-gpu"]
    assert list(placements(world.decide())) == ["urgent"]
    report = replay(world.inputs(), "all")
    assert (report.equal, report.first_difference) == (report.decisions, None)


def test_what_leaves_the_room_alone_may_last_as_long_as_it_wants() -> None:
    world = fleet(gpus=4, nodes=2)
    start(world, lasting(1000, "a", gpus=3), lasting(2000, "b", gpus=3))
    large = world.submit(lasting(100, "large", gpus=4))
    waits(world, large)
    kept = reservations(world)["large"]
    beside = world.submit(lasting(None, "beside"))
    world.settle()
    [binding] = world.workloads[beside].pods
    assert binding.node != kept.held[0].node
    waits(world, world.submit(lasting(None, "no-more")))


def test_a_better_rank_is_not_held_up_and_takes_the_room() -> None:
    world = fleet(gpus=2)
    [first] = start(world, lasting(1000, "first"))
    large = world.submit(lasting(100, "large", gpus=2))
    waits(world, large, world.submit(lasting(None, "small")))
    urgent = world.submit(lasting(None, "urgent", priority=1))
    world.settle()
    assert world.placed_on(urgent) == "c1"
    assert "large" not in reservations(world)  # nobody knows when two GPUs will be free
    world.succeed(first)
    world.settle()
    assert world.placed_on(key(TENANT, "small")) == "c1"


def test_without_a_known_time_room_is_kept_after_a_wait_and_not_before() -> None:
    world = fleet(gpus=2, policy=Policy(stale_after_s=1e9, reserve_wait_s=600.0))
    one, two = start(world, lasting(None, "one"), lasting(None, "two"))
    large = world.submit(job("large", gpus=2))
    waits(world, large)
    assert reservations(world) == {}
    world.succeed(one)
    [three] = start(world, job("three"))  # it goes in between: no time is known, none has passed

    world.now_s += 601
    small = world.submit(job("small"))
    waits(world, large, small)
    world.succeed(two)
    waits(world, large, small, world.submit(lasting(0.001, "tiny")))
    assert reservations(world)["large"].expected_at_s is None
    world.succeed(three)
    world.settle()
    assert world.placed_on(large) == "c1"


def test_a_time_that_passes_makes_the_room_free_for_others_or_is_no_time_any_more() -> None:
    world = fleet(gpus=2, policy=Policy(stale_after_s=1e9, reserve_wait_s=1000.0))
    liar, other = start(world, lasting(100, "liar"), lasting(100, "other"))
    large = world.submit(job("large", gpus=2))
    waits(world, large)
    assert reservations(world)["large"].expected_at_s == world.now_s + 100
    world.succeed(other)
    small = world.submit(job("small"))
    waits(world, large, small)

    # The first is still there when it should be gone: nobody knows how long, the room is used.
    world.now_s += 101
    world.settle()
    assert world.placed_on(small) == "c1"
    world.claim(small)
    world.run(small)
    # When it has waited long enough, it is the next all the same.
    world.now_s += 1000
    world.succeed(liar)
    waits(world, large, world.submit(job("next")))
    world.succeed(small)
    world.settle()
    assert world.placed_on(large) == "c1"


def test_only_so_many_hold_room_and_a_better_rank_takes_it_from_the_worst() -> None:
    world = fleet(gpus=2, nodes=3, policy=Policy(stale_after_s=1e9, reservations=2))
    start(world, *(lasting(1000 * n, f"r{n}", gpus=2) for n in (1, 2, 3)))
    for number, name in enumerate("abc", 1):
        world.submit(lasting(100.0**number, name, gpus=2))
    waits(world)
    assert sorted(reservations(world)) == ["a", "b"]
    world.submit(job("vip", gpus=2, priority=5))
    waits(world)
    assert sorted(reservations(world)) == ["a", "vip"]


def test_no_room_is_kept_for_what_could_never_fit_may_not_run_or_is_gone() -> None:
    world = fleet(gpus=2)
    start(world, lasting(1000, "r"))
    world.control(QueueSetting(queue="full", capability_gpu_milli=0))
    for request in (
        job("wide", gpus=3),
        job("gang", pod_sets=(pod_set(count=4000),)),
        job("full", queue="full", gpus=2),
        job("nowhere", gpus=2, clusters=("elsewhere",)),
    ):
        world.submit(request)
    waits(world)
    assert reservations(world) == {}
    large = world.submit(job("large", gpus=2))
    small = world.submit(job("small"))
    waits(world, large, small)
    assert list(reservations(world)) == ["large"]
    world.append(cancel(world, large))
    world.settle()
    assert world.placed_on(small) == "c1"


def cancel(world: World, name: Key) -> Cancelled:
    return world.cancelled(name)


def test_a_node_that_cannot_be_had_any_more_ends_the_reservation_on_it() -> None:
    world = fleet(gpus=2)
    start(world, lasting(1000, "r"))
    waits(world, world.submit(job("large", gpus=2)))
    small = world.submit(job("tiny", gpus=0, cpu_milli=1))
    world.settle()
    assert world.placed_on(small) == "c1"
    assert list(reservations(world)) == ["large"]
    world.control(Cordon(cluster="c1", node="n1", cordoned=True))
    world.settle()
    assert reservations(world) == {}
    world.control(Cordon(cluster="c1", node="n1", cordoned=False))
    world.settle()
    assert list(reservations(world)) == ["large"]


def test_a_gang_over_several_nodes_is_kept_whole() -> None:
    world = fleet(gpus=2, nodes=3)
    start(world, *(lasting(1000 + n, f"r{n}") for n in range(5)))
    gang = world.submit(lasting(10, "gang", pod_sets=(pod_set(count=5),)))
    waits(world, gang)
    kept = reservations(world)["gang"]
    assert kept.expected_at_s == world.now_s + 1003
    assert sum(len(held.gpus) for held in kept.held) == 5
    assert sum(held.cpu_milli for held in kept.held) == 5000
    waits(world, world.submit(lasting(5000, "long")))


def test_a_restored_resolver_keeps_the_same_room() -> None:
    world = fleet(gpus=2)
    start(world, lasting(1000, "r"))
    world.submit(job("large", gpus=2))
    start(world, lasting(100, "in-time"))
    told = world.resolver.know.reservations
    assert [r.id for r in told.values()] == ["large"]
    restored = Knowledge("all")
    restore(restored, snapshot_of(world.resolver.know))
    assert restored.reservations == told


def test_a_cluster_whose_kueue_decides_has_no_room_kept_by_us() -> None:
    world = fleet(gpus=2)
    start(world, lasting(1000, "r"))
    world.control(QueueSetting(queue="kueue", via="worker"))
    waits(world, world.submit(job("large", gpus=2, queue="kueue")))
    assert reservations(world) == {}


class Days:
    """Small jobs come without end, more than there is room for, and large ones among them."""

    def __init__(self, seed: int, policy: Policy, told: str, longest_s: float) -> None:
        self.chance = random.Random(seed)
        self.world = fleet(gpus=4, nodes=3, policy=policy)
        self.told = told
        self.longest_s = longest_s
        self.ends: dict[Key, float] = {}
        self.waited: dict[str, float] = {}
        self.number = 0

    def come(self, gpus: int) -> None:
        lasts_s = self.chance.uniform(0.1, 1.0) * self.longest_s
        says_s = {"known": lasts_s, "about": lasts_s * self.chance.uniform(0.5, 2.0)}
        self.number += 1
        kind = "large" if gpus == 4 else "small"
        name = f"{kind}-{self.number}"
        self.world.submit(lasting(says_s.get(self.told), name, gpus=gpus))
        self.lasts = getattr(self, "lasts", {}) | {name: lasts_s}

    def pass_time(self, step_s: float) -> None:
        world = self.world
        world.now_s += step_s
        for name, at_s in list(self.ends.items()):
            if at_s <= world.now_s:
                del self.ends[name]
                world.succeed(name)
        for plan in world.settle():
            for choice in plan.decision.placements:
                name = key(TENANT, choice.id)
                workload = world.workloads[name]
                self.waited[choice.id] = world.now_s - workload.submitted_at_s
                world.claim(name)
                world.run(name)
                self.ends[name] = world.now_s + self.lasts[choice.id]

    def live(self, steps: int, step_s: float) -> None:
        for step in range(steps):
            for _ in range(2):
                self.come(1)
            if step % 40 == 20:
                self.come(4)
            self.pass_time(step_s)

    def longest_wait_s(self, kind: str) -> float:
        return max(
            self.world.now_s - w.submitted_at_s if not w.live and not w.ended else self.waited[w.id]
            for w in self.world.workloads.values()
            if w.id.startswith(kind)
        )


@pytest.mark.parametrize("told", ["known", "about", "nothing"])
def test_large_job_waits_at_most_bound(told: str) -> None:
    longest_s, step_s, wait_s = 600.0, 60.0, 300.0
    policy = Policy(stale_after_s=1e9, reserve_wait_s=wait_s)
    days = Days(7, policy, told, longest_s)
    days.live(200, step_s)
    # At most one other holds room for as long, so: the wait, and twice the longest job.
    assert days.longest_wait_s("large") <= wait_s + 2 * longest_s + 2 * step_s
    report = replay(days.world.inputs(), "all")
    assert (report.equal, report.first_difference) == (report.decisions, None)

    starved = Days(7, Policy(stale_after_s=1e9, reservations=0), told, longest_s)
    starved.live(200, step_s)
    assert starved.longest_wait_s("large") > 2 * (wait_s + 2 * longest_s)


def test_who_uses_the_room_until_then_does_not_have_it_looked_for_anew() -> None:
    world = fleet(policy=Policy(stale_after_s=1e9, reservations=1))
    start(world, lasting(3000, "long", gpus=2), lasting(1000, "short", gpus=1))
    world.fact(node(name="n2", gpus=2, cpu_milli=8000, labels={"host": "n2"}))
    hog: dict[str, Any] = {"gpus": 0, "cpu_milli": 8000, "node_labels": {"host": "n2"}}
    [busy] = start(world, lasting(4000, "hog", **hog))
    large = world.submit(lasting(500, "large", gpus=2))
    waits(world, large)
    [kept] = reservations(world).values()
    assert (kept.held[0].node, kept.expected_at_s) == ("n1", world.now_s + 1000)

    # By now it would be free sooner on the other node, for which one of better rank goes first.
    world.succeed(busy)
    start(world, lasting(100, "vip", priority=10, **hog))
    waits(world, large)
    assert reservations(world) == {"large": kept}
    # One of its own rank that uses the room in time changes nothing about that either.
    start(world, lasting(10, "in-time", gpus=1))
    assert reservations(world) == {"large": kept}


# Room is kept of what is used at any time: what runs now and what follows do not add up


SLICES = (
    Share(resource="nvidia.com/mig-1g.5gb", milli=142, memory_mib=5120, count=4, kind="mig"),
    Share(resource="nvidia.com/mig-2g.10gb", milli=285, memory_mib=10_240, count=1, kind="mig"),
    Share(resource="nvidia.com/mig-3g.20gb", milli=428, memory_mib=20_480, count=1, kind="mig"),
)


def shared(*shares: Share, gpus: int = 1, **fields: Any) -> World:
    """One node that offers parts of its GPUs so."""
    world = World(Policy(stale_after_s=1e9, reserve_wait_s=600.0))
    world.fact(profile(), alive())
    report = node(gpus=gpus, model="A100", memory_mib=40_960, **fields)
    world.fact(msgspec.structs.replace(report, shares=shares))
    return world


def starts(world: World, *names: Key) -> None:
    world.settle()
    assert [name for name in names if not world.placed_on(name)] == []
    report = replay(world.inputs(), "all")
    assert (report.equal, report.first_difference) == (report.decisions, None)


ENDS = pytest.mark.parametrize("ends_s", [1000.0, None], ids=["stated end", "no stated end"])


def awaits(world: World, runs: JobRequest, waiting: JobRequest) -> Key:
    """A job holds room, and another has room reserved behind it."""
    start(world, runs)
    name = world.submit(waiting)
    waits(world, name)
    if runs.expected_duration_s is None:
        world.now_s += 601
        waits(world, name)
    assert reservations(world)[waiting.id].expected_at_s == (
        None if runs.expected_duration_s is None else world.now_s + runs.expected_duration_s
    )
    return name


@ENDS
@pytest.mark.parametrize("gpus", [1, 2])
def test_reservation_of_mig_slice_leaves_other_profiles(ends_s: float | None, gpus: int) -> None:
    slices = [msgspec.structs.replace(each, count=each.count * gpus) for each in SLICES]
    world = shared(*(each for each in slices if "2g" not in each.resource), gpus=gpus)
    large: dict[str, Any] = {"gpu_milli": 428, "mig_profile": "3g.20gb"}
    if gpus == 2:
        start(world, lasting(ends_s and 9000.0, "other", **large))
    awaits(world, lasting(ends_s, "runs", **large), job("waits", **large))
    same = world.submit(job("same", **large))
    small = [
        world.submit(job(f"small-{number}", gpu_milli=142, mig_profile="1g.5gb"))
        for number in range(4 * gpus)
    ]
    starts(world, *small)
    waits(world, same, world.submit(job("one-more", gpu_milli=142, mig_profile="1g.5gb")))
    world.succeed(key(TENANT, "runs"))
    starts(world, key(TENANT, "waits"))
    waits(world, same)


@ENDS
def test_reservation_of_gpu_part_keeps_the_maximum_used_at_any_time(ends_s: float | None) -> None:
    world = fleet(gpus=1, policy=Policy(stale_after_s=1e9, reserve_wait_s=600.0))
    follows = awaits(world, lasting(ends_s, "runs", gpu_milli=600), job("follows", gpu_milli=600))
    beside = world.submit(job("beside", gpu_milli=300))
    starts(world, beside)
    too_much = world.submit(job("too-much", gpu_milli=101))
    waits(world, follows, too_much)
    starts(world, world.submit(job("rest", gpu_milli=100)))
    world.succeed(key(TENANT, "runs"))
    starts(world, follows)
    waits(world, too_much)


def test_reservation_of_gpu_part_counts_only_ends_before_its_time() -> None:
    world = fleet(gpus=1)
    start(world, lasting(9000, "long", gpu_milli=300), lasting(100, "short", gpu_milli=300))
    follows = world.submit(job("follows", gpu_milli=600))
    waits(world, follows)
    too_much = world.submit(job("too-much", gpu_milli=200))
    waits(world, too_much)
    starts(world, world.submit(job("beside", gpu_milli=100)))
    world.succeed(key(TENANT, "short"))
    starts(world, follows)
    waits(world, too_much)


@ENDS
@pytest.mark.parametrize(
    ("shares", "runs", "follows", "fits", "too_much"),
    [
        (
            (Share(resource="nvidia.com/gpu.shared", milli=250, count=4),),
            {"gpu_milli": 250, "count": 2},
            {"gpu_milli": 250, "count": 3},
            {"gpu_milli": 250},
            {"gpu_milli": 250},
        ),
        (
            (Share(resource="nvidia.com/gpucores", milli=10, count=100, kind="hami", parts=10),),
            {"gpu_milli": 600},
            {"gpu_milli": 655},
            {"gpu_milli": 340},
            {"gpu_milli": 100},
        ),
        (
            (Share(resource="gpu-fraction", milli=10, count=100, kind="kai", memory_mib=40_000),),
            {"gpu_milli": 600, "gpu_memory_mib": 28_000},
            {"gpu_milli": 600, "gpu_memory_mib": 20_000},
            {"gpu_milli": 300},
            {"gpu_milli": 100},
        ),
        (
            SLICES,
            {"gpu_milli": 428, "mig_profile": "3g.20gb"},
            {"gpu_milli": 400},
            {"gpu_milli": 285},
            {"gpu_milli": 200},
        ),
    ],
    ids=["replicas", "hami", "kai", "mig by compute"],
)
def test_reservation_keeps_the_maximum_of_shares(
    ends_s: float | None,
    shares: tuple[Share, ...],
    runs: dict[str, Any],
    follows: dict[str, Any],
    fits: dict[str, Any],
    too_much: dict[str, Any],
) -> None:
    world = shared(*shares)
    waiting = awaits(world, lasting(ends_s, "runs", **runs), job("follows", **follows))
    starts(world, world.submit(job("fits", **fits)))
    last = world.submit(job("too-much", **too_much))
    waits(world, waiting, last)
    world.succeed(key(TENANT, "runs"))
    starts(world, waiting)


@ENDS
@pytest.mark.parametrize("resource", ["cpu", "memory", "pieces"])
def test_reservation_keeps_maximum_of_each_resource(ends_s: float | None, resource: str) -> None:
    """Of ten units six run and six follow; a GPU is free for each."""
    world = World(Policy(stale_after_s=1e9, reserve_wait_s=600.0))
    report = node(gpus=8, cpu_milli=10_000, node_memory_mib=10_000)
    pieces = msgspec.structs.replace(report.allocatable, pieces={"rdma/hca": 10})
    world.fact(profile(), alive(), msgspec.structs.replace(report, allocatable=pieces))

    def of(units: int) -> dict[str, Any]:
        amounts = {"cpu_milli": 100, "memory_mib": 100}
        match resource:
            case "cpu":
                return amounts | {"cpu_milli": 1000 * units}
            case "memory":
                return amounts | {"memory_mib": 1000 * units}
            case _:
                return amounts | {"resources": {"rdma/hca": units}}

    waiting = awaits(world, lasting(ends_s, "runs", **of(6)), job("follows", **of(6)))
    starts(world, world.submit(job("fits", **of(3))))
    waits(world, waiting, world.submit(job("too-much", **of(2))))
    world.succeed(key(TENANT, "runs"))
    starts(world, waiting)


@ENDS
def test_reservation_of_several_gpus_takes_those_that_become_free(ends_s: float | None) -> None:
    """Four of eight run, six follow: two of the four that are free stay free."""
    world = fleet(gpus=8, policy=Policy(stale_after_s=1e9, reserve_wait_s=600.0))
    start(world, lasting(50, "first", gpus=4))
    start(world, lasting(ends_s, "runs", gpus=4))  # those behind the first's
    world.succeed(key(TENANT, "first"))
    waiting = world.submit(job("follows", gpus=6))
    waits(world, waiting)
    if ends_s is None:
        world.now_s += 601
        waits(world, waiting)
    starts(world, world.submit(job("fits", gpus=2)))
    waits(world, waiting, world.submit(job("too-much", gpus=1)))
    world.succeed(key(TENANT, "runs"))
    starts(world, waiting)


@ENDS
def test_reservation_of_gang_keeps_the_maximum_on_each_node(ends_s: float | None) -> None:
    world = fleet(gpus=1, nodes=2, policy=Policy(stale_after_s=1e9, reserve_wait_s=600.0))
    both: dict[str, Any] = {"gpu_milli": 600, "count": 2}
    waiting = awaits(world, lasting(ends_s, "runs", **both), job("follows", **both))
    beside = [world.submit(job(f"beside-{number}", gpu_milli=400)) for number in range(2)]
    starts(world, *beside)
    waits(world, waiting)
    world.succeed(key(TENANT, "runs"))
    starts(world, waiting)


def test_two_reservations_do_not_share_what_one_attempt_returns() -> None:
    world = fleet(gpus=1)
    start(world, lasting(1000, "runs", gpu_milli=600))
    one = world.submit(job("one", gpu_milli=500))
    two = world.submit(job("two", gpu_milli=450))
    waits(world, one, two)
    assert sorted(reservations(world)) == ["one", "two"]
    waits(world, world.submit(job("too-much", gpu_milli=51)))
    starts(world, world.submit(job("beside", gpu_milli=50)))
    world.succeed(key(TENANT, "runs"))
    starts(world, one, two)


def test_evicted_job_returns_what_is_owed_to_its_successor() -> None:
    """While the one that was told to go still runs, others have what neither of them uses."""
    world = fleet(gpus=1)
    world.control(QueueSetting(queue="default", preempts="queue"))
    [low] = start(world, lasting(None, "low", gpu_milli=600))
    high = world.submit(job("high", gpu_milli=600, priority=5))
    world.settle()
    assert world.workloads[low].leaving
    beside = world.submit(job("beside", gpu_milli=300))
    starts(world, beside)
    waits(world, high, world.submit(job("too-much", gpu_milli=200)))
    world.evict(low)
    starts(world, high)
    waits(world, low)


def test_why_calls_room_beside_a_reservation_free() -> None:
    world = fleet(gpus=1)
    awaits(world, lasting(1000.0, "runs", gpu_milli=600), job("follows", gpu_milli=600))
    know = world.resolver.know
    reply = explain.dry_run(know, world.policy, world.now_s, TENANT, job("try", gpu_milli=300))
    assert reply.placed
    reply = explain.dry_run(know, world.policy, world.now_s, TENANT, job("try", gpu_milli=500))
    assert not reply.placed


@pytest.mark.parametrize("seed", range(15))
def test_jobs_beside_a_reservation_never_delay_it(seed: int) -> None:
    """The same story with and without what comes behind the reservation: it starts at one time."""
    assert _start_of_large(seed, others=6) == _start_of_large(seed, others=0)


def _start_of_large(seed: int, *, others: int) -> float:
    """When it begins. Jobs end as they stated; of those behind it none states anything."""
    chance = random.Random(seed)
    world = fleet(gpus=2, policy=Policy(stale_after_s=1e9, reservations=1))
    ends: list[tuple[float, Key]] = []

    def begin(name: Key) -> bool:
        world.settle()
        for each, workload in world.workloads.items():
            if workload.live and not workload.claimed_at_s:
                world.claim(each)
                world.run(each)
        return bool(world.placed_on(name))

    for number in range(8):
        ends_s = 100.0 * chance.randrange(1, 9) + number  # never two at one time
        name = world.submit(lasting(ends_s, f"runs-{number}", gpu_milli=chance.randrange(100, 700)))
        if begin(name):
            ends.append((world.now_s + ends_s, name))
        else:
            world.append(world.cancelled(name))
    large = world.submit(lasting(None, "large", gpu_milli=chance.randrange(500, 1001)))
    begin(large)
    for number in range(others):
        name = world.submit(lasting(None, f"behind-{number}", gpu_milli=chance.randrange(50, 400)))
        begin(name)
    for at_s, name in sorted(ends):
        if world.placed_on(large):
            break
        world.now_s = at_s
        world.succeed(name)
        begin(large)
    assert world.placed_on(large)
    report = replay(world.inputs(), "all")
    assert (report.equal, report.first_difference) == (report.decisions, None)
    return world.now_s
