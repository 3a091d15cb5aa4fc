"""JSON of what is no message, whatever stands in it."""

import json

import numpy as np
import pytest

from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.messages.workload import PodSet
from berthmaster.lib.runtime.visible_text import dumps, pretty


def test_messages_among_plain_values_are_written_as_on_the_bus() -> None:
    told = {"up": PodSet(gpus=2), "states": {State.RUNNING: 3}, "pair": (1, "a"), 7: None}
    assert json.loads(dumps(told)) == {
        "up": {"gpus": 2},
        "states": {"running": 3},
        "pair": [1, "a"],
        "7": None,
    }
    assert b"\n" not in dumps(told)


def test_arrays_and_numbers_of_numpy_are_lists_and_numbers() -> None:
    told = {"free": np.array([[1, 2], [3, 4]]), "share": np.float64(0.5), "count": np.int64(3)}
    right = {"free": [[1, 2], [3, 4]], "share": 0.5, "count": 3}
    assert json.loads(dumps(told)) == right
    assert json.loads(pretty(told)) == right


def test_what_people_see_is_indented_and_the_same_for_equal_values() -> None:
    one = {"b": 1, "a": [PodSet(gpus=1)], "set": {"y", "x"}}
    other = {"set": {"x", "y"}, "a": [PodSet(gpus=1)], "b": 1}
    assert pretty(one) == pretty(other)
    assert pretty({"b": 1, "a": []}) == b'{\n  "a": [],\n  "b": 1\n}'


def test_what_json_lacks_is_an_error_or_what_the_caller_makes_of_it() -> None:
    with pytest.raises(TypeError):
        dumps({"odd": object})
    assert dumps({"odd": object}, unknown=lambda value: "?") == b'{"odd":"?"}'
    assert dumps([float("nan"), float("inf")]) == b"[null,null]"
