"""What is said in the log: each step that is an event, in its words. Pure."""

from typing import Any

from berthmaster.karmada.requests import origin_of
from berthmaster.karmada.steps import Claim, End, Evict, Run, View
from berthmaster.lifecycle.digest import request_digest
from berthmaster.lifecycle.states import LIVE, State
from berthmaster.messages.workload import (
    Cancelled,
    Claimed,
    Evicted,
    Failed,
    Running,
    Submitted,
    Succeeded,
    WorkloadEvent,
)

MAX_REASON_CHARS = 500
_ENDINGS: dict[State, type[Succeeded] | type[Failed] | type[Cancelled]] = {
    State.SUCCEEDED: Succeeded,
    State.FAILED: Failed,
    State.CANCELLED: Cancelled,
}


def submitted(view: View, tenant: str, hub: str, by: str, now_s: float) -> Submitted:
    """A binding becomes known."""
    binding, request = view.binding, view.read.request if view.read is not None else None
    assert binding is not None
    assert request is not None
    return Submitted(
        tenant=tenant,
        id=request.id,
        after=0,
        at_s=now_s,
        by=by,
        cause=f"karmada/{binding.metadata.namespace}/{binding.metadata.name}",
        request=request,
        digest=request_digest(request),
        origin=origin_of(binding, request.queue, hub),
    )


def event_of(
    step: Claim | Run | Evict | End, view: View, by: str, executor: str, now_s: float
) -> WorkloadEvent:
    """The event that a step is."""
    work = view.work
    assert work is not None
    head: dict[str, Any] = {
        "tenant": work.tenant,
        "id": work.id,
        "after": work.sequence,
        "at_s": now_s,
        "by": by,
        "cluster": work.cluster,
        "attempt": work.attempt,
    }
    match step:
        case Claim():
            return Claimed(**head, executor=executor)
        case Run():
            return Running(**head, pods=step.pods)
        case Evict():
            return Evicted(**head, reason=step.reason[:MAX_REASON_CHARS])
        case End():
            if work.state not in LIVE:
                head["cluster"] = ""  # it waits, so no cluster's attempt ends
            head |= {"digest": work.digest, "submitted_at_s": work.submitted_at_s}
            return _ENDINGS[step.state](**head, reason=step.reason[:MAX_REASON_CHARS])
