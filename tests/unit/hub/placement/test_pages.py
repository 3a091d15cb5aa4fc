"""Groups, pages and rankings: every decision exactly once, in bounds, and in order."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.hub.placement.core.objects import PAGE_LIMIT, CandidateCluster
from berthmaster.hub.placement.core.pages import (
    MAX_RANKING_CHARS,
    MAX_REASON_CHARS,
    Page,
    pages,
    ranking,
)
from berthmaster.hub.placement.core.scheduling.request import Request
from berthmaster.hub.placement.core.scheduling.scheduler import ScheduleResult, schedule
from tests.unit.hub.placement.objects import (
    UNHURRIED,
    answered,
    cluster,
    exactly,
    named,
    request,
    score,
    snapshot,
    where,
)

Told = list[tuple[str, int, str]]


def made(clusters: list[CandidateCluster], **spec: Any) -> tuple[tuple[Page, ...], Told]:
    wanted = request(**spec)
    found, groups = pages(wanted, answered(schedule, snapshot(clusters), wanted))
    told = [
        (one.decision_group_name, one.cluster_count, ",".join(one.decisions or ()))
        for one in groups
    ]
    assert [one.decision_group_index for one in groups] == list(range(len(groups)))
    return found, told


def strategy(per_group: str | int = "100%", *groups: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    found = [{"groupName": name, "groupClusterSelector": selector} for name, selector in groups]
    return {"groupStrategy": {"clustersPerDecisionGroup": per_group, "decisionGroups": found}}


CANARY = ("canary", {"labelSelector": {"matchLabels": {"canary": "yes"}}})
EUROPE = (
    "europe",
    {
        "claimSelector": {
            "matchExpressions": [{"key": "region", "operator": "In", "values": ["eu"]}]
        }
    },
)
FIVE = [
    cluster("a", labels={"canary": "yes"}),
    cluster("b", claims={"region": "eu"}),
    cluster("c", labels={"canary": "yes"}, claims={"region": "eu"}),
    cluster("d"),
    cluster("e"),
]


def members(found: tuple[Page, ...]) -> list[str]:
    return ["".join(page.clusters) for page in found]


@pytest.mark.parametrize(
    ("told", "groups", "shown"),
    [
        (strategy(), ["abcde"], [("", 5, "p-decision-1")]),
        (strategy(0), ["abcde"], [("", 5, "p-decision-1")]),
        (strategy(99), ["abcde"], [("", 5, "p-decision-1")]),
        (
            strategy(2),
            ["ab", "cd", "e"],
            [("", 2, "p-decision-1"), ("", 2, "p-decision-2"), ("", 1, "p-decision-3")],
        ),
        # 21 % of 5 is 1.05, and so 2.
        (
            strategy("21%"),
            ["ab", "cd", "e"],
            [("", 2, "p-decision-1"), ("", 2, "p-decision-2"), ("", 1, "p-decision-3")],
        ),
        (strategy("0%"), ["abcde"], [("", 5, "p-decision-1")]),
        (
            strategy("100%", CANARY),
            ["ac", "bde"],
            [("canary", 2, "p-decision-1"), ("", 3, "p-decision-2")],
        ),
        # Who is in two groups is in the first.
        (
            strategy("100%", CANARY, EUROPE),
            ["ac", "b", "de"],
            [("canary", 2, "p-decision-1"), ("europe", 1, "p-decision-2"), ("", 2, "p-decision-3")],
        ),
        (
            strategy(1, EUROPE, CANARY),
            ["b", "c", "a", "d", "e"],
            [
                ("europe", 1, "p-decision-1"),
                ("europe", 1, "p-decision-2"),
                ("canary", 1, "p-decision-3"),
                ("", 1, "p-decision-4"),
                ("", 1, "p-decision-5"),
            ],
        ),
        (strategy("100%", ("all", {})), ["abcde"], [("all", 5, "p-decision-1")]),
    ],
)
def test_decision_groups(told: dict[str, Any], groups: list[str], shown: Told) -> None:
    found, status = made(FIVE, decisionStrategy=told)
    assert members(found) == groups
    assert status == shown


def test_nothing_selected_is_one_empty_page() -> None:
    found, status = made(FIVE, predicates=[where(cel=["false"])])
    assert members(found) == [""]
    assert status == [("", 0, "p-decision-1")]


def test_pages_carry_their_labels() -> None:
    found, _ = made(FIVE, decisionStrategy=strategy(100, CANARY))
    prefix = "cluster.open-cluster-management.io"
    assert [page.labels for page in found] == [
        {
            f"{prefix}/placement": "p",
            f"{prefix}/decision-group-name": group,
            f"{prefix}/decision-group-index": index,
        }
        for group, index in (("canary", "0"), ("", "1"))
    ]


def test_decisions_are_in_the_order_of_names_or_of_scores() -> None:
    clusters = named("a", "b", "c")
    now = snapshot(clusters, scores=[score("a", 1), score("b", 3), score("c", 2)])
    for order, wanted in (("ClusterName", "abc"), ("Score", "bca"), ("", "abc")):
        asked = request(sortBy=order, prioritizerPolicy=exactly(("AddOn/demo/demo", 1)))
        found, _ = pages(asked, schedule(now, asked))
        assert members(found) == [wanted]


def test_a_decision_says_its_score_and_the_parts_of_it() -> None:
    clusters = named("a")
    asked = request(prioritizerPolicy=exactly(("Steady", 2), ("AddOn/demo/demo", -3)))
    now = snapshot(clusters, scores=[score("a", 7)], decided=["a"])
    [page], _ = pages(asked, schedule(now, asked))
    [decision] = page.decisions
    assert decision.score == 179
    assert decision.reason == "score 179: Steady 2*100, AddOn/demo/demo -3*7"
    many = [(f"AddOn/{'r' * 60}{n}/{'s' * 60}", 1) for n in range(20)]
    asked = request(prioritizerPolicy=exactly(*many))
    [page], _ = pages(asked, schedule(now, asked))
    assert len(page.decisions[0].reason) == MAX_REASON_CHARS


def outcome_of(count: int, **spec: Any) -> tuple[Request, ScheduleResult]:
    asked = request(**spec)
    clusters = [cluster(f"a-cluster-with-a-longer-name-{n:04}") for n in range(count)]
    return asked, schedule(snapshot(clusters), asked)


def test_the_ranking_shows_all_that_passed_best_first_and_what_was_left_out() -> None:
    clusters = [*named("a", "b"), cluster("c", labels={"no": "x"})]
    no = {"matchExpressions": [{"key": "no", "operator": "DoesNotExist"}]}
    asked = request(
        numberOfClusters=1,
        predicates=[where(label=no)],
        prioritizerPolicy=exactly(("AddOn/demo/demo", 1)),
    )
    now = snapshot(clusters, scores=[score("b", 9)])
    assert json.loads(ranking(schedule(now, asked))) == {
        "of": 3,
        "left_out": {"Predicate": 1},
        "weights": [["AddOn/demo/demo", 1]],
        "ranked": [["b", 9], ["a", 0]],
    }


@pytest.mark.parametrize("count", [0, 1, 60, 1000])
def test_a_ranking_is_bounded_and_says_how_many_it_leaves_out(count: int) -> None:
    many = [(f"AddOn/{'r' * 150}{n}/{'s' * 150}", 1) for n in range(50)]
    for policy in (exactly(), exactly(*many)):
        text = ranking(outcome_of(count, prioritizerPolicy=policy)[1])
        assert len(text) <= MAX_RANKING_CHARS
        told = json.loads(text)
        assert len(told["ranked"]) + told.get("more", 0) == count


@UNHURRIED
@given(
    count=st.integers(0, 450),
    per_group=st.integers(0, 300) | st.integers(1, 100).map(lambda n: f"{n}%"),
    number=st.none() | st.integers(0, 500),
    canaries=st.integers(1, 10),
    by_score=st.booleans(),
)
def test_every_decision_is_on_exactly_one_page_of_at_most_a_hundred(
    count: int, per_group: int | str, number: int | None, canaries: int, by_score: bool
) -> None:
    clusters = [
        cluster(f"c{n:03}", labels={"canary": "yes"} if n % canaries == 0 else {})
        for n in range(count)
    ]
    spec: dict[str, Any] = {} if number is None else {"numberOfClusters": number}
    asked = request(
        decisionStrategy=strategy(per_group, CANARY),
        sortBy="Score" if by_score else "ClusterName",
        **spec,
    )
    outcome = schedule(snapshot(clusters), asked)
    found, groups = pages(asked, outcome)
    on_pages = [name for page in found for name in page.clusters]
    assert sorted(on_pages) == sorted(one.cluster for one in outcome.selected)
    assert len(on_pages) == len(set(on_pages)) == (count if number is None else min(count, number))
    assert all(len(page.clusters) <= PAGE_LIMIT for page in found)
    assert [page.name for page in found] == [f"p-decision-{n + 1}" for n in range(len(found))]
    assert [name for one in groups for name in one.decisions or ()] == [one.name for one in found]
    assert sum(one.cluster_count for one in groups) == len(on_pages)
    # The same again is the same again.
    assert (found, groups) == pages(asked, schedule(snapshot(reversed(clusters)), asked))
