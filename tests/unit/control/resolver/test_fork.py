"""A fork holds the same and shares nothing that either of them could change."""

import functools
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest

from berthmaster.control.resolver.core.answers.fork import fork
from berthmaster.control.resolver.core.deciding.decide import decide
from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.families import encode
from tests.support.builders import alive, job, node, profile
from tests.support.deciding import World


class Slotted:
    __slots__ = ("__dict__", "kept", "left_out")

    def __init__(self) -> None:
        self.kept = [1]
        self.also: dict[str, list[int]] = {"a": [1]}


class Frozen(msgspec.Struct, frozen=True):
    values: dict[str, int]


class Loose(msgspec.Struct):
    number: int
    names: tuple[str, ...] = ()
    maybe: Frozen | None = None
    values: dict[str, int] = {}


@dataclass(frozen=True)
class Dated:
    values: list[int] = field(default_factory=list)


def test_containers_keep_their_kinds_and_go_their_own_ways() -> None:
    original: dict[str, Any] = {
        "dict": {"a": [1]},
        "counter": Counter("aab"),
        "ordered": OrderedDict(b=1, a=2),
        "set": {1, 2},
        "deque": deque([[1], [2]], maxlen=2),
        "list": [[1], (2,), "x"],
    }
    made = fork(original)
    assert made == original
    assert [type(each) for each in made.values()] == [type(each) for each in original.values()]
    assert made["deque"].maxlen == 2
    made["dict"]["a"].append(2)
    made["deque"][0].append(2)
    made["list"][0].append(2)
    made["counter"]["a"] += 1
    assert (original["dict"], original["list"][0], original["deque"][0]) == ({"a": [1]}, [1], [1])
    assert original["counter"]["a"] == 2


def test_objects_and_loose_structs_are_copied_and_frozen_ones_shared() -> None:
    frozen = Frozen({"a": 1})
    original = [Slotted(), Loose(1, ("n",), frozen, {"a": 1}), Dated([1])]
    made = fork(original)
    assert isinstance(made[0], Slotted)
    made[0].kept.append(2)
    made[0].also["a"].append(2)
    assert isinstance(made[1], Loose)
    made[1].values["b"] = 2
    assert isinstance(made[2], Dated)
    made[2].values.append(2)
    assert made[1].maybe is frozen
    first, second, third = original
    assert isinstance(first, Slotted)
    assert not hasattr(made[0], "left_out")
    assert (first.kept, first.also) == ([1], {"a": [1]})
    assert (second, third) == (Loose(1, ("n",), frozen, {"a": 1}), Dated([1]))


def test_what_is_referred_to_twice_is_copied_once_and_circles_end() -> None:
    shared = [1]
    holder = Slotted()
    holder.also = {"one": shared, "two": shared}
    holder.kept = [holder]  # type: ignore[list-item]
    made = fork(holder)
    assert made.also["one"] is made.also["two"]
    assert made.kept[0] is made  # type: ignore[comparison-overlap]


def test_a_view_of_an_array_stays_one_of_the_copy() -> None:
    holder: Any = Slotted()
    holder.whole = np.arange(12).reshape(3, 4)
    holder.row = holder.whole[1]
    holder.columns = (holder.whole[:, 0], holder.whole[:, 3])
    made = fork(holder)
    made.whole[1, 0] = 99
    assert (made.row.tolist(), made.columns[0].tolist()) == ([99, 5, 6, 7], [0, 99, 8])
    made.columns[1][:] = 0
    assert made.whole[:, 3].tolist() == [0, 0, 0]
    assert holder.whole.tolist() == np.arange(12).reshape(3, 4).tolist()


def test_memory_of_an_array_is_that_of_the_copy() -> None:
    holder: Any = Slotted()
    holder.whole = np.arange(6).reshape(2, 3)
    holder.memory = memoryview(holder.whole)
    made = fork(holder)
    made.memory[1, 2] = 99
    assert (made.whole.tolist(), holder.whole.tolist()) == (
        [[0, 1, 2], [3, 4, 99]],
        [[0, 1, 2], [3, 4, 5]],
    )


def test_a_bound_method_is_bound_to_the_copy_and_functions_are_shared() -> None:
    holder: Any = Slotted()
    holder.add = holder.kept.append
    holder.tell = Slotted.__init__
    holder.mine = functools.partial(len)  # no state of its own that anybody changes
    with pytest.raises(TypeError):
        fork(holder)
    del holder.mine
    holder.reset = holder.__init__
    holder.length = len
    made = fork(holder)
    assert (made.tell, made.length) == (holder.tell, len)
    made.add(2)
    assert (made.kept, holder.kept) == ([1, 2], [1])
    made.reset()
    assert (made.kept, holder.kept) == ([1], [1])


def test_a_generator_under_way_is_refused() -> None:
    with pytest.raises(TypeError, match="generator that is under way"):
        fork({"walk": (n for n in range(3))})


def test_a_twin_of_what_a_resolver_knows_decides_the_same_and_goes_its_own_way() -> None:
    world = World()
    for name in ("c1", "c2"):
        world.fact(profile(name), alive(name), node(name, gpus=4))
    for number in range(3):
        world.submit(job(f"j{number}", gpus=3))
    world.settle()
    world.submit(job("small"))
    know = world.resolver.know
    made = fork(know, sharing=(Workload,))
    made_plan = decide(made, world.policy, world.now_s, "x")
    plan = decide(know, world.policy, world.now_s, "x")
    assert plan is not None
    assert made_plan is not None
    assert encode(made_plan.decision) == encode(plan.decision)
    made.take_fact(node("c2", "n2", gpus=8), 99, world.now_s)
    made.fleet.arrange()
    assert len(made.fleet.names) == 3
    assert (len(know.fleet.names), know.view.fleet_sequence) == (2, world.fleet_sequence)
