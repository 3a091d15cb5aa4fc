"""The vectors that are published of OCM's Placement, each by its name in the reference."""

import pytest

from berthmaster.hub.placement.core.pages import pages
from berthmaster.hub.placement.core.scheduling.scheduler import schedule
from tests.unit.hub.placement.objects import (
    NOW_S,
    cluster,
    exactly,
    named,
    policy,
    request,
    score,
    snapshot,
    taint,
)

ADDON = "AddOn/demo/demo"


def totals(found: object) -> dict[str, int]:
    return {one.cluster: one.total for one in found.ranked}  # type: ignore[attr-defined]


def test_addon_c1_30_only_gives_30_0_0() -> None:
    wanted = request(prioritizerPolicy=exactly((ADDON, 1)))
    found = schedule(snapshot(named("c1", "c2", "c3"), scores=[score("c1", 30)]), wanted)
    assert totals(found) == {"c1": 30, "c2": 0, "c3": 0}


def test_addon_30_expired_40_50_gives_0_40_50() -> None:
    scores = [score("c1", 30, valid_s=-1), score("c2", 40, valid_s=60), score("c3", 50)]
    wanted = request(prioritizerPolicy=exactly((ADDON, 1)))
    found = schedule(snapshot(named("c1", "c2", "c3"), scores=scores), wanted)
    assert totals(found) == {"c1": 0, "c2": 40, "c3": 50}
    assert found.notes == ("AddOnPlacementScores demo expired of c1",)
    assert found.again_at_s == pytest.approx(NOW_S + 60, abs=0.01)  # when the next one runs out


def test_balance_with_c1_c2_and_c1_c3_decided_elsewhere_gives_minus_100_0_0() -> None:
    wanted = request(prioritizerPolicy=exactly(("Balance", 1)))
    elsewhere = {"c1": 2, "c2": 1, "c3": 1}
    found = schedule(snapshot(named("c1", "c2", "c3"), elsewhere=elsewhere), wanted)
    assert totals(found) == {"c1": -100, "c2": 0, "c3": 0}


def test_steady_with_c1_c3_decided_gives_100_0_100() -> None:
    wanted = request(prioritizerPolicy=exactly(("Steady", 1)))
    found = schedule(snapshot(named("c1", "c2", "c3"), decided=["c1", "c3"]), wanted)
    assert totals(found) == {"c1": 100, "c2": 0, "c3": 100}


@pytest.mark.parametrize(
    ("amounts", "scores"),
    [(("20", "60", "100"), (-100, 0, 100)), (("50", "50", "50"), (100, 100, 100))],
)
def test_memory_20_60_100_gives_minus_100_0_100_and_50_thrice_100_thrice(
    amounts: tuple[str, str, str], scores: tuple[int, int, int]
) -> None:
    wanted = request(prioritizerPolicy=exactly(("ResourceAllocatableMemory", 1)))
    clusters = [cluster(f"c{n}", memory=amount) for n, amount in enumerate(amounts, 1)]
    found = totals(schedule(snapshot(clusters), wanted))
    assert tuple(found[f"c{n}"] for n in (1, 2, 3)) == scores


def test_additive_two_clusters_balance_3_memory_1_addon_1_chooses_c1_c2_with_430_340_250() -> None:
    clusters = [cluster(f"c{n}", memory=amount) for n, amount in ((1, "100"), (2, "50"), (3, "0"))]
    scores = [score("c1", 30), score("c2", 40), score("c3", 50)]
    wanted = request(
        numberOfClusters=2,
        prioritizerPolicy=policy(
            "Additive", ("Balance", 3), ("ResourceAllocatableMemory", 1), (ADDON, 1)
        ),
    )
    found = schedule(snapshot(clusters, scores=scores), wanted)
    assert [one.cluster for one in found.selected] == ["c1", "c2"]
    assert totals(found) == {"c1": 430, "c2": 340, "c3": 250}
    assert found.weights == (
        ("Balance", 3),
        ("Steady", 1),
        ("ResourceAllocatableMemory", 1),
        (ADDON, 1),
    )
    assert [one.parts for one in found.ranked] == [
        (100, 0, 100, 30),
        (100, 0, 0, 40),
        (100, 0, -100, 50),
    ]


def test_toleration_10_s_taints_8_9_and_10_s_old_leaves_c1_c2_and_looks_again_in_1_s() -> None:
    clusters = [
        cluster("c1", taints=[taint(age_s=8)]),
        cluster("c2", taints=[taint(age_s=9)]),
        cluster("c3", taints=[taint(age_s=10)]),
    ]
    wanted = request(tolerations=[{"key": "gone", "operator": "Exists", "tolerationSeconds": 10}])
    found = schedule(snapshot(clusters), wanted)
    assert sorted(one.cluster for one in found.selected) == ["c1", "c2"]
    assert found.again_at_s == NOW_S + 1


def test_101_clusters_are_decisions_of_100_and_1() -> None:
    wanted = request()
    found = schedule(snapshot(named(*(f"c{n:03}" for n in range(101)))), wanted)
    made, groups = pages(wanted, found)
    assert [(page.name, len(page.decisions)) for page in made] == [
        ("p-decision-1", 100),
        ("p-decision-2", 1),
    ]
    assert [(one.cluster_count, one.decisions) for one in groups] == [
        (101, ("p-decision-1", "p-decision-2"))
    ]
