"""The status of a Placement after an outcome: the two conditions and their reasons. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from berthmaster.hub.placement.core.objects import (
    MISCONFIGURED,
    SATISFIED,
    GroupStatus,
    Misconfigured,
    Placement,
)
from berthmaster.hub.placement.core.scheduling.scheduler import ScheduleResult
from berthmaster.lib.kube.objects import Condition, condition, timestamp

MAX_MESSAGE_CHARS: Final = 1024


class WantedCondition(NamedTuple):
    type: str
    holds: bool
    reason: str
    message: str


def satisfied(outcome: ScheduleResult, cluster_sets: Iterable[str]) -> WantedCondition:
    """Return whether the Placement got the requested number of clusters, with the reason if not."""

    def no(reason: str, message: str) -> WantedCondition:
        return WantedCondition(SATISFIED, False, reason, message[:MAX_MESSAGE_CHARS])

    if not outcome.bindings:
        return no(
            "NoManagedClusterSetBindings",
            "No valid ManagedClusterSetBindings found in placement namespace",
        )
    if not outcome.eligible:
        named = ",".join(cluster_sets)
        message = f"None of ManagedClusterSets [{named}] is bound to placement namespace"
        return no("NoIntersection", message)

    if not outcome.available:
        named = ",".join(outcome.eligible)
        return no(
            "AllManagedClusterSetsEmpty",
            f"All ManagedClusterSets [{named}] have no member ManagedCluster",
        )
    if not outcome.selected:
        return no(
            "NoManagedClusterMatched", "No ManagedCluster matches any of the cluster predicate"
        )
    if outcome.unscheduled:
        message = f"{outcome.unscheduled} cluster decisions unscheduled"
        return no("NotAllDecisionsScheduled", message)
    return WantedCondition(
        SATISFIED, True, "AllDecisionsScheduled", "All cluster decisions scheduled"
    )


def configured(notes: Sequence[str] = ()) -> WantedCondition:
    """Return the condition of a correct Placement. ``notes`` adds information."""
    text = "; ".join(("Placement configurations check pass", *notes))
    return WantedCondition(MISCONFIGURED, False, "Succeedconfigured", text[:MAX_MESSAGE_CHARS])


def misconfigured(error: Misconfigured, after: str) -> WantedCondition:
    """Return the condition of a wrong Placement. ``after`` says what happens despite the error."""
    after = f"; {after}" if after else ""
    text = str(error)[: MAX_MESSAGE_CHARS - len(after)] + after
    return WantedCondition(MISCONFIGURED, True, "Misconfigured", text)


def left_over(error: Misconfigured, left: int) -> WantedCondition:
    """Return the condition of a wrong Placement that keeps only earlier decisions."""
    what = f"{left} clusters are left of those decided before" if left else "nothing is decided"
    message = f"{what}: {error}"
    return WantedCondition(
        SATISFIED, False, "NotAllDecisionsScheduled", message[:MAX_MESSAGE_CHARS]
    )


def reduced(groups: Iterable[GroupStatus], counts: Mapping[str, int]) -> tuple[GroupStatus, ...]:
    """Return groups with the current number of clusters on their pages."""
    return tuple(
        replace(one, cluster_count=sum(counts.get(page, 0) for page in one.decisions or ()))
        for one in groups
    )


def merged(
    present: tuple[Condition, ...],
    verdicts: Iterable[WantedCondition],
    generation: int,
    now_s: float,
) -> tuple[Condition, ...]:
    """Return the conditions merged with ours. The time changes only with a condition's status."""
    conditions = {one.type: one for one in present}
    for verdict in verdicts:
        before = condition(present, verdict.type)
        status = "True" if verdict.holds else "False"
        same = before is not None and before.status == status and before.last_transition_time
        conditions[verdict.type] = Condition(
            type=verdict.type,
            status=status,
            reason=verdict.reason,
            message=verdict.message,
            last_transition_time=(
                before.last_transition_time if before is not None and same else timestamp(now_s)
            ),
            observed_generation=generation,
        )
    return tuple(conditions.values())


def patch(
    placement: Placement,
    verdicts: Iterable[WantedCondition],
    groups: tuple[GroupStatus, ...] | None,
    selected: int,
    now_s: float,
) -> dict[str, Any] | None:
    """Return the status to write, or None if it is current.

    Without groups, the decisions in the status stay.
    """
    status = placement.status
    present = status.conditions or ()
    conditions = merged(present, verdicts, placement.metadata.generation, now_s)
    told = groups is None or (
        status.number_of_selected_clusters == selected and (status.decision_groups or ()) == groups
    )
    if told and conditions == present:
        return None
    body: dict[str, Any] = {"conditions": [_condition(one) for one in conditions]}
    if groups is not None:
        body["numberOfSelectedClusters"] = selected
        body["decisionGroups"] = [_group(one) for one in groups]
    return body


def _condition(one: Condition) -> dict[str, Any]:
    return {
        "type": one.type,
        "status": one.status,
        "reason": one.reason,
        "message": one.message,
        "lastTransitionTime": one.last_transition_time,
        **({"observedGeneration": one.observed_generation} if one.observed_generation else {}),
    }


def _group(one: GroupStatus) -> dict[str, Any]:
    return {
        "decisionGroupIndex": one.decision_group_index,
        "decisionGroupName": one.decision_group_name,
        "decisions": list(one.decisions or ()),
        "clusterCount": one.cluster_count,
    }
