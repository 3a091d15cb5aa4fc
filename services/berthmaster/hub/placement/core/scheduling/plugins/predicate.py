"""Excludes clusters that no predicate selects. Pure.

Predicates are ORed. Within a predicate, labels AND claims AND all expressions must hold. An
expression without a value for a cluster, such as a missing key or score, does not select that
cluster. An expression is wrong itself if it uses a value of the wrong type for every evaluated
cluster, or costs too much. A separate process evaluates expressions (``verdicts``): one question
asks for as many unknown clusters as fit.
"""

from collections.abc import Iterator
from typing import Final

from berthmaster.hub.placement.cel.question import SLICE, ClusterInput, Question
from berthmaster.hub.placement.core.objects import (
    AddOnPlacementScore,
    CandidateCluster,
    Misconfigured,
)
from berthmaster.hub.placement.core.scheduling.plugin import (
    Clusters,
    Filtered,
    Pending,
    Snapshot,
    Unfinished,
    Verdict,
    Verdicts,
)
from berthmaster.hub.placement.core.scheduling.request import PREDICATE, Predicate, Request, claims

NAME: Final = PREDICATE
DESCRIPTION: Final = "clusters remain that a predicate selects; all, if there are no predicates"


def keep(snapshot: Snapshot, request: Request, clusters: Clusters) -> Filtered:
    """Return the clusters that any predicate selects. Raises Misconfigured, Unfinished."""
    if not request.predicates:
        return Filtered(tuple(clusters))
    known = snapshot.verdicts or Verdicts()
    known.about(request.predicates)
    _refuse(known)
    found: dict[str, Verdict] = {}
    asked: list[tuple[CandidateCluster, list[int]]] = []
    for cluster in clusters:
        verdict = known.by_cluster.get(cluster.name)
        if verdict is None or verdict.cluster is not cluster or not _same(snapshot, verdict):
            matching = list(_matching(request.predicates, cluster))
            if matching and request.predicates[matching[0]].expressions:
                asked.append((cluster, matching))
                continue
            verdict = Verdict(cluster, bool(matching))
        found[cluster.name] = verdict
    known.by_cluster = found
    if asked or not known.checked:
        raise Unfinished(_pending(snapshot, known, request.predicates, asked[:SLICE]))
    _judge(known)
    return Filtered(tuple(one for one in clusters if found[one.name].selected))


def _same(snapshot: Snapshot, verdict: Verdict) -> bool:
    return all(snapshot.scores.get(key) is found for key, found in verdict.scores)


def _matching(predicates: tuple[Predicate, ...], cluster: CandidateCluster) -> Iterator[int]:
    """Yield the predicates whose labels and claims match."""
    for number, one in enumerate(predicates):
        if one.labels.matches(cluster.metadata.labels) and (
            not one.claims.requirements or one.claims.matches(claims(cluster))
        ):
            yield number


def _pending(
    snapshot: Snapshot,
    known: Verdicts,
    predicates: tuple[Predicate, ...],
    asked: list[tuple[CandidateCluster, list[int]]],
) -> Pending:
    scores: dict[str, dict[str, AddOnPlacementScore]] = {one.name: {} for one, _ in asked}
    if any("scores" in text for text in known.numbers):
        for (cluster, resource), score in snapshot.scores.items():
            if cluster in scores:
                scores[cluster][resource] = score
    question = Question(
        tuple(known.numbers),
        tuple(tuple(known.numbers[text] for text in one.expressions) for one in predicates),
        [ClusterInput(one.document, _values(scores[one.name]), numbers) for one, numbers in asked],
    )
    return Pending(known, predicates, question, tuple((one, scores[one.name]) for one, _ in asked))


def _values(scores: dict[str, AddOnPlacementScore]) -> dict[str, list[tuple[str, int]]]:
    return {
        resource: [(one.name, one.value) for one in score.status.scores or ()]
        for resource, score in scores.items()
    }


def _refuse(known: Verdicts) -> None:
    """Raise Misconfigured for the first expression that cannot be evaluated."""
    texts = tuple(known.numbers)
    for at, predicate in enumerate(known.predicates or ()):
        for place, text in enumerate(predicate.expressions):
            if (why := known.refused.get(texts.index(text))) is not None:
                where = f"predicates[{at}].celExpressions[{place}] {text[:200]!r}"
                raise Misconfigured(NAME, f"{where}: {why}")


def _judge(known: Verdicts) -> None:
    """Raise Misconfigured for an expression without a meaning for any cluster."""
    meant = wrong = 0
    for one in known.by_cluster.values():
        meant |= one.meant
        wrong |= one.wrong
    for text, number in known.numbers.items():
        if (wrong & ~meant) >> number & 1:
            raise Misconfigured(NAME, f"expression {text[:200]!r}: {known.why[number]}")
