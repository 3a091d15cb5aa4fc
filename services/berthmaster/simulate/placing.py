"""Rules of placement by name, as scores of a node: first fit, best fit, FGD, random.

FGD is "Beware of Fragmentation" (ATC'23): a node's fragmentation is what of its free GPU room the
jobs of a mix could not use, and the node whose fragmentation grows least is taken. The mix is that
of the list that is simulated, the most usual first up to 95 % of it.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from berthmaster.emulator.chance import uniform
from berthmaster.simulate.floor import Node, Score, Seat, Shape, charge, choose, copied, fits, suits
from berthmaster.simulate.model import Job

MIX_SHARE: Final = 0.95
MIX_LIMIT: Final = 200

Mix = tuple[tuple[float, Shape], ...]  # share of the list, one pod


def mix_of(jobs: Sequence[Job]) -> Mix:
    """The usual pods of a list: the most popular until MIX_SHARE of all pods is covered."""
    counts: Counter[Shape] = Counter()
    for job in jobs:
        for pods in job.request.pod_sets:
            counts[Shape.of(pods)] += pods.count
    total = sum(counts.values())
    kept: list[tuple[int, Shape]] = []
    covered = 0
    for shape, count in sorted(counts.items(), key=lambda each: (-each[1], each[0])):
        if covered >= MIX_SHARE * total or len(kept) == MIX_LIMIT:
            break
        kept.append((count, shape))
        covered += count
    return tuple((count / covered, shape) for count, shape in kept)


def fragmented_milli(node: Node, mix: Mix) -> float:
    """Of the node's free GPU milli, what the mix could not use, on average over the mix."""
    free = sum(node.gpu)
    if not free:
        return 0.0
    lost = 0.0
    for share, shape in mix:
        if not shape.gpus or not suits(node, shape) or not fits(node, shape):
            lost += share * free
        else:
            lost += share * sum(left for left in node.gpu if left < shape.milli)
    return lost


def best_fit(node: Node, shape: Shape) -> float:
    """What is left: of the GPUs that the pod could have had, then of all, then of the CPU."""
    if not shape.gpus:
        return (1e9 if node.gpu else 0.0) + (node.cpu - shape.cpu) * 1e-3
    if shape.milli < 1000:
        left = min(free for free in node.gpu if free >= shape.milli) - shape.milli
    else:
        left = 1000 * (sum(free == 1000 for free in node.gpu) - shape.gpus)
    return left + 0.01 * sum(node.gpu) + 1e-7 * node.cpu


def first_fit(node: Node, shape: Shape) -> float:
    """The first node by cluster and name: all are equal."""
    del node, shape
    return 0.0


def least_fragmenting(mix: Mix) -> Score:
    """FGD: the growth of fragmentation if the pod came here."""
    before: dict[tuple[str, int, int, tuple[int, ...]], float] = {}

    def lost(node: Node) -> float:
        state = (node.spec.model, node.cpu, node.memory, tuple(node.gpu))
        known = before.get(state)
        if known is None:
            known = before[state] = fragmented_milli(node, mix)
        return known

    def score(node: Node, shape: Shape) -> float:
        after = copied(node)
        charge(after, Seat(0, shape.cpu, shape.memory, shape.milli, choose(node, shape)))
        return lost(after) - lost(node)

    return score


def at_random(seed: int) -> Score:
    """By chance: a node's draw changes whenever what is free on it does."""

    def score(node: Node, shape: Shape) -> float:
        name = f"{node.cluster}/{node.spec.name}"
        return uniform(seed, name, node.cpu, *node.gpu, shape.cpu, shape.gpus, shape.milli)

    return score


RULES: Final[dict[str, Callable[[Sequence[Job], int], Score]]] = {
    "first": lambda jobs, seed: first_fit,
    "best": lambda jobs, seed: best_fit,
    "fgd": lambda jobs, seed: least_fragmenting(mix_of(jobs)),
    "random": lambda jobs, seed: at_random(seed),
}
