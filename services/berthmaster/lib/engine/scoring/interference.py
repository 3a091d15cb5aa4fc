"""Slowdown of two jobs that share one GPU, from the use that each makes of a whole GPU. Pure.

The mean speed of the pair, relative to each job alone, falls with the product of both utilizations:

    speed = 1.02 - 0.40 * a * b        a, b: share of the time with a running kernel, 0 to 1

The product is the chance of two kernels at the same time. Jobs at 0.45 and 0.5 come to 0.93, and
so do jobs at 0.25 and 0.9, because a calm job leaves gaps for a busy one. The sums are 0.95 and
1.15, although both pairs share equally well.

Source: least squares on the 1,388 pairs that Lucid measured (ASPLOS 2023), with time slicing on one
GPU; ``scripts/bench colocate`` repeats the fit on pairs that it has not seen. Memory bandwidth,
batch size and precision added nothing beyond the product.
"""

from collections.abc import Hashable, Mapping
from typing import Final, NamedTuple, TypeVar

SPEED_ALONE: Final = 1.02
SPEED_PER_PRODUCT: Final = 0.40
MOST_PRODUCT: Final = 0.219  # above it, more than 0.5 % of the pairs run below ``LEAST_SPEED``
LEAST_SPEED: Final = 0.85  # mean of both jobs
MOST_MEMORY: Final = 0.9  # of the GPU's memory, by both jobs together


def pair_speed(a: float, b: float) -> float:
    """Return the expected mean speed of two jobs with these utilizations, 0 to 1."""
    return min(1.0, SPEED_ALONE - SPEED_PER_PRODUCT * a * b)


def may_share(a: float, b: float) -> bool:
    """Return whether two jobs share a GPU without harm, as far as their utilizations tell."""
    return a * b <= MOST_PRODUCT


class Packable(NamedTuple):
    """Use of a whole GPU by a job. ``place``: only jobs with an equal place may share a GPU."""

    place: Hashable
    utilization: float
    memory: float  # share of the GPU's memory


N = TypeVar("N")


def pairs_that_share(jobs: Mapping[N, Packable]) -> list[tuple[N, N]]:
    """Return disjoint pairs that may share a GPU, so that each pair frees one.

    The busiest job is paired first, with the busiest possible partner. Calm jobs fit any partner
    and are left for later. Example: of jobs at 0.9, 0.5, 0.4 and 0.2, the first
    takes the last (0.18), and the two others share (0.20).
    """
    left = sorted(jobs, key=lambda name: -jobs[name].utilization)
    found: list[tuple[N, N]] = []
    while left:
        name = left.pop(0)
        mine = jobs[name]
        for at, other in enumerate(left):
            theirs = jobs[other]
            if (
                theirs.place == mine.place
                and may_share(mine.utilization, theirs.utilization)
                and mine.memory + theirs.memory <= MOST_MEMORY
            ):
                found.append((name, other))
                del left[at]
                break
    return found
