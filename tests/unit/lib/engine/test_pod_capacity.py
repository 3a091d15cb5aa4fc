"""How many pods nodes hold: what is kept up to date against counting anew, and against trying."""

from collections.abc import Callable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from berthmaster.lib.engine.fitting.fit import bind_gang
from berthmaster.lib.engine.fleet.fleet import Fleet
from berthmaster.lib.engine.fleet.needs import suitable_nodes
from berthmaster.lib.engine.scoring.score_cache import room_of
from berthmaster.lib.messages.workload import PodSet
from tests.support.builders import node, pod_set
from tests.unit.lib.engine.fleets import UNHURRIED, fleets, pods
from tests.unit.lib.engine.test_score_cache import NAMES, Story, steps


def check(story: Story, need: PodSet) -> None:
    story.fleet.arrange()
    suitable = suitable_nodes(story.fleet, need)
    room = story.card(need).room_for(story.fleet, need, suitable)
    fresh = story.anew()
    expected = room_of(fresh, need, suitable_nodes(fresh, need), slice(None))
    np.testing.assert_array_equal(room.nodes, expected)
    sums = [int(expected[fresh.arrays.cluster_of == n].sum()) for n in range(len(fresh.clusters))]
    assert room.clusters.tolist() == sums


@settings(UNHURRIED, max_examples=60)
@given(
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=6, unique=True),
    st.lists(st.one_of(steps(), steps(), st.integers(0, 1)), max_size=25),
    st.tuples(pods(), pods()),
)
def test_room_that_follows_is_what_counting_anew_would_give(
    names: list[tuple[str, str]],
    happens: list[Callable[[Story], None] | int],
    kinds: tuple[PodSet, ...],
) -> None:
    story = Story()
    for at, name in enumerate(names):
        story.put(node(*name, gpus=at % 4, cpu_milli=6000, node_memory_mib=8192))
    for step in happens:
        if isinstance(step, int):
            check(story, kinds[step])
        else:
            step(story)
    for need in kinds:
        check(story, need)


@settings(UNHURRIED, max_examples=80)
@given(fleets(), pods())
def test_cluster_seats_pods_up_to_room(fleet: Fleet, need: PodSet) -> None:
    suitable = suitable_nodes(fleet, need)
    room = room_of(fleet, need, suitable, slice(None))
    for number in range(len(fleet.clusters)):
        most = int(room[fleet.arrays.cluster_of == number].sum())
        for count in {min(most, 30), most + 1} - {0}:
            if count > 40:  # pods that need nothing
                continue
            gang = replace(need, count=count)
            seating = bind_gang(fleet, number, [gang], [suitable])
            assert (seating is not None) == (count <= most)


def test_nodes_that_have_less_than_nothing_hold_no_pod_that_asks_for_nothing() -> None:
    fleet = Fleet()
    fleet.put_node(node(name="n1", gpus=0, cpu_milli=1000, foreign_cpu_milli=2000))
    fleet.put_node(node(name="n2", gpus=0, cpu_milli=1000))
    fleet.arrange()
    nothing = pod_set(gpus=0, cpu_milli=0, memory_mib=0)
    room = room_of(fleet, nothing, suitable_nodes(fleet, nothing), slice(None))
    assert room.tolist() == [0, 4096]
