"""What was selected as PlacementDecisions: groups first, then pages of a hundred. Pure.

Named groups take their clusters in the order in which they are listed, the rest comes last; a group
larger than allowed becomes several of one name. Groups number from 0, pages from 1 through all
groups. If nothing is selected there is one empty page, as with OCM.
"""

import json
from collections.abc import Sequence
from math import ceil
from typing import Final, NamedTuple

from berthmaster.hub.placement.core.objects import (
    GROUP_INDEX_LABEL,
    GROUP_NAME_LABEL,
    PAGE_LIMIT,
    PLACEMENT_LABEL,
    GroupStatus,
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
    """One PlacementDecision."""

    name: str
    group: str
    group_index: int
    decisions: tuple[Decided, ...]
    labels: dict[str, str]

    @property
    def clusters(self) -> tuple[str, ...]:
        return tuple(one.cluster for one in self.decisions)


def page_name(placement: str, number: int) -> str:
    """The name of a page; they count from 1."""
    return f"{placement}-decision-{number}"


def pages(
    request: Request, outcome: ScheduleResult
) -> tuple[tuple[Page, ...], tuple[GroupStatus, ...]]:
    """All pages, and the groups as the Placement's status tells them."""
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
    """(name, members), at least one."""
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
    """Why, in words: the score and its parts."""
    parts = ", ".join(
        f"{name} {weight}*{part}"
        for (name, weight), part in zip(outcome.weights, one.parts, strict=True)
    )
    text = f"score {one.total}: {parts}" if parts else f"score {one.total}"
    return text if len(text) <= MAX_REASON_CHARS else f"{text[: MAX_REASON_CHARS - 1]}…"


def ranking(outcome: ScheduleResult) -> str:
    """All that passed, best first, as JSON in bounds: for people, and for whoever ranks by it."""
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
