"""What a pod costs a node: the fast score against its slow twin, and stories of what it prefers."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.lib.engine.fleet.fleet import Fleet
from berthmaster.lib.engine.fleet.needs import suitable_nodes
from berthmaster.lib.engine.fleet.pieces import foreign_pieces, pieces_of, pieces_on
from berthmaster.lib.engine.fleet.shares import Part, enough, takes_milli
from berthmaster.lib.engine.scoring.pod_mix import Mix, PodType, Sample
from berthmaster.lib.engine.scoring.score_cache import room_of
from berthmaster.lib.engine.scoring.value import (
    CPU_SHARE,
    NOT_HERE,
    RICH_IN_CPU,
    Appraiser,
    Worth,
    pick_gpus,
    score_all,
    score_nodes,
    worth_of,
)
from berthmaster.lib.messages.fleet import NodeReport
from berthmaster.lib.messages.workload import PodSet
from tests.support.builders import node, pod_set
from tests.unit.lib.engine.fleets import UNHURRIED, fleets, pods

MIXES: tuple[Sample, ...] = (
    (),
    ((PodType(0, 0, 4000), 10),),
    ((PodType(1, 470, 3000), 5), (PodType(1, 810, 1000), 9), (PodType(1, 140, 500), 3)),
    ((PodType(1, 100, 100), 50), (PodType(1, 1000, 4000), 20), (PodType(2, 1000, 9000), 3)),
)


def value(worth: Worth, free: list[int], cpu_milli: int) -> float:
    """V of one node, but for the trace for what is together: read aloud."""
    holes = sum(float(worth.hole[max(0, milli)]) for milli in free)
    if worth.cpu_milli_a_gpu <= 0:
        return holes
    gpus = sum(max(0, milli) for milli in free) / 1000
    return holes - max(0.0, gpus - max(0.0, cpu_milli / worth.cpu_milli_a_gpu))


def slow_score(report: NodeReport, need: PodSet, worth: Worth, gpus: tuple[int, ...]) -> float:
    """V after less V before, of a pod that fits and takes these GPUs; less what its other pieces
    leave."""
    devices = [g for g in report.gpus if g.healthy]
    before = [1000 - g.foreign_milli for g in devices]
    takes = need.gpu_milli
    if need.gpus == 1 and need.gpu_milli < 1000:
        part = Part(need.gpu_milli, need.gpu_memory_mib)
        of_mib = report.gpus[0].memory_mib
        takes = max(takes, math.ceil(1000 * need.gpu_memory_mib / of_mib))
        if report.shares:
            share = enough(report.shares, part)
            assert share is not None
            takes = takes_milli(share, part)
    after = [m - takes * (g.index in gpus) for m, g in zip(before, devices, strict=True)]
    cpu = report.allocatable.cpu_milli - report.foreign.cpu_milli
    score = value(worth, after, cpu - need.cpu_milli) - value(worth, before, cpu)
    if need.gpus:
        together = [sum(m >= 1000 for m in row) ** 2 for row in (before, after)]
        score += 0.003 * (together[1] - together[0]) / max(1, len(devices))
        if need.gpus > 1 or need.gpu_milli == 1000:
            score += need.gpus  # the same everywhere
    for name, number in pieces_of(need):
        left = dict(pieces_on(report))[name] - foreign_pieces(report, name) - number
        score -= 0.001 * left / (left + number)
    return score - 0.001 * sum(max(0, m) for m in after) / 8000


@UNHURRIED
@given(fleets(), pods(), st.sampled_from(MIXES))
def test_score_follows_rule_for_every_node(fleet: Fleet, need: PodSet, sample: Sample) -> None:
    worth, suitable = worth_of(sample), suitable_nodes(fleet, need)
    scores = score_all(fleet, need, suitable, worth)
    assert scores.dtype == np.float32
    fits = room_of(fleet, need, suitable, slice(None)) > 0
    np.testing.assert_array_equal(scores > NOT_HERE, fits)
    for slot in np.flatnonzero(fits).tolist():
        report = fleet.report_at(slot)
        chosen = pick_gpus(fleet, slot, need, suitable, worth)
        assert len(chosen) == need.gpus
        expected = slow_score(report, need, worth, chosen)
        assert scores[slot] == pytest.approx(expected, abs=2e-6)
        if need.gpus == 1 and need.gpu_milli < 1000:  # no other GPU of the node would be better
            for at, device in enumerate(report.gpus):
                room = 1000 - device.foreign_milli
                right = suitable.gpus is None or bool(suitable.gpus[slot, at])
                if device.healthy and right and room >= suitable.milli(slot, need):
                    other = slow_score(report, need, worth, (device.index,))
                    together = 0.003 * len(report.gpus)  # is no hole
                    assert other <= expected + together + 1e-6


@UNHURRIED
@given(fleets(), pods(), st.sampled_from(MIXES), st.data())
def test_a_node_has_the_same_score_alone_and_among_all(
    fleet: Fleet, need: PodSet, sample: Sample, data: st.DataObject
) -> None:
    worth, suitable = worth_of(sample), suitable_nodes(fleet, need)
    scores = score_all(fleet, need, suitable, worth)
    slots = data.draw(st.lists(st.integers(0, len(scores) - 1), min_size=1, max_size=4))
    some = score_nodes(fleet, need, suitable, worth, np.array(slots, np.int64))
    assert some.tobytes() == scores[slots].tobytes()


def fleet_of(*nodes: NodeReport) -> Fleet:
    fleet = Fleet()
    for report in nodes:
        fleet.put_node(report)
    fleet.arrange()
    return fleet


def goes_to(fleet: Fleet, need: PodSet, worth: Worth) -> tuple[str, tuple[int, ...]]:
    suitable = suitable_nodes(fleet, need)
    slot = int(score_all(fleet, need, suitable, worth).argmax())
    return fleet.names[slot][1], pick_gpus(fleet, slot, need, suitable, worth)


def test_a_hole_that_the_mix_fills_is_kept_for_those_who_fill_it() -> None:
    # 530 is what a 470 leaves; a 460 would fit there too, and leave 70 that nobody can use.
    worth = worth_of(((PodType(1, 470, 0), 50), (PodType(1, 530, 0), 50), (PodType(1, 350, 0), 1)))
    fleet = fleet_of(node(name="n1", gpus=3, foreign_milli=(470, 0, 650)))
    assert goes_to(fleet, pod_set(gpu_milli=530, cpu_milli=0), worth) == ("n1", (0,))
    assert goes_to(fleet, pod_set(gpu_milli=350, cpu_milli=0), worth) == ("n1", (2,))


def test_pods_that_need_much_cpu_go_where_it_serves_no_gpu() -> None:
    worth = worth_of(((PodType(1, 1000, 12_000), 100),))
    assert worth.cpu_milli_a_gpu == pytest.approx(CPU_SHARE * 12_000, rel=0.01)
    scarce = node(name="a", gpus=8, cpu_milli=96_000)
    plenty = node(name="b", gpus=2, cpu_milli=104_000)
    fleet = fleet_of(scarce, plenty)
    assert goes_to(fleet, pod_set(gpus=0, cpu_milli=32_000), worth)[0] == "b"
    # A GPU that takes little CPU goes where CPU is scarce, however full the other would be.
    assert goes_to(fleet, pod_set(gpus=1, cpu_milli=30_000), worth)[0] == "b"


def test_wholly_free_gpus_stay_together() -> None:
    worth = worth_of(())
    fleet = fleet_of(node(name="a", gpus=8), node(name="b", gpus=8, foreign_milli=(1000,) * 5))
    assert goes_to(fleet, pod_set(gpus=1), worth) == ("b", (5,))
    assert goes_to(fleet, pod_set(gpus=8), worth)[0] == "a"


def test_on_ties_the_first_by_name_of_those_with_least_left_is_taken() -> None:
    worth = worth_of(())
    fleet = fleet_of(node(name="b", gpus=2), node(name="a", gpus=2), node(name="c", gpus=2))
    assert goes_to(fleet, pod_set(gpus=0), worth)[0] == "a"
    emptier = fleet_of(node(name="a", gpus=2), node(name="b", gpus=2, foreign_milli=(1000, 1000)))
    assert goes_to(emptier, pod_set(gpus=0), worth)[0] == "b"


def test_what_was_learned_of_parts_of_gpus_changes_nothing_for_whole_ones() -> None:
    cpu = (PodType(1, 1000, 8000), 1000)
    one, other = (worth_of((cpu, (PodType(1, m, m * 8), 100))) for m in (500, 350))
    assert one.cpu_milli_a_gpu == other.cpu_milli_a_gpu
    fleet = Fleet()
    fleet.put_node(node(gpus=2))
    fleet.arrange()
    for plain in (pod_set(gpus=2), pod_set(gpus=0)):
        assert one.same_for(plain, suitable_nodes(fleet, plain), other)
    half = pod_set(gpu_milli=500)
    suits = suitable_nodes(fleet, half)
    assert not one.same_for(half, suits, other)
    assert one.same_for(half, suits, worth_of((cpu, (PodType(1, 500, 4000), 90))))
    assert not one.same_for(half, suits, worth_of(((PodType(1, 1000, 1000), 1),)))


def test_an_appraiser_learns_when_the_mix_has_a_new_sample_and_not_before() -> None:
    mix, appraiser = Mix(), Appraiser()
    nothing = appraiser.of(mix.newest)
    assert nothing.cpu_milli_a_gpu == 0.0
    for _ in range(40):
        mix.add(pod_set(gpu_milli=500, cpu_milli=2000))
    learned = appraiser.of(mix.newest)
    assert learned.cpu_milli_a_gpu == pytest.approx(CPU_SHARE * 4000, rel=0.01)
    assert float(learned.hole[500]) == pytest.approx(0.5)
    for _ in range(40):
        mix.add(pod_set(gpu_milli=500, cpu_milli=2010))
    assert mix.newest.pods > 40
    assert appraiser.of(mix.newest) is learned  # more of the same teaches nothing
    for _ in range(200):
        mix.add(pod_set(gpu_milli=300, cpu_milli=2000))
    assert appraiser.of(mix.newest) is not learned


def test_scarce_cpu_counts_rich_nodes_only() -> None:
    sample = ((PodType(0, 0, 6000), 1), (PodType(1, 1000, 8000), 1))
    enough, scarce = worth_of(sample, 14_000.0), worth_of(sample, 12_000.0)
    assert enough.cpu_milli_a_gpu == pytest.approx(CPU_SHARE * 8000, rel=0.01)
    assert scarce.cpu_milli_a_gpu == RICH_IN_CPU * enough.cpu_milli_a_gpu

    # Enough: CPU is taken where GPUs need it least. Scarce: where hardly a GPU is left to need it.
    fleet = Fleet()
    fleet.put_node(node(name="some", gpus=2, cpu_milli=40_000))
    fleet.put_node(node(name="rich", gpus=1, cpu_milli=60_000))
    fleet.arrange()
    need = pod_set(gpus=0, cpu_milli=20_000)
    best = {}
    for told, worth in (("enough", enough), ("scarce", scarce)):
        scores = score_all(fleet, need, suitable_nodes(fleet, need), worth)
        best[told] = fleet.names[int(scores.argmax())][1], bool(np.ptp(scores) > 0.1)
    assert best == {"enough": ("rich", False), "scarce": ("rich", True)}

    # An appraiser hears of nodes that come.
    mix, appraiser = Mix(), Appraiser()
    for _ in range(40):
        mix.add(pod_set(gpus=1, cpu_milli=8000))
    assert appraiser.of(mix.newest, 8000.0).same(worth_of(mix.newest.sample))
    learned = appraiser.of(mix.newest, 7000.0)
    assert learned.same(worth_of(mix.newest.sample, 7000.0))
    assert appraiser.of(mix.newest, 6000.0) is learned


def test_a_fleet_without_nodes_or_gpus_has_scores_too() -> None:
    worth = worth_of(MIXES[2])
    empty = fleet_of()
    need = pod_set(gpu_milli=470)
    assert score_all(empty, need, suitable_nodes(empty, need), worth).tolist() == []
    bare = fleet_of(node(gpus=0))
    assert score_all(bare, need, suitable_nodes(bare, need), worth).tolist() == [-math.inf]
    plain = pod_set(gpus=0)
    assert math.isfinite(score_all(bare, plain, suitable_nodes(bare, plain), worth)[0])
