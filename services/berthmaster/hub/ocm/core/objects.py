"""The parts of objects that are read before they are written. Pure."""

from typing import Final

from berthmaster.lib.kube.objects import Condition, Metadata, Object, Struct, seconds
from berthmaster.lib.ocm.core.ownership import FIELD_MANAGER

FRESH: Final = "Fresh"  # the condition of our scores


class ManagedClusterSpec(Struct, frozen=True):
    hub_accepts_client: bool = False


class ManagedCluster(Object, frozen=True):
    """A cluster as Open Cluster Management knows it; its namespace on the hub has its name."""

    spec: ManagedClusterSpec = ManagedClusterSpec()


class SetBinding(Object, frozen=True):
    """Where there is one, Open Cluster Management makes the ClusterProfiles of that namespace."""


class Item(Struct, frozen=True):
    name: str = ""
    value: int = 0


class PlacementScoreStatus(Struct, frozen=True):
    """The scores of a cluster, and until when they count."""

    conditions: tuple[Condition, ...] = ()
    scores: tuple[Item, ...] = ()
    valid_until: str | None = None


class Written(Struct, frozen=True):
    """When somebody last wrote an object, by the API server's clock."""

    manager: str = ""
    time: str | None = None


class DatedMetadata(Metadata, frozen=True):
    """Metadata with who wrote when."""

    managed_fields: tuple[Written, ...] = ()


class PlacementScore(Object, frozen=True):
    metadata: DatedMetadata = DatedMetadata()
    status: PlacementScoreStatus = PlacementScoreStatus()


class Manager(Struct, frozen=True):
    """Who looks after a ClusterProfile."""

    name: str = ""


class ClusterProfileSpec(Struct, frozen=True):
    """Whose it is; cannot be changed."""

    cluster_manager: Manager = Manager()


class Property(Struct, frozen=True):
    name: str = ""
    value: str = ""
    last_observed_time: str | None = None


class Version(Struct, frozen=True):
    kubernetes: str = ""


class ClusterProfileStatus(Struct, frozen=True):
    version: Version = Version()
    properties: tuple[Property, ...] = ()
    conditions: tuple[Condition, ...] = ()


class ClusterProfile(Object, frozen=True):
    """A cluster as sig-multicluster's inventory shows it."""

    spec: ClusterProfileSpec = ClusterProfileSpec()
    status: ClusterProfileStatus = ClusterProfileStatus()


def written_at_s(thing: PlacementScore) -> float:
    """When we wrote it last, by the API server's clock; 0 = it does not say."""
    times = [one.time for one in thing.metadata.managed_fields if one.manager == FIELD_MANAGER]
    try:
        return max((seconds(time) for time in times), default=0.0)
    except ValueError:
        return 0.0
