"""How much of a packing survives where kube-scheduler has the last word: openb on a real one.

The filling protocol of quality.py, one pod after another, against a real API server, kube-scheduler
and kwok's nodes. Three ways: kube-scheduler alone; the engine deciding, and kube-scheduler placing
pods that carry what the executor writes into every Job, the node as a preference; the engine alone,
which nothing can pass. Where a pod runs elsewhere, the engine is told before its next decision, as
the live system is told by ``running``. What the engine finds no room for is not sent.

Lists: ``whole`` is openb's default list without the pods that share a GPU, which plain Kubernetes
cannot count (5,074 of 8,152); ``multigpu50`` the same of that list; ``default`` has all of them, in
milli of a node, the choice of the GPU left to the device plugin (scheduler_cluster.py).

``followed``: the pods that went where they were preferred, of those that found a node. ``kept``:
the share of what the engine alone gains over kube-scheduler as it is installed.

All 1,213 nodes take about a quarter of an hour on two idle cores; BERTH_BENCH_NODES=200 is a sample
in the same mix, filled by the same protocol.
"""

import argparse
import os
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from berthmaster.lab.controlplane.build import find
from berthmaster.lab.controlplane.compiling import Unavailable
from berthmaster.lab.controlplane.nodes import remove_nodes
from berthmaster.lab.controlplane.plane import Plane
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lab.emulator.fleets import OPENB_NODES, NodeSpec, scale
from berthmaster.lab.emulator.workloads import OPENB_PODS
from berthmaster.lib.engine.fleet.fleet import Holding
from berthmaster.lib.messages.workload import PodSet
from scripts.benchmarks import quality
from scripts.benchmarks.packers import WHOLE, Ours, milli_of
from scripts.benchmarks.scheduler_cluster import (
    NAMESPACE,
    Cluster,
    Devices,
    Pods,
    register,
)
from scripts.benchmarks.trace_files import TRACES

Settings = dict[str, Any]
AHEAD: Final = 64  # pods sent before the first has a node, where nothing depends on the answer
ENGINE: Final = "engine"
ALONE: Final = "kube"
SEED: Final = 42
NODES: Final = int(os.environ.get("BERTH_BENCH_NODES", "0")) or None
NOTES: list[str] = []
BUDGETS = {
    "whole_ours_all_nodes_kept_at_100_percent": (">=", 95.0),
    "whole_ours_all_nodes_kept_at_130_percent": (">=", 95.0),
}


def packing(resource: str) -> Settings:
    """NodeResourcesFit that fills nodes, GPUs first."""
    amounts = [
        {"name": resource, "weight": 5},
        {"name": "cpu", "weight": 1},
        {"name": "memory", "weight": 1},
    ]
    args = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "NodeResourcesFitArgs",
        "scoringStrategy": {"type": "MostAllocated", "resources": amounts},
    }
    return {"pluginConfig": [{"name": "NodeResourcesFit", "args": args}]}


def affinity(weight: int) -> Settings:
    """NodeAffinity with a weight other than its usual 2."""
    return {"plugins": {"multiPoint": {"enabled": [{"name": "NodeAffinity", "weight": weight}]}}}


def profile(*parts: Settings, all_nodes: bool = False) -> Settings:
    """A KubeSchedulerConfiguration of one profile. ``all_nodes``: none is left out of scoring."""
    made: Settings = {"schedulerName": "default-scheduler"}
    for part in parts:
        made |= part
    return {"profiles": [made | ({"percentageOfNodesToScore": 100} if all_nodes else {})]}


class Variant(NamedTuple):
    """One way to place pods."""

    prefers: bool  # the engine decides, and kube-scheduler is told
    settings: Callable[[str], Settings | None]  # of kube-scheduler, by the resource that GPUs are


# In the order of the table; ENGINE comes last and needs no cluster.
VARIANTS: Final[Mapping[str, Variant]] = {
    ALONE: Variant(False, lambda _: None),
    "kube_packing": Variant(False, lambda gpu: profile(packing(gpu))),
    "kube_packing_all_nodes": Variant(False, lambda gpu: profile(packing(gpu), all_nodes=True)),
    "ours": Variant(True, lambda _: None),
    "ours_weight_20": Variant(True, lambda _: profile(affinity(20))),
    "ours_packing": Variant(True, lambda gpu: profile(packing(gpu))),
    "ours_all_nodes": Variant(True, lambda _: profile(all_nodes=True)),
    "ours_all_nodes_weight_20": Variant(True, lambda _: profile(affinity(20), all_nodes=True)),
}
USUAL: Final = (ALONE, "kube_packing_all_nodes", "ours", "ours_all_nodes", ENGINE)
LISTS: Final = ("whole", "multigpu50", "default")


class Outcome(NamedTuple):
    """What came of one list placed one way."""

    at_full: float  # per cent of the GPUs allocated when all of them were asked for
    beyond: float  # … and 130 %
    preferred: int  # pods sent with a preference that found a node
    followed: int  # of those, the ones that went there
    refused_by_devices: int
    sent: int
    took_s: float

    @property
    def followed_percent(self) -> float:
        return 100.0 * self.followed / max(1, self.preferred)


MARKS: Final[Mapping[int, Callable[[Outcome], float]]] = {
    100: lambda outcome: outcome.at_full,
    130: lambda outcome: outcome.beyond,
}


class Meter:
    """Allocated GPUs beside those asked for, in the order of arrival."""

    def __init__(self, capacity_milli: int) -> None:
        self.capacity = capacity_milli
        self.asked = self.used = 0
        self.at_full = 0.0

    def count(self, pods: PodSet, *, placed: bool) -> None:
        """The next pod of the list."""
        self.asked += milli_of(pods)
        self.used += milli_of(pods) * placed
        if not self.at_full and self.asked >= quality.FULL * self.capacity:
            self.at_full = self.percent

    @property
    def percent(self) -> float:
        """Allocated now."""
        return 100.0 * self.used / self.capacity


class Course:
    """A fleet and the pods that come, by a seed; ``nodes`` fewer than all is a sample in the same
    mix, filled by the same protocol."""

    def __init__(self, name: str, seed: int, nodes: int | None = None) -> None:
        self.name, self.in_milli = name, name == "default"
        fleet = quality.nodes()
        self.nodes: Sequence[NodeSpec] = fleet if nodes is None else scale(fleet, nodes)
        self.capacity_milli = WHOLE * sum(node.gpus for node in self.nodes)
        listed = quality.pods_of("default" if name == "whole" else name)
        if not self.in_milli:
            listed = [p for p in listed if not p.pods.gpus or p.pods.gpu_milli == WHOLE]
        self.list = [pod.pods for pod in listed]
        self.arrivals = [pod.pods for pod in self._stream(listed, seed)]

    def _stream(self, listed: Sequence[quality.Pod], seed: int) -> Iterator[quality.Pod]:
        asked = 0
        for pod in quality.filling_stream(listed, seed):
            asked += milli_of(pod.pods)
            if asked > quality.BEYOND * self.capacity_milli:
                return
            yield pod

    def engine(self) -> Ours:
        """The product's engine, which knows the fleet and no pod yet."""
        return Ours(self.nodes, self.list)


Told = Callable[[int], None]


def engine_alone(course: Course) -> Outcome:
    """The bound: nobody else has a say."""
    engine, meter = course.engine(), Meter(course.capacity_milli)
    began_s = time.monotonic()
    for pods in course.arrivals:
        meter.count(pods, placed=engine.place(pods) is not None)
    took_s = time.monotonic() - began_s
    return Outcome(meter.at_full, meter.percent, 0, 0, 0, len(course.arrivals), took_s)


def kube_alone(course: Course, cluster: Cluster, told: Told) -> Outcome:
    """kube-scheduler as people use it. Several pods are on their way at once, in order, unless a
    device plugin may take one back."""
    makes, devices = Pods(course.nodes, in_milli=course.in_milli), Devices(course.nodes)
    meter = Meter(course.capacity_milli)
    waiting: deque[tuple[str, PodSet]] = deque()
    turned_away = 0
    began_s = time.monotonic()

    def settle() -> None:
        nonlocal turned_away
        name, pods = waiting.popleft()
        node = cluster.where(name)
        held = devices.hand_out(node, pods) if node is not None else None
        if node is not None and held is None:
            cluster.take_away(name)
            turned_away += 1
        meter.count(pods, placed=held is not None)

    for number, pods in enumerate(course.arrivals):
        name = cluster.name_of(number)
        cluster.send(makes.made(name, pods, None))
        waiting.append((name, pods))
        if len(waiting) > (0 if course.in_milli else AHEAD):
            settle()
        told(number)
    while waiting:
        settle()
    took_s = time.monotonic() - began_s
    sent = len(course.arrivals)
    return Outcome(meter.at_full, meter.percent, 0, 0, turned_away, sent, took_s)


def together(course: Course, cluster: Cluster, told: Told) -> Outcome:
    """The engine decides, kube-scheduler places, and the engine hears where."""
    engine, meter = course.engine(), Meter(course.capacity_milli)
    makes, devices = Pods(course.nodes, in_milli=course.in_milli), Devices(course.nodes)
    sent = preferred = followed = turned_away = 0
    began_s = time.monotonic()
    for number, pods in enumerate(course.arrivals):
        place, name = engine.place(pods), cluster.name_of(number)
        told(number)
        if place is None:
            meter.count(pods, placed=False)
            continue
        assert isinstance(place, Holding)
        sent += 1
        cluster.send(makes.made(name, pods, place.node))
        node = cluster.where(name)
        preferred += node is not None
        followed += node == place.node
        held = devices.hand_out(node, pods) if node is not None else None
        if held is None:
            engine.leave(place)
            if node is not None:
                cluster.take_away(name)
                turned_away += 1
        elif (held.node, held.gpus) != (place.node, place.gpus):
            engine.moved(place, held.node, held.gpus)
        meter.count(pods, placed=held is not None)
    took_s = time.monotonic() - began_s
    return Outcome(meter.at_full, meter.percent, preferred, followed, turned_away, sent, took_s)


def run(course: Course, variant: Variant, plane: Plane, title: str) -> Outcome:
    """One list, one way, on nodes that are there already."""

    def told(number: int) -> None:
        if number % 100 == 0 or number + 1 == len(course.arrivals):
            bar = "#" * (30 * (number + 1) // len(course.arrivals))
            line = f"\r{title}: [{bar:30}] {number + 1} of {len(course.arrivals)} pods"
            print(f"{line:99}", end="", file=sys.stderr, flush=True)

    resource = Pods(course.nodes, in_milli=course.in_milli).resource
    with Cluster(plane, variant.settings(resource)) as cluster:
        outcome = (together if variant.prefers else kube_alone)(course, cluster, told)
        print(f"\n  {outcome}", file=sys.stderr, flush=True)
        return outcome


def figures_of(outcomes: Mapping[str, Sequence[Outcome]], name: str) -> dict[str, float]:
    """Of one list, its seeds' mean."""

    def mean(variant: str, of: Callable[[Outcome], float]) -> float:
        values = [of(outcome) for outcome in outcomes[variant]]
        return sum(values) / len(values)

    figures: dict[str, float] = {}
    for percent, of in MARKS.items():
        for variant in outcomes:
            figures[f"{name}_{variant}_at_{percent}_percent"] = mean(variant, of)
    preferring = [each for each in outcomes if each in VARIANTS and VARIANTS[each].prefers]
    for variant in preferring:
        figures[f"{name}_{variant}_followed_percent"] = mean(variant, lambda o: o.followed_percent)
    for percent, of in MARKS.items() if {ALONE, ENGINE} <= outcomes.keys() else ():
        low, high = mean(ALONE, of), mean(ENGINE, of)
        for variant in preferring if high > low else ():  # nothing gained, nothing to keep
            kept = 100.0 * (mean(variant, of) - low) / (high - low)
            figures[f"{name}_{variant}_kept_at_{percent}_percent"] = kept
    for variant in outcomes:
        if variant != ENGINE:
            rate = mean(variant, lambda o: o.sent / o.took_s)
            figures[f"{name}_{variant}_pods_per_s"] = rate
            turned_away = mean(variant, lambda o: float(o.refused_by_devices))
            if name == "default":
                figures[f"{name}_{variant}_refused_by_devices_count"] = turned_away
    return figures


def measure(
    lists: Sequence[str] = LISTS[:1],
    variants: Sequence[str] = USUAL,
    seeds: Sequence[int] = (SEED,),
    nodes: int | None = NODES,
) -> dict[str, float]:
    """All of it, or nothing where there are no traces or no control plane."""
    NOTES.clear()
    wanted = (OPENB_NODES, *OPENB_PODS.values())
    if missing := [each for each in wanted if not (TRACES / each).exists()]:
        NOTES.append(f"skipped: no {missing[0]} in {TRACES}; set BERTH_TRACES")
        return {}
    try:
        programs = find()
    except Unavailable as reason:
        NOTES.append(f"not measured: {reason}")
        return {}
    figures: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory(prefix="berth-scheduler-") as text,
        Planes(Path(text), hub=False, workers=["openb"], crds=[], programs=programs) as planes,
    ):
        plane = planes["openb"]
        plane.make_namespace(NAMESPACE)
        for name in lists:
            outcomes: dict[str, list[Outcome]] = {each: [] for each in variants}
            for seed in seeds:
                course = Course(name, seed, nodes)
                made = register(plane, course.nodes, in_milli=course.in_milli)
                for variant in variants:
                    if variant == ENGINE:
                        outcomes[ENGINE].append(engine_alone(course))
                        continue
                    title = f"scheduler: {name} {seed} {variant}"
                    outcomes[variant].append(run(course, VARIANTS[variant], plane, title))
                remove_nodes(plane, made)
            figures |= figures_of(outcomes, name)
    return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="append", choices=LISTS)
    parser.add_argument("--variant", action="append", choices=[*VARIANTS, ENGINE])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=NODES, help="a sample; default: all 1,213")
    args = parser.parse_args()
    for figure, value in measure(
        args.list or LISTS[:1],
        args.variant or USUAL,
        range(SEED, SEED + args.seeds),
        args.nodes,
    ).items():
        print(f"{figure:55} {value:10.3f}")
    print(*NOTES, sep="\n")
