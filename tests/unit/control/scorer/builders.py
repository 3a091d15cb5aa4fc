"""Facts and telemetry that are right as they are: a test states only what it is about."""

from typing import Any

from berthmaster.control.scorer.core.events import FactSeen, InputFact, Led, TelemetryHeard, Tick
from berthmaster.control.scorer.core.rules import Amount, ScoringRules
from berthmaster.control.scorer.core.scorer import Scorer
from berthmaster.lib.messages.fleet import (
    Amounts,
    ClusterAlive,
    ClusterProfile,
    ClusterScore,
    GpuDevice,
    NodeGone,
    NodeReport,
    PodUse,
    Stamp,
)
from berthmaster.lib.messages.telemetry import GpuReading, NodeTelemetry

START_S = 1_000_000.0
OCM_SCALE = Amount(cpu=100, mem=1024 * 1024, gpu=20, tpu=20)
# Every change is told after 4 ms; nothing but changes is told within a test's seconds.
EAGER = ScoringRules(
    dead_band=0.0,
    cluster_full_scale=OCM_SCALE,
    node_full_scale=OCM_SCALE,
    refresh_s=1000.0,
    stale_after_s=15.0,
    withdraw_after_s=120.0,
)


def stamp(counter: int, epoch: int = 1) -> Stamp:
    return Stamp(epoch=epoch, counter=counter)


def gpu(index: int, node: str = "n1", model: str = "A100", **fields: Any) -> GpuDevice:
    return GpuDevice(
        index=index, uuid=f"GPU-{node}-{index}", model=model, memory_mib=81_920, **fields
    )


def report(
    node: str = "n1",
    *,
    cluster: str = "east",
    counter: int = 1,
    gpus: int | tuple[GpuDevice, ...] = 8,
    cpu: float = 128.0,
    memory_gib: float = 1024.0,
    tpus: int = 0,
    pods: tuple[PodUse, ...] = (),
    foreign: Amounts | None = None,
    **fields: Any,
) -> NodeReport:
    devices = tuple(gpu(at, node) for at in range(gpus)) if isinstance(gpus, int) else gpus
    return NodeReport(
        cluster=cluster,
        node=node,
        stamp=stamp(counter),
        observed_at_s=START_S,
        allocatable=Amounts(
            cpu_milli=round(cpu * 1000),
            memory_mib=round(memory_gib * 1024),
            gpu_milli=1000 * len(devices),
            tpus=tpus,
        ),
        foreign=foreign or Amounts(),
        gpus=devices,
        pods=pods,
        **fields,
    )


def pod(*gpus: int, milli: int = 1000, cpu: float = 1.0, memory_gib: float = 1.0) -> PodUse:
    return PodUse(
        tenant="ml",
        workload="train",
        attempt=1,
        pod=f"main-{gpus}",
        cpu_milli=round(cpu * 1000),
        memory_mib=round(memory_gib * 1024),
        gpu_milli=milli,
        gpus=gpus,
    )


def alive(
    counter: int = 1, *, cluster: str = "east", interval_s: float = 5.0, epoch: int = 1
) -> ClusterAlive:
    return ClusterAlive(
        cluster=cluster,
        stamp=stamp(counter, epoch),
        observed_at_s=START_S,
        interval_s=interval_s,
    )


def profile(counter: int = 1, *, cluster: str = "east", nodes: int = 1) -> ClusterProfile:
    return ClusterProfile(cluster=cluster, stamp=stamp(counter), observed_at_s=START_S, nodes=nodes)


def gone(node: str = "n1", *, cluster: str = "east", counter: int = 9) -> NodeGone:
    return NodeGone(cluster=cluster, node=node, stamp=stamp(counter), observed_at_s=START_S)


def reading(index: int, percent: float | None, node: str = "n1", **fields: Any) -> GpuReading:
    return GpuReading(
        index=index,
        uuid=f"GPU-{node}-{index}",
        model="A100",
        utilization_percent=percent,
        **fields,
    )


def telemetry(
    *percents: float | None,
    node: str = "n1",
    cluster: str = "east",
    counter: int = 1,
    epoch: int = 1,
    **fields: Any,
) -> NodeTelemetry:
    gpus = tuple(reading(at, percent, node) for at, percent in enumerate(percents))
    told: dict[str, Any] = {
        "cluster": cluster,
        "node": node,
        "epoch": epoch,
        "counter": counter,
        "observed_at_s": START_S,
        "interval_s": 1.0,
        "source": "emulated",
        "gpus": gpus,
    }
    return NodeTelemetry(**(told | fields))


class Story:
    """A scorer, its clock, and what it told; time passes only when a test says so."""

    def __init__(self, rules: ScoringRules = EAGER, *, epoch: int | None = 7) -> None:
        self.scorer = Scorer(rules)
        self.now_s = START_S
        if epoch is not None:
            self.scorer.handle(Led(epoch), self.now_s)

    def fact(self, fact: InputFact) -> list[ClusterScore]:
        """The fact is stored now; what is told by the time the window is over."""
        self.scorer.handle(FactSeen(fact, self.now_s), self.now_s)
        return self.wait(0.005)

    def hear(self, told: NodeTelemetry) -> list[ClusterScore]:
        self.scorer.handle(TelemetryHeard(told), self.now_s)
        return self.wait(0.005)

    def wait(self, for_s: float) -> list[ClusterScore]:
        """Let time pass, waking the core exactly when it asked for it."""
        end_s = self.now_s + for_s
        told: list[ClusterScore] = []
        for _ in range(10_000):
            wake_s = self.scorer.wake_at_s
            if wake_s is None or wake_s > end_s:
                self.now_s = end_s
                return told
            self.now_s = max(self.now_s, wake_s)
            told += [put.fact for put in self.scorer.handle(Tick(), self.now_s)]
        raise AssertionError("the core asks to be woken without end")

    def score(self, cluster: str = "east") -> ClusterScore:
        return self.scorer.score(cluster, self.now_s, stamp(0, 0))
