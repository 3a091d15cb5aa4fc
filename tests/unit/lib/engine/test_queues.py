"""Queues: rights, order and shares, with other schedulers' published figures as vectors."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berthmaster.lib.engine.queueing.queues import (
    CPU,
    GPU,
    MEMORY,
    QueueShare,
    Right,
    Tier,
    ask_of,
    dominant_share,
    fair_shares,
    models_left,
    overcommitted,
    right,
    share_of,
    tier,
)
from berthmaster.lib.messages.control import QueueAmounts, QueueSetting
from tests.support.builders import job, pod_set

MODELS = ("H100", "T4")
TOTALS = {CPU: 100_000, MEMORY: 1_000_000, "gpu/T4": 8_000, "gpu/H100": 4_000}


def used(**amounts: int) -> dict[str, int]:
    """T4=2000 -> what two T4s in use are."""
    models = {
        f"gpu/{name}": amount for name, amount in amounts.items() if name not in (CPU, MEMORY)
    }
    others = {name: amount for name, amount in amounts.items() if name in (CPU, MEMORY)}
    return models | others | {GPU: sum(models.values())}


# What operators set


def test_a_setting_becomes_amounts_by_resource() -> None:
    setting = QueueSetting(
        queue="q",
        priority=3,
        weight=2.0,
        guarantee_gpu_milli=4000,
        capability_gpu_milli=9000,
        resources={
            "gpu/H100": QueueAmounts(guarantee=1000, deserved=2000),
            CPU: QueueAmounts(capability=64_000),
        },
        max_job_gpu_milli=8000,
        max_running_jobs=5,
    )
    assert share_of("q", setting) == QueueShare(
        queue="q",
        priority=3,
        weight=2.0,
        guarantee={GPU: 4000, "gpu/H100": 1000},
        deserved={"gpu/H100": 2000},
        capability={GPU: 9000, CPU: 64_000},
        max_running=5,
        max_job_gpu_milli=8000,
    )
    assert share_of("other", None) == QueueShare("other")


@pytest.mark.parametrize("via", ["worker", "hub"])
def test_where_a_clusters_kueue_governs_only_order_and_hold_are_ours(via: str) -> None:
    setting = QueueSetting(
        queue="q",
        priority=1,
        weight=3.0,
        guarantee_gpu_milli=1000,
        capability_gpu_milli=1000,
        max_running_jobs=1,
        held=True,
        via=via,  # type: ignore[arg-type]
    )
    assert share_of("q", setting) == QueueShare("q", priority=1, weight=3.0, held=True)


# Rights


@pytest.mark.parametrize(
    ("share", "pods", "refusal"),
    [
        (QueueShare("q", held=True), {}, "its queue is held"),
        (
            QueueShare("q", max_job_gpu_milli=4000),
            {"gpus": 8},
            "its queue takes no job of more than 4 GPUs",
        ),
        (QueueShare("q", max_job_gpu_milli=4000), {"gpus": 4}, ""),
        (QueueShare("q", max_running=2), {}, "its queue runs the 2 jobs that it may"),
        (QueueShare("q", max_running=3), {}, ""),
        (QueueShare("q", capability={GPU: 3000}), {}, ""),
        (
            QueueShare("q", capability={GPU: 3000}),
            {"gpus": 2},
            "its queue is at its capability of 3 GPUs",
        ),
        (
            QueueShare("q", capability={"gpu/T4": 2500}),
            {"gpu_models": ("T4",)},
            "its queue is at its capability of 2.5 T4",
        ),
        (
            QueueShare("q", capability={MEMORY: 1000}),
            {"memory_mib": 2000},
            "its queue is at its capability of 1000 MiB of memory",
        ),
        (QueueShare("q", capability={GPU: 0}), {"gpus": 0}, ""),
    ],
)
def test_a_queue_stays_within_each_of_its_limits(
    share: QueueShare, pods: dict[str, Any], refusal: str
) -> None:
    asked = ask_of(job("one", **pods))
    assert right(share, used(T4=2000), 2, asked, MODELS).refusal == refusal


def test_a_job_that_takes_any_model_is_kept_from_those_of_which_its_queue_has_all() -> None:
    share = QueueShare("q", capability={"gpu/T4": 2000, "gpu/H100": 4000})
    has = used(T4=2000, H100=1000)
    assert right(share, has, 1, ask_of(job()), MODELS) == Right("", ("T4",))
    either = ask_of(job(gpu_models=("T4", "H100")))
    assert right(share, has, 1, either, MODELS) == Right("", ("T4",))
    assert right(share, used(H100=1000), 1, either, MODELS) == Right("")
    two_sets = job(pod_sets=(pod_set(name="a", gpus=2), pod_set(name="b", gpus=2)))
    assert right(share, used(H100=1000), 1, ask_of(two_sets), MODELS) == Right(
        "its queue is at its capability of 2 T4"
    )


def test_volcano_globals_capacity_vector() -> None:
    """Capability of 5 CPUs, 2 in use: two replicas of one CPU are let in, four are not."""
    share = QueueShare("q", capability={CPU: 5000})
    asked = [ask_of(job(gpus=0, cpu_milli=1000, count=count)) for count in (2, 4)]
    assert [right(share, {CPU: 2000}, 1, ask, ()).refusal for ask in asked] == [
        "",
        "its queue is at its capability of 5 CPUs",
    ]


def test_a_job_within_the_guarantee_is_not_one_that_reaches_beyond_it() -> None:
    share = QueueShare("q", guarantee={GPU: 4000}, deserved={GPU: 6000})

    def by(gpus: int, has: int) -> Tier:
        return tier(share, used(T4=has), ask_of(job(gpus=gpus)), MODELS)

    assert by(4, 0) is Tier.GUARANTEED
    assert by(1, 3500) is Tier.DESERVED
    assert by(2, 4000) is Tier.DESERVED
    assert by(3, 4000) is Tier.BORROWED
    assert by(0, 0) is Tier.BORROWED  # it takes nothing of what is guaranteed


def test_a_guarantee_of_a_model_is_for_jobs_that_name_it() -> None:
    share = QueueShare("q", guarantee={"gpu/H100": 2000})
    named = ask_of(job(gpus=2, gpu_models=("H100",)))
    assert tier(share, {}, named, MODELS) is Tier.GUARANTEED
    assert tier(share, used(H100=1000), named, MODELS) is Tier.BORROWED
    assert tier(share, {}, ask_of(job()), MODELS) is Tier.BORROWED
    assert tier(share, {}, ask_of(job(gpu_models=("T4",))), MODELS) is Tier.BORROWED


def test_models_are_meant_by_any_of_their_names() -> None:
    """People write what they know a model by, nodes what was found on them."""
    models = ("NVIDIA-H100-80GB-HBM3", "NVIDIA-L40S", "Tesla-T4")
    has = {GPU: 2000, "gpu/NVIDIA-H100-80GB-HBM3": 2000}
    share = QueueShare("q", capability={"gpu/H100": 2000}, guarantee={"gpu/h100 80GB": 3000})
    asked = ask_of(job(gpu_models=("H100-80GB",)))
    assert right(share, has, 1, asked, models).refusal == (
        "its queue is at its capability of 2 H100"
    )
    assert right(share, has, 1, ask_of(job(gpu_models=("L40S",))), models) == Right("")
    assert right(share, has, 1, ask_of(job()), models) == Right("", ("H100",))
    assert models_left((), ("H100",), models) == ("NVIDIA-L40S", "Tesla-T4")
    assert tier(share, has, asked, models) is Tier.GUARANTEED
    assert tier(share, has, ask_of(job(gpus=2, gpu_models=("H100",))), models) is Tier.BORROWED


# Shares


def test_the_dominant_share_is_the_largest_of_any_resource_by_weight() -> None:
    has = used(cpu=30_000, memory=100_000, T4=2000, H100=2000)
    assert dominant_share(has, TOTALS, 1.0) == 0.5  # half of the H100s
    assert dominant_share(has, TOTALS, 2.0) == 0.25
    assert dominant_share(used(cpu=30_000), TOTALS, 1.0) == 0.3
    assert dominant_share(used(cpu=30_000), TOTALS, 1.0, {CPU: 0.5}) == 0.15
    assert dominant_share(used(V100=8000), TOTALS, 1.0) == 0.0  # nobody has any
    assert dominant_share({}, {}, 1.0) == 0.0


@pytest.mark.parametrize(
    ("capacity", "demands", "factors", "shares"),
    [
        (100, {"a": 1, "b": 40, "c": 1000}, {}, {"a": 1, "b": 40, "c": 59}),
        (32, {"a": 32, "b": 32}, {}, {"a": 16, "b": 16}),
        (32, {"a": 32, "b": 32, "c": 10}, {}, {"a": 11, "b": 11, "c": 10}),
        (32, {"a": 32, "b": 32}, {"a": 2, "b": 1}, {"a": 10, "b": 21}),
    ],
)
def test_armadas_share_vectors(
    capacity: int, demands: dict[str, float], factors: dict[str, int], shares: dict[str, int]
) -> None:
    """What each queue should have; a weight is one over Armada's priority factor. Taking it from
    who has more now is preemption's part."""
    weights = {name: 1 / factor for name, factor in factors.items()}
    found = fair_shares(capacity, demands, weights)
    assert {name: int(share) for name, share in found.items()} == shares


@settings(max_examples=200, deadline=None)
@given(
    capacity=st.integers(0, 1000),
    demands=st.dictionaries(st.sampled_from("abcde"), st.integers(0, 500), max_size=5),
    weights=st.dictionaries(st.sampled_from("abcde"), st.sampled_from([0.5, 1.0, 3.0])),
)
def test_fair_shares_leave_nothing_over_that_anybody_wants(
    capacity: int, demands: dict[str, float], weights: dict[str, float]
) -> None:
    shares = fair_shares(capacity, demands, weights)
    assert all(shares[name] <= demands[name] + 1e-6 for name in demands)
    given_out = sum(shares.values())
    assert given_out == pytest.approx(min(capacity, sum(demands.values())), abs=1e-6)
    # Nobody who has not all that it wants has less by weight than anybody else.
    levels = {name: shares[name] / weights.get(name, 1.0) for name in demands}
    for name, demand in demands.items():
        if shares[name] < demand - 1e-6:
            assert levels[name] >= max(levels.values()) - 1e-6


def test_guarantees_that_cannot_all_be_kept_are_told() -> None:
    shares = {
        "a": QueueShare("a", guarantee={GPU: 8000, "gpu/H100": 3000}),
        "b": QueueShare("b", guarantee={GPU: 5000, "gpu/H100": 1500, CPU: 1000}),
        "c": QueueShare("c"),
    }
    assert overcommitted(shares, TOTALS) == {
        GPU: "guarantees of 13 GPUs are promised, the fleet has 12 GPUs",
        "gpu/H100": "guarantees of 4.5 H100 are promised, the fleet has 4 H100",
    }
    assert overcommitted({"a": shares["a"]}, TOTALS) == {}
