"""Effects of the verbs of tenants and operators about one job, given its state. Pure.

- A request for a state that already holds is no error, and the reply says so. The refusal of an
  impossible request names a possible request.
- A running workload is held only if the request allows its eviction.
- A tenant cannot release an operator's hold.
- Kueue moves the workloads that it governs on a worker, so their moves are refused here. On a hub,
  our AdmissionCheck evicts and moves them, and they cannot be held.
- A checkpoint is reported for the last attempt, during or after its run, at most once a second.
  Progress is reported while the attempt runs, at most once in ``progress_every_s``.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

import msgspec

from berthmaster.control.gateway.core.answers import overloaded, unavailable
from berthmaster.lib.lifecycle.attempts import is_ours_to_end
from berthmaster.lib.lifecycle.states import BEGUN, State
from berthmaster.lib.lifecycle.workload import Workload, progress_every_s
from berthmaster.lib.messages.api import (
    CheckpointedRequest,
    EvictRequest,
    HoldRequest,
    JobOrderRequest,
    MoveRequest,
    ProgressedRequest,
    Refusal,
    ReleaseRequest,
)
from berthmaster.lib.messages.explain import shorten
from berthmaster.lib.messages.placement import HUB_CELL
from berthmaster.lib.messages.workload import (
    Checkpoint,
    Checkpointed,
    Exceeded,
    Held,
    HoldReleased,
    Idle,
    IdleChanged,
    LimitExceeded,
    MoveRequested,
    Progress,
    Progressed,
)
from berthmaster.lib.requests.validation import JobVerbRequest

Verb = Literal["hold", "release", "evict", "move", "checkpointed", "progressed", "idle", "exceeded"]
JobEvent = (
    Held | HoldReleased | MoveRequested | Checkpointed | Progressed | IdleChanged | LimitExceeded
)
CHECKPOINT_EVERY_S: Final = 1.0
RENEWED_S: Final = 60.0  # age after which a verdict that a job is idle is renewed
ORDERS: Final[Mapping[str, Verb]] = {
    "hold_job": "hold",
    "release_job": "release",
    "evict_job": "evict",
    "move_job": "move",
}
VERBS: Final[Mapping[type, Verb]] = {
    HoldRequest: "hold",
    ReleaseRequest: "release",
    EvictRequest: "evict",
    MoveRequest: "move",
    CheckpointedRequest: "checkpointed",
    ProgressedRequest: "progressed",
}


class Order(NamedTuple):
    """A requested change of one workload."""

    tenant: str
    id: str
    verb: Verb
    who: str
    operator: bool = False
    reason: str = ""
    evict: bool = False
    to: str = ""
    checkpoint: Checkpoint | None = None
    progress: Progress | None = None
    idle: Idle | None = None  # of the verb idle, which has no request. None means: no longer idle
    exceeded: Exceeded | None = None  # of the verb exceeded, which has no request
    attempt: int | None = None


def order_of(tenant: str, body: JobVerbRequest) -> Order:
    fields: dict[str, Any] = {"reason": getattr(body, "reason", "")}
    match body:
        case HoldRequest():
            fields["evict"] = body.evict
        case MoveRequest():
            fields["to"] = body.to
        case CheckpointedRequest():
            fields["checkpoint"] = Checkpoint(step=body.step, uri=body.uri)
            fields["attempt"] = body.attempt
        case ProgressedRequest():
            fields["progress"] = Progress(step=body.step, loss=body.loss, eta_s=body.eta_s)
            fields["attempt"] = body.attempt
        case _:
            pass
    return Order(tenant, body.id, VERBS[type(body)], f"tenant {tenant}", **fields)


def operators_order(verb: Verb, body: JobOrderRequest) -> Order:
    who = f"operator {body.who}" if body.who else "an operator"
    return Order(
        body.tenant,
        body.id,
        verb,
        who,
        operator=True,
        reason=body.reason,
        evict=body.evict,
        to=body.to,
    )


def is_so(order: Order, work: Workload, now_s: float) -> str:
    """Return why nothing is to do, or ""."""
    hold = work.hold
    match order.verb:
        case "release":
            return "nobody held it" if hold is None else ""
        case "hold":
            if hold is None or (order.operator and not hold.operator):
                return ""
            return f"{hold.who} holds it already"
        case "evict":
            gone = work.leaving or (work.wish is not None and work.wish.how == "evict")
            return "it had been told to go before" if work.state in BEGUN and gone else ""
        case "move":
            if work.leaving:
                return f"it is on its way out: {work.leaving}"
            wish = work.wish
            same = wish is not None and (wish.how, wish.to) == ("move", order.to)
            return "that had been asked for before" if same else ""
        case "checkpointed":
            return "that was known" if work.checkpoint == order.checkpoint else ""
        case "progressed":
            return "that was known" if work.progress == order.progress else ""
        case "exceeded":
            known_before = order.exceeded is None or order.exceeded.limit in work.exceeded
            return "that was known" if known_before else ""
        case "idle":
            known, idle = work.idle, order.idle
            if known is None or idle is None:
                return "that was known" if known is idle else ""
            same = known.since_s == idle.since_s and now_s - known.seen_s < RENEWED_S
            return "that was known" if same else ""


def part_refusal(work: Workload, verb: str) -> Refusal | None:
    """Return a refusal if the workload is part of a divided job. All parts of a gang are changed
    together. A part may report its own checkpoints and progress, and a part outside a gang may
    leave its cluster.
    """
    part = work.request.part if work.request is not None else None
    if part is None or verb in ("checkpointed", "progressed"):
        return None
    if verb in ("evict", "move") and not part.gang:
        return None
    return _conflict("id", work.id, f"{part.job}, the job that this is a part of")


def refusal_of(order: Order, work: Workload, now_s: float) -> Refusal | None:
    """Return why the change is not possible, or None."""
    if work.ended:
        return _conflict("id", order.id, f"a workload that has not ended; this one {work.state}")
    match order.verb:
        case "release":
            hold = work.hold
            if hold is not None and hold.operator and not order.operator:
                return Refusal(
                    code="forbidden",
                    field="id",
                    value=shorten(order.id),
                    expected=f"a hold of your own; {hold.who} holds this one",
                )
            return None
        case "hold":
            return _hold_refusal(order, work)
        case "evict" | "move":
            return _move_refusal(order, work)
        case "checkpointed":
            return _checkpoint_refusal(order, work, now_s)
        case "progressed":
            return _progress_refusal(order, work, now_s)
        case "idle" | "exceeded":
            if work.state is not State.RUNNING or order.attempt != work.attempt:
                return _conflict("attempt", str(order.attempt), "the attempt that runs")
            return None


def _hold_refusal(order: Order, work: Workload) -> Refusal | None:
    if work.state not in BEGUN:
        return None
    if work.cell != HUB_CELL and not is_ours_to_end(work):
        return _kueues(order)
    if not order.evict:
        return _conflict("evict", "false", "true: it runs, and is held only if it may be ended")
    return None


def _move_refusal(order: Order, work: Workload) -> Refusal | None:
    if work.cell != HUB_CELL and work.live and not is_ours_to_end(work):
        return _kueues(order)
    if work.state is State.QUEUED:
        return _conflict("id", order.id, "a workload that runs; this one waits for its place")
    if work.state is State.DIVIDED and order.verb == "move":
        how = work.request.divide if work.request is not None else None
        if how is not None and not how.gang:
            parts = ", ".join(f"{part.id} in {part.cluster}" for part in work.parts)
            return _conflict("id", order.id, f"one of its parts: {parts}")
        right = "a workload in one cluster: the parts of a gang stop and start together; evict it"
        return _conflict("id", order.id, f"{right}, and it waits for places for all of them")
    if work.state is State.PLACED:
        return unavailable(f"it is about to start on {work.cluster}; ask again in a moment")
    if work.cancel_requested:
        return _conflict("id", order.id, "a workload that is not being cancelled")
    if order.verb == "move" and order.to == work.cluster:
        return _conflict("to", order.to, "another cluster than the one in which it runs")
    allowed = work.request.clusters if work.request is not None else ()
    if order.verb == "move" and order.to and allowed and order.to not in allowed:
        return _conflict("to", order.to, f"a cluster that its request allows: {', '.join(allowed)}")
    return None


def _checkpoint_refusal(order: Order, work: Workload, now_s: float) -> Refusal | None:
    if work.state is State.PLACED or not work.attempt:
        return _conflict("id", order.id, "a workload with an attempt that has begun")
    if order.attempt is not None and order.attempt != work.attempt:
        return _conflict("attempt", str(order.attempt), f"{work.attempt}, its last attempt")
    if 0 <= now_s - work.checkpoint_at_s < CHECKPOINT_EVERY_S:
        return overloaded("a checkpoint a second at most", CHECKPOINT_EVERY_S)
    return None


def _progress_refusal(order: Order, work: Workload, now_s: float) -> Refusal | None:
    if work.state is not State.RUNNING:
        return _conflict("id", order.id, f"a workload that runs; this one is {work.state}")
    if order.attempt is not None and order.attempt != work.attempt:
        return _conflict("attempt", str(order.attempt), f"{work.attempt}, its last attempt")
    every_s = progress_every_s(now_s - work.running_at_s)
    if work.progress is not None and 0 <= now_s - work.progress_at_s < every_s:
        wait_s = every_s - (now_s - work.progress_at_s)
        return overloaded(f"how far it is once in {every_s:.0f} s at most", wait_s)
    return None


def _conflict(field: str, value: str, expected: str) -> Refusal:
    return Refusal(code="conflict", field=field, value=shorten(value), expected=expected)


def _kueues(order: Order) -> Refusal:
    right = "a workload that Kueue does not govern: have Kueue evict this one, or cancel it"
    return _conflict("id", order.id, right)


def event_of(
    order: Order, work: Workload, now_s: float, by: str, cause: str
) -> tuple[JobEvent, str]:
    """Return the event to append, and a note for users."""
    head: dict[str, Any] = {
        "tenant": work.tenant,
        "id": work.id,
        "after": work.sequence,
        "at_s": now_s,
        "by": by,
        "cause": cause,
    }
    here: dict[str, Any] = {"cluster": work.cluster, "attempt": work.attempt}
    match order.verb:
        case "hold":
            note = "it is ended, and waits until it is released" if work.state in BEGUN else ""
            held = Held(**head, who=order.who, operator=order.operator, reason=order.reason)
            return held, note
        case "release":
            return HoldReleased(**head, who=order.who, reason=order.reason), ""
        case "checkpointed":
            assert order.checkpoint is not None
            return Checkpointed(**head, **here, checkpoint=order.checkpoint), ""
        case "progressed":
            assert order.progress is not None
            return Progressed(**head, **here, progress=order.progress), ""
        case "exceeded":
            assert order.exceeded is not None
            fields = msgspec.structs.asdict(order.exceeded)
            return LimitExceeded(**head, **here, **fields), ""
        case "idle":
            if order.idle is None:
                return IdleChanged(**head, **here, idle=False, reason=order.reason), ""
            since_s, percent = order.idle.since_s, order.idle.utilization_percent
            idle = IdleChanged(
                **head, **here, idle=True, since_s=since_s, utilization_percent=percent
            )
            return idle, ""
        case "evict" | "move":
            asked = MoveRequested(
                **head, **here, how=order.verb, who=order.who, to=order.to, reason=order.reason
            )
            if order.verb == "evict":
                return asked, "it is ended and waits again"
            where = order.to or "another cluster"
            return asked, f"it goes to {where} once room is kept for it there; `berth why` tells"
