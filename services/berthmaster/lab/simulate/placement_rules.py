"""First fit and best fit, and the use of a fleet's free capacity for a mix of pods.

Best fit takes the node with the least CPU and GPU left. A node's fragmentation is the free GPU
capacity that the pods of a mix could not use ("Beware of Fragmentation", ATC'23). Example: the mix
is half whole GPUs, half halves of one; a node has 400 and 500 milli free. Whole GPUs lose all 900,
halves lose 400, so 650 are fragmented on average.

The mix is that of the simulated list, the most frequent pods first, up to 95 % of it.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from berthmaster.lab.simulate.baseline_fleet import (
    WHOLE,
    BaselineFleet,
    Floats,
    FreeRoom,
    Ints,
    PlacementRule,
    Shape,
)
from berthmaster.lab.simulate.model import Job
from berthmaster.lib.messages.workload import PodSet

MIX_SHARE: Final = 0.95
MIX_LIMIT: Final = 1000  # lists with GPU models have some hundred kinds of pods
LARGEST_CPU_MILLI: Final = 128_000  # of a node, as in the published best fit
LARGEST_GPU_MILLI: Final = 8 * WHOLE

Mix = tuple[tuple[float, Shape], ...]  # fraction of the list, one pod


def pod_sets_of(jobs: Iterable[Job]) -> Iterable[PodSet]:
    return (pods for job in jobs for pods in job.request.pod_sets)


def mix_of(listed: Iterable[PodSet]) -> Mix:
    """Return the most frequent pods of a list, until MIX_SHARE of all pods is covered.

    Their memory is omitted, as in the paper.
    """
    counts: Counter[Shape] = Counter()
    for pods in listed:
        counts[Shape.of(pods)._replace(memory=0)] += pods.count
    total = sum(counts.values())
    kept: list[tuple[int, Shape]] = []
    covered = 0
    for shape, count in counts.most_common(MIX_LIMIT):
        if covered >= MIX_SHARE * total:
            break
        kept.append((count, shape))
        covered += count
    return tuple((count / covered, shape) for count, shape in kept)


class FirstFit(PlacementRule):
    """The first node by cluster and name: all scores are equal."""

    def scores(self, slots: Ints, room: FreeRoom, shape: Shape) -> Floats:
        del room, shape
        return np.zeros(len(slots))


class BestFit(PlacementRule):
    """Least CPU and GPU left, each as a fraction of the largest node's."""

    def scores(self, slots: Ints, room: FreeRoom, shape: Shape) -> Floats:
        del slots
        left = np.maximum(room.gpu, 0).sum(axis=1) - shape.gpus * shape.milli
        cpu = room.cpu - shape.cpu
        scores: Floats = -(cpu / LARGEST_CPU_MILLI + left / LARGEST_GPU_MILLI) / 2
        return scores


class Fragmentation:
    """Free GPU milli of nodes that the pods of a mix could not use."""

    def __init__(self, fleet: BaselineFleet, mix: Mix) -> None:
        self._share = np.array([share for share, _ in mix])
        self._cpu = np.array([shape.cpu for _, shape in mix])
        self._count = np.array([shape.gpus for _, shape in mix])
        # Many kinds of pods request the same fraction of a GPU.
        milli, self._part = np.unique([shape.milli for _, shape in mix], return_inverse=True)
        free = np.arange(WHOLE + 1)[:, np.newaxis]
        # By free milli of a GPU and requested milli: lost milli, and whether the pod fits.
        self._small: Floats = np.where(free < milli, free, 0).astype(np.float64)
        self._enough: Ints = ((free >= milli) & (free > 0)).astype(np.int64)
        suits = [fleet.suits(shape) for _, shape in mix]
        self._suits: NDArray[np.bool_] = np.array(suits, np.bool_).T.reshape(-1, len(mix))

    def lost(self, slots: Ints, room: FreeRoom) -> Floats:
        """Return the loss of each node, on average over the mix."""
        gpu = np.maximum(room.gpu, 0)
        small, enough = self._small[gpu].sum(axis=1), self._enough[gpu].sum(axis=1)
        return self._mean(slots, small, enough, gpu.sum(axis=1), room.cpu)

    def _mean(self, slots: Ints, small: Floats, enough: Ints, total: Ints, cpu: Ints) -> Floats:
        enough, small = enough[:, self._part], small[:, self._part]
        hosts = (cpu[:, np.newaxis] >= self._cpu) & (enough >= self._count) & (self._count > 0)
        hosts &= self._suits[slots]
        lost = np.where(hosts, small, total[:, np.newaxis])
        mean: Floats = (lost * self._share).sum(axis=1)
        return mean
