"""The fields of objects that the service reads before a write. Pure."""

from typing import Final

from berthmaster.lib.kube.objects import Condition, Metadata, Object, Struct, seconds
from berthmaster.lib.ocm.core.ownership import FIELD_MANAGER

FRESH: Final = "Fresh"  # condition of Berthmaster's scores


class SetBinding(Object, frozen=True):
    """A binding of a set: OCM creates ClusterProfiles in a namespace with a binding."""


class Item(Struct, frozen=True):
    name: str = ""
    value: int = 0


class PlacementScoreStatus(Struct, frozen=True):
    """The scores of a cluster, and the end of their validity."""

    conditions: tuple[Condition, ...] = ()
    scores: tuple[Item, ...] = ()
    valid_until: str | None = None


class Written(Struct, frozen=True):
    """The time of a client's last write, by the API server's clock."""

    manager: str = ""
    time: str | None = None


class DatedMetadata(Metadata, frozen=True):
    """Metadata with each client's last write."""

    managed_fields: tuple[Written, ...] = ()


class PlacementScore(Object, frozen=True):
    metadata: DatedMetadata = DatedMetadata()
    status: PlacementScoreStatus = PlacementScoreStatus()


def written_at_s(thing: PlacementScore) -> float:
    """Return the time of Berthmaster's last write by the API server's clock; 0 = unknown."""
    times = [one.time for one in thing.metadata.managed_fields if one.manager == FIELD_MANAGER]
    try:
        return max((seconds(time) for time in times), default=0.0)
    except ValueError:
        return 0.0
