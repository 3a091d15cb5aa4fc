"""Ranks clusters with more allocatable CPU or memory first. Pure."""

from typing import Final

from berthmaster.hub.placement.core.objects import CandidateCluster
from berthmaster.hub.placement.core.scheduling.plugin import MOST, Clusters, Scored, Snapshot
from berthmaster.hub.placement.core.scheduling.request import Request
from berthmaster.lib.kube.quantity import QuantityError, parse_quantity

CPU: Final = "ResourceAllocatableCPU"
MEMORY: Final = "ResourceAllocatableMemory"
DESCRIPTION: Final = (
    "from -100 for the least allocatable of the clusters compared to 100 for the most; all 100 if "
    "they are equal; unknown where a cluster does not tell both allocatable and capacity"
)


def score_cpu(snapshot: Snapshot, request: Request, clusters: Clusters) -> Scored:
    return _score("cpu", clusters)


def score_memory(snapshot: Snapshot, request: Request, clusters: Clusters) -> Scored:
    return _score("memory", clusters)


def _score(resource: str, clusters: Clusters) -> Scored:
    told = {cluster.name: _allocatable(cluster, resource) for cluster in clusters}
    known = {name: amount for name, amount in told.items() if amount is not None}
    unknown = frozenset(told.keys() - known.keys())
    if not known:
        return Scored({}, unknown, blind=True)
    least, most = min(known.values()), max(known.values())
    if least == most:
        return Scored(dict.fromkeys(known, MOST), unknown)
    scores = {
        name: int(((amount - least) / (most - least) - 0.5) * 2.0 * MOST)
        for name, amount in known.items()
    }
    return Scored(scores, unknown)


def _allocatable(cluster: CandidateCluster, resource: str) -> float | None:
    allocatable = cluster.status.allocatable.get(resource)
    if allocatable is None or resource not in cluster.status.capacity:
        return None
    try:
        return float(parse_quantity(allocatable))
    except QuantityError:
        return None  # an unparsable quantity is unknown
