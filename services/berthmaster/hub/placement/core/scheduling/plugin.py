"""What a plugin is asked and what it answers. Pure.

A filter says which clusters remain; a prioritizer gives each a score from LEAST to MOST. Both are
functions of (snapshot, request, clusters), in a module of their own with NAME and DESCRIPTION, and
know nothing of each other: order and weights are the scheduler's.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from berthmaster.hub.placement.core.objects import (
    AddOnPlacementScore,
    ManagedCluster,
    ManagedClusterSet,
)

if TYPE_CHECKING:
    from berthmaster.hub.placement.core.scheduling.request import Request
    from berthmaster.hub.placement.core.scheduling.verdicts import Verdicts

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
    verdicts: "Verdicts | None" = None  # what expressions gave before, which changes no outcome


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


Filter = Callable[[Snapshot, "Request", Clusters], Filtered]
Prioritizer = Callable[[Snapshot, "Request", Clusters], Scored]


def earlier(one: float | None, other: float | None) -> float | None:
    """The earlier of two times that may be none."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
