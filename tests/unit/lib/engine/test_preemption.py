"""The rules of who makes room for whom: rights, floors, costs, and the cheapest on a node."""

from itertools import combinations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berthmaster.lib.engine.queueing.preemption import (
    Accounts,
    Beneficiary,
    Floors,
    FreeOnNode,
    HeldOnNode,
    PodNeed,
    RightName,
    Victim,
    cheapest_on,
    cost_of,
    lost_gpu_s,
    right_over,
)
from berthmaster.lib.engine.queueing.queues import Level, Path, QueueShare, Tier
from berthmaster.lib.lifecycle.workload import Key, Workload
from tests.support.builders import job

B = QueueShare("b", priority=3, guarantee={"gpu": 1000}, deserved={"gpu": 3000, "cpu": 50})
FLOOR = (("b", {"gpu": 3000, "cpu": 50}),)


def mover(queue: str, tier: Tier, queue_priority: int, priority: int, preempts: str) -> Beneficiary:
    return Beneficiary((Level(queue, tier, queue_priority),), priority, preempts)


@pytest.mark.parametrize(
    ("mover", "victim_priority", "right"),
    [
        (mover("a", Tier.GUARANTEED, 0, 0, "never"), 99, ("guarantee", (("b", {"gpu": 1000}),))),
        (mover("a", Tier.DESERVED, 3, 0, "never"), 99, ("deserved", FLOOR)),
        (mover("a", Tier.DESERVED, 2, 0, "all"), 0, None),  # its queue is of lower priority
        (mover("a", Tier.BORROWED, 3, 5, "all"), 4, ("priority", FLOOR)),
        (mover("a", Tier.BORROWED, 3, 5, "all"), 5, None),
        (mover("a", Tier.BORROWED, 9, 5, "all"), 5, None),  # a better queue, but no better job
        (mover("a", Tier.BORROWED, 3, 5, "queue"), 4, None),
        (mover("b", Tier.BORROWED, 3, 5, "queue"), 4, ("priority", ())),
        (mover("b", Tier.GUARANTEED, 3, 5, "queue"), 5, None),  # a queue takes nothing of its own
        (mover("b", Tier.BORROWED, 3, 5, "never"), 4, None),
    ],
)
def test_by_what_right_a_job_is_ended_for_another(
    mover: Beneficiary, victim_priority: int, right: tuple[RightName, Floors] | None
) -> None:
    assert right_over(mover, (B,), victim_priority) == right


TOP = QueueShare("top", guarantee={"gpu": 9000})
SIBLING = QueueShare("sibling", deserved={"gpu": 500})
ELSEWHERE = (QueueShare("x", guarantee={"gpu": 10}), QueueShare("y", guarantee={"gpu": 20}))


@pytest.mark.parametrize(
    ("own", "above", "victim", "right"),
    [
        # Among siblings their own rights count, whatever their parent's are.
        (Tier.DESERVED, Tier.BORROWED, (SIBLING, TOP), ("deserved", (("sibling", {"gpu": 500}),))),
        (Tier.BORROWED, Tier.GUARANTEED, (SIBLING, TOP), None),
        # Beside a queue of another parent it is the parents' rights; all on the way down keep.
        (
            Tier.BORROWED,
            Tier.GUARANTEED,
            ELSEWHERE,
            ("guarantee", (("x", {"gpu": 10}), ("y", {"gpu": 20}))),
        ),
        (Tier.GUARANTEED, Tier.BORROWED, ELSEWHERE, None),
        # A job that its parent had before it was one has no share beside the children.
        (Tier.DESERVED, Tier.BORROWED, (TOP,), ("deserved", ())),
    ],
)
def test_below_a_parent_the_right_is_that_of_the_two_that_are_siblings(
    own: Tier, above: Tier, victim: Path, right: tuple[RightName, Floors] | None
) -> None:
    levels = (Level("mine", own, 0), Level("top", above, 0))
    assert right_over(Beneficiary(levels, 0, "queue"), victim, 0) == right


def test_a_job_left_in_a_parent_takes_nothing_from_the_queues_below_it() -> None:
    levels = (Level("top", Tier.GUARANTEED, 0),)
    assert right_over(Beneficiary(levels, 9, "all"), (SIBLING, TOP), 0) is None


def test_a_queue_keeps_its_floor_of_each_resource_that_the_job_takes() -> None:
    accounts = Accounts({"b": {"gpu": 4000, "gpu/T4": 3000, "gpu/H100": 1000, "cpu": 10}})
    one = {"gpu": 1000, "gpu/T4": 1000, "cpu": 5}
    assert accounts.may_lose((("b", {"gpu": 3000}),), one)
    assert not accounts.may_lose((("b", {"gpu": 3001}),), one)
    assert not accounts.may_lose((("b", {"cpu": 6}),), one)
    assert accounts.may_lose((("b", {"gpu/H100": 1000}),), one)  # it takes none of those
    accounts.subtract((B, TOP), one)
    assert not accounts.may_lose((("b", {}), ("top", {"gpu": 0})), one)  # as one is on its way out
    assert not accounts.may_lose((("b", {"gpu": 3000}),), one)
    assert accounts.may_lose((("nobody", {"gpu": 1}),), {})


def running(**fields: object) -> Workload:
    request = msgspec.structs.replace(job(gpus=8), **fields)
    return Workload(tenant="t", id="j", request=request, running_at_s=100.0)


def test_what_is_lost_is_the_work_since_the_last_checkpoint_and_starting_again() -> None:
    assert lost_gpu_s(running(), 1100.0, 30.0) == 8 * 1030
    assert lost_gpu_s(running(checkpoint_every_s=600.0), 1100.0, 30.0) == 8 * 430
    again = running(checkpoint_every_s=600.0)
    again.moves = 1
    assert lost_gpu_s(again, 1100.0, 30.0) == 2 * 8 * 430
    claimed = running()
    claimed.running_at_s = 0.0
    assert lost_gpu_s(claimed, 1100.0, 30.0) == 8 * 30  # it has done nothing yet
    cpu = Workload(tenant="t", id="j", request=job(gpus=0, cpu_milli=32_000), running_at_s=100.0)
    assert lost_gpu_s(cpu, 200.0, 0.0) == 2 * 100


def part(name: str, cost: float, gpus: tuple[int, ...], milli: int = 1000) -> HeldOnNode:
    return HeldOnNode(
        Victim(cost, 0, Key(name), "q", {}, cost), 1000, 10, tuple((g, milli) for g in gpus)
    )


FULL = FreeOnNode(0, 0, dict.fromkeys(range(8), 0))


def test_the_worked_example() -> None:
    parts = [part("a", 10, (0,)), part("b", 30, (1,)), part("c", 25, (2, 3, 4, 5))]
    found = cheapest_on(FULL, PodNeed(1000, 10, 2, 1000), parts)
    assert found is not None
    assert [victim.key for victim in found] == ["c"]
    assert cheapest_on(FULL, PodNeed(1000, 10, 7, 1000), parts) is None
    assert cheapest_on(FULL, PodNeed(4000, 10, 1, 1000), parts) is None  # CPU for three at most


@settings(max_examples=200, deadline=None)
@given(
    costs=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 4)), min_size=1, max_size=6),
    wanted=st.integers(1, 8),
)
def test_eviction_set_is_minimal_and_cheap(costs: list[tuple[int, int]], wanted: int) -> None:
    """Held against all sets that there are."""
    parts, at = [], 0
    for number, (cost, gpus) in enumerate(costs):
        parts.append(part(f"v{number}", cost, tuple(range(at, at + gpus))))
        at += gpus
    room = FreeOnNode(0, 0, dict.fromkeys(range(at), 0))
    need = PodNeed(0, 0, wanted, 1000)
    by_key = {each.victim.key: len(each.gpus) for each in parts}
    enough = [
        sum(each.victim.lost_gpu_s for each in some)
        for size in range(1, len(parts) + 1)
        for some in combinations(parts, size)
        if sum(len(each.gpus) for each in some) >= wanted
    ]
    found = cheapest_on(room, need, parts)
    assert (found is None) == (not enough)
    if found is None:
        return
    assert sum(by_key[victim.key] for victim in found) >= wanted
    for left_out in found:  # each is needed
        assert sum(by_key[v.key] for v in found if v is not left_out) < wanted
    assert cost_of(found) >= min(enough)
