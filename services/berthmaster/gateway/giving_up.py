"""How an operator ends a workload that is frozen, since a damaged log has lost what its story
builds on: the verb give_up, as a conversation (see conversations.py).

It is an event of the story, so that every reader hears of it at its place in the log and repeats
it. It is written only where the story lacks something, and only if nothing was added to the story
since the operator has looked at it: an executor may bring the job back in that very moment.
"""

from collections.abc import Sequence

from berthmaster.gateway.answers import unavailable
from berthmaster.gateway.conversations import AGAIN, Conversation
from berthmaster.gateway.events import Requested, StoryRead
from berthmaster.gateway.instructions import ReadStory
from berthmaster.gateway.shared_state import SharedState
from berthmaster.lifecycle.fold import Verdict, is_given_up
from berthmaster.lifecycle.instructions import Answered, Append, Stored
from berthmaster.messages.api import (
    GiveUpRequest,
    OperatorReply,
    RecordedEvent,
    Refusal,
)
from berthmaster.messages.explain import shorten
from berthmaster.messages.workload import Cancelled, Submitted
from berthmaster.requests import validation


def give_up(shared: SharedState, asked: Requested, now_s: float) -> Conversation:
    """End it, or say why not. Repeating it is harmless."""
    request = validation.give_up_request(asked.data)
    if isinstance(request, Refusal):
        return request
    if shared.damage:
        return unavailable(shared.damage)
    step = yield ReadStory(ref=asked.ref, tenant=request.tenant, id=request.id)
    read = step.told
    if not isinstance(read, StoryRead):
        raise TypeError(f"ReadStory was answered by {type(read).__name__}")
    if read.failed:
        return unavailable(AGAIN)
    if read.events and is_given_up(read.events[-1].event):
        return OperatorReply(sequence=read.events[-1].sequence, note="it was given up before")
    if wrong := _why_not(request, read):
        return wrong
    if trouble := shared.refuses(now_s):
        return unavailable(trouble)
    step = yield Append(
        ref=asked.ref, event=_ending(shared, asked.ref, request, read.events, now_s)
    )
    if isinstance(step.told, Answered) and isinstance(step.told.outcome, Stored):
        return OperatorReply(sequence=step.told.outcome.sequence, note="it has ended as cancelled")
    return unavailable(AGAIN)


def _why_not(request: GiveUpRequest, read: StoryRead) -> Refusal | None:
    name = f"{request.tenant}/{request.id}"
    if read.unreadable:
        why = f"a story that can be read; {read.unreadable}: `berth repair inspect {name}`"
        return _refusal("conflict", "id", request.id, why)
    if not read.events:
        return _refusal("not_found", "id", request.id, "a workload of which the log has something")
    if Verdict.MISSED not in read.verdicts:
        why = "a workload that is frozen since the log has lost events of it; this one is not"
        return _refusal("conflict", "id", request.id, f"{why}, and `berth cancel` ends it")
    last = read.events[-1].sequence
    if last != request.sequence:
        why = f"{last}, its last message now: look at it again"
        return _refusal("conflict", "sequence", str(request.sequence), why)
    return None


def _refusal(code: str, field: str, value: str, expected: str) -> Refusal:
    return Refusal(code=code, field=field, value=shorten(value), expected=expected)  # type: ignore[arg-type]


def _ending(
    shared: SharedState,
    ref: str,
    request: GiveUpRequest,
    story: Sequence[RecordedEvent],
    now_s: float,
) -> Cancelled:
    """Of the last attempt that is known, in the cluster that has it if any does: it must hear."""
    begun = next((one for one in story if isinstance(one.event, Submitted)), None)
    attempts = [one.event for one in story if getattr(one.event, "attempt", 0)]
    last = max(attempts, key=lambda event: getattr(event, "attempt", 0), default=None)
    return Cancelled(
        tenant=request.tenant,
        id=request.id,
        after=story[-1].sequence,
        at_s=now_s,
        by=shared.by,
        cause=ref,
        attempt=getattr(last, "attempt", 0),
        cluster=getattr(last, "cluster", ""),
        digest=begun.event.digest if begun and isinstance(begun.event, Submitted) else "",
        submitted_at_s=begun.stored_at_s if begun is not None else 0.0,
        reason=f"given up by an operator: {request.reason}",
        given_up=True,
    )
