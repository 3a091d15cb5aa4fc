"""From events to the workload as it stands: the one fold that every reader uses.

An event counts only if its ``after`` is the sequence of the aggregate's previous event, void or
not: so a guard and an ``after`` always are the same number, and a void event blocks nobody. On
replicated streams a stale writer's event can be stored in spite of its guard; every reader drops
the same ones, so all see the same life.

An ``after`` beyond what was seen is a gap. Stories are removed down to their ending, the newest
event first, and nothing else removes events, so an ending behind a gap is a tombstone, also for a
reader that slept through the rest of the life; any other event behind a gap means that this reader
must reload.

An ``after`` that is not below the event's own sequence names what was not stored then: it is void,
never a gap, so no ending ends anything that way. It moves the sequence like every void event, as
the server's guard does, so an honest writer that was refused fits in again.
"""

from collections.abc import Iterable
from enum import Enum
from typing import NewType

import msgspec

from berthmaster.lifecycle.states import ENDED, LIVE, NoSuchTransition, State, after
from berthmaster.messages.api import RecordedEvent
from berthmaster.messages.placement import MAIN_CELL, PodBinding, Target
from berthmaster.messages.workload import (
    Admitted,
    Cancelled,
    CancelRequested,
    Claimed,
    Evicted,
    Failed,
    HubObject,
    JobRequest,
    Placed,
    Reprioritized,
    Running,
    Submitted,
    Succeeded,
    Withdrawn,
    WorkloadEvent,
)

Key = NewType("Key", str)


def key(tenant: str, workload_id: str) -> Key:
    """Names a workload in a map: ``<tenant>/<id>`` (neither holds a slash)."""
    return f"{tenant}/{workload_id}"  # type: ignore[return-value]  # Key() is a call, for each event


class Workload(msgspec.Struct, gc=False, kw_only=True, omit_defaults=True):
    """One aggregate, folded. Mutable: the folds of a million events share one object a workload."""

    tenant: str
    id: str
    state: State = State.NEW
    sequence: int = 0  # of the last event stored, void ones too: what the next ``after`` must be
    changed_at_s: float = 0.0  # server's time of the last event that counted
    request: JobRequest | None = None  # None: only the tombstone was seen
    digest: str = ""
    cell: str = MAIN_CELL  # whose decider places it
    origin: HubObject | None = None
    priority: int = 0
    submitted_sequence: int = 0
    submitted_at_s: float = 0.0  # server's time
    attempt: int = 0  # number of placements so far; the last one is open while the state is LIVE
    evictions: int = 0
    cluster: str = ""  # of the open or last attempt
    pods: tuple[PodBinding, ...] = ()  # as placed; as observed once it runs
    target: Target = Target()  # of the open or last attempt
    decision: int = 0
    placed_at_s: float = 0.0  # server's time
    claimed_at_s: float = 0.0
    running_at_s: float = 0.0
    executor: str = ""
    cancel_requested: bool = False  # a wish about the workload: it outlives the attempt
    reason: str = ""  # of the last withdrawal, eviction or ending

    @property
    def key(self) -> Key:
        """Its name in maps: as ``key`` has it."""
        return f"{self.tenant}/{self.id}"  # type: ignore[return-value]

    @property
    def ended(self) -> bool:
        """No event can follow."""
        return self.state in ENDED

    @property
    def live(self) -> bool:
        """Its placement takes room."""
        return self.state in LIVE


class Verdict(Enum):
    """What became of an event that was offered to the fold."""

    __hash__ = object.__hash__  # there is one of each; by its name takes a call in Python
    COUNTED = "counted"
    REPEATED = "repeated"  # seen before: nothing changed
    VOID = "void"  # lost a race: stored, and without effect
    IMPOSSIBLE = "impossible"  # passed its guard, yet no row allows it: the writer is wrong
    MISSED = "missed"  # events before it were not seen: nothing changed, reload the aggregate


def offer(workload: Workload, event: WorkloadEvent, sequence: int, stored_at_s: float) -> Verdict:
    """Fold one event, in stream order, into its aggregate.

    ``sequence`` is the event's stream sequence, ``stored_at_s`` the server's time stamp.
    """
    if sequence <= workload.sequence:
        return Verdict.REPEATED
    if event.after >= sequence:  # nothing follows what is not stored yet: no story holds it
        workload.sequence = sequence
        return Verdict.VOID
    if event.after > workload.sequence and not workload.ended:
        if not isinstance(event, Succeeded | Failed | Cancelled):
            return Verdict.MISSED
        _raise_tombstone(workload, event, sequence, stored_at_s)
        return Verdict.COUNTED
    is_next = event.after == workload.sequence
    workload.sequence = sequence
    if not is_next:
        return Verdict.VOID
    try:
        state = after(workload.state, type(event))
    except NoSuchTransition:
        return Verdict.IMPOSSIBLE
    if not _names_the_open_attempt(workload, event):
        return Verdict.IMPOSSIBLE
    _apply(workload, event, sequence, stored_at_s)
    workload.state = state
    workload.changed_at_s = stored_at_s
    return Verdict.COUNTED


def is_whole(events: Iterable[RecordedEvent]) -> bool:
    """Whether these are a story from its beginning, without a gap. Else the archive has it."""
    last = 0
    for recorded in events:
        if last < recorded.event.after < recorded.sequence:  # beyond is no gap, as in offer
            return False
        last = recorded.sequence
    return last > 0


def _names_the_open_attempt(workload: Workload, event: WorkloadEvent) -> bool:
    """Its number and cluster, where the event says them; a placement opens the next one."""
    match event:
        case Submitted() | Reprioritized():
            return True
        case Placed():
            return event.attempt == workload.attempt + 1
        case Withdrawn() | Claimed() | Admitted() | Running() | Evicted():
            return event.attempt == workload.attempt and event.cluster == workload.cluster
        case CancelRequested():
            return event.cluster == workload.cluster
        case Succeeded() | Failed() | Cancelled():  # "" when it never was placed, or waits again
            return event.attempt == workload.attempt and event.cluster in ("", workload.cluster)


def _raise_tombstone(
    workload: Workload, event: Succeeded | Failed | Cancelled, sequence: int, stored_at_s: float
) -> None:
    _apply(workload, event, sequence, stored_at_s)
    workload.attempt = event.attempt
    workload.cluster = event.cluster
    workload.submitted_at_s = event.submitted_at_s
    workload.digest = event.digest
    workload.state = _ENDING_STATE[type(event)]
    workload.sequence = sequence
    workload.changed_at_s = stored_at_s


_ENDING_STATE: dict[type, State] = {
    Succeeded: State.SUCCEEDED,
    Failed: State.FAILED,
    Cancelled: State.CANCELLED,
}


def _apply(workload: Workload, event: WorkloadEvent, sequence: int, stored_at_s: float) -> None:
    """Take over what the event says; state and sequence are the caller's."""
    match event:
        case Submitted():
            workload.request = event.request
            workload.digest = event.digest
            workload.cell = event.cell
            workload.origin = event.origin
            workload.priority = event.request.priority
            workload.submitted_sequence = sequence
            workload.submitted_at_s = stored_at_s
        case Placed():
            workload.attempt = event.attempt
            workload.cluster = event.cluster
            workload.pods = event.pods
            workload.target = event.target
            workload.decision = event.decision
            workload.placed_at_s = stored_at_s
            workload.claimed_at_s = workload.running_at_s = 0.0
            workload.executor = ""
        case Claimed():
            workload.claimed_at_s = stored_at_s
            workload.executor = event.executor
        case Running():
            workload.pods = event.pods
            workload.running_at_s = workload.running_at_s or stored_at_s
        case Evicted():
            workload.evictions += not event.blameless
            workload.reason = event.reason
        case Withdrawn() | Succeeded() | Failed() | Cancelled():
            workload.reason = event.reason
        case Reprioritized():
            workload.priority = event.priority
        case CancelRequested():
            workload.cancel_requested = True
        case Admitted():
            pass
