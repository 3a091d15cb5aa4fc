"""Filters of clusters: why a cluster does not suit a request, whatever its free capacity. Pure.

A filter is a row of FILTERS. ``reads`` names the fields of the request that the filter gets as
arguments. Results are cached under a key of all fields in READS (needs.py), so requests with equal
keys have equal results.

Example: a filter that reads ``tenant_zone`` is a function ``(cluster, via, tenant_zone) -> str``
and the row ``ClusterFilter(("tenant_zone",), function)``. The cache key then contains that field
too.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from berthmaster.lib.engine.fleet.clusters import Cluster
from berthmaster.lib.lifecycle.attempts import takes_pod_sets
from berthmaster.lib.messages.fleet import Taint
from berthmaster.lib.messages.placement import Via
from berthmaster.lib.messages.workload import PodSet, Toleration


def tolerates(tolerations: tuple[Toleration, ...], taint: Taint) -> bool:
    """Return whether a toleration matches, by Kubernetes' rule. PreferNoSchedule always passes."""
    if taint.effect == "PreferNoSchedule":
        return True
    return any(
        (not t.effect or t.effect == taint.effect)
        and (t.key == taint.key or (not t.key and t.operator == "Exists"))
        and (t.operator == "Exists" or t.value == taint.value)
        for t in tolerations
    )


NOT_ASKED: Final = "not among the clusters asked for"
NO_LABELS: Final = "lacks the labels asked for"
TAINTED: Final = "is tainted"
NO_JOB_SETS: Final = "makes no JobSets, which several pod sets need"


def why_not_named(cluster: Cluster, _via: Via, clusters: tuple[str, ...]) -> str:
    return NOT_ASKED if clusters and cluster.name not in clusters else ""


def why_not_labelled(cluster: Cluster, _via: Via, cluster_labels: Mapping[str, str]) -> str:
    lacks = cluster_labels and not cluster_labels.items() <= cluster.labels.items()
    return NO_LABELS if lacks else ""


def why_not_made(cluster: Cluster, via: Via, pod_sets: tuple[PodSet, ...]) -> str:
    """Return why the cluster can have no object with as many pod sets. A plain Job has one.

    With ``via`` hub the object exists already, of any kind, and the hub's Kueue copies it. With
    ``via`` worker the cluster's own Kueue starts the object, and it knows no Jobs of Volcano's.
    """
    if via == "hub":
        return ""
    kinds = cluster.profile.job_kinds if cluster.profile is not None else None
    if kinds is None or len(pod_sets) == 1:
        return ""
    return "" if any(takes_pod_sets(kind, pod_sets, via) for kind in kinds) else NO_JOB_SETS


def why_not_tolerated(cluster: Cluster, _via: Via, pod_sets: tuple[PodSet, ...]) -> str:
    for taint in cluster.taints:
        if not all(tolerates(p.tolerations, taint) for p in pod_sets):
            return f"{TAINTED} ({taint.key})"
    return ""


class ClusterFilter(NamedTuple):
    """One reason to leave a cluster out."""

    reads: tuple[str, ...]  # fields of JobRequest: the arguments behind cluster and via
    why_not: Callable[..., str]  # "" = the cluster will do
    passes_all: Callable[..., bool] = lambda *_: False
    # Of the same fields: whether any cluster without taints will do. A shortcut; False is safe.


FILTERS: Final = (
    ClusterFilter(("clusters",), why_not_named, lambda clusters: not clusters),
    ClusterFilter(("cluster_labels",), why_not_labelled, lambda labels: not labels),
    ClusterFilter(("pod_sets",), why_not_made, lambda pod_sets: len(pod_sets) == 1),
    ClusterFilter(("pod_sets",), why_not_tolerated, lambda _: True),
)


def fields_read(filters: tuple[ClusterFilter, ...]) -> tuple[str, ...]:
    """Return the request fields that filters read, behind ``pod_sets``, which selects nodes."""
    return tuple(dict.fromkeys(("pod_sets", *(name for each in filters for name in each.reads))))


READS: Final = fields_read(FILTERS)
