"""Scores that addons have written. Pure."""

from typing import Final

from berthmaster.kubernetes.objects import seconds
from berthmaster.placement.objects import AddOnPlacementScore
from berthmaster.placement.scheduling.plugin import (
    LEAST,
    MOST,
    Clusters,
    Prioritizer,
    Scored,
    Snapshot,
    earlier,
)
from berthmaster.placement.scheduling.request import Request

NAME: Final = "AddOn"
DESCRIPTION: Final = (
    "the score that an AddOnPlacementScore in the cluster's namespace holds, cut to -100..100; "
    "unknown where it is missing or its validUntil has passed"
)
TOLD: Final = 10  # clusters that a note names
TICK_S: Final = 0.001  # a score holds at the very end of its time; look after it


def prioritizer(resource: str, score_name: str) -> Prioritizer:
    """By one score of one resource."""

    def score(snapshot: Snapshot, request: Request, clusters: Clusters) -> Scored:
        return _score(snapshot, clusters, resource, score_name)

    return score


def _score(snapshot: Snapshot, clusters: Clusters, resource: str, score_name: str) -> Scored:
    scores: dict[str, int] = {}
    unknown: set[str] = set()
    expired: list[str] = []
    again_at_s: float | None = None
    for cluster in clusters:
        found = snapshot.scores.get((cluster.name, resource))
        until_s = _valid_until_s(found) if found is not None else None
        if until_s is not None and snapshot.now_s > until_s:
            expired.append(cluster.name)
            found = None
        value = _value(found, score_name)
        if value is None:
            unknown.add(cluster.name)
            continue
        scores[cluster.name] = max(LEAST, min(MOST, value))
        if until_s is not None:
            again_at_s = earlier(again_at_s, until_s + TICK_S)
    notes: tuple[str, ...] = ()
    if expired:
        more = f" and {len(expired) - TOLD} more" if len(expired) > TOLD else ""
        notes = (f"AddOnPlacementScores {resource} expired of {', '.join(expired[:TOLD])}{more}",)
    return Scored(scores, frozenset(unknown), again_at_s, notes)


def _value(found: AddOnPlacementScore | None, name: str) -> int | None:
    scores = (found.status.scores or ()) if found is not None else ()
    return next((one.value for one in scores if one.name == name), None)


def _valid_until_s(found: AddOnPlacementScore) -> float | None:
    """None = for ever. What is no time has passed: nobody can say that it holds."""
    if found.status.valid_until is None:
        return None
    try:
        return seconds(found.status.valid_until)
    except ValueError:
        return 0.0
