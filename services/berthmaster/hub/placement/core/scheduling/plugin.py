"""What a plugin is asked and what it answers. Pure.

A filter says which clusters remain; a prioritizer gives each a score from LEAST to MOST. Both are
functions of (snapshot, request, clusters), in a module of their own with NAME and DESCRIPTION, and
know nothing of each other: order and weights are the scheduler's.

**Verdicts.** What a Placement's expressions gave for each cluster, kept between looks. Pure.

A verdict stands until the cluster, or a score that was looked at, is another; keeping it changes no
outcome. What is not known is asked for in a ``Pending``, which the service has answered elsewhere:

1. ``schedule`` raises ``Unfinished`` with the pending question.
2. The service sends ``pending.question`` to the process that evaluates expressions.
3. ``pending.settle(answer)`` keeps the answer, and the Placement is looked at again.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from berthmaster.hub.placement.cel.question import CelAnswer, Question
from berthmaster.hub.placement.core.objects import (
    AddOnPlacementScore,
    ManagedCluster,
    ManagedClusterSet,
)
from berthmaster.hub.placement.core.scheduling.request import Predicate, Request
from berthmaster.lib.kube.mirror import Key

Scores = Mapping[str, AddOnPlacementScore]  # of one cluster, by resource


class Verdict(NamedTuple):
    """What was found of one cluster."""

    cluster: ManagedCluster
    selected: bool
    meant: int = 0  # bit i: expression i had a meaning for it …
    wrong: int = 0  # … or treats a value as what it is not
    scores: tuple[tuple[Key, AddOnPlacementScore | None], ...] = ()  # that were looked at


class Verdicts:
    """Of all clusters, for one lot of predicates at a time."""

    def __init__(self) -> None:
        self.predicates: tuple[Predicate, ...] | None = None
        self.checked = False  # whether the expressions have been compiled
        self.numbers: dict[str, int] = {}  # expression -> its bit
        self.why: dict[int, str] = {}  # why one was wrong, the first time
        self.refused: dict[int, str] = {}  # why one cannot be evaluated for any cluster
        self.by_cluster: dict[str, Verdict] = {}

    def about(self, predicates: tuple[Predicate, ...]) -> None:
        """Forget what was found for others."""
        if self.predicates is predicates:
            return
        self.predicates = predicates
        texts = dict.fromkeys(text for each in predicates for text in each.expressions)
        self.numbers = {text: number for number, text in enumerate(texts)}
        self.checked = not texts
        self.why, self.refused, self.by_cluster = {}, {}, {}


class Pending(NamedTuple):
    """A question, and what its answer is about."""

    verdicts: Verdicts
    predicates: tuple[Predicate, ...]
    question: Question
    clusters: tuple[tuple[ManagedCluster, Scores], ...]

    def settle(self, answer: CelAnswer) -> None:
        """Keep the answer, unless the verdicts are of other predicates by now."""
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
    """Expressions have to be evaluated before a filter can answer."""

    def __init__(self, pending: Pending) -> None:
        super().__init__(f"{len(pending.clusters)} clusters to be asked")
        self.pending = pending


LEAST: Final = -100
MOST: Final = 100


class Snapshot(NamedTuple):
    """All that one evaluation of one Placement may look at."""

    now_s: float
    bound: frozenset[str] = frozenset()  # names of sets that the namespace is bound to
    sets: Mapping[str, ManagedClusterSet] = {}
    clusters: Mapping[str, ManagedCluster] = {}
    scores: Mapping[tuple[str, str], AddOnPlacementScore] = {}  # by (cluster, resource)
    decided: frozenset[str] = frozenset()  # by this Placement, as it stands
    elsewhere: Mapping[str, int] = {}  # how often each was decided by other Placements
    verdicts: Verdicts | None = None  # what expressions gave before, which changes no outcome


Clusters = Sequence[ManagedCluster]


class Filtered(NamedTuple):
    """A filter's verdict."""

    passed: tuple[ManagedCluster, ...]
    again_at_s: float | None = None  # when it might be another without any change
    notes: tuple[str, ...] = ()


class Scored(NamedTuple):
    """A prioritizer's verdict: a score for each cluster but those of which nothing is known."""

    scores: Mapping[str, int]
    unknown: frozenset[str] = frozenset()
    blind: bool = False  # it measures, and knows nothing of any cluster
    again_at_s: float | None = None
    notes: tuple[str, ...] = ()


Filter = Callable[[Snapshot, Request, Clusters], Filtered]
Prioritizer = Callable[[Snapshot, Request, Clusters], Scored]


def earlier(one: float | None, other: float | None) -> float | None:
    """The earlier of two times that may be none."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
