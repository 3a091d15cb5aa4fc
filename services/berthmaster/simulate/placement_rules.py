"""Rules of placement by name: first fit, best fit, FGD, random.

The same for ``berth simulate`` and for the benchmarks, as their papers have them. Best fit takes
the node with least left of CPU and GPU. FGD is "Beware of Fragmentation" (ATC'23): a node's
fragmentation is what of its free GPU room the pods of a mix could not use, and the node whose
fragmentation grows least is taken. Worked example: the mix is half whole GPUs, half halves of one;
a node has 400 and 1000 milli free. Neither pod can use the 400, so 400 are fragmented. A half of a
GPU would leave 400 and 500: for whole GPUs all 900 are lost, for halves 400, on average 650. The
growth is 250.

The mix is that of the list that is played, the most usual first up to 95 % of it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from berthmaster.emulator.chance import uniform
from berthmaster.messages.workload import PodSet
from berthmaster.simulate.baseline_fleet import (
    ABSENT,
    WHOLE,
    BaselineFleet,
    Floats,
    FreeRoom,
    Ints,
    PlacementRule,
    Shape,
)
from berthmaster.simulate.model import Job

MIX_SHARE: Final = 0.95
MIX_LIMIT: Final = 1000  # lists that name GPU models have some hundred kinds of pods
LARGEST_CPU_MILLI: Final = 128_000  # of a node, as the published best fit has it
LARGEST_GPU_MILLI: Final = 8 * WHOLE

Mix = tuple[tuple[float, Shape], ...]  # share of the list, one pod


def pod_sets_of(jobs: Iterable[Job]) -> Iterable[PodSet]:
    return (pods for job in jobs for pods in job.request.pod_sets)


def mix_of(listed: Iterable[PodSet]) -> Mix:
    """The usual pods of a list: the most popular until MIX_SHARE of all pods is covered. Their
    memory is left out, as the paper leaves it out."""
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
    """The first node by cluster and name: all are equal."""

    def scores(self, slots: Ints, room: FreeRoom, shape: Shape) -> Floats:
        del room, shape
        return np.zeros(len(slots))


class BestFit(PlacementRule):
    """Least left of CPU and GPU, each as a share of the largest node's."""

    def scores(self, slots: Ints, room: FreeRoom, shape: Shape) -> Floats:
        del slots
        left = np.maximum(room.gpu, 0).sum(axis=1) - shape.gpus * shape.milli
        cpu = room.cpu - shape.cpu
        scores: Floats = -(cpu / LARGEST_CPU_MILLI + left / LARGEST_GPU_MILLI) / 2
        return scores


class AtRandom(PlacementRule):
    """By chance: a node's draw changes whenever what is free on it does."""

    def __init__(self, fleet: BaselineFleet, seed: int) -> None:
        self._fleet = fleet
        self._seed = seed

    def scores(self, slots: Ints, room: FreeRoom, shape: Shape) -> Floats:
        asked = (shape.cpu, shape.gpus, shape.milli)
        return np.array(
            [
                -uniform(
                    self._seed,
                    self._fleet.name(slot),
                    cpu,
                    *(free for free in gpus if free != ABSENT),
                    *asked,
                )
                for slot, cpu, gpus in zip(
                    slots.tolist(), room.cpu.tolist(), room.gpu.tolist(), strict=True
                )
            ]
        )


class Fragmentation:
    """What of the free GPU milli of nodes the pods of a mix could not use."""

    def __init__(self, fleet: BaselineFleet, mix: Mix) -> None:
        self._share = np.array([share for share, _ in mix])
        self._cpu = np.array([shape.cpu for _, shape in mix])
        self._count = np.array([shape.gpus for _, shape in mix])
        # Many kinds of pods ask for the same part of a GPU.
        milli, self._part = np.unique([shape.milli for _, shape in mix], return_inverse=True)
        free = np.arange(WHOLE + 1)[:, np.newaxis]
        # By what is free of one GPU and by part asked for: what is too small for it; does it do?
        self._small: Floats = np.where(free < milli, free, 0).astype(np.float64)
        self._enough: Ints = ((free >= milli) & (free > 0)).astype(np.int64)
        suits = [fleet.suits(shape) for _, shape in mix]
        self._suits: NDArray[np.bool_] = np.array(suits, np.bool_).T.reshape(-1, len(mix))

    def lost(self, slots: Ints, room: FreeRoom) -> Floats:
        """Of each node, on average over the mix."""
        gpu = np.maximum(room.gpu, 0)
        small, enough = self._small[gpu].sum(axis=1), self._enough[gpu].sum(axis=1)
        return self._mean(slots, small, enough, gpu.sum(axis=1), room.cpu)

    def grown(self, slots: Ints, room: FreeRoom, shape: Shape) -> Floats:
        """How much each node would lose if the pod came; for a pod that shares a GPU, by GPU."""
        gpu = np.maximum(room.gpu, 0)
        small, enough = self._small[gpu].sum(axis=1), self._enough[gpu].sum(axis=1)
        total, cpu = gpu.sum(axis=1), room.cpu
        before = self._mean(slots, small, enough, total, cpu)
        cpu = cpu - shape.cpu
        if not shape.shares_a_gpu:
            taken = np.argsort(np.where(room.gpu >= shape.milli, gpu, WHOLE + 1), kind="stable")
            old = np.take_along_axis(gpu, taken[:, : shape.gpus], axis=1)
            new = np.maximum(old - shape.milli, 0)
            small = small + (self._small[new] - self._small[old]).sum(axis=1)
            enough = enough + (self._enough[new] - self._enough[old]).sum(axis=1)
            total = total - shape.milli * shape.gpus
            return self._mean(slots, small, enough, total, cpu) - before
        each = np.full(gpu.shape, np.inf)
        for at in range(gpu.shape[1]):
            old = gpu[:, at]
            new = np.maximum(old - shape.milli, 0)
            after = self._mean(
                slots,
                small + self._small[new] - self._small[old],
                enough + self._enough[new] - self._enough[old],
                total - shape.milli,
                cpu,
            )
            each[:, at] = np.where(room.gpu[:, at] >= shape.milli, after - before, np.inf)
        return each

    def _mean(self, slots: Ints, small: Floats, enough: Ints, total: Ints, cpu: Ints) -> Floats:
        enough, small = enough[:, self._part], small[:, self._part]
        hosts = (cpu[:, np.newaxis] >= self._cpu) & (enough >= self._count) & (self._count > 0)
        hosts &= self._suits[slots]
        lost = np.where(hosts, small, total[:, np.newaxis])
        mean: Floats = (lost * self._share).sum(axis=1)
        return mean


class Fgd(PlacementRule):
    """Fragmentation gradient descent: the score is int(100 sigmoid(-growth / 1000))."""

    def __init__(self, fleet: BaselineFleet, mix: Mix) -> None:
        self._fragmentation = Fragmentation(fleet, mix)

    def scores(self, slots: Ints, room: FreeRoom, shape: Shape) -> Floats:
        scores = self._graded(slots, room, shape)
        return scores.max(axis=1) if shape.shares_a_gpu else scores

    def gpus(self, slot: int, room: FreeRoom, shape: Shape) -> Floats:
        graded: Floats = self._graded(np.array([slot]), room, shape)[0]
        return graded

    def _graded(self, slots: Ints, room: FreeRoom, shape: Shape) -> Floats:
        grown = self._fragmentation.grown(slots, room, shape)
        graded: Floats = np.floor(100.0 / (1.0 + np.exp(grown / 1000.0)))
        return graded


RULES: Final[dict[str, Callable[[BaselineFleet, Sequence[PodSet], int], PlacementRule]]] = {
    "first": lambda fleet, listed, seed: FirstFit(),
    "best": lambda fleet, listed, seed: BestFit(),
    "fgd": lambda fleet, listed, seed: Fgd(fleet, mix_of(listed)),
    "random": lambda fleet, listed, seed: AtRandom(fleet, seed),
}
