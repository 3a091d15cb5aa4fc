"""The gateway's replies: one function for each kind, for uniform texts."""

from collections.abc import Sequence

import msgspec

from berthmaster.control.gateway.core.workload_index import state_name, view_of
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.api import ChangeReply, GetReply, RecordedEvent, Refusal, SubmitReply
from berthmaster.lib.messages.explain import shorten
from berthmaster.lib.messages.families import encode


def malformed_verb(verb: str) -> Refusal:
    """Return a refusal of an unknown verb. No endpoint has the subject of an unknown verb, but
    ``handle`` always answers.
    """
    return Refusal(
        code="malformed", field="", value=shorten(verb), expected="a verb that the gateway has"
    )


def unavailable(why: str) -> Refusal:
    """Return a temporary refusal. A repetition is safe and may succeed."""
    return Refusal(code="unavailable", field="", value="", expected=why, retry=True)


def not_stored(trouble: str) -> Refusal:
    return unavailable(f"{trouble}; repeating the request is safe")


def overloaded(why: str, again_s: float = 0.0) -> Refusal:
    """Return a refusal for too much load. A later repetition may succeed."""
    return Refusal(
        code="overloaded", field="", value="", expected=why, retry=True, retry_after_s=again_s
    )


def conflict(workload_id: str, other: str) -> Refusal:
    """Return a refusal: the id belongs to another workload or request."""
    return Refusal(
        code="conflict",
        field="id",
        value=shorten(workload_id),
        expected=f"an id that was not used before; this one belongs to {other}",
    )


def not_found(workload_id: str, other_tenant: str = "") -> Refusal:
    """Return a refusal: neither log nor archive has this workload. ``other_tenant`` is a likely
    name for an operator's mistyped tenant. A tenant never sees another tenant's name.
    """
    hint = f"; did you mean the tenant {other_tenant!r}?" if other_tenant else ""
    return Refusal(
        code="not_found",
        field="id",
        value=shorten(workload_id),
        expected=f"the id of a workload of this tenant{hint}",
    )


def unreadable(workload_id: str, why: str) -> Refusal:
    """Return a refusal: the history has an event of a newer version, so this gateway changes
    nothing.
    """
    return Refusal(
        code="unavailable",
        field="id",
        value=shorten(workload_id),
        expected=f"a workload that is not frozen; {why}",
    )


def submitted(tenant: str, workload_id: str, sequence: int) -> SubmitReply:
    return SubmitReply(tenant=tenant, id=workload_id, sequence=sequence)


def repeated(work: Workload, digest: str) -> SubmitReply | Refusal:
    """Return the reply for a used id: the earlier acceptance, or a conflict for another request."""
    if work.digest != digest:
        return conflict(work.id, f"a workload of other content, which is {work.state}")
    return SubmitReply(
        tenant=work.tenant,
        id=work.id,
        sequence=work.submitted_sequence or work.sequence,
        existing=True,
        state=state_name(work.shown),
    )


def changed(tenant: str, workload_id: str, state: State, note: str) -> ChangeReply:
    """Return the reply for a recorded change, or for a state that already holds."""
    return ChangeReply(tenant=tenant, id=workload_id, state=state_name(state), note=note)


def found(work: Workload, story: Sequence[RecordedEvent], frozen: str) -> GetReply:
    """Return one workload. A frozen one is marked and shown as last known."""
    view = view_of(work)
    if frozen:
        view = msgspec.structs.replace(view, reason=f"frozen: {frozen}")
    return GetReply(workload=view, request=work.request, story=tuple(story))


def fitted(reply: msgspec.Struct, max_bytes: int) -> bytes:
    """Return the encoded reply, or a refusal if the reply exceeds the server's limit."""
    data = encode(reply)
    if len(data) <= max_bytes:
        return data
    refusal = Refusal(
        code="too_large",
        field="story" if isinstance(reply, GetReply) else "limit",
        value=f"a reply of {len(data)} bytes",
        expected=f"to ask for less: a reply holds at most {max_bytes} bytes",
    )
    return encode(refusal)
