"""Digests of what the engine decides: the same figures before and after a change mean that every
decision is the same to the bit.

Each run is hashed whole: decisions with their rankings, parts of scores, filtered clusters and
reservations, and the events that they store. The runs are small lists drawn from seeds, one for
each way in which decisions are made; the traces of openb are filled in if they are there. A figure
is the first 48 bits of the hash, so that it fits the number that figures are.
"""

import hashlib
from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec.structs import replace

from berthmaster.control.resolver.core.answers import explain
from berthmaster.control.resolver.core.deciding.draft import Plan
from berthmaster.control.resolver.core.resolver import Resolver
from berthmaster.control.resolver.policy import Policy
from berthmaster.lab.emulator.fleets import OPENB_NODES, ClusterSpec, builtin_nodes, group
from berthmaster.lab.emulator.workloads import generated
from berthmaster.lab.simulate.model import Job, told
from berthmaster.lab.simulate.ours import BEGAN_S, Simulated
from berthmaster.lib.messages.control import Cordon, QueueAmounts, QueueSetting
from berthmaster.lib.messages.fleet import (
    ClusterScore,
    FlavorQuota,
    LocalQueueReport,
    QueueReport,
    QuotaAmount,
    Stamp,
)
from berthmaster.lib.messages.workload import JobRequest
from scripts.benchmarks import engine, quality
from scripts.benchmarks.packers import Ours
from scripts.benchmarks.trace_files import TRACES

ENGINE_JOBS: Final = 4000
QUEUED_JOBS: Final = 500
DUE_JOBS: Final = 700
GOVERNED_JOBS: Final = 250
TENANT: Final = "simulate"
ASK_EVERY: Final = 60  # decisions, between two rounds of questions
NOTES: list[str] = []


class Recorded(Resolver):
    """A resolver that keeps a hash of all that it decides, and of what it answers now and then."""

    def __init__(self, policy: Policy, *, asked: bool = False) -> None:
        super().__init__("all", "digest", policy)
        self.decided = hashlib.sha256()
        self.answered = hashlib.sha256()
        self._plans = 0
        self._asked = asked

    def decide(self, now_s: float) -> Plan | None:
        plan = super().decide(now_s)
        if plan is not None:
            _add(self.decided, (replace(plan.decision, engine="10"), plan.events))
            self._plans += 1
            if self._asked and self._plans % ASK_EVERY == 0:
                self._ask(now_s)
        return plan

    def _ask(self, now_s: float) -> None:
        """What some of those who wait are told, and what somebody would be told who asks."""
        know, policy = self.know, self.policy
        for line in know.derived.lines.lines()[:8]:
            name = next(iter(line.members))
            tenant, _, workload_id = name.partition("/")
            why = explain.why(know, policy, now_s, tenant, workload_id, self.decisions)
            _add(self.answered, why)
            _add(self.answered, explain.dry_run(know, policy, now_s, tenant, line.request))
        _add(self.answered, explain.why_all(know, policy, now_s, TENANT))


def _add(hashed: "hashlib._Hash", value: object) -> None:
    hashed.update(msgspec.json.encode(value, order="sorted"))


def short(hashed: "hashlib._Hash") -> float:
    """As much of it as a figure holds."""
    return float(int(hashed.hexdigest()[:12], 16))


# The runs


def streaming() -> "hashlib._Hash":
    """Many jobs of all kinds on a large fleet that is well filled (benchmark ``engine``)."""
    facts = engine.reports(engine.NODES, engine.CLUSTERS)
    requests = [a.request for a in generated(seed=1, rate_per_s=1.0, count=ENGINE_JOBS)]
    recorded = Recorded(Policy())
    engine.steady(facts, requests, live_jobs=1500, resolver=recorded)
    return recorded.decided


def fleet() -> list[ClusterSpec]:
    """Some nodes of openb's kinds, too few for what comes."""
    return group(builtin_nodes(1213)[::40], 4)


def jobs(count: int, rate_per_s: float, seed: int) -> list[Job]:
    """Drawn jobs, some of them gangs."""
    made = generated(
        seed=seed, rate_per_s=rate_per_s, count=count, gang_share=0.3, median_duration_s=400.0
    )
    return [Job(a.at_s, a.request, a.request.expected_duration_s or 1.0) for a in made]


def _queued(number: int, request: JobRequest) -> JobRequest:
    """Some of everything that a request may say."""
    queues = ("research", "product", "default", "lent")
    sets = request.pod_sets
    if number % 9 == 0:
        sets = tuple(replace(p, prefer_gpu_models=("V100M32", "T4")) for p in sets)
    if number % 13 == 0 and sets[0].gpus:
        sets = (*sets, replace(sets[0], name="driver", count=1, gpus=0, cpu_milli=2000))
    return replace(
        request,
        queue=queues[number % 4],
        priority=(0, 0, 0, 10, -5)[number % 5],
        pod_sets=sets,
        profile=("", "", "", "spread", "pack", "soonest")[number % 6],
        weights={"idle": 2.0} if number % 11 == 0 else {},
        deadline_s=3000.0 if number % 17 == 0 else None,
    )


def queues() -> list[QueueSetting]:
    """With rights of every kind."""
    return [
        QueueSetting(
            queue="research", weight=2.0, guarantee_gpu_milli=30_000, deserved_gpu_milli=60_000
        ),
        QueueSetting(queue="product", priority=5, deserved_gpu_milli=20_000, profile="soonest"),
        QueueSetting(
            queue="lent",
            capability_gpu_milli=40_000,
            max_running_jobs=25,
            resources={"gpu/T4": QueueAmounts(capability=8000)},
        ),
    ]


def fair(*, asked: bool) -> Recorded:
    """Queues with guarantees, shares and limits; room is kept for who does not fit."""
    listed = [
        job._replace(request=_queued(number, job.request))
        for number, job in enumerate(jobs(QUEUED_JOBS, 0.25, seed=3))
    ]
    recorded = Recorded(Policy(reserve_wait_s=60.0, backfill=0.9), asked=asked)
    world = Simulated(fleet(), told(listed, "factor-two", 1), recorded.policy, None)
    world.resolver = recorded
    for number, setting in enumerate(queues(), 1):
        recorded.on_control(setting, number)
    recorded.on_control(Cordon(cluster="c2", node="n1", cordoned=True), 9)
    _tell_scores(recorded)
    world.play()
    return recorded


def _tell_scores(recorded: Recorded) -> None:
    for number, cluster in enumerate(fleet()):
        score = ClusterScore(
            cluster=cluster.name,
            stamp=Stamp(epoch=1, counter=1),
            freshness="fresh",
            input_age_s=0.1,
            idle_gpu_percent=100.0 / (number + 2),
            calm_gpu_percent=90.0 / (number + 1),
        )
        recorded.on_fact(score, number + 1, BEGAN_S)


def due(*, asked: bool) -> Recorded:
    """By due times; of some jobs nobody says how long they take."""
    listed = [
        job._replace(request=replace(job.request, expected_duration_s=None))
        for job in jobs(DUE_JOBS, 0.2, seed=5)
    ]
    policy = Policy(order="due", reservations=3, backfill=0.8)
    recorded = Recorded(policy, asked=asked)
    half = [
        job._replace(expected_s=job.duration_s if number % 2 else None)
        for number, job in enumerate(listed)
    ]
    world = Simulated(fleet(), half, policy, None)
    world.resolver = recorded
    world.play()
    return recorded


def governed() -> Recorded:
    """Through queues that the clusters' own Kueue governs."""
    listed = [
        job._replace(request=replace(job.request, queue=("kueue", "default")[number % 2]))
        for number, job in enumerate(jobs(GOVERNED_JOBS, 0.4, seed=7))
    ]
    recorded = Recorded(Policy())
    world = Simulated(fleet(), told(listed, "exact", 1), recorded.policy, None)
    world.resolver = recorded
    recorded.on_control(QueueSetting(queue="kueue", via="worker"), 1)
    for number, cluster in enumerate(fleet()):
        quota = {
            "cpu": QuotaAmount(nominal=400_000),
            "memory": QuotaAmount(nominal=2_000_000),
            "nvidia.com/gpu": QuotaAmount(nominal=24 - 4 * number, used=number),
        }
        report = QueueReport(
            cluster=cluster.name,
            queue="team",
            stamp=Stamp(epoch=1, counter=1),
            observed_at_s=0.0,
            flavors=(FlavorQuota(flavor="any", resources=quota),),
            local_queues=(LocalQueueReport(namespace="default", name="kueue"),),
            pending=number,
            admitted=3,
        )
        recorded.on_fact(report, number + 1, BEGAN_S)
    world.play()
    return recorded


def filling() -> "hashlib._Hash | None":
    """openb's default list, one seed; None where the trace is not."""
    if not (TRACES / OPENB_NODES).exists():
        return None
    hashed = hashlib.sha256()
    pods = quality.pods_of("default")
    packer = Ours(quality.nodes(), [pod.pods for pod in pods])
    for pod in quality.filling_stream(pods, 42):
        _add(hashed, packer.place(pod.pods))
    return hashed


def measure() -> dict[str, float]:
    """All digests."""
    NOTES.clear()
    asked = [fair(asked=True), due(asked=True)]
    digests = {
        "stream": streaming(),
        "queues": asked[0].decided,
        "due": asked[1].decided,
        "governed": governed().decided,
        "filling": filling(),
        "answers": _together(each.answered for each in asked),
    }
    unasked = [fair(asked=False).decided, due(asked=False).decided]
    if [each.digest() for each in unasked] != [each.decided.digest() for each in asked]:
        NOTES.append("NOT THE SAME: questions changed what was decided after them")
    found = {name: hashed for name, hashed in digests.items() if hashed is not None}
    NOTES.extend(f"{name:8} {hashed.hexdigest()}" for name, hashed in found.items())
    return {f"{name}_digest": short(hashed) for name, hashed in found.items()}


def _together(hashes: "Iterable[hashlib._Hash]") -> "hashlib._Hash":
    return hashlib.sha256(b"".join(each.digest() for each in hashes))
