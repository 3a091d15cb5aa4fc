"""Writes to a Karmada control plane, each with the binding and the version of its decision.
Pure."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from berthmaster.hub.karmada.core.objects import ResourceBinding


class PutBinding(NamedTuple):
    """Change annotations and spec of a binding."""

    ref: str
    binding: ResourceBinding
    annotations: Mapping[str, str | None]
    spec: Mapping[str, Any]


class PutOverride(NamedTuple):
    """Create or patch the OverridePolicy of a binding."""

    ref: str
    binding: ResourceBinding
    policy: Mapping[str, Any]


class PutCondition(NamedTuple):
    """Set a condition of a binding's status, and confirm that its scheduler has seen the spec."""

    ref: str
    binding: ResourceBinding
    conditions: tuple[Mapping[str, Any], ...]
    scheduled: bool  # True right after the release


Write = PutBinding | PutOverride | PutCondition
