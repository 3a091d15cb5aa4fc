"""The common fields of Kubernetes objects, as structs with only the fields in use. Pure.

Rules for structs of other packages:

- Inherit from ``Struct`` or ``Object`` with ``frozen=True``.
- Name only the fields in use. The decoder skips all others at no memory cost.
- Give each field a default, because the API omits empty fields. Use tuples for lists.
- A field that the API may send as ``null`` has ``None`` in its type.
- An encoded struct omits fields that equal their default. To send an empty value or ``null``, use a
  dictionary.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec


class Struct(
    msgspec.Struct, rename="camel", frozen=True, kw_only=True, omit_defaults=True, gc=False
):
    """Part of an object, frozen because all readers of a mirror share its objects."""


class OwnerReference(Struct, frozen=True):
    """The owner of an object. The garbage collector deletes the object with its owner."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False
    block_owner_deletion: bool = False


class Metadata(Struct, frozen=True):
    """The fields of ``metadata`` in use. managedFields are dropped."""

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
    """Any object. Used alone, an object with metadata only."""

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
        """Return whether the condition is true. Unknown is not true."""
        return self.status == "True"


def condition(conditions: Iterable[Condition], type: str) -> Condition | None:
    """Return the condition of this type, or None."""
    return next((one for one in conditions if one.type == type), None)


def holds(conditions: Iterable[Condition], type: str) -> bool:
    """Return whether the object has this condition with status True."""
    found = condition(conditions, type)
    return found is not None and found.true


class LabelRequirement(Struct, frozen=True):
    """One expression of a selector."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class LabelSelector(Struct, frozen=True):
    """Required labels, and requirements. ``selector_of`` converts the fields."""

    match_labels: dict[str, str] | None = None
    match_expressions: tuple[LabelRequirement, ...] | None = None


class Conditions(Struct, frozen=True):
    """A status with conditions only."""

    conditions: tuple[Condition, ...] | None = None


class Conditioned(Object, frozen=True):
    """An object whose status has conditions only."""

    status: Conditions | None = None

    def condition(self, type: str) -> Condition | None:
        """Return the condition of this type, or None."""
        return condition((self.status and self.status.conditions) or (), type)


def key_of(metadata: Metadata) -> tuple[str, str]:
    """Return (namespace, name), unique among the existing objects of a resource."""
    return metadata.namespace, metadata.name


def older(one: str, other: str) -> bool:
    """Return whether a resource version precedes another of the same resource (KEP-5504).

    Return False if the versions cannot be compared.
    """
    return one.isdecimal() and other.isdecimal() and int(one) < int(other)


def seconds(time: str | None) -> float:
    """Convert a time of the API (RFC 3339) to seconds since 1970, 0 for none.

    Raise ValueError with the text.
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
    """Format seconds since 1970 as ``metav1.Time``: whole seconds, UTC."""
    return datetime.fromtimestamp(int(at_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
