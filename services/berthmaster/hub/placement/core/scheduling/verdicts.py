"""What a Placement's expressions gave for each cluster, kept between looks. Pure.

A verdict stands until the cluster, or a score that was looked at, is another; keeping it changes no
outcome. What is not known is asked for in a ``Pending``, which the service has answered elsewhere:

1. ``schedule`` raises ``Unfinished`` with the pending question.
2. The service sends ``pending.question`` to the process that evaluates expressions.
3. ``pending.settle(answer)`` keeps the answer, and the Placement is looked at again.
"""

from collections.abc import Mapping
from typing import NamedTuple

from berthmaster.hub.placement.cel.question import CelAnswer, Question
from berthmaster.hub.placement.core.objects import AddOnPlacementScore, ManagedCluster
from berthmaster.hub.placement.core.scheduling.request import Predicate
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
