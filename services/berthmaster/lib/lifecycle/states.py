"""The life of a workload: every state, every event, and nothing else that can change one.

Rules of this file:

- The table is the law. An event that has no row for the state changes nothing and is an error
  (``NoSuchTransition``); a reader decides whose fault that is.
- Only three endings exist, and none has a row: after an ending nothing happens.
- ``cancel_requested``, ``move_requested``, ``eviction_requested``, ``resize_requested``,
  ``resized``, ``held``, ``hold_released``, ``released``, ``checkpointed``, ``progressed`` and
  ``reprioritized`` change no state. They stand in the table all the same, so that a reader sees by
  eye where they are legal.
  ``committed`` is about a part of a gang, and about the job that is divided: from then on the
  pods of all parts may start.
  ``checkpointed`` may come when its attempt is over, as long as there is no other.
- ``carried`` has no row: it begins a workload in a log that `berth recover` has built, in the state
  that it names.
- Who may write what: `berth recover` ``carried``; gateway ``submitted``, ``released``,
  ``reprioritized``, ``held``, ``hold_released``, ``cancel_requested``, ``move_requested``,
  ``checkpointed`` and ``progressed`` that a tenant tells, and ``cancelled`` before the claim;
  resolver ``placed``, ``withdrawn``, ``eviction_requested``,
  ``resize_requested``, ``divided``, ``committed``, when a person declared the cluster lost or the
  job's own deadline has passed, ``evicted`` or ``failed``, and of parts ``submitted`` and, of such
  as are with no cluster, ``cancelled``; of a divided job whatever ends its attempt; the claimant
  all the rest. On a hub the reconciler is resolver and claimant.

What does not fit the table and is therefore checked beside it (fold.py): the attempt and cluster
that an event names must be those of the open attempt, and ``after`` must be the aggregate's
previous sequence.
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

__all__ = ["State"]  # and all that is defined here

ENDED: Final = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})
HELD: Final = frozenset({State.CLAIMED, State.ADMITTED, State.RUNNING})  # by an executor
BEGUN: Final = HELD | {State.DIVIDED}  # only a wish, or a decision, ends what it has
LIVE: Final = HELD | {State.PLACED}  # its placement takes room

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
            Running: State.RUNNING,  # a pod moved: where they really are, again
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
            **_HELD_ROW,
        },
        State.SUCCEEDED: {},
        State.FAILED: {},
        State.CANCELLED: {},
    }
)


class NoSuchTransition(Exception):
    """The event has no row for the state; nothing was changed."""

    def __init__(self, state: State, event: type[WorkloadEvent]) -> None:
        super().__init__(f"a workload that is {state} cannot take {event.__name__}")
        self.state = state
        self.event = event


def after(state: State, event: type[WorkloadEvent]) -> State:
    """The state that follows. Raises NoSuchTransition."""
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise NoSuchTransition(state, event) from None
