"""Settings of the service claims."""

from dataclasses import dataclass

from berthmaster.lib.door_client.settings import WorkerSettings
from berthmaster.lib.kube.joining import ClusterSettings


@dataclass(frozen=True, kw_only=True)
class ClaimsSettings(WorkerSettings, ClusterSettings):
    """Settings of the claims of one managed cluster."""
