"""The baselines for comparison: the order of jobs, and the treatment of jobs that do not fit.

::

    policy    order                      a job that does not fit
    fifo      arrival                    blocks all others
    sjf       minimum expected duration  blocks all others
    easy      arrival                    the first gets a reservation
    bestfit   arrival                    is skipped

No baseline stops a job, and all take the tightest node. ``easy`` is EASY backfill: other jobs may
start before the first that does not fit, if they end before its start or use capacity that it will
not use.
"""

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from berthmaster.lab.simulate.model import Job, SimulationError

OURS: Final = "berthmaster"

Blocked = Literal["waits", "skipped", "reserved"]


class QueueEntry(NamedTuple):
    """One job in an order."""

    job: Job
    number: int  # in the list, by arrival
    expected_s: float  # as given, or as predicted at the arrival


class QueuePolicy(NamedTuple):
    """The decisions of a baseline."""

    name: str
    order: Callable[[QueueEntry], tuple[float, ...]]
    blocked: Blocked


def _arrival(one: QueueEntry) -> tuple[float, ...]:
    return (one.number,)


def _shortest(one: QueueEntry) -> tuple[float, ...]:
    return (one.expected_s, one.number)


_ALL: Final = (
    QueuePolicy("fifo", _arrival, "waits"),
    QueuePolicy("sjf", _shortest, "waits"),
    QueuePolicy("easy", _arrival, "reserved"),
    QueuePolicy("bestfit", _arrival, "skipped"),
)
BASELINES: Final = {policy.name: policy for policy in _ALL}
POLICIES: Final = (OURS, *BASELINES)


def baseline(name: str) -> QueuePolicy:
    """Return a baseline by name. Raises SimulationError."""
    if name not in BASELINES:
        raise SimulationError(f"policy is {name!r}; it is one of {', '.join(POLICIES)}")
    return BASELINES[name]
