"""Each plugin by a table: what goes in, what comes out, and that it keeps its bounds."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.hub.placement.core.objects import (
    AddOnPlacementScore,
    CandidateCluster,
    Misconfigured,
)
from berthmaster.hub.placement.core.scheduling.plugin import (
    LEAST,
    MOST,
    Prioritizer,
    Unfinished,
    Verdicts,
)
from berthmaster.hub.placement.core.scheduling.plugins import (
    addon,
    allocatable,
    balance,
    predicate,
    steady,
    tainttoleration,
)
from berthmaster.hub.placement.core.scheduling.scheduler import (
    BUILT_IN,
    DESCRIPTIONS,
    FILTERS,
    schedule,
)
from tests.unit.hub.placement.objects import (
    NOW_S,
    UNHURRIED,
    answered,
    cluster,
    exactly,
    named,
    request,
    score,
    snapshot,
    taint,
    where,
)

ABC = ("a", "b", "c")


# ---- prioritizers


@pytest.mark.parametrize(
    ("elsewhere", "scores"),
    [
        ({}, (100, 100, 100)),
        ({"a": 1}, (-100, 100, 100)),
        ({"a": 3, "b": 1}, (-100, 32, 100)),  # 2 * int(100 * (0.5 - 1/3))
        ({"a": 3, "b": 2, "c": 1}, (-100, -32, 32)),  # toward zero
        ({"elsewhere": 4, "a": 1}, (50, 100, 100)),  # the most chosen may be none of ours
    ],
)
def test_balance(elsewhere: Mapping[str, int], scores: tuple[int, ...]) -> None:
    found = balance.score(snapshot(elsewhere=elsewhere), request(), named(*ABC))
    assert found.scores == dict(zip(ABC, scores, strict=True))


def test_steady() -> None:
    found = steady.score(snapshot(decided=["b", "gone"]), request(), named(*ABC))
    assert found.scores == {"a": 0, "b": 100, "c": 0}


@pytest.mark.parametrize(
    ("cpu", "scores", "unknown"),
    [
        (("1", "2", "3"), {"a": -100, "b": 0, "c": 100}, ""),
        (("500m", "1", "2"), {"a": -100, "b": -33, "c": 100}, ""),
        (("4", "4", "4"), {"a": 100, "b": 100, "c": 100}, ""),
        (("4", "", "8"), {"a": -100, "c": 100}, "b"),
        (("4", "nonsense", "8"), {"a": -100, "c": 100}, "b"),
        (("", "", ""), {}, "abc"),
        (("0", "0", "0"), {"a": 100, "b": 100, "c": 100}, ""),
    ],
)
def test_resource_allocatable(
    cpu: tuple[str, ...], scores: Mapping[str, int], unknown: str
) -> None:
    clusters = [cluster(name, cpu=told) for name, told in zip(ABC, cpu, strict=True)]
    found = allocatable.score_cpu(snapshot(), request(), clusters)
    assert (found.scores, found.unknown) == (scores, frozenset(unknown))


def test_what_is_allocatable_counts_only_beside_a_capacity() -> None:
    only_allocatable = cluster("b", allocatable={"memory": "8Gi"}, capacity={})
    clusters = [cluster("a", memory="4Gi"), only_allocatable]
    found = allocatable.score_memory(snapshot(), request(), clusters)
    assert (found.scores, found.unknown) == ({"a": 100}, frozenset("b"))


@pytest.mark.parametrize(
    ("written", "value", "again_s"),
    [
        (score("a", 30), 30, None),
        (score("a", -100, valid_s=9), -100, 9),
        (score("a", 30, valid_s=0), 30, 0),  # it holds at the very end of its time
        (score("a", 30, valid_s=-1), None, None),
        (score("a", 30, name="other"), None, None),
        (score("a", 30, resource="other"), None, None),
        (score("b", 30), None, None),
        (score("a", 1_000_000), 100, None),
        (score("a", -1_000_000), -100, None),
    ],
)
def test_addon(written: Any, value: int | None, again_s: float | None) -> None:
    found = addon.prioritizer("demo", "demo")(snapshot(scores=[written]), request(), named("a"))
    assert found.scores == ({} if value is None else {"a": value})
    assert found.unknown == (frozenset("a") if value is None else frozenset())
    wanted = None if again_s is None else pytest.approx(NOW_S + again_s + addon.TICK_S)
    assert found.again_at_s == wanted


def test_a_score_whose_time_is_none_has_run_out() -> None:
    good = score("a", 30, valid_s=1)
    soon = msgspec.structs.replace(good.status, valid_until="soon")
    bad = msgspec.structs.replace(good, status=soon)
    found = addon.prioritizer("demo", "demo")(snapshot(scores=[bad]), request(), named("a"))
    assert (found.unknown, found.notes) == (
        frozenset("a"),
        ("AddOnPlacementScores demo expired of a",),
    )


def test_of_many_scores_that_ran_out_ten_are_named() -> None:
    names = [f"c{n:02}" for n in range(12)]
    scores = [score(name, 1, valid_s=-1) for name in names]
    found = addon.prioritizer("demo", "demo")(snapshot(scores=scores), request(), named(*names))
    assert found.notes == (
        f"AddOnPlacementScores demo expired of {', '.join(names[:10])} and 2 more",
    )


AMOUNTS = st.integers(0, 10**15).map(str) | st.sampled_from(["", "x", "1Gi", "1e3", "-5"])


@UNHURRIED
@given(
    amounts=st.lists(AMOUNTS, min_size=1, max_size=8),
    counts=st.lists(st.integers(0, 50), max_size=8),
    values=st.lists(st.integers(-(2**31), 2**31), max_size=8),
    decided=st.sets(st.integers(0, 7)),
)
def test_every_prioritizer_keeps_its_bounds_and_scores_or_does_not_know_each_cluster(
    amounts: list[str], counts: list[int], values: list[int], decided: set[int]
) -> None:
    clusters = [cluster(f"c{n}", cpu=told, memory=told) for n, told in enumerate(amounts)]
    now = snapshot(
        clusters,
        elsewhere={f"c{n}": count for n, count in enumerate(counts) if count},
        scores=[score(f"c{n}", value) for n, value in enumerate(values)],
        decided=[f"c{n}" for n in decided],
    )
    plugins: Sequence[Prioritizer] = (*BUILT_IN.values(), addon.prioritizer("demo", "demo"))
    for plugin in plugins:
        found = plugin(now, request(), clusters)
        assert found.scores.keys() | found.unknown == {one.name for one in clusters}
        assert not found.scores.keys() & found.unknown
        assert all(LEAST <= value <= MOST for value in found.scores.values())


def test_every_plugin_says_what_it_does() -> None:
    plugins = {name for name, _ in FILTERS} | BUILT_IN.keys() | {addon.NAME}
    assert DESCRIPTIONS.keys() == plugins
    assert all(len(text) > 20 for text in DESCRIPTIONS.values())


# ---- taints


TOLERATE: dict[str, dict[str, Any]] = {
    "all": {"operator": "Exists"},
    "key": {"key": "k", "operator": "Exists"},
    "value": {"key": "k", "value": "v"},
    "equal": {"key": "k", "operator": "Equal", "value": "w"},
    "no select": {"operator": "Exists", "effect": "NoSelect"},
    "10 s": {"key": "k", "operator": "Exists", "tolerationSeconds": 10},
    "never": {"key": "k", "operator": "Exists", "tolerationSeconds": -5},
}


@pytest.mark.parametrize(
    ("taints", "tolerations", "decided", "passes", "again_s"),
    [
        ([], [], False, True, None),
        ([taint("k")], [], False, False, None),
        ([taint("k")], ["all"], False, True, None),
        ([taint("k")], ["key"], False, True, None),
        ([taint("other")], ["key"], False, False, None),
        ([taint("k", value="v")], ["value"], False, True, None),
        ([taint("k", value="v")], ["equal"], False, False, None),
        ([taint("k", value="w")], ["value", "equal"], False, True, None),
        ([taint("k", effect="NoSelectIfNew")], [], False, False, None),
        ([taint("k", effect="NoSelectIfNew")], [], True, True, None),
        ([taint("k", effect="NoSelectIfNew")], ["no select"], False, False, None),
        ([taint("k", effect="PreferNoSelect")], [], False, True, None),
        ([taint("k"), taint("other")], ["key"], False, False, None),
        ([taint("k", age_s=4)], ["10 s"], False, True, 6),
        ([taint("k", age_s=10)], ["10 s"], False, False, None),
        ([taint("k", age_s=10)], ["10 s", "all"], False, True, None),
        ([taint("k", age_s=0)], ["never"], False, False, None),
        ([taint("k")], ["10 s"], False, False, None),  # nobody knows since when
        ([taint("k", age_s=1), taint("k", age_s=3, value="x")], ["10 s"], True, True, 7),
        ([taint("k") | {"timeAdded": "yesterday"}], ["10 s"], False, False, None),
        ([taint("k", effect="Unheard")], [], True, False, None),
    ],
)
def test_taints_and_tolerations(
    taints: list[dict[str, Any]],
    tolerations: list[str],
    decided: bool,
    passes: bool,
    again_s: float | None,
) -> None:
    wanted = request(tolerations=[TOLERATE[name] for name in tolerations])
    now = snapshot(decided=["a"] if decided else [])
    found = tainttoleration.keep(now, wanted, [cluster("a", taints=taints)])
    assert bool(found.passed) is passes
    assert found.again_at_s == (None if again_s is None else NOW_S + again_s)


@UNHURRIED
@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=1, max_size=6),
)
def test_looked_at_again_when_told_to_another_cluster_drops_out_and_never_earlier(
    told: list[tuple[int, int]],
) -> None:
    clusters = [
        cluster(f"c{n}", taints=[taint(f"k{n}", age_s=age_s)]) for n, (age_s, _) in enumerate(told)
    ]
    wanted = request(
        tolerations=[
            {"key": f"k{n}", "operator": "Exists", "tolerationSeconds": seconds}
            for n, (_, seconds) in enumerate(told)
        ]
    )
    now = tainttoleration.keep(snapshot(), wanted, clusters)
    if now.again_at_s is None:
        assert not now.passed
        return
    just_before = snapshot(now_s=now.again_at_s - 0.001)
    assert tainttoleration.keep(just_before, wanted, clusters).passed == now.passed
    then = tainttoleration.keep(snapshot(now_s=now.again_at_s), wanted, clusters)
    assert len(then.passed) < len(now.passed)


# ---- predicates


CLUSTERS = [
    cluster("a", labels={"gpu": "t4", "zone": "1"}, claims={"region": "eu", "nodes": "3"}),
    cluster("b", labels={"gpu": "a100"}, claims={"region": "us"}),
    cluster("c", labels={"zone": "1"}),
]
CLAIMS = "managedCluster.status.clusterClaims"
SCORES = [score("a", 70), score("b", 20, valid_s=-5)]


def needs(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("predicates", "passed"),
    [
        ([], "abc"),
        ([where()], "abc"),
        ([where(label={"matchLabels": {"gpu": "t4"}})], "a"),
        ([where(label=needs("gpu", "In", "t4", "a100"))], "ab"),
        ([where(label=needs("gpu", "NotIn", "t4"))], "bc"),
        ([where(label=needs("gpu", "Exists"))], "ab"),
        ([where(label=needs("gpu", "DoesNotExist"))], "c"),
        ([where(label={"matchLabels": {"zone": "1"}} | needs("gpu", "Exists"))], "a"),
        ([where(claim=needs("region", "In", "eu"))], "a"),
        ([where(claim=needs("region", "DoesNotExist"))], "c"),
        ([where(claim=needs("region", "Exists"), label=needs("zone", "DoesNotExist"))], "b"),
        ([where(label=needs("gpu", "In", "t4")), where(label=needs("zone", "Exists"))], "ac"),
        ([where(cel=["managedCluster.metadata.name == 'b'"])], "b"),
        ([where(cel=["managedCluster.metadata.labels.gpu != ''"])], "ab"),  # c has none: no value
        ([where(cel=["'zone' in managedCluster.metadata.labels", "true"])], "ac"),
        ([where(cel=["true", "managedCluster.metadata.labels['gpu'].startsWith('a')"])], "b"),
        (
            [where(cel=["managedCluster.scores('demo').exists(s, s.value > 10)"])],
            "ab",  # expired or not, as with OCM
        ),
        (
            [
                where(cel=[f"{CLAIMS}.exists(c, c.name == 'nodes' && int(c.value) > 2)"]),
            ],
            "a",
        ),
        ([where(cel=["false"]), where(label=needs("gpu", "In", "a100"))], "b"),
        ([where(label=needs("gpu", "Exists"), cel=["managedCluster.spec.hubAcceptsClient"])], "ab"),
    ],
)
def test_predicates(predicates: list[dict[str, Any]], passed: str) -> None:
    now = snapshot(scores=SCORES)
    found = answered(predicate.keep, now, request(predicates=predicates), CLUSTERS)
    assert "".join(one.name for one in found.passed) == passed


@pytest.mark.parametrize(
    ("cel", "problem"),
    [
        ("managedCluster.metadata.name + 1 == 2", "No matching overloads found : _+_"),
        ("managedCluster.metadata.name", "the expression is a string, not true or false"),
        ("managedCluster.metadata.name.scores('demo').exists(s, true)", "scores of what is not"),
        ("managedCluster.metadata.name.matches('(')", "missing ): ("),
        ("managedCluster.nothing(", "predicates[0].celExpressions[0] 'managedCluster.nothing('"),
        ("1 == 1.0", "at character 3: found no matching overload for '_==_'"),
        (
            "".join(f"[1,2,3,4,5,6,7,8,9].all({name}, " for name in "abcdefg")
            + "managedCluster.metadata.name != '')))))))",
            "it costs more CPU time or memory than an evaluation may",
        ),
    ],
)
def test_an_expression_that_is_wrong_for_every_cluster_is_the_placements_fault(
    cel: str, problem: str
) -> None:
    with pytest.raises(Misconfigured) as caught:
        answered(predicate.keep, snapshot(), request(predicates=[where(cel=[cel])]), CLUSTERS)
    assert caught.value.plugin == "Predicate"
    assert problem in caught.value.problem
    assert cel[:100] in caught.value.problem


def test_keep_checks_expressions_where_no_cluster_is_asked() -> None:
    for clusters, label in (((), {}), (CLUSTERS, {"matchLabels": {"no": "such"}})):
        wanted = request(predicates=[where(label=label, cel=["managedCluster.("])])
        with pytest.raises(Misconfigured, match="celExpressions"):
            answered(predicate.keep, snapshot(), wanted, clusters)


BY_CLAIM = where(cel=[f"{CLAIMS}.exists(c, c.name == 'nodes' && int(c.value) > 2)"])


def claiming(name: str, nodes: int = 3) -> CandidateCluster:
    return cluster(name, claims={"nodes": str(nodes)})


def test_keep_asks_only_clusters_that_changed() -> None:
    clusters = [claiming(f"c{n:04}") for n in range(20)]
    wanted = request(predicates=[BY_CLAIM])
    known = Verdicts()
    now = snapshot()._replace(verdicts=known)
    assert len(answered(predicate.keep, now, wanted, clusters).passed) == 20
    clusters[7] = claiming("c0007", nodes=1)
    with pytest.raises(Unfinished) as caught:
        predicate.keep(now, wanted, clusters)
    assert [one.name for one, _ in caught.value.pending.clusters] == ["c0007"]
    assert len(answered(predicate.keep, now, wanted, clusters).passed) == 19
    # A cluster that is gone is forgotten, and so is all when other predicates are asked.
    assert len(answered(predicate.keep, now, wanted, clusters[:10]).passed) == 9
    assert len(known.by_cluster) == 10
    other = request(predicates=[where(cel=["false"])])
    assert answered(predicate.keep, now, other, clusters[:10]).passed == ()


def test_what_was_found_by_a_score_is_kept_until_that_score_changes() -> None:
    cel = "managedCluster.scores('demo').exists(s, s.value > 10)"
    wanted = request(predicates=[where(cel=[cel])])
    known = Verdicts()
    clusters = named("a", "b", "c")

    def passed(*scores: AddOnPlacementScore) -> str:
        now = snapshot(scores=scores)._replace(verdicts=known)
        return "".join(one.name for one in answered(predicate.keep, now, wanted, clusters).passed)

    of_a, of_b = score("a", 20), score("b", 20)
    assert passed(of_a) == "a"
    before = dict(known.by_cluster)
    assert passed(of_a, of_b) == "ab"  # one that was not there is there
    assert [name for name, one in known.by_cluster.items() if one is not before[name]] == ["b"]
    assert passed(of_a, score("b", 5)) == "a"
    assert passed(of_a) == "a"


def test_an_expression_is_wrong_only_if_it_is_for_all_clusters_whenever_they_were_asked() -> None:
    wanted = request(
        predicates=[where(cel=["managedCluster.metadata.labels.mixed.startsWith('a')"])]
    )
    known = Verdicts()
    now = snapshot()._replace(verdicts=known)
    text = [cluster("a", labels={"mixed": "a"})]
    assert len(answered(predicate.keep, now, wanted, text).passed) == 1
    wrong = request(predicates=[where(cel=["managedCluster.metadata.name + 1 == 2"])])
    for _ in range(2):  # what is kept says so again
        with pytest.raises(Misconfigured, match="No matching overloads"):
            answered(predicate.keep, now, wrong, text)


# ---- all of them


def test_what_nobody_knows_is_zero_as_with_ocm_or_the_worst_where_the_placement_says_so() -> None:
    clusters = named("known", "unknown")
    scores = [score("known", -40)]
    weights = exactly(("AddOn/demo/demo", 2))
    lenient = schedule(snapshot(clusters, scores=scores), request(prioritizerPolicy=weights))
    assert [(one.cluster, one.total) for one in lenient.ranked] == [("unknown", 0), ("known", -80)]

    worst = {"berthmaster.io/placement-unknown-scores": "worst"}
    strict = schedule(
        snapshot(clusters, scores=scores), request(prioritizerPolicy=weights, annotations=worst)
    )
    assert [(one.cluster, one.total) for one in strict.ranked] == [
        ("known", -80),
        ("unknown", -200),
    ]
    # With a negative weight the highest score is the worst.
    against = schedule(
        snapshot(clusters, scores=scores),
        request(prioritizerPolicy=exactly(("AddOn/demo/demo", -2)), annotations=worst),
    )
    assert [(one.cluster, one.total) for one in against.ranked] == [
        ("known", 80),
        ("unknown", -200),
    ]


def only(clusters: Sequence[CandidateCluster], **spec: Any) -> list[str]:
    return [one.cluster for one in schedule(snapshot(clusters), request(**spec)).selected]


def test_equal_scores_are_ordered_by_name_and_a_number_takes_the_first() -> None:
    clusters = named("c", "a", "b")
    assert only(clusters) == ["a", "b", "c"]
    assert only(clusters, numberOfClusters=2) == ["a", "b"]
    assert only(clusters, numberOfClusters=0) == []
    assert only(clusters, numberOfClusters=9) == ["a", "b", "c"]
