"""What the gateway says: one function for each kind of answer, so that people read one voice."""

from collections.abc import Sequence

import msgspec

from berthmaster.control.gateway.core.workload_index import state_name, view_of
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.api import ChangeReply, GetReply, RecordedEvent, Refusal, SubmitReply
from berthmaster.lib.messages.explain import shorten
from berthmaster.lib.messages.families import encode


def malformed_verb(verb: str) -> Refusal:
    """Nobody listens on such a subject; said all the same, as ``handle`` always answers."""
    return Refusal(
        code="malformed", field="", value=shorten(verb), expected="a verb that the gateway has"
    )


def unavailable(why: str) -> Refusal:
    """Not now; asking again is safe and may help."""
    return Refusal(code="unavailable", field="", value="", expected=why, retry=True)


def not_stored(trouble: str) -> Refusal:
    return unavailable(f"{trouble}; repeating the request is safe")


def overloaded(why: str, again_s: float = 0.0) -> Refusal:
    """Too much of it now; asking again later may help."""
    return Refusal(
        code="overloaded", field="", value="", expected=why, retry=True, retry_after_s=again_s
    )


def conflict(workload_id: str, other: str) -> Refusal:
    """The id belongs to somebody else's content."""
    return Refusal(
        code="conflict",
        field="id",
        value=shorten(workload_id),
        expected=f"an id that was not used before; this one belongs to {other}",
    )


def not_found(workload_id: str, other_tenant: str = "") -> Refusal:
    """No such workload, in the log or the archive. ``other_tenant``: whom an operator may have
    meant; a tenant is never told of another."""
    hint = f"; did you mean the tenant {other_tenant!r}?" if other_tenant else ""
    return Refusal(
        code="not_found",
        field="id",
        value=shorten(workload_id),
        expected=f"the id of a workload of this tenant{hint}",
    )


def unreadable(workload_id: str, why: str) -> Refusal:
    """Its story holds something from a newer version, so that nothing is done about it here."""
    return Refusal(
        code="unavailable",
        field="id",
        value=shorten(workload_id),
        expected=f"a workload that is not frozen; {why}",
    )


def submitted(tenant: str, workload_id: str, sequence: int) -> SubmitReply:
    return SubmitReply(tenant=tenant, id=workload_id, sequence=sequence)


def repeated(work: Workload, digest: str) -> SubmitReply | Refusal:
    """The id was used before: by the same request, or by another one."""
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
    """What was wished for is recorded, or was so before."""
    return ChangeReply(tenant=tenant, id=workload_id, state=state_name(state), note=note)


def found(work: Workload, story: Sequence[RecordedEvent], frozen: str) -> GetReply:
    """One workload; where it is frozen, the last that is known of it, and that it is."""
    view = view_of(work)
    if frozen:
        view = msgspec.structs.replace(view, reason=f"frozen: {frozen}")
    return GetReply(workload=view, request=work.request, story=tuple(story))


def fitted(reply: msgspec.Struct, max_bytes: int) -> bytes:
    """The reply as it travels; if the server would not take it, a refusal that says so."""
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
