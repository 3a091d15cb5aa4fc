import pytest

from berthmaster.control.archivist.core.pace import Pace


def test_turns_come_at_the_rate_after_a_first_burst() -> None:
    pace = Pace(per_s=10, burst=2)
    waits = [pace.take(100.0) for _ in range(5)]
    assert waits == pytest.approx([0, 0, 0.1, 0.2, 0.3])
    # A second later the debt of three turns is paid and the burst is full again, not more.
    assert [pace.take(101.0) for _ in range(3)] == pytest.approx([0, 0, 0.1])


def test_a_clock_that_goes_back_gives_no_turns() -> None:
    pace = Pace(per_s=10, burst=1)
    assert pace.take(100.0) == 0
    assert pace.take(50.0) == pytest.approx(0.1)
    assert pace.take(100.0) == pytest.approx(0.2)


@pytest.mark.parametrize(("per_s", "burst"), [(0, 1), (-1, 1), (1, 0)])
def test_a_pace_that_never_gives_a_turn_is_refused(per_s: float, burst: float) -> None:
    with pytest.raises(ValueError, match="per_s > 0 and burst >= 1"):
        Pace(per_s, burst)
