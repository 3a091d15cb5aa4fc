"""Which clusters a namespace may choose from."""

from typing import Any

import msgspec
import pytest

from berthmaster.hub.placement.core.objects import (
    CandidateCluster,
    ManagedClusterSet,
    Misconfigured,
)
from berthmaster.hub.placement.core.scheduling.scheduler import schedule
from berthmaster.hub.placement.core.status import satisfied
from tests.unit.hub.placement.objects import (
    cluster,
    cluster_set,
    everything,
    named,
    request,
    snapshot,
    taint,
    where,
)

CLUSTERS = [
    cluster("a", in_set="one"),
    cluster("b", in_set="two", labels={"tier": "gold"}),
    cluster("c", in_set=""),
]
SETS = [
    cluster_set("one"),
    cluster_set("two"),
    cluster_set(
        "gold", selectorType="LabelSelector", labelSelector={"matchLabels": {"tier": "gold"}}
    ),
    cluster_set("nothing", selectorType="LabelSelector"),
    everything(),
]


@pytest.mark.parametrize(
    ("bound", "wanted", "eligible", "chosen"),
    [
        (["one"], [], ("one",), "a"),
        (["one", "two"], [], ("one", "two"), "ab"),
        (["one", "two"], ["two", "unbound"], ("two",), "b"),
        (["gold"], [], ("gold",), "b"),
        (["gold", "two"], [], ("gold", "two"), "b"),  # once, though in both
        (["global"], [], ("global",), "abc"),
        (["nothing"], [], ("nothing",), ""),
        (["one", "unmade"], [], ("one",), "a"),  # bound to a set that is not there
        (["one"], ["two"], (), ""),
        ([], ["one"], (), ""),
    ],
)
def test_bound_sets_and_wanted_ones_meet(
    bound: list[str], wanted: list[str], eligible: tuple[str, ...], chosen: str
) -> None:
    now = snapshot(CLUSTERS, sets=SETS, bound=bound)
    found = schedule(now, request(clusterSets=wanted))
    assert found.eligible == eligible
    assert "".join(one.cluster for one in found.selected) == chosen


def test_a_cluster_that_is_being_deleted_is_in_no_set() -> None:
    plain = cluster("a")
    leaving = msgspec.structs.replace(
        plain,
        metadata=msgspec.structs.replace(plain.metadata, deletion_timestamp="2026-01-01T00:00:00Z"),
    )
    found = schedule(snapshot([leaving, cluster("b")]), request())
    assert [one.cluster for one in found.selected] == ["b"]


@pytest.mark.parametrize(
    ("selector", "problem"),
    [
        ({"selectorType": "Legacy"}, "ManagedClusterSet all: selectorType 'Legacy'"),
        (
            {
                "selectorType": "LabelSelector",
                "labelSelector": {"matchExpressions": [{"key": "a", "operator": "Gt"}]},
            },
            "ManagedClusterSet all: matchExpressions 'a': operator 'Gt'",
        ),
    ],
)
def test_a_set_that_nobody_understands_is_no_empty_one(
    selector: dict[str, Any], problem: str
) -> None:
    odd: ManagedClusterSet = cluster_set("all", **selector)
    with pytest.raises(Misconfigured) as caught:
        schedule(snapshot(named("a"), sets=[odd]), request())
    assert problem in str(caught.value)


TAINTED: list[CandidateCluster] = [cluster("a", taints=[taint()])]


@pytest.mark.parametrize(
    ("given", "spec", "verdict"),
    [
        ({"bound": []}, {}, (False, "NoManagedClusterSetBindings")),
        ({"sets": []}, {}, (False, "NoManagedClusterSetBindings")),
        ({}, {"clusterSets": ["other"]}, (False, "NoIntersection")),
        ({"clusters": []}, {}, (False, "AllManagedClusterSetsEmpty")),
        ({"clusters": TAINTED}, {}, (False, "NoManagedClusterMatched")),
        (
            {},
            {"predicates": [where(label={"matchLabels": {"no": "thing"}})]},
            (False, "NoManagedClusterMatched"),
        ),
        ({}, {"numberOfClusters": 0}, (False, "NoManagedClusterMatched")),  # as OCM has it
        ({}, {"numberOfClusters": 3}, (False, "NotAllDecisionsScheduled")),
        ({}, {"numberOfClusters": 2}, (True, "AllDecisionsScheduled")),
        ({}, {"numberOfClusters": 1}, (True, "AllDecisionsScheduled")),
        ({}, {}, (True, "AllDecisionsScheduled")),
    ],
)
def test_every_reason_of_the_condition(
    given: dict[str, Any], spec: dict[str, Any], verdict: tuple[bool, str]
) -> None:
    clusters = given.pop("clusters", None)
    now = snapshot(named("a", "b") if clusters is None else clusters, **given)
    found = satisfied(schedule(now, request(**spec)), spec.get("clusterSets", ()))
    assert (found.holds, found.reason) == verdict
    assert found.type == "PlacementSatisfied"
    assert found.message
