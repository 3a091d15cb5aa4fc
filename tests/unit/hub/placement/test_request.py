"""A Placement is read whole, or refused with the place that is wrong and what is right."""

from typing import Any

import pytest

from berthmaster.hub.placement.core.objects import HYSTERESIS, UNKNOWN_SCORES, Misconfigured
from berthmaster.hub.placement.core.scheduling.request import Weighted, read
from tests.unit.hub.placement.objects import exactly, placement, policy, request, where

ADDON = Weighted("AddOn/gpus/free", 3, "gpus", "free")


def test_an_empty_placement_asks_for_all_and_ranks_by_balance_and_steady() -> None:
    found = request()
    assert (found.number, found.predicates, found.groups, found.notes) == (None, (), (), ())
    assert found.prioritizers == (Weighted("Balance", 1), Weighted("Steady", 1))
    assert (found.worst_if_unknown, found.margin, found.rate_limit_s) == (False, 0, 60.0)


@pytest.mark.parametrize(
    ("told", "weights"),
    [
        (policy("Additive"), (Weighted("Balance", 1), Weighted("Steady", 1))),
        (policy(""), (Weighted("Balance", 1), Weighted("Steady", 1))),
        (exactly(), ()),
        (exactly(("Steady", 2)), (Weighted("Steady", 2),)),
        (policy("Additive", ("Steady", 0)), (Weighted("Balance", 1),)),
        (policy("Additive", ("Balance", -10)), (Weighted("Balance", -10), Weighted("Steady", 1))),
        (exactly(("Steady", 2), ("Steady", 5)), (Weighted("Steady", 5),)),  # the last counts
        (exactly(("AddOn/gpus/free", 3)), (ADDON,)),
        (exactly(("AddOn/gpus/free", 3), ("AddOn/gpus/free", 3)), (ADDON, ADDON)),
        (
            exactly(("AddOn/gpus/free", 3), ("ResourceAllocatableCPU", 1)),
            (Weighted("ResourceAllocatableCPU", 1), ADDON),
        ),
        (exactly(("Unheard", 0)), ()),  # of weight 0 nobody asks, as with OCM
    ],
)
def test_weights_by_mode(told: dict[str, Any], weights: tuple[Weighted, ...]) -> None:
    assert request(prioritizerPolicy=told).prioritizers == weights


COORDINATE = {"type": "BuiltIn", "builtIn": "Steady"}


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"numberOfClusters": -1}, "Placement: numberOfClusters -1: at least 0"),
        ({"sortBy": "Age"}, "Placement: sortBy 'Age': ClusterName or Score"),
        ({"scoreRateLimit": "soon"}, "Placement: scoreRateLimit 'soon': such as 30s, 5m or 1h"),
        (
            {"annotations": {UNKNOWN_SCORES: "maybe"}},
            f"Placement: {UNKNOWN_SCORES} 'maybe': zero or worst",
        ),
        (
            {"annotations": {HYSTERESIS: "-1"}},
            f"Placement: {HYSTERESIS} '-1': points from 0 to 1000000",
        ),
        (
            {"annotations": {HYSTERESIS: "9999999"}},
            f"Placement: {HYSTERESIS} '9999999': points from 0 to 1000000",
        ),
        (
            {"prioritizerPolicy": {"mode": "Roughly"}},
            "Prioritizers: incorrect prioritizer policy mode: 'Roughly', Additive or Exact",
        ),
        (
            {"prioritizerPolicy": {"mode": "Exact", "configurations": [{"weight": 1}]}},
            "Prioritizers: configurations[0]: scoreCoordinate field is required",
        ),
        (
            {"prioritizerPolicy": exactly(("Steady", 1), ("Balance", 11))},
            "Prioritizers: configurations[1]: weight 11, right is -10 to 10",
        ),
        (
            {"prioritizerPolicy": exactly(("Steady", -(10**9)))},
            "Prioritizers: configurations[0]: weight -1000000000, right is -10 to 10",
        ),
        (
            {"prioritizerPolicy": exactly(("Stady", 1))},
            "Prioritizers: configurations[0]: incorrect builtin prioritizer: 'Stady', Balance, ",
        ),
        (
            {"prioritizerPolicy": exactly(("AddOn", 1))},
            "Prioritizers: configurations[0]: addOn should not be empty: resourceName and",
        ),
        (
            {"prioritizerPolicy": {"configurations": [{"scoreCoordinate": {"type": "Other"}}]}},
            "Prioritizers: configurations[0]: type 'Other': BuiltIn or AddOn",
        ),
        (
            {"prioritizerPolicy": {"configurations": [{"scoreCoordinate": COORDINATE}] * 101}},
            "Prioritizers: 101 configurations, at most 100",
        ),
        (
            {"tolerations": [{"key": "a"}, {"value": "v"}]},
            "TaintToleration: tolerations[1]: if the key is empty, operator must be Exists",
        ),
        (
            {"tolerations": [{"key": "a", "operator": "Exists", "value": "v"}]},
            "TaintToleration: tolerations[0]: if the operator is Exists, the value should be empty",
        ),
        (
            {"tolerations": [{"key": "a", "operator": "Like"}]},
            "TaintToleration: tolerations[0]: operator 'Like': Equal or Exists",
        ),
        (
            {"predicates": [where(), where(label={"matchLabels": {"-": "a"}})]},
            "Predicate: predicates[1].labelSelector: matchLabels: '-' is no label",
        ),
        (
            {"predicates": [where(claim={"matchExpressions": [{"key": "a", "operator": "Is"}]})]},
            "Predicate: predicates[0].claimSelector: matchExpressions 'a': operator 'Is'",
        ),
        ({"predicates": [where(cel=["true"] * 101)]}, "Predicate: 101 celExpressions, at most 100"),
        ({"predicates": [where()] * 101}, "Predicate: 101 predicates, at most 100"),
        (
            {"decisionStrategy": {"groupStrategy": {"clustersPerDecisionGroup": "many"}}},
            "DecisionStrategy: clustersPerDecisionGroup 'many': a number, or a percentage",
        ),
        (
            {"decisionStrategy": {"groupStrategy": {"clustersPerDecisionGroup": "20"}}},
            "DecisionStrategy: clustersPerDecisionGroup '20'",  # as with OCM
        ),
        (
            {"decisionStrategy": {"groupStrategy": {"decisionGroups": [{"groupName": "a b"}]}}},
            "DecisionStrategy: decisionGroups[0]: groupName 'a b'",
        ),
        ({"name": "n" * 64}, "Placement: its name has 64 characters"),
        ({"name": "n" * 253}, "Placement: its name has 253 characters"),
    ],
)
def test_what_is_wrong_is_named(spec: dict[str, Any], problem: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        read(placement(**spec))
    assert str(caught.value).startswith(problem)
    assert len(str(caught.value)) < 600


def test_a_spread_policy_is_accepted_and_told_as_not_obeyed() -> None:
    spread = {"spreadConstraints": [{"topologyKey": "zone", "topologyKeyType": "Label"}]}
    assert request(spreadPolicy=spread).notes == (
        "spec.spreadPolicy is not obeyed, as by Open Cluster Management itself",
    )
    assert request(spreadPolicy={}).notes == ()


def test_which_scores_can_matter() -> None:
    by_addon = request(prioritizerPolicy=exactly(("AddOn/gpus/free", 3)))
    assert by_addon.reads("gpus")
    assert not by_addon.reads("other")
    by_expression = request(predicates=[where(cel=["managedCluster.scores('x') == []"])])
    assert by_expression.reads("anything")
    assert not request().reads("gpus")


def test_limits_of_time() -> None:
    assert [request(scoreRateLimit=told).rate_limit_s for told in ("0s", "30s", "5m", "1h")] == [
        0,
        30,
        300,
        3600,
    ]
