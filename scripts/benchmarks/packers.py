"""Three ways to choose a node for a pod, on the fleet of one trace: best fit, FGD, and ours.

Best fit and FGD are reproduced from their papers, to be compared with in the same run: best fit
takes the node with least left of CPU and GPU, FGD ("Beware of Fragmentation", ATC'23) the one whose
fragmentation against the typical pods of the whole list grows least. Ours is the product's own
board, mix and prices, which know of the arrivals so far only. All three: ties to the first node by
name, scores kept by kind of pod and brought up to date for the nodes that changed.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from berthmaster.emulator.fleets import NodeSpec, gpu_memory_mib
from berthmaster.engine.fitting.fit import bind_one
from berthmaster.engine.fleet.fleet import Fleet, Holding
from berthmaster.engine.fleet.needs import Suitables, kind_of
from berthmaster.engine.scoring.mix import Mix
from berthmaster.engine.scoring.score_cache import ScoreCache
from berthmaster.engine.scoring.value import NOT_HERE, Appraiser
from berthmaster.messages.fleet import GpuDevice, NodeReport, Stamp
from berthmaster.messages.workload import PodSet

WHOLE = 1000
MOST_GPUS = 8
COVERAGE = 0.95  # typical pods: the most popular kinds until so much of the list is covered
CLUSTER = "openb"


def milli_of(pods: PodSet) -> int:
    """GPU milli that a pod takes."""
    return pods.gpus * pods.gpu_milli


class Packer(ABC):
    """Chooses a node for one pod at a time, and hears of those that leave."""

    @abstractmethod
    def place(self, pods: PodSet) -> object | None:
        """Where it is now, to be told when it leaves; None if it fits nowhere."""

    @abstractmethod
    def leave(self, place: object) -> None:
        """It is gone."""


class Ours(Packer):
    """The product's engine inside one cluster."""

    def __init__(self, nodes: Sequence[NodeSpec], typical: Sequence[PodSet]) -> None:
        del typical  # it learns from arrivals
        self._fleet = Fleet()
        for node in nodes:
            self._fleet.put_node(report_of(node))
        self._fleet.arrange()
        self._board, self._suitables = ScoreCache(), Suitables()
        self._mix, self._appraiser = Mix(), Appraiser()
        cpu_milli = sum(node.allocatable.cpu_milli for node in nodes)
        self._cpu_a_gpu = cpu_milli / sum(node.gpus for node in nodes)

    def place(self, pods: PodSet) -> object | None:
        self._mix.add(pods)
        worth = self._appraiser.of(self._mix.newest, self._cpu_a_gpu)
        kind = kind_of(pods)
        suitable = self._suitables.of(self._fleet, kind, 0, pods)
        card = self._board.card(self._fleet, kind, pods, suitable, worth)
        if card.best[0] == NOT_HERE:
            return None
        _, held = bind_one(self._fleet, int(card.best_slot[0]), pods, suitable, worth)
        self._fleet.charge((held,), +1)
        return held

    def leave(self, place: object) -> None:
        assert isinstance(place, Holding)
        self._fleet.charge((place,), -1)

    def moved(self, place: object, node: str, gpus: tuple[int, ...]) -> object:
        """It runs there instead: where it is now."""
        assert isinstance(place, Holding)
        self._fleet.charge((place,), -1)
        observed = place._replace(node=node, gpus=gpus)
        self._fleet.charge((observed,), +1)
        return observed


def report_of(node: NodeSpec) -> NodeReport:
    """What its inventory says of it while nothing runs there."""
    memory_mib = gpu_memory_mib(node.model)
    gpus = tuple(
        GpuDevice(index=at, uuid="", model=node.model, memory_mib=memory_mib)
        for at in range(node.gpus)
    )
    return NodeReport(
        cluster=CLUSTER,
        node=node.name,
        stamp=Stamp(epoch=1, counter=1),
        observed_at_s=0.0,
        allocatable=node.allocatable,
        gpus=gpus,
    )


class _Place(NamedTuple):
    slot: int
    gpus: tuple[int, ...]
    pods: PodSet


class _Row:
    """One kind of pod's score of every node."""

    def __init__(self, scores: NDArray[np.float64], seen: int) -> None:
        self.scores = scores
        self.seen = seen


class _Scored(Packer):
    """What best fit and FGD have in common: arrays of what is free, and a score to maximise."""

    def __init__(self, nodes: Sequence[NodeSpec], typical: Sequence[PodSet]) -> None:
        del typical
        nodes = sorted(nodes, key=lambda node: node.name)
        self.models = np.array([node.model for node in nodes])
        self.cpu = np.array([node.cpu_milli for node in nodes], np.int64)
        self.memory = np.array([node.memory_mib for node in nodes], np.int64)
        self.gpu = np.full((len(nodes), MOST_GPUS), -1, np.int64)
        for slot, node in enumerate(nodes):
            self.gpu[slot, : node.gpus] = WHOLE
        self._rows: dict[bytes, _Row] = {}
        self._touched: list[int] = []

    @abstractmethod
    def options(
        self, pods: PodSet, slots: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """How good a pod would be on each of the nodes, the best way; and of each of their GPUs,
        how good to share it."""

    def _fits(self, pods: PodSet, slots: NDArray[np.int64]) -> NDArray[np.bool_]:
        fits = (self.cpu[slots] >= pods.cpu_milli) & (self.memory[slots] >= pods.memory_mib)
        if pods.gpus:
            fits &= (self.gpu[slots] >= pods.gpu_milli).sum(axis=1) >= pods.gpus
            if pods.gpu_models:
                fits &= np.isin(self.models[slots], pods.gpu_models)
        return fits

    def _score(self, pods: PodSet, slots: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.where(self._fits(pods, slots), self.options(pods, slots)[0], -np.inf)

    def place(self, pods: PodSet) -> object | None:
        kind = kind_of(pods)
        row = self._rows.get(kind)
        if row is None:
            every = np.arange(len(self.cpu))
            row = self._rows[kind] = _Row(self._score(pods, every), len(self._touched))
        changed = np.array(list(dict.fromkeys(self._touched[row.seen :])), np.int64)
        row.seen = len(self._touched)
        if len(changed):
            row.scores[changed] = self._score(pods, changed)
        slot = int(row.scores.argmax())
        if row.scores[slot] == -np.inf:
            return None
        place = _Place(slot, self._gpus(pods, slot), pods)
        self._charge(place, -1)
        return place

    def _gpus(self, pods: PodSet, slot: int) -> tuple[int, ...]:
        if not pods.gpus:
            return ()
        free = self.gpu[slot] >= pods.gpu_milli
        if pods.gpus == 1 and pods.gpu_milli < WHOLE:
            each = self.options(pods, np.array([slot]))[1][0]
            return (int(np.where(free, each, -np.inf).argmax()),)
        return tuple(np.flatnonzero(free)[: pods.gpus].tolist())

    def leave(self, place: object) -> None:
        assert isinstance(place, _Place)
        self._charge(place, +1)

    def _charge(self, place: _Place, sign: int) -> None:
        slot, gpus, pods = place
        self.cpu[slot] += sign * pods.cpu_milli
        self.memory[slot] += sign * pods.memory_mib
        for gpu in gpus:
            self.gpu[slot, gpu] += sign * pods.gpu_milli
        self._touched.append(slot)


class BestFit(_Scored):
    """Least left of CPU and GPU, each as a share of the largest node's; of GPUs the fullest."""

    def options(
        self, pods: PodSet, slots: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        gpu = self.gpu[slots]
        left = np.maximum(gpu, 0).sum(axis=1) - milli_of(pods)
        cpu = self.cpu[slots] - pods.cpu_milli
        return -(cpu / 128_000 + left / (MOST_GPUS * WHOLE)) / 2, -gpu.astype(np.float64)


class Fgd(_Scored):
    """Fragmentation gradient descent: the score is int(100 sigmoid(-growth / 1000))."""

    def __init__(self, nodes: Sequence[NodeSpec], typical: Sequence[PodSet]) -> None:
        super().__init__(nodes, typical)
        kinds = Counter((p.cpu_milli, p.gpu_milli, p.gpus, p.gpu_models) for p in typical)
        kept: list[tuple[tuple[int, int, int, tuple[str, ...]], int]] = []
        for kind, count in kinds.most_common():
            kept.append((kind, count))
            if sum(n for _, n in kept) >= COVERAGE * len(typical):
                break
        shares = np.array([count for _, count in kept], np.float64)
        self._share = shares / shares.sum()
        self._cpu = np.array([kind[0] for kind, _ in kept])
        self._count = np.array([kind[2] for kind, _ in kept])
        milli = np.array([kind[1] for kind, _ in kept])
        room = np.arange(WHOLE + 1)[:, np.newaxis]
        self._small = np.where(room < milli, room, 0).astype(np.float64)  # [1001, M]
        self._enough = ((room >= milli) & (room > 0)).astype(np.int64)  # [1001, M]
        self._model_ok = np.array(
            [[not kind[3] or model in kind[3] for kind, _ in kept] for model in self.models]
        )

    def options(
        self, pods: PodSet, slots: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        gpu = np.maximum(self.gpu[slots], 0)
        small, enough = self._small[gpu].sum(axis=1), self._enough[gpu].sum(axis=1)  # [K, M]
        total, cpu = gpu.sum(axis=1), self.cpu[slots]
        before = self._fragments(slots, small, enough, total, cpu)
        cpu = cpu - pods.cpu_milli
        if pods.gpus == 1 and pods.gpu_milli < WHOLE:
            each = np.full(gpu.shape, -np.inf)
            for at in range(MOST_GPUS):
                old = gpu[:, at]
                new = np.maximum(old - pods.gpu_milli, 0)
                after = self._fragments(
                    slots,
                    small + self._small[new] - self._small[old],
                    enough + self._enough[new] - self._enough[old],
                    total - pods.gpu_milli,
                    cpu,
                )
                can = self.gpu[slots][:, at] >= pods.gpu_milli
                each[:, at] = np.where(can, _graded(before - after), -np.inf)
            return each.max(axis=1), each
        taken = WHOLE * pods.gpus
        small = small + pods.gpus * (self._small[0] - self._small[WHOLE])
        enough = enough + pods.gpus * (self._enough[0] - self._enough[WHOLE])
        after = self._fragments(slots, small, enough, total - taken, cpu)
        return _graded(before - after), np.zeros(gpu.shape)

    def _fragments(
        self,
        slots: NDArray[np.int64],
        small: NDArray[np.float64],
        enough: NDArray[np.int64],
        total: NDArray[np.int64],
        cpu: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        """Of each node, the free milli that a typical pod could not use, on average."""
        hosts = (cpu[:, np.newaxis] >= self._cpu) & (enough >= self._count) & (self._count > 0)
        hosts &= self._model_ok[slots]
        lost = np.where(hosts, small, total[:, np.newaxis])
        answer: NDArray[np.float64] = (lost * self._share).sum(axis=1)
        return answer


def _graded(gain: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.floor(100.0 / (1.0 + np.exp(-gain / 1000.0)))


PACKERS: dict[str, type[Ours] | type[BestFit] | type[Fgd]] = {
    "best_fit": BestFit,
    "fgd": Fgd,
    "ours": Ours,
}
