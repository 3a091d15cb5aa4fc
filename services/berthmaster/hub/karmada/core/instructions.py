"""Writes to a Karmada control plane. Each names the binding and the version that it was decided on.
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
    """Make the OverridePolicy of a binding, or have it say this."""

    ref: str
    binding: ResourceBinding
    policy: Mapping[str, Any]


class PutCondition(NamedTuple):
    """Tell by a condition of its status how a binding stands, and that its scheduler saw it so."""

    ref: str
    binding: ResourceBinding
    conditions: tuple[Mapping[str, Any], ...]
    scheduled: bool  # whether it was let go just now


Write = PutBinding | PutOverride | PutCondition
