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

from berthmaster.hub.placement.cel.question import ClusterInput, Question
from berthmaster.hub.placement.core.document import canonical
from berthmaster.hub.placement.core.objects import AddOnPlacementScore, CandidateCluster
from berthmaster.hub.placement.core.scheduling.plugins import predicate
from tests.support.patience import NEVER_S
from tests.unit.hub.placement.objects import answered, language, request, snapshot

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parent / "vectors" / "expressions.json").read_text()
)
CLUSTERS = msgspec.convert(GOLDEN["clusters"], list[CandidateCluster])
SCORES = msgspec.convert(GOLDEN["scores"], list[AddOnPlacementScore])
ANSWERS = {text: answers for group in GOLDEN["answers"].values() for text, answers in group.items()}
# What OCM offers and is refused here, by what the refusal says (docs/reference/cel.md).
REFUSED = {
    "applied to '(google.protobuf.Timestamp)'": (
        'string(timestamp("2026-01-01T02:00:00+02:00")) == "2026-01-01T00:00:00Z"',
        'string(timestamp("2026-01-01T02:00:00+02:00")) == "2026-01-01T02:00:00+02:00"',
        'string(timestamp("2026-01-01T00:00:00.5Z")) == "2026-01-01T00:00:00.5Z"',
        'string(timestamp("2026-01-01T00:00:00.120Z")) == "2026-01-01T00:00:00.12Z"',
        'string(timestamp("0001-01-01T00:00:00Z")) == "0001-01-01T00:00:00Z"',
        'string(timestamp("2026-01-01T00:00:00Z") + duration("1h")) == "2026-01-01T01:00:00Z"',
        'string(timestamp("2026-01-01T02:00:00+02:00") + duration("1h")) == "2026-01-01T03:00:00+02:00"',  # noqa: E501
        'string(timestamp(0)) == "1970-01-01T00:00:00Z"',
        'string(timestamp("2026-01-01T00:00:00+24:00")) == "2026-01-01T00:00:00+24:00"',
    ),
    "applied to '(google.protobuf.Duration)'": (
        'string(duration("90m")) == "5400s"',
        'string(duration("1.5s")) == "1.5s"',
        'string(duration("-0.5s")) == "-0.5s"',
        'string(duration("0s")) == "0s"',
        'string(duration("1ns")) == "0.000000001s"',
        'string(duration("1h0.5s")) == "3600.5s"',
        'duration("1.5s").getMilliseconds() == 500',
        'duration("1.5s").getMilliseconds() == 1500',
        'duration("1.5ms").getMilliseconds() == 1',
    ),
    "applied to '(list(google.protobuf": (
        '[duration("1s"), duration("2s")].sum() == duration("3s")',
        '[duration("1s"), duration("2s")].isSorted()',
        '[timestamp("2026-01-01T00:00:00Z")].max() == timestamp("2026-01-01T00:00:00Z")',
    ),
    "format writes no times, types, quantities, lists of doubles": (
        '"%s".format([[1, "a", 2.0]]) == "[1, a, 2]"',
        '"%s".format([{1: "a", true: 2.5}]) == "{1: a, true: 2.5}"',
        '"%s".format([type(1)]) == "int"',
        '"%s".format([type("a")]) == "string"',
        '"%s".format([duration("90s")]) == "90s"',
        '"%s".format([duration("-1.5s")]) == "-1.5s"',
        '"%s".format([timestamp("2026-01-01T00:00:00Z")]) == "2026-01-01T00:00:00Z"',
        '"%s".format([timestamp("2026-01-01T02:00:00.50+02:00")]) == "2026-01-01T00:00:00.5Z"',
    ),
    "half a character": ('"\\\\C".matches("\\\\\\\\C")',),
    "Invalid map key type": (
        "{1.0: 2} == {1.0: 2}",
        '{1.5: "a"}[1.5] == "a"',
        "{null: 1} == {null: 1}",
        "{[1]: 2} == {}",
        "{1: 1, dyn(1.0): 2} == {1: 2}",
        "dyn(1) in {1.0: 2}",
        "dyn({1: 2}) == dyn({1.0: 2})",
        "{dyn(null): 1}.size() == 1",
        '{duration("1s"): 1} == {}',
    ),
    "duplicate key in map": ('{"a": 1, "a": 2} == {"a": 2}',),
    "Applying SELECT to non-message type": (
        "has(managedCluster.metadata.name.x)",
        "has(managedCluster.status.conditions.x)",
        "has(managedCluster.metadata.generation.x)",
        "has(managedCluster.spec.hubAcceptsClient.x)",
        "has(dyn(1.5).x)",
        "has(dyn(null).x)",
        'has(dyn(quantity("1")).x)',
    ),
    "scores of what is not the cluster": (
        '{"metadata": {"name": "full"}}.scores("gpus").size() == 2',
    ),
    "undeclared reference to 'url'": ('url("https://a").getHost() == "a"',),
    "undeclared reference to 'isURL'": ('isURL("https://a")',),
    "undeclared reference to 'ip'": ('ip("127.0.0.1").isLoopback()', 'ip.isCanonical("127.0.0.1")'),
    "undeclared reference to 'isIP'": ('isIP("127.0.0.1")',),
    "undeclared reference to 'cidr'": ('cidr("10.0.0.0/8").containsIP("10.1.1.1")',),
    "undeclared reference to 'isCIDR'": ('isCIDR("10.0.0.0/8")',),
    "undeclared reference to 'format'": (
        'format.dns1123Label().validate("a") == optional.none()',
        'format.named("uuid") != optional.none()',
    ),
}
REFUSED_HERE = {text: why for why, texts in REFUSED.items() for text in texts}


class Unhurried(Question, frozen=True):
    """A question whose budget covers a collection of garbage in the whole test process."""

    @property
    def budget_s(self) -> float:
        return NEVER_S


def meaning(text: str) -> Any:
    """True, False or None (no value) for each cluster; "refused" with why if that is told."""
    inputs = [
        ClusterInput(
            one.document,
            {
                score.metadata.name: [(each.name, each.value) for each in score.status.scores or ()]
                for score in SCORES
                if score.metadata.namespace == one.name
            },
            [0],
        )
        for one in CLUSTERS
    ]
    yes, no = (
        language().answer(Unhurried((each,), ((0,),), inputs)) for each in (text, f"!(\n{text}\n)")
    )
    if yes.refused or all(one.wrong for one in yes.clusters):
        return "refused", yes.refused or yes.why
    return [
        True if one.selected else False if other.selected else None
        for one, other in zip(yes.clusters, no.clusters, strict=True)
    ]


@pytest.mark.parametrize("cluster", CLUSTERS, ids=lambda one: one.name)
def test_a_cluster_looks_as_ocms_types_write_it(cluster: CandidateCluster) -> None:
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
    newer = msgspec.convert(told, CandidateCluster).document
    assert newer["spec"] == {"hubAcceptsClient": False, "zone": {"a": [1, None]}}
    assert newer["status"]["health"] == 0.5
    assert newer["status"]["conditions"][0]["extra"] == {}


@pytest.mark.parametrize("group", GOLDEN["answers"])
def test_expressions_mean_what_they_mean_to_ocm(group: str) -> None:
    """But for this: what has a value for no cluster may be refused here."""
    ours, theirs = {}, {}
    for text, answers in GOLDEN["answers"][group].items():
        if text in REFUSED_HERE:
            continue
        found = meaning(text)
        refused = found[0] == "refused"
        ours[text], theirs[text] = "refused" if refused else found, answers
        if answers != "refused":
            theirs[text] = [None if isinstance(one, str) else one for one in answers]
            if refused:
                ours[text] = [None] * len(CLUSTERS)
    assert ours == theirs
    assert ours


@pytest.mark.parametrize("why", REFUSED)
def test_what_ocm_offers_and_is_refused_here_says_why(why: str) -> None:
    for text in REFUSED[why]:
        assert ANSWERS[text] != "refused"
        found = meaning(text)
        if found[0] == "refused":
            assert why in str(found[1]), text
        else:  # for some clusters it has no value, for others it is as with OCM
            assert set(zip(found, ANSWERS[text], strict=True)) <= {
                (None, True), (None, False), (None, "error"), (True, True), (False, False)
            }, text  # fmt: skip


def test_vectors_that_are_refused_here_are_few() -> None:
    assert len(ANSWERS) == 1_162
    assert len(REFUSED_HERE) <= 57


def test_a_placement_chooses_by_its_expressions_as_with_ocm() -> None:
    now = snapshot(scores=SCORES)
    for text in GOLDEN["answers"]["document"]:
        where = {"requiredClusterSelector": {"celSelector": {"celExpressions": [text]}}}
        found = answered(predicate.keep, now, request(predicates=[where]), CLUSTERS)
        assert [one in found.passed for one in CLUSTERS] == [one is True for one in ANSWERS[text]]
