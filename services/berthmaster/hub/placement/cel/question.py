"""What the scheduler asks of expressions, and what the answers are. Pure.

One question has all expressions of a Placement and the clusters whose answer is not known. Example:
predicates ``((0, 1), (2,))`` mean "expressions 0 and 1 hold, or expression 2 holds". A cluster is
asked only the predicates whose labels and claims match it, in order, and each only as far as the
answer depends on it.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

FREE_S: Final = 0.5  # CPU time of one question, beside …
CLUSTER_S: Final = 0.002  # … this much for each cluster; a usual expression takes 0.0001
SLICE: Final = 500  # clusters of one question


class ClusterInput(msgspec.Struct, array_like=True, frozen=True):
    """One cluster, as expressions see it."""

    document: dict[str, Any]
    scores: dict[str, list[tuple[str, int]]]  # AddOnPlacementScore -> (name, value) of its scores
    predicates: list[int]


class Question(msgspec.Struct, frozen=True):
    """Expressions and clusters to evaluate them for."""

    texts: tuple[str, ...]
    predicates: tuple[tuple[int, ...], ...]
    clusters: Sequence[ClusterInput] = ()

    @property
    def budget_s(self) -> float:
        """CPU time that the answer may take."""
        return FREE_S + CLUSTER_S * len(self.clusters)


class ClusterAnswer(msgspec.Struct, array_like=True, frozen=True):
    """What the expressions gave for one cluster."""

    selected: bool
    meant: int = 0  # bit i: expression i was true or false
    wrong: int = 0  # bit i: expression i treats a value as what it is not
    looked: tuple[str, ...] = ()  # names of AddOnPlacementScores that were looked up


class CelAnswer(msgspec.Struct, frozen=True):
    """The answers in the order of the clusters; none if an expression is refused."""

    clusters: tuple[ClusterAnswer, ...] = ()
    why: dict[int, str] = {}  # expression -> why it was wrong, the first time
    refused: dict[int, str] = {}  # expression -> why it cannot be evaluated for any cluster
    spent_s: float = 0.0  # CPU time


TOO_COSTLY: Final = "it costs more CPU time or memory than an evaluation may"


def too_costly(number: int, spent_s: float) -> CelAnswer:
    """The answer where an expression exceeded its limits."""
    return CelAnswer(refused={number: TOO_COSTLY}, spent_s=spent_s)
