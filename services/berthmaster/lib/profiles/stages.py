"""In which stage a job is, from its progress lines and what it did in the last half minute. Pure.

- startup: before its first step. Of a job that writes no progress lines: until its GPUs have run
  kernels for `WORKS` of a half minute.
- checkpoint: it reported one within the half minute. Or it writes to disks at `WRITES` a second and
  pod or more, and its GPUs do less than `CALM` of their median.
- evaluation: its GPUs work, and its step has stood still for `STILL` times as long as one of its
  reports usually takes to come.
- steady: the rest.

Example: reports come every 30 s, the last said step 400 and came 100 s ago, the GPUs are busy: the
job evaluates.
"""

from typing import Final, NamedTuple

from berthmaster.lib.messages.profile import Stage

WORKS: Final = 0.2
CALM: Final = 0.5
WRITES: Final = 20e6
STILL: Final = 3.0


class Seen(NamedTuple):
    """What is known at the end of a half minute. Times in seconds; None = not known."""

    busy: float | None  # share of time in which its GPUs ran kernels
    busy_median: float | None  # of the attempt so far
    has_worked: bool  # whether its GPUs ever did `WORKS` in this attempt
    write_bytes_per_s: float | None  # to disks, of one pod
    stepped_ago_s: float | None  # since its step last rose; None = it has reported none
    step_every_s: float | None  # usual time between two reports with a higher step
    checkpoint_ago_s: float | None
    window_s: float


def stage_of(seen: Seen) -> Stage:
    if seen.checkpoint_ago_s is not None and seen.checkpoint_ago_s <= seen.window_s:
        return "checkpoint"
    busy = seen.busy or 0.0
    if seen.stepped_ago_s is None and not seen.has_worked:
        return "startup"
    median = seen.busy_median or 0.0
    if (seen.write_bytes_per_s or 0.0) >= WRITES and busy < CALM * median:
        return "checkpoint"
    if seen.stepped_ago_s is not None and seen.step_every_s is not None:
        stands = seen.stepped_ago_s > STILL * max(seen.step_every_s, seen.window_s)
        if stands and busy >= WORKS:
            return "evaluation"
    return "steady"
