"""What a Placement's expressions gave for each cluster, kept between looks. Pure.

A verdict stands until the cluster, or a score that was looked at, is another; keeping it changes no
outcome.
"""

from typing import NamedTuple

from berthmaster.kubernetes.mirror import Key
from berthmaster.placement.objects import AddOnPlacementScore, ManagedCluster
from berthmaster.placement.scheduling.request import Predicate


class Verdict(NamedTuple):
    """What was found of one cluster."""

    cluster: ManagedCluster
    selected: bool
    spent: int = 0
    meant: int = 0  # bit i: expression i had a meaning for it …
    wrong: int = 0  # … or treats a value as what it is not
    scores: tuple[tuple[Key, AddOnPlacementScore | None], ...] = ()  # that were looked at


class Verdicts:
    """Of all clusters, for one lot of predicates at a time."""

    def __init__(self) -> None:
        self.predicates: tuple[Predicate, ...] | None = None
        self.numbers: dict[str, int] = {}  # expression -> its bit
        self.why: dict[int, str] = {}  # why one was wrong, the first time
        self.by_cluster: dict[str, Verdict] = {}

    def about(self, predicates: tuple[Predicate, ...]) -> None:
        """Forget what was found for others."""
        if self.predicates is predicates:
            return
        self.predicates = predicates
        texts = dict.fromkeys(one.text for each in predicates for one in each.programs)
        self.numbers = {text: number for number, text in enumerate(texts)}
        self.why, self.by_cluster = {}, {}
