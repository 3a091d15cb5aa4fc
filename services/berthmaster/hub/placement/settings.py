"""What the evaluator can be told; `berth serve placement --help` shows it."""

from dataclasses import dataclass

from berthmaster.lib.kube.service_client import NamespaceSettings


@dataclass(frozen=True, kw_only=True)
class PlacementSettings(NamespaceSettings):
    """Settings of the Placement evaluator on a hub."""
