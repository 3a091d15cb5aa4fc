"""Who has written a Workload's nomination, by the API server's own account (managedFields). Pure.

Mirrors keep no managedFields, which are most of an object's bytes: they are read when asked for.
"""

from typing import Any, Final

import msgspec

from berthmaster.lib.kube.objects import Metadata, Struct
from berthmaster.lib.kueue.workloads import Workload

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
