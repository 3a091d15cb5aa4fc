"""The parts of objects that credentials reads. Pure.

A Secret shows nothing of what it holds when printed: it ends up in error texts otherwise.
"""

from typing import Any

import msgspec

from berthmaster.lib.kube.objects import Condition, Object, Struct


class Secret(Object, frozen=True):
    """Texts in base64 under keys."""

    data: dict[str, str] | None = None

    def __repr__(self) -> str:
        return f"Secret({self.metadata.namespace}/{self.metadata.name})"

    def __rich_repr__(self) -> Any:
        yield f"{self.metadata.namespace}/{self.metadata.name}"


class Endpoint(Struct, frozen=True):
    """Where a cluster's API server is, and who vouches for it."""

    server: str = ""
    ca: str = msgspec.field(default="", name="certificate-authority-data")


class Provider(Struct, frozen=True):
    """One way to a cluster, as its profile shows it."""

    name: str = ""
    cluster: Endpoint | None = None


class ProfileStatus(Struct, frozen=True):
    access_providers: tuple[Provider, ...] | None = ()
    credential_providers: tuple[Provider, ...] | None = ()


class ClusterProfile(Object, frozen=True):
    """A cluster as sig-multicluster's inventory shows it."""

    status: ProfileStatus = ProfileStatus()


class ClientConfig(Struct, frozen=True):
    """Where a managed cluster's API server is."""

    url: str = ""
    ca_bundle: str | None = None


class ManagedClusterSpec(Struct, frozen=True):
    hub_accepts_client: bool = False
    managed_cluster_client_configs: tuple[ClientConfig, ...] | None = ()


class ManagedCluster(Object, frozen=True):
    spec: ManagedClusterSpec = ManagedClusterSpec()


class Rotation(Struct, frozen=True):
    """How long a managed account's token lives."""

    enabled: bool = True
    validity: str = ""


class AccountSpec(Struct, frozen=True):
    rotation: Rotation = Rotation()


class AccountStatus(Struct, frozen=True):
    conditions: tuple[Condition, ...] = ()
    expiration_timestamp: str | None = None


class ManagedServiceAccount(Object, frozen=True):
    """An account in a cluster whose token OCM's addon brings to the hub."""

    spec: AccountSpec = AccountSpec()
    status: AccountStatus = AccountStatus()


class ClusterPermission(Object, frozen=True):
    """Roles and bindings that OCM makes in a cluster."""

    spec: dict[str, Any] = msgspec.field(default_factory=dict)
