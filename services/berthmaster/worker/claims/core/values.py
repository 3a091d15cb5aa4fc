"""A cluster's score as the values of its ClusterClaims. Pure.

Claims are few: a registration agent copies 20 at most and each change of one is a write on the hub.
"""

from typing import Final

from berthmaster.lib.ocm.core.pace import LARGE, SMALL
from berthmaster.lib.ocm.core.view import View, short_name

SUFFIX: Final = ".berthmaster.io"
FRESHNESS: Final = f"score-freshness{SUFFIX}"
GPU_FREE: Final = f"gpu-free{SUFFIX}"
GANG: Final = f"gpu-largest-gang{SUFFIX}"
MODEL: Final = f"gpu-largest-gang-model{SUFFIX}"


def values(view: View) -> dict[str, str]:
    """Return the cluster's claims by name."""
    score = view.score
    gangs = score.largest_gang if score is not None else {}
    largest = max(sorted(gangs), key=lambda model: gangs[model], default="")
    return {
        FRESHNESS: "fresh" if view.fresh else view.reason.lower(),
        GPU_FREE: str(int(score.free_gpus)) if score is not None else "0",
        GANG: str(gangs.get(largest, 0)),
        MODEL: short_name(largest),
    }


def gap(before: str, after: str) -> float:
    """Something becomes nothing, or the reverse: at once. All else has time."""
    if before == after:
        return 0.0
    return LARGE if "0" in (before, after) or "fresh" in (before, after) else SMALL
