"""Inputs and results of plugins. Pure.

A filter returns the clusters that remain. A prioritizer scores each cluster from LEAST to MOST.
Both are functions of (snapshot, request, clusters), each in its own module with NAME and
DESCRIPTION. Plugins are independent: the scheduler sets order and weights.

**Verdicts.** The results of a Placement's expressions for each cluster, cached between evaluations.
Pure.

A verdict is valid until the cluster, or a score that the expressions read, changes. Caching changes
no outcome. A ``Pending`` asks for missing verdicts:

1. ``schedule`` raises ``Unfinished`` with the pending question.

2. The service sends ``pending.question`` to the process that evaluates expressions.

3. ``pending.settle(answer)`` stores the answer, and the evaluator evaluates the Placement again.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from berthmaster.hub.placement.cel.question import CelAnswer, Question
from berthmaster.hub.placement.core.objects import (
    AddOnPlacementScore,
    CandidateCluster,
    ManagedClusterSet,
)
from berthmaster.hub.placement.core.scheduling.request import Predicate, Request
from berthmaster.lib.kube.mirror import Key

Scores = Mapping[str, AddOnPlacementScore]  # scores of a cluster, by resource


class Verdict(NamedTuple):
    """The result for one cluster."""

    cluster: CandidateCluster
    selected: bool
    meant: int = 0  # bit i: expression i was true or false …
    wrong: int = 0  # … or uses a value of the wrong type
    # the scores that the expressions read
    scores: tuple[tuple[Key, AddOnPlacementScore | None], ...] = ()


class Verdicts:
    """The results for all clusters, for one set of predicates at a time."""

    def __init__(self) -> None:
        self.predicates: tuple[Predicate, ...] | None = None
        self.checked = False  # whether the expressions have been compiled
        self.numbers: dict[str, int] = {}  # expression -> its bit
        self.why: dict[int, str] = {}  # expression -> first reason why it was wrong
        self.refused: dict[int, str] = {}  # expression -> reason why no cluster can be evaluated
        self.by_cluster: dict[str, Verdict] = {}

    def about(self, predicates: tuple[Predicate, ...]) -> None:
        """Drop the results of other predicates."""
        if self.predicates is predicates:
            return
        self.predicates = predicates
        texts = dict.fromkeys(text for each in predicates for text in each.expressions)
        self.numbers = {text: number for number, text in enumerate(texts)}
        self.checked = not texts
        self.why, self.refused, self.by_cluster = {}, {}, {}


class Pending(NamedTuple):
    """A question, and the clusters that its answer covers."""

    verdicts: Verdicts
    predicates: tuple[Predicate, ...]
    question: Question
    clusters: tuple[tuple[CandidateCluster, Scores], ...]

    def settle(self, answer: CelAnswer) -> None:
        """Store the answer, unless the predicates have changed meanwhile."""
        known = self.verdicts
        if known.predicates is not self.predicates:
            return
        known.checked = True
        known.refused |= answer.refused
        for number, why in answer.why.items():
            known.why.setdefault(number, why)
        for (cluster, scores), one in zip(self.clusters, answer.clusters, strict=False):
            name = cluster.name
            looked = tuple(((name, resource), scores.get(resource)) for resource in one.looked)
            known.by_cluster[name] = Verdict(cluster, one.selected, one.meant, one.wrong, looked)


class Unfinished(Exception):
    """Expressions must be evaluated before a filter can answer."""

    def __init__(self, pending: Pending) -> None:
        super().__init__(f"{len(pending.clusters)} clusters to be asked")
        self.pending = pending


LEAST: Final = -100
MOST: Final = 100


class Snapshot(NamedTuple):
    """All inputs of one evaluation of one Placement."""

    now_s: float
    bound: frozenset[str] = frozenset()  # names of sets bound to the namespace
    sets: Mapping[str, ManagedClusterSet] = {}
    clusters: Mapping[str, CandidateCluster] = {}
    scores: Mapping[tuple[str, str], AddOnPlacementScore] = {}  # by (cluster, resource)
    decided: frozenset[str] = frozenset()  # clusters that this Placement has chosen
    elsewhere: Mapping[str, int] = {}  # cluster -> number of other Placements that chose it
    verdicts: Verdicts | None = None  # cached results of expressions, which change no outcome


Clusters = Sequence[CandidateCluster]


class Filtered(NamedTuple):
    """The result of a filter."""

    passed: tuple[CandidateCluster, ...]
    again_at_s: float | None = None  # time at which the result may change without an event
    notes: tuple[str, ...] = ()


class Scored(NamedTuple):
    """The result of a prioritizer: a score for each cluster, except the unknown ones."""

    scores: Mapping[str, int]
    unknown: frozenset[str] = frozenset()
    blind: bool = False  # True for a measuring prioritizer without data of any cluster
    again_at_s: float | None = None
    notes: tuple[str, ...] = ()


Filter = Callable[[Snapshot, Request, Clusters], Filtered]
Prioritizer = Callable[[Snapshot, Request, Clusters], Scored]


def earlier(one: float | None, other: float | None) -> float | None:
    """Return the earlier of two times; None is no time."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
