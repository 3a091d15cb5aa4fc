"""Spans of jobs, from the event log alone. Pure.

A job is one trace. Its root span `job` lasts from `submitted` to the end. Each phase is a child:

    job       submitted … ended
    decision    submitted … placed (cause: decision/all/4711)
    claim                     placed … claimed
    start                              claimed … running
    run                                          running … ended

An eviction ends the phase, and the next `decision` begins. Times are those at which the server
stored the events. Ids are made from the tenant, the id and the time of submission, so a second
reader of the same log makes the same spans. The job label `traceparent` (W3C Trace Context) puts
the spans under the span of the submitting program.
"""

import re
from hashlib import sha256
from typing import Final, NamedTuple

from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Key, Workload, key
from berthmaster.lib.messages.workload import Failed, Placed, WorkloadEvent

TRACEPARENT: Final = "traceparent"
MAX_WAITING: Final = 20_000  # spans not yet returned. Beyond it new ones are dropped and counted
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})\Z")
_PHASE_OF: Final[dict[State, str]] = {
    State.QUEUED: "decision",
    State.PLACED: "claim",
    State.CLAIMED: "start",
    State.ADMITTED: "start",
    State.RUNNING: "run",
    State.DIVIDED: "run",
}


class Span(NamedTuple):
    trace_id: int
    span_id: int
    parent_id: int  # 0: no parent
    name: str
    begin_s: float
    end_s: float
    attributes: dict[str, str | int]
    error: str  # why the job failed, "" otherwise


class _Context(NamedTuple):
    """Ids and open phase of one job's spans."""

    trace_id: int
    root_id: int
    parent_id: int
    cause: str  # of `submitted`: the id of the request
    phase: str
    since_s: float


class Traces:
    """Takes applied events, and returns the spans that ended with them."""

    def __init__(self) -> None:
        self.dropped = 0
        self._open: dict[Key, _Context] = {}
        self._spans: list[Span] = []

    def clear(self) -> None:
        """Forget open jobs, because the log is read again."""
        self._open.clear()

    def forget(self, name: Key) -> None:
        """Forget a job with an incomplete history in the log."""
        self._open.pop(name, None)

    def on_event(
        self, event: WorkloadEvent, work: Workload, sequence: int, at_s: float, *, is_new: bool
    ) -> None:
        """Take an event after the fold. ``is_new``: no earlier process has made spans from the
        event.
        """
        name = key(work.tenant, work.id)
        context = self._open.get(name)
        if context is None:
            if (begun := _begin(event, work, at_s)) is not None:
                self._open[name] = begun
            return
        phase = "" if work.ended else _PHASE_OF.get(work.state, context.phase)
        if phase == context.phase:
            return
        if is_new:
            self._add(_phase(context, event, work, sequence, at_s))
        if work.ended:
            del self._open[name]
            if is_new:
                self._add(_root(context, event, work, at_s))
        else:
            self._open[name] = context._replace(phase=phase, since_s=at_s)

    def take(self) -> list[Span]:
        """Return the spans that ended since the last call."""
        spans, self._spans = self._spans, []
        return spans

    def _add(self, span: Span) -> None:
        if len(self._spans) < MAX_WAITING:
            self._spans.append(span)
        else:
            self.dropped += 1


def _begin(event: WorkloadEvent, work: Workload, at_s: float) -> _Context | None:
    """Return the context of a new job, or None if its submitter does not sample the trace."""
    labels = work.request.labels if work.request is not None else {}
    trace_id = _id(16, work.tenant, work.id, repr(work.submitted_at_s))
    parent_id = 0
    if found := _TRACEPARENT.match(labels.get(TRACEPARENT, "")):
        if not int(found[3], 16) & 1:
            return None
        trace_id, parent_id = int(found[1], 16), int(found[2], 16)
    root_id = _id(8, "job", work.tenant, work.id, repr(work.submitted_at_s))
    return _Context(trace_id, root_id, parent_id, event.cause, "decision", at_s)


def _phase(
    context: _Context, event: WorkloadEvent, work: Workload, sequence: int, at_s: float
) -> Span:
    attributes = _attributes(work) | {
        "berthmaster.cause": _cause(event),
        "berthmaster.by": event.by,
        "berthmaster.sequence": sequence,
        "berthmaster.event": _kind(event),
    }
    return Span(
        trace_id=context.trace_id,
        span_id=_id(8, hex(context.root_id), str(sequence)),
        parent_id=context.root_id,
        name=context.phase,
        begin_s=context.since_s,
        end_s=max(at_s, context.since_s),
        attributes={name: value for name, value in attributes.items() if value != ""},
        error=_error(event),
    )


def _root(context: _Context, event: WorkloadEvent, work: Workload, at_s: float) -> Span:
    attributes = _attributes(work) | {
        "berthmaster.outcome": str(work.state),
        "berthmaster.evictions": work.evictions,
    }
    if context.cause:
        attributes["berthmaster.cause"] = context.cause
    return Span(
        trace_id=context.trace_id,
        span_id=context.root_id,
        parent_id=context.parent_id,
        name="job",
        begin_s=work.submitted_at_s,
        end_s=max(at_s, work.submitted_at_s),
        attributes=attributes,
        error=_error(event),
    )


def _attributes(work: Workload) -> dict[str, str | int]:
    found: dict[str, str | int] = {
        "berthmaster.tenant": work.tenant,
        "berthmaster.job": work.id,
        "berthmaster.attempt": work.attempt,
    }
    return found | ({"berthmaster.cluster": work.cluster} if work.cluster else {})


def _cause(event: WorkloadEvent) -> str:
    if isinstance(event, Placed):
        return f"decision/{event.cell}/{event.decision}"
    return event.cause


def _error(event: WorkloadEvent) -> str:
    return event.reason if isinstance(event, Failed) else ""


def _kind(event: WorkloadEvent) -> str:
    """Return workload.placed for workload.placed.v1."""
    return str(event.__struct_config__.tag).rpartition(".")[0]


def _id(size: int, *parts: str) -> int:
    """Return an id of ``size`` bytes, never 0, which OpenTelemetry treats as no id."""
    digest = sha256("\0".join(parts).encode()).digest()
    return int.from_bytes(digest[:size]) or 1
