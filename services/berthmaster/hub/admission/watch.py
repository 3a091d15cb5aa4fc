"""The watches on the hub, and when enough is known."""

from typing import Final

from berthmaster.hub.admission.core.index import NOT_SERVED
from berthmaster.hub.admission.core.objects import Placement, PlacementDecision
from berthmaster.lib.kube.controller.watch import Watch, Watched
from berthmaster.lib.kube.resources import (
    ADMISSION_CHECKS,
    KUEUE_WORKLOADS,
    MULTIKUEUE_CLUSTERS,
    MULTIKUEUE_CONFIGS,
    PLACEMENT_DECISIONS,
    PLACEMENTS,
)
from berthmaster.lib.kueue.multikueue import AdmissionCheck, MultiKueueCluster, MultiKueueConfig
from berthmaster.lib.kueue.workloads import Workload

ABSENT_S: Final = 5.0  # seconds between two checks for a missing kind
SURE_S: Final = 5.0  # seconds until a starting server knows all kinds and rights


def watched(placement_namespace: str) -> tuple[Watched, ...]:
    """Return the watches. ``placement_namespace`` is the namespace of Placements."""
    where = placement_namespace
    return (
        Watched(ADMISSION_CHECKS, AdmissionCheck),
        Watched(MULTIKUEUE_CONFIGS, MultiKueueConfig),
        Watched(MULTIKUEUE_CLUSTERS, MultiKueueCluster),
        Watched(KUEUE_WORKLOADS, Workload),
        Watched(PLACEMENTS, Placement, optional=True, namespace=where),
        Watched(PLACEMENT_DECISIONS, PlacementDecision, optional=True, namespace=where),
    )


class HubWatch(Watch):
    """A watch that reports a hub without readable Open Cluster Management objects.

    Each check that names a Placement then reports the reason. Objects once listed stay in use.
    """

    def lacks(self, name: str) -> bool:
        """Return whether the server lacks an optional kind, or always denied access."""
        denied_s = self.reflectors[name].faults.denied_for_s(self.now())
        refused = denied_s >= SURE_S and not self._listed_once(name)
        return super().lacks(name) or (refused and self.watched[name].optional)

    @property
    def complete(self) -> bool:
        """Return whether every kind was listed once or is known to be missing."""
        return all(self._listed_once(name) or self.lacks(name) for name in self.reflectors)

    @property
    def absent(self) -> str:
        """Return why no Placements are readable, or ""."""
        for name in self.lacking:
            reflector = self.reflectors[name]
            return (
                NOT_SERVED
                if reflector.faults.is_absent
                else f"cannot be read: {reflector.faults.reason}"
            )
        return ""

    def _listed_once(self, name: str) -> bool:
        return bool(self.reflectors[name].resource_version)
