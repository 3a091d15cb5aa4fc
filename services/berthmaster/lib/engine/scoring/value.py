"""Worth of a node, and the node where one more pod costs least.

V(node) = sum over its GPUs of hole(free) - stranded + the worth of wholly free GPUs together. A pod
goes to the node with the least V(before) - V(after). Ties go to the fewest free GPU milli left,
then to the first node by name. On the node it gets the GPUs whose holes lose least.

Example: with the prices of value.py's example, a pod requests 300 milli. On a GPU with 300
free the hole's 0.25 becomes 0, a loss of 0.25. On a GPU with 500 free 0.5 becomes hole(200) = 0,
and on a whole GPU 1 becomes hole(700) = 0.5, a loss of 0.5 each. The pod gets the first GPU.

Rules of this file:

- ``hole`` is the price of the free part of a GPU (``hole_prices``).
- ``stranded`` are free GPUs that the node's free CPU cannot serve, at the usual CPU per GPU. A pod
  with much CPU and no GPU therefore costs more than it seems. If pods request more CPU than the
  fleet has, GPUs stay free in any case, and nodes differ at a multiple of the usual CPU.
- Wholly free GPUs together have a small worth, and blocks a price where few are left (pressure.py).
- Scores are float32 from the same arithmetic for one node as for all, so a node has the same score
  alone or in a batch, now or later.

Prices of free GPU fractions (holes), from the mix of pods that share GPUs.

Example: of four pods three request 500 milli and one 250. Then a hole of 500 is worth 0.5 GPUs,
holes of 250 and 300 are worth 0.25, and a hole of 200 is worth nothing.

Packing shared pods into few GPUs is a cutting stock problem. The duals of its linear relaxation are
prices: the real cost of a pod of each size, in GPUs. A hole is worth the most that pods in it could
pay. A whole GPU is worth 1, and no combination in one GPU pays more. So a hole that a likely pod
fills exactly is worth more than its size.

The solver generates columns: a pattern (number of pods of each size on one GPU) enters if it pays
more than a GPU at present prices, as a knapsack finds. Element-wise arithmetic in a fixed order
gives equal prices on every machine.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from berthmaster.lib.engine.fleet.fleet import WHOLE, Fleet
from berthmaster.lib.engine.fleet.gpus import pick
from berthmaster.lib.engine.fleet.needs import Suitable
from berthmaster.lib.engine.fleet.shares import is_packed, wants_fraction
from berthmaster.lib.engine.scoring.pod_mix import Sample, Sampled
from berthmaster.lib.engine.scoring.pressure import NOTHING_DEAR, Dear, Gauge
from berthmaster.lib.messages.placement import Pressure
from berthmaster.lib.messages.workload import PodSet

MAX_SIZES: Final = 48  # most requested sizes; holes of other sizes are priced by these
_MAX_PIVOTS: Final = 2000  # safety bound, tens are usual
_EPSILON: Final = 1e-9
_DIGITS: Final = 9  # digits of a price, equal for any order of pivots


def hole_prices(demand: Mapping[int, int]) -> dict[int, float]:
    """Return the price in GPUs by size in milli. ``demand``: relative frequency of sizes."""
    asked = {size: n for size, n in demand.items() if 0 < size < WHOLE and n > 0}
    most = sorted(asked, key=lambda size: (-asked[size] * size, size))[:MAX_SIZES]
    sizes = sorted(most)
    if not sizes:
        return {}
    duals = _duals(sizes, [asked[size] for size in sizes])
    return {size: round(dual, _DIGITS) for size, dual in zip(sizes, duals, strict=True)}


def _duals(sizes: Sequence[int], demand: Sequence[int]) -> list[float]:
    """Revised simplex on patterns: min sum x, each demand met; one column enters at a time."""
    fill = np.array([WHOLE // size for size in sizes], np.float64)
    inverse = np.diag(1.0 / fill)  # of the basis; at first each size alone
    amounts = np.array(demand, np.float64) / sum(demand) / fill
    costs = np.ones(len(sizes))
    duals = costs / fill
    for _ in range(_MAX_PIVOTS):
        lowest = int(duals.argmin())
        if duals[lowest] < -_EPSILON:  # more of this size than requested costs nothing
            column = np.zeros(len(sizes))
            column[lowest] = -1.0
            cost, gain = 0.0, -float(duals[lowest])
        else:
            column, paid = best_pattern(sizes, duals)
            cost, gain = 1.0, paid - 1.0
        if gain <= _EPSILON:
            break
        step = (inverse * column).cumsum(axis=1)[:, -1]  # in order, as no product of BLAS is
        ratio = np.where(step > _EPSILON, amounts / np.where(step > _EPSILON, step, 1.0), np.inf)
        leaves = int(ratio.argmin())
        if not np.isfinite(ratio[leaves]):
            break
        amounts = np.maximum(amounts - ratio[leaves] * step, 0.0)
        amounts[leaves] = ratio[leaves]
        costs[leaves] = cost
        row = inverse[leaves] / step[leaves]
        inverse = inverse - step[:, np.newaxis] * row
        inverse[leaves] = row
        duals = (inverse * costs[:, np.newaxis]).cumsum(axis=0)[-1]
    return [max(0.0, float(dual)) for dual in duals]


def best_pattern(
    sizes: Sequence[int], prices: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float]:
    """Return the pattern that pays most on one GPU, and its pay."""
    stages = [np.zeros(WHOLE + 1)]
    for size, price in zip(sizes, prices.tolist(), strict=True):
        stages.append(_with_size(stages[-1], size, price))
    pattern = np.zeros(len(sizes))
    room = WHOLE
    for at in range(len(sizes) - 1, -1, -1):
        before, size, price = stages[at], sizes[at], float(prices[at])
        pays = [before[room - n * size] + n * price for n in range(room // size + 1)]
        number = pays.index(max(pays))
        pattern[at] = number
        room -= number * size
    return pattern, float(stages[-1][WHOLE])


def _with_size(value: NDArray[np.float64], size: int, price: float) -> NDArray[np.float64]:
    """The best value of each room, any number of this size allowed: doubling makes every number."""
    if price <= 0.0:
        return value
    value = value.copy()
    step = size
    while step <= WHOLE:
        np.maximum(value[step:], value[:-step] + price, out=value[step:])
        step, price = 2 * step, 2 * price
    return value


def hole_values(prices: Mapping[int, float]) -> NDArray[np.float64]:
    """Return the worth of 0 to 1000 free milli: the most that shared pods there pay; 1 for a whole
    GPU.
    """
    value = np.zeros(WHOLE + 1)
    for size in sorted(prices):
        value = _with_size(value, size, prices[size])
    value = np.minimum(value, 1.0)
    value[WHOLE] = 1.0
    return value


NOT_HERE: Final = -np.inf
NEVER_SCARCE: Final = 0.0  # CPU a GPU while no pod with GPUs was seen
ENDLESS: Final = np.inf  # CPU of an unknown fleet
# Demand for CPU above this multiple of the supply is no chance of a small sample
SHORT_OF_CPU: Final = 1.1
RICH_IN_CPU: Final = 4.0  # multiple of the usual CPU per GPU; 3 to 5 work equally well
CPU_SHARE: Final = 0.95  # of a GPU's usual CPU: some pods bring less, and those can still come
TOGETHER: Final = 0.003  # for e wholly free GPUs of n: this x e^2 / n
LEFT_OVER: Final = 0.001  # for a node without free GPUs, relative to one with eight
LEFT_OVER_A_GPU: Final = LEFT_OVER / 8
_BITS: Final = 7  # precision of the usual CPU per GPU
_TIGHTER: Final = 1e-9  # tie-break between GPUs: less free first
_CHUNK: Final = 16_384  # nodes in one batch, to bound temporary memory

At = slice | NDArray[np.int64]
Floats = NDArray[np.floating[Any]]  # float64; numpy's operators return this type


class Worth(NamedTuple):
    """Learned worth from a mix of pods."""

    hole: NDArray[np.float64]  # [1001], by free milli
    cpu_milli_a_gpu: float  # CPU that makes a free GPU useful; NEVER_SCARCE = 0
    dear: Dear  # scarcity of nodes
    known_losses: dict[int, NDArray[np.float64]]  # cached ``losses`` by taken milli
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
        """Return the change of worth when a fraction is taken, by free milli; NOT_HERE if too
        little is free.
        """
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
    """Return the worth from a mix. ``fleet_cpu_a_gpu``: CPU milli of all nodes per GPU."""
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
    """Round to steps of about one in a hundred, so that chance alone changes nothing."""
    step = 1 << max(0, amount.bit_length() - _BITS)
    return (amount + step // 2) // step * step


class Appraiser:
    """Cached worth of the newest sample. The object stays the same while nothing new is learned, so
    dependent data stays valid.
    """

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
        """Return the present scarcity of nodes. The fleet must be arranged."""
        worth = self.of(sampled, fleet_cpu_a_gpu)
        return self.gauge.made(fleet, sampled, before, worth.hole, worth.cpu_milli_a_gpu)

    def under(
        self, pressure: Pressure, fleet: Fleet, sampled: Sampled, fleet_cpu_a_gpu: float
    ) -> Worth:
        """Return the worth under this scarcity. Pressure of another sample is ignored. The fleet
        must be arranged.
        """
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
    """Score some nodes. Called with some hundred nodes in each decision, so the number of arrays
    matters.
    """
    cpu, milli = fleet.arrays.cpu[at], fleet.arrays.milli[at]
    fits = suitable.nodes[at] & fleet.arrays.open[at]
    fits &= cpu >= pods.cpu_milli
    fits &= fleet.arrays.memory[at] >= pods.memory_mib
    if suitable.pieces:
        fits &= suitable.pods_by_pieces(fleet, at) > 0
    gpus = milli * (1.0 / WHOLE)  # free GPUs, with fractions
    takes: float | Floats = 0.0  # taken of these
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
        unserved = gpus - cpu * a_cpu  # free GPUs without CPU
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
    """Return the free units left beside one more pod, 0 to below 1 for each resource, so that pods
    fill nodes.
    """
    total: Floats = np.zeros(len(suitable.nodes[at]))
    for resource, a_pod, nodes in suitable.pieces:
        if nodes is None:
            left = np.maximum(fleet.arrays.pieces[resource][at] - a_pod, 0)
            total = total + left / (left + a_pod)
    return total


def own_gpus(pods: PodSet) -> float:
    """Return the whole GPUs of a pod, left out of scores because every node has the same."""
    return 0.0 if wants_fraction(pods) else float(pods.gpus)


def free_of_each_domain(fleet: Fleet, suitable: Suitable, at: At) -> NDArray[np.int64]:
    """Return the suitable wholly free GPUs of each node by domain."""
    assert suitable.domains is not None
    domains = suitable.domains[at]
    free = fleet.arrays.gpu[at] >= WHOLE
    if suitable.gpus is not None:
        free &= suitable.gpus[at]
    counts = [(free & (domains == n)).sum(axis=1) for n in range(int(domains.max(initial=-1)) + 1)]
    return np.array(counts, np.int64).reshape(len(counts), len(domains)).T


def _broken(fleet: Fleet, taken: int, worth: Worth, at: At) -> NDArray[np.float64]:
    """Return the loss of e^2 / n and of blocks when ``taken`` GPUs are no longer wholly free."""
    slope, offset = together(taken)
    whole = fleet.arrays.whole[at]
    lost: NDArray[np.float64] = (whole * slope + offset) * fleet.arrays.a_gpu[at]
    breaks = worth.dear.breaks(taken)
    if breaks is not None:
        lost += breaks.take(whole, mode="clip")
    return lost


def together(taken: int) -> tuple[float, float]:
    """Return that loss as a line: slope per wholly free GPU of a node, and offset."""
    return -2.0 * TOGETHER * taken, TOGETHER * taken**2


def _best_hole(
    fleet: Fleet,
    pods: PodSet,
    suitable: Suitable,
    worth: Worth,
    at: At,
    fits: NDArray[np.bool_],
) -> tuple[Floats, float | Floats, NDArray[np.bool_]]:
    """Return the GPU to share on each node: the loss, the taken share, and whether the pod fits."""
    # [G, N]: rows are long, and the best of each node is found fast
    free = fleet.arrays.gpu[at].T if isinstance(at, slice) else fleet.arrays.gpu.T.take(at, axis=1)
    takes: float | Floats = pods.gpu_milli * (1.0 / WHOLE)
    if suitable.offered is None:
        table = worth.losses(pods.gpu_milli)
        of_whole: float | Floats = float(table[WHOLE])
        if isinstance(at, slice) and suitable.gpus is None:
            best = _best_of_many(fleet, table, at, free)
        else:
            loss = table.take(free, mode="clip")  # missing GPUs lose nothing
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
    """Return the loss on the best GPU of each of many nodes. Only nodes with free fractions need a
    detailed scan.
    """
    whole = fleet.arrays.whole[at]
    best = np.where(whole > 0, table[WHOLE], NOT_HERE)
    parts = (fleet.arrays.milli[at] != WHOLE * whole).nonzero()[0]
    if len(parts):
        best[parts] = table.take(free[:, parts], mode="clip").max(axis=0, initial=NOT_HERE)
    return best


def pick_gpus(
    fleet: Fleet, slot: int, pods: PodSet, suitable: Suitable, worth: Worth
) -> tuple[int, ...]:
    """Return the GPU indices for one pod on a node where it fits.

    A fraction gets the GPU that loses least, or the fullest if the node's software does so. Whole
    GPUs come from one domain if possible, else in order.
    """
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
