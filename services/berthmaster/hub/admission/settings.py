"""Settings of the admission check controller of a hub."""

from dataclasses import dataclass

from berthmaster.lib.kube.service_client import KueueSettings
from berthmaster.lib.runtime.settings import setting


@dataclass(frozen=True, kw_only=True)
class AdmissionSettings(KueueSettings):
    placement_namespace: str = setting(
        "", help="namespace of the Placements named by AdmissionChecks; empty = Kueue's namespace"
    )
