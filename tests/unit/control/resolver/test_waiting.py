"""The lines of those who wait: what leaves them leaves nothing behind."""

from berthmaster.lib.engine.fleet.needs import shape_of
from berthmaster.lib.engine.queueing.lines import MAX_STALE, Line, Rank
from berthmaster.lib.lifecycle.workload import key
from tests.support.builders import job

PLACE = Rank(due_at_s=0.0)


def test_a_line_behind_a_first_that_never_goes_does_not_grow_with_those_who_give_up() -> None:
    stuck = job("stuck")
    line = Line(("default", b"", None, 1), stuck, shape_of(stuck))
    line.add(key("team", "stuck"), (0, 0, PLACE, 1))
    for number in range(2, 5000):
        name = key("team", f"j{number}")
        line.add(name, (0, 0, PLACE, number))
        if number % 10:
            del line.members[name]
    waiting = []
    while (first := line.first()) is not None:
        waiting.append(first[1])
        line.pop()
    assert waiting == [key("team", "stuck"), *(key("team", f"j{n}") for n in range(10, 5000, 10))]
    assert len(line._heap) <= 2 * len(waiting) + MAX_STALE
