"""Where pods fit: the choice of nodes and GPUs inside a cluster, one pod after another.

value.py says where a pod costs least. A gang is bound whole or not at all.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from berthmaster.lib.engine.fitting.topology import Chooser, Mask, choices, shaped
from berthmaster.lib.engine.fleet.fleet import WHOLE, Fleet, Holding, Overlay
from berthmaster.lib.engine.fleet.needs import Suitable, gpus_for, isolation_at, named_gpus
from berthmaster.lib.engine.fleet.pieces import pieces_of
from berthmaster.lib.engine.fleet.shares import charged_milli, is_packed, part_of, wants_fraction
from berthmaster.lib.engine.scoring.score_cache import Scorecard, can_seat, seat_of_one, seats
from berthmaster.lib.engine.scoring.value import NOT_HERE, Worth, pick_gpus, score_nodes, worth_of
from berthmaster.lib.messages.fleet import GpuDevice, NodeReport
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import Isolation, PodSet

_NOTHING_LEARNED: Final = worth_of(())


class Bound(NamedTuple):
    """Places for all pods of a request in one cluster."""

    bindings: tuple[PodBinding, ...]
    holdings: tuple[Holding, ...]


def assumed_gpus(fleet: Fleet, cluster: str, node: str, pods: PodSet) -> tuple[int, ...]:
    """Return the GPUs to charge a pod to, if its cluster does not report them.

    Of the allowed GPUs, whole pods get the ones with most free capacity, and fractions on such
    nodes the fullest with enough. Empty if the node has no GPU of the resource or model any more.
    """
    report = fleet.node(cluster, node)
    slot = fleet.slot(cluster, node)
    if report is None or slot is None or not pods.gpus:
        return ()
    row = fleet.arrays.gpu[slot].tolist()
    kind = fleet.kinds[fleet.arrays.kind[slot]]
    named, _ = named_gpus(kind, pods)
    positions = gpus_for(kind, pods)[0] or named
    if pods.gpu_milli < WHOLE and is_packed(report.shares):
        fit = [p for p in positions if row[p] >= _takes(report, pods, report.gpus[p])]
        if fit:
            return (report.gpus[min(fit, key=row.__getitem__)].index,)
    order = sorted(positions, key=lambda p: (-row[p], p))
    return tuple(sorted(report.gpus[p].index for p in order[: pods.gpus]))


def _takes(report: NodeReport, pods: PodSet, gpu: GpuDevice) -> int:
    """Return the charge of a fraction on a GPU."""
    return charged_milli(
        part_of(pods), report.shares, gpu.memory_mib, gpu.index, fractions=report.fractions
    )


def holding(cluster: str, binding: PodBinding, pods: PodSet) -> Holding:
    return Holding(
        cluster,
        binding.node,
        pods.cpu_milli,
        pods.memory_mib,
        pods.gpu_milli,
        binding.gpus,
        pods.gpu_memory_mib,
        part_of(pods).profile,
        pieces_of(pods),
        pods.isolation,
    )


def bind_one(
    fleet: Fleet,
    slot: int,
    pods: PodSet,
    suitable: Suitable,
    worth: Worth = _NOTHING_LEARNED,
    index: int = 0,
    card: Scorecard | None = None,
) -> tuple[PodBinding, Holding]:
    """Bind one pod to a node where it fits. ``card``: an up-to-date scorecard, or None."""
    cluster, node = fleet.names[slot]
    isolation: Isolation = ""
    gpus = seat_of_one(fleet, slot, card) if card is not None and pods.gpus else None
    if gpus is None:
        gpus = pick_gpus(fleet, slot, pods, suitable, worth)
        isolation = isolation_at(fleet, slot, pods) if wants_fraction(pods) else ""
    binding = PodBinding(
        pod=f"{pods.name}-{index}",
        node=node,
        gpus=gpus,
        isolation=isolation,
        charged_milli=_charged(fleet, slot, pods, suitable, gpus),
    )
    return binding, holding(cluster, binding, pods)


def _charged(
    fleet: Fleet, slot: int, pods: PodSet, suitable: Suitable, gpus: tuple[int, ...]
) -> int:
    """Return the charge of the GPU fraction; 0 = as requested."""
    if suitable.offered is None or not gpus:
        return 0
    report = fleet.report_at(slot)
    gpu = next(each for each in report.gpus if each.index == gpus[0])
    milli = _takes(report, pods, gpu)
    return milli if milli != pods.gpu_milli else 0


def bind_gang(
    fleet: Fleet,
    cluster: int,
    pod_sets: Sequence[PodSet],
    suitables: Sequence[Suitable],
    worth: Worth = _NOTHING_LEARNED,
    cards: Sequence[Scorecard] | None = None,
) -> Bound | None:
    """Return nodes for all pods in one cluster, or None.

    It takes room of the fleet while it looks, and gives all of it back.
    """
    if cards is not None and can_seat(fleet, cluster, pod_sets, cards):
        return _seat_compiled(fleet, cluster, pod_sets, cards)
    if not shaped(pod_sets):
        within: tuple[Mask | None, ...] = (None,) * len(pod_sets)
        return _seat_within(fleet, cluster, pod_sets, suitables, worth, cards, within)
    for within in choices(fleet, cluster, pod_sets, suitables, worth):
        found = _seat_within(fleet, cluster, pod_sets, suitables, worth, cards, within)
        if found is not None:
            return found
    return None


def _seat_within(
    fleet: Fleet,
    cluster: int,
    pod_sets: Sequence[PodSet],
    suitables: Sequence[Suitable],
    worth: Worth,
    cards: Sequence[Scorecard] | None,
    within: Sequence[Mask | None],
) -> Bound | None:
    """Return placements on the nodes allowed for each set."""
    first, last = fleet.span(cluster)
    order = _largest_first(pod_sets)
    bindings: dict[int, list[PodBinding]] = {i: [] for i in range(len(pod_sets))}
    holdings: list[Holding] = []
    with Overlay(fleet) as taken:
        for i in order:
            pods, suitable = pod_sets[i], suitables[i]
            if cards is not None and cards[i].seen == fleet.touched.end:
                scores = cards[i].scores[first:last].copy()
            else:
                scores = score_nodes(fleet, pods, suitable, worth, slice(first, last))
            chooser = Chooser(fleet, slice(first, last), pods, suitable, scores, within[i])
            for index in range(pods.count):
                best = chooser.next()
                if best < 0:
                    return None
                binding, held = bind_one(fleet, first + best, pods, suitable, worth, index)
                bindings[i].append(binding)
                taken.take(len(holdings), (held,))
                holdings.append(held)
                if index + 1 < pods.count:
                    chooser.took(best, _score_now(fleet, first + best, pods, suitable, worth))
    return Bound(tuple(b for i in range(len(pod_sets)) for b in bindings[i]), tuple(holdings))


def _largest_first(pod_sets: Sequence[PodSet]) -> list[int]:
    def size(number: int) -> tuple[int, int, int]:
        pods = pod_sets[number]
        return -pods.gpus * pods.gpu_milli, -pods.cpu_milli, number

    return sorted(range(len(pod_sets)), key=size)


def _seat_compiled(
    fleet: Fleet, cluster: int, pod_sets: Sequence[PodSet], cards: Sequence[Scorecard]
) -> Bound | None:
    """Do the same in C, which releases its own holds."""
    order = _largest_first(pod_sets)
    found = seats(fleet.span(cluster), [(pod_sets[i], cards[i]) for i in order])
    if found is None:
        return None
    name = fleet.clusters[cluster]
    bindings: dict[int, list[PodBinding]] = {}
    holdings: list[Holding] = []
    for number, places in zip(order, found, strict=True):
        pods = pod_sets[number]
        bindings[number] = [
            PodBinding(pod=f"{pods.name}-{index}", node=fleet.names[slot][1], gpus=gpus)
            for index, (slot, gpus) in enumerate(places)
        ]
        holdings += [holding(name, binding, pods) for binding in bindings[number]]
    return Bound(tuple(b for i in range(len(pod_sets)) for b in bindings[i]), tuple(holdings))


def _score_now(
    fleet: Fleet, slot: int, pods: PodSet, suitable: Suitable, worth: Worth
) -> np.float32 | float:
    """Score one node as ``score_nodes`` does; without the rest once the GPUs are gone."""
    if pods.gpus and pods.gpu_milli == WHOLE and fleet.arrays.whole[slot] < pods.gpus:
        return NOT_HERE
    found: np.float32 = score_nodes(fleet, pods, suitable, worth, slice(slot, slot + 1))[0]
    return found
