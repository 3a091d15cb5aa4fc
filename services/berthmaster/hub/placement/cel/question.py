"""Questions from the scheduler to expressions, and the answers. Pure.

A question has all expressions of a Placement and the clusters without a known answer. Example:
predicates ``((0, 1), (2,))`` mean "expressions 0 and 1 hold, or expression 2 holds". A cluster
lists only the predicates whose labels and claims match. Evaluation runs in order and stops when the
answer is certain.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

FREE_S: Final = 0.5  # CPU seconds of a question, plus …
CLUSTER_S: Final = 0.002  # … CPU seconds per cluster; a usual expression takes 0.0001
SLICE: Final = 500  # maximum number of clusters in a question


class ClusterInput(msgspec.Struct, array_like=True, frozen=True):
    """A cluster as expressions see it."""

    document: dict[str, Any]
    scores: dict[str, list[tuple[str, int]]]  # AddOnPlacementScore -> (name, value) of its scores
    predicates: list[int]


class Question(msgspec.Struct, frozen=True):
    """Expressions, and the clusters to evaluate them for."""

    texts: tuple[str, ...]
    predicates: tuple[tuple[int, ...], ...]
    clusters: Sequence[ClusterInput] = ()

    @property
    def budget_s(self) -> float:
        """Return the CPU seconds that the answer may take."""
        return FREE_S + CLUSTER_S * len(self.clusters)


class ClusterAnswer(msgspec.Struct, array_like=True, frozen=True):
    """The results of the expressions for one cluster."""

    selected: bool
    meant: int = 0  # bit i: expression i was true or false
    wrong: int = 0  # bit i: expression i uses a value of the wrong type
    looked: tuple[str, ...] = ()  # names of AddOnPlacementScores that the expressions read


class CelAnswer(msgspec.Struct, frozen=True):
    """The answers in the order of the clusters, or empty if an expression is refused."""

    clusters: tuple[ClusterAnswer, ...] = ()
    why: dict[int, str] = {}  # expression -> first reason why it was wrong
    refused: dict[int, str] = {}  # expression -> reason why no cluster can be evaluated
    spent_s: float = 0.0  # CPU seconds


TOO_COSTLY: Final = "it costs more CPU time or memory than an evaluation may"


def too_costly(number: int, spent_s: float) -> CelAnswer:
    """Return the answer for an expression that exceeded its limits."""
    return CelAnswer(refused={number: TOO_COSTLY}, spent_s=spent_s)
