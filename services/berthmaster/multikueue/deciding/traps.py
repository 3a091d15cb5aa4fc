"""Where a nominated Workload gets stuck in silence: Kueue says nothing of it on the hub, so we do.

Each trap has a name (for the metric), words that name the cure, and is looked for only after the
time in which all is well by itself.
"""

from typing import Final, NamedTuple

from berthmaster.kueue.contract import forbidden
from berthmaster.lifecycle.states import State
from berthmaster.multikueue.known.bus_state import BusState
from berthmaster.multikueue.known.workload_view import Memo, WorkloadView
from berthmaster.multikueue.settings import HubPolicy

MISSING_GATE: Final = "MissingGate"
STOPPED_QUEUE: Final = "StoppedQueue"
MISSING_QUEUE: Final = "MissingLocalQueue"
NO_COPY: Final = "NoCopy"
REFUSED: Final = "RefusedByWorker"
STUCK_EVICTION: Final = "StuckEviction"
TRAPS: Final = (MISSING_GATE, STOPPED_QUEUE, MISSING_QUEUE, NO_COPY, REFUSED, STUCK_EVICTION)
CURE: Final = (
    "set the feature gate WorkloadRequestUseMergePatch=true in the hub's Kueue and restart its "
    "manager"
)
# Kueue's words on a worker for what time alone will not change.
_HOPELESS: Final = (
    "maximum capacity",
    "doesn't exist",
    "does not exist",
    "is inactive",
    "is stopped",
    "unavailable in ClusterQueue",
    "not found",
)
_BUSY: Final = "insufficient"


class Trap(NamedTuple):
    """Why a nominated Workload does not move, and what helps."""

    kind: str
    words: str


def find(
    view: WorkloadView, memo: Memo, know: BusState, policy: HubPolicy, now_s: float
) -> Trap | None:
    """The trap that a workload sits in, if it does."""
    hub, bus, rules = view.hub, view.bus, view.rules
    if hub is None or bus is None or rules is None:
        return None
    if (stuck := _stuck_eviction(view, memo, policy, now_s)) is not None:
        return stuck
    if forbidden(hub, rules.check) or not hub.nominated:
        memo.admitted_since_s = None
        return None
    copy = view.admitted_copy
    if copy is not None:
        if memo.admitted_since_s is None:
            memo.admitted_since_s = now_s
        if now_s - memo.admitted_since_s < policy.trap_s:
            return None
        return Trap(
            MISSING_GATE,
            f"{copy.cluster} has admitted its copy and the hub does not take that over: Kueue "
            f"cannot clear the nomination; {CURE}",
        )
    memo.admitted_since_s = None
    since_s = memo.nominated.get(_hub_name(view), float("inf"))
    if bus.state is not State.CLAIMED or now_s < since_s + policy.mute_s:
        return None
    return _black_hole(view, know, policy, now_s)


def _stuck_eviction(view: WorkloadView, memo: Memo, policy: HubPolicy, now_s: float) -> Trap | None:
    """Kueue sends nothing anew while the hub's Job counts pods, and only the worker's copy, which
    may be lost or deleted, could say that they are gone."""
    hub, job = view.hub, view.job
    if hub is None or job is None or not (hub.holds("Evicted") and job.runs):
        memo.evicting_since_s = None
        return None
    if memo.evicting_since_s is None:
        memo.evicting_since_s = now_s
    if now_s < memo.evicting_since_s + policy.eviction_s:
        return None
    return Trap(
        STUCK_EVICTION,
        "Kueue took it back and the hub's Job still counts pods of its lost copy: bring that "
        "cluster back, or delete the Job and make it again",
    )


def _hub_name(view: WorkloadView) -> str:
    """What Kueue calls the cluster of the open attempt."""
    bus, rules = view.bus, view.rules
    if bus is None or rules is None:
        return ""
    return next((ref.hub_name for ref in rules.clusters if ref.name == bus.cluster), "")


def _black_hole(view: WorkloadView, know: BusState, policy: HubPolicy, now_s: float) -> Trap | None:
    bus, hub = view.bus, view.hub
    assert bus is not None
    assert hub is not None
    cluster = know.view.clusters.peek(bus.cluster)
    if now_s - cluster.alive_at_s > policy.stale_after_s or not cluster.queues:
        return None  # it says nothing of anything
    namespace, name = hub.metadata.namespace, hub.spec.queue_name
    found = know.local_queue(bus.cluster, namespace, name)
    if found is None:
        words = f"{bus.cluster} has no LocalQueue {namespace}/{name}: make it, or its namespace"
        return Trap(MISSING_QUEUE, words)
    report, local = found
    if report.stopped:
        words = f"ClusterQueue {report.queue} of {bus.cluster} is stopped (spec.stopPolicy)"
        return Trap(STOPPED_QUEUE, words)
    if not report.active or not local.active:
        reason = report.reason if not report.active else local.reason
        return Trap(STOPPED_QUEUE, f"queue {report.queue} of {bus.cluster} is not active: {reason}")
    if view.copy is None:
        words = f"{bus.cluster} has no copy of it: does Kueue's manager on the hub reach it?"
        return Trap(NO_COPY, words)
    if hopeless(view.copy.message):
        return Trap(REFUSED, f"{bus.cluster} says: {view.copy.message}"[:500])
    return None


def hopeless(message: str) -> bool:
    """Whether a worker's message means that waiting there is in vain."""
    return any(words in message for words in _HOPELESS)


def busy(message: str) -> bool:
    """Whether a worker's message means that it has no quota left now."""
    return _BUSY in message
