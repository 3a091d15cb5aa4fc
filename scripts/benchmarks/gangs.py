"""Decisions of gangs on a large fleet: one by one, in the CPU time of the thread that decides.

    python -m scripts.benchmarks.gangs

The baseline, in the same run, is the same engine that counts the room of all nodes for each gang
instead of following what changed.
"""

import sys
from collections.abc import Sequence

from berthmaster.engine.fleet.fleet import Fleet
from berthmaster.engine.fleet.needs import Suitable
from berthmaster.engine.scoring.room import Room
from berthmaster.engine.scoring.score_cache import Scorecard
from berthmaster.messages.fleet import NodeReport
from berthmaster.messages.workload import JobRequest, PodSet, Topology
from scripts.benchmarks.engine import LARGE_CLUSTERS, LARGE_NODES, Log, fresh, reports

SHAPES = {  # pods, GPUs of each, milli of each, topology
    "4x8": (4, 8, 1000, None),
    "16x1": (16, 1, 1000, None),
    "32x1": (32, 1, 1000, None),
    "3x4": (3, 4, 1000, None),
    "8x0.5": (8, 1, 500, None),
    "8x1 one node": (8, 1, 1000, Topology(same="node")),
    "8x1 a node each": (8, 1, 1000, Topology(max_pods_a_node=1)),
    "16x1 fewest nodes": (16, 1, 1000, Topology(nodes="fewest")),
}
PLAIN = [name for name, (_, _, _, topology) in SHAPES.items() if topology is None]
WARM_UP = 40
GANGS = 400
LIVE = 100  # then each placement is followed by a departure


def measure(nodes: int = LARGE_NODES, clusters: int = LARGE_CLUSTERS) -> dict[str, float]:
    """Milliseconds of a decision, by shape, and gangs a second of the shapes without topology."""
    facts = reports(nodes, clusters)
    took_ms = _run(facts)
    follow, Scorecard.room_for = Scorecard.room_for, _counted_anew  # type: ignore[method-assign,assignment]
    try:
        anew_ms = _run(facts)
    finally:
        Scorecard.room_for = follow  # type: ignore[method-assign]
    figures = {}
    for name, each in took_ms.items():
        figures[f"gang_{name}_p50_ms"] = _percentile(each, 50)
        figures[f"gang_{name}_p99_ms"] = _percentile(each, 99)
    for prefix, of in (("", took_ms), ("baseline_", anew_ms)):
        plain = [ms for name in PLAIN for ms in of[name]]
        figures[f"{prefix}gangs_p50_ms"] = _percentile(plain, 50)
        figures[f"{prefix}gangs_per_s"] = 1000 * len(plain) / sum(plain)
    return figures


def _counted_anew(_card: Scorecard, fleet: Fleet, pods: PodSet, suitable: Suitable) -> Room:
    room = Room()
    room.follow(fleet, pods, suitable)
    return room


def _run(facts: Sequence[NodeReport]) -> dict[str, list[float]]:
    log = Log(fresh(facts))
    log.resolver.know.fleet.arrange()
    took_ms: dict[str, list[float]] = {name: [] for name in SHAPES}
    names = list(SHAPES)
    for number in range(GANGS):
        name = names[number % len(names)]
        count, gpus, milli, topology = SHAPES[name]
        pods = PodSet(
            count=count,
            gpus=gpus,
            gpu_milli=milli,
            cpu_milli=4000,
            memory_mib=8192,
            topology=topology,
        )
        log.submit(JobRequest(id=f"g{number}", pod_sets=(pods,)))
        placed = log.decide()
        assert placed == 1, name
        if number >= WARM_UP:
            took_ms[name].append(1000 * log.took_s)
        if len(log.live) > LIVE:
            log.depart(log.live.pop(0))
    return took_ms


def _percentile(values: Sequence[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


if __name__ == "__main__":
    for figure, value in measure().items():
        sys.stdout.write(f"{figure:40} {value:10.2f}\n")
