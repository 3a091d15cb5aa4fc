"""From the pages that should be to the writes that make them so. Pure.

Rules of this file:

- What is so already is not written. Scores and rankings alone are written no more often than the
  Placement's scoreRateLimit says; who is chosen is written at once.
- A cluster that moves from one page to another is on two for a moment, never on none: a page that
  it comes to is written before the one that it leaves.
- Pages that are too many are deleted last.
- Annotations for people come after all that, in writes of their own: nobody who waits for a
  decision shall wait for them.
"""

from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

from berthmaster.hub.placement.core.instructions import DropPage, PutPage, Write
from berthmaster.hub.placement.core.objects import NOTES, OCM, Placement, PlacementDecision
from berthmaster.hub.placement.core.pages import Page


class Plan(NamedTuple):
    """Writes in order; ``stale``: scores that are not written yet because of the rate limit."""

    puts: tuple[PutPage, ...]
    drops: tuple[DropPage, ...]
    later: Mapping[str, Mapping[str, str | None]] | None  # page -> annotations that are not right
    stale: bool
    moved: bool  # another selection, or another layout of it

    @property
    def writes(self) -> tuple[Write, ...]:
        return (*self.puts, *self.drops)


def plan(
    placement: Placement,
    wanted: Sequence[Page],
    notes: Mapping[str, str],
    present: Mapping[str, PlacementDecision],
    *,
    refresh: bool,
    by_score: bool = False,
) -> Plan:
    """The writes for a Placement's pages; ``notes``: annotations of the first. ``refresh``: scores
    may be written again. Where pages are ordered by score, another order alone is a matter of
    scores."""
    surplus = sorted(
        present.keys() - {page.name for page in wanted}, key=lambda name: (len(name), name)
    )
    moved = bool(surplus) or _moved(wanted, present, by_score=by_score)
    puts: list[PutPage] = []
    later: dict[str, Mapping[str, str | None]] = {}
    stale = False
    for number, page in enumerate(wanted):
        there = present.get(page.name)
        told = notes if number == 0 else {}
        put = _put(placement, page, told, there, detail=refresh or moved)
        if put is not None:
            puts.append(put)
        if there is not None and (refresh or moved) and (noted := _noted(there, told)):
            later[page.name] = noted
        if there is not None and not (refresh or moved):
            stale = stale or _detail_differs(page, there, told)
    if _goes_right(wanted, present):
        puts.reverse()
    drops = tuple(DropPage(name, present[name].metadata) for name in surplus)
    return Plan(tuple(puts), drops, later if refresh or moved else None, stale, moved)


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
    notes: Mapping[str, str],
    there: PlacementDecision | None,
    *,
    detail: bool,
) -> PutPage | None:
    metadata = _metadata(placement, page, notes, there)
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
    notes: Mapping[str, str],
    there: PlacementDecision | None,
) -> dict[str, Any] | None:
    owner = {
        "apiVersion": f"{OCM}/v1beta1",
        "kind": "Placement",
        "name": placement.metadata.name,
        "uid": placement.metadata.uid,
        "controller": True,
    }
    if there is None:
        return {"labels": page.labels, "annotations": {**notes}, "ownerReferences": [owner]}
    changed: dict[str, Any] = {}
    labels = there.metadata.labels
    if wrong := {key: value for key, value in page.labels.items() if labels.get(key) != value}:
        changed["labels"] = wrong
    if not any(one.uid == placement.metadata.uid for one in there.metadata.owner_references):
        changed["ownerReferences"] = [owner]
    return changed or None


def _noted(there: PlacementDecision, notes: Mapping[str, str]) -> dict[str, str | None]:
    """Our annotations that are not right; None = it goes."""
    told = there.metadata.annotations
    return {name: notes.get(name) for name in NOTES if told.get(name) != notes.get(name)}


def _reasons(there: PlacementDecision) -> tuple[str, ...]:
    decisions = there.status.decisions if there.status is not None else None
    return tuple(one.reason for one in decisions or ())


def _wanted(page: Page) -> tuple[str, ...]:
    return tuple(one.reason for one in page.decisions)


def _detail_differs(page: Page, there: PlacementDecision, notes: Mapping[str, str]) -> bool:
    return (
        there.clusters != page.clusters
        or _reasons(there) != _wanted(page)
        or bool(_noted(there, notes))
    )


def reduced(
    present: Mapping[str, PlacementDecision], stays: Container[str]
) -> tuple[tuple[PutPage, ...], tuple[str, ...]]:
    """(the writes that take clusters off their pages and change nothing else, who stays)."""
    puts: list[PutPage] = []
    left: list[str] = []
    for name, there in sorted(present.items(), key=lambda item: (len(item[0]), item[0])):
        decisions = (there.status.decisions or ()) if there.status is not None else ()
        kept = [one for one in decisions if one.cluster_name in stays]
        left += [one.cluster_name for one in kept]
        if len(kept) != len(there.clusters):
            told = [_decision(one.cluster_name, one.reason, one.score or 0) for one in kept]
            puts.append(PutPage(name, there.metadata, None, {"decisions": told}))
    return tuple(puts), tuple(left)
