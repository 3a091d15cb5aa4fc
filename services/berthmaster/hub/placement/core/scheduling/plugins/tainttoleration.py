"""Excludes clusters with taints that the Placement does not tolerate. Pure.

PreferNoSelect excludes no cluster. NoSelectIfNew excludes only clusters that are not yet chosen. A
toleration with a number of seconds starts when the taint was added, then ends without an event.
"""

from typing import Final

from berthmaster.hub.placement.core.objects import CandidateCluster, Toleration
from berthmaster.hub.placement.core.scheduling.plugin import Clusters, Filtered, Snapshot, earlier
from berthmaster.hub.placement.core.scheduling.request import Request
from berthmaster.lib.kube.managed_clusters import ClusterTaint
from berthmaster.lib.kube.objects import seconds

NAME: Final = "TaintToleration"
DESCRIPTION: Final = "clusters remain whose taints are all tolerated, as long as they are"
FOR_EVER: Final = float("inf")


def keep(snapshot: Snapshot, request: Request, clusters: Clusters) -> Filtered:
    """Return the tolerated clusters, and the time when the first toleration ends."""
    passed: list[CandidateCluster] = []
    again_at_s: float | None = None
    for cluster in clusters:
        decided = cluster.name in snapshot.decided
        until_s = min(
            (tolerated_until_s(taint, request.tolerations, decided, snapshot.now_s))
            for taint in (*cluster.spec.taints, _NONE)
        )
        if until_s <= snapshot.now_s:
            continue
        passed.append(cluster)
        if until_s != FOR_EVER:
            again_at_s = earlier(again_at_s, until_s)
    return Filtered(tuple(passed), again_at_s)


# a taint that every Placement tolerates for ever
_NONE: Final = ClusterTaint(effect="PreferNoSelect")


def tolerated_until_s(
    taint: ClusterTaint, tolerations: tuple[Toleration, ...], decided: bool, now_s: float
) -> float:
    """Return the time until which a taint is tolerated; a past time = not tolerated.

    As with OCM, the first matching toleration that has not expired is applied.
    """
    if taint.effect == "PreferNoSelect" or (taint.effect == "NoSelectIfNew" and decided):
        return FOR_EVER
    for toleration in tolerations:
        if _fits(taint, toleration):
            until_s = _until_s(taint, toleration)
            if until_s > now_s:
                return until_s
    return 0.0


def _fits(taint: ClusterTaint, toleration: Toleration) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    return toleration.operator == "Exists" or toleration.value == taint.value


def _until_s(taint: ClusterTaint, toleration: Toleration) -> float:
    if toleration.toleration_seconds is None:
        return FOR_EVER
    try:
        added_s = seconds(taint.time_added)
    except ValueError:
        added_s = 0.0
    if not added_s:
        return 0.0  # time unknown: OCM counts from the epoch
    return added_s + toleration.toleration_seconds
