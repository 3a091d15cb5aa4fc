"""From the pages that should be to the writes that make them so. Pure.

Rules of this file:

- What is so already is not written. Scores and rankings alone are written no more often than the
  Placement's scoreRateLimit says; who is chosen is written at once.
- A cluster that moves from one page to another is on two for a moment, never on none: a page that
  it comes to is written before the one that it leaves.
- Pages that are too many are deleted last.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from berthmaster.placement.instructions import DropPage, PutPage, Write
from berthmaster.placement.names import OCM, RANKING
from berthmaster.placement.objects import Placement, PlacementDecision
from berthmaster.placement.pages import Page


class Plan(NamedTuple):
    """Writes in order; ``stale``: scores that are not written yet because of the rate limit."""

    writes: tuple[Write, ...]
    stale: bool
    moved: bool  # another selection, or another layout of it


def plan(
    placement: Placement,
    wanted: Sequence[Page],
    ranking: str,
    present: Mapping[str, PlacementDecision],
    *,
    refresh: bool,
    by_score: bool = False,
) -> Plan:
    """The writes for a Placement's pages; ``refresh``: scores may be written again. Where pages are
    ordered by score, another order alone is a matter of scores."""
    surplus = sorted(
        present.keys() - {page.name for page in wanted}, key=lambda name: (len(name), name)
    )
    moved = bool(surplus) or _moved(wanted, present, by_score=by_score)
    puts: list[PutPage] = []
    stale = False
    for number, page in enumerate(wanted):
        there = present.get(page.name)
        told = ranking if number == 0 else ""
        put = _put(placement, page, told, there, detail=refresh or moved)
        if put is not None:
            puts.append(put)
        if there is not None and not (refresh or moved):
            stale = stale or _detail_differs(page, there, told)
    if _goes_right(wanted, present):
        puts.reverse()
    drops = [DropPage(name, present[name].metadata) for name in surplus]
    return Plan((*puts, *drops), stale, moved)


def _moved(
    wanted: Sequence[Page], present: Mapping[str, PlacementDecision], *, by_score: bool
) -> bool:
    if any(page.name not in present for page in wanted):
        return True
    if by_score:
        was = {name for decision in present.values() for name in decision.clusters}
        return was != {name for page in wanted for name in page.clusters}
    return any(present[page.name].clusters != page.clusters for page in wanted)


def _goes_right(wanted: Sequence[Page], present: Mapping[str, PlacementDecision]) -> bool:
    """Whether some cluster moves to a later page."""
    numbers = {page.name: number for number, page in enumerate(wanted)}
    was = {
        cluster: numbers.get(name, -1)
        for name, decision in present.items()
        for cluster in decision.clusters
    }
    return any(
        0 <= was.get(cluster, number) < number
        for number, page in enumerate(wanted)
        for cluster in page.clusters
    )


def _put(
    placement: Placement,
    page: Page,
    ranking: str,
    there: PlacementDecision | None,
    *,
    detail: bool,
) -> PutPage | None:
    metadata = _metadata(placement, page, ranking, there, detail=detail)
    status: dict[str, Any] | None = None
    if (
        there is None
        or there.status is None
        or (detail and (there.clusters != page.clusters or _reasons(there) != _wanted(page)))
    ):
        status = {"decisions": [_decision(*one) for one in page.decisions]}
    if metadata is None and status is None:
        return None
    return PutPage(page.name, there.metadata if there is not None else None, metadata, status)


def _decision(cluster: str, reason: str, score: int) -> dict[str, Any]:
    return {"clusterName": cluster, "reason": reason, **({"score": score} if score else {})}


def _metadata(
    placement: Placement,
    page: Page,
    ranking: str,
    there: PlacementDecision | None,
    *,
    detail: bool,
) -> dict[str, Any] | None:
    owner = {
        "apiVersion": f"{OCM}/v1beta1",
        "kind": "Placement",
        "name": placement.metadata.name,
        "uid": placement.metadata.uid,
        "controller": True,
    }
    annotations: dict[str, str | None] = {RANKING: ranking} if ranking else {}
    if there is None:
        return {"labels": page.labels, "annotations": annotations, "ownerReferences": [owner]}
    changed: dict[str, Any] = {}
    labels = there.metadata.labels
    if wrong := {key: value for key, value in page.labels.items() if labels.get(key) != value}:
        changed["labels"] = wrong
    told = there.metadata.annotations.get(RANKING, "")
    if detail and told != ranking:
        changed["annotations"] = annotations or {RANKING: None}
    if not any(one.uid == placement.metadata.uid for one in there.metadata.owner_references):
        changed["ownerReferences"] = [owner]
    return changed or None


def _reasons(there: PlacementDecision) -> tuple[str, ...]:
    decisions = there.status.decisions if there.status is not None else None
    return tuple(one.reason for one in decisions or ())


def _wanted(page: Page) -> tuple[str, ...]:
    return tuple(one.reason for one in page.decisions)


def _detail_differs(page: Page, there: PlacementDecision, ranking: str) -> bool:
    return (
        there.clusters != page.clusters
        or _reasons(there) != _wanted(page)
        or there.metadata.annotations.get(RANKING, "") != ranking
    )
