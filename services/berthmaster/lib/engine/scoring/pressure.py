"""Pressure: extra prices of nodes that are scarce, because some pods can go nowhere else.

A pool is the set of nodes that the same pods accept, by GPU model, MIG profile, label or taint.
Requested GPUs of pods that accept the same pools are spread over the free capacity there. The
density of a pool is its demand per free GPU, relative to the whole fleet. The price rises with the
density, and a GPU in the pool counts 1 + price. Pods with a choice avoid the pool until that costs
more.

**Example.** 100 GPUs are free: 80 G2 and 20 T4. Of 10 requested GPUs 6 accept any, and 4 need T4.
The 6 over 100 are 0.06 a GPU, the 4 over 20 are 0.2. T4 has 0.26, G2 0.06, all together 0.1:
densities of 2.6 and 0.6. The prices are 0.6 x (2.6 - 0.7) = 1.14, and 0. A one-GPU pod without a
preference uses T4 only if G2 costs 1.14 GPUs more, in fragments or GPUs without CPU.

Blocks: a number of wholly free GPUs on one node has a price beside that of its GPUs, higher as
fewer such blocks are left. Block sizes are those of sampled pods and of nodes. So small pods share
nodes on an idle fleet, and a pod that needs a whole node finds one. On a node with e wholly free
GPUs, blocks of k are worth floor(e / k) prices: a one-GPU pod prefers a node with five to one with
four while blocks of two and four are scarce. If much of the demand is for this size or more, blocks
cost more, because a broken node is missed sooner.

**Example.** Two fifths of requested GPUs are in eights: blocks of eight cost 1 + 7 x 0.4 = 3.8
times the usual price. Remainders may become blocks later: r of k are worth half a price x (r /
k)^4, so a node with seven of eight free is spared.

Rules of this file:

- Prices follow from the sample and the free capacity. They are computed now and then (``is_due``),
  kept unless they move, and reported by decisions, so that a repeated decision uses the same
  prices.
- Prices are whole thousandths, equal on all nodes of a pool.
"""

from collections import OrderedDict
from typing import Final

import numpy as np
from numpy.typing import NDArray

from berthmaster.lib.engine.fleet.fleet import WHOLE, Fleet
from berthmaster.lib.engine.fleet.needs import suitable_nodes
from berthmaster.lib.engine.scoring.compiled import COMPILED, cards, nodes_of
from berthmaster.lib.engine.scoring.pod_mix import SAMPLED_WANTS, Sample, Sampled, Wants, accepting
from berthmaster.lib.messages.placement import PressedPool, Pressure, WholeBlock

FREE_OF_PRICE: Final = 0.7  # density without an extra price
A_DENSITY: Final = 0.6  # price for each unit of density above
DENSEST: Final = 5.0  # density of the highest price
WASTED: Final = 0.02  # share of a pool's GPUs lost as fragments
LAST_BLOCK: Final = 2.0  # price of the last block, relative to its GPUs
MISSED: Final = 7.0  # factor on the share of demand for this size or more
NEARLY_A_BLOCK: Final = 0.5  # share of the price, times the fourth power of the fill
SMALLEST_BLOCK: Final = 2  # GPUs
LARGEST_BLOCK: Final = 64  # larger nodes count as this size
MOST_ACCEPTED: Final = 4 * SAMPLED_WANTS  # maximum number of requirements that distinguish nodes
MOVES_MILLI: Final = 50  # a price change counts from this size, if also …
MOVES_SHARE: Final = 8  # … an eighth of the old price
_STEP_MILLI: Final = 10
_SELDOM: Final = 12  # worked out when a pod was placed for each so many nodes …
_SOONEST: Final = 2  # … but at least so many

DEAR_KEPT: Final = 8  # 8 bytes a node each: prices go to and fro, and cards still hold then

_GPUS: Final = np.arange(LARGEST_BLOCK + 1)  # wholly free on a node

NO_PRESSURE: Final = Pressure()


class Dear:
    """Pressure by node."""

    def __init__(
        self, factor: NDArray[np.float64] | None, blocks: NDArray[np.float64] | None
    ) -> None:
        """``factor``: [N], price factor of a node's GPUs; None = 1 everywhere. ``blocks``: [65],
        worth by number of wholly free GPUs; None = 0.
        """
        self.factor = factor
        self.blocks = blocks
        self._breaks: dict[int, NDArray[np.float64]] = {}

    def breaks(self, taken: int) -> NDArray[np.float64] | None:
        """Return the change of worth by wholly free GPUs of a node, when taking ``taken`` of them
        breaks blocks, beside the block taken; None = no change.
        """
        blocks = self.blocks
        if blocks is None:
            return None
        known = self._breaks.get(taken)
        if known is None:
            left = np.maximum(np.arange(len(blocks)) - taken, 0)
            known = blocks[left] + blocks[min(taken, len(blocks) - 1)] - blocks
            self._breaks[taken] = known
        return known


NOTHING_DEAR: Final = Dear(None, None)


class Laid:
    """Classes of the present nodes, for pools of any sample. A class is the nodes accepted by the
    same requirements so far. A few dozen classes replace nodes in the calculation.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.layout, self._nodes = fleet.layout, len(fleet.names)
        self.sizes = {min(len(kind.gpus), LARGEST_BLOCK) for kind in fleet.kinds}
        self._begin()

    def _begin(self) -> None:
        self.of_node: NDArray[np.int64] = np.zeros(self._nodes, np.int64)
        self._accepted: dict[str, NDArray[np.bool_]] = {}  # by class

    def classes(self, fleet: Fleet, wants: Wants) -> NDArray[np.int64]:
        """Return for each class a number whose bits tell which requirements accept the class."""
        if len(self._accepted) + len(wants) > MOST_ACCEPTED:
            self._begin()
        for accepts, _ in wants:
            if accepts not in self._accepted:
                self._tell_apart(fleet, accepts)
        number = np.zeros(int(self.of_node.max(initial=-1)) + 1, np.int64)
        for at, (accepts, _) in enumerate(wants):
            number |= self._accepted[accepts].astype(np.int64) << at
        return number

    def _tell_apart(self, fleet: Fleet, accepts: str) -> None:
        """Split classes by these requirements."""
        nodes = suitable_nodes(fleet, accepting(accepts)).nodes
        number = 2 * self.of_node + nodes
        there = np.bincount(number) > 0
        finer = np.flatnonzero(there)
        self.of_node = (np.cumsum(there) - 1)[number]
        coarser = finer >> 1
        self._accepted = {each: by[coarser] for each, by in self._accepted.items()}
        self._accepted[accepts] = (finer & 1).astype(np.bool_)


class Pools:
    """The nodes of a fleet, grouped by one sample of pods."""

    def __init__(self, fleet: Fleet, sampled: Sampled, laid: Laid) -> None:
        self.layout = fleet.layout
        self.sampled = sampled
        bits, of_class = np.unique(laid.classes(fleet, sampled.wants), return_inverse=True)
        self.of_node: NDArray[np.int64] = of_class.astype(np.int64, copy=False)[laid.of_node]
        everywhere = range(len(sampled.wants))
        self.wanted_by = [tuple(at for at in everywhere if bit >> at & 1) for bit in bits.tolist()]
        largest = max(laid.sizes, default=0)
        sizes = laid.sizes | {kind.gpus for kind, _ in sampled.sample}
        self.blocks = sorted(size for size in sizes if SMALLEST_BLOCK <= size <= largest)
        self.missed = [1.0 + MISSED * _share_of(sampled.sample, size) for size in self.blocks]

    def prices(self, room: NDArray[np.float64]) -> list[float]:
        """Of each pool. ``room``: [N], GPUs that are of use."""
        left = np.bincount(self.of_node, room, len(self.wanted_by))
        accepts = [
            [pool for pool, wanted in enumerate(self.wanted_by) if at in wanted]
            for at in range(len(self.sampled.wants))
        ]
        density = [0.0] * len(self.wanted_by)
        asked = 0.0
        for pools, (_, milli) in zip(accepts, self.sampled.wants, strict=True):
            there = sum((float(left[pool]) for pool in pools), 0.0)
            if there > 0.0:
                asked += milli
                for pool in pools:
                    density[pool] += milli / there
        usual = asked / max(float(left.sum()), 1.0)
        if not usual:
            return density
        beyond = [min(each / usual - FREE_OF_PRICE, DENSEST) for each in density]
        wanted = [each for each, by in zip(beyond, self.wanted_by, strict=True) if by]
        least = max(min(wanted), 0.0)  # a difference is informative, a common level is not
        return [A_DENSITY * max(each - least, 0.0) for each in beyond]

    def free_blocks(self, fleet: Fleet) -> list[int]:
        """Of each size of ``blocks``, how many are left."""
        free = np.clip(fleet.arrays.whole[fleet.arrays.open], 0, LARGEST_BLOCK)
        nodes = np.bincount(free, minlength=LARGEST_BLOCK + 1)
        return [int(nodes @ (_GPUS // size)) for size in self.blocks]


class Gauge:
    """Computes the pressure, with cached pools and node data."""

    def __init__(self) -> None:
        self._laid: Laid | None = None
        self._pools: Pools | None = None
        self._made: tuple[object, Pressure] | None = None
        self._dear: OrderedDict[tuple[int, Pressure], Dear] = OrderedDict()  # by layout

    def pools(self, fleet: Fleet, sampled: Sampled) -> Pools:
        """Those of a fleet and a sample. The fleet must be arranged."""
        pools = self._pools
        if pools is None or pools.layout != fleet.layout or pools.sampled != sampled:
            if self._laid is None or self._laid.layout != fleet.layout:
                self._laid = Laid(fleet)
            pools = self._pools = Pools(fleet, sampled, self._laid)
        return pools

    def made(
        self,
        fleet: Fleet,
        sampled: Sampled,
        before: Pressure,
        hole: NDArray[np.float64],
        cpu_milli_a_gpu: float,
    ) -> Pressure:
        """As the fleet stands now; ``before`` if no price has moved by enough since. ``hole``,
        ``cpu_milli_a_gpu``: as in ``Worth``."""
        seen = fleet.layout, fleet.touched.end, sampled, before
        if self._made is None or self._made[0] != seen:
            pools = self.pools(fleet, sampled)
            made = pressure_of(fleet, pools, useful_room(fleet, hole, cpu_milli_a_gpu))
            keeps = before.pods == made.pods and not _moved(before, made)
            self._made = seen, before if keeps else made
        return self._made[1]

    def dear(self, fleet: Fleet, sampled: Sampled, pressure: Pressure) -> Dear:
        """Return the pressure on the present nodes."""
        if pressure.pods != sampled.pods or not (pressure.pools or pressure.whole):
            return NOTHING_DEAR
        key = fleet.layout, pressure
        known = self._dear.get(key)
        if known is None:
            known = self._dear[key] = dear_of(self.pools(fleet, sampled), pressure)
            if len(self._dear) > DEAR_KEPT:
                self._dear.popitem(last=False)
        return known


def is_due(pressure: Pressure, sampled: Sampled, placed: int, nodes: int) -> bool:
    """Return whether to compute again. ``placed``: pods placed since the last time."""
    return pressure.pods != sampled.pods or placed >= max(_SOONEST, nodes // _SELDOM)


def useful_room(
    fleet: Fleet,
    hole: NDArray[np.float64],
    cpu_milli_a_gpu: float,
    *,
    compiled: bool = COMPILED,
) -> NDArray[np.float64]:
    """Return the worth of each node's free GPUs to arriving pods, less present and expected
    fragments and GPUs without CPU.
    """
    arrays = fleet.arrays
    if compiled:
        into = np.empty(len(arrays.cpu), np.float64)
        a_cpu = 1.0 / cpu_milli_a_gpu if cpu_milli_a_gpu > 0.0 else 0.0
        taken = arrays.capacity_milli, into, a_cpu, 1e-3 * WASTED
        cards.useful(nodes_of(fleet), hole, *taken)
        return into
    room = hole.take(arrays.gpu.T, mode="clip").sum(axis=0)
    if cpu_milli_a_gpu > 0.0:
        served = arrays.cpu * (1.0 / cpu_milli_a_gpu)
        room -= np.maximum(arrays.milli * 1e-3 - served, 0.0)
    room -= arrays.capacity_milli * (1e-3 * WASTED)
    useful: NDArray[np.float64] = np.where(arrays.open, np.maximum(room, 0.0), 0.0)
    return useful


def pressure_of(fleet: Fleet, pools: Pools, room: NDArray[np.float64]) -> Pressure:
    prices = zip(pools.wanted_by, map(_milli, pools.prices(room)), strict=True)
    pressed = [PressedPool(wanted_by=by, price_milli=milli) for by, milli in prices if milli and by]
    blocks = [
        WholeBlock(gpus=gpus, price_milli=milli)
        for gpus, missed, left in zip(
            pools.blocks, pools.missed, pools.free_blocks(fleet), strict=True
        )
        if (milli := int(1000 * LAST_BLOCK * missed * gpus / max(left, 1) + 0.5))
    ]
    return Pressure(pods=pools.sampled.pods, pools=tuple(pressed), whole=tuple(blocks))


def _share_of(sample: Sample, size: int) -> float:
    """Return the share of a sample's GPUs in requests of at least this number of whole GPUs on a
    node.
    """
    asked = sum(count * kind.gpus * kind.gpu_milli for kind, count in sample)
    large = sum(
        count * kind.gpus * kind.gpu_milli
        for kind, count in sample
        if kind.gpus >= size and kind.gpu_milli >= WHOLE
    )
    return large / asked if asked else 0.0


def _milli(price: float) -> int:
    return int(price * (1000 / _STEP_MILLI) + 0.5) * _STEP_MILLI


def _moved(before: Pressure, after: Pressure) -> bool:
    """Return whether a price changed enough to matter."""
    was: dict[object, int] = {pool.wanted_by: pool.price_milli for pool in before.pools}
    now: dict[object, int] = {pool.wanted_by: pool.price_milli for pool in after.pools}
    was |= {block.gpus: block.price_milli for block in before.whole}
    now |= {block.gpus: block.price_milli for block in after.whole}
    for key in was | now:
        before_milli, after_milli = was.get(key, 0), now.get(key, 0)
        by = abs(after_milli - before_milli)
        if by >= MOVES_MILLI and by * MOVES_SHARE >= before_milli:
            return True
    return False


def dear_of(pools: Pools, pressure: Pressure) -> Dear:
    known = {pool.wanted_by: pool.price_milli for pool in pressure.pools}
    factors = np.array([1.0 + known.get(by, 0) * 1e-3 for by in pools.wanted_by], np.float64)
    blocks = np.zeros(LARGEST_BLOCK + 1)
    for block in pressure.whole:
        blocks += block.price_milli * 1e-3 * _blocks_of(max(block.gpus, 1))
    return Dear(factors[pools.of_node] if known else None, blocks if pressure.whole else None)


def _blocks_of(size: int) -> NDArray[np.float64]:
    """By wholly free GPUs of a node, how many blocks of a size they count as."""
    whole, rest = np.divmod(_GPUS, size)
    share = rest / size
    square = share * share  # products alone have the same bits on every machine
    nearly: NDArray[np.float64] = whole + NEARLY_A_BLOCK * (square * square)
    return nearly
