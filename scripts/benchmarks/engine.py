"""Decisions a second of the resolver's core alone, on openb's shape of fleet, with departures.

No bus: events and facts are handed to the core as its shell would. The baseline, measured in the
same run, is the obvious way: look at every node in Python for every job. Deciding is measured in
the CPU time of its one thread, which says the same on a machine that others use too.

Three mixes of jobs: of one pod each (``decisions_per_s``); the same, a third of which name one to
three GPU models (``models_…``); and a fifth of the jobs with whole GPUs as gangs of 2 to 8 such
pods and a pod without GPUs that drives them (``gangs_…``), a third of those with a model named.
"""

import time
from collections.abc import Sequence

from msgspec.structs import replace

from berthmaster.control.resolver.core.resolver import Resolver
from berthmaster.control.resolver.policy import Policy
from berthmaster.lab.emulator.fleets import builtin_nodes, gpu_memory_mib, group
from berthmaster.lab.emulator.workloads import generated
from berthmaster.lib.engine.scoring.compiled import COMPILED
from berthmaster.lib.lifecycle.instructions import Stored
from berthmaster.lib.lifecycle.workload import key, request_digest
from berthmaster.lib.messages.families import EVENTS, encode
from berthmaster.lib.messages.fleet import ClusterAlive, GpuDevice, NodeReport, Stamp
from berthmaster.lib.messages.workload import (
    Claimed,
    JobRequest,
    Placed,
    PodSet,
    Submitted,
    Succeeded,
    WorkloadEvent,
)
from berthmaster.lib.runtime.process_setup import reduce_garbage_scans

NODES = 1213
CLUSTERS = 12
JOBS = 20_000
LIVE_JOBS = 3000  # then each placement is followed by a departure
LARGE_NODES = 121_300
LARGE_CLUSTERS = 100
LARGE_JOBS = 6000
ONE_BY_ONE = 2000  # of the jobs, the last: each a decision of its own
START_NODES = 100_000
START_JOBS = 100_000
NAIVE_JOBS = 300

BUDGETS = {
    "decisions_per_s": (">=", 10_000.0),
    "models_decisions_per_s": (">=", 10_000.0),
    "gangs_decisions_per_s": (">=", 10_000.0),
    "large_decisions_per_s": (">=", 5000.0),
    "large_models_decisions_per_s": (">=", 5000.0),
    "large_gangs_decisions_per_s": (">=", 5000.0),
    "large_decision_p99_ms": ("<=", 1.0),
    "large_memory_a_node_kib": ("<=", 1.0),
    "start_fold_and_first_commit_s": ("<=", 8.0),
    "memory_a_node_kib": ("<=", 1.0),
    "start_memory_a_node_kib": ("<=", 1.0),
}
NOW_S = 1000.0
LOOPS = "compiled" if COMPILED else "numpy, as nothing was compiled here"
NOTES = [f"inner loops: {LOOPS}"]


def reports(nodes: int, clusters: int) -> list[NodeReport]:
    """What the inventories of an idle fleet of this shape tell."""
    return [
        NodeReport(
            cluster=cluster.name,
            node=node.name,
            stamp=Stamp(epoch=1, counter=1),
            observed_at_s=NOW_S,
            allocatable=node.allocatable,
            gpus=tuple(
                GpuDevice(
                    index=index,
                    uuid="",
                    model=node.model,
                    memory_mib=gpu_memory_mib(node.model),
                )
                for index in range(node.gpus)
            ),
        )
        for cluster in group(builtin_nodes(nodes), clusters)
        for node in cluster.nodes
    ]


def fresh(facts: Sequence[NodeReport], resolver: Resolver | None = None) -> Resolver:
    """A resolver that has heard of the fleet and nothing else."""
    resolver = resolver or Resolver("all", "resolver/bench", Policy())
    for sequence, fact in enumerate(facts, 1):
        resolver.on_fact(fact, sequence, NOW_S)
    for cluster in sorted({fact.cluster for fact in facts}):
        stamp = Stamp(epoch=1, counter=1)
        alive = ClusterAlive(cluster=cluster, stamp=stamp, observed_at_s=NOW_S, interval_s=1.0)
        resolver.on_fact(alive, len(facts) + 1, NOW_S)
    return resolver


def submitted(request: JobRequest) -> Submitted:
    """As the gateway tells it."""
    return Submitted(
        tenant="bench",
        id=request.id,
        after=0,
        at_s=NOW_S,
        by="bench",
        request=request,
        digest=request_digest(request),
    )


class Log:
    """Stores whatever it is told, without an error."""

    def __init__(self, resolver: Resolver) -> None:
        self.resolver = resolver
        self.sequence = 0
        self.live: list[Placed] = []
        self.told: list[WorkloadEvent] = []  # by the last commit
        self.deciding_s = 0.0
        self.took_s = 0.0  # by the last look
        self.placed = 0

    def submit(self, request: JobRequest) -> None:
        self.sequence += 1
        self.resolver.on_event(submitted(request), self.sequence, NOW_S)

    def decide(self) -> int:
        """One commit; how much was placed."""
        began_s = time.thread_time()
        plan = self.resolver.decide(NOW_S)
        self.took_s = time.thread_time() - began_s
        self.deciding_s += self.took_s
        if plan is None:
            return 0
        self.sequence += 1
        self.resolver.on_decision(plan.decision, self.sequence)
        self.told = list(plan.events)
        for event in plan.events:
            self.sequence += 1
            self.resolver.on_event(event, self.sequence, NOW_S)
            if isinstance(event, Placed):
                self.live.append(event)
        self.resolver.on_outcome(Stored(self.sequence), 0)
        self.placed += len(plan.events)
        return len(plan.events)

    def depart(self, placed: Placed) -> None:
        """The oldest job runs to its end."""
        workload = self.resolver.know.open[key(placed.tenant, placed.id)]
        head = {
            "tenant": placed.tenant,
            "id": placed.id,
            "at_s": NOW_S,
            "by": "x",
            "cluster": placed.cluster,
            "attempt": placed.attempt,
        }
        self.sequence += 1
        claimed = Claimed(**head, after=workload.sequence, executor="x")  # type: ignore[arg-type]
        self.resolver.on_event(claimed, self.sequence, NOW_S)
        ended = Succeeded(**head, after=self.sequence, digest="", submitted_at_s=NOW_S)  # type: ignore[arg-type]
        self.sequence += 1
        self.resolver.on_event(ended, self.sequence, NOW_S)


def steady(
    facts: Sequence[NodeReport],
    requests: Sequence[JobRequest],
    prefix: str = "",
    live_jobs: int = LIVE_JOBS,
    resolver: Resolver | None = None,
) -> dict[str, float]:
    """A stream of jobs on a fleet that is well filled: as many leave as come. First a hundred at a
    time, then one by one."""
    log = Log(fresh(facts, resolver))
    log.resolver.know.fleet.arrange()
    many, single = requests[:-ONE_BY_ONE], requests[-ONE_BY_ONE:]
    for start in range(0, len(many), 100):
        for request in many[start : start + 100]:
            log.submit(request)
        while log.decide():
            pass
        while len(log.live) > live_jobs:
            log.depart(log.live.pop(0))
    rate_per_s = log.placed / log.deciding_s
    took_s: list[float] = []
    for request in single:
        log.submit(request)
        if log.decide():
            took_s.append(log.took_s)
        while len(log.live) > live_jobs:
            log.depart(log.live.pop(0))
    took_s.sort()
    know = log.resolver.know
    return {
        f"{prefix}decisions_per_s": rate_per_s,
        f"{prefix}decision_p50_ms": 1000 * took_s[len(took_s) // 2],
        f"{prefix}decision_p99_ms": 1000 * took_s[len(took_s) * 99 // 100],
        f"{prefix}placed_count": float(log.placed),
        f"{prefix}memory_a_node_kib": know.view.engine_bytes / len(facts) / 1024,
    }


class _Room:
    """A node, as the baseline sees it."""

    def __init__(self, fact: NodeReport) -> None:
        self.cpu_milli = fact.allocatable.cpu_milli
        self.memory_mib = fact.allocatable.memory_mib
        self.gpus = [1000] * len(fact.gpus)
        self.model = fact.gpus[0].model if fact.gpus else ""


MODELS = ("G2", "T4", "P100", "V100M16", "V100M32", "G3")
MIXES = ("", "models_", "gangs_")


def mixed(mix: str, count: int) -> list[JobRequest]:
    """So many jobs of a mix."""
    gang_share = 0.2 if mix == "gangs_" else 0.0
    made = generated(seed=1, rate_per_s=1.0, count=count, gang_share=gang_share)
    return [_of_mix(mix, number, arrival.request) for number, arrival in enumerate(made)]


def _of_mix(mix: str, number: int, request: JobRequest) -> JobRequest:
    [pods] = request.pod_sets
    if mix and pods.gpus and number % 3 == 0:
        fit = MODELS if pods.gpus <= 1 else ("G2", "G3", "V100M32")
        first = number // 3 % len(fit)
        pods = replace(pods, gpu_models=fit[first : first + 1 + number % 2])
    sets: tuple[PodSet, ...] = (pods,)
    if pods.count > 1:
        sets = (pods, PodSet(name="driver", cpu_milli=2000, memory_mib=4096))
    return replace(request, pod_sets=sets)


def _live(mix: str, jobs: int) -> int:
    """So many jobs fill the fleet as ``jobs`` of one pod do."""
    return jobs * 2 // 3 if mix == "gangs_" else jobs


def naive(facts: Sequence[NodeReport], requests: Sequence[JobRequest]) -> float:
    """Decisions a second of a scan over all nodes for each job: best fit, nothing else."""
    rooms = [_Room(fact) for fact in facts]
    began_s = time.perf_counter()
    for request in requests:
        pods = request.pod_sets[0]
        best: _Room | None = None
        least = float("inf")
        for room in rooms:
            if room.cpu_milli < pods.cpu_milli or room.memory_mib < pods.memory_mib:
                continue
            if pods.gpus and pods.gpu_models and room.model not in pods.gpu_models:
                continue
            if sum(milli >= pods.gpu_milli for milli in room.gpus) < pods.gpus:
                continue
            left = sum(room.gpus) - pods.gpus * pods.gpu_milli
            if left < least:
                best, least = room, left
        if best is not None:
            best.cpu_milli -= pods.cpu_milli
            best.memory_mib -= pods.memory_mib
            chosen = [i for i, milli in enumerate(best.gpus) if milli >= pods.gpu_milli]
            for index in chosen[: pods.gpus]:
                best.gpus[index] -= pods.gpu_milli
    return len(requests) / (time.perf_counter() - began_s)


def starting() -> dict[str, float]:
    """A resolver that starts: fold the facts and open workloads of a large system, decide once."""
    facts = reports(START_NODES, 100)
    made = generated(seed=2, rate_per_s=1.0, count=START_JOBS)
    stored = [encode(submitted(arrival.request)) for arrival in made]  # as the log has them
    began_s = time.perf_counter()
    log = Log(fresh(facts))
    folded_facts_s = time.perf_counter() - began_s
    for sequence, raw in enumerate(stored, 1):
        log.resolver.on_event(EVENTS.decode(raw), sequence, NOW_S)
    log.sequence = len(stored)
    folded_s = time.perf_counter() - began_s
    log.decide()
    return {
        "start_fold_facts_s": folded_facts_s,
        "start_fold_workloads_s": folded_s - folded_facts_s,
        "start_fold_and_first_commit_s": time.perf_counter() - began_s,
        "start_memory_a_node_kib": log.resolver.know.view.engine_bytes / START_NODES / 1024,
    }


def measure() -> dict[str, float]:
    """All of it, as in a service's process."""
    reduce_garbage_scans()
    facts = reports(NODES, CLUSTERS)
    figures: dict[str, float] = {}
    for mix in MIXES:
        figures |= steady(facts, mixed(mix, JOBS), mix, _live(mix, LIVE_JOBS))
    scan_per_s = naive(facts, mixed("", NAIVE_JOBS))
    figures["baseline_scan_decisions_per_s"] = scan_per_s
    figures["times_the_baseline_ratio"] = figures["decisions_per_s"] / scan_per_s
    facts = reports(LARGE_NODES, LARGE_CLUSTERS)
    for mix in MIXES:
        figures |= steady(
            facts, mixed(mix, LARGE_JOBS), f"large_{mix}", _live(mix, LARGE_JOBS // 2)
        )
    return figures | starting()
