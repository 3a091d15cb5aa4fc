"""How well it goes: counted by who decides, as metrics and as a message with the same figures."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.control.resolver import metrics as module
from berthmaster.control.resolver.core import quality
from berthmaster.control.resolver.core.quality import Happened, Quality, jain
from berthmaster.control.resolver.metrics import Counted, Figures
from berthmaster.lib.lifecycle.workload import Key
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.fleet import ClusterScore, Stamp
from berthmaster.lib.messages.quality import QualityReport, QueueQuality
from berthmaster.lib.runtime.metrics import Metrics
from tests.support.builders import alive, job, node, profile
from tests.support.deciding import World


class Seen:
    """A world whose resolver's events are counted, while ``on``."""

    def __init__(self, gpus: int = 4) -> None:
        self.on = True
        self.metrics = Metrics("resolver")
        self.world = World()
        core = self.world.resolver
        self.figures = Figures(self.metrics, core)
        self.counted = Counted(core, self.figures, lambda: self.on)
        self.world.resolver = _Through(core, self.counted)  # type: ignore[assignment]
        self.world.fact(profile(), alive(), node(gpus=gpus))

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"berth_resolver_{name}", labels)

    def run(self, name: Key, after_s: float) -> None:
        self.world.now_s += after_s
        self.world.fact(alive(counter=int(self.world.now_s)))
        self.world.settle()
        if self.world.workloads[name].live:
            self.world.claim(name)
            self.world.run(name)


class _Through:
    """The core, with its events heard through the counter, as the shell wires it."""

    def __init__(self, core: Any, counted: Counted) -> None:
        self._core, self._counted = core, counted

    def __getattr__(self, name: str) -> Any:
        on_counted = name.startswith("on_") and hasattr(Counted, name)
        return getattr(self._counted if on_counted else self._core, name)


def test_a_story_is_counted_by_queue_as_metrics_and_as_a_message() -> None:
    seen = Seen()
    world = seen.world
    first = world.submit(job("first", gpus=4, queue="lab"))
    second = world.submit(job("second", gpus=4, queue="lab"))
    seen.run(first, 2.0)
    world.now_s += 8.0
    world.fact(alive(counter=5000))
    world.evict(first)
    world.settle()  # the older one goes first again: that is no new wait
    world.claim(first)
    world.run(first)
    world.succeed(first)
    seen.run(second, 10.0)
    assert seen.value("wait_seconds_count", queue="lab") == 2
    assert seen.value("wait_seconds_sum", queue="lab") == 2.0 + 20.0
    assert seen.value("completion_seconds_sum", queue="lab") == 10.0
    assert seen.value("evictions_total", queue="lab") == 1
    seen.figures.decided(3, 0.006)
    assert seen.figures.report(world.now_s) == QualityReport(
        cell="all",
        decider="resolver/test",
        observed_at_s=world.now_s,
        live=1,
        allocation_percent=100.0,
        decide_ms=2.0,
        queues=(
            QueueQuality(
                queue="lab",
                live=1,
                used_gpu_milli=4000,
                placed=2,
                mean_wait_s=11.0,
                succeeded=1,
                mean_completion_s=10.0,
                evicted=1,
            ),
        ),
    )
    assert seen.value("allocation_percent") == 100.0
    assert seen.value("placement_seconds_sum") == pytest.approx(0.002)
    seen.figures.decided(10, 0.1)
    assert seen.figures.report(world.now_s + 5.0).placements_per_s == 2.0
    assert seen.value("placements_per_second") == 2.0


def test_who_does_not_decide_counts_nothing_and_folds_all_the_same() -> None:
    seen = Seen()
    seen.on = False
    name = seen.world.submit(job("first", queue="lab"))
    seen.run(name, 2.0)
    assert seen.world.placed_on(name) == "c1"
    assert seen.value("wait_seconds_count", queue="lab") is None
    assert seen.figures.report(0.0).queues[0].placed == 0


def test_unknown_is_not_zero() -> None:
    seen = Seen(gpus=0)
    report = seen.figures.report(1.0)
    assert (report.allocation_percent, report.fragmentation_percent) == (None, None)
    assert str(seen.value("allocation_percent")) == "nan"
    assert (report.decide_ms, report.placements_per_s, report.fairness) == (None, 0.0, 1.0)


def test_fragmentation_is_the_clusters_own_by_what_they_have_free() -> None:
    seen = Seen()
    for at, (freshness, free, percent) in enumerate(
        (("fresh", 30.0, 10.0), ("fresh", 10.0, 50.0), ("stale", 99.0, 99.0), ("fresh", 5.0, None))
    ):
        score = ClusterScore(
            cluster=f"c{at}",
            stamp=Stamp(epoch=1, counter=1),
            freshness=freshness,  # type: ignore[arg-type]
            input_age_s=0.0,
            free_gpus=free,
            fragmentation_percent=percent,
        )
        seen.world.fact(score)
    assert seen.figures.report(1.0).fragmentation_percent == 20.0


def test_fairness_compares_what_queues_have_with_their_fair_shares() -> None:
    seen = Seen(gpus=8)
    world = seen.world
    world.control(QueueSetting(queue="a", priority=1))
    for number in range(8):
        world.submit(job(f"a{number}", queue="a"))
    world.settle()
    assert seen.figures.report(1.0).fairness == 1.0  # nobody else wants anything
    for number in range(8):
        world.submit(job(f"b{number}", queue="b"))
    world.settle()
    report = seen.figures.report(2.0)  # each could have four; one has eight
    assert report.fairness == 0.5
    assert [(q.queue, q.waiting, q.live) for q in report.queues] == [("a", 0, 8), ("b", 8, 0)]


def test_a_thousand_queues_do_not_become_a_thousand_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LABELLED", 2)
    monkeypatch.setattr(quality, "QUEUES_COUNTED", 2)
    monkeypatch.setattr(quality, "QUEUES_TOLD", 3)
    seen = Seen(gpus=6)
    for number in range(5):
        seen.run(seen.world.submit(job(f"j{number}", queue=f"q{number}")), 1.0)
    assert seen.value("wait_seconds_count", queue="q1") == 1
    assert seen.value("wait_seconds_count", queue="(others)") == 3
    assert seen.value("wait_seconds_count", queue="q4") is None
    told = Quality()
    for number in range(4):
        told.count(Happened("evicted", f"q{number}"))
    queues = told.report(seen.world.resolver.know, "x", 1.0).queues
    assert [(q.queue, q.evicted) for q in queues] == [("q0", 1), ("q1", 1), ("q2", 0)]


@given(st.lists(st.floats(0, 1e6), max_size=30))
def test_jain_is_between_an_nth_and_one(values: list[float]) -> None:
    assert jain([3.0] * 5) == pytest.approx(1.0)
    assert jain([7.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
    assert jain([0.0, 0.0]) == 1
    assert jain([1.7e-161, 1.7e-161]) == pytest.approx(1.0)
    assert 1 / max(1, len(values)) - 1e-9 <= jain(values) <= 1 + 1e-9
