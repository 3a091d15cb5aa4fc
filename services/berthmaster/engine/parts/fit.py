"""Fit: how little a pod costs beyond itself on the cluster's best node.

The cost is value.py's: what the pod spoils of the mix of pods really seen (fragmentation) and what
GPUs it leaves without CPU (stranded), in GPUs, against the GPUs that it asks for.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from berthmaster.engine.needs import wants_fraction
from berthmaster.engine.parts.values import Floats, within_bounds
from berthmaster.engine.value import Worth
from berthmaster.messages.workload import PodSet

_EVEN = 50.0  # where a pod costs what its GPUs are worth; 0: it spoils as much again, 100: it saves


def part(pods: PodSet, best: NDArray[np.float32], worth: Worth) -> Floats:
    """From the scores of the clusters' best nodes; lowest where there is none with room."""
    own = float(worth.hole[pods.gpu_milli]) if wants_fraction(pods) else 0.0
    a_gpu = _a_gpu(max(1, pods.gpus))
    values: Floats = best * a_gpu
    values += _EVEN + float(a_gpu) * own
    return within_bounds(values)


@lru_cache(maxsize=64)
def _a_gpu(gpus: int) -> Floats:
    """An array of no dimension: it makes doubles of the scores, and is faster than a float."""
    return np.array(_EVEN / gpus)
