"""What each event changes in its workload, once the fold counts the event. Pure.

Example: an attempt runs since 100 s and is evicted at 400 s, by no fault of its own. ``evicted``
counts the eviction, adds the saved run time to ``ran_s``, keeps the newest checkpoint, and requeues
the job in its requested size with all of its configurations.

fold.py decides whether an event counts, and sets state and sequence.
"""

from berthmaster.lib.lifecycle.attempts import OWN, backoff_s, repeats_after
from berthmaster.lib.lifecycle.choices import has_choice
from berthmaster.lib.lifecycle.pods import as_reported, set_pods, together, with_known_gpus, without
from berthmaster.lib.lifecycle.workload import Workload, counted_s
from berthmaster.lib.messages.placement import Target
from berthmaster.lib.messages.workload import (
    Admitted,
    Cancelled,
    CancelRequested,
    Carried,
    CarriedWorkload,
    Checkpointed,
    Claimed,
    Committed,
    Divided,
    Evicted,
    EvictionRequested,
    Failed,
    Held,
    Hold,
    HoldReleased,
    Idle,
    IdleChanged,
    LimitExceeded,
    MoveRequested,
    Placed,
    Progressed,
    Released,
    Reprioritized,
    Resized,
    ResizeRequested,
    Running,
    Submitted,
    Succeeded,
    Wish,
    Withdrawn,
    WorkloadEvent,
)


def apply(workload: Workload, event: WorkloadEvent, sequence: int, stored_at_s: float) -> None:
    """Change a workload by an event that counts. ``sequence``: of the event in the stream."""
    match event:
        case Submitted():
            _take_up(workload, event, sequence, stored_at_s)
        case Placed() | Divided():
            _begin(workload, event, stored_at_s)
        case Committed():
            workload.committed = True
            workload.running_at_s = stored_at_s if workload.parts else 0.0
        case Claimed():
            workload.claimed_at_s = stored_at_s
            workload.executor = event.executor
        case Carried():
            for field in CarriedWorkload.__struct_fields__:
                setattr(workload, field, getattr(event.workload, field))
        case Running():
            workload.running_at_s = workload.running_at_s or stored_at_s
            set_pods(workload, together(as_reported(event.pods, workload.pods), workload.resizing))
        case ResizeRequested():
            workload.resizing = with_known_gpus(event.pods, workload.pods)
            workload.coming = len(without(workload.resizing, workload.pods))
            set_pods(workload, together(workload.pods, workload.resizing))
        case Resized():
            workload.resizing, workload.coming = (), 0
            workload.resized_at_s = stored_at_s
            workload.kept_size = event.reason
            workload.kept_sizes = workload.kept_sizes + 1 if event.reason else 0
            set_pods(workload, as_reported(event.pods, workload.pods))
        case Evicted():
            _give_back(workload, event, stored_at_s)
        case Withdrawn():
            _wait_again(workload)
            workload.reason = event.reason
        case Succeeded() | Failed() | Cancelled():
            workload.resizing = workload.parts = ()
            workload.coming = 0
            workload.reason = event.reason
        case EvictionRequested():
            workload.leaving = event.reason
            workload.leads_to = event.to
            workload.after_eviction = event.then
        case Checkpointed():
            workload.checkpoint, workload.checkpoint_at_s = event.checkpoint, stored_at_s
        case Progressed():
            workload.progress, workload.progress_at_s = event.progress, stored_at_s
            workload.idle = None
        case Admitted():
            workload.resizable = event.resizable
        case _:
            _wish(workload, event, stored_at_s)


def _give_back(workload: Workload, event: Evicted, stored_at_s: float) -> None:
    _wait_again(workload)
    _blame(workload, event, stored_at_s)
    workload.moves += bool(workload.leaving)
    workload.ran_s += counted_s(workload, stored_at_s, blameless=event.blameless)
    workload.checkpoint = event.checkpoint or workload.checkpoint
    workload.reason = event.reason
    if workload.after_eviction == "hold" and workload.hold is None:
        queue = workload.request.queue if workload.request is not None else ""
        workload.hold = Hold(f"queue {queue}", stored_at_s, reason=workload.leaving)
    elif workload.after_eviction == "end":
        workload.cancel_requested = True


def _blame(workload: Workload, event: Evicted, stored_at_s: float) -> None:
    """Count the end of an attempt against the job or the cluster."""
    own = event.fault in OWN
    workload.evictions += not (event.blameless or own)
    workload.failures += own
    workload.repeats = repeats_after(event.fault, workload.last_fault, workload.repeats)
    workload.last_fault = event.fault
    if own and workload.request is not None:
        workload.retry_at_s = stored_at_s + backoff_s(workload.request, workload.failures)


def _wish(
    workload: Workload,
    event: Released
    | Reprioritized
    | Held
    | HoldReleased
    | IdleChanged
    | LimitExceeded
    | CancelRequested
    | MoveRequested,
    stored_at_s: float,
) -> None:
    """Apply a request of a tenant or operator, or the release by dependencies."""
    match event:
        case Released():
            workload.released = True
            workload.trials = event.trials
        case Reprioritized():
            workload.priority = event.priority
        case CancelRequested():
            workload.cancel_requested = True
        case Held():
            workload.hold = Hold(event.who, stored_at_s, event.operator, event.reason)
        case HoldReleased():
            workload.hold = None
        case IdleChanged():
            idle = Idle(event.since_s, stored_at_s, event.utilization_percent)
            workload.idle = idle if event.idle else None
        case LimitExceeded():
            workload.exceeded = (*workload.exceeded, event.limit)
        case MoveRequested():
            workload.wish = Wish(event.how, event.who, stored_at_s, event.to, event.reason)


def _begin(workload: Workload, event: Placed | Divided, stored_at_s: float) -> None:
    """Open an attempt. The pods of a divided job belong to its parts."""
    workload.attempt = event.attempt
    if isinstance(event, Divided):
        workload.cluster, workload.target, workload.parts = "", Target(), event.parts
    else:
        workload.cluster, workload.target = event.cluster, event.target
    workload.decision = event.decision
    workload.placed_at_s = stored_at_s
    workload.claimed_at_s = workload.running_at_s = workload.resized_at_s = 0.0
    workload.progress, workload.progress_at_s = None, 0.0
    workload.kept_size, workload.kept_sizes = "", 0
    workload.executor = workload.leaving = workload.leads_to = ""
    workload.committed = workload.resizable = False
    workload.after_eviction = ""
    workload.exceeded = ()
    workload.wish = workload.idle = None
    if isinstance(event, Placed) and workload.request is not None and has_choice(workload.request):
        workload.request, workload.wished = event.request, workload.request
    set_pods(workload, event.pods if isinstance(event, Placed) else ())


def _take_up(workload: Workload, event: Submitted, sequence: int, stored_at_s: float) -> None:
    """Apply a submission. A part of a divided job has a reservation and continues from the job's
    checkpoint.
    """
    workload.request = event.request
    workload.digest = event.digest
    workload.cell = event.cell
    workload.origin = event.origin
    workload.priority = event.request.priority
    workload.submitted_sequence = sequence
    workload.submitted_at_s = stored_at_s
    if (part := event.request.part) is not None:
        workload.leads_to = part.clusters[part.number]
        workload.checkpoint = part.checkpoint


def _wait_again(workload: Workload) -> None:
    """Requeue the workload in its requested size, with all of its configurations."""
    workload.resizing = workload.parts = ()
    workload.coming = 0
    workload.wish = workload.idle = None
    if workload.wished is not None:
        workload.request, workload.wished = workload.wished, None
