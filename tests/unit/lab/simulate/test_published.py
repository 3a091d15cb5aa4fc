"""Published policies as the benchmarks play them: whom they stop, and where FGD puts a pod."""

import numpy as np
import pytest

from berthmaster.lab.simulate.baseline_fleet import Allocation, Floats, FreeRoom, Ints, Shape
from berthmaster.lab.simulate.figures import summarize
from berthmaster.lab.simulate.model import Job, told
from berthmaster.lab.simulate.placement_rules import FirstFit, Fragmentation, mix_of, pod_sets_of
from berthmaster.lab.simulate.traces import MURI, even_fleet, fleet_named, parse_muri
from scripts.benchmarks.muri import PUBLISHED_S
from scripts.benchmarks.packers import Fgd
from scripts.benchmarks.preemptive import play
from scripts.benchmarks.trace_files import traces_folder
from tests.unit.lab.simulate.lists import job, times
from tests.unit.lab.simulate.test_placement_rules import fleet, small
from tests.unit.lab.simulate.test_policies import STORY

PLAIN = [job("a", 0, 100), job("b", 10, 10), job("c", 50, 1)]
ENDS: dict[str, tuple[str, list[Job], dict[str, float]]] = {
    "srtf stops what has more left": (
        "srtf", STORY, {"short": 23, "wide": 71, "long": 150, "medium": 191}
    ),
    "two GPUs are enough for all": ("srtf", PLAIN, {"a": 100, "b": 20, "c": 51}),
    # Four events pass while a runs: three stretches of 2 s or more, and one of 1 s that is lost.
    "a stop costs its overhead at every event": (
        "srtf", [one._replace(overhead_s=2.0) for one in PLAIN], {"a": 107, "b": 20, "c": 51}
    ),
    "las2d serves newcomers first": (
        "las2d",
        [job("old", 0, 9000, gpus=2), job("new", 4000, 100, gpus=2)],
        {"old": 9100, "new": 4100},
    ),
    # Both want all GPUs. Time since submission / time run of old and new at 5200 s: 1.3 and 1, so
    # old runs; at 6400 s 1.23 and 2, so new does; at 7600 s 1.46 and 1.5, so new goes on.
    "themis serves the unfairest first": (
        "themis",
        [job("old", 0, 9000, gpus=2), job("new", 4000, 3000, gpus=2)],
        {"old": 12000, "new": 8200},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ENDS)
def test_preemptive_policy_ends_jobs_in_its_order(case: str) -> None:
    policy, jobs, ends = ENDS[case]
    found = times(play(policy, even_fleet(1, 2), jobs))
    assert {name: end_s for name, (_, end_s) in found.items()} == ends


# Muri (SIGCOMM'22): the averages that its simulator printed; trace 1 takes too long for a test.
@pytest.mark.skipif(traces_folder(MURI["muri-1"]) is None, reason="no traces: set BERTH_TRACES")
@pytest.mark.parametrize("policy", ["srtf", "srsf"])
def test_preemptive_policies_reproduce_the_published_averages(policy: str) -> None:
    folder = traces_folder(MURI["muri-1"])
    assert folder is not None
    jobs = told(parse_muri((folder / MURI["muri-3"]).read_text()), "exact", 0)
    summary = summarize(play(policy, fleet_named("8x8", clusters=1, nodes=None), jobs))
    assert summary.completion.mean_s == pytest.approx(PUBLISHED_S["muri-3", policy], abs=1.0)
    assert summary.makespan_s == pytest.approx(8_174_135.28)


def test_what_a_pod_would_fragment_is_what_is_lost_once_it_has_come() -> None:
    ground = fleet(4, 2, 1)
    listed = [
        *small(count=3),
        *small(gpus=2),
        *small(milli=500, count=2),
        *small(gpus=2, milli=300),
    ]
    fragmentation = Fragmentation(ground, mix_of(listed))
    rule = Fgd(ground, mix_of(listed))
    ground.take(Allocation(0, 0, 0, 600, (2,)))

    def lost(room: FreeRoom) -> list[float]:
        return [float(each) for each in fragmentation.lost(ground.all, room)]

    before = lost(ground.room)
    for pods in listed:
        shape = Shape.of(pods)
        grown = rule.grown(ground.all, ground.room, shape)
        for slot in np.flatnonzero(ground.room.fits(shape)).tolist():
            allocation = ground.allocate_one(pods, Only(slot))
            assert allocation is not None
            after = lost(ground.room)[slot]
            ground.give_back([allocation])
            told = grown[slot, allocation.gpus[0]] if shape.shares_a_gpu else grown[slot]
            assert told == pytest.approx(after - before[slot]), (shape, slot)


class Only(FirstFit):
    """This node and no other."""

    def __init__(self, slot: int) -> None:
        self._slot = slot

    def scores(self, slots: Ints, room: FreeRoom, shape: Shape) -> Floats:
        del room, shape
        return np.where(slots == self._slot, 1.0, 0.0)


def test_least_fragmenting_leaves_whole_gpus_to_those_who_need_them() -> None:
    jobs = [job("w", 0, 1, gpus=2), job("p", 0, 1, milli=500)]
    ground = fleet(2, 1)
    [allocation] = ground.allocate(jobs[1].request, Fgd(ground, mix_of(pod_sets_of(jobs)))) or ()
    assert allocation.node == 1  # on the pair's node it would cost the pair
    [other] = ground.allocate(jobs[1].request, Fgd(ground, mix_of(pod_sets_of(jobs)))) or ()
    assert other == allocation  # nor is another GPU begun
