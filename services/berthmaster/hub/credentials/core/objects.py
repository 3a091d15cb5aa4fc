"""The fields of objects that the credentials service reads. Pure.

A printed Secret shows no data, because error messages would leak the data.
"""

from typing import Any

import msgspec

from berthmaster.lib.kube.objects import Condition, Object, Struct


class Secret(Object, frozen=True):
    """Base64 texts by key."""

    data: dict[str, str] | None = None

    def __repr__(self) -> str:
        return f"Secret({self.metadata.namespace}/{self.metadata.name})"

    def __rich_repr__(self) -> Any:
        yield f"{self.metadata.namespace}/{self.metadata.name}"


class Endpoint(Struct, frozen=True):
    """The address and the CA of a cluster's API server."""

    server: str = ""
    ca: str = msgspec.field(default="", name="certificate-authority-data")


class Provider(Struct, frozen=True):
    """An access provider of a cluster, from its profile."""

    name: str = ""
    cluster: Endpoint | None = None


class ProfileStatus(Struct, frozen=True):
    access_providers: tuple[Provider, ...] | None = ()
    credential_providers: tuple[Provider, ...] | None = ()


class ClusterProfile(Object, frozen=True):
    """A cluster in the inventory of sig-multicluster."""

    status: ProfileStatus = ProfileStatus()


class ClientConfig(Struct, frozen=True):
    """The address of a managed cluster's API server."""

    url: str = ""
    ca_bundle: str | None = None


class ManagedClusterSpec(Struct, frozen=True):
    hub_accepts_client: bool = False
    managed_cluster_client_configs: tuple[ClientConfig, ...] | None = ()


class ManagedCluster(Object, frozen=True):
    spec: ManagedClusterSpec = ManagedClusterSpec()


class Rotation(Struct, frozen=True):
    """The lifetime of a managed account's token."""

    enabled: bool = True
    validity: str = ""


class AccountSpec(Struct, frozen=True):
    rotation: Rotation = Rotation()


class AccountStatus(Struct, frozen=True):
    conditions: tuple[Condition, ...] = ()
    expiration_timestamp: str | None = None


class ManagedServiceAccount(Object, frozen=True):
    """An account in a cluster. OCM's addon copies its token to the hub."""

    spec: AccountSpec = AccountSpec()
    status: AccountStatus = AccountStatus()


class ClusterPermission(Object, frozen=True):
    """Roles and bindings that OCM creates in a cluster."""

    spec: dict[str, Any] = msgspec.field(default_factory=dict)
