"""Writes the selection as PlacementDecisions: groups first, then pages of a hundred. Pure.

Named groups take their clusters in the order of the list, and the remaining clusters come last. A
group above the maximum size becomes several groups of the same name. Groups number from 0, pages
from 1 across all groups. An empty selection gives one empty page, as with OCM.

**Planning.** From the wanted pages to the writes. Pure.

Rules of this file:

- Correct pages are not written. The Placement's scoreRateLimit limits writes of scores and rankings
  alone. A changed selection is written at once.
- A cluster that moves between pages is briefly on two pages, never on none: the new page is written
  before the old page.
- Surplus pages are deleted last.
- Annotations for users follow in separate writes, so that decisions never wait for annotations.
"""

import json
from collections.abc import Container, Mapping, Sequence
from math import ceil
from typing import Any, Final, NamedTuple

from berthmaster.hub.placement.core.instructions import DropPage, PutPage, Write
from berthmaster.hub.placement.core.objects import (
    GROUP_INDEX_LABEL,
    GROUP_NAME_LABEL,
    NOTES,
    PAGE_LIMIT,
    PLACEMENT_LABEL,
    GroupStatus,
    Placement,
    PlacementDecision,
    owner_of,
)
from berthmaster.hub.placement.core.scheduling.request import Request, claims
from berthmaster.hub.placement.core.scheduling.scheduler import Ranked, ScheduleResult

MAX_REASON_CHARS: Final = 240
MAX_RANKING_CHARS: Final = 3900  # longer annotations are not mirrored


class Decided(NamedTuple):
    cluster: str
    reason: str
    score: int


class Page(NamedTuple):
    """The wanted content of a PlacementDecision."""

    name: str
    group: str
    group_index: int
    decisions: tuple[Decided, ...]
    labels: dict[str, str]

    @property
    def clusters(self) -> tuple[str, ...]:
        return tuple(one.cluster for one in self.decisions)


def page_name(placement: str, number: int) -> str:
    """Return the name of a page. Pages count from 1."""
    return f"{placement}-decision-{number}"


def pages(
    request: Request, outcome: ScheduleResult
) -> tuple[tuple[Page, ...], tuple[GroupStatus, ...]]:
    """Return all pages, and the groups for the Placement's status."""
    made: list[Page] = []
    told: list[GroupStatus] = []
    for index, (group, members) in enumerate(_groups(request, outcome)):
        names: list[str] = []
        for start in range(0, max(len(members), 1), PAGE_LIMIT):
            name = page_name(request.name, len(made) + 1)
            names.append(name)
            made.append(
                Page(
                    name,
                    group,
                    index,
                    tuple(
                        Decided(one.cluster, reason(one, outcome), one.total)
                        for one in members[start : start + PAGE_LIMIT]
                    ),
                    {
                        PLACEMENT_LABEL: request.name,
                        GROUP_NAME_LABEL: group,
                        GROUP_INDEX_LABEL: str(index),
                    },
                )
            )
        told.append(
            GroupStatus(
                decision_group_index=index,
                decision_group_name=group,
                decisions=tuple(names),
                cluster_count=len(members),
            )
        )
    return tuple(made), tuple(told)


def _groups(request: Request, outcome: ScheduleResult) -> list[tuple[str, Sequence[Ranked]]]:
    """Return (name, members), at least one pair."""
    chosen = outcome.selected
    rest = list(chosen) if request.by_score else sorted(chosen, key=lambda one: one.cluster)
    most = _most(request, len(rest))
    found: list[tuple[str, Sequence[Ranked]]] = []
    for group in request.groups:
        members = [
            one
            for one in rest
            if group.labels.matches(outcome.clusters[one.cluster].metadata.labels)
            and (
                not group.claims.requirements
                or group.claims.matches(claims(outcome.clusters[one.cluster]))
            )
        ]
        taken = {one.cluster for one in members}
        rest = [one for one in rest if one.cluster not in taken]
        found += _divided(group.name, members, most)
    found += _divided("", rest, most)
    return found or [("", ())]


def _most(request: Request, total: int) -> int:
    most = request.per_group or ceil(request.percent_per_group / 100 * total)
    return most if 0 < most <= total else max(total, 1)


def _divided(name: str, members: list[Ranked], most: int) -> list[tuple[str, Sequence[Ranked]]]:
    return [(name, members[start : start + most]) for start in range(0, len(members), most)]


def reason(one: Ranked, outcome: ScheduleResult) -> str:
    """Return the reason as text: the score and its components."""
    parts = ", ".join(
        f"{name} {weight}*{part}"
        for (name, weight), part in zip(outcome.weights, one.parts, strict=True)
    )
    text = f"score {one.total}: {parts}" if parts else f"score {one.total}"
    return text if len(text) <= MAX_REASON_CHARS else f"{text[: MAX_REASON_CHARS - 1]}…"


def ranking(outcome: ScheduleResult) -> str:
    """Return all clusters that passed, best first, as JSON of limited length for users and
    tools."""
    head: dict[str, object] = {
        "of": outcome.available,
        "left_out": {name: count for name, count in outcome.left_out.items() if count},
        "weights": [[name[:100], weight] for name, weight in outcome.weights[:20]],
    }
    room = MAX_RANKING_CHARS - len(json.dumps({**head, "ranked": [], "more": 10**6}))
    ranked: list[list[str | int]] = []
    for one in outcome.ranked:
        entry: list[str | int] = [one.cluster, one.total]
        room -= len(json.dumps(entry)) + 2
        if room < 0:
            break
        ranked.append(entry)
    more = len(outcome.ranked) - len(ranked)
    return json.dumps({**head, "ranked": ranked, **({"more": more} if more else {})})


class Plan(NamedTuple):
    """Writes in order. ``stale``: the rate limit delays some scores."""

    puts: tuple[PutPage, ...]
    drops: tuple[DropPage, ...]
    later: Mapping[str, Mapping[str, str | None]] | None  # page -> wrong annotations
    stale: bool
    moved: bool  # True for another selection, or another layout

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
    """Return the writes for a Placement's pages.

    ``notes`` are annotations of the first page. ``refresh`` allows writing scores again. If pages
    are ordered by score, a changed order alone counts as a change of scores.
    """
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
    """Return whether a cluster moves to a later page."""
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
    owner = owner_of(placement)
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
    """Return Berthmaster's wrong annotations; None = delete."""
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
    """Return (writes that only remove clusters from pages, clusters that stay)."""
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
