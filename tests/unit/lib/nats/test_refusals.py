"""How fast refusals go out: no faster than others can bear, and in time also on a busy machine."""

import pytest

from berthmaster.lib.nats.endpoints import refusals_due


@pytest.mark.parametrize(
    ("since_s", "due"), [(0.0, 16), (0.004, 16), (0.008, 32), (0.012, 48), (0.1, 64), (60.0, 64)]
)
def test_after_a_longer_pause_more_go_up_to_a_bound(since_s: float, due: int) -> None:
    assert refusals_due(since_s) == due
