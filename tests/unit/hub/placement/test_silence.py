"""Whose silence it is when scores run out: that of a cluster, or of who tells them."""

from typing import Any

import msgspec
import pytest

from berthmaster.lib.kube.objects import Condition
from tests.unit.hub.placement.hub import Hub
from tests.unit.hub.placement.objects import cluster, exactly, named, page, placement, policy, score

BY_SCORE = exactly(("AddOn/demo/demo", 1))


def ours(cluster: str, value: int, reason: str = "Live", *, valid_s: float = 300) -> Any:
    """A score that Berthmaster writes."""
    found = score(cluster, value, valid_s=valid_s)
    labels = {"app.kubernetes.io/managed-by": "berthmaster"}
    fresh = Condition(type="Fresh", status="True" if reason == "Live" else "False", reason=reason)
    return msgspec.structs.replace(
        found,
        metadata=msgspec.structs.replace(found.metadata, labels=labels),
        status=msgspec.structs.replace(found.status, conditions=(fresh,)),
    )


def test_scores_of_ours_that_run_out_one_after_the_other_move_nobody() -> None:
    values = {"a": 10, "b": 70, "c": 40}
    hub = Hub(
        *named(*values), placement(numberOfClusters=1, prioritizerPolicy=BY_SCORE),
        *(ours(name, value, valid_s=100 + value) for name, value in values.items()),
    )  # fmt: skip
    hub.settle()
    assert hub.pages() == ["b"]
    for _ in range(20):
        hub.now_s += 10
        assert hub.settle() == []
    assert hub.core.wake_at_s() == float("inf")
    assert hub.told("ScoresExpired")[-1] == (
        "AddOnPlacementScores demo expired of a, b, c; nobody renews them, and they stay"
    )


@pytest.mark.parametrize("reason", ["Withdrawn", "Stale"])
def test_when_all_clusters_are_silent_who_is_chosen_stays(reason: str) -> None:
    hub = Hub(
        *named("a", "b", "c"), placement(numberOfClusters=1, prioritizerPolicy=BY_SCORE),
        *(ours(name, value) for name, value in (("a", 10), ("b", 70), ("c", 40))),
    )  # fmt: skip
    hub.settle()
    for name in "cab":
        hub.set(ours(name, -100, reason))
    hub.settle()
    assert hub.pages() == ["b"]
    assert hub.told("ScoresExpired")[-1].endswith("who is chosen stays")
    # One that tells is better than those that do not, and a chosen one that is gone is replaced.
    hub.set(ours("c", -90))
    hub.settle()
    assert hub.pages() == ["c"]
    hub.set(ours("c", -100, reason))
    hub.settle()
    hub.set(cluster("c", in_set=""))
    hub.settle()
    assert hub.pages() == ["a"]


def test_when_all_scores_of_an_addon_run_out_who_is_chosen_stays_whatever_else_weighs() -> None:
    both = policy("Additive", ("AddOn/demo/demo", 5))
    hub = Hub(
        *named("a", "b", "c"), placement(numberOfClusters=1, prioritizerPolicy=both),
        *(score(name, value, valid_s=60) for name, value in (("a", 10), ("b", 70), ("c", 40))),
    )  # fmt: skip
    hub.settle()
    assert hub.pages() == ["b"]
    for number in range(3):
        hub.set(page(f"others{number}", 1, ["b"]))
    hub.settle()
    hub.now_s += 61
    hub.settle()
    assert hub.pages() == ["b"]
    # Another measure that is known counts.
    measured = policy("Exact", ("AddOn/demo/demo", 5), ("ResourceAllocatableCPU", 1))
    hub.edit(placement(numberOfClusters=1, prioritizerPolicy=measured, generation=2))
    hub.set(cluster("c", cpu="8"))
    hub.settle()
    assert hub.pages() == ["c"]
