"""The states of a workload: every state, every event, and every allowed change.

``TRANSITIONS`` is the table, and ``after`` looks up the next state. Example: ``after(State.PLACED,
Claimed)`` is ``State.CLAIMED``. ``after(State.QUEUED, Claimed)`` raises ``NoSuchTransition``,
because an executor may claim only a placement.

Rules of this file:

- An event without a row for the state changes nothing and is an error. The reader decides which
  writer is at fault.
- The three endings have no rows: nothing follows an ending.
- ``cancel_requested``, ``move_requested``, ``eviction_requested``, ``resize_requested``,
  ``resized``, ``held``, ``hold_released``, ``released``, ``checkpointed``, ``progressed``,
  ``idle_changed``, ``limit_exceeded`` and ``reprioritized`` change no state. Their rows show in
  which states the events are legal.
- ``committed`` concerns a divided gang: from then on the pods of all parts may start.
- ``checkpointed`` may follow the end of its attempt, until the next attempt begins.
- ``carried`` has no row. The event starts a workload in a log built by `berth recover`, in any
  state.

Writers of each event:

    writer               events
    gateway              submitted, released, reprioritized, held, hold_released, cancel_requested,
                         move_requested, idle_changed, limit_exceeded; checkpointed and
                         progressed of a tenant; cancelled before the claim; submitted of
                         trials, and the end of a job by its trials alone
    resolver             placed, withdrawn, eviction_requested, resize_requested, divided,
    committed;
                         evicted or failed, for a lost cluster or a passed deadline; submitted of
                         parts, cancelled of unplaced parts, and the end of a divided attempt
    executor (owner)     all other events of a claimed attempt
    MultiKueue           the events of resolver and executor, for Workloads of a hub
    `berth recover`      carried

The fold (fold.py) checks the rest: an event names the open attempt and its cluster, and ``after``
is the workload's previous sequence.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from berthmaster.lib.messages.workload import (
    Admitted,
    Cancelled,
    CancelRequested,
    Checkpointed,
    Claimed,
    Committed,
    Divided,
    Evicted,
    EvictionRequested,
    Failed,
    Held,
    HoldReleased,
    IdleChanged,
    LimitExceeded,
    MoveRequested,
    Placed,
    Progressed,
    Released,
    Reprioritized,
    Resized,
    ResizeRequested,
    Running,
    State,
    Submitted,
    Succeeded,
    Withdrawn,
    WorkloadEvent,
)

__all__ = ["State"]

ENDED: Final = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})
HELD: Final = frozenset({State.CLAIMED, State.ADMITTED, State.RUNNING})  # owned by an executor
BEGUN: Final = HELD | {State.DIVIDED}  # ended only by a request or a decision
LIVE: Final = HELD | {State.PLACED}  # states with allocated capacity

Ending = Succeeded | Failed | Cancelled
ENDING_OF: Final[Mapping[State, type[Ending]]] = MappingProxyType(
    {State.SUCCEEDED: Succeeded, State.FAILED: Failed, State.CANCELLED: Cancelled}
)
STATE_OF: Final[Mapping[type[Ending], State]] = MappingProxyType(
    {kind: state for state, kind in ENDING_OF.items()}
)

_HELD_ROW: Final[dict[type[WorkloadEvent], State]] = {
    Evicted: State.QUEUED,
    Succeeded: State.SUCCEEDED,
    Failed: State.FAILED,
    Cancelled: State.CANCELLED,
}

TRANSITIONS: Final = MappingProxyType[State, dict[type[WorkloadEvent], State]](
    {
        State.NEW: {Submitted: State.QUEUED},
        State.QUEUED: {
            Placed: State.PLACED,
            Divided: State.DIVIDED,
            Released: State.QUEUED,
            Reprioritized: State.QUEUED,
            Held: State.QUEUED,
            HoldReleased: State.QUEUED,
            Checkpointed: State.QUEUED,
            Succeeded: State.SUCCEEDED,  # only of a job that ends with the report of its trials
            Cancelled: State.CANCELLED,
            Failed: State.FAILED,
        },
        State.DIVIDED: {
            Committed: State.DIVIDED,
            Reprioritized: State.DIVIDED,
            CancelRequested: State.DIVIDED,
            Held: State.DIVIDED,
            HoldReleased: State.DIVIDED,
            MoveRequested: State.DIVIDED,
            Checkpointed: State.DIVIDED,
            Evicted: State.QUEUED,
            Succeeded: State.SUCCEEDED,
            Failed: State.FAILED,
            Cancelled: State.CANCELLED,
        },
        State.PLACED: {
            Withdrawn: State.QUEUED,
            Claimed: State.CLAIMED,
            Reprioritized: State.PLACED,
            Held: State.PLACED,
            HoldReleased: State.PLACED,
            MoveRequested: State.PLACED,
            Cancelled: State.CANCELLED,
        },
        State.CLAIMED: {
            Admitted: State.ADMITTED,
            Running: State.RUNNING,
            Committed: State.CLAIMED,
            Reprioritized: State.CLAIMED,
            CancelRequested: State.CLAIMED,
            Held: State.CLAIMED,
            HoldReleased: State.CLAIMED,
            MoveRequested: State.CLAIMED,
            EvictionRequested: State.CLAIMED,
            Checkpointed: State.CLAIMED,
            **_HELD_ROW,
        },
        State.ADMITTED: {
            Running: State.RUNNING,
            Reprioritized: State.ADMITTED,
            CancelRequested: State.ADMITTED,
            Held: State.ADMITTED,
            HoldReleased: State.ADMITTED,
            MoveRequested: State.ADMITTED,
            EvictionRequested: State.ADMITTED,
            Checkpointed: State.ADMITTED,
            **_HELD_ROW,
        },
        State.RUNNING: {
            Running: State.RUNNING,  # again, after a pod moved
            Reprioritized: State.RUNNING,
            CancelRequested: State.RUNNING,
            Held: State.RUNNING,
            HoldReleased: State.RUNNING,
            MoveRequested: State.RUNNING,
            EvictionRequested: State.RUNNING,
            ResizeRequested: State.RUNNING,
            Resized: State.RUNNING,
            Checkpointed: State.RUNNING,
            Progressed: State.RUNNING,
            IdleChanged: State.RUNNING,
            LimitExceeded: State.RUNNING,
            **_HELD_ROW,
        },
        State.SUCCEEDED: {},
        State.FAILED: {},
        State.CANCELLED: {},
    }
)


class NoSuchTransition(Exception):
    """The table has no row for the event in this state. Nothing was changed."""

    def __init__(self, state: State, event: type[WorkloadEvent]) -> None:
        super().__init__(f"a workload that is {state} cannot take {event.__name__}")
        self.state = state
        self.event = event


def after(state: State, event: type[WorkloadEvent]) -> State:
    """Return the next state. Raises NoSuchTransition."""
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise NoSuchTransition(state, event) from None
