"""What every Kubernetes object has, as structs that hold only the fields we need. Pure.

Rules for structs of other packages: inherit from ``Struct`` or ``Object`` with ``frozen=True``,
name only the fields needed, give each a default (the API omits what is empty), tuples for lists.
Fields that are not named are skipped by the decoder and cost no memory. A field that the API may
send as ``null`` says so in its type. Written, a struct leaves out what equals its default: to send
an empty value, or ``null``, use a dictionary.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec


class Struct(
    msgspec.Struct, rename="camel", frozen=True, kw_only=True, omit_defaults=True, gc=False
):
    """Part of an object. Frozen: what a mirror holds is shared by all who look."""


class OwnerReference(Struct, frozen=True):
    """Who made an object, and with whose end it ends."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False
    block_owner_deletion: bool = False


class Metadata(Struct, frozen=True):
    """The part of ``metadata`` that somebody here reads; managedFields are not kept."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generate_name: str = ""
    generation: int = 0
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    finalizers: tuple[str, ...] = ()


class Object(Struct, frozen=True):
    """Any object; alone, it is an object of which only the metadata matter."""

    metadata: Metadata = Metadata()


class Condition(Struct, frozen=True):
    type: str = ""
    status: str = ""  # True, False or Unknown
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    observed_generation: int = 0

    @property
    def true(self) -> bool:
        """Whether the condition holds; unknown is not true."""
        return self.status == "True"


def condition(conditions: Iterable[Condition], type: str) -> Condition | None:
    """The condition of this type, if the object has it."""
    return next((one for one in conditions if one.type == type), None)


def holds(conditions: Iterable[Condition], type: str) -> bool:
    """Whether the object has this condition and it is true."""
    found = condition(conditions, type)
    return found is not None and found.true


class Conditions(Struct, frozen=True):
    """A status of which only conditions are read."""

    conditions: tuple[Condition, ...] | None = None


class Conditioned(Object, frozen=True):
    """An object of whose status only conditions are read."""

    status: Conditions | None = None

    def condition(self, type: str) -> Condition | None:
        """One condition of its status."""
        return condition((self.status and self.status.conditions) or (), type)


def key_of(metadata: Metadata) -> tuple[str, str]:
    """(namespace, name), which is one object at a time within a resource."""
    return metadata.namespace, metadata.name


def older(one: str, other: str) -> bool:
    """Whether a resource version came before another of the same resource (KEP-5504: they may be
    compared); False where that cannot be told."""
    return one.isdecimal() and other.isdecimal() and int(one) < int(other)


def seconds(time: str | None) -> float:
    """A time of the API (RFC 3339) as seconds since 1970; 0 when there is none.

    Raises ValueError that names the text.
    """
    if not time:
        return 0.0
    try:
        parsed = datetime.fromisoformat(time)
    except ValueError:
        raise ValueError(f"no time as Kubernetes writes it: {time[:64]!r}") from None
    if parsed.tzinfo is None:
        raise ValueError(f"a time without its zone: {time[:64]!r}")
    return parsed.timestamp()


def timestamp(at_s: float) -> str:
    """Seconds since 1970 as ``metav1.Time``: whole seconds, UTC."""
    return datetime.fromtimestamp(int(at_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
