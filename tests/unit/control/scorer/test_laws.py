"""Laws: the quick core tells what the slow twin does, whatever comes in whatever order."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from berthmaster.control.scorer.core.events import (
    Event,
    FactSeen,
    InputFact,
    Led,
    TelemetryHeard,
    Tick,
    WorkloadSubmitted,
)
from berthmaster.control.scorer.core.gpu_faults import FaultRules
from berthmaster.control.scorer.core.instructions import PutScore
from berthmaster.control.scorer.core.rules import ScoringRules
from berthmaster.control.scorer.core.scorer import Scorer
from berthmaster.lib.messages.fleet import Amounts, ClusterScore, GpuDevice, NodeReport, PodUse
from berthmaster.lib.messages.telemetry import GpuReading, NodeTelemetry
from berthmaster.lib.messages.workload import PodSet
from tests.unit.control.scorer.builders import (
    START_S,
    alive,
    gone,
    gpu,
    profile,
    report,
    stamp,
    telemetry,
)
from tests.unit.control.scorer.reference import Reference

RULES = ScoringRules(mix_pods=5, mix_interval_s=1, slice_nodes=3, faults=FaultRules(heal_s=1.5))
CLUSTERS = ("east", "west.1 b")
NODES = ("n1", "n2", "n3")
MODELS = ("A100", "T4")


@st.composite
def reports(draw: st.DrawFn) -> NodeReport:
    node = draw(st.sampled_from(NODES))
    devices: list[GpuDevice] = [
        gpu(
            at,
            node,
            draw(st.sampled_from(MODELS)),
            healthy=draw(st.integers(0, 5)) > 0,
            foreign_milli=draw(st.sampled_from((0, 0, 0, 250, 1000))),
        )
        for at in range(draw(st.integers(0, 4)))
    ]
    pods = tuple(
        PodUse(
            tenant="t",
            workload="w",
            attempt=1,
            pod=f"main-{at}",
            cpu_milli=draw(st.integers(0, 20_000)),
            memory_mib=draw(st.integers(0, 100_000)),
            gpu_milli=draw(st.sampled_from((0, 1, 333, 1000))),
            gpus=tuple(draw(st.lists(st.integers(0, 5), max_size=3))),
        )
        for at in range(draw(st.integers(0, 3)))
    )
    told = report(
        node,
        cluster=draw(st.sampled_from(CLUSTERS)),
        counter=draw(st.integers(1, 1000)),
        gpus=tuple(devices),
        cpu=draw(st.integers(0, 64)),
        memory_gib=draw(st.integers(0, 256)),
        tpus=draw(st.integers(0, 4)),
        pods=pods,
        foreign=Amounts(
            cpu_milli=draw(st.integers(0, 30_000)),
            gpu_milli=draw(st.sampled_from((0, 500, 2000))),
        ),
        ready=draw(st.integers(0, 5)) > 0,
        schedulable=draw(st.integers(0, 5)) > 0,
    )
    if draw(st.integers(0, 5)) == 0:
        told = replace(told, allocatable=replace(told.allocatable, gpu_milli=1000))
    return told


@st.composite
def other_facts(draw: st.DrawFn) -> InputFact:
    cluster, counter = draw(st.sampled_from(CLUSTERS)), draw(st.integers(1, 1000))
    made: list[InputFact] = [
        alive(counter, cluster=cluster, interval_s=draw(st.sampled_from((1.0, 9.0)))),
        profile(counter, cluster=cluster, nodes=draw(st.integers(0, 5))),
        gone(draw(st.sampled_from(NODES)), cluster=cluster, counter=counter),
    ]
    return draw(st.sampled_from(made))


facts = reports() | reports() | other_facts()


@st.composite
def tellings(draw: st.DrawFn) -> NodeTelemetry:
    node = draw(st.sampled_from(NODES))
    gpus = tuple(
        GpuReading(
            index=at,
            uuid=f"GPU-{node}-{at}",
            model="A100",
            utilization_percent=draw(st.none() | st.floats(0, 100)),
            health=draw(st.sampled_from(("ok", "ok", "ok", "degraded", "lost"))),
            ecc_uncorrected=draw(st.sampled_from((None, 0, 1, 2))),
        )
        for at in range(draw(st.integers(0, 5)))
    )
    return telemetry(node=node, cluster=draw(st.sampled_from(CLUSTERS)), gpus=gpus)


@dataclass(frozen=True)
class Pause:
    for_s: float


pauses = st.builds(Pause, st.sampled_from((0.001, 0.1, 1.0, 4.0, 20.0, 130.0)))
submissions = st.builds(
    PodSet,
    count=st.integers(1, 20),
    cpu_milli=st.sampled_from((1000, 16_000)),
    gpus=st.integers(0, 4),
    gpu_milli=st.sampled_from((250, 1000)),
    gpu_models=st.sampled_from(((), ("T4",))),
)
steps = st.lists(facts | tellings() | pauses | submissions, min_size=1, max_size=30)


class Pair:
    """The quick one and the slow one, told the same."""

    def __init__(self) -> None:
        self.quick = Scorer(RULES)
        self.slow = Reference(RULES)
        self.now_s = START_S
        self.counter = 0
        self.told: dict[str, PutScore] = {}
        self.quick.handle(Led(1), self.now_s)

    def step(self, what: Any) -> None:
        match what:
            case Pause():
                self.wait(what.for_s)
            case PodSet():
                self.give(WorkloadSubmitted((what,), self.now_s))
            case NodeTelemetry():
                self.counter += 1
                heard = replace(what, counter=self.counter)
                self.give(TelemetryHeard(heard))
                self.slow.hear(heard, self.now_s)
            case _:
                self.give(FactSeen(what, self.now_s))
                self.slow.fact(what, self.now_s, self.now_s)

    def give(self, event: Event) -> None:
        for put in self.quick.handle(event, self.now_s):
            self.told[put.fact.cluster] = put
            assert put.fact == self.quick.score(put.fact.cluster, self.now_s, put.fact.stamp)

    def wait(self, for_s: float) -> None:
        end_s = self.now_s + for_s
        for _ in range(10_000):
            wake_s = self.quick.wake_at_s
            if wake_s is None or wake_s > end_s:
                self.now_s = end_s
                return
            self.now_s = max(self.now_s, wake_s)
            self.give(Tick())
        raise AssertionError("the core asks to be woken without end")

    def check(self) -> None:
        """Once everything is settled, both say the same, and the readers know it but for the
        dead band."""
        self.wait(1.5)
        for cluster in self.slow.clusters():
            quick = self.quick.score(cluster, self.now_s, stamp(0))
            slow = self.slow.score(cluster, self.now_s, stamp(0), self.quick.mix)
            for score in (quick, slow):
                percent = score.fragmentation_percent
                assert percent is None or 0 <= percent <= 100 + 1e-9
            assert quick.fragmentation_percent == pytest.approx(
                slow.fragmentation_percent, abs=0.01
            )
            assert replace(quick, fragmentation_percent=None) == replace(
                slow, fragmentation_percent=None
            )
            told = self.told[cluster].fact
            assert (told.freshness, told.nodes) == (quick.freshness, quick.nodes)
            assert told.idle_gpu_percent == pytest.approx(quick.idle_gpu_percent, abs=1.01)
            assert told.calm_gpu_percent == pytest.approx(quick.calm_gpu_percent, abs=1.01)


@given(steps)
@settings(max_examples=150, deadline=None)
def test_incremental_scores_are_those_from_scratch(told: list[Any]) -> None:
    pair = Pair()
    for what in told:
        pair.step(what)
    pair.check()


def distinct(told: list[InputFact]) -> list[InputFact]:
    """No two facts of one subject under one stamp: a writer never does that."""
    return [
        replace(fact, stamp=stamp(counter * 1000 + fact.stamp.counter))
        for counter, fact in zip(range(len(told)), told, strict=True)
    ]


@given(st.lists(facts, min_size=1, max_size=15).map(distinct), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_facts_may_come_in_any_order_and_several_times(told: list[InputFact], random: Any) -> None:
    shuffled = [*told, *random.sample(told, len(told) // 2)]
    random.shuffle(shuffled)
    ends = []
    for order in (told, shuffled):
        scorer = Scorer(RULES)
        for fact in order:
            scorer.handle(FactSeen(fact, START_S), START_S)
        scorer.handle(Tick(), START_S + 1)
        ends.append({fact.cluster: scorer.score(fact.cluster, START_S, stamp(0)) for fact in told})
    assert ends[0] == ends[1]


def bounded(score: ClusterScore) -> None:
    for each in score.resources.values():
        assert -100 <= each.score <= 100
        assert each.full_scale > 0
    assert score.idle_gpu_percent is None or 0 <= score.idle_gpu_percent <= 100
    assert (score.calm_gpu_percent is None) == (score.idle_gpu_percent is None)
    assert score.calm_gpu_percent is None or 0 <= score.calm_gpu_percent <= 100
    assert score.fragmentation_percent is None or 0 <= score.fragmentation_percent <= 100
    assert all(pods >= 0 for pods in score.largest_gang.values())
    assert 0 <= score.telemetry_nodes <= score.nodes
    assert 0 <= sum(score.largest_gang.values()) <= score.free_gpus + 1e-9


def no_better(later: ClusterScore, before: ClusterScore) -> None:
    """In no figure does the later score look better; unknown is not better than known."""
    order = ("withdrawn", "stale", "fresh")
    assert order.index(later.freshness) <= order.index(before.freshness)
    assert later.free_gpus <= before.free_gpus
    assert all(pods <= before.largest_gang[model] for model, pods in later.largest_gang.items())
    assert all(s.score <= before.resources[name].score for name, s in later.resources.items())
    if before.idle_gpu_percent is None:
        assert later.idle_gpu_percent is None
    elif later.idle_gpu_percent is not None:
        assert later.idle_gpu_percent <= before.idle_gpu_percent
        assert later.calm_gpu_percent is not None
        assert before.calm_gpu_percent is not None
        assert later.calm_gpu_percent <= before.calm_gpu_percent
    assert later.telemetry_nodes <= before.telemetry_nodes


@given(steps, st.lists(st.sampled_from((0.5, 2.0, 7.0, 40.0)), min_size=1, max_size=6))
@settings(max_examples=100, deadline=None)
def test_silence_never_makes_a_cluster_look_better(told: list[Any], silences: list[float]) -> None:
    pair = Pair()
    for what in told:
        pair.step(what)
    pair.wait(1.5)
    for silence_s in silences:
        before = {c: pair.quick.score(c, pair.now_s, stamp(0)) for c in pair.slow.clusters()}
        pair.wait(silence_s)
        for cluster, score in before.items():
            later = pair.quick.score(cluster, pair.now_s, stamp(0))
            bounded(score)
            no_better(later, score)


@given(st.lists(reports(), min_size=1, max_size=8), st.data())
@settings(max_examples=60, deadline=None)
def test_a_pod_more_never_makes_a_cluster_look_better(
    told: list[NodeReport], data: st.DataObject
) -> None:
    pair = Pair()
    for fact in told:
        pair.step(fact)
    pair.wait(1.0)
    known = pair.slow.reports(told[-1].cluster)
    last = data.draw(st.sampled_from(sorted(known.values(), key=lambda r: r.node)))
    before = pair.quick.score(last.cluster, pair.now_s, stamp(0))
    more = PodUse(
        tenant="t",
        workload="w2",
        attempt=1,
        pod="more",
        cpu_milli=data.draw(st.integers(0, 9000)),
        gpu_milli=data.draw(st.integers(0, 1000)),
        gpus=tuple(data.draw(st.lists(st.integers(0, 7), max_size=4, unique=True))),
    )
    pair.step(replace(last, pods=(*last.pods, more), stamp=stamp(5000)))
    later = pair.quick.score(last.cluster, pair.now_s, stamp(0))
    no_better(replace(later, fragmentation_percent=None), before)
    pair.check()
