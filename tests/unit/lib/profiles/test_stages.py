"""In which stage a job is."""

from typing import Any

import pytest

from berthmaster.lib.profiles.stages import Seen, stage_of

BASE = Seen(
    busy=0.9,
    busy_median=0.9,
    has_worked=True,
    write_bytes_per_s=0.0,
    stepped_ago_s=10.0,
    step_every_s=30.0,
    checkpoint_ago_s=None,
    window_s=30.0,
)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, "steady"),
        ({"stepped_ago_s": None, "has_worked": False, "busy": 0.0}, "startup"),
        ({"stepped_ago_s": None, "has_worked": True}, "steady"),  # it writes no progress lines
        ({"checkpoint_ago_s": 12.0}, "checkpoint"),
        ({"checkpoint_ago_s": 60.0}, "steady"),
        ({"busy": 0.1, "write_bytes_per_s": 300e6}, "checkpoint"),
        ({"busy": 0.9, "write_bytes_per_s": 300e6}, "steady"),  # it writes beside its steps
        ({"stepped_ago_s": 100.0}, "evaluation"),
        ({"stepped_ago_s": 80.0}, "steady"),  # its next report may be late
        ({"stepped_ago_s": 100.0, "busy": 0.0}, "steady"),  # it hangs or waits: not evaluation
        ({"stepped_ago_s": 100.0, "step_every_s": None}, "steady"),
    ],
)
def test_stage_of_follows_steps_and_series(changed: dict[str, Any], expected: str) -> None:
    assert stage_of(BASE._replace(**changed)) == expected
