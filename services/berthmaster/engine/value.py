"""What a node is worth as it stands, and where one more pod costs least of it.

V(node) = sum over its GPUs of hole(free) - stranded + a trace for wholly free GPUs that are
together. ``hole`` is the price of the part of a GPU that is free (prices.py). ``stranded`` are the
free GPUs that the node's free CPU cannot serve, at the CPU a GPU that pods usually bring: a pod
that takes much CPU and no GPU, or a GPU's last hole but no CPU, costs more than it seems. What a
pod costs is V before less V after; it goes where that is least, on ties where fewest GPU milli
stay free, then to the first by name. Of a node's GPUs it gets those whose holes lose least.

Scores are float32 of arithmetic that is the same for one node as for all: whether a node is looked
at alone or with the rest, now or later, it has the same score.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from berthmaster.engine.fleet import WHOLE, Fleet
from berthmaster.engine.mix import Sample, Sampled
from berthmaster.engine.needs import Suitable, wants_fraction
from berthmaster.engine.prices import hole_prices, hole_values
from berthmaster.messages.workload import PodSet

NOT_HERE: Final = -np.inf
NEVER_SCARCE: Final = 0.0  # CPU a GPU while no pod with GPUs was seen
CPU_SHARE: Final = 0.95  # of a GPU's usual CPU: some pods bring less, and those can still come
TOGETHER: Final = 0.01  # for e wholly free GPUs of n: this x e^2 / n
LEFT_OVER: Final = 0.001  # for a node that is left without free GPUs, against one that keeps eight
_FULL_NODE_MILLI: Final = 8 * WHOLE
_BITS: Final = 7  # of the CPU that pods bring with a GPU
_TIGHTER: Final = 1e-9  # of two GPUs that lose the same, the one with less free
_MANY: Final = 256
_CHUNK: Final = 16_384  # nodes looked at together: bounds what is needed beside the result

At = slice | NDArray[np.int64]


class Worth(NamedTuple):
    """What was learned of a mix of pods."""

    hole: NDArray[np.float64]  # [1001], by free milli
    cpu_milli_a_gpu: float  # what a free GPU needs to be of use; NEVER_SCARCE = nothing
    known_losses: dict[int, NDArray[np.float64]]  # what ``losses`` gave, by milli taken

    def same(self, other: "Worth") -> bool:
        """Whether nothing scores otherwise by the other."""
        same_cpu = self.cpu_milli_a_gpu == other.cpu_milli_a_gpu
        return same_cpu and np.array_equal(self.hole, other.hole)

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


def worth_of(sample: Sample) -> Worth:
    """What a mix teaches."""
    shared: dict[int, int] = {}
    cpu = gpus = 0
    for kind, count in sample:
        if not kind.gpus:
            continue
        cpu += count * kind.cpu_milli
        gpus += count * kind.gpus * kind.gpu_milli
        if kind.gpus == 1 and kind.gpu_milli < WHOLE:
            shared[kind.gpu_milli] = shared.get(kind.gpu_milli, 0) + count
    kappa = CPU_SHARE * _steady(WHOLE * cpu // gpus) if cpu else NEVER_SCARCE
    return Worth(hole_values(hole_prices(shared)), kappa, {})


def _steady(amount: int) -> int:
    """An amount in steps of about one in a hundred, so that chance alone does not change it."""
    step = 1 << max(0, amount.bit_length() - _BITS)
    return (amount + step // 2) // step * step


class Appraiser:
    """The newest sample's worth, worked out once; the same one as long as nothing new is learned,
    so that nothing that was made with it need be made anew."""

    def __init__(self) -> None:
        self._worth = worth_of(())
        self._from = Sampled()

    def of(self, sampled: Sampled) -> Worth:
        """As of a sample."""
        if self._from is not sampled and self._from != sampled:
            worth = worth_of(sampled.sample)
            if not worth.same(self._worth):
                self._worth = worth
        self._from = sampled
        return self._worth


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
    """The same, of some nodes."""
    cpu, milli = fleet.cpu[at], fleet.milli[at]
    fits = suitable.nodes[at] & fleet.open[at]
    fits &= cpu >= pods.cpu_milli
    fits &= fleet.memory[at] >= pods.memory_mib
    score: NDArray[Any] | float = 0.0
    after = milli
    if wants_fraction(pods):
        score, need, fits = _best_hole(fleet, pods, suitable, worth, at, fits)
        after = milli - need
    elif pods.gpus:
        whole = fleet.whole[at]
        allowed = whole
        if suitable.gpus is not None:
            allowed = ((fleet.gpu[at] >= WHOLE) & suitable.gpus[at]).sum(axis=1)
        fits &= allowed >= pods.gpus
        after = milli - WHOLE * pods.gpus
        score = _together(fleet, at, whole, pods.gpus)
    if worth.cpu_milli_a_gpu > NEVER_SCARCE:
        stranded = _stranded(worth, after, cpu - pods.cpu_milli)
        score = score + (_stranded(worth, milli, cpu) - stranded)
    score = score + (LEFT_OVER - (LEFT_OVER / _FULL_NODE_MILLI) * after)
    return np.where(fits, score, NOT_HERE).astype(np.float32)


def _stranded(
    worth: Worth, milli: NDArray[np.int64], cpu: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Free GPUs that there is no CPU for."""
    return np.maximum(milli * (1.0 / WHOLE) - cpu * (1.0 / worth.cpu_milli_a_gpu), 0.0)


def _together(
    fleet: Fleet, at: At, whole: NDArray[np.int64], taken: int | NDArray[np.bool_]
) -> NDArray[np.float64]:
    """What is lost of e^2 / n when so many GPUs are not wholly free any more."""
    count = np.maximum(fleet.capacity_milli[at], WHOLE)
    lost: NDArray[np.float64] = (-TOGETHER * WHOLE) * (taken * (2 * whole - taken)) / count
    return lost


def _best_hole(
    fleet: Fleet,
    pods: PodSet,
    suitable: Suitable,
    worth: Worth,
    at: At,
    fits: NDArray[np.bool_],
) -> tuple[NDArray[np.float64], int | NDArray[np.int64], NDArray[np.bool_]]:
    """Of each node the GPU to share: what is lost by that, what is taken of it, and whether it can
    be."""
    free = fleet.gpu[at]
    need: int | NDArray[np.int64] = pods.gpu_milli
    if suitable.offered is None:
        table = worth.losses(pods.gpu_milli)
        loss = table.take(free, mode="clip")  # nothing is lost of what is not there
        of_whole: float | NDArray[np.float64] = float(table[WHOLE])
    else:
        need = suitable.offered.milli[at]
        left = free - need[:, np.newaxis]
        loss = worth.hole.take(left, mode="clip") - worth.hole.take(free, mode="clip")
        loss = np.where(left >= 0, loss - _TIGHTER * free, NOT_HERE)
        of_whole = worth.hole.take(WHOLE - need) - 1.0 - _TIGHTER * WHOLE
        for resource, nodes in suitable.offered.pieces:
            fits = fits & (~nodes[at] | (fleet.pieces[resource][at] > 0))
    if suitable.gpus is not None:
        loss = np.where(suitable.gpus[at], loss, NOT_HERE)
    best = _best_of_each(loss)
    fits = fits & (best > NOT_HERE)
    score = np.where(fits, best, 0.0)
    opened = best == of_whole
    if opened.any():
        score += _together(fleet, at, fleet.whole[at], opened)
    return score, need, fits


def _best_of_each(loss: NDArray[np.float64]) -> NDArray[np.float64]:
    """The maximum of each row; of many short rows it is found faster column by column."""
    if len(loss) < _MANY or not loss.shape[1]:
        few: NDArray[np.float64] = loss.max(axis=1, initial=NOT_HERE)
        return few
    best = loss[:, 0].copy()
    for column in range(1, loss.shape[1]):
        np.maximum(best, loss[:, column], out=best)
    return best


def pick_gpus(
    fleet: Fleet, slot: int, pods: PodSet, suitable: Suitable, worth: Worth
) -> tuple[int, ...]:
    """Indices of the GPUs that one pod takes on a node where it fits: those whose holes lose least,
    or the first that are whole."""
    if not pods.gpus:
        return ()
    devices = fleet.report_at(slot).gpus
    row = fleet.gpu[slot].tolist()
    positions: Sequence[int] = range(len(devices))
    if suitable.gpus is not None:
        allowed = suitable.gpus[slot].tolist()
        positions = [p for p in positions if allowed[p]]
    if wants_fraction(pods):
        loss = worth.losses(suitable.milli(slot, pods))
        best = max(positions, key=lambda p: float(loss[max(row[p], 0)]), default=-1)
        if best < 0 or loss[max(row[best], 0)] == NOT_HERE:
            return ()
        return (devices[best].index,)
    free = [p for p in positions if row[p] >= WHOLE]
    return tuple(sorted(devices[p].index for p in free[: pods.gpus]))
