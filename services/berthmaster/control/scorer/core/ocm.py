"""Open Cluster Management's score of an amount, and the names under which its users know them.

Pure. The formula and its rounding are OCM's, so that numbers can be compared; its ranges are not:
it measures memory against 1 MiB and ties all clusters with more than 20 free GPUs.
"""

import math
from typing import Final

from berthmaster.control.scorer.core.rules import RESOURCES, Amount
from berthmaster.lib.messages.fleet import ResourceScore

MIN_SCORE: Final = -100
MAX_SCORE: Final = 100

# What scores 100 where neither the settings nor the fleet say so: OCM's own ranges, and 1 TiB.
DEFAULT_FULL_SCALE: Final = Amount(cpu=100.0, mem=1024.0 * 1024.0, gpu=20.0, tpu=20.0)

NODE_NAMES: Final = {resource: f"{resource}NodeAvailable" for resource in RESOURCES}
CLUSTER_NAMES: Final = {resource: f"{resource}ClusterAvailable" for resource in RESOURCES}


def normalise(value: float, least: float, most: float) -> int:
    """``value`` on the scale from -100 (at ``least`` or below) to 100 (at ``most`` and above),
    truncated toward zero as OCM does."""
    if value <= least:
        return MIN_SCORE
    if value > most:
        return MAX_SCORE
    return int(200 * (value - least) / (most - least) - 100)


def resource_score(available: float, full_scale: float) -> ResourceScore:
    """An available amount with its score; what is owed (less than nothing) scores -100."""
    return ResourceScore(
        score=normalise(available, 0.0, full_scale), available=available, full_scale=full_scale
    )


def round_up(amount: float) -> float:
    """The next 1, 2 or 5 x 10^n that is not less: a range that seldom moves."""
    if amount <= 0 or not math.isfinite(amount):
        return 0.0
    power = 10.0 ** math.floor(math.log10(amount))
    for step in (1.0, 2.0, 5.0):
        if amount <= step * power * (1 + 1e-9):
            return step * power
    return 10.0 * power


def full_scale(fixed: Amount, largest: Amount) -> Amount:
    """What scores 100 per resource: as set, else after the largest seen, else the default."""
    return Amount(
        *(
            getattr(fixed, resource)
            or round_up(getattr(largest, resource))
            or getattr(DEFAULT_FULL_SCALE, resource)
            for resource in RESOURCES
        )
    )
