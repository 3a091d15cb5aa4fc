"""What the evaluator can be told; `berth serve placement --help` shows it."""

from dataclasses import dataclass

from berthmaster.kubernetes.joining import ClusterSettings
from berthmaster.runtime.settings import setting


@dataclass(frozen=True, kw_only=True)
class PlacementSettings(ClusterSettings):
    """Settings of the Placement evaluator on a hub."""

    namespace: str = setting(
        "", help="where the lease is; empty = the pod's, or the context's namespace"
    )
    lease_s: float = setting(
        5.0,
        least=0.5,
        most=300,
        help="seconds until a silent evaluator is replaced by another that stands by",
    )
    pause_s: float = setting(
        0.02,
        least=0.0,
        most=60,
        help="seconds between two looks at one Placement, at least; the first change is looked at "
        "at once. Dear ones wait ten times as long as a look takes",
    )
    absent_s: float = setting(
        5.0,
        least=0.1,
        most=3600,
        help="seconds between two looks for a kind that the hub does not serve",
    )
