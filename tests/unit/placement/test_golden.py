"""What Open Cluster Management's own code answers, kept as a vector with the versions it is of.

``documents`` are what its types write of the clusters; ``answers`` what each expression gives for
each cluster: true, false, "error" (no value), "other" (a value that is neither), or for all of them
"refused" by cel-go's parser or checker.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from berthmaster.placement.cel.errors import EvalError, Malformed, WrongType
from berthmaster.placement.cel.program import compiled
from berthmaster.placement.cel.values import Meter
from berthmaster.placement.document import canonical
from berthmaster.placement.objects import AddOnPlacementScore, ManagedCluster
from berthmaster.placement.scheduling.plugin import Snapshot
from berthmaster.placement.scheduling.plugins import predicate
from berthmaster.placement.scheduling.request import METHODS, NAMES
from tests.unit.placement.objects import request

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parent / "vectors" / "expressions.json").read_text()
)
CLUSTERS = msgspec.convert(GOLDEN["clusters"], list[ManagedCluster])
SCORES = {
    (one.metadata.namespace, one.metadata.name): one
    for one in msgspec.convert(GOLDEN["scores"], list[AddOnPlacementScore])
}
ANSWERS = {text: answers for group in GOLDEN["answers"].values() for text, answers in group.items()}
# What OCM offers and is not offered here, by what is said of it; docs/placement.md lists the same.
NOT_OFFERED = {
    "bytes are not offered": ('b"a" == b"a"',),
    "unsigned numbers are not offered": ("1u == 1u",),
    "bytes and unsigned numbers are not offered": ('bytes("a").size() == 1', "uint(1) == uint(1)"),
    "optional values are not offered": (
        "managedCluster.?metadata.orValue({}) == {}",
        'managedCluster[?"metadata"].hasValue()',
        "optional.of(1).hasValue()",
        "optional.none() == optional.none()",
        "[?optional.of(1)] == [1]",
        '{?"a": optional.of(1)} == {"a": 1}',
        "[1].first().value() == 1",
    ),
    "URLs are not offered": ('url("https://a").getHost() == "a"', 'isURL("https://a")'),
    "IP addresses are not offered": (
        'ip("127.0.0.1").isLoopback()',
        'isIP("127.0.0.1")',
        'ip.isCanonical("127.0.0.1")',
        'cidr("10.0.0.0/8").containsIP("10.1.1.1")',
        'isCIDR("10.0.0.0/8")',
    ),
    "named formats are not offered": (
        'format.dns1123Label().validate("a") == optional.none()',
        'format.named("uuid") != optional.none()',
    ),
    "messages are not offered": ("google.protobuf.Int64Value{value: 1} == 1",),
    "names in backquotes are not offered": (
        'managedCluster.`metadata`.name == "full"',
        'managedCluster.metadata.labels.`a` == "b"',
    ),
    "places have no names here": (
        'timestamp("2026-03-04T23:06:07Z").getHours("America/New_York") == 18',
    ),
    "only strings, numbers and bools are keys here": (
        "{null: 1} == {null: 1}",
        "{[1]: 2} == {}",
        "{dyn(null): 1}.size() == 1",
        '{duration("1s"): 1} == {}',
    ),
}
REFUSED_HERE = {text: why for why, texts in NOT_OFFERED.items() for text in texts}
COMPARED = {text: answers for text, answers in ANSWERS.items() if text not in REFUSED_HERE}


def scores(meter: Meter, cluster: Any, resource: Any) -> list[dict[str, Any]]:
    if not isinstance(cluster, dict):
        raise WrongType("scores of what is no cluster")
    found = SCORES.get((cluster["metadata"]["name"], resource))
    if found is None:
        raise EvalError("no such score")
    return [{"name": one.name, "value": one.value} for one in found.status.scores or ()]


def answer(text: str, cluster: ManagedCluster) -> bool | None:
    """None if it has no value, or one that is neither true nor false."""
    names = {"managedCluster": cluster.document}
    try:
        return compiled(text, NAMES, METHODS).holds(names, Meter(100_000), {"scores": scores})
    except EvalError:
        return None


@pytest.mark.parametrize("cluster", CLUSTERS, ids=lambda one: one.name)
def test_a_cluster_looks_as_ocms_types_write_it(cluster: ManagedCluster) -> None:
    assert cluster.document == GOLDEN["documents"][cluster.name]


def test_quantities_are_written_as_kubernetes_does() -> None:
    told = GOLDEN["quantities"]
    assert {text: canonical(text) for text in told} == told
    # Numbers come as such, and what is none is kept as it came.
    assert [canonical(one) for one in (0, 1500, 2000, None, "no amount")] == (
        ["0", "1500", "2k", "0", "no amount"]
    )


def test_what_ocms_types_do_not_name_is_kept_as_it_came() -> None:
    told = {
        "metadata": {"name": "newer"},
        "spec": {"zone": {"a": [1, None]}},
        "status": {"health": 0.5, "conditions": [{"type": "A", "extra": {}}]},
    }
    newer = msgspec.convert(told, ManagedCluster).document
    assert newer["spec"] == {"hubAcceptsClient": False, "zone": {"a": [1, None]}}
    assert newer["status"]["health"] == 0.5
    assert newer["status"]["conditions"][0]["extra"] == {}


def meaning(text: str) -> Any:
    try:
        compiled(text, NAMES, METHODS)
    except Malformed:
        return "refused"
    return [answer(text, cluster) for cluster in CLUSTERS]


@pytest.mark.parametrize("group", GOLDEN["answers"])
def test_expressions_mean_what_they_mean_to_ocm(group: str) -> None:
    """But for this: what has a value for no cluster may be refused as it is read."""
    ours, theirs = {}, {}
    for text in COMPARED.keys() & GOLDEN["answers"][group].keys():
        ours[text], theirs[text] = meaning(text), COMPARED[text]
        if theirs[text] != "refused":
            theirs[text] = [None if isinstance(one, str) else one for one in theirs[text]]
            if ours[text] == "refused":
                ours[text] = [None] * len(CLUSTERS)
    assert ours == theirs
    assert ours


@pytest.mark.parametrize("why", NOT_OFFERED)
def test_what_is_not_offered_here_is_refused_by_name(why: str) -> None:
    for text in NOT_OFFERED[why]:
        assert ANSWERS[text] != "refused"
        with pytest.raises(Malformed, match=why):
            compiled(text, NAMES, METHODS)


def test_a_placement_chooses_by_its_expressions_as_with_ocm() -> None:
    for text in GOLDEN["answers"]["document"]:
        where = {"requiredClusterSelector": {"celSelector": {"celExpressions": [text]}}}
        snapshot = Snapshot(now_s=0.0, scores=SCORES)
        passed = predicate.keep(snapshot, request(predicates=[where]), CLUSTERS).passed
        assert [one in passed for one in CLUSTERS] == [one is True for one in ANSWERS[text]], text
