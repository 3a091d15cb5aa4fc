"""Three ways to choose a node for a pod, on the fleet of one trace: best fit, FGD, and ours.

Best fit and FGD are the rules that ``berth simulate`` has, to be compared with in the same run; FGD
knows the pods of the whole list beforehand. Ours is the product's own board, mix and prices, which
know of the arrivals so far only. All three: ties to the first node by name.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial

from berthmaster.emulator.fleets import ClusterSpec, NodeSpec, gpu_memory_mib
from berthmaster.engine.fitting.fit import bind_one
from berthmaster.engine.fleet.fleet import Fleet, Holding
from berthmaster.engine.fleet.needs import Asks, Shape, Suitables, kind_of
from berthmaster.engine.scoring.mix import Mix
from berthmaster.engine.scoring.pressure import NO_PRESSURE, is_due
from berthmaster.engine.scoring.score_cache import ScoreCache
from berthmaster.engine.scoring.value import NOT_HERE, Appraiser
from berthmaster.messages.fleet import GpuDevice, NodeReport, Stamp
from berthmaster.messages.workload import PodSet
from berthmaster.simulate.baseline_fleet import Allocation, BaselineFleet
from berthmaster.simulate.placement_rules import RULES

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
        self._mix, self._appraiser = Mix(), Appraiser()
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
        suitable = self._suitables.of(self._fleet, Shape(Asks((pods,))), 0)
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


class Baseline(Packer):
    """A published rule on the fleet as the baselines of ``berth simulate`` see it."""

    def __init__(self, rule: str, nodes: Sequence[NodeSpec], typical: Sequence[PodSet]) -> None:
        ordered = tuple(sorted(nodes, key=lambda node: node.name))
        self._fleet = BaselineFleet([ClusterSpec(CLUSTER, "", ordered)])
        self._rule = RULES[rule](self._fleet, typical, 0)

    def place(self, pods: PodSet) -> object | None:
        return self._fleet.allocate_one(pods, self._rule)

    def leave(self, place: object) -> None:
        assert isinstance(place, Allocation)
        self._fleet.give_back((place,))


PACKERS: dict[str, Callable[[Sequence[NodeSpec], Sequence[PodSet]], Packer]] = {
    "best_fit": partial(Baseline, "best"),
    "fgd": partial(Baseline, "fgd"),
    "ours": Ours,
}
