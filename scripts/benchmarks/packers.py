"""Three ways to choose a node for a pod, on the fleet of one trace: best fit, FGD, and ours.

Best fit is the rule of the baselines of ``berth simulate``. FGD is "Beware of Fragmentation"
(ATC'23): of the nodes that a pod fits on, it takes the one whose fragmentation grows least, and
knows the pods of the whole list beforehand. Worked example: the mix is half whole GPUs, half halves
of one; a node has 400 and 1000 milli free. Neither pod can use the 400, so 400 are fragmented. A
half of a GPU would leave 400 and 500: for whole GPUs all 900 are lost, for halves 400, on average
650. The growth is 250. Ours is the product's own board, mix and prices, which know of the arrivals
so far only. All three: ties to the first node by name.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from berthmaster.lab.emulator.fleets import ClusterSpec, NodeSpec, gpu_memory_mib
from berthmaster.lab.simulate.baseline_fleet import (
    Allocation,
    BaselineFleet,
    Floats,
    FreeRoom,
    Ints,
    PlacementRule,
)
from berthmaster.lab.simulate.baseline_fleet import Shape as PodShape
from berthmaster.lab.simulate.placement_rules import BestFit, Fragmentation, Mix, mix_of
from berthmaster.lib.engine.fitting.fit import bind_one
from berthmaster.lib.engine.fleet.fleet import Fleet, Holding
from berthmaster.lib.engine.fleet.needs import Shape, Suitables, kind_of
from berthmaster.lib.engine.scoring.pod_mix import Mix as SeenMix
from berthmaster.lib.engine.scoring.pressure import NO_PRESSURE, is_due
from berthmaster.lib.engine.scoring.score_cache import ScoreCache
from berthmaster.lib.engine.scoring.value import NOT_HERE, Appraiser
from berthmaster.lib.messages.fleet import GpuDevice, NodeReport, Stamp
from berthmaster.lib.messages.workload import PodSet

WHOLE = 1000
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
        self._mix, self._appraiser = SeenMix(), Appraiser()
        self._pressure, self._placed = NO_PRESSURE, 0
        cpu_milli = sum(node.allocatable.cpu_milli for node in nodes)
        self._cpu_a_gpu = cpu_milli / sum(node.gpus for node in nodes)

    def place(self, pods: PodSet) -> object | None:
        self._mix.add(pods)
        known = self._fleet, self._mix.newest, self._cpu_a_gpu
        if is_due(self._pressure, self._mix.newest, self._placed, len(self._fleet.names)):
            self._pressure = self._appraiser.pressure(*known, self._pressure)
            self._placed = 0
        worth = self._appraiser.under(self._pressure, *known)
        kind = kind_of(pods)
        suitable = self._suitables.of(self._fleet, Shape({"pod_sets": (pods,)}), 0)
        card = self._board.card(self._fleet, kind, pods, suitable, worth)
        if card.best[0] == NOT_HERE:
            return None
        _, held = bind_one(self._fleet, int(card.best_slot[0]), pods, suitable, worth)
        self._fleet.charge((held,), +1)
        self._placed += 1
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


class Fgd(PlacementRule):
    """Fragmentation gradient descent: the score is int(100 sigmoid(-growth / 1000))."""

    def __init__(self, fleet: BaselineFleet, mix: Mix) -> None:
        self._fragmentation = Fragmentation(fleet, mix)

    def scores(self, slots: Ints, room: FreeRoom, shape: PodShape) -> Floats:
        scores = self._graded(slots, room, shape)
        return scores.max(axis=1) if shape.shares_a_gpu else scores

    def gpus(self, slot: int, room: FreeRoom, shape: PodShape) -> Floats:
        graded: Floats = self._graded(np.array([slot]), room, shape)[0]
        return graded

    def _graded(self, slots: Ints, room: FreeRoom, shape: PodShape) -> Floats:
        grown = self.grown(slots, room, shape)
        graded: Floats = np.floor(100.0 / (1.0 + np.exp(grown / 1000.0)))
        return graded

    def grown(self, slots: Ints, room: FreeRoom, shape: PodShape) -> Floats:
        """How much each node would lose if the pod came; for a pod that shares a GPU, by GPU."""
        lost, gpu = self._fragmentation.lost, np.maximum(room.gpu, 0)
        before, cpu = lost(slots, room), room.cpu - shape.cpu
        if not shape.shares_a_gpu:
            taken = np.argsort(np.where(room.gpu >= shape.milli, gpu, WHOLE + 1), kind="stable")
            after = gpu.copy()
            chosen = taken[:, : shape.gpus]
            left = np.take_along_axis(gpu, chosen, axis=1) - shape.milli
            np.put_along_axis(after, chosen, np.maximum(left, 0), axis=1)
            return lost(slots, FreeRoom(cpu, room.memory, after)) - before
        each = np.full(gpu.shape, np.inf)
        for at in range(gpu.shape[1]):
            after = gpu.copy()
            after[:, at] = np.maximum(gpu[:, at] - shape.milli, 0)
            grown = lost(slots, FreeRoom(cpu, room.memory, after)) - before
            each[:, at] = np.where(room.gpu[:, at] >= shape.milli, grown, np.inf)
        return each


def best_fit(fleet: BaselineFleet, typical: Sequence[PodSet]) -> PlacementRule:
    """The tightest node, whatever usually comes."""
    del fleet, typical
    return BestFit()


def fgd(fleet: BaselineFleet, typical: Sequence[PodSet]) -> PlacementRule:
    """The node that a pod fragments least for what usually comes."""
    return Fgd(fleet, mix_of(typical))


Rule = Callable[[BaselineFleet, Sequence[PodSet]], PlacementRule]


class Baseline(Packer):
    """A published rule on the fleet as the baselines of ``berth simulate`` see it."""

    def __init__(self, rule: Rule, nodes: Sequence[NodeSpec], typical: Sequence[PodSet]) -> None:
        ordered = tuple(sorted(nodes, key=lambda node: node.name))
        self._fleet = BaselineFleet([ClusterSpec(CLUSTER, "", ordered)])
        self._rule = rule(self._fleet, typical)

    def place(self, pods: PodSet) -> object | None:
        return self._fleet.allocate_one(pods, self._rule)

    def leave(self, place: object) -> None:
        assert isinstance(place, Allocation)
        self._fleet.give_back((place,))


PACKERS: dict[str, Callable[[Sequence[NodeSpec], Sequence[PodSet]], Packer]] = {
    "best_fit": partial(Baseline, best_fit),
    "fgd": partial(Baseline, fgd),
    "ours": Ours,
}
