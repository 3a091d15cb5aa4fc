"""Log events written by the reconciler, one function for each step."""

from berthmaster.hub.multikueue.core.deciding.steps import Admit, Claim, End, Evict, Run
from berthmaster.hub.multikueue.core.known.requests import origin_of, read_request
from berthmaster.hub.multikueue.core.known.workload_view import WorkloadView
from berthmaster.lib.lifecycle.attempts import MAX_REASON_CHARS, ending_event, event_head
from berthmaster.lib.lifecycle.workload import request_digest
from berthmaster.lib.messages.placement import HUB_CELL
from berthmaster.lib.messages.workload import (
    Admitted,
    Claimed,
    Evicted,
    Running,
    Submitted,
    WorkloadEvent,
)


def submitted(view: WorkloadView, hub_id: str, by: str, now_s: float) -> Submitted:
    """Return the event that makes a user's Workload on the hub known."""
    hub, rules = view.hub, view.rules
    assert hub is not None
    assert rules is not None
    request = read_request(hub).request
    tenant, _, workload_id = view.name.partition("/")
    return Submitted(
        tenant=tenant,
        id=workload_id,
        after=0,
        at_s=now_s,
        by=by,
        cause=f"kueue/{hub.metadata.namespace}/{hub.metadata.name}",
        request=request,
        digest=request_digest(request),
        cell=HUB_CELL,
        origin=origin_of(hub, rules.cluster_queue, hub_id),
    )


def event_of(
    step: Claim | Evict | Admit | Run | End, view: WorkloadView, by: str, now_s: float
) -> WorkloadEvent:
    bus = view.bus
    assert bus is not None
    head = event_head(bus, by, now_s)
    match step:
        case Claim():
            return Claimed(**head, executor=by)
        case Evict():
            return Evicted(**head, reason=step.reason[:MAX_REASON_CHARS], blameless=step.blameless)
        case Admit():
            return Admitted(**head)
        case Run():
            return Running(**head, pods=())
        case End():
            return ending_event(bus, step.state, step.reason, by, now_s)
