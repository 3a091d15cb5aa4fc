"""Queues with parents: what of the settings is believed, and by what right a job is had."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from berthmaster.lib.engine.queueing.queues import (
    GPU,
    Level,
    QueueShare,
    QueueTree,
    Tier,
    ask_of,
    beyond,
    gpus_in,
    right_along,
)
from berthmaster.lib.messages.control import QueueAmounts, QueueSetting
from tests.support.builders import job

ONE_GPU = ask_of(job(gpus=1))


def tree(**queues: dict[str, Any]) -> QueueTree:
    return QueueTree({name: QueueSetting(queue=name, **fields) for name, fields in queues.items()})


def gpus(**milli: int) -> Any:
    return lambda name: {GPU: milli.get(name, 0)}


def test_a_path_leads_from_a_queue_to_the_top() -> None:
    made = tree(a={"weight": 2.0}, b={"parent": "a"}, c={"parent": "b"}, d={"parent": "a"})
    assert [share.queue for share in made.path("c")] == ["c", "b", "a"]
    assert made.children == {"a": ["b", "d"], "b": ["c"]}
    assert made.path("never-set") == (QueueShare("never-set"),)
    assert list(made.roots()) == ["a"]


def test_what_cannot_be_believed_is_left_out() -> None:
    made = tree(
        self={"parent": "self"},
        x={"parent": "y"},
        y={"parent": "z"},
        z={"parent": "y"},
        orphan={"parent": "nobody"},
        default={},
        of_default={"parent": "default"},
        kueue={"via": "worker"},
        below_kueue={"parent": "kueue"},
        top={},
        kueue_below={"parent": "top", "via": "hub"},
    )
    assert made.parents == {"x": ("y",)}  # y and z go round in a circle, x is only above them


def test_a_parent_that_says_nothing_has_what_its_children_have_together() -> None:
    made = tree(
        top={},
        mid={"parent": "top", "deserved_gpu_milli": 9000},
        a={"parent": "mid", "guarantee_gpu_milli": 2000, "deserved_gpu_milli": 5000},
        b={"parent": "mid", "guarantee_gpu_milli": 3000},
    )
    assert made.share("mid")[3:5] == ({GPU: 5000}, {GPU: 9000})
    assert made.share("top")[3:5] == ({GPU: 5000}, {GPU: 9000})


def test_the_worked_example() -> None:
    made = tree(
        research={"guarantee_gpu_milli": 10_000},
        vision={"parent": "research", "guarantee_gpu_milli": 6000},
        speech={"parent": "research", "guarantee_gpu_milli": 2000},
    )
    borrowed, guaranteed = Tier.BORROWED, Tier.GUARANTEED
    for used, levels in (
        ({"research": 20_000, "vision": 5000}, (guaranteed, guaranteed)),
        ({"research": 9000, "vision": 6000}, (borrowed, guaranteed)),
        ({"research": 9500, "vision": 6000}, (borrowed, borrowed)),
    ):
        assert made.levels("vision", gpus(**used), ONE_GPU, ()) == (
            Level("vision", levels[0], 0),
            Level("research", levels[1], 0),
        )


def test_children_that_are_guaranteed_more_than_their_parent_have_it_among_themselves() -> None:
    made = tree(
        top={"guarantee_gpu_milli": 2000},
        a={"parent": "top", "guarantee_gpu_milli": 2000},
        b={"parent": "top", "guarantee_gpu_milli": 1000},
    )
    full = gpus(top=2000, a=1000)
    tiers = [level.tier for level in made.levels("a", full, ONE_GPU, ())]
    assert tiers == [Tier.GUARANTEED, Tier.BORROWED]


def test_parts_of_a_whole_are_compared_by_what_each_names() -> None:
    assert gpus_in({GPU: 3, "gpu/A": 2, "gpu/B": 2, "cpu": 9}) == 4
    assert beyond({GPU: 4}, [{"gpu/A": 2}, {GPU: 2}]) == {}
    assert beyond({GPU: 3}, [{"gpu/A": 2}, {GPU: 2}]) == {GPU: (4, 3)}
    assert beyond({"gpu/A": 3}, [{"gpu/A": 2}, {"gpu/A": 2}]) == {GPU: (4, 3), "gpu/A": (4, 3)}
    assert beyond({GPU: 9}, [{"cpu": 1}]) == {"cpu": (1, 0)}


def test_the_limit_that_binds_is_named() -> None:
    made = tree(
        top={"capability_gpu_milli": 3000},
        mid={"parent": "top", "max_running_jobs": 2},
        leaf={"parent": "mid", "capability_gpu_milli": 9000},
    )
    path = made.path("leaf")

    def refusal(used: dict[str, int], running: dict[str, int], ask: Any = ONE_GPU) -> str:
        count = lambda name: running.get(name, 0)  # noqa: E731
        return right_along(path, gpus(**used), count, ask, ("T4",)).refusal

    assert refusal({"top": 2000}, {"mid": 1}) == ""
    assert refusal({"top": 3000}, {}) == (
        "the queue top, above its own, is at its capability of 3 GPUs"
    )
    assert refusal({}, {"mid": 2}) == "the queue mid, above its own, runs the 2 jobs that it may"
    assert refusal({"leaf": 9000}, {}) == "its queue is at its capability of 9 GPUs"


def test_models_that_two_queues_bar_between_them_leave_none() -> None:
    made = tree(
        top={"resources": {"gpu/T4": QueueAmounts(capability=0)}},
        leaf={"parent": "top", "resources": {"gpu/H100": QueueAmounts(capability=0)}},
    )
    path, models = made.path("leaf"), ("H100", "T4")
    nobody = lambda _: 0  # noqa: E731
    assert right_along(path, gpus(), nobody, ONE_GPU, (*models, "V100")).barred == ("H100", "T4")
    assert right_along(path, gpus(), nobody, ONE_GPU, models).refusal == (
        "the queue top, above its own, is at its capability of 0 T4"
    )


@settings(max_examples=200, deadline=None)
@given(
    parents=st.lists(st.integers(-1, 7), min_size=8, max_size=8),
    milli=st.lists(st.integers(0, 5), min_size=8, max_size=8),
    order=st.permutations(range(8)),
)
def test_whatever_is_set_makes_the_same_tree_in_whatever_order(
    parents: list[int], milli: list[int], order: list[int]
) -> None:
    def made(numbers: list[int]) -> QueueTree:
        return QueueTree(
            {
                f"q{n}": QueueSetting(
                    queue=f"q{n}",
                    parent=f"q{parents[n]}" if parents[n] >= 0 else "",
                    guarantee_gpu_milli=milli[n] or None,
                )
                for n in numbers
            }
        )

    one, other = made(list(range(8))), made(order)
    for n in range(8):
        path = one.path(f"q{n}")
        assert path == other.path(f"q{n}")
        assert len({share.queue for share in path}) == len(path)
        assert one.keeps(f"q{n}") == other.keeps(f"q{n}")
