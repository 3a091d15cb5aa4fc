"""What a node is worth as it stands, and where one more pod costs least of it.

V(node) = sum over its GPUs of hole(free) - stranded + what its wholly free GPUs are worth together:
a trace, and the blocks that they make, dear where few are left (pressure.py). ``hole`` is the price
of the part of a GPU that is free (hole_prices.py). ``stranded`` are the free GPUs that the node's
free CPU cannot serve, at the CPU a GPU that pods usually bring: a pod that takes much CPU and no
GPU, or a GPU's last hole but no CPU, costs more than it seems. (Where pods ask for more CPU than
the fleet has, GPUs stay free whatever is done; then what counts is CPU that is left where hardly a
GPU is: nodes are told apart at a multiple of that.) What a pod costs is V before less V after; it
goes where that is least, on ties where fewest GPU milli stay free, then to the first by name. Of a
node's GPUs it gets those whose holes lose least.

Scores are float32 of arithmetic that is the same for one node as for all: whether a node is looked
at alone or with the rest, now or later, it has the same score.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from berthmaster.lib.engine.fleet.fleet import WHOLE, Fleet
from berthmaster.lib.engine.fleet.links import pick
from berthmaster.lib.engine.fleet.needs import Suitable
from berthmaster.lib.engine.fleet.shares import is_packed, wants_fraction
from berthmaster.lib.engine.scoring.hole_prices import hole_prices, hole_values
from berthmaster.lib.engine.scoring.pod_mix import Sample, Sampled
from berthmaster.lib.engine.scoring.pressure import NOTHING_DEAR, Dear, Gauge
from berthmaster.lib.messages.placement import Pressure
from berthmaster.lib.messages.workload import PodSet

NOT_HERE: Final = -np.inf
NEVER_SCARCE: Final = 0.0  # CPU a GPU while no pod with GPUs was seen
ENDLESS: Final = np.inf  # CPU of a fleet of which nothing is known
SHORT_OF_CPU: Final = 1.1  # times the CPU that there is: then it is no chance of a small sample
RICH_IN_CPU: Final = 4.0  # times what GPUs bring; anything between 3 and 5 does as well
CPU_SHARE: Final = 0.95  # of a GPU's usual CPU: some pods bring less, and those can still come
TOGETHER: Final = 0.003  # for e wholly free GPUs of n: this x e^2 / n
LEFT_OVER: Final = 0.001  # for a node that is left without free GPUs, against one that keeps eight
LEFT_OVER_A_GPU: Final = LEFT_OVER / 8
_BITS: Final = 7  # of the CPU that pods bring with a GPU
_TIGHTER: Final = 1e-9  # of two GPUs that lose the same, the one with less free
_CHUNK: Final = 16_384  # nodes looked at together: bounds what is needed beside the result

At = slice | NDArray[np.int64]
Floats = NDArray[np.floating[Any]]  # float64; what its operators return says no more


class Worth(NamedTuple):
    """What was learned of a mix of pods."""

    hole: NDArray[np.float64]  # [1001], by free milli
    cpu_milli_a_gpu: float  # what a free GPU needs to be of use; NEVER_SCARCE = nothing
    dear: Dear  # which nodes are scarce
    known_losses: dict[int, NDArray[np.float64]]  # what ``losses`` gave, by milli taken
    listed: dict[int, list[float]]  # the same, for single GPUs

    def same(self, other: "Worth") -> bool:
        """Whether nothing scores otherwise by the other."""
        same_cpu = self.cpu_milli_a_gpu == other.cpu_milli_a_gpu
        return same_cpu and self.dear is other.dear and np.array_equal(self.hole, other.hole)

    def same_for(self, pods: PodSet, suitable: Suitable, other: "Worth") -> bool:
        """Whether pods of a set score the same by the other: those that share no GPU do as long as
        GPUs need the same CPU."""
        if self.cpu_milli_a_gpu != other.cpu_milli_a_gpu or self.dear is not other.dear:
            return False
        if not wants_fraction(pods):
            return True
        if suitable.offered is not None:
            return np.array_equal(self.hole, other.hole)
        mine, others = self.losses(pods.gpu_milli), other.losses(pods.gpu_milli)
        return mine is others or np.array_equal(mine, others)

    def losses(self, milli: int) -> NDArray[np.float64]:
        """By free milli of a GPU, how its worth changes when a part of it is taken; NOT_HERE where
        that is too little."""
        known = self.known_losses.get(milli)
        if known is None:
            known = np.full(WHOLE + 1, NOT_HERE)
            known[milli:] = self.hole[: WHOLE + 1 - milli] - self.hole[milli:]
            known[milli:] -= _TIGHTER * np.arange(milli, WHOLE + 1)
            self.known_losses[milli] = known
        return known

    def loss(self, milli: int) -> list[float]:
        """``losses``, to look up one at a time."""
        known = self.listed.get(milli)
        if known is None:
            known = self.listed[milli] = self.losses(milli).tolist()
        return known


def worth_of(sample: Sample, fleet_cpu_a_gpu: float = ENDLESS) -> Worth:
    """What a mix teaches. ``fleet_cpu_a_gpu``: CPU milli that all nodes have, by their GPUs."""
    shared: dict[int, int] = {}
    cpu = gpus = all_cpu = 0
    for kind, count in sample:
        all_cpu += count * kind.cpu_milli
        if not kind.gpus:
            continue
        cpu += count * kind.cpu_milli
        gpus += count * kind.gpus * kind.gpu_milli
        if kind.gpus == 1 and kind.gpu_milli < WHOLE:
            shared[kind.gpu_milli] = shared.get(kind.gpu_milli, 0) + count
    kappa = CPU_SHARE * _steady(WHOLE * cpu // gpus) if cpu else NEVER_SCARCE
    if gpus and WHOLE * all_cpu > SHORT_OF_CPU * fleet_cpu_a_gpu * gpus:
        kappa *= RICH_IN_CPU
    return Worth(hole_values(hole_prices(shared)), kappa, NOTHING_DEAR, {}, {})


def _steady(amount: int) -> int:
    """An amount in steps of about one in a hundred, so that chance alone does not change it."""
    step = 1 << max(0, amount.bit_length() - _BITS)
    return (amount + step // 2) // step * step


class Appraiser:
    """The newest sample's worth, worked out once; the same one as long as nothing new is learned,
    so that nothing that was made with it need be made anew."""

    def __init__(self) -> None:
        self._worth = self._priced = worth_of(())
        self._seen = (Sampled(), ENDLESS)
        self.gauge = Gauge()

    def of(self, sampled: Sampled, fleet_cpu_a_gpu: float = ENDLESS) -> Worth:
        """As of a sample, on a fleet with so much CPU milli for each GPU; nothing is scarce."""
        seen = sampled, fleet_cpu_a_gpu
        if seen != self._seen:
            worth = worth_of(sampled.sample, fleet_cpu_a_gpu)
            if not worth.same(self._worth):
                self._worth = worth
            self._seen = seen
        return self._worth

    def pressure(
        self, fleet: Fleet, sampled: Sampled, fleet_cpu_a_gpu: float, before: Pressure
    ) -> Pressure:
        """Which nodes are scarce now. The fleet must be arranged."""
        worth = self.of(sampled, fleet_cpu_a_gpu)
        return self.gauge.made(fleet, sampled, before, worth.hole, worth.cpu_milli_a_gpu)

    def under(
        self, pressure: Pressure, fleet: Fleet, sampled: Sampled, fleet_cpu_a_gpu: float
    ) -> Worth:
        """What a mix teaches where these nodes are scarce; pressure of another sample counts for
        nothing. The fleet must be arranged."""
        plain = self.of(sampled, fleet_cpu_a_gpu)
        dear = self.gauge.dear(fleet, sampled, pressure)
        if self._priced.hole is not plain.hole or self._priced.dear is not dear:
            self._priced = plain._replace(dear=dear)
        return self._priced


def score_all(fleet: Fleet, pods: PodSet, suitable: Suitable, worth: Worth) -> NDArray[np.float32]:
    """Of every node: the higher, the less one pod of the set costs there; NOT_HERE = no room."""
    out = np.empty(len(fleet.names), np.float32)
    for start in range(0, len(out), _CHUNK):
        at = slice(start, start + _CHUNK)
        out[at] = score_nodes(fleet, pods, suitable, worth, at)
    return out


def score_nodes(
    fleet: Fleet, pods: PodSet, suitable: Suitable, worth: Worth, at: At
) -> NDArray[np.float32]:
    """The same, of some nodes.

    Called for each decision, of some hundred nodes: what counts is how many arrays it makes.
    """
    cpu, milli = fleet.arrays.cpu[at], fleet.arrays.milli[at]
    fits = suitable.nodes[at] & fleet.arrays.open[at]
    fits &= cpu >= pods.cpu_milli
    fits &= fleet.arrays.memory[at] >= pods.memory_mib
    if suitable.pieces:
        fits &= suitable.pods_by_pieces(fleet, at) > 0
    gpus = milli * (1.0 / WHOLE)  # that are free, with parts of them
    takes: float | Floats = 0.0  # of these
    score: Floats = gpus
    if wants_fraction(pods):
        score, takes, fits = _best_hole(fleet, pods, suitable, worth, at, fits)
    elif pods.gpus:
        whole = fleet.arrays.whole[at]
        allowed = whole
        if suitable.gpus is not None:
            allowed = ((fleet.arrays.gpu[at] >= WHOLE) & suitable.gpus[at]).sum(axis=1)
        if suitable.domains is not None:
            allowed = free_of_each_domain(fleet, suitable, at).max(axis=1, initial=0)
        fits &= allowed >= pods.gpus
        takes = float(pods.gpus)
        score = _broken(fleet, pods.gpus, worth, at)
    left_over = (takes - gpus) * LEFT_OVER_A_GPU
    score = score + left_over if pods.gpus else left_over
    if worth.cpu_milli_a_gpu > NEVER_SCARCE:
        a_cpu = 1.0 / worth.cpu_milli_a_gpu
        unserved = gpus - cpu * a_cpu  # free GPUs that there is no CPU for
        score += np.maximum(unserved, 0.0)
        unserved += pods.cpu_milli * a_cpu - takes
        score -= np.maximum(unserved, 0.0)
    if suitable.pieces:
        score = score - _pieces_left(fleet, suitable, at) * LEFT_OVER
    if worth.dear.factor is not None:
        factor = worth.dear.factor[at]
        score = score * factor - (factor - 1.0) * own_gpus(pods)
    np.copyto(score, NOT_HERE, where=~fits)
    return score.astype(np.float32)


def _pieces_left(fleet: Fleet, suitable: Suitable, at: At) -> Floats:
    """Of pieces beside GPUs, what stays free beside one more pod, from 0 to below 1 for each
    resource: pods go where fewest do."""
    total: Floats = np.zeros(len(suitable.nodes[at]))
    for resource, a_pod, nodes in suitable.pieces:
        if nodes is None:
            left = np.maximum(fleet.arrays.pieces[resource][at] - a_pod, 0)
            total = total + left / (left + a_pod)
    return total


def own_gpus(pods: PodSet) -> float:
    """The whole GPUs that a pod takes, which scores leave out: they are the same on every node."""
    return 0.0 if wants_fraction(pods) else float(pods.gpus)


def free_of_each_domain(fleet: Fleet, suitable: Suitable, at: At) -> NDArray[np.int64]:
    """Of each node, by domain: its wholly free GPUs that will do."""
    assert suitable.domains is not None
    domains = suitable.domains[at]
    free = fleet.arrays.gpu[at] >= WHOLE
    if suitable.gpus is not None:
        free &= suitable.gpus[at]
    counts = [(free & (domains == n)).sum(axis=1) for n in range(int(domains.max(initial=-1)) + 1)]
    return np.array(counts, np.int64).reshape(len(counts), len(domains)).T


def _broken(fleet: Fleet, taken: int, worth: Worth, at: At) -> NDArray[np.float64]:
    """What is lost of e^2 / n and of blocks when so many GPUs are not wholly free any more."""
    slope, offset = together(taken)
    whole = fleet.arrays.whole[at]
    lost: NDArray[np.float64] = (whole * slope + offset) * fleet.arrays.a_gpu[at]
    breaks = worth.dear.breaks(taken)
    if breaks is not None:
        lost += breaks.take(whole, mode="clip")
    return lost


def together(taken: int) -> tuple[float, float]:
    """The same as a line: by each wholly free GPU of a node, and beside them; an nth of that."""
    return -2.0 * TOGETHER * taken, TOGETHER * taken**2


def _best_hole(
    fleet: Fleet,
    pods: PodSet,
    suitable: Suitable,
    worth: Worth,
    at: At,
    fits: NDArray[np.bool_],
) -> tuple[Floats, float | Floats, NDArray[np.bool_]]:
    """Of each node the GPU to share: what is lost by that, what is taken of it, and whether it can
    be."""
    # [G, N]: rows are long, and the best of each node is found fast
    free = fleet.arrays.gpu[at].T if isinstance(at, slice) else fleet.arrays.gpu.T.take(at, axis=1)
    takes: float | Floats = pods.gpu_milli * (1.0 / WHOLE)
    if suitable.offered is None:
        table = worth.losses(pods.gpu_milli)
        of_whole: float | Floats = float(table[WHOLE])
        if isinstance(at, slice) and suitable.gpus is None:
            best = _best_of_many(fleet, table, at, free)
        else:
            loss = table.take(free, mode="clip")  # nothing is lost of what is not there
            best = _best_of_each(loss, suitable, at)
    else:
        need = suitable.offered[at]
        takes = need * (1.0 / WHOLE)
        left = free - need
        loss = worth.hole.take(left, mode="clip") - worth.hole.take(free, mode="clip")
        loss = np.where(left >= 0, loss - _TIGHTER * free, NOT_HERE)
        of_whole = worth.hole.take(WHOLE - need) - 1.0 - _TIGHTER * WHOLE
        best = _best_of_each(loss, suitable, at)
    fits = fits & (best > NOT_HERE)
    opened = best == of_whole
    if np.count_nonzero(opened):
        best += opened * _broken(fleet, 1, worth, at)
    return best, takes, fits


def _best_of_each(loss: Floats, suitable: Suitable, at: At) -> Floats:
    """[G, N] -> [N]"""
    if suitable.gpus is not None:
        loss = np.where(suitable.gpus[at].T, loss, NOT_HERE)
    best: Floats = loss.max(axis=0, initial=NOT_HERE)
    return best


def _best_of_many(
    fleet: Fleet, table: NDArray[np.float64], at: slice, free: NDArray[np.int64]
) -> Floats:
    """What is lost on the best GPU of each of many nodes: only those that have parts of GPUs free
    need a look at each."""
    whole = fleet.arrays.whole[at]
    best = np.where(whole > 0, table[WHOLE], NOT_HERE)
    parts = (fleet.arrays.milli[at] != WHOLE * whole).nonzero()[0]
    if len(parts):
        best[parts] = table.take(free[:, parts], mode="clip").max(axis=0, initial=NOT_HERE)
    return best


def pick_gpus(
    fleet: Fleet, slot: int, pods: PodSet, suitable: Suitable, worth: Worth
) -> tuple[int, ...]:
    """Indices of the GPUs that one pod takes on a node where it fits: those whose holes lose least,
    or the fullest where that is what it will get, or whole ones that belong together, else the
    first."""
    if not pods.gpus:
        return ()
    devices = fleet.report_at(slot).gpus
    row = fleet.arrays.gpu[slot].tolist()
    positions: Sequence[int] = range(len(devices))
    if suitable.gpus is not None:
        allowed = suitable.gpus[slot].tolist()
        positions = [p for p in positions if allowed[p]]
    if wants_fraction(pods):
        if is_packed(fleet.kinds[fleet.arrays.kind[slot]].shares):
            milli = suitable.milli(slot, pods)
            fit = [p for p in positions if row[p] >= milli]
            return (devices[min(fit, key=row.__getitem__)].index,) if fit else ()
        loss = worth.loss(suitable.milli(slot, pods))
        best, least = -1, NOT_HERE
        for position in positions:
            milli = row[position]
            if milli > 0 and loss[milli] > least:
                best, least = position, loss[milli]
        return (devices[best].index,) if best >= 0 else ()
    free = [p for p in positions if row[p] >= WHOLE]
    links = fleet.kinds[fleet.arrays.kind[slot]].links
    if links and len(free) > pods.gpus:
        free = pick(links, free, pods.gpus, required=suitable.domains is not None)
    return tuple(sorted([devices[p].index for p in free[: pods.gpus]]))
