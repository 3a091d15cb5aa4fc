"""Settings of the service claims."""

from dataclasses import dataclass

from berthmaster.lib.door_client.worker_settings import WorkerSettings
from berthmaster.lib.kube.service_client import ClusterSettings


@dataclass(frozen=True, kw_only=True)
class ClaimsSettings(WorkerSettings, ClusterSettings):
    """Settings of the claims of one managed cluster."""
