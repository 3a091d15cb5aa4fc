"""External events of a cluster: unmanaged pods, dying GPUs, flapping nodes.

Each kind is a random process. Its n-th event depends on the seed, its number and the present state,
so that the process continues after a restart.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from berthmaster.lab.emulator.chance import below, exponential, uniform
from berthmaster.lab.emulator.kubelet import Refusal
from berthmaster.lab.emulator.records import (
    Drawn,
    ForeignCame,
    GpuTurned,
    GpuUse,
    NodeTurned,
    Record,
)
from berthmaster.lab.emulator.world import World

FOREIGN, DEATH, FLAP = "foreign", "death", "flap"
LONGEST_CATCH_UP_S: Final = 3600.0  # events of a longer absence are not made up for
_TRIES: Final = 8  # number of nodes that an unmanaged pod tries before it goes elsewhere
_CPU_PER_GPU_MILLI: Final = 4000
_MEMORY_PER_GPU_MIB: Final = 8192
# Unmanaged pods: cumulative fraction, GPUs, milli of each.
_SIZES: Final = ((0.3, 1, 500), (0.6, 1, 1000), (0.9, 2, 1000), (1.0, 4, 1000))
_MEAN_MILLI: Final = 0.3 * 500 + 0.3 * 1000 + 0.3 * 2000 + 0.1 * 4000


class Nature(NamedTuple):
    """The behaviour of an emulated cluster."""

    seed: int = 1
    speed: float = 1.0  # durations are divided by it; deadlines and disturbances are not
    failure_share: float = 0.0  # fraction of attempts whose pods fail
    start_delay_s: float = 0.0  # seconds from accepted to running: image pulls and similar
    foreign_share: float = 0.0  # average fraction of the GPUs used by unmanaged pods
    foreign_duration_s: float = 300.0  # mean
    dead_gpu_share: float = 0.0  # fraction of the GPUs that are dead from the beginning
    gpu_deaths_per_hour: float = 0.0  # of each GPU
    gpu_repair_s: float = 1800.0  # mean
    node_flaps_per_hour: float = 0.0  # of each node
    flap_s: float = 20.0  # mean


def rates_per_s(world: World, nature: Nature) -> dict[str, float]:
    """Return the rate of each kind in this cluster, without kinds that never happen."""
    gpus = sum(node.gpus for node in world.spec.nodes)
    rates = {
        FOREIGN: nature.foreign_share * gpus * 1000 / _MEAN_MILLI / nature.foreign_duration_s,
        DEATH: nature.gpu_deaths_per_hour * gpus / 3600,
        FLAP: nature.node_flaps_per_hour * len(world.spec.nodes) / 3600,
    }
    return {kind: rate for kind, rate in rates.items() if rate > 0}


def beginning(world: World, nature: Nature, now_s: float) -> Iterator[Record]:
    """Yield the initial records of a new cluster. Apply each before requesting the next."""
    for name, node in world.nodes.items():
        for index in range(node.spec.gpus):
            if uniform(nature.seed, "dead", name, index) < nature.dead_gpu_share:
                lasts_s = exponential(nature.gpu_repair_s, nature.seed, "repair", name, index)
                yield GpuTurned(name, index, now_s + lasts_s)
    total_milli = sum(node.gpus for node in world.spec.nodes) * 1000
    number = 0
    while world.foreign_gpu_milli < nature.foreign_share * total_milli and number < total_milli:
        number += 1
        came = _foreign(world, nature, number, now_s)
        if came is not None:
            yield came
    for kind, rate in rates_per_s(world, nature).items():
        yield _drawn(world, nature, kind, number if kind == FOREIGN else 0, rate, now_s)


def resumed(world: World, nature: Nature, now_s: float) -> Iterator[Record]:
    """Yield the changes of a restarted cluster: settings may differ, and the absence may be
    long."""
    rates = rates_per_s(world, nature)
    for kind in [kind for kind in world.drawn if kind not in rates]:
        del world.drawn[kind]
    for kind, rate in rates.items():
        drawn = world.drawn.get(kind)
        if drawn is None or drawn.next_s < now_s - LONGEST_CATCH_UP_S:
            yield _drawn(world, nature, kind, drawn.number if drawn else 0, rate, now_s)


def next_records(world: World, nature: Nature, kind: str) -> Iterator[Record]:
    """Yield the due event, and the time of the next one."""
    drawn = world.drawn[kind]
    number, now_s = drawn.number + 1, drawn.next_s
    record: Record | None
    if kind == FOREIGN:
        record = _foreign(world, nature, number, now_s)
    elif kind == DEATH:
        record = _death(world, nature, number, now_s)
    else:
        record = _flap(world, nature, number, now_s)
    if record is not None:
        yield record
    yield _drawn(world, nature, kind, number, rates_per_s(world, nature)[kind], now_s)


def _drawn(
    world: World, nature: Nature, kind: str, number: int, rate: float, now_s: float
) -> Drawn:
    wait_s = exponential(1 / rate, nature.seed, "next", kind, world.spec.name, number)
    return Drawn(kind, number, now_s + wait_s)


def _foreign(world: World, nature: Nature, number: int, now_s: float) -> ForeignCame | None:
    """Return an unmanaged pod on the first of some nodes with free capacity; None: elsewhere."""
    cluster = world.spec.name
    size = uniform(nature.seed, "size", cluster, number)
    gpus, milli = next((g, m) for share, g, m in _SIZES if size < share)
    use = GpuUse(gpus * _CPU_PER_GPU_MILLI, gpus * _MEMORY_PER_GPU_MIB, milli)
    nodes = world.spec.nodes
    first = below(len(nodes), nature.seed, "where", cluster, number)
    lasts_s = exponential(nature.foreign_duration_s, nature.seed, "lasts", cluster, number)
    for offset in range(min(_TRIES, len(nodes))):
        spec = nodes[(first + offset) % len(nodes)]
        if spec.gpus < gpus:
            continue
        answer = world.nodes[spec.name].admit(use, gpus)
        if not isinstance(answer, Refusal):
            return ForeignCame(number, spec.name, answer, now_s + lasts_s)
    return None


def _death(world: World, nature: Nature, number: int, now_s: float) -> GpuTurned | None:
    cluster = world.spec.name
    gpus = sum(node.gpus for node in world.spec.nodes)
    place = below(gpus, nature.seed, "dies", cluster, number)
    for node in world.spec.nodes:
        if place < node.gpus:
            if world.nodes[node.name].gpu_back_s[place]:
                return None
            lasts_s = exponential(nature.gpu_repair_s, nature.seed, "repair", cluster, number)
            return GpuTurned(node.name, place, now_s + lasts_s)
        place -= node.gpus
    return None


def _flap(world: World, nature: Nature, number: int, now_s: float) -> NodeTurned | None:
    cluster = world.spec.name
    place = below(len(world.spec.nodes), nature.seed, "flaps", cluster, number)
    node = world.spec.nodes[place].name
    if world.nodes[node].ready_s:
        return None
    lasts_s = exponential(nature.flap_s, nature.seed, "flap", cluster, number)
    return NodeTurned(node, now_s + lasts_s)
