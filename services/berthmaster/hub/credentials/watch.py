"""The watches on the hub, by kind and namespace.

Secrets are watched by label in two namespaces, and by one name elsewhere, so the service needs no
right to others. OCM's kinds may be absent. If a kind vanishes, its objects stay in memory, so that
a lost definition revokes nothing.
"""

from typing import Final

from berthmaster.hub.credentials.core import names
from berthmaster.hub.credentials.core.index import ACCOUNT
from berthmaster.hub.credentials.core.objects import (
    ClusterPermission,
    ManagedServiceAccount,
    Secret,
)
from berthmaster.hub.credentials.settings import CredentialsSettings
from berthmaster.lib.kube.controller.watch import Watch, Watched
from berthmaster.lib.kube.managed_clusters import ManagedCluster
from berthmaster.lib.kube.multicluster import ClusterProfile
from berthmaster.lib.kube.resources import (
    CLUSTER_PERMISSIONS,
    CLUSTER_PROFILES,
    MANAGED_CLUSTERS,
    MANAGED_SERVICE_ACCOUNTS,
    MULTIKUEUE_CLUSTERS,
    MULTIKUEUE_CONFIGS,
    SECRETS,
)
from berthmaster.lib.kueue.multikueue import MultiKueueCluster, MultiKueueConfig

PUBLISHED: Final = "published"
BOOTSTRAPS: Final = "bootstraps"
TOKENS: Final = "tokens"


def watched(settings: CredentialsSettings, namespace: str) -> list[Watched]:
    """Return the watches. ``namespace`` is the service's own."""
    kueue = settings.kueue_namespace
    ours = f"{names.OURS},{names.MANAGED_BY}={names.MANAGER}"
    found = [
        Watched(MULTIKUEUE_CLUSTERS, MultiKueueCluster),
        Watched(MULTIKUEUE_CONFIGS, MultiKueueConfig),
        Watched(SECRETS, Secret, namespace=kueue, labels=ours, part=PUBLISHED),
        Watched(SECRETS, Secret, namespace=namespace, labels=names.BOOTSTRAP, part=BOOTSTRAPS),
        Watched(CLUSTER_PROFILES, ClusterProfile, optional=True),
        Watched(MANAGED_CLUSTERS, ManagedCluster, optional=True),
    ]
    if settings.source != "bootstrap":
        fields = f"metadata.name={ACCOUNT}"
        found += [
            Watched(MANAGED_SERVICE_ACCOUNTS, ManagedServiceAccount, optional=True, fields=fields),
            Watched(CLUSTER_PERMISSIONS, ClusterPermission, optional=True, fields=fields),
            Watched(SECRETS, Secret, optional=True, fields=fields, part=TOKENS),
        ]
    return found


def serves_ocm(watch: Watch) -> bool:
    """Return whether OCM's kinds are served and wanted."""
    return all(watch.has(kind.plural) for kind in (MANAGED_SERVICE_ACCOUNTS, CLUSTER_PERMISSIONS))
