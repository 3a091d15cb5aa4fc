"""Scores by addons. Pure.

An expired score is unknown, as with OCM: each cluster's agent writes its own score, so the cluster
fell silent. Berthmaster's scores come from one service for all clusters, which also reports silent
clusters. If those scores expire, the service is down, and the last values stay.
"""

from collections.abc import Sequence
from typing import Final

from berthmaster.hub.placement.core.objects import AddOnPlacementScore
from berthmaster.hub.placement.core.scheduling.plugin import (
    LEAST,
    MOST,
    Clusters,
    Prioritizer,
    Scored,
    Snapshot,
    earlier,
)
from berthmaster.hub.placement.core.scheduling.request import Request
from berthmaster.lib.kube.objects import seconds

NAME: Final = "AddOn"
DESCRIPTION: Final = (
    "the score that an AddOnPlacementScore in the cluster's namespace holds, cut to -100..100; "
    "unknown where it is missing or its validUntil has passed"
)
TOLD: Final = 10  # maximum number of clusters named in a note
# a score is valid until the end of its last instant, so evaluate later by this many seconds
TICK_S: Final = 0.001


def prioritizer(resource: str, score_name: str) -> Prioritizer:
    """Return the prioritizer of one score in one resource."""

    def score(snapshot: Snapshot, request: Request, clusters: Clusters) -> Scored:
        return _score(snapshot, clusters, resource, score_name)

    return score


def _score(snapshot: Snapshot, clusters: Clusters, resource: str, score_name: str) -> Scored:
    scores: dict[str, int] = {}
    unknown: set[str] = set()
    expired: list[str] = []
    left: list[str] = []
    blind = True
    again_at_s: float | None = None
    for cluster in clusters:
        found = snapshot.scores.get((cluster.name, resource))
        until_s = _valid_until_s(found) if found is not None else None
        if found is not None and until_s is not None and snapshot.now_s > until_s:
            (left if found.ours else expired).append(cluster.name)
            found = found if found.ours else None
            until_s = None
        value = _value(found, score_name)
        if found is None or value is None:
            unknown.add(cluster.name)
            continue
        scores[cluster.name] = max(LEAST, min(MOST, value))
        blind = blind and not found.measured
        if until_s is not None:
            again_at_s = earlier(again_at_s, until_s + TICK_S)
    notes = tuple(
        f"AddOnPlacementScores {resource} expired of {_listed(names)}{then}"
        for names, then in ((expired, ""), (left, "; nobody renews them, and they stay"))
        if names
    )
    return Scored(scores, frozenset(unknown), blind, again_at_s, notes)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - TOLD} more" if len(names) > TOLD else ""
    return ", ".join(names[:TOLD]) + more


def _value(found: AddOnPlacementScore | None, name: str) -> int | None:
    scores = (found.status.scores or ()) if found is not None else ()
    return next((one.value for one in scores if one.name == name), None)


def _valid_until_s(found: AddOnPlacementScore) -> float | None:
    """Return the end of validity; None = for ever.

    An unparsable time counts as expired, because nothing shows that the score is valid.
    """
    if found.status.valid_until is None:
        return None
    try:
        return seconds(found.status.valid_until)
    except ValueError:
        return 0.0
