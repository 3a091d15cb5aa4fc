"""The events of a Workload: Events that `kubectl describe` shows, and events of the log. Pure.

An event repeats only after a change. Conditions that pass within a second have no event.
"""

from collections.abc import Iterator

from berthmaster.hub.multikueue.core.deciding.committing import left_out
from berthmaster.hub.multikueue.core.deciding.shortlist import shortlist_for
from berthmaster.hub.multikueue.core.deciding.steps import Admit, Claim, End, Evict, Run
from berthmaster.hub.multikueue.core.deciding.traps import Trap
from berthmaster.hub.multikueue.core.known.bus_state import BusState
from berthmaster.hub.multikueue.core.known.requests import origin_of, read_request
from berthmaster.hub.multikueue.core.known.workload_view import Memo, WorkloadView
from berthmaster.hub.multikueue.policy import HubPolicy
from berthmaster.lib.kube.controller.shell_contract import KubeEvent
from berthmaster.lib.kube.resources import KUEUE_WORKLOADS
from berthmaster.lib.kueue.contract import forbidden
from berthmaster.lib.kueue.jobs import early_words
from berthmaster.lib.lifecycle.attempts import MAX_REASON_CHARS, ending_event, event_head
from berthmaster.lib.lifecycle.states import State
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

NOMINATED = "Nominated"
NO_CLUSTER = "NoCluster"
UNCLEAR = "Unclear"
MISCONFIGURED = "Misconfigured"
NOT_WRITTEN = "NotWritten"
END_MAY_BE_LOST = "EndMayBeLost"
SECOND_DISPATCHER = "SecondDispatcher"


def kube_events_of(
    view: WorkloadView,
    memo: Memo,
    trap: Trap | None,
    know: BusState,
    policy: HubPolicy,
    now_s: float,
) -> Iterator[KubeEvent]:
    """Yield the present events of one workload."""
    hub, bus, rules = view.hub, view.bus, view.rules
    if hub is None or bus is None or rules is None:
        return

    def tell(reason: str, note: str, *, warning: bool) -> Iterator[KubeEvent]:
        if memo.told.get(reason) != note:
            memo.told[reason] = note
            yield KubeEvent(KUEUE_WORKLOADS, hub.metadata, warning, reason, note)

    if trap is not None:
        yield from tell(trap.kind, trap.words, warning=True)
    if view.job is not None and (early := early_words(view.job)):
        yield from tell(END_MAY_BE_LOST, early, warning=True)
    if rules.problem:
        yield from tell(MISCONFIGURED, rules.problem, warning=True)
    if bus.origin is not None and UNCLEAR not in memo.told:
        problems = read_request(hub).problems
        memo.told[UNCLEAR] = ""
        if problems:
            yield from tell(UNCLEAR, "; ".join(problems)[:900], warning=True)
    if policy.mode != "dispatch" or forbidden(hub, rules.check):
        memo.told.pop(NO_CLUSTER, None)
        return
    if memo.contest.times:
        yield from tell(SECOND_DISPATCHER, memo.contest.words, warning=True)
    if memo.trouble and not memo.trouble_passes:
        yield from tell(NOT_WRITTEN, memo.trouble, warning=True)
    if bus.state is State.CLAIMED and bus.cluster in view.nominated:
        if memo.told.get(NOMINATED, "").partition(":")[0] != f"attempt {bus.attempt}":
            note = f"attempt {bus.attempt}: {bus.cluster}{memo.placed_for}"
            yield from tell(NOMINATED, note, warning=False)
    elif bus.state is State.QUEUED and _waits_long(memo, policy, now_s):
        shortlist = shortlist_for(know, view, policy, now_s)
        if not shortlist.candidates:
            note = f"no cluster can take it{left_out(shortlist.filtered)}"
            yield from tell(NO_CLUSTER, note, warning=True)


def _waits_long(memo: Memo, policy: HubPolicy, now_s: float) -> bool:
    return memo.ready_at_s is not None and now_s >= memo.ready_at_s + policy.tell_after_s


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


def log_event_of(
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
