"""A board after anything that may happen to a fleet, against all scores made anew: in C where that
is built, and by numpy."""

from collections.abc import Callable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from berthmaster.lib.engine.fleet.arrays import Touched
from berthmaster.lib.engine.fleet.fleet import Fleet, Holding, Overlay
from berthmaster.lib.engine.fleet.needs import kind_of, suitable_nodes
from berthmaster.lib.engine.scoring.pod_mix import PodType
from berthmaster.lib.engine.scoring.score_cache import ScoreCache, Scorecard
from berthmaster.lib.engine.scoring.value import NOT_HERE, score_all, worth_of
from berthmaster.lib.lifecycle.workload import key
from berthmaster.lib.messages.fleet import NodeReport
from berthmaster.lib.messages.workload import PodSet, Topology
from tests.support.builders import node, pod_set
from tests.unit.lib.engine.fleets import CLUSTERS, HCA, UNHURRIED, pods, reports

LEARNED = worth_of(((PodType(1, 470, 3000), 5), (PodType(1, 810, 1000), 9)))
NAMES = [(cluster, f"n{at}") for cluster in CLUSTERS for at in range(4)]


class Story:
    """A fleet, what happened to it, and boards that saw it happen."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.board = ScoreCache(cards_kept=2)
        self.twin = ScoreCache(cards_kept=2, compiled=False)
        self.worth = worth_of(())
        self.reports: dict[tuple[str, str], NodeReport] = {}
        self.held: dict[str, Holding] = {}
        self.cordoned: set[tuple[str, str]] = set()

    def put(self, report: NodeReport) -> None:
        self.reports[report.cluster, report.node] = report
        self.fleet.put_node(report)

    def drop(self, name: tuple[str, str]) -> None:
        self.reports.pop(name, None)
        self.fleet.drop_node(*name)

    def hold(self, job: str, held: Holding) -> None:
        self.held[job] = held
        self.fleet.hold(key("t", job), [held])

    def release(self, job: str) -> None:
        self.held.pop(job, None)
        self.fleet.release(key("t", job))

    def tries(self, coming: Holding, need: PodSet) -> None:
        """Somebody looks at the fleet as it would be with one more, and without any other."""
        held = self.held
        with Overlay(self.fleet) as overlay:
            overlay.take("coming", [coming])
            self.held = held | {"coming": coming}
            self.check(need)
            for job in held:
                overlay.free(job, [held[job]])
            self.held = {"coming": coming}
            self.check(need)
        self.held = held

    def cordon(self, name: tuple[str, str]) -> None:
        self.cordoned ^= {name}
        self.fleet.set_cordon(*name, name in self.cordoned)

    def card(self, need: PodSet) -> Scorecard:
        self.fleet.arrange()
        suitable = suitable_nodes(self.fleet, need)
        cards = [
            board.card(self.fleet, kind_of(need), need, suitable, self.worth)
            for board in (self.board, self.twin)
        ]
        for array in ("scores", "best", "best_slot"):
            one, other = (getattr(card, array) for card in cards)
            assert one.tobytes() == other.tobytes(), array
        return cards[0]

    def anew(self) -> Fleet:
        """The same fleet, told all of it at once."""
        fresh = Fleet()
        for job, held in self.held.items():
            fresh.hold(key("t", job), [held])
        for name in self.cordoned:
            fresh.set_cordon(*name, True)
        for name in sorted(self.reports, reverse=True):
            fresh.put_node(self.reports[name])
        fresh.arrange()
        return fresh

    def check(self, need: PodSet) -> None:
        card, fresh = self.card(need), self.anew()
        for array in ("cpu", "memory", "gpu", "whole", "milli", "open", "free_milli", "all_milli"):
            fast, slow = getattr(self.fleet.arrays, array), getattr(fresh.arrays, array)
            np.testing.assert_array_equal(fast, slow, err_msg=array)
        for resource, left in fresh.arrays.pieces.items():
            np.testing.assert_array_equal(self.fleet.arrays.pieces[resource], left)
        scores = score_all(fresh, need, suitable_nodes(fresh, need), self.worth)
        assert card.scores.tobytes() == scores.tobytes()
        for cluster in range(len(fresh.clusters)):
            first, last = fresh.span(cluster)
            assert card.best[cluster] == scores[first:last].max()
            if card.best[cluster] > NOT_HERE:
                assert card.best_slot[cluster] == first + int(scores[first:last].argmax())


@st.composite
def steps(draw: st.DrawFn) -> Callable[[Story], None]:
    name = draw(st.sampled_from(NAMES))
    job = draw(st.sampled_from(["a", "b", "c", "d"]))
    held = Holding(
        *name,
        draw(st.sampled_from([0, 500, 3000])),
        draw(st.sampled_from([0, 1024])),
        draw(st.sampled_from([100, 142, 470, 1000])),
        draw(st.sampled_from([(), (0,), (1,), (3,), (9,), (0, 2)])),
        gpu_memory_mib=draw(st.sampled_from([0, 0, 9984, 40_000])),
        pieces=draw(st.sampled_from([(), (), ((HCA, 1),), (("none.example/x", 1),)])),
    )
    need = draw(pods())
    report = draw(reports(*name))
    happenings: list[Callable[[Story], None]] = [
        lambda story: story.put(report),
        lambda story: story.hold(job, held),
        lambda story: story.hold(job, held),
        lambda story: story.release(job),
        lambda story: story.tries(held, need),
        lambda story: story.cordon(name),
        lambda story: story.drop(name),
        lambda story: setattr(story, "worth", LEARNED),
    ]
    return happenings[draw(st.integers(0, len(happenings) - 1))]


@settings(UNHURRIED, max_examples=150)
@given(
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=6, unique=True),
    st.lists(st.one_of(steps(), steps(), st.integers(0, 2)), max_size=30),
    st.tuples(pods(), pods(), pods()),
)
def test_a_card_is_what_scoring_all_nodes_anew_would_give(
    names: list[tuple[str, str]],
    happens: list[Callable[[Story], None] | int],
    kinds: tuple[PodSet, ...],
) -> None:
    story = Story()
    for at, name in enumerate(names):
        story.put(node(*name, gpus=at % 4, cpu_milli=6000, node_memory_mib=8192))
    for step in happens:
        if isinstance(step, int):
            story.check(kinds[step])
        else:
            step(story)
    for need in kinds:
        story.check(need)


def test_a_board_that_slept_through_more_than_the_log_keeps_looks_at_all() -> None:
    story, need = Story(), pod_set(gpu_milli=470, cpu_milli=0)
    story.fleet.touched = Touched(kept=4)
    for at in range(40):
        story.put(node("c1", f"n{at:02}", gpus=2))
    story.check(need)
    for at in range(5):
        story.hold("a", Holding("c1", f"n{at:02}", 0, 0, 470, (0,)))
        story.check(need)
    end = story.fleet.touched.end
    for at in range(30):
        story.hold(f"j{at}", Holding("c1", f"n{at:02}", 0, 0, 470, (1,)))
    assert story.fleet.touched.since(end) is None
    assert slots_since(story, story.fleet.touched.end) == []
    story.check(need)


def slots_since(story: Story, end: int) -> list[int]:
    slots = story.fleet.touched.since(end)
    assert slots is not None
    return list(slots.tolist())


def test_a_slot_that_changed_often_is_looked_at_once() -> None:
    story = Story()
    for at in range(3):
        story.put(node("c1", f"n{at}", gpus=2))
    story.fleet.arrange()
    end = story.fleet.touched.end
    for _ in range(5):
        story.hold("a", Holding("c1", "n1", 0, 0, 470, (0,)))
    story.hold("b", Holding("c1", "n0", 0, 0, 470, (0,)))
    assert slots_since(story, end) == [1, 0]


def test_the_card_that_was_not_asked_for_longest_goes_and_comes_back_right() -> None:
    story = Story()
    story.put(node(gpus=4))
    kinds = [pod_set(gpu_milli=milli) for milli in (100, 470, 810)]
    first = story.card(kinds[0])
    assert story.card(kinds[0]) is first
    story.card(kinds[1])
    assert story.board.array_bytes == 2 * 4
    story.card(kinds[2])
    assert story.board.array_bytes == 2 * 4  # two are kept
    assert story.card(kinds[0]) is not first
    for need in kinds:
        story.check(need)


def test_equal_pods_of_other_names_and_numbers_share_a_card() -> None:
    assert kind_of(pod_set(name="a", count=3)) == kind_of(pod_set(name="b", count=9))
    assert kind_of(pod_set(gpu_milli=100)) != kind_of(pod_set(gpu_milli=200))
    # Nor is a node another to one pod by what its gang is to do, or by what it would rather have.
    for fields in (
        {"prefer_gpu_models": ("T4",)},
        {"topology": Topology(max_pods_a_node=1)},
        {"topology": Topology(same="node"), "prefer_gpu_models": ("T4",)},
    ):
        assert kind_of(pod_set(**fields)) == kind_of(pod_set())
    rack = kind_of(pod_set(topology=Topology(same="rack")))
    assert rack != kind_of(pod_set())
    assert rack == kind_of(
        pod_set(prefer_gpu_models=("T4",), topology=Topology(same="rack", nodes="fewest"))
    )
