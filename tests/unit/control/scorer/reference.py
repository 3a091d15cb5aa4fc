"""The slow twin of the scorer: every score from scratch, from the newest word about everything.

Written from the definitions and sharing no arithmetic with the core; it is told what the core was
told, keeps all of it, and looks at all of it for each question.
"""

import math
from collections.abc import Iterable
from fractions import Fraction

from berthmaster.control.scorer.core.events import InputFact
from berthmaster.control.scorer.core.mix import Mix
from berthmaster.control.scorer.core.rules import ScoringRules
from berthmaster.lib.messages.fleet import (
    ClosedGpu,
    ClusterAlive,
    ClusterProfile,
    ClusterScore,
    GpuFault,
    NodeGone,
    NodeReport,
    ResourceScore,
    Stamp,
)
from berthmaster.lib.messages.telemetry import NodeTelemetry


class Reference:
    """All that was told, newest last."""

    def __init__(self, rules: ScoringRules) -> None:
        self.rules = rules
        self.facts: list[tuple[InputFact, float]] = []  # with the time that counts as seen
        self.telemetry: list[tuple[NodeTelemetry, float]] = []  # with the time of receipt
        self.order: list[tuple[InputFact | NodeTelemetry, float]] = []  # both, as they came

    def fact(self, fact: InputFact, stored_at_s: float, now_s: float) -> None:
        if any(same_subject(fact, known) and known.stamp >= fact.stamp for known, _ in self.facts):
            return  # older than what is known, or a repetition: neither news nor a sign of life
        self.facts.append((fact, min(stored_at_s, now_s)))
        self.order.append((fact, now_s))
        if isinstance(fact, NodeGone) and fact.node not in self.reports(fact.cluster):
            place = (fact.cluster, fact.node)
            self.telemetry = [t for t in self.telemetry if (t[0].cluster, t[0].node) != place]

    def hear(self, told: NodeTelemetry, now_s: float) -> None:
        if told.node in self.reports(told.cluster):
            self.telemetry.append((told, now_s))
            self.order.append((told, now_s))

    # Looking

    def clusters(self) -> list[str]:
        return sorted({fact.cluster for fact, _ in self.facts})

    def reports(self, cluster: str) -> dict[str, NodeReport]:
        newest: dict[str, NodeReport | NodeGone] = {}
        for fact, _ in self.facts:
            if isinstance(fact, NodeReport | NodeGone) and fact.cluster == cluster:
                known = newest.get(fact.node)
                if known is None or fact.stamp > known.stamp:
                    newest[fact.node] = fact
        return {name: fact for name, fact in newest.items() if isinstance(fact, NodeReport)}

    def live(self, cluster: str, node: str, now_s: float) -> NodeTelemetry | None:
        """The newest telemetry of a node, if it still counts. (Tests keep its order.)"""
        mine = [
            (told, at_s)
            for told, at_s in self.telemetry
            if (told.cluster, told.node) == (cluster, node)
        ]
        if not mine:
            return None
        told, at_s = mine[-1]
        return told if now_s < at_s + max(3.0, 3 * told.interval_s) else None

    def faulty(self, cluster: str, node: str) -> dict[str, ClosedGpu]:
        """The GPUs that were lost or had memory errors, and were not well for long since."""
        since: dict[str, ClosedGpu] = {}
        well: dict[str, float] = {}
        errors: dict[str, int | None] = {}
        heard_s = -math.inf
        for what, at_s in self.order:
            if (what.cluster, getattr(what, "node", "")) != (cluster, node):
                continue
            if isinstance(what, NodeGone):
                since, heard_s = {}, -math.inf
            elif isinstance(what, NodeReport):
                listed = {gpu.uuid for gpu in what.gpus}
                since = {uuid: gpu for uuid, gpu in since.items() if uuid in listed}
            elif isinstance(what, NodeTelemetry):
                if at_s >= heard_s + max(3.0, 3 * what.interval_s):
                    well = {}
                heard_s = at_s
                spoken = {gpu.uuid: gpu for gpu in what.gpus}
                for uuid in [uuid for uuid in since if uuid not in spoken]:
                    well.pop(uuid, None)
                for uuid, gpu in spoken.items():
                    fault: GpuFault | None = None
                    if gpu.health == "lost":
                        fault = "lost"
                    elif gpu.health == "degraded" and gpu.ecc_uncorrected:
                        fault = "ecc"
                    known = since.get(uuid)
                    if fault is not None:
                        count, before = gpu.ecc_uncorrected, errors.get(uuid) if known else None
                        more = count is not None and before is not None and count > before
                        errors[uuid] = before if count is None else count
                        if known is None or known.fault != fault or uuid in well or more:
                            words = "lost" if fault == "lost" else "uncorrectable memory errors"
                            since[uuid] = ClosedGpu(
                                index=gpu.index, fault=fault, since_s=at_s, reason=words
                            )
                        well.pop(uuid, None)
                    elif known is not None:
                        first_s = well.setdefault(uuid, at_s)
                        if at_s - first_s >= self.rules.faults.heal_s:
                            del since[uuid], well[uuid]
        return since

    def closed_gpus(self, cluster: str) -> dict[str, tuple[ClosedGpu, ...]]:
        """The same by node, as reports list them."""
        found: dict[str, tuple[ClosedGpu, ...]] = {}
        for name, report in sorted(self.reports(cluster).items()):
            faulty = self.faulty(cluster, name)
            if here := tuple(faulty[gpu.uuid] for gpu in report.gpus if gpu.uuid in faulty):
                found[name] = here
        return found

    def seen_s(self, cluster: str) -> float:
        return max(seen_s for fact, seen_s in self.facts if fact.cluster == cluster)

    def interval_s(self, cluster: str) -> float:
        known = [f for f, _ in self.facts if isinstance(f, ClusterAlive) and f.cluster == cluster]
        return max(known, key=lambda fact: fact.stamp).interval_s if known else 0.0

    def expected(self, cluster: str) -> int:
        known = [f for f, _ in self.facts if isinstance(f, ClusterProfile) and f.cluster == cluster]
        return max(known, key=lambda fact: fact.stamp).nodes if known else 0

    # Scoring

    def score(self, cluster: str, now_s: float, stamp: Stamp, mix: Mix) -> ClusterScore:
        reports = self.reports(cluster)
        stale_after_s = max(self.rules.stale_after_s, 3 * self.interval_s(cluster))
        withdraw_after_s = max(self.rules.withdraw_after_s, 2 * stale_after_s)
        seen_s = self.seen_s(cluster)
        age_s = round(max(0.0, now_s - seen_s), 3)
        if now_s >= seen_s + withdraw_after_s:
            return ClusterScore(
                cluster=cluster,
                stamp=stamp,
                freshness="withdrawn",
                input_age_s=age_s,
                nodes=len(reports),
                note=f"no sign of life for {withdraw_after_s:g} s",
                closed_gpus=self.closed_gpus(cluster),
            )
        stale = now_s >= seen_s + stale_after_s
        usable = {name: r for name, r in reports.items() if r.ready and r.schedulable}
        left = {name: self.left(cluster, r) for name, r in usable.items()}
        over = [name for name, r in usable.items() if self.over_used(cluster, r)]
        notes = [f"no sign of life for {stale_after_s:g} s"] if stale else []
        if self.expected(cluster) > len(reports):
            notes.append(f"{self.expected(cluster) - len(reports)} nodes have not reported")
        if over:
            notes.append(f"{len(over)} nodes report less than what runs there")
        return ClusterScore(
            cluster=cluster,
            stamp=stamp,
            freshness="stale" if stale else "fresh",
            input_age_s=age_s,
            resources=self.resources(cluster, reports, usable),
            idle_gpu_percent=self.idle(cluster, usable, now_s),
            calm_gpu_percent=self.calm(cluster, usable, left, now_s),
            free_gpus=sum(milli for gpus in left.values() for _, milli in gpus) / 1000,
            largest_gang=self.gang(reports, usable, left, mix),
            fragmentation_percent=self.fragmentation(usable, left, mix),
            telemetry_nodes=sum(self.live(cluster, name, now_s) is not None for name in reports),
            nodes=len(reports),
            note="; ".join(notes),
            closed_gpus=self.closed_gpus(cluster),
        )

    def healthy(self, cluster: str, report: NodeReport) -> list[int]:
        faulty = self.faulty(cluster, report.node)
        return [at for at, g in enumerate(report.gpus) if g.healthy and g.uuid not in faulty]

    def raw_left(self, cluster: str, report: NodeReport) -> tuple[list[tuple[str, int]], int]:
        """(model, free milli) of each healthy GPU, perhaps below 0, and what could be charged to
        none: one milli at a time, each to the freest GPU, the last of equals."""
        mine = [report.gpus[at] for at in self.healthy(cluster, report)]
        left = [
            1000 - g.foreign_milli - sum(p.gpu_milli * p.gpus.count(g.index) for p in report.pods)
            for g in mine
        ]
        listed = {g.index for g in report.gpus}
        doubt = sum(p.gpu_milli for p in report.pods for index in p.gpus if index not in listed)
        doubt += max(0, report.foreign.gpu_milli - sum(g.foreign_milli for g in report.gpus))
        doubt += max(0, 1000 * len(left) - report.allocatable.gpu_milli)
        while doubt and any(milli > 0 for milli in left):
            best = max(range(len(left)), key=lambda at: (left[at], at))
            taken = min(doubt, left[best])
            left[best] -= taken
            doubt -= taken
        return [(g.model, milli) for g, milli in zip(mine, left, strict=True)], doubt

    def left(self, cluster: str, report: NodeReport) -> list[tuple[str, int]]:
        return [(model, max(0, milli)) for model, milli in self.raw_left(cluster, report)[0]]

    def free(self, cluster: str, report: NodeReport) -> dict[str, int]:
        left, debt = self.raw_left(cluster, report)
        return {
            "cpu": report.allocatable.cpu_milli
            - report.foreign.cpu_milli
            - sum(p.cpu_milli for p in report.pods),
            "mem": report.allocatable.memory_mib
            - report.foreign.memory_mib
            - sum(p.memory_mib for p in report.pods),
            "gpu": sum(milli for _, milli in left) - debt,
            "tpu": report.allocatable.tpus - report.foreign.tpus,
        }

    def over_used(self, cluster: str, report: NodeReport) -> bool:
        left, debt = self.raw_left(cluster, report)
        free = self.free(cluster, report)
        listed = {g.index for g in report.gpus}
        return (
            min(free["cpu"], free["mem"], free["tpu"]) < 0
            or debt > 0
            or any(milli < 0 for _, milli in left)
            or any(i not in listed and p.gpu_milli for p in report.pods for i in p.gpus)
        )

    def resources(
        self, cluster: str, reports: dict[str, NodeReport], usable: dict[str, NodeReport]
    ) -> dict[str, ResourceScore]:
        if not reports:
            return {}
        scores: dict[str, ResourceScore] = {}
        for name, unit in (("cpu", 1000), ("mem", 1), ("gpu", 1000), ("tpu", 1)):
            free = [self.free(cluster, report)[name] for report in usable.values()]
            for scope, amount in (("Node", max([0, *free])), ("Cluster", sum(free))):
                full = self.full_scale(name, scope)
                scores[f"{name}{scope}Available"] = ResourceScore(
                    score=ocm(amount / unit, full), available=amount / unit, full_scale=full
                )
        return scores

    def full_scale(self, name: str, scope: str) -> float:
        rules = self.rules
        fixed = rules.node_full_scale if scope == "Node" else rules.cluster_full_scale
        if getattr(fixed, name):
            return float(getattr(fixed, name))
        fields = {"cpu": "cpu_milli", "mem": "memory_mib", "gpu": "gpu_milli", "tpu": "tpus"}
        unit = 1000 if name in ("cpu", "gpu") else 1
        amounts = [
            [getattr(r.allocatable, fields[name]) for r in self.reports(c).values()]
            for c in self.clusters()
        ]
        if scope == "Node":
            largest = max((a for cluster in amounts for a in cluster), default=0)
        else:
            largest = max((sum(cluster) for cluster in amounts), default=0)
        return nice(Fraction(largest, unit)) or {"mem": 1024.0 * 1024, "cpu": 100.0}.get(name, 20.0)

    def idle(self, cluster: str, usable: dict[str, NodeReport], now_s: float) -> float | None:
        shares: list[int] = []
        healthy = 0
        for name, report in usable.items():
            mine = [report.gpus[at].uuid for at in self.healthy(cluster, report)]
            healthy += len(mine)
            told = self.live(cluster, name, now_s)
            shares += [
                100_000 - round(1000 * reading.utilization_percent)
                for reading in (told.gpus if told else ())
                if reading.uuid in mine and reading.utilization_percent is not None
            ]
        return round(sum(shares) / (1000 * healthy), 3) if shares else None

    def calm(
        self,
        cluster: str,
        usable: dict[str, NodeReport],
        left: dict[str, list[tuple[str, int]]],
        now_s: float,
    ) -> float | None:
        """One shared GPU after the other: who measures it, and is that below 70 %?"""
        if self.idle(cluster, usable, now_s) is None:
            return None
        calm = []
        for name, report in usable.items():
            told = self.live(cluster, name, now_s)
            gpus = told.gpus if told else ()
            mine = [report.gpus[at].uuid for at in self.healthy(cluster, report)]
            for uuid, (_, milli) in zip(mine, left[name], strict=True):
                if milli in (0, 1000):
                    continue
                busy = [g.utilization_percent for g in gpus if g.uuid == uuid]
                calm.append(any(percent is not None and percent < 70 for percent in busy))
        return round(100 * sum(calm) / len(calm), 3) if calm else 100.0

    def gang(
        self,
        reports: dict[str, NodeReport],
        usable: dict[str, NodeReport],
        left: dict[str, list[tuple[str, int]]],
        mix: Mix,
    ) -> dict[str, int]:
        pods = {g.model: 0 for report in reports.values() for g in report.gpus}
        for name, report in usable.items():
            for model in pods:
                free = self.free(report.cluster, report)
                cpu, memory, count = free["cpu"], free["mem"], 0
                for gpu_model, milli in left[name]:
                    fits = cpu >= mix.gang_cpu_milli and memory >= mix.gang_memory_mib
                    if (gpu_model, milli) == (model, 1000) and fits:
                        count += 1
                        cpu -= mix.gang_cpu_milli
                        memory -= mix.gang_memory_mib
                pods[model] += count
        return pods

    def fragmentation(
        self,
        usable: dict[str, NodeReport],
        left: dict[str, list[tuple[str, int]]],
        mix: Mix,
    ) -> float | None:
        total = sum(milli for gpus in left.values() for _, milli in gpus)
        if not total:
            return None
        stuck = 0.0
        for name, report in usable.items():
            free = self.free(report.cluster, report)
            for pod in mix.pods:
                shape = pod.shape
                large = [
                    milli
                    for model, milli in left[name]
                    if milli >= shape.gpu_milli and (not shape.models or model in shape.models)
                ]
                hosts = (
                    len(large) >= shape.gpus
                    and free["cpu"] >= shape.cpu_milli
                    and free["mem"] >= pod.memory_mib
                )
                all_left = sum(milli for _, milli in left[name])
                stuck += pod.share * (all_left - sum(large) if hosts else all_left)
        return 100 * stuck / total


def same_subject(one: InputFact, other: InputFact) -> bool:
    if isinstance(one, NodeReport | NodeGone) and isinstance(other, NodeReport | NodeGone):
        return (one.cluster, one.node) == (other.cluster, other.node)
    return type(one) is type(other) and one.cluster == other.cluster


def ocm(value: float, full: float) -> int:
    if value > full:
        return 100
    return -100 if value <= 0 else math.trunc(200 * value / full - 100)


def nice(amount: Fraction) -> float:
    if amount <= 0:
        return 0.0
    steps: Iterable[Fraction] = (
        Fraction(step) * Fraction(10) ** power for power in range(-4, 13) for step in (1, 2, 5)
    )
    return float(next(step for step in steps if amount <= step))
