"""The log events of the steps. Pure."""

from berthmaster.hub.karmada.core.requests import origin_of
from berthmaster.hub.karmada.core.steps import ASKER, Ask, Claim, End, Evict, Run, View
from berthmaster.lib.lifecycle.attempts import MAX_REASON_CHARS, ending_event, event_head
from berthmaster.lib.lifecycle.workload import request_digest
from berthmaster.lib.messages.workload import (
    Claimed,
    Evicted,
    MoveRequested,
    Running,
    Submitted,
    WorkloadEvent,
)


def submitted(view: View, tenant: str, hub: str, by: str, now_s: float) -> Submitted:
    """Return the first event of a binding's workload."""
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
    step: Claim | Run | Evict | End | Ask, view: View, by: str, executor: str, now_s: float
) -> WorkloadEvent:
    work = view.work
    assert work is not None
    head = event_head(work, by, now_s)
    match step:
        case Claim():
            return Claimed(**head, executor=executor)
        case Run():
            return Running(**head, pods=step.pods)
        case Evict():
            return Evicted(**head, reason=step.reason[:MAX_REASON_CHARS])
        case Ask():
            why = step.reason[:MAX_REASON_CHARS]
            return MoveRequested(**head, how="move", who=ASKER, reason=why)
        case End():
            return ending_event(work, step.state, step.reason, by, now_s)
