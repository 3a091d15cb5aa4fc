"""Sums of each job's GPU usage, published twice a minute. Pure.

A sample counts on arrival: attribution.py gives its parts to the pods' jobs, by device. After
`FIGURES_S` the sums become one message and restart, so each sample is in exactly one message.
Example: at 30 s job a had samples of 40 % and 60 % on one GPU, so its message has 50 %. A job
without samples has no message, because unknown is not zero.

Contradictions are reported only if they last, because sources see starts and ends at different
times.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from berthmaster.lib.messages.telemetry import (
    FIGURES_S,
    GpuUse,
    HostUse,
    JobFigures,
    JobOwner,
    NodeTelemetry,
    PodUsage,
)
from berthmaster.lib.profiles.metrics import HOST_BOUNDS
from berthmaster.worker.job_metrics.core.attribution import Disagreement, Part, Wrong, attribute
from berthmaster.worker.job_metrics.core.pods import Book, JobName, Owner

LASTS_S: Final = 20.0  # duration of a reported contradiction
FORGET_S: Final = 60.0  # time until a contradiction, or a silent node, is forgotten
ENDED_S: Final = 10.0  # without any pod: pods are made anew within seconds
MAX_JOBS: Final = 20_000
MAX_NODES_TOLD: Final = 64
MAX_WRONG_TOLD: Final = 8  # of one job, in a message
HOLDERS_LACK: Final = "who has which GPU"


# Of a device alone, each a mean over the while.
COUNTED: Final = (
    "sm_active_percent",
    "tensor_active_percent",
    "dram_active_percent",
    "memory_bandwidth_percent",
)


class _Mean:
    __slots__ = ("count", "sum")

    def __init__(self) -> None:
        self.sum, self.count = 0.0, 0

    def add(self, value: float | None) -> None:
        if value is not None:
            self.sum += value
            self.count += 1

    @property
    def value(self) -> float | None:
        return self.sum / self.count if self.count else None


def _means(names: Iterable[str]) -> dict[str, _Mean]:
    return {name: _Mean() for name in names}


@dataclass
class _Device:
    busy: _Mean = field(default_factory=_Mean)
    busy_max: float = 0.0
    counted: dict[str, _Mean] = field(default_factory=lambda: _means(COUNTED))
    pcie: _Mean = field(default_factory=_Mean)
    fullest_percent: float | None = None
    power_w: _Mean = field(default_factory=_Mean)
    used_mib: int | None = None
    total_mib: int | None = None

    def add(self, part: Part) -> None:
        self.busy.add(part.utilization_percent)
        self.busy_max = max(self.busy_max, part.utilization_percent or 0.0)
        for name, mean in self.counted.items():
            mean.add(getattr(part, name))
        self.pcie.add(part.pcie_bytes_per_s)
        self.power_w.add(part.power_w)
        used, total = part.memory_used_mib, part.memory_total_mib
        self.used_mib, self.total_mib = used, total
        if used is not None and total:
            self.fullest_percent = max(self.fullest_percent or 0.0, 100 * used / total)


@dataclass
class _Job:
    """One job in a window, with longer-lived data."""

    name: JobName
    began_s: float
    devices: dict[tuple[str, str, str], _Device] = field(default_factory=dict)  # node, pod, device
    pods: dict[tuple[str, str], dict[str, _Mean]] = field(default_factory=dict)  # node, pod
    last: GpuUse = field(default_factory=GpuUse)
    counter: int = 0
    idle_since_s: float | None = None
    without_pods_since_s: float | None = None


@dataclass
class _Seen:
    """A contradiction, with first and last sight."""

    wrong: Wrong
    first_s: float
    last_s: float
    told: bool = False


@dataclass
class _Node:
    """Order of a node's messages."""

    epoch: int
    counter: int
    changed_s: float  # first message of this process run of its agent
    heard_s: float


class Meter:
    def __init__(
        self,
        cluster: str,
        *,
        epoch: int,
        idle_percent: float,
        idle_limit_s: float,
        every_s: float = FIGURES_S,
    ) -> None:
        """``idle_percent``: a device below it does nothing. ``idle_limit_s``: a job all of whose
        devices do nothing for so long is told; 0 = never."""
        self.book = Book()
        self.dropped: Counter[str] = Counter()  # ignored messages by reason
        self._cluster = cluster
        self._epoch = epoch
        self._idle_percent = idle_percent
        self._idle_limit_s = idle_limit_s
        self._every_s = every_s
        self._jobs: dict[tuple[str, ...], _Job] = {}
        self._nodes: dict[str, _Node] = {}
        self._gpus: dict[str, tuple[str, float]] = {}  # UUID -> node, when
        self._owned: dict[Owner, list[_Job]] = {}  # as of the last round
        self._wrong: dict[tuple[Disagreement, str, str], _Seen] = {}

    # Input

    def on_node(self, told: NodeTelemetry, now_s: float) -> set[str]:
        if told.cluster != self._cluster:
            self.dropped["other_cluster"] += 1
            return set()
        if not self._is_next(told, now_s):
            return set()
        known = not any(lack.startswith(HOLDERS_LACK) for lack in told.lacks)
        given = known and told.source != "emulated"
        seen: set[str] = set()
        for gpu in told.gpus:
            if not self._is_of(gpu.uuid, told.node, now_s):
                continue
            parts, wrong = attribute(gpu, told.node, self.book, told_of_holders=given)
            for one in wrong:
                self._disagree(one, told.node, now_s)
            for part in parts:
                seen.add(part.pod.uid)
                self._add(part, told.node, now_s)
        for usage in told.pods:
            self._add_usage(usage, told.node, now_s)
        return seen

    def _is_next(self, told: NodeTelemetry, now_s: float) -> bool:
        known = self._nodes.get(told.node)
        if known is None or now_s - known.heard_s > FORGET_S or told.epoch > known.epoch:
            self._nodes[told.node] = _Node(told.epoch, told.counter, now_s, now_s)
            return True
        if told.epoch < known.epoch:
            self.dropped["older_life"] += 1
            if now_s - known.changed_s > LASTS_S:  # not the last words of the life before
                text = f"two agents tell of node {told.node}: one has another's --node"
                self._disagree(Wrong(Disagreement.TWO_AGENTS, told.node, text), told.node, now_s)
            return False
        if told.counter <= known.counter:
            self.dropped["repeated"] += 1
            return False
        known.counter, known.heard_s = told.counter, now_s
        return True

    def _is_of(self, uuid: str, node: str, now_s: float) -> bool:
        """Return whether the GPU belongs to this node: to its first reporter, until
        that is silent.
        """
        if not uuid:
            return True
        other, at_s = self._gpus.get(uuid, (node, now_s))
        if other != node and now_s - at_s < FORGET_S:
            text = f"{uuid} is told of by {other} and by {node}: one has another's --node"
            self._disagree(Wrong(Disagreement.GPU_TWICE, uuid, text), node, now_s)
            return False
        self._gpus[uuid] = (node, now_s)
        return True

    def _job(self, name: JobName, now_s: float) -> _Job | None:
        job = self._jobs.get(name.key)
        if job is None:
            if len(self._jobs) >= MAX_JOBS:
                self.dropped["too_many_jobs"] += 1
                return None
            job = self._jobs[name.key] = _Job(name, now_s)
        job.name = name
        return job

    def _add(self, part: Part, node: str, now_s: float) -> None:
        job = self._job(part.pod.job, now_s)
        if job is not None:
            key = (node, part.pod.uid, part.device)
            job.devices.setdefault(key, _Device()).add(part)

    def _add_usage(self, usage: PodUsage, node: str, now_s: float) -> None:
        """What a pod used of its node: of those with GPUs, and of jobs that came through us."""
        pod = self.book.get(usage.pod_uid)
        if pod is None or pod.node != node:
            return  # the node's own pods are none of a job
        if not pod.job.tenant and pod.job.key not in self._jobs:
            return
        job = self._job(pod.job, now_s)
        if job is None:
            return
        means = job.pods.setdefault((node, pod.uid), _means(HOST_BOUNDS))
        for name, bounds in HOST_BOUNDS.items():
            value = getattr(usage, name)
            if value is not None and not bounds.hold(value):
                self.dropped[f"absurd_{name}"] += 1
                continue
            means[name].add(value)

    def _disagree(self, wrong: Wrong, node: str, now_s: float) -> None:
        key = (wrong.kind, wrong.about, node)
        seen = self._wrong.get(key)
        if seen is None:
            if len(self._wrong) < MAX_JOBS:
                self._wrong[key] = _Seen(wrong, now_s, now_s)
        else:
            seen.wrong, seen.last_s = wrong, now_s

    # Output

    @property
    def jobs(self) -> int:
        """Return the number of jobs with metrics."""
        return len(self._jobs)

    def due_s(self) -> float:
        """When a job is due, or may have ended."""
        return min((job.began_s + self._every_s for job in self._jobs.values()), default=1e18)

    def take(self, now_s: float) -> list[JobFigures]:
        """Return the messages of all due jobs, and the last ones of ended jobs."""
        self._forget(now_s)
        self._owned = {}
        for job in self._jobs.values():
            if job.name.owner is not None:
                self._owned.setdefault(job.name.owner, []).append(job)
        due: list[_Job] = []
        told: list[JobFigures] = []
        for key, job in list(self._jobs.items()):
            if self.book.of_job(key):
                job.without_pods_since_s = None
            elif job.without_pods_since_s is None:
                job.without_pods_since_s = now_s
            elif now_s - job.without_pods_since_s >= ENDED_S:
                del self._jobs[key]
                if job.devices:  # short jobs have no other message
                    job.last = _use(job.devices.values())
                told.append(self._figures(job, now_s, ended=True))
                continue
            if now_s - job.began_s >= self._every_s:
                if job.devices or job.pods:
                    job.last = _use(job.devices.values())
                    due.append(job)
                else:
                    job.began_s = now_s  # nothing was measured: nothing is told
        told += [self._figures(job, now_s) for job in due]
        for job in due:
            job.devices, job.pods, job.began_s = {}, {}, now_s
        return told

    def _figures(self, job: _Job, now_s: float, *, ended: bool = False) -> JobFigures:
        name, use = job.name, job.last
        until_s = now_s
        if ended and job.without_pods_since_s is not None:
            until_s = max(job.began_s, job.without_pods_since_s)
        window_s = until_s - job.began_s
        job.counter += 1
        most = use.utilization_max_percent
        if most is not None:
            if most >= self._idle_percent:
                job.idle_since_s = None
            elif job.idle_since_s is None:
                job.idle_since_s = job.began_s
        since_s, limit_s = job.idle_since_s, self._idle_limit_s
        long = since_s is not None and 0 < limit_s <= now_s - since_s and most is not None
        pods = {pod for _, pod, _ in job.devices}
        nodes = sorted({node for node, *_ in (*job.devices, *job.pods)})
        return JobFigures(
            cluster=self._cluster,
            namespace=name.namespace,
            kind=name.job.kind,
            name=name.job.name,
            uid=name.job.uid,
            tenant=name.tenant,
            id=name.id,
            attempt=name.attempt,
            epoch=self._epoch,
            counter=job.counter,
            observed_at_s=now_s,
            window_s=round(window_s, 1),
            pods=len(pods),
            nodes=tuple(nodes[:MAX_NODES_TOLD]),
            use=use,
            host=_host_use(job.pods.values()),
            idle_since_s=since_s,
            idle_for_long=long and not ended,
            idle_limit_s=limit_s,
            disagreements=self._about(pods),
            ended=ended,
            owner=self._owner(name.owner),
        )

    def _owner(self, owner: Owner | None) -> JobOwner | None:
        if owner is None:
            return None
        own = [job.last for job in self._owned.get(owner, ())]
        return JobOwner(
            kind=owner.kind, name=owner.name, uid=owner.uid, jobs=len(own), use=_together(own)
        )

    def _about(self, pods: set[str]) -> tuple[str, ...]:
        found = [seen.wrong.text for seen in self._lasting() if seen.wrong.about in pods]
        return tuple(sorted(found)[:MAX_WRONG_TOLD])

    # Contradictions

    def _lasting(self) -> Iterable[_Seen]:
        return (seen for seen in self._wrong.values() if seen.last_s - seen.first_s >= LASTS_S)

    def disagreements(self) -> Counter[Disagreement]:
        """How many of each kind there are at present."""
        return Counter(seen.wrong.kind for seen in self._lasting())

    def take_new_disagreements(self) -> list[Wrong]:
        """Return unreported contradictions, each once until it was gone for a while."""
        new = [seen for seen in self._lasting() if not seen.told]
        for seen in new:
            seen.told = True
        return [seen.wrong for seen in new]

    def _forget(self, now_s: float) -> None:
        for key, seen in list(self._wrong.items()):
            if now_s - seen.last_s > FORGET_S:
                del self._wrong[key]
        for node, known in list(self._nodes.items()):
            if now_s - known.heard_s > FORGET_S:
                del self._nodes[node]
        for uuid, (_, at_s) in list(self._gpus.items()):
            if now_s - at_s > FORGET_S:
                del self._gpus[uuid]


def _use(devices: Iterable[_Device]) -> GpuUse:
    every = list(devices)
    busy = [one for one in every if one.busy.count]
    used = [one.used_mib for one in every if one.used_mib is not None]
    total = [one.total_mib for one in every if one.total_mib is not None]
    fullest = [one.fullest_percent for one in every if one.fullest_percent is not None]
    return GpuUse(
        gpus=len(every),
        measured=len(busy),
        utilization_percent=_mean_of(one.busy.value for one in busy),
        utilization_max_percent=_percent(max(one.busy_max for one in busy)) if busy else None,
        **{name: _mean_of(one.counted[name].value for one in every) for name in COUNTED},
        pcie_bytes_per_s=_sum_of(one.pcie.value for one in every),
        memory_max_percent=_percent(max(fullest)) if fullest else None,
        memory_used_mib=sum(used) if used else None,
        memory_total_mib=sum(total) if total else None,
        power_w=_sum_of(one.power_w.value for one in every),
    )


def _mean_of(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _percent(sum(known) / len(known)) if known else None


def _sum_of(values: Iterable[float | None], digits: int = 1) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known), digits) if known else None


def _host_use(pods: Iterable[Mapping[str, _Mean]]) -> HostUse | None:
    """The sum of the pods' means; None where nothing of it was measured."""
    every = list(pods)
    found = {
        name: _sum_of((means[name].value for means in every), 4 if name == "cpu_cores" else 1)
        for name in HOST_BOUNDS
    }
    is_measured = any(value is not None for value in found.values())
    return HostUse(pods=len(every), **found) if is_measured else None


def _together(uses: Iterable[GpuUse]) -> GpuUse:
    every = list(uses)
    busy = [one for one in every if one.utilization_percent is not None]
    measured = sum(one.measured for one in busy)
    used = [one.memory_used_mib for one in every if one.memory_used_mib is not None]
    total = [one.memory_total_mib for one in every if one.memory_total_mib is not None]
    most = [one.utilization_max_percent for one in busy if one.utilization_max_percent is not None]
    fullest = [one.memory_max_percent for one in every if one.memory_max_percent is not None]
    shares = [(one.utilization_percent or 0.0, one.measured) for one in busy]
    return GpuUse(
        gpus=sum(one.gpus for one in every),
        measured=measured,
        utilization_percent=_mean(shares),
        utilization_max_percent=max(most, default=None),
        **{name: _mean(_weighted(busy, name)) for name in COUNTED},
        pcie_bytes_per_s=_sum_of(one.pcie_bytes_per_s for one in every),
        memory_max_percent=max(fullest, default=None),
        memory_used_mib=sum(used) if used else None,
        memory_total_mib=sum(total) if total else None,
        power_w=_sum_of(one.power_w for one in every),
    )


def _weighted(uses: Iterable[GpuUse], name: str) -> list[tuple[float, int]]:
    return [(value, one.measured) for one in uses if (value := getattr(one, name)) is not None]


def _mean(weighted: Sequence[tuple[float, int]]) -> float | None:
    weight = sum(each for _, each in weighted)
    return _percent(sum(value * each for value, each in weighted) / weight) if weight else None


def _percent(value: float) -> float:
    return min(100.0, round(value, 1))
