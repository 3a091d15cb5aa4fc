"""KubeFleet's MemberCluster. Pure.

Every field has a default, because the API omits empty fields. Quantities stay text until
measures.py parses them.
"""

from berthmaster.lib.kube.managed_clusters import ClusterTaint
from berthmaster.lib.kube.objects import Condition, Object, Struct


class MemberClusterSpec(Struct, frozen=True):
    """The operators' settings of a KubeFleet cluster. A taint's only effect is NoSchedule."""

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
