"""The objects that configure MultiKueue on a hub: checks, configurations, clusters. Pure.

The types follow Kueue's v1beta2, with the fields in use. All services share them, and so agree on
Berthmaster's own entries: the controller of a check, the fleet's name of a cluster, the draining
clusters of a configuration. Every field may be missing or null, as operators and older Kueue
versions leave fields out.

**Nominators.** The writers of a Workload's nomination, from the API server's managedFields. Mirrors
drop managedFields, most of an object's bytes, so a service reads them on demand.
"""

from typing import Any, Final

import msgspec

from berthmaster.lib.kube.multicluster import ProfileReference
from berthmaster.lib.kube.objects import Conditioned, Metadata, Object, Struct
from berthmaster.lib.kueue.names import (
    ACTIVE,
    CHECK_CONTROLLER,
    DRAINING_ANNOTATION,
    FLEET_NAME_ANNOTATION,
    MULTIKUEUE,
)
from berthmaster.lib.kueue.workloads import Workload


class Parameters(Struct, frozen=True):
    """The object that configures a check."""

    api_group: str | None = None
    kind: str = ""
    name: str = ""


class AdmissionCheckSpec(Struct, frozen=True):
    """The controller of a check, and its configuration."""

    controller_name: str = ""
    parameters: Parameters | None = None


class AdmissionCheck(Conditioned, frozen=True):
    spec: AdmissionCheckSpec = AdmissionCheckSpec()

    @property
    def for_dispatcher(self) -> bool:
        """Whether the dispatcher handles this check, as Berthmaster's own with a ConfigMap.

        The dispatcher applies a selector over clusters' labels for each Workload
        (hub/multikueue/apiserver/check_parameters.py).
        """
        return self.spec.controller_name == CHECK_CONTROLLER and self._has_config_map

    @property
    def for_placement(self) -> bool:
        """Whether the admission check controller handles this check, as any other of Berthmaster's.

        The controller uses a Placement, and reports any other kind of parameters.
        """
        return self.spec.controller_name == CHECK_CONTROLLER and not self._has_config_map

    @property
    def _has_config_map(self) -> bool:
        return self.spec.parameters is not None and self.spec.parameters.kind == "ConfigMap"

    @property
    def config(self) -> str:
        """The MultiKueueConfig named by a check of MultiKueue, or ""."""
        if self.spec.controller_name != MULTIKUEUE or self.spec.parameters is None:
            return ""
        return self.spec.parameters.name


class MultiKueueConfigSpec(Struct, frozen=True):
    """The clusters of a MultiKueue check."""

    clusters: tuple[str, ...] | None = None


class MultiKueueConfig(Object, frozen=True):
    """The clusters that a MultiKueue check dispatches to, in order."""

    spec: MultiKueueConfigSpec = MultiKueueConfigSpec()

    @property
    def clusters(self) -> tuple[str, ...]:
        """Names of MultiKueueClusters."""
        return self.spec.clusters or ()

    @property
    def draining(self) -> tuple[str, ...]:
        """Draining clusters: running jobs stay, and no new ones are dispatched."""
        text = self.metadata.annotations.get(DRAINING_ANNOTATION, "")
        return tuple(name for name in text.split(",") if name)


class KubeConfig(Struct, frozen=True):
    """The source of Kueue's kubeconfig."""

    location: str = ""
    location_type: str = ""


class ClusterSource(Struct, frozen=True):
    """How Kueue connects to a worker: by a kubeconfig, or by a ClusterProfile's access provider."""

    kube_config: KubeConfig | None = None
    cluster_profile_ref: ProfileReference | None = None


class MultiKueueClusterSpec(Struct, frozen=True):
    cluster_source: ClusterSource | None = None


class MultiKueueCluster(Conditioned, frozen=True):
    """A worker cluster, as the hub's Kueue knows it."""

    spec: MultiKueueClusterSpec = MultiKueueClusterSpec()

    @property
    def fleet_name(self) -> str:
        """The cluster's name on the bus."""
        return self.metadata.annotations.get(FLEET_NAME_ANNOTATION) or self.metadata.name

    @property
    def kube_config(self) -> KubeConfig | None:
        """The kubeconfig of Kueue's connection, or None."""
        source = self.spec.cluster_source
        return source.kube_config if source is not None else None

    @property
    def profile(self) -> str:
        """The ClusterProfile of Kueue's connection, in Kueue's namespace, or ""."""
        source = self.spec.cluster_source
        reference = source.cluster_profile_ref if source is not None else None
        return reference.name if reference is not None else ""

    @property
    def connected(self) -> bool:
        """Whether Kueue is connected to the cluster."""
        active = self.condition(ACTIVE)
        return active is not None and active.true


OUR_MANAGER: Final = "berthmaster-multikueue"
STATUS: Final = "f:status"
NOMINATION: Final = "f:nominatedClusterNames"


class FieldsOf(Struct, frozen=True):
    """The fields set by one manager."""

    manager: str = ""
    time: str | None = None
    subresource: str = ""
    fields_v1: dict[str, Any] | None = msgspec.field(default=None, name="fieldsV1")


class ManagedMetadata(Metadata, frozen=True):
    managed_fields: tuple[FieldsOf, ...] = ()


class ManagedWorkload(Workload, frozen=True):
    """A Workload's status, and the managers that wrote the status."""

    metadata: ManagedMetadata = ManagedMetadata()


def others_nominating(found: ManagedWorkload) -> tuple[str, ...]:
    """Return the other managers that own the nomination."""
    return tuple(sorted({one.manager for one in _others(found) if _has(one)}))


def others_writing(found: ManagedWorkload) -> tuple[str, ...]:
    """Return the other managers that own the nomination, or else the last writer of the status.

    The last writer matters after a nomination was cleared. () = the API server names no manager.
    """
    if having := others_nominating(found):
        return having
    of_status = [one for one in _others(found) if one.subresource == "status"]
    return (max(of_status, key=lambda one: one.time or "").manager,) if of_status else ()


def _others(found: ManagedWorkload) -> list[FieldsOf]:
    return [one for one in found.metadata.managed_fields if one.manager not in ("", OUR_MANAGER)]


def _has(one: FieldsOf) -> bool:
    status = (one.fields_v1 or {}).get(STATUS)
    return isinstance(status, dict) and NOMINATION in status
