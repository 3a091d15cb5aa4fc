"""One cluster's AddOnPlacementScore: the wanted values, and whether a write is worth it. Pure."""

from collections.abc import Mapping
from math import inf

from berthmaster.hub.ocm.core import scores
from berthmaster.hub.ocm.core.instructions import CreateScore, Instruction, Write, WriteScore
from berthmaster.hub.ocm.core.objects import FRESH, PlacementScore
from berthmaster.lib.kube.controller.shell_contract import KubeEvent
from berthmaster.lib.kube.objects import Object, condition, seconds, timestamp
from berthmaster.lib.kube.resources import ADD_ON_PLACEMENT_SCORES
from berthmaster.lib.ocm.core.kept_objects import Key, Look
from berthmaster.lib.ocm.core.ownership import foreign, warning
from berthmaster.lib.ocm.core.pace import LARGE, SMALL, Rules
from berthmaster.lib.ocm.core.view import View


def look(
    key: Key,
    thing: Object | None,
    view: View,
    models: tuple[str, ...],
    rules: Rules,
    *,
    told_at_s: float | None,
    now_s: float,
) -> Look[Write]:
    """Compare the score with the wanted one. ``told_at_s`` is the time of the score in the view."""
    if not isinstance(thing, PlacementScore):
        return Look(LARGE, inf, CreateScore(key))
    if why := foreign(thing):
        return Look(0.0, inf, None, warning(ADD_ON_PLACEMENT_SCORES, thing, "NotOurs", why))
    standing = {one.name: one.value for one in thing.status.scores}
    view, wanted = scores.wanted(view, models, standing)
    gap = _gap(thing, standing, wanted, view)
    renew_at_s, odd = _renew_at_s(thing.status.valid_until, rules, now_s)
    before = condition(thing.status.conditions, FRESH)
    same = before is not None and before.true == view.fresh and before.last_transition_time
    write = WriteScore(
        key=key,
        resource_version=thing.metadata.resource_version,
        scores=wanted,
        valid_until=timestamp(now_s + rules.validity_s),
        status="True" if view.fresh else "False",
        reason=view.reason,
        message=view.message,
        since=same or timestamp(now_s),
        others=tuple(one for one in thing.status.conditions if one.type != FRESH),
        told_at_s=told_at_s if gap >= rules.points and view.fresh else None,
    )
    return Look(max(gap, odd), renew_at_s, write)


def _gap(
    thing: PlacementScore, standing: Mapping[str, int], wanted: Mapping[str, int], view: View
) -> float:
    said = condition(thing.status.conditions, FRESH)
    if said is None or said.reason != view.reason or said.true != view.fresh:
        return LARGE
    gap = scores.gap(standing, wanted)
    return max(gap, SMALL) if said.message != view.message else gap


def _renew_at_s(valid_until: str | None, rules: Rules, now_s: float) -> tuple[float, float]:
    """Return (time of renewal, points by which the present validity is wrong)."""
    try:
        until_s = seconds(valid_until)
    except ValueError:
        until_s = 0.0
    if not until_s:
        return now_s, LARGE  # a score without a time is valid for ever
    left_too_long = until_s - now_s > 1.5 * rules.validity_s
    return until_s - rules.validity_s + rules.renew_after_s, SMALL if left_too_long else 0.0


def news(thing: PlacementScore, told: str) -> tuple[str, list[Instruction]]:
    """Return (last reported reason, events): events report when scores become stale or fresh."""
    now = condition(thing.status.conditions, FRESH)
    if now is None or now.reason == told:
        return told, []
    if now.true and not told:
        return now.reason, []  # fresh from the beginning, so no event
    note = "the scores are live again"
    if not now.true:
        worst = all(one.value == scores.WORST for one in thing.status.scores)
        what = "the worst scores stand" if worst else "the last scores stay"
        note = f"{what}: {now.message}"
    told_now = KubeEvent(ADD_ON_PLACEMENT_SCORES, thing.metadata, not now.true, now.reason, note)
    return now.reason, [told_now]
