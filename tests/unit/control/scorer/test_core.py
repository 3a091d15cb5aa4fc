"""Stories of one scorer: what it is told, what it tells."""

import itertools
from typing import Any

from msgspec.structs import replace

from berthmaster.control.scorer.core.events import (
    Deposed,
    FactForgotten,
    FactSeen,
    Led,
    ScoreNotStored,
    ScoreSeen,
    Tick,
    WorkloadSubmitted,
)
from berthmaster.control.scorer.core.gpu_faults import FaultRules
from berthmaster.control.scorer.core.rules import ScoringRules
from berthmaster.control.scorer.core.scorer import Scorer
from berthmaster.control.scorer.core.shard import shard_of
from berthmaster.lib.messages.fleet import ClosedGpu, ClusterScore, ResourceScore, Share, Stamp
from berthmaster.lib.messages.workload import PodSet
from tests.unit.control.scorer.builders import (
    EAGER,
    START_S,
    Story,
    alive,
    gone,
    gpu,
    pod,
    profile,
    reading,
    report,
    stamp,
    telemetry,
)


def resource(score: int, available: float, full_scale: float) -> ResourceScore:
    return ResourceScore(score=score, available=available, full_scale=full_scale)


def test_a_cluster_is_scored_from_its_first_report_on() -> None:
    story = Story()
    # A sign of life alone: fresh, and nothing known.
    assert story.fact(alive()) == [
        ClusterScore(
            cluster="east", stamp=Stamp(epoch=7, counter=1), freshness="fresh", input_age_s=0.004
        )
    ]
    # Eight GPUs of which three are in use, and nothing measured yet.
    assert story.fact(report(pods=(pod(0, 1, 2, cpu=40),))) == [
        ClusterScore(
            cluster="east",
            stamp=Stamp(epoch=7, counter=2),
            freshness="fresh",
            input_age_s=0.004,
            resources={
                "cpuNodeAvailable": resource(76, 88.0, 100.0),
                "cpuClusterAvailable": resource(76, 88.0, 100.0),
                "memNodeAvailable": resource(99, 1047552.0, 1048576.0),
                "memClusterAvailable": resource(99, 1047552.0, 1048576.0),
                "gpuNodeAvailable": resource(-50, 5.0, 20.0),
                "gpuClusterAvailable": resource(-50, 5.0, 20.0),
                "tpuNodeAvailable": resource(-100, 0.0, 20.0),
                "tpuClusterAvailable": resource(-100, 0.0, 20.0),
            },
            idle_gpu_percent=None,
            free_gpus=5.0,
            largest_gang={"A100": 5},
            fragmentation_percent=2.0,  # so many want eight GPUs
            telemetry_nodes=0,
            nodes=1,
        )
    ]
    # Its telemetry: the three are busy, the others idle.
    (told,) = story.hear(telemetry(100, 90, 80, 0, 0, 0, 0, 0))
    assert (told.idle_gpu_percent, told.telemetry_nodes) == (66.25, 1)


def test_node_scope_is_the_largest_node_and_each_resource_on_its_own() -> None:
    story = Story()
    story.fact(report("cpus", gpus=0, cpu=90))
    story.fact(report("gpus", gpus=4, cpu=10))
    scores = story.score().resources
    assert scores["cpuNodeAvailable"] == resource(80, 90.0, 100.0)
    assert scores["gpuNodeAvailable"] == resource(-60, 4.0, 20.0)
    assert scores["cpuClusterAvailable"] == resource(100, 100.0, 100.0)


def test_the_largest_node_leaves_and_the_next_largest_counts() -> None:
    story = Story()
    story.fact(report("large", gpus=8))
    story.fact(report("small", gpus=2))
    (told,) = story.fact(gone("large", counter=2))
    assert told.resources["gpuNodeAvailable"] == resource(-80, 2.0, 20.0)
    assert (told.nodes, told.largest_gang) == (1, {"A100": 2})


def test_unknown_is_not_zero() -> None:
    story = Story()
    (nothing,) = story.fact(profile(nodes=3))
    assert (nothing.resources, nothing.idle_gpu_percent, nothing.fragmentation_percent) == (
        {},
        None,
        None,
    )
    assert nothing.note == "3 nodes have not reported"
    (some,) = story.fact(report(gpus=2))
    assert some.note == "2 nodes have not reported"
    # A GPU whose utilization is not measured counts as busy, not as idle.
    (measured,) = story.hear(telemetry(None, 0))
    assert measured.idle_gpu_percent == 50.0


def test_an_older_fact_changes_nothing_whenever_it_comes() -> None:
    story = Story()
    story.fact(report(gpus=4, counter=5))
    assert story.fact(report(gpus=8, counter=4)) == []
    assert story.fact(report(gpus=8, counter=5)) == []
    assert story.fact(gone(counter=3)) == []
    assert story.score().free_gpus == 4
    # A node that is gone stays gone when its last report comes late.
    story.fact(gone(counter=7))
    assert story.fact(report(gpus=8, counter=6)) == []
    assert story.score().nodes == 0
    assert story.scorer.dropped == {("node", "old"): 4}
    # Nor is a repetition a sign of life.
    story.wait(20)
    assert story.fact(report(gpus=8, counter=6)) == []
    assert story.score().freshness == "stale"


# Silence


def test_silence_makes_a_cluster_stale_then_withdrawn_and_its_return_fresh() -> None:
    story = Story()
    story.fact(alive())
    (fresh,) = story.fact(report(gpus=4))
    assert story.wait(14.9) == []

    (stale,) = story.wait(1)
    assert stale == replace(
        fresh,
        stamp=Stamp(epoch=7, counter=3),
        freshness="stale",
        input_age_s=15.0,
        note="no sign of life for 15 s",
    )

    (withdrawn,) = story.wait(110)
    assert withdrawn == ClusterScore(
        cluster="east",
        stamp=Stamp(epoch=7, counter=4),
        freshness="withdrawn",
        input_age_s=120.0,
        nodes=1,
        note="no sign of life for 120 s",
    )
    # Telemetry is no sign of life: the reporter is what decisions rest on.
    assert story.hear(telemetry(0, 0, 0, 0)) == []

    (back,) = story.fact(alive(2))
    assert (back.freshness, back.free_gpus, back.idle_gpu_percent) == ("fresh", 4.0, 100.0)


def test_signs_of_life_keep_a_cluster_fresh_without_a_word_until_the_refresh() -> None:
    story = Story(replace(EAGER, refresh_s=30.0))
    story.fact(alive())
    told = [score for at in range(2, 14) for score in story.fact(alive(at)) + story.wait(5)]
    assert [(score.freshness, score.input_age_s < 6) for score in told] == [("fresh", True)] * 2


def test_a_score_is_told_at_least_every_refresh_interval_whatever_its_freshness() -> None:
    story = Story(replace(EAGER, refresh_s=5.0))
    story.fact(alive())
    ages = [score.input_age_s for score in story.wait(130)]
    assert max(later - before for before, later in itertools.pairwise(ages)) <= 5.001
    assert len(ages) <= 30


def test_a_reporter_with_long_intervals_is_not_taken_for_a_dead_one() -> None:
    story = Story()
    story.fact(alive(interval_s=60))
    assert story.wait(179) == []
    assert [score.freshness for score in story.wait(2)] == ["stale"]
    assert [score.freshness for score in story.wait(180)] == ["withdrawn"]


def test_an_absurd_interval_does_not_keep_a_cluster_fresh() -> None:
    for interval_s in (float("nan"), float("inf"), 1e12, -1.0):
        story = Story()
        story.fact(alive(interval_s=interval_s))
        assert [score.freshness for score in story.wait(200)] == ["stale", "withdrawn"]


def test_a_fact_from_the_servers_future_ages_from_its_receipt() -> None:
    story = Story()
    story.scorer.handle(FactSeen(alive(), START_S + 3600), START_S)
    told = story.wait(130)
    assert [score.freshness for score in told] == ["fresh", "stale", "withdrawn"]


def test_a_cluster_without_any_fact_left_is_withdrawn_and_forgotten() -> None:
    story = Story()
    story.fact(alive())
    story.fact(report(gpus=4))
    story.scorer.handle(FactForgotten("east", "node", "n1"), story.now_s)
    assert [score.nodes for score in story.wait(1)] == [0]
    (last,) = story.scorer.handle(FactForgotten("east", "alive"), story.now_s)
    assert (last.fact.freshness, last.fact.note) == (
        "withdrawn",
        "the bus has no facts of this cluster any more",
    )
    assert story.wait(1000) == []
    assert story.scorer.input_ages_s(story.now_s) == {}


def test_a_clock_that_is_set_back_an_hour_silences_nothing() -> None:
    story = Story(replace(EAGER, refresh_s=5.0))
    story.fact(alive())
    story.fact(report(gpus=1))
    story.hear(telemetry(0))
    story.wait(2)
    story.scorer.handle(Tick(), story.now_s)  # its shell wakes it every second
    story.now_s -= 3600
    story.scorer.handle(Tick(), story.now_s)
    told = story.wait(13.5)
    # Its telemetry lapses after 3 s in all, it is told every 5 s, and stale after 15 s in all.
    assert [(score.freshness, score.idle_gpu_percent) for score in told] == [
        ("fresh", None),
        ("fresh", None),
        ("fresh", None),
        ("stale", None),
    ]


def test_who_does_not_lead_sleeps_on_when_its_clock_is_set_back() -> None:
    story = Story(EAGER, epoch=None)
    story.fact(alive())
    story.fact(report(gpus=1))
    story.scorer.handle(Tick(), story.now_s)
    story.now_s -= 3600
    assert story.scorer.handle(Tick(), story.now_s) == []
    assert story.wait(100) == []


def test_another_shards_cluster_is_not_told_of_when_the_clock_is_set_back() -> None:
    story = Story()
    story.scorer = Scorer(EAGER, lambda name: name == "east")
    story.scorer.handle(Led(1), story.now_s)
    for name in ("east", "west"):
        story.fact(report(cluster=name, gpus=1))
    story.scorer.handle(Tick(), story.now_s)
    story.now_s -= 3600
    told = [put.fact for put in story.scorer.handle(Tick(), story.now_s)] + story.wait(100)
    assert {score.cluster for score in told} <= {"east"}


# Telemetry


def test_telemetry_of_a_node_that_is_gone_may_lapse() -> None:
    story = Story()
    for name in ("n1", "n2"):
        story.fact(report(name, gpus=1))
    story.hear(telemetry(0, node="n1"))
    assert (story.score().nodes, story.score().telemetry_nodes) == (2, 1)
    story.scorer.handle(FactForgotten("east", "node", "n1"), story.now_s)
    story.wait(10)
    assert (story.score().nodes, story.score().telemetry_nodes) == (1, 0)


def test_silent_telemetry_counts_as_busy_and_then_as_unknown() -> None:
    story = Story()
    story.fact(report("n1", gpus=1))
    story.fact(report("n2", gpus=1))
    story.hear(telemetry(0, node="n1"))
    story.hear(telemetry(100, node="n2"))
    assert (story.score().idle_gpu_percent, story.score().telemetry_nodes) == (50.0, 2)
    # The busy one falls silent: its cluster must not look idler for it.
    story.hear(telemetry(0, node="n1", counter=2))
    for at in range(3, 9):
        story.wait(1)
        story.hear(telemetry(0, node="n1", counter=at))
    assert (story.score().idle_gpu_percent, story.score().telemetry_nodes) == (50.0, 1)
    # Then the other one.
    (unknown,) = story.wait(3.1)
    assert (unknown.idle_gpu_percent, unknown.telemetry_nodes) == (None, 0)


def test_of_a_gpu_under_mps_it_counts_how_many_of_its_sms_have_work() -> None:
    half = Share(resource="nvidia.com/gpu.shared", milli=500, count=2)
    story = Story()
    busy = telemetry(100, counter=1)
    (gpu,) = busy.gpus
    few = replace(busy, gpus=(replace(gpu, sm_active_percent=46.0),))
    for counter, isolation, calm in ((1, "none", 0.0), (2, "memory", 100.0)):
        shares = (replace(half, isolation=isolation),)
        story.fact(
            replace(report(gpus=1, pods=(pod(0, milli=500),), counter=counter), shares=shares)
        )
        story.hear(replace(few, counter=counter))
        assert story.score().calm_gpu_percent == calm
        assert story.score().idle_gpu_percent == 0.0
    most = replace(gpu, sm_active_percent=97.0)
    story.hear(replace(busy, gpus=(most,), counter=3))
    assert story.score().calm_gpu_percent == 0.0
    story.hear(replace(busy, counter=4))  # not told: then what the driver says counts
    assert story.score().calm_gpu_percent == 0.0


def test_shared_gpus_are_calm_below_seventy_percent_and_busy_when_nobody_measures_them() -> None:
    story = Story()
    story.fact(report(gpus=4))
    assert story.score().calm_gpu_percent is None
    (told,) = story.hear(telemetry(90, 90, 90, 90))
    assert told.calm_gpu_percent == 100.0  # nothing is shared, so nothing disturbs
    # Two GPUs are taken in part, one whole, one not at all: what the last two do says nothing.
    halves = (pod(0, milli=500), pod(1, milli=250), pod(2))
    (told,) = story.fact(report(gpus=4, pods=halves, counter=2))
    assert told.calm_gpu_percent == 0.0
    (told,) = story.hear(telemetry(69.9, 70, 5, 5, counter=2))
    assert told.calm_gpu_percent == 50.0
    (told,) = story.hear(telemetry(20, 30, 90, 90, counter=3))
    assert told.calm_gpu_percent == 100.0
    # One is not measured any more; then a part of the first is another whole job's.
    (told,) = story.hear(telemetry(20, None, 90, 90, counter=4))
    assert told.calm_gpu_percent == 50.0
    (told,) = story.fact(report(gpus=4, pods=(pod(0), pod(1, milli=250)), counter=3))
    assert told.calm_gpu_percent == 0.0
    (unknown,) = story.wait(3.1)
    assert unknown.calm_gpu_percent is None


def test_the_order_of_telemetry_is_epoch_and_counter_and_not_the_nodes_clock() -> None:
    story = Story()
    story.fact(report(gpus=1))
    story.hear(telemetry(10, counter=5, observed_at_s=START_S + 100))
    # Earlier by its own clock, and newer.
    assert [s.idle_gpu_percent for s in story.hear(telemetry(20, counter=6))] == [80.0]
    assert story.hear(telemetry(30, counter=6)) == []  # repeated
    assert story.hear(telemetry(30, counter=4, observed_at_s=START_S + 200)) == []  # late
    assert [s.idle_gpu_percent for s in story.hear(telemetry(40, epoch=2))] == [60.0]
    assert story.hear(telemetry(50, epoch=1, counter=99)) == []  # of a former life
    assert story.scorer.dropped == {("telemetry", "old"): 3}


def test_a_wrong_epoch_heals_once_its_telemetry_has_lapsed() -> None:
    story = Story()
    story.fact(report(gpus=1))
    story.hear(telemetry(10, epoch=2**61))
    assert story.hear(telemetry(20, epoch=3)) == []
    story.wait(3.1)
    assert [s.idle_gpu_percent for s in story.hear(telemetry(20, epoch=3, counter=9))] == [80.0]


def test_telemetry_of_a_node_without_facts_is_counted_and_forgotten() -> None:
    story = Story()
    assert story.hear(telemetry(0)) == []
    story.fact(report("n2"))
    assert story.hear(telemetry(0, node="n1")) == []
    assert story.scorer.dropped == {("telemetry", "unknown_node"): 2}
    assert story.score().idle_gpu_percent is None


def test_gpus_that_the_report_does_not_list_are_not_counted_as_idle() -> None:
    story = Story()
    story.fact(report(gpus=2))
    (told,) = story.hear(telemetry(100, 100, 0, 0, 0, 0))
    assert told.idle_gpu_percent == 0.0


def closed(told: ClusterScore) -> dict[str, list[tuple[int, str, float]]]:
    """Node -> index, fault and age of the newest sign of each closed GPU."""
    return {
        node: [(gpu.index, gpu.fault, round(gpu.since_s - START_S, 1)) for gpu in gpus]
        for node, gpus in told.closed_gpus.items()
    }


def test_a_lost_gpu_is_closed_at_once_and_a_new_scorer_recalls_it() -> None:
    rules = replace(EAGER, faults=FaultRules(heal_s=20.0))
    story = Story(rules)
    story.fact(alive())
    two = report(gpus=2)
    story.fact(two)
    lost = telemetry(0)
    lost = replace(lost, gpus=(*lost.gpus, reading(1, 5.0, health="lost")))
    (told,) = story.hear(lost)
    assert (closed(told), told.free_gpus) == ({"n1": [(1, "lost", 0.0)]}, 1.0)

    # Another scorer begins, and no telemetry has come to it: before facts of the node and after.
    for first, second in (("score", "report"), ("report", "score")):
        other = Story(rules, epoch=None)
        other.fact(alive())
        for kind in (first, second):
            if kind == "score":
                other.scorer.handle(ScoreSeen(told), other.now_s)
            else:
                other.fact(two)
        other.scorer.handle(Led(8), other.now_s)
        (again,) = other.wait(0.005)
        assert (closed(again), again.free_gpus) == ({"n1": [(1, "lost", 0.0)]}, 1.0)
        # A score is no sign of life, and telemetry that comes counts more: after a while.
        for counter in range(2, 24):
            other.fact(alive(counter))
            other.hear(telemetry(0, 0, counter=counter))
            other.scorer.handle(ScoreSeen(told), other.now_s)
            assert other.score().free_gpus == (1.0 if other.now_s < START_S + 20 else 2.0)
            other.wait(0.99)
        assert closed(other.score()) == {}


def test_a_faulty_gpu_opens_only_after_readings_without_a_gap() -> None:
    story = Story(replace(EAGER, faults=FaultRules(heal_s=10.0)))
    story.fact(report(gpus=2))
    errors = reading(1, 0, health="degraded", ecc_uncorrected=2)
    story.hear(telemetry(gpus=(reading(0, 0), errors)))
    assert closed(story.score()) == {"n1": [(1, "ecc", 0.0)]}
    counter = 2

    def well_for(seconds: int) -> bool:
        nonlocal counter
        for _ in range(seconds):
            story.hear(telemetry(0, 0, counter=counter))
            counter += 1
            story.wait(0.995)
        return not story.score().closed_gpus

    assert not well_for(9)
    story.wait(30.0)  # no telemetry: the time before does not count any more
    assert not well_for(9)
    # Telemetry of the node that does not list the GPU heals none either.
    story.hear(telemetry(0, counter=counter))
    counter += 1
    assert not well_for(10)
    assert well_for(1)


def test_each_further_memory_error_is_a_new_sign_and_a_repeated_one_is_not() -> None:
    story = Story()
    story.fact(report(gpus=1))
    for counter, errors in enumerate((2, 2, 3), start=1):
        story.hear(
            telemetry(
                gpus=(reading(0, 0, health="degraded", ecc_uncorrected=errors),), counter=counter
            )
        )
        story.wait(0.995)
    assert closed(story.score()) == {"n1": [(0, "ecc", 2.0)]}


def test_a_throttled_gpu_is_closed_once_that_lasts() -> None:
    story = Story(replace(EAGER, faults=FaultRules(heal_s=10.0, throttle_s=120.0)))
    story.fact(report(gpus=1))
    hot = {"health": "degraded", "throttle_reasons": ("hw_thermal_slowdown",)}
    capped = {"health": "ok", "throttle_reasons": ("sw_power_cap",)}
    counter = 0

    def play(seconds: int, **fields: Any) -> None:
        nonlocal counter
        for _ in range(seconds):
            counter += 1
            story.hear(telemetry(gpus=(reading(0, 90.0, **fields),), counter=counter))
            story.wait(0.995)

    play(119, **hot)
    play(61, **capped)  # at full speed for a minute: the time begins again
    play(119, **hot)
    play(30, **capped)  # shorter: it goes on
    assert closed(story.score()) == {}
    play(1, **hot)
    assert [gpu[:2] for gpu in closed(story.score())["n1"]] == [(0, "throttled")]
    play(60 + 9, **capped)
    assert closed(story.score()) == {"n1": [(0, "throttled", 329.0)]}
    play(1, **capped)
    assert closed(story.score()) == {}


def test_a_score_makes_no_cluster_known() -> None:
    story = Story()
    gpu_0 = ClosedGpu(index=0, fault="lost", since_s=1.0)
    told = replace(story_score(), closed_gpus={"n1": (gpu_0,)})
    story.scorer.handle(ScoreSeen(told), story.now_s)
    assert story.wait(5.0) == []


def story_score() -> ClusterScore:
    return ClusterScore(cluster="east", stamp=stamp(1), freshness="fresh", input_age_s=0.0)


def test_closed_gpus_are_told_though_the_cluster_is_withdrawn() -> None:
    story = Story()
    story.fact(alive())
    story.fact(report(gpus=1))
    story.hear(replace(telemetry(), gpus=(reading(0, None, health="lost"),)))
    *_, last = story.wait(600.0)
    assert (last.freshness, closed(last)) == ("withdrawn", {"n1": [(0, "lost", 0.0)]})


def test_a_lost_gpu_is_not_offered_and_silence_does_not_bring_it_back() -> None:
    story = Story()
    story.fact(report(gpus=2))
    story.hear(telemetry(0, 0))
    lost = telemetry(0, counter=2)
    lost = replace(lost, gpus=(*lost.gpus, reading(1, None, health="lost")))
    (told,) = story.hear(lost)
    assert (told.free_gpus, told.largest_gang, told.idle_gpu_percent) == (1.0, {"A100": 1}, 100.0)
    story.wait(10)
    assert (story.score().free_gpus, story.score().telemetry_nodes) == (1.0, 0)
    # It was replaced: another device under the same index.
    other = replace(gpu(1), uuid="GPU-new")
    (repaired,) = story.fact(report(gpus=(gpu(0), other), counter=2))
    assert repaired.free_gpus == 2.0


def test_gpus_that_a_report_only_counts_are_measured_by_their_index() -> None:
    story = Story()
    counted = tuple(replace(gpu(index), uuid="") for index in (0, 1))
    story.fact(report(gpus=counted))
    (told,) = story.hear(telemetry(100, 50))
    assert told.idle_gpu_percent == 25.0
    lost = telemetry(100, counter=2)
    lost = replace(lost, gpus=(*lost.gpus, reading(1, None, health="lost")))
    (told,) = story.hear(lost)
    assert (told.free_gpus, told.idle_gpu_percent) == (1.0, 0.0)


def test_a_cordoned_nodes_idle_gpus_do_not_attract() -> None:
    story = Story()
    story.fact(report("n1", gpus=1))
    story.fact(report("n2", gpus=1))
    story.hear(telemetry(100, node="n1"))
    story.hear(telemetry(0, node="n2"))
    (told,) = story.fact(report("n2", gpus=1, counter=2, schedulable=False))
    assert (told.idle_gpu_percent, told.free_gpus, told.telemetry_nodes) == (0.0, 1.0, 2)


def test_a_node_that_is_not_believed_any_more_counts_for_nothing() -> None:
    story = Story()
    story.fact(report(gpus=4))
    (told,) = story.fact(report(gpus=4, cpu=10.0**9, counter=2))
    assert (told.nodes, told.free_gpus, told.resources) == (0, 0.0, {})
    assert story.scorer.dropped == {("node", "absurd"): 1}


def test_a_node_with_less_than_what_runs_there_is_noted_and_lowers_the_sum() -> None:
    story = Story()
    story.fact(report("n1", gpus=4))
    (told,) = story.fact(report("n2", gpus=2, pods=(pod(4, 5, 6),)))
    assert told.resources["gpuClusterAvailable"] == resource(-70, 3.0, 20.0)
    assert told.resources["gpuNodeAvailable"] == resource(-60, 4.0, 20.0)
    assert (told.free_gpus, told.note) == (4.0, "1 nodes report less than what runs there")


# What is told, and when


def test_changes_within_the_window_become_one_score() -> None:
    story = Story()
    for at in range(20):
        story.scorer.handle(FactSeen(report(f"n{at}", gpus=1), story.now_s), story.now_s)
        story.now_s += 0.0001
    puts = story.scorer.handle(Tick(), START_S + 0.004)
    assert [(put.fact.nodes, put.since_s) for put in puts] == [(20, START_S)]
    assert story.wait(1) == []


def test_what_moves_less_than_the_dead_band_waits_for_the_refresh() -> None:
    story = Story(replace(EAGER, dead_band=2.0, refresh_s=5.0))
    story.fact(report(gpus=100, cpu=1000, memory_gib=9000))

    def busy(percent: int) -> list[float | None]:
        told = telemetry(*[percent] * 100, counter=percent, interval_s=10.0)
        return [score.idle_gpu_percent for score in story.hear(told)]

    assert busy(50) == [50.0]
    assert busy(51) == []
    assert busy(52) == [48.0]  # together with the former it is two points
    assert busy(53) == []
    assert [score.idle_gpu_percent for score in story.wait(5)] == [47.0]


def test_the_last_free_gpu_is_told_whatever_the_dead_band() -> None:
    story = Story(replace(EAGER, dead_band=50.0))
    story.fact(report(gpus=8, cpu=1000))
    assert story.fact(report(gpus=8, cpu=1000, counter=2, pods=(pod(0),))) == []
    full = report(gpus=8, cpu=1000, counter=3, pods=(pod(*range(8)),))
    assert [s.free_gpus for s in story.fact(full)] == [0.0]


def test_only_who_leads_tells_and_a_new_leader_tells_everything_anew() -> None:
    story = Story(epoch=None)
    assert story.fact(report("n1", cluster="a")) + story.fact(report("n1", cluster="b")) == []
    assert story.wait(100) == []

    story.scorer.handle(Led(41), story.now_s)
    told = story.wait(0)
    assert [(s.cluster, s.stamp, s.freshness) for s in told] == [
        ("a", stamp(1, 41), "stale"),
        ("b", stamp(2, 41), "stale"),
    ]
    story.scorer.handle(Deposed(), story.now_s)
    assert story.fact(report("n1", cluster="a", counter=2)) == []
    story.scorer.handle(Led(42), story.now_s)
    assert [s.stamp for s in story.wait(0)] == [stamp(1, 42), stamp(2, 42)]


def test_a_new_leader_measures_by_the_fleet_from_its_first_word_on() -> None:
    story = Story(ScoringRules(), epoch=None)
    story.scorer.handle(FactSeen(report(gpus=100), START_S), START_S)
    story.scorer.handle(Led(1), START_S)
    (told,) = story.wait(0)
    assert told.resources["gpuClusterAvailable"] == resource(100, 100.0, 100.0)


def test_a_score_that_could_not_be_stored_is_told_again_but_not_in_a_tight_loop() -> None:
    story = Story()
    story.fact(report(gpus=4))
    story.scorer.handle(ScoreNotStored("east"), story.now_s)
    # Changes go on while the bus is away.
    assert story.fact(report(gpus=5, counter=2)) == []
    assert [s.free_gpus for s in story.wait(0.5)] == [5.0]
    assert story.wait(10) == []


def test_a_shard_tells_of_its_clusters_and_measures_them_against_all() -> None:
    names = [f"cluster-{at}" for at in range(6)]
    mine = {name for name in names if shard_of(name, 2) == 1}
    story = Story(replace(ScoringRules(), dead_band=0.0))
    story.scorer = Scorer(replace(ScoringRules(), dead_band=0.0), lambda name: name in mine)
    story.scorer.handle(Led(1), story.now_s)
    told = [s for name in names for s in story.fact(report(cluster=name, gpus=8))]
    assert {s.cluster for s in told} == mine
    other = next(name for name in names if name not in mine)
    assert story.hear(telemetry(0, cluster=other)) == []
    assert story.scorer.dropped == {}
    # Another shard's cluster grows: the scale of all of them does.
    grown = story.fact(report(cluster=other, gpus=100, counter=2))
    assert {s.cluster: s.resources["gpuClusterAvailable"].full_scale for s in grown} == (
        dict.fromkeys(mine, 100.0)
    )


def test_the_mix_that_people_submit_decides_what_is_fragmented() -> None:
    story = Story(replace(EAGER, mix_pods=10, mix_interval_s=5, slice_nodes=2))
    halves = (gpu(0, foreign_milli=500), gpu(1, foreign_milli=500))
    for at in range(5):
        story.fact(report(f"n{at}", gpus=tuple(replace(g, uuid=f"{at}{g.uuid}") for g in halves)))
    before = story.score().fragmentation_percent
    assert before is not None
    assert 70 < before < 75  # of the default mix 28 % want halves or less, but not all 0.5

    def submit(milli: int, count: int) -> None:
        event = WorkloadSubmitted(
            (PodSet(cpu_milli=1000, gpus=1, gpu_milli=milli, count=count),), story.now_s
        )
        assert story.scorer.handle(event, story.now_s) == []

    submit(500, 100)
    assert [s.fragmentation_percent for s in story.wait(0.1)][-1] == 0.0
    # Then everybody wants whole GPUs; the mix follows, not more often than it may.
    submit(1000, 100_000)
    assert story.wait(4.8) == []
    assert [s.fragmentation_percent for s in story.wait(0.3)][-1] == 100.0
