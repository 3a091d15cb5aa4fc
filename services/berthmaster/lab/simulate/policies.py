"""The baselines that are compared with ours: whose turn it is, and what others do with room.

::

    policy    order                    who does not fit
    fifo      as they came             holds up all others
    sjf       least expected duration  holds up all others
    easy      as they came             the first is reserved for
    bestfit   as they came             is passed over

None stops a job, and all take the tightest node. ``easy`` is EASY backfill: others may go before
the first that does not fit if they end before it can begin, or use room that it will not.
"""

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from berthmaster.lab.simulate.model import Job, SimulationError

OURS: Final = "berthmaster"

Blocked = Literal["waits", "skipped", "reserved"]


class QueueEntry(NamedTuple):
    """One job as an order sees it."""

    job: Job
    number: int  # in the list, by arrival
    expected_s: float  # as told, or as predicted when it came


class QueuePolicy(NamedTuple):
    """How a baseline decides."""

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
    """By name. Raises SimulationError."""
    if name not in BASELINES:
        raise SimulationError(f"policy is {name!r}; it is one of {', '.join(POLICIES)}")
    return BASELINES[name]
