"""The objects by which MultiKueue is set up on a hub: checks, configurations, clusters. Pure.

Kueue's v1beta2, as far as any of our services reads it; in one place because they also have to
agree on what of ours stands in these objects: which check is whose, what a cluster is called in the
fleet, which clusters of a configuration take nothing new. Every field may be missing or null: what
a person or an older Kueue left out is not an error.

**Nominators.** Who has written a Workload's nomination, by the API server's own account
(managedFields). Pure.

Mirrors keep no managedFields, which are most of an object's bytes: they are read when asked for.
"""

from typing import Any, Final

import msgspec

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
    """Who sees to the check, and by which configuration."""

    controller_name: str = ""
    parameters: Parameters | None = None


class AdmissionCheck(Conditioned, frozen=True):
    spec: AdmissionCheckSpec = AdmissionCheckSpec()

    @property
    def for_dispatcher(self) -> bool:
        """Whether it is one of ours with a ConfigMap: the dispatcher sees to it, by a selector
        over clusters' labels, for each Workload (hub/multikueue/apiserver/check_parameters.py)."""
        return self.spec.controller_name == CHECK_CONTROLLER and self._has_config_map

    @property
    def for_placement(self) -> bool:
        """Whether it is any other of ours: the admission check controller sees to it, by a
        Placement, and says so where it names something else."""
        return self.spec.controller_name == CHECK_CONTROLLER and not self._has_config_map

    @property
    def _has_config_map(self) -> bool:
        return self.spec.parameters is not None and self.spec.parameters.kind == "ConfigMap"

    @property
    def config(self) -> str:
        """The MultiKueueConfig that a check of MultiKueue's names, or ""."""
        if self.spec.controller_name != MULTIKUEUE or self.spec.parameters is None:
            return ""
        return self.spec.parameters.name


class MultiKueueConfigSpec(Struct, frozen=True):
    """The clusters of a MultiKueue check."""

    clusters: tuple[str, ...] | None = None


class MultiKueueConfig(Object, frozen=True):
    """Which clusters a MultiKueue check sends to, in order."""

    spec: MultiKueueConfigSpec = MultiKueueConfigSpec()

    @property
    def clusters(self) -> tuple[str, ...]:
        """MultiKueueClusters by name."""
        return self.spec.clusters or ()

    @property
    def draining(self) -> tuple[str, ...]:
        """Those that shall leave it: what is there stays, nothing new goes there."""
        text = self.metadata.annotations.get(DRAINING_ANNOTATION, "")
        return tuple(name for name in text.split(",") if name)


class KubeConfig(Struct, frozen=True):
    """Where Kueue finds a kubeconfig."""

    location: str = ""
    location_type: str = ""


class ClusterSource(Struct, frozen=True):
    """How Kueue reaches a worker."""

    kube_config: KubeConfig | None = None


class MultiKueueClusterSpec(Struct, frozen=True):
    cluster_source: ClusterSource | None = None


class MultiKueueCluster(Conditioned, frozen=True):
    """A worker cluster, as the hub's Kueue knows it."""

    spec: MultiKueueClusterSpec = MultiKueueClusterSpec()

    @property
    def fleet_name(self) -> str:
        """What it is called on the bus."""
        return self.metadata.annotations.get(FLEET_NAME_ANNOTATION) or self.metadata.name

    @property
    def kube_config(self) -> KubeConfig | None:
        """By which Kueue reaches it, if it does so by a kubeconfig."""
        source = self.spec.cluster_source
        return source.kube_config if source is not None else None

    @property
    def connected(self) -> bool:
        """Whether Kueue reaches it."""
        active = self.condition(ACTIVE)
        return active is not None and active.true


OUR_MANAGER: Final = "berthmaster-multikueue"
STATUS: Final = "f:status"
NOMINATION: Final = "f:nominatedClusterNames"


class FieldsOf(Struct, frozen=True):
    """What one manager has set."""

    manager: str = ""
    time: str | None = None
    subresource: str = ""
    fields_v1: dict[str, Any] | None = msgspec.field(default=None, name="fieldsV1")


class ManagedMetadata(Metadata, frozen=True):
    managed_fields: tuple[FieldsOf, ...] = ()


class ManagedWorkload(Workload, frozen=True):
    """How a Workload stands, and who has written that."""

    metadata: ManagedMetadata = ManagedMetadata()


def others_nominating(found: ManagedWorkload) -> tuple[str, ...]:
    """The managers other than ours that have the nomination."""
    return tuple(sorted({one.manager for one in _others(found) if _has(one)}))


def others_writing(found: ManagedWorkload) -> tuple[str, ...]:
    """The same; where none has it, since it was cleared, the one that has written the status last.
    () = the API server does not say."""
    if having := others_nominating(found):
        return having
    of_status = [one for one in _others(found) if one.subresource == "status"]
    return (max(of_status, key=lambda one: one.time or "").manager,) if of_status else ()


def _others(found: ManagedWorkload) -> list[FieldsOf]:
    return [one for one in found.metadata.managed_fields if one.manager not in ("", OUR_MANAGER)]


def _has(one: FieldsOf) -> bool:
    status = (one.fields_v1 or {}).get(STATUS)
    return isinstance(status, dict) and NOMINATION in status
