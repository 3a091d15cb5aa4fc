"""Fit: how little a pod costs beyond itself on the cluster's best node.

The cost is value.py's: what the pod spoils of the mix of pods really seen (fragmentation) and what
GPUs it leaves without CPU (stranded), in GPUs, against the GPUs that it asks for.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from berthmaster.lib.engine.fleet.needs import wants_fraction
from berthmaster.lib.engine.scoring.parts.values import Floats, within_bounds
from berthmaster.lib.engine.scoring.value import Worth
from berthmaster.lib.messages.workload import PodSet

_EVEN: Final = 50.0  # where a pod costs what its GPUs are worth; 0: it spoils as much again


class Costs(NamedTuple):
    """How a node's score becomes the part: x ``a_gpu``, plus ``even``."""

    a_gpu: float
    even: float


def costs(pods: PodSet, worth: Worth) -> Costs:
    own = worth.hole.item(pods.gpu_milli) if wants_fraction(pods) else 0.0
    a_gpu = _EVEN / max(1, pods.gpus)
    return Costs(a_gpu, _EVEN + a_gpu * own)


def part(best: NDArray[np.float32], costs: Costs) -> Floats:
    """From the scores of the clusters' best nodes; lowest where there is none with room, 100 where
    the pod saves what its GPUs are worth."""
    return within_bounds(best.astype(np.float64) * costs.a_gpu + costs.even)
