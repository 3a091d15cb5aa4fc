"""TPU slices: what a topology such as 2x4 or 2x2x4 tells, and how many nodes that takes. Pure.

A slice is all chips that its topology names. One that has more chips than a node is made of all
nodes of one node pool, and works only as a whole: so its pods are one gang, a node each.
"""

import re
from functools import lru_cache
from math import prod
from typing import Final

ACCELERATOR_LABEL: Final = "cloud.google.com/gke-tpu-accelerator"
TOPOLOGY_LABEL: Final = "cloud.google.com/gke-tpu-topology"
POOL_LABEL: Final = "cloud.google.com/gke-nodepool"  # whose nodes make up one slice
MAX_CHIPS: Final = 1 << 17  # more than any slice that is sold
_TOPOLOGY: Final = re.compile(r"[1-9][0-9]{0,4}(?:x[1-9][0-9]{0,4}){1,2}\Z")


@lru_cache(maxsize=1024)
def chips_of(topology: str) -> int | None:
    """How many chips a slice has; None if it is spelt as no topology is."""
    if _TOPOLOGY.match(topology) is None:
        return None
    chips = prod(int(side) for side in topology.split("x"))
    return chips if chips <= MAX_CHIPS else None


def spans_nodes(topology: str, chips_a_pod: int) -> bool:
    """Whether several pods, and so several nodes, make up one slice."""
    chips = chips_of(topology) if topology else None
    return chips is not None and chips > chips_a_pod > 0
