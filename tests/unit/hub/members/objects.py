"""Objects of cluster inventories, with only what a test is about."""

from collections.abc import Sequence

import msgspec

from berthmaster.lib.kube.managed_clusters import ManagedCluster
from berthmaster.lib.kube.multicluster import ClusterProfile
from tests.unit.worker.inventory.objects import Json


def managed_cluster(
    name: str,
    *,
    labels: Json | None = None,
    taints: Sequence[Json] = (),
    claims: Json | None = None,
    conditions: Sequence[Json] = (),
    accepted: bool = True,
) -> ManagedCluster:
    listed = [{"name": key, "value": value} for key, value in (claims or {}).items()]
    return msgspec.convert(
        {
            "metadata": {"name": name, "labels": dict(labels or {})},
            "spec": {"hubAcceptsClient": accepted, "taints": list(taints)},
            "status": {"clusterClaims": listed, "conditions": list(conditions)},
        },
        ManagedCluster,
    )


def cluster_profile(
    name: str,
    *,
    namespace: str = "fleet",
    labels: Json | None = None,
    properties: Json | None = None,
    conditions: Sequence[Json] = (),
    version: str = "",
) -> ClusterProfile:
    listed = [{"name": key, "value": value} for key, value in (properties or {}).items()]
    return msgspec.convert(
        {
            "metadata": {"name": name, "namespace": namespace, "labels": dict(labels or {})},
            "status": {
                "version": {"kubernetes": version},
                "properties": listed,
                "conditions": list(conditions),
            },
        },
        ClusterProfile,
    )
