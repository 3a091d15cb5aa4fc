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
