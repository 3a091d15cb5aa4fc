"""Settings of the evaluator, shown by `berth serve placement --help`."""

from dataclasses import dataclass

from berthmaster.lib.kube.service_client import NamespaceSettings


@dataclass(frozen=True, kw_only=True)
class PlacementSettings(NamespaceSettings):
    """Settings of the Placement evaluator on a hub."""
