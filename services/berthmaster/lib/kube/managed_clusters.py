"""The ManagedCluster of Open Cluster Management: a cluster of the hub. Pure.

Quantities stay text until a reader parses them.
"""

import msgspec

from berthmaster.lib.kube.multicluster import ClusterVersion, Property
from berthmaster.lib.kube.objects import Condition, Object, Struct


class ClusterTaint(Struct, frozen=True):
    """Excludes workloads without a toleration from a cluster."""

    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: str | None = None


class ClientConfig(Struct, frozen=True):
    """The address of a managed cluster's API server."""

    url: str = ""
    ca_bundle: str | None = None


class ManagedClusterSpec(Struct, frozen=True):
    hub_accepts_client: bool = False
    taints: tuple[ClusterTaint, ...] = ()
    managed_cluster_client_configs: tuple[ClientConfig, ...] | None = ()


class ManagedClusterStatus(Struct, frozen=True):
    version: ClusterVersion = ClusterVersion()
    capacity: dict[str, str | int] = msgspec.field(default_factory=dict)
    allocatable: dict[str, str | int] = msgspec.field(default_factory=dict)
    cluster_claims: tuple[Property, ...] = ()
    conditions: tuple[Condition, ...] = ()


class ManagedCluster(Object, frozen=True):
    """A cluster. Its namespace on the hub has the same name."""

    spec: ManagedClusterSpec = ManagedClusterSpec()
    status: ManagedClusterStatus = ManagedClusterStatus()
