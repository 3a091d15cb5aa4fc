"""What the admission check controller of a hub can be told."""

from dataclasses import dataclass

from berthmaster.kubernetes.joining import ClusterSettings
from berthmaster.runtime.settings import setting


@dataclass(frozen=True, kw_only=True)
class AdmissionSettings(ClusterSettings):
    """Settings of the admission check controller of a hub."""

    kueue_namespace: str = setting(
        "kueue-system", help="where Kueue runs and the kubeconfig Secrets multikueue-CLUSTER are"
    )
    placement_namespace: str = setting(
        "", help="where the Placements are that checks name; empty = where Kueue runs"
    )
    settle_s: float = setting(
        3.0,
        least=0.1,
        most=60,
        help="seconds for which nobody passes before a drained cluster is taken out, so that what "
        "was just decided can show",
    )
