"""Fold events into the state of a workload: the one fold of every reader.

``offer`` folds one event and returns its ``Verdict``. ``fold_history`` folds a whole history.
``after`` of an event is the sequence of the workload's last event when the writer decided. Example:
the last event of a workload has sequence 40, and a new event arrives.

    stored under   ``after``   verdict
    55             40          COUNTED: the event is applied. IMPOSSIBLE if the state table or the
                               open attempt does not allow the event.
    55             31          VOID: another writer was first
    55             55, 60      VOID: no reader had seen that event yet
    55             47          AHEAD: event 47 is missing here. An ending is applied all the same,
                               since no event can follow. Other events change nothing.
    38             any         REPEATED: the event was applied before

Example of a partial history. Stored: 10 ``submitted``, 11 ``placed`` on A, 12 ``claimed``. Events
13 to 15 were lost, and an operator accepted the loss. Then 20 ``succeeded`` with ``after=15`` from
A is applied. From B the event is VOID, and any other event is AHEAD.

Rules:

- ``carried`` is always applied. The event is the first one of its workload in a log built by
  `berth recover`, with all that is known.
- An unknown workload begins with ``submitted`` or ``carried``, whatever their ``after``. An ending
  is a tombstone. Other events with an earlier event are AHEAD: the archivist has removed the first
  events of an ended workload.
- A void event advances the workload's sequence, because the server's check counts the event too.
  A refused writer can then write again. A replicated server may store a stale event despite its
  check, and every reader ignores the same events.
- AHEAD of a known workload means that the log has lost events. Readers freeze the workload and
  decide nothing about the workload until its ending.

A workload is open from its first event to its ending. A workload is frozen after an undecodable
event or a gap. Its reader then ignores all events up to the ending, which thaws the workload.
Example: 30 is applied, 40 cannot be decoded, and 50 names 40. A ``cancelled`` under 60 with
``after=30`` has lost its race. With ``after=50`` the event is the ending.

The id of an ended workload stays used, and readers may still show its object. ``Endings`` is
bounded, and readers ask the log for older endings.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, NamedTuple

from berthmaster.lib.lifecycle.effects import apply
from berthmaster.lib.lifecycle.pods import without
from berthmaster.lib.lifecycle.states import STATE_OF, Ending, NoSuchTransition, State, after
from berthmaster.lib.lifecycle.workload import Key, Workload, key
from berthmaster.lib.messages.api import RecordedEvent
from berthmaster.lib.messages.workload import (
    Admitted,
    Cancelled,
    CancelRequested,
    Carried,
    Checkpointed,
    Divided,
    Failed,
    Held,
    HoldReleased,
    Placed,
    Released,
    Reprioritized,
    Resized,
    Running,
    Submitted,
    Succeeded,
    WorkloadEvent,
)

LOST: Final = "events of it are missing from the log"  # why a workload is frozen
_NEW: Final = State.NEW  # an enum member is slow to look up


class Verdict(Enum):
    """Result of an event offered to the fold."""

    __hash__ = object.__hash__  # members are unique, and a hash by name needs a Python call
    COUNTED = "counted"
    REPEATED = "repeated"  # applied before, no change
    VOID = "void"  # lost a race, ignored as stale
    IMPOSSIBLE = "impossible"  # current, but not allowed by the table: an error of the writer
    AHEAD = "ahead"  # earlier events are missing, no change


def offer(
    workload: Workload,
    event: WorkloadEvent,
    sequence: int,
    stored_at_s: float,
    *,
    void: bool = False,
) -> Verdict:
    """Fold one event into its workload, in stream order.

    ``sequence`` is the event's stream sequence, ``stored_at_s`` the server's time stamp. ``void``
    marks an event with another workload's content, ignored whatever its ``after``.
    """
    last = workload.sequence
    if sequence <= last:
        return Verdict.REPEATED
    if event.after != last or void or workload.state is _NEW:
        return _offer_apart(workload, event, sequence, stored_at_s, void=void)
    workload.sequence = sequence
    try:
        state = after(workload.state, type(event))
    except NoSuchTransition:
        return Verdict.IMPOSSIBLE
    if not _names_the_open_attempt(workload, event):
        return Verdict.IMPOSSIBLE
    return _count(workload, event, state, sequence, stored_at_s)


def _offer_apart(
    workload: Workload, event: WorkloadEvent, sequence: int, stored_at_s: float, *, void: bool
) -> Verdict:
    """Fold a first event, or an event that does not follow the workload's last event."""
    last, workload.sequence = workload.sequence, sequence
    if void:
        return Verdict.VOID
    if isinstance(event, Carried):
        return _count(workload, event, event.workload.state, sequence, stored_at_s)
    if workload.ended or not last <= event.after < sequence:
        return Verdict.VOID
    if workload.state is _NEW and isinstance(event, Submitted):
        return _count(workload, event, State.QUEUED, sequence, stored_at_s)
    if not event.after:
        return Verdict.IMPOSSIBLE  # only a submission may be first
    if not isinstance(event, Ending):
        workload.sequence = last
        return Verdict.AHEAD
    own = event.attempt == workload.attempt and event.cluster in ("", workload.cluster)
    if not (own or event.attempt > workload.attempt):
        return Verdict.VOID
    workload.attempt, workload.cluster = event.attempt, event.cluster
    workload.submitted_at_s, workload.digest = event.submitted_at_s, event.digest
    return _count(workload, event, STATE_OF[type(event)], sequence, stored_at_s)


def _count(
    workload: Workload, event: WorkloadEvent, state: State, sequence: int, stored_at_s: float
) -> Verdict:
    workload.state, workload.changed_at_s = state, stored_at_s
    apply(workload, event, sequence, stored_at_s)
    return Verdict.COUNTED


def fold_history(
    tenant: str, workload_id: str, history: Sequence[RecordedEvent]
) -> tuple[Workload, list[Verdict]]:
    """Fold all events of a workload, and return the verdict of each."""
    workload = Workload(tenant=tenant, id=workload_id)
    verdicts = [
        offer(workload, one.event, one.sequence, one.stored_at_s, void=one.void) for one in history
    ]
    return workload, verdicts


def is_whole(history: Sequence[RecordedEvent]) -> bool:
    """Return whether the log has the whole history without a gap. The archive has the rest
    otherwise.
    """
    if not history or not isinstance(history[0].event, Submitted | Carried):
        return False
    last = 0
    for one in history:
        if last < one.event.after < one.sequence:
            return False
        last = one.sequence
    return True


def _names_the_open_attempt(workload: Workload, event: WorkloadEvent) -> bool:
    """Return whether attempt and cluster of the event are those of the open attempt, or the next
    number for a placement.
    """
    match event:
        case Submitted() | Carried() | Released() | Reprioritized() | Held() | HoldReleased():
            return True
        case Placed() | Divided():
            return event.attempt == workload.attempt + 1
        case CancelRequested():
            return event.cluster == workload.cluster
        case Succeeded() if workload.state is State.QUEUED:  # ended by trials alone
            return not workload.attempt and not event.attempt and not event.cluster
        case Succeeded() | Failed() | Cancelled():  # "" if never placed, or requeued
            return event.attempt == workload.attempt and event.cluster in ("", workload.cluster)
        case Admitted() | Running() if workload.held_back:
            return False
        case Resized() if not workload.resizing or without(event.pods, workload.pods):
            return False
        case Checkpointed() if not workload.attempt:
            # After a requeue, a checkpoint of the last attempt
            return False
        case _:
            return event.attempt == workload.attempt and event.cluster == workload.cluster


class Applied(NamedTuple):
    """Result of one event. ``is_new``: the workload was not open before."""

    verdict: Verdict
    workload: Workload
    is_new: bool


class OpenWorkloads:
    """Open workloads whose first event passes ``begins``."""

    def __init__(self, begins: Callable[[Submitted | Carried], bool] = lambda _: True) -> None:
        self._begins = begins
        self.open: dict[Key, Workload] = {}
        self.frozen: dict[Key, str] = {}  # with the reason
        self._last: dict[Key, int] = {}  # sequence of the last event of each frozen workload

    def apply(
        self,
        event: WorkloadEvent,
        sequence: int,
        stored_at_s: float,
        *,
        void: bool = False,
    ) -> Applied | None:
        """Fold the next event of the log. Return None for a frozen or unknown workload.

        The ending of an unknown workload is a tombstone and is applied. An ended workload is
        removed after this result.
        """
        name = key(event.tenant, event.id)
        if name in self.frozen:
            before, self._last[name] = self._last.get(name, 0), sequence
            if void or not isinstance(event, Ending) or event.after < before:
                return None
        known = self.open.get(name)
        if known is None:
            if isinstance(event, Submitted | Carried):
                if not self._begins(event):
                    return None
            elif not isinstance(event, Ending):
                return None
            workload = Workload(tenant=event.tenant, id=event.id)
        else:
            workload = known
        verdict = offer(workload, event, sequence, stored_at_s, void=void)
        if verdict is Verdict.COUNTED:
            if workload.ended:
                for names in (self.open, self.frozen, self._last):
                    names.pop(name, None)
            elif known is None:
                self.open[name] = workload
        elif verdict is Verdict.AHEAD:
            self.freeze(event.tenant, event.id, sequence, LOST)
        return Applied(verdict, workload, known is None)

    def freeze(self, tenant: str, workload_id: str, sequence: int, why: str) -> None:
        """Freeze a workload whose event under ``sequence`` is undecodable, or follows a gap."""
        name = key(tenant, workload_id)
        self.frozen.setdefault(name, why)
        self._last[name] = sequence


def frozen_summary(why: str, name: str) -> str:
    """Return an explanation of a frozen workload for operators. ``name``: <tenant>/<id>."""
    if why == LOST:
        return f"frozen: {why}; `berth audit` tells what is missing, `berth recover` what to do"
    return f"frozen: an event of it cannot be read ({why}); `berth job {name} --raw` shows it"


MAX_ENDINGS: Final = 100_000


class Endings(OrderedDict[Key, State]):
    """Final states of ended workloads, newest last."""

    def remember(self, event: Ending) -> None:
        """Store the ending of a workload, or its tombstone."""
        self[key(event.tenant, event.id)] = STATE_OF[type(event)]
        if len(self) > MAX_ENDINGS:
            self.popitem(last=False)
