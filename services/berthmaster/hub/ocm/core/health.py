"""Conditions of managed ClusterProfiles: Joined and ControlPlaneHealthy. Pure.

Example: the agent of a cluster falls silent. ControlPlaneHealthy becomes Unknown, because nothing
is known of the API server, and Joined stays True. While the reporting service is silent, conditions
stay. Conditions of other types stay too.
"""

from collections.abc import Sequence
from typing import Final

from berthmaster.lib.kube.objects import Condition
from berthmaster.lib.ocm.core.view import View

HEALTHY: Final = "ControlPlaneHealthy"
JOINED: Final = "Joined"
NO_REPORT: Final = "NoReport"


def merged(
    standing: Sequence[Condition], view: View, at: str
) -> tuple[list[dict[str, str | int]], bool]:
    """Return the whole list with the merged conditions, and whether a status changes."""
    kept = [_plain(one) for one in standing if one.type not in (HEALTHY, JOINED)]
    before = {one.type: one for one in standing if one.type in (HEALTHY, JOINED)}
    if view.silence:
        return [*kept, *map(_plain, before.values())], False
    ours = [_healthy(view), _joined(view)]
    changed = False
    for one in ours:
        known = before.get(str(one["type"]))
        is_same = known is not None and known.status == one["status"]
        since = known.last_transition_time if known is not None and is_same else None
        one["lastTransitionTime"] = since or at
        changed = changed or not is_same
    return [*kept, *ours], changed


def _healthy(view: View) -> dict[str, str | int]:
    if view.fresh or view.reason == "NoNodes":
        return _condition(
            HEALTHY, "True", "AgentReports", "the cluster's agent reads its API server"
        )
    return _condition(HEALTHY, "Unknown", view.reason, view.message or "the agent is silent")


def _joined(view: View) -> dict[str, str | int]:
    if view.reason == NO_REPORT:
        return _condition(JOINED, "False", NO_REPORT, view.message)
    return _condition(JOINED, "True", "AgentReported", "an agent of the cluster has reported")


def _condition(type_: str, status: str, reason: str, message: str) -> dict[str, str | int]:
    return {"type": type_, "status": status, "reason": reason, "message": message}


def _plain(one: Condition) -> dict[str, str | int]:
    plain: dict[str, str | int] = {
        "type": one.type,
        "status": one.status,
        "reason": one.reason,
        "message": one.message,
    }
    if one.last_transition_time:
        plain["lastTransitionTime"] = one.last_transition_time
    if one.observed_generation:
        plain["observedGeneration"] = one.observed_generation
    return plain
