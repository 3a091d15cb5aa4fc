"""Whether a job that waits may stop another of its own queue and priority. Pure.

Among equals nobody has a right to room: what counts is when all of them will be done. With the
shortest rest first jobs end earliest on average (Schrage, 1968); on a fleet a job takes as many
times more of it as it is wide, so the least rest by GPUs goes first (Smith's rule). GPUs count a
little less than once: a wide job that is stopped leaves whole nodes, a narrow one pieces of some.

Rules of this file:

- A job's ``weight`` is its rest times its GPUs to the power WIDTH. Who is stopped weighs CLEARLY
  times as much as the one that waits, and none of those that are stopped is done before it. Where
  either is learned, not stated, that is CLEARLY_LEARNED times.
- Those that wait stand in the order of their weights too.
- Of several sets that may be stopped for one that waits, the set goes of which the fewest would end
  within a given time: a job with a rest of 100 s is as much as ten with one of 1,000 s.
- It pays if the rest that is waited for otherwise, the longest of theirs, is GAIN times what all of
  them wait instead, or more: the rest of the one that waits, what is done again, and starting
  again, which counts once more for each time that a job was moved before.
- So where rests are known nobody is stopped for one whom it would stop: while one runs its rest
  shrinks, and that of the other stays. Where they are learned, the rest is what a job needs for an
  ending (life_tables.py): that grows as a job runs for longer than most of its size, and each turn
  is then longer than the one before.

Example: a job of 8 GPUs and 30 h runs, and one of 1 GPU and 1 h waits. It weighs 129 times as much;
the other begins 30 h earlier, it waits an hour and what it does again.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

WIDTH: Final = 0.7
CLEARLY: Final = 1.5
CLEARLY_LEARNED: Final = 2.0
GAIN: Final = 1.2


class Rest(NamedTuple):
    left_s: float
    gpus: float
    stated: bool = True  # by the one who submitted it

    @property
    def weight(self) -> float:
        """The least goes first."""
        return float(self.left_s * self.gpus**WIDTH)


class Stopped(NamedTuple):
    rest: Rest
    again_s: float  # until it is where it was: done again, and starting again


def may_stop(waits: Rest, runs: Stopped) -> bool:
    """Whether one that waits may stop this one, by itself."""
    clearly = CLEARLY if waits.stated and runs.rest.stated else CLEARLY_LEARNED
    return runs.rest.weight > clearly * waits.weight and pays(waits, [runs])


def ends_a_s(rest: Rest) -> float:
    """Of how many jobs the end is put off by stopping this one, for each second that it waits."""
    return 1.0 / max(rest.left_s, 1.0)


def pays(waits: Rest, stopped: Sequence[Stopped]) -> bool:
    """Whether it pays to stop all of these for one that waits."""
    saved_s = max(each.rest.left_s for each in stopped)
    return saved_s >= GAIN * sum((waits.left_s + each.again_s for each in stopped), 0.0)
