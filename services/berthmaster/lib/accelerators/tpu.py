"""TPU slices: chips and nodes of a topology such as 2x4 or 2x2x4. Pure.

A slice consists of all chips of its topology. A slice with more chips than a node consists of all
nodes of one node pool, and works only as a whole. Its pods therefore form one gang, a node each.
"""

import re
from functools import lru_cache
from math import prod
from typing import Final

ACCELERATOR_LABEL: Final = "cloud.google.com/gke-tpu-accelerator"
TOPOLOGY_LABEL: Final = "cloud.google.com/gke-tpu-topology"
POOL_LABEL: Final = "cloud.google.com/gke-nodepool"  # the nodes of a pool form one slice
MAX_CHIPS: Final = 1 << 17  # more than any slice on sale
_TOPOLOGY: Final = re.compile(r"[1-9][0-9]{0,4}(?:x[1-9][0-9]{0,4}){1,2}\Z")


@lru_cache(maxsize=1024)
def chips_of(topology: str) -> int | None:
    """Return the number of chips in a slice, or None for a malformed topology."""
    if _TOPOLOGY.match(topology) is None:
        return None
    chips = prod(int(side) for side in topology.split("x"))
    return chips if chips <= MAX_CHIPS else None


def spans_nodes(topology: str, chips_a_pod: int) -> bool:
    """Return whether several pods, and so several nodes, form one slice."""
    chips = chips_of(topology) if topology else None
    return chips is not None and chips > chips_a_pod > 0
