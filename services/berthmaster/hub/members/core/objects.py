"""The fields of objects that describe a hub's member clusters. Pure.

Every field has a default, because the API omits empty fields. Quantities stay text until
measures.py parses them.
"""

from berthmaster.lib.kube.objects import Condition, Object, Struct


class ClusterTaint(Struct, frozen=True):
    """A taint of a ManagedCluster, or of a MemberCluster, whose only effect is NoSchedule."""

    key: str = ""
    value: str = ""
    effect: str = ""


class Property(Struct, frozen=True):
    """A property of a ClusterProfile, or a claim of a ManagedCluster."""

    name: str = ""
    value: str = ""


class Version(Struct, frozen=True):
    kubernetes: str = ""


class ClusterProfileStatus(Struct, frozen=True):
    version: Version = Version()
    properties: tuple[Property, ...] = ()
    conditions: tuple[Condition, ...] = ()


class ClusterProfile(Object, frozen=True):
    """A cluster in the inventory of sig-multicluster."""

    status: ClusterProfileStatus = ClusterProfileStatus()


class ManagedClusterSpec(Struct, frozen=True):
    hub_accepts_client: bool = False
    taints: tuple[ClusterTaint, ...] = ()


class ManagedClusterStatus(Struct, frozen=True):
    version: Version = Version()
    cluster_claims: tuple[Property, ...] = ()
    conditions: tuple[Condition, ...] = ()


class ManagedCluster(Object, frozen=True):
    spec: ManagedClusterSpec = ManagedClusterSpec()
    status: ManagedClusterStatus = ManagedClusterStatus()


class MemberClusterSpec(Struct, frozen=True):
    """The operators' settings of a KubeFleet cluster."""

    taints: tuple[ClusterTaint, ...] | None = ()
    heartbeat_period_seconds: int | None = None


class MeasuredProperty(Struct, frozen=True):
    """A property with its observation time."""

    value: str = ""
    observation_time: str | None = None


class ResourceUsage(Struct, frozen=True):
    allocatable: dict[str, str | int] | None = None
    available: dict[str, str | int] | None = None
    observation_time: str | None = None


class MemberClusterStatus(Struct, frozen=True):
    """The status by KubeFleet's agent."""

    conditions: tuple[Condition, ...] | None = ()
    properties: dict[str, MeasuredProperty] | None = None
    resource_usage: ResourceUsage | None = None


class MemberCluster(Object, frozen=True):
    """A cluster of KubeFleet."""

    spec: MemberClusterSpec = MemberClusterSpec()
    status: MemberClusterStatus = MemberClusterStatus()
