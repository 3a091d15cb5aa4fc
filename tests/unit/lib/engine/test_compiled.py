"""Scorecards in C: the same bits as numpy on fleets of some size, and no call ends the process.

What may happen to a fleet while a board follows it is in test_board.py, for both.
"""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from berthmaster.control.resolver.core.answers.fork import fork
from berthmaster.lib.engine.fitting.fit import bind_gang, bind_one
from berthmaster.lib.engine.fleet.fleet import WHOLE, Fleet, Holding
from berthmaster.lib.engine.fleet.needs import kind_of, suitable_nodes
from berthmaster.lib.engine.scoring.compiled import COMPILED, cards, nodes_of
from berthmaster.lib.engine.scoring.pod_mix import PodType, Sample
from berthmaster.lib.engine.scoring.pressure import LARGEST_BLOCK, Dear, useful_room
from berthmaster.lib.engine.scoring.score_cache import (
    PodCapacity,
    ScoreCache,
    Scorecard,
    ask_of,
    can_seat,
    seat_of_one,
)
from berthmaster.lib.engine.scoring.value import NOT_HERE, Worth, score_all, worth_of
from berthmaster.lib.messages.workload import PodSet, Topology
from tests.support.builders import node, pod_set
from tests.unit.lib.engine.fleets import MODELS, UNHURRIED, pods

pytestmark = pytest.mark.skipif(
    not COMPILED, reason="engine.scoring._cards is not built here (no compiler or headers?)"
)

NODES = 60
MIXES: tuple[Sample, ...] = (
    (),  # no CPU is scarce
    ((PodType(1, 470, 3000), 5), (PodType(1, 810, 1000), 9), (PodType(1, 140, 500), 3)),
    ((PodType(1, 100, 100), 50), (PodType(1, 1000, 4000), 20), (PodType(2, 1000, 9000), 3)),
)
NEEDS = (
    pod_set(gpus=0, cpu_milli=2000),
    pod_set(gpus=2),
    pod_set(gpu_milli=470, cpu_milli=500),
    pod_set(gpu_milli=470, cpu_milli=500, gpu_models=("T4",)),
)


def filled(seed: int, nodes: int = NODES) -> Fleet:
    """Nodes of many kinds in three clusters, some closed or sick, all with something on them."""
    chance, fleet = random.Random(seed), Fleet()
    for at in range(nodes):
        gpus = chance.choice([0, 1, 2, 4, 8])
        report = node(
            f"c{at % 3}",
            f"n{at:03}",
            gpus=gpus,
            model=chance.choice(MODELS),
            cpu_milli=chance.randrange(4, 64) * 1000,
            foreign_milli=tuple(chance.choice([0, 0, 1, 190, 530, 1000]) for _ in range(gpus)),
            unhealthy=(0,) if chance.random() < 0.1 else (),
            schedulable=chance.random() < 0.9,
        )
        fleet.put_node(report)
    fleet.arrange()
    for _ in range(nodes):
        change(fleet, chance)
    return fleet


def change(fleet: Fleet, chance: random.Random) -> None:
    name = chance.choice(fleet.names)
    milli = chance.choice([30, 470, 999, WHOLE])
    gpus = tuple(chance.sample(range(8), chance.randrange(3)))
    held = Holding(*name, chance.randrange(9000), 1024, milli, gpus)
    sign = chance.choice([1, 1, -1])
    slot = fleet.slot(*name)
    row = fleet.arrays.gpu[slot].tolist() if slot is not None else []
    if any(free + milli > WHOLE for at, free in enumerate(row) if at in gpus):
        sign = 1  # no GPU has more free than there is
    fleet.charge([held], sign)


def scarce(fleet: Fleet, worth: Worth, chance: random.Random) -> Worth:
    """The same where some nodes' GPUs are dear, or blocks of GPUs, or both, or neither."""
    draws = np.random.default_rng(chance.randrange(99))
    factor = draws.choice([1.0, 1.07, 1.5, 3.6], len(fleet.names))
    blocks = draws.choice([0.0, 0.31, 1.7], LARGEST_BLOCK + 1).cumsum()
    dear = Dear(chance.choice([None, factor]), chance.choice([None, blocks]))
    return worth._replace(dear=dear, known_losses={}, listed={})


MANY = filled(3, 900)  # clusters of more than a block


@settings(UNHURRIED, max_examples=150)
@given(st.integers(0, 1 << 32), pods(), pods(), st.sampled_from(MIXES), st.integers(0, 40))
def test_cards_in_c_have_the_bits_of_those_that_numpy_keeps(
    seed: int, need: PodSet, other: PodSet, sample: Sample, changes: int
) -> None:
    fleet, chance = filled(seed), random.Random(seed)
    worth = scarce(fleet, worth_of(sample), chance)
    boards = ScoreCache(), ScoreCache(compiled=False)
    for asked_for in (need, other, need, need):
        suitable, kind = suitable_nodes(fleet, asked_for), kind_of(asked_for)
        ours, twins = (b.card(fleet, kind, asked_for, suitable, worth) for b in boards)
        assert ours.scores.tobytes() == score_all(fleet, asked_for, suitable, worth).tobytes()
        assert ours.scores.tobytes() == twins.scores.tobytes()
        assert ours.best.tobytes() == twins.best.tobytes()
        assert ours.best_slot.tobytes() == twins.best_slot.tobytes()
        for _ in range(changes):
            change(fleet, chance)


@pytest.mark.parametrize("need", NEEDS)
@pytest.mark.parametrize("sample", MIXES)
@pytest.mark.parametrize("seed", range(4))  # of what is scarce
@pytest.mark.parametrize("cpu_milli", [None, 1 << 51, 1 << 62, -(1 << 62)])
def test_blocks_of_nodes_have_them_too(
    need: PodSet, sample: Sample, cpu_milli: int | None, seed: int
) -> None:
    fleet, worth = MANY, scarce(MANY, worth_of(sample), random.Random(seed))
    before = fleet.arrays.cpu.copy()
    if cpu_milli is not None:
        fleet.arrays.cpu[300] = cpu_milli  # more than any node has: its block is scored one by one
    suitable = suitable_nodes(fleet, need)
    card = ScoreCache().card(fleet, kind_of(need), need, suitable, worth)
    scores = score_all(fleet, need, suitable, worth)
    assert card.scores.tobytes() == scores.tobytes()
    for cluster in range(len(fleet.clusters)):
        first, last = fleet.span(cluster)
        best = first + int(scores[first:last].argmax())
        assert (card.best_slot[cluster], card.best[cluster]) == (best, scores[best])
    fleet.arrays.cpu[:] = before


def test_a_board_that_is_copied_with_its_fleet_follows_the_copy() -> None:
    fleet, board, worth, chance = filled(1), ScoreCache(), worth_of(MIXES[1]), random.Random(1)
    suitable = suitable_nodes(fleet, NEEDS[1])
    asked_for = kind_of(NEEDS[1]), NEEDS[1], suitable, worth
    before = board.card(fleet, *asked_for).scores.tobytes()
    both: list[Any] = [fleet, board]
    other_fleet, other_board = fork(both)
    for _ in range(20):
        change(other_fleet, chance)
    after = other_board.card(other_fleet, *asked_for).scores
    assert after.tobytes() == score_all(other_fleet, NEEDS[1], suitable, worth).tobytes() != before
    assert board.card(fleet, *asked_for).scores.tobytes() == before


def test_it_is_c_that_keeps_the_usual_cards() -> None:
    fleet = filled(1)
    for need in NEEDS:
        assert ask_of(need, suitable_nodes(fleet, need), worth_of(())) is not None


@settings(UNHURRIED, max_examples=100)
@given(st.integers(0, 1 << 32), pods(), st.sampled_from(MIXES))
def test_pod_gets_equal_gpus_in_c(seed: int, need: PodSet, sample: Sample) -> None:
    fleet, chance = filled(seed), random.Random(seed)
    worth, suitable = scarce(fleet, worth_of(sample), chance), suitable_nodes(fleet, need)
    card = ScoreCache().card(fleet, kind_of(need), need, suitable, worth)
    before = all_of(fleet)
    for slot in range(len(fleet.names)):
        where = fleet, slot, need, suitable, worth
        assert bind_one(*where, card=card) == bind_one(*where)
    assert all_of(fleet) == before


def test_it_is_c_that_seats_the_usual_pod() -> None:
    fleet, need, worth = filled(5), NEEDS[1], worth_of(MIXES[1])
    suitable = suitable_nodes(fleet, need)
    card = ScoreCache().card(fleet, kind_of(need), need, suitable, worth)
    slot = int(card.best_slot[0])
    found = seat_of_one(fleet, slot, card)
    assert found == bind_one(fleet, slot, need, suitable, worth)[0].gpus
    fleet.columns_only[0] = False
    assert seat_of_one(fleet, slot, card) is None  # numpy knows


# Gangs

SETS = st.lists(
    st.builds(
        lambda need, count, topology: replace(need, count=count, topology=topology),
        pods(),
        st.integers(1, 9),
        st.sampled_from([None, None, Topology(max_pods_a_node=1), Topology(nodes="fewest")]),
    ),
    min_size=1,
    max_size=3,
)


def all_of(fleet: Fleet) -> list[bytes]:
    return [
        array.tobytes()
        for name, array in fleet_arrays(fleet).items()
        if name not in ("log", "newest")
    ]


@settings(UNHURRIED, max_examples=150)
@given(st.integers(0, 1 << 32), SETS, st.sampled_from(MIXES))
def test_gang_gets_equal_seats_in_c(seed: int, drawn: list[PodSet], sample: Sample) -> None:
    fleet, chance = filled(seed), random.Random(seed)
    worth = scarce(fleet, worth_of(sample), chance)
    sets = [replace(pods, name=f"s{at}") for at, pods in enumerate(drawn)]
    suitables = [suitable_nodes(fleet, pods) for pods in sets]
    board = ScoreCache()
    of_sets = [
        board.card(fleet, kind_of(pods), pods, suitable, worth)
        for pods, suitable in zip(sets, suitables, strict=True)
    ]
    before = all_of(fleet)
    for cluster in range(len(fleet.clusters)):
        if can_seat(fleet, cluster, sets, of_sets):
            ours = bind_gang(fleet, cluster, sets, suitables, worth, of_sets)
            assert all_of(fleet) == before
            twin = bind_gang(fleet, cluster, sets, suitables, worth, None)
            assert ours == twin


@settings(UNHURRIED, max_examples=100)
@given(st.integers(0, 1 << 32), pods(), st.integers(0, 40))
def test_room_is_counted_by_c_as_without_it(seed: int, need: PodSet, changes: int) -> None:
    fleet, chance = filled(seed), random.Random(seed)
    suitable = suitable_nodes(fleet, need)
    card = ScoreCache().card(fleet, kind_of(need), need, suitable, worth_of(()))
    ours, twin = PodCapacity(), PodCapacity()
    for _ in range(3):
        ours.follow(fleet, need, suitable, card.nodes, card.ask)
        twin.follow(fleet, need, suitable)
        assert ours.nodes.tolist() == twin.nodes.tolist()
        assert ours.clusters.tolist() == twin.clusters.tolist()
        for _ in range(changes):
            change(fleet, chance)


def test_a_gang_of_several_sets_is_seated_by_c() -> None:
    fleet, board, worth = filled(5, 300), ScoreCache(), worth_of(MIXES[1])
    sets = (replace(NEEDS[1], name="w", count=6), replace(NEEDS[0], name="driver"))
    suitables = [suitable_nodes(fleet, pods) for pods in sets]
    of_sets = [
        board.card(fleet, kind_of(pods), pods, suitable, worth)
        for pods, suitable in zip(sets, suitables, strict=True)
    ]
    assert [can_seat(fleet, cluster, sets, of_sets) for cluster in range(3)] == [True] * 3
    bound = bind_gang(fleet, 0, sets, suitables, worth, of_sets)
    assert bound is not None
    assert [binding.pod for binding in bound.bindings] == [
        *(f"w-{n}" for n in range(6)),
        "driver-0",
    ]
    linked = (replace(sets[0], topology=Topology(gpu_domain="required")),)
    assert not can_seat(fleet, 0, linked, of_sets[:1])  # numpy knows


# Calls that are wrong


def fleet_arrays(fleet: Fleet) -> dict[str, Any]:
    return {
        "cpu": fleet.arrays.cpu,
        "memory": fleet.arrays.memory,
        "gpu": fleet.arrays.gpu.T,
        "whole": fleet.arrays.whole,
        "milli": fleet.arrays.milli,
        "a_gpu": fleet.arrays.a_gpu,
        "open": fleet.arrays.open,
        "cluster_of": fleet.arrays.cluster_of,
        "starts": fleet.arrays.starts,
        "log": fleet.touched.slots,
        "newest": fleet.touched.newest,
    }


def asked(**other: Any) -> dict[str, Any]:
    amounts: dict[str, Any] = {"cpu_milli": 1, "memory_mib": 1, "gpu_count": 0, "gpu_milli": 500}
    amounts |= {"takes": 0.5, "left_over": 0.5, "slope": 0.5, "offset": 0.5}
    amounts |= {"a_cpu": 0.5, "short_of_cpu": 0.5, "own": 0.5}
    amounts |= {"dear": None, "breaks": None}
    losses = np.zeros(WHOLE + 1)
    return {"nodes": np.ones(NODES, np.bool_), "gpus": None, "losses": losses} | amounts | other


BREAKS = np.linspace(0.0, -3.0, LARGEST_BLOCK + 1)
DEAR = st.sampled_from([{}, {"dear": np.full(NODES, 1.25)}, {"breaks": BREAKS}])
ARRAYS = list(fleet_arrays(Fleet()))
SPOILT: dict[str, Callable[[Any], Any]] = {
    "too short": lambda a: np.ascontiguousarray(a[:, :-1] if a.ndim == 2 else a[:-1]),
    "too long": lambda a: np.concatenate([a, a], axis=-1),
    "other items": lambda a: a.astype(np.complex64),
    "other byte order": lambda a: a.astype(a.dtype.newbyteorder()),
    "objects": lambda a: a.astype(object),
    "with gaps": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "one more axis": lambda a: a[np.newaxis],
    "no axis": lambda a: a[(0,) * a.ndim],
    "no array": lambda a: None,
    "a list": lambda a: a.tolist(),
    "bytes": lambda a: a.tobytes(),
}
WRONG = (TypeError, ValueError, BufferError)


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("how", SPOILT)
def test_a_fleet_of_wrong_arrays_is_refused(name: str, how: str) -> None:
    arrays = fleet_arrays(filled(1))
    arrays[name] = SPOILT[how](arrays[name])
    bytewise = how == "other byte order" and arrays[name].dtype == np.bool_
    if bytewise or (name in ("starts", "log") and how in ("too short", "too long")):
        cards.Nodes(**arrays)  # of any length: what they say is checked where it is used
        return
    with pytest.raises(WRONG):
        cards.Nodes(**arrays)


@pytest.mark.parametrize(
    "other",
    [
        {"nodes": None},
        {"nodes": np.ones(NODES)},
        {"nodes": np.ones((1, NODES), np.bool_)},
        {"gpus": np.ones(NODES, np.bool_)},
        {"gpus": np.ones((8, NODES), np.bool_).T},
        {"losses": np.zeros(WHOLE)},
        {"losses": np.zeros(WHOLE + 2)},
        {"losses": np.zeros(WHOLE + 1, np.float32)},
        {"dear": np.ones(NODES, np.int64)},
        {"breaks": BREAKS[:-1]},
        {"breaks": np.append(BREAKS, 0.0)},
        {"breaks": BREAKS.astype(np.float32)},
        {"cpu_milli": 1.5},
        {"takes": "1"},
        {"unknown": 1},
    ],
)
def test_a_wrong_ask_is_refused(other: dict[str, Any]) -> None:
    with pytest.raises(WRONG):
        cards.Ask(**asked(**other))


def test_amounts_that_are_no_int64_are_refused() -> None:
    with pytest.raises(OverflowError):
        cards.Ask(**asked(cpu_milli=1 << 63))


def test_an_ask_of_another_fleet_is_refused() -> None:
    fleet = filled(1)
    nodes, card = nodes_of(fleet), Scorecard(fleet)
    arrays = card.scores, card.best, card.best_slot
    for other in (
        {"nodes": np.ones(NODES - 1, np.bool_)},
        {"gpus": np.ones((NODES - 1, 8), np.bool_)},
        {"gpus": np.ones((NODES, 7), np.bool_)},
        {"dear": np.ones(NODES + 1)},
    ):
        with pytest.raises(ValueError, match="long, not"):
            cards.make(nodes, cards.Ask(**asked(**other)), *arrays)


@pytest.mark.parametrize("spoilt", range(3))
@pytest.mark.parametrize("how", SPOILT)
def test_a_card_of_wrong_arrays_is_refused(spoilt: int, how: str) -> None:
    fleet = filled(1)
    nodes, ask, card = nodes_of(fleet), cards.Ask(**asked()), Scorecard(fleet)
    arrays: list[Any] = [card.scores, card.best, card.best_slot]
    arrays[spoilt] = SPOILT[how](arrays[spoilt])
    make: Any = cards.make
    update: Any = cards.update
    with pytest.raises(WRONG):
        make(nodes, ask, *arrays)
    with pytest.raises(WRONG):
        update(nodes, ask, *arrays, 0, 1, 0)


def test_a_card_that_cannot_be_written_is_refused() -> None:
    fleet = filled(1)
    card = Scorecard(fleet)
    card.best.flags.writeable = False
    with pytest.raises(WRONG):
        cards.make(nodes_of(fleet), cards.Ask(**asked()), card.scores, card.best, card.best_slot)


def test_other_things_than_nodes_and_an_ask_are_refused() -> None:
    fleet = filled(1)
    nodes, ask, card = nodes_of(fleet), cards.Ask(**asked()), Scorecard(fleet)
    arrays = card.scores, card.best, card.best_slot
    make: Any = cards.make
    update: Any = cards.update
    for args in ((), (nodes, ask), (ask, nodes, *arrays), (nodes, None, *arrays)):
        with pytest.raises(TypeError):
            make(*args)
        with pytest.raises(TypeError):
            update(*args, 0, 1, 0)
    part: tuple[Any, ...]
    for part in ((0, 1), (0, 1, 0, 0), ("0", 1, 0), (0, None, 0), (0, 1, 1.5)):
        with pytest.raises(TypeError):
            update(nodes, ask, *arrays, *part)


@pytest.mark.parametrize(
    ("first", "last"), [(-1, 1), (2, 1), (0, 1 << 20), (1 << 40, 1 << 41), (-(1 << 40), 0)]
)
def test_a_part_of_the_log_that_there_is_not_is_refused(first: int, last: int) -> None:
    fleet = filled(1)
    card = Scorecard(fleet)
    arrays = card.scores, card.best, card.best_slot
    with pytest.raises(ValueError, match="reach"):
        cards.update(nodes_of(fleet), cards.Ask(**asked()), *arrays, first, last, 0)
    with pytest.raises(OverflowError):
        cards.update(nodes_of(fleet), cards.Ask(**asked()), *arrays, 0, 1 << 70, 0)


def test_wrong_gangs_are_refused() -> None:
    fleet = filled(1)
    nodes, ask = nodes_of(fleet), cards.Ask(**asked(gpu_count=1))
    seat: Any = cards.seat
    for args in ((nodes,), (ask, (), 0, 1), (nodes, [(ask, 1, 1)], 0, 1), (nodes, ((1, 2),), 0, 1)):
        with pytest.raises(TypeError):
            seat(*args)
    for first, last in ((-1, 1), (1, 1), (0, NODES + 1)):
        with pytest.raises(ValueError, match="nodes"):
            seat(nodes, ((ask, 1, 1),), first, last)
    for count, limit in ((0, 1), (1, 0), (-1, 1)):
        with pytest.raises(ValueError, match="amounts"):
            seat(nodes, ((ask, count, limit),), 0, 1)
    many = cards.Ask(**asked(gpu_count=1 << 40, losses=None))
    with pytest.raises(ValueError, match="amounts"):
        seat(nodes, ((many, 1, 1),), 0, 1)
    rooms, sums = np.zeros(NODES, np.int16), np.zeros(3, np.int64)
    room: Any = cards.room
    for wrong in (
        (rooms[:-1], sums, 9),
        (rooms, sums[:-1], 9),
        (sums, sums, 9),
        (rooms, sums, 1 << 20),
    ):
        with pytest.raises(WRONG):
            room(nodes, ask, *wrong, -1, 0, 0)
    with pytest.raises(ValueError, match="amounts"):
        room(nodes, cards.Ask(**asked(gpu_count=1, gpu_milli=0)), rooms, sums, 9, -1, 0, 0)


FLEET = filled(2)
NUMBERS = st.sampled_from([0, 1, 2, NODES - 1, NODES, -1, 999, 1000, 1001, 2**63 - 1, -(2**63)])


@settings(UNHURRIED, max_examples=200)
@given(st.dictionaries(st.sampled_from(ARRAYS), st.lists(NUMBERS, min_size=1)), st.data())
def test_arrays_may_say_anything(told: dict[str, list[int]], data: st.DataObject) -> None:
    arrays = {name: array.copy() for name, array in fleet_arrays(FLEET).items()}
    for name, numbers in told.items():
        if name not in ("a_gpu", "open"):
            np.put(arrays[name], np.arange(len(numbers)) * 7 % arrays[name].size, numbers)
    card = Scorecard(FLEET)
    rooms, sums = np.zeros(NODES, np.int16), np.zeros(3, np.int64)
    card.best_slot[:] = data.draw(NUMBERS)
    card.best[:] = NOT_HERE
    gpus = data.draw(st.sampled_from([None, np.ones((NODES, 8), np.bool_)]))
    losses = data.draw(st.sampled_from([None, np.zeros(WHOLE + 1)]))
    ask = cards.Ask(
        **asked(
            gpus=gpus, losses=losses, gpu_count=data.draw(st.integers(-1, 2)), **data.draw(DEAR)
        )
    )
    nodes = cards.Nodes(**arrays)
    for _ in range(2):
        try:
            cards.make(nodes, ask, card.scores, card.best, card.best_slot)
        except ValueError as error:
            assert "cluster" in str(error)  # noqa: PT017  (either will do, as long as both return)
        try:
            cards.update(nodes, ask, card.scores, card.best, card.best_slot, 0, 200, 0)
        except ValueError as error:
            assert "cluster" in str(error)  # noqa: PT017
        try:
            cards.room(nodes, ask, rooms, sums, 4096, -1, 0, 0)
            cards.room(nodes, ask, rooms, sums, 4096, 0, 200, 0)
        except ValueError as error:
            assert "cluster" in str(error)  # noqa: PT017
        try:
            cards.seat(nodes, ((ask, 5, 2),), 0, NODES)
        except ValueError as error:
            assert "amounts" in str(error)  # noqa: PT017


@pytest.mark.parametrize("cpu_milli_a_gpu", [0.0, 7000.0])
@pytest.mark.parametrize("sample", MIXES)
@pytest.mark.parametrize("seed", range(3))
def test_room_value_is_equal_in_c(seed: int, sample: Sample, cpu_milli_a_gpu: float) -> None:
    fleet, hole = filled(seed), worth_of(sample).hole
    ours, twins = (
        useful_room(fleet, hole, cpu_milli_a_gpu, compiled=compiled) for compiled in (True, False)
    )
    assert ours.tobytes() == twins.tobytes()


@pytest.mark.parametrize("spoilt", [1, 2, 3])
@pytest.mark.parametrize("how", SPOILT)
def test_wrong_arrays_of_room_are_refused(spoilt: int, how: str) -> None:
    fleet = filled(1)
    useful: Any = cards.useful
    arrays = [nodes_of(fleet), worth_of(()).hole, fleet.arrays.capacity_milli]
    handed = [*arrays, np.zeros(len(fleet.names)), 0.0, 0.0]
    useful(*handed)
    handed[spoilt] = SPOILT[how](handed[spoilt])
    with pytest.raises(WRONG):
        useful(*handed)
