"""What is watched of the hub, and when enough of it is known."""

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

ABSENT_S: Final = 5.0  # between two looks for a kind that is not there
SURE_S: Final = 5.0  # a server that starts does not know all kinds and rights at once


def watched(placement_namespace: str) -> tuple[Watched, ...]:
    """``placement_namespace``: where Placements are looked for."""
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
    """A hub without Open Cluster Management, or one where we may not look at it, is none to be
    silent about: each check that names a Placement says so. What was listed once is acted on."""

    def lacks(self, name: str) -> bool:
        """Whether the server surely has no such kind, or never let us look at it, and need not."""
        denied_s = self.reflectors[name].faults.denied_for_s(self.now())
        refused = denied_s >= SURE_S and not self._listed_once(name)
        return super().lacks(name) or (refused and self.watched[name].optional)

    @property
    def complete(self) -> bool:
        """Whether every kind was listed once, or is known not to be there."""
        return all(self._listed_once(name) or self.lacks(name) for name in self.reflectors)

    @property
    def absent(self) -> str:
        """Why there can be no Placements, or ""."""
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
