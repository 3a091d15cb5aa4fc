"""Each verb as a conversation. Pure.

A conversation is a generator that yields one instruction at a time, receives the outcome with the
time, and returns the reply.

If the index and the log disagree, the log is right. The index answers where an old answer does no
harm. Every change is guarded by the sequence on which it was decided. A refused guard leads to a
reload, a bounded number of times.
"""

from collections.abc import Generator, Sequence
from typing import Final, NamedTuple, assert_never

import msgspec

from berthmaster.control.gateway.core import shared_state
from berthmaster.control.gateway.core.answers import (
    changed,
    conflict,
    found,
    malformed_verb,
    not_found,
    not_stored,
    overloaded,
    repeated,
    submitted,
    unavailable,
    unreadable,
)
from berthmaster.control.gateway.core.events import Breathed, Requested, StoryRead
from berthmaster.control.gateway.core.instructions import Breathe, ReadStory
from berthmaster.control.gateway.core.job_verbs import (
    JobEvent,
    Order,
    Verb,
    event_of,
    is_so,
    operators_order,
    order_of,
    part_refusal,
)
from berthmaster.control.gateway.core.job_verbs import refusal_of as order_refusal
from berthmaster.control.gateway.core.shared_state import SharedState
from berthmaster.lib.lifecycle.attempts import ending_event
from berthmaster.lib.lifecycle.choices import trial_in
from berthmaster.lib.lifecycle.fold import Verdict, fold_history, is_whole
from berthmaster.lib.lifecycle.instructions import (
    Answered,
    Append,
    PutControl,
    Refused,
    Reload,
    Reloaded,
    Stored,
    Unknown,
)
from berthmaster.lib.lifecycle.states import BEGUN, HELD, Ending, State
from berthmaster.lib.lifecycle.trials import (
    MOST_ATTEMPTS,
    all_failed,
    result_of,
    summary,
    trial_requests,
)
from berthmaster.lib.lifecycle.workload import Workload, request_digest
from berthmaster.lib.messages.api import (
    ApiReply,
    HelloReply,
    ListReply,
    OperatorReply,
    RecordedEvent,
    Refusal,
)
from berthmaster.lib.messages.control import (
    ClusterLost,
    ControlFact,
    Cordon,
    GpuCordon,
    QueueSetting,
)
from berthmaster.lib.messages.explain import invalid
from berthmaster.lib.messages.placement import HUB_CELL, MAIN_CELL
from berthmaster.lib.messages.runtimes import RuntimeSetting
from berthmaster.lib.messages.workload import (
    Cancelled,
    CancelRequested,
    Carried,
    JobRequest,
    Released,
    Reprioritized,
    Submitted,
    TrialResult,
)
from berthmaster.lib.requests import validation
from berthmaster.lib.requests.queues import placing_fault, priority_refusal, taken, with_defaults
from berthmaster.lib.requests.templates import runtime_setting

Ask = Append | Breathe | Reload | ReadStory | PutControl
Told = Answered | Breathed | Reloaded | StoryRead


class Step(NamedTuple):
    """Outcome of the last instruction, with its time."""

    told: Told
    now_s: float


Conversation = Generator[Ask, Step, ApiReply]

AMOUNTS: Final = (
    "guarantee_gpu_milli",
    "deserved_gpu_milli",
    "capability_gpu_milli",
    "resources",
    "max_job_gpu_milli",
    "max_running_jobs",
    "idle_then",
)
AGAIN: Final = "an answer is not certain now; repeating the request is safe"
_ASKED: Final = "its executor was asked to stop it"
_ASKED_ALL: Final = "all of its parts are stopped"
_ASKED_BEFORE: Final = "its executor had been asked to stop it before"


def submit(shared: SharedState, asked: Requested, tenant: str, now_s: float) -> Conversation:
    """Accept a request once, for any number of repetitions, and confirm it only when stored."""
    request = validation.job_request(asked.data)
    if isinstance(request, Refusal):
        return request
    digest = request_digest(request)
    known = shared.certain(tenant, request.id)
    if known is not None:
        return repeated(known, digest)
    if not shared.queues_known:
        return unavailable("the queues have not been read yet")
    filled = taken(shared.queues, shared.runtimes, tenant, request, shared.view.waiting)
    refusal: Refusal | None = None
    if isinstance(filled, Refusal):
        refusal = filled
    else:
        request = filled
    if refusal is None:
        via = shared.queues[request.queue].via
        refusal = shared_state.order_refusal(request, via)
    if refusal is None:
        for at in shared_state.unknown(shared, tenant, request.depends_on):
            other = request.depends_on[at].id  # another gateway may just have accepted this job
            read, now_s = yield from _reload(asked.ref, tenant, other)
            if read.failed:
                return unavailable(AGAIN)
            if read.workload is None or read.workload.state is State.NEW:
                refusal = shared_state.unknown_refusal(at, other)
                break
    most = shared.limits.max_open_of_tenant
    if refusal is None and shared.view.open_of(tenant) >= most:
        refusal = overloaded(f"{most} workloads of a tenant may be open, and they are")
    if refusal is None and shared.is_full:
        refusal = overloaded("the log of workloads is nearly full; running jobs are not affected")
    if refusal is not None:  # a job accepted before is confirmed whatever holds now
        read, _ = yield from _reload(asked.ref, tenant, request.id)
        if read.workload is not None and read.workload.state is not State.NEW:
            return repeated(read.workload, digest)
        if frozen := shared.view.frozen(tenant, request.id):
            return conflict(request.id, f"a workload that is frozen: {frozen}")
        return unavailable(AGAIN) if read.failed else refusal
    request = with_defaults(shared.queues[request.queue], request, asked.data)
    if trouble := shared.refuses(now_s):
        return not_stored(trouble)  # without a read of the log, which may be slow too
    after = 0
    for _ in range(shared.limits.max_tries):
        event = _submitted_event(shared, asked.ref, tenant, request, digest, now_s, after)
        outcome, now_s = yield from _append(asked.ref, event)
        match outcome:
            case Stored(sequence):
                return submitted(tenant, request.id, sequence)
            case Unknown(why):
                return unavailable(f"{AGAIN} ({why})")
            case Refused():
                pass
            case _:
                assert_never(outcome)
        read, now_s = yield from _reload(asked.ref, tenant, request.id)
        if read.workload is not None and read.workload.state is not State.NEW:
            return repeated(read.workload, digest)
        # Only void events of other writers: they count for the guard and for nothing else.
        after = read.workload.sequence if read.workload is not None else 0
        if frozen := shared.view.frozen(tenant, request.id):
            return conflict(request.id, f"a workload that is frozen: {frozen}")
        if read.failed:
            return unavailable(AGAIN)
        # The id is free: its tombstone was removed in between.
    return unavailable("the id comes and goes")


def _submitted_event(
    shared: SharedState,
    ref: str,
    tenant: str,
    request: JobRequest,
    digest: str,
    now_s: float,
    after: int,
) -> Submitted:
    return Submitted(
        tenant=tenant,
        id=request.id,
        after=after,
        at_s=now_s,
        by=shared.by,
        cause=ref,
        request=request,
        digest=digest,
        cell=_cell_of(shared.queues.get(request.queue)),
    )


def _cell_of(queue: QueueSetting | None) -> str:
    """Return the cell that places jobs of this queue."""
    return HUB_CELL if queue is not None and queue.via == "hub" else MAIN_CELL


class Wish(NamedTuple):
    """Requested change of a workload: a new priority, or its end if ``priority`` is None."""

    tenant: str
    id: str
    priority: int | None = None
    reason: str = ""


class Settle(NamedTuple):
    """Workload with dependencies, to release or cancel when due."""

    tenant: str
    id: str


def settle(shared: SharedState, ref: str, doubt: Settle, now_s: float) -> Conversation:
    tenant, name = doubt
    for _ in range(shared.limits.max_tries):
        read, now_s = yield from _reload(ref, tenant, name)
        work = read.workload
        if work is None or work.state is State.NEW:
            return unavailable(AGAIN) if read.failed else not_found(name)
        if work.state is not State.QUEUED or not work.depends:
            return changed(tenant, name, work.shown, "")
        if work.request is not None and trial_in(work.request) is not None:
            return (yield from try_out(shared, ref, work, now_s))
        states: dict[str, State] = {}
        others = work.request.depends_on if work.request is not None else ()
        for at in shared_state.unknown(shared, tenant, others):
            other = others[at].id
            told, now_s = yield from _read_story(ref, tenant, other)
            if told.failed:
                return unavailable(AGAIN)
            if told.unreadable:
                return unreadable(other, told.unreadable)
            states[other] = _life(tenant, other, told)[0].state
        done, why_not = shared_state.stands(shared, work, states)
        if why_not:
            return (yield from fulfil(shared, ref, Wish(tenant, name, reason=why_not), now_s))
        if not done:
            return changed(tenant, name, work.shown, "")
        event = _released_event(shared, ref, work, now_s)
        outcome, now_s = yield from _append(ref, event)
        if isinstance(outcome, Stored):
            shared.wrote(tenant, name, outcome.sequence)
            return changed(tenant, name, work.shown, "")
    return unavailable(AGAIN)


NO_GPUS: Final = "no GPUs were idle for it in the time that its job waits for trials"
EVICTED: Final = f"it was evicted in {MOST_ATTEMPTS} attempts"


def _released_event(
    shared: SharedState,
    ref: str,
    work: Workload,
    now_s: float,
    trials: Sequence[TrialResult] = (),
) -> Released:
    return Released(
        tenant=work.tenant,
        id=work.id,
        after=work.sequence,
        at_s=now_s,
        by=shared.by,
        cause=ref,
        trials=tuple(trials),
    )


class Tried(NamedTuple):
    """What is known of one trial."""

    life: Workload
    story: list[RecordedEvent]  # empty if not read
    frozen: str  # why it cannot be read, "" if it can
    is_taken: bool  # another job has its id


def try_out(shared: SharedState, ref: str, work: Workload, now_s: float) -> Conversation:
    """Submit a pending job's trials, and after their end release or end the job.

    A lost race needs no second try: the event that won it starts another settling.
    """
    request, told = work.request, changed(work.tenant, work.id, work.shown, "")
    trial = trial_in(request) if request is not None else None
    if request is None or trial is None or work.hold is not None:
        return told
    results = list(shared.trials.known(work, now_s))
    if not (work.released or results or shared.trials.is_first(work)):
        return told
    is_late = now_s >= work.changed_at_s + trial.wait_s  # since its submission, or a hold
    if not (work.released or results or is_late or shared.trials.may_begin(work)):
        return told
    for one in () if work.released or results else trial_requests(request):
        read, now_s = yield from _read_trial(shared, ref, work, one.id, now_s)
        if isinstance(read, Refusal):
            return read
        result = _result(read, one.id, trial.budget_s, is_late=is_late)
        if result is not None:
            results.append(result)
        elif read.life.state is State.NEW:
            refusal, now_s = yield from _submit_trial(shared, ref, work, one, read.life, now_s)
            if refusal is not None:
                return refusal
        elif read.life.state is State.QUEUED and (is_late or read.life.attempt >= MOST_ATTEMPTS):
            reason = NO_GPUS if is_late else EVICTED
            yield from fulfil(shared, ref, Wish(work.tenant, one.id, reason=reason), now_s)
    if not work.released and len(results) < len(trial.configurations):
        return told
    event: Released | Ending
    if work.released:
        event = ending_event(work, State.SUCCEEDED, summary(work.trials), shared.by, now_s)
    elif all_failed(results):
        why = f"its trials failed: {summary(results)}"
        event = ending_event(work, State.FAILED, why, shared.by, now_s)
    else:
        event = _released_event(shared, ref, work, now_s, results)
    outcome, _ = yield from _append(ref, event)
    if isinstance(outcome, Stored):
        shared.wrote(work.tenant, work.id, outcome.sequence)
    return unavailable(AGAIN) if isinstance(outcome, Unknown) else told


def _read_trial(
    shared: SharedState, ref: str, work: Workload, name: str, now_s: float
) -> Generator[Ask, Step, tuple[Tried | Refusal, float]]:
    frozen = shared.view.frozen(work.tenant, name)
    known = shared.certain(work.tenant, name)
    story: list[RecordedEvent] = []
    is_taken = False
    if known is None:
        told, now_s = yield from _read_story(ref, work.tenant, name)
        if told.failed:
            return unavailable(AGAIN), now_s
        known, story = _life(work.tenant, name, told)
        frozen = told.unreadable or frozen
        if known.ended and known.sequence < work.submitted_sequence:
            # Of an earlier job with this id; the log or only the archive still has it.
            is_taken = bool(told.events)
            known, story = Workload(tenant=work.tenant, id=name), []
    of_other = known.request is not None and known.request.trial_of != work.id
    return Tried(known, story, frozen, is_taken or of_other), now_s


def _result(read: Tried, name: str, budget_s: float, *, is_late: bool) -> TrialResult | None:
    """Return the outcome of a trial; None while it may still run."""
    if read.frozen:
        return TrialResult(ended="not_run", reason=f"frozen: {read.frozen}") if is_late else None
    if read.is_taken:
        return TrialResult(ended="not_run", reason=f"another job has the id {name}")
    if read.life.ended:
        return result_of(read.life, read.story, budget_s)
    if read.life.state is State.NEW and is_late:
        return TrialResult(ended="not_run", reason=NO_GPUS)
    return None


def _submit_trial(
    shared: SharedState,
    ref: str,
    work: Workload,
    request: JobRequest,
    before: Workload,
    now_s: float,
) -> Generator[Ask, Step, tuple[Refusal | None, float]]:
    """Submit a trial, unless the log is nearly full."""
    if shared.is_full:
        return None, now_s
    if trouble := shared.refuses(now_s):
        return unavailable(trouble), now_s
    digest = request_digest(request)
    event = _submitted_event(shared, ref, work.tenant, request, digest, now_s, before.sequence)
    outcome, now_s = yield from _append(ref, event)
    if isinstance(outcome, Stored):
        shared.wrote(work.tenant, request.id, outcome.sequence)
    return unavailable(AGAIN) if isinstance(outcome, Unknown) else None, now_s


def change(shared: SharedState, asked: Requested, tenant: str, now_s: float) -> Conversation:
    """Run the verbs cancel and reprioritize."""
    if asked.verb == "cancel":
        cancel = validation.cancel_request(asked.data)
        if isinstance(cancel, Refusal):
            return cancel
        wish = Wish(tenant, cancel.id, reason=cancel.reason)
    else:
        other = validation.reprioritize_request(asked.data)
        if isinstance(other, Refusal):
            return other
        wish = Wish(tenant, other.id, priority=other.priority)
    return (yield from fulfil(shared, asked.ref, wish, now_s))


def job_verb(shared: SharedState, asked: Requested, tenant: str, now_s: float) -> Conversation:
    """Run a tenant's verb about its job: hold, release, evict, move, checkpointed, progressed."""
    body = validation.job_verb_request(asked.verb, asked.data)
    if isinstance(body, Refusal):
        return body
    return (yield from fulfil(shared, asked.ref, order_of(tenant, body), now_s))


def job_order(shared: SharedState, asked: Requested, verb: Verb, now_s: float) -> Conversation:
    body = validation.job_order_request(asked.data)
    if isinstance(body, Refusal):
        return body
    reply = yield from fulfil(shared, asked.ref, operators_order(verb, body), now_s)
    if isinstance(reply, Refusal) and reply.code == "not_found":
        return not_found(body.id, shared.nearest_tenant(body.tenant))
    return reply


def fulfil(shared: SharedState, ref: str, wish: Wish | Order, now_s: float) -> Conversation:
    """Write the requested change as the workload's state allows, or find nothing to do."""
    tenant, name = wish.tenant, wish.id
    work = shared.certain(tenant, name)
    for _ in range(shared.limits.max_tries):
        if frozen := shared.view.frozen(tenant, name):
            return unreadable(name, frozen)
        if work is None:
            read, now_s = yield from _reload(ref, tenant, name)
            work = read.workload
            if work is None or work.state is State.NEW:
                return unavailable(AGAIN) if read.failed else not_found(name)
        if note := _nothing_to_do(wish, work, now_s):
            return changed(tenant, name, work.shown, note)
        if refusal := _wish_refusal(shared, wish, work, now_s):
            return refusal
        if trouble := shared.refuses(now_s):
            return not_stored(trouble)
        event, then, note = _change_event(shared, ref, wish, work, now_s)
        outcome, now_s = yield from _append(ref, event)
        if isinstance(outcome, Stored):
            shared.wrote(tenant, name, outcome.sequence)
            return changed(tenant, name, then, note)
        work = None  # another writer was first, or the outcome is unknown: reload
    return unavailable("the workload keeps changing; repeating the request is safe")


def _wish_refusal(
    shared: SharedState, wish: Wish | Order, work: Workload, now_s: float
) -> Refusal | None:
    if not work.ended and (
        refusal := part_refusal(work, wish.verb if isinstance(wish, Order) else "")
    ):
        return refusal
    if isinstance(wish, Order):
        return order_refusal(wish, work, now_s)
    if wish.priority is not None and work.request is not None and work.request.trial_of:
        right = "nothing: trials go after all other jobs"
        return invalid(["priority"], wish.priority, right)
    return _raise_refusal(shared, wish, work)


def _raise_refusal(shared: SharedState, wish: Wish, work: Workload) -> Refusal | None:
    """Return a refusal if the queue does not allow this priority. Lowering is always allowed."""
    if wish.priority is None or wish.priority <= work.priority:
        return None
    if not shared.queues_known:
        return unavailable("the queues have not been read yet")
    setting = shared.queues.get(work.request.queue) if work.request is not None else None
    if setting is None:
        return None
    return priority_refusal(setting, wish.priority)


def _nothing_to_do(wish: Wish | Order, work: Workload, now_s: float) -> str:
    if isinstance(wish, Order):
        return "" if work.ended else is_so(wish, work, now_s)
    if work.ended:
        return "it had ended before"
    if wish.priority is not None:
        return "it had this priority before" if wish.priority == work.priority else ""
    return _ASKED_BEFORE if work.state in BEGUN and work.cancel_requested else ""


def _change_event(
    shared: SharedState, ref: str, wish: Wish | Order, work: Workload, now_s: float
) -> tuple[Cancelled | CancelRequested | Reprioritized | JobEvent, State, str]:
    """Return the event, the workload's state after the event, and a note for users."""
    if isinstance(wish, Order):
        ordered, note = event_of(wish, work, now_s, shared.by, ref)
        return ordered, work.shown, note
    if wish.priority is not None:
        event = Reprioritized(
            tenant=work.tenant,
            id=work.id,
            after=work.sequence,
            at_s=now_s,
            by=shared.by,
            cause=ref,
            priority=wish.priority,
        )
        return event, work.shown, ""
    if work.state in BEGUN:
        asking = CancelRequested(
            tenant=work.tenant,
            id=work.id,
            after=work.sequence,
            at_s=now_s,
            by=shared.by,
            cause=ref,
            cluster=work.cluster,
            reason=wish.reason,
        )
        return asking, work.shown, _ASKED if work.state in HELD else _ASKED_ALL
    ending = Cancelled(
        tenant=work.tenant,
        id=work.id,
        after=work.sequence,
        at_s=now_s,
        by=shared.by,
        cause=ref,
        attempt=work.attempt,
        cluster=work.cluster if work.live else "",
        digest=work.digest,
        submitted_at_s=work.submitted_at_s,
        reason=wish.reason,
    )
    return ending, State.CANCELLED, ""


def get(shared: SharedState, asked: Requested, tenant: str) -> Conversation:
    """Return one workload: from the index while open, else from the log, else from the archive."""
    request = validation.get_request(asked.data)
    if isinstance(request, Refusal):
        return request
    known = shared.certain(tenant, request.id)
    if known is not None and not request.story:
        return found(known, (), shared.view.frozen(tenant, request.id))
    read, _ = yield from _read_story(asked.ref, tenant, request.id)
    if read.failed:
        return unavailable(AGAIN)
    frozen = read.unreadable or shared.view.frozen(tenant, request.id)
    work, story = _life(tenant, request.id, read)
    if work.state is State.NEW:
        return unreadable(request.id, frozen) if frozen else not_found(request.id)
    return found(work, story if request.story else (), frozen)


def _life(tenant: str, name: str, read: StoryRead) -> tuple[Workload, list[RecordedEvent]]:
    """Return the newest history under this id. The archive may hold earlier histories, and holds
    the whole history of a purged workload.
    """
    events, archived = list(read.events), list(read.archived)
    births = (n for n, e in enumerate(archived) if isinstance(e.event, Submitted) and not e.void)
    archived = archived[max(births, default=0) :]
    last = archived[-1].sequence if archived else 0
    if archived and (not events or (not is_whole(events) and last >= events[0].sequence)):
        events = archived
    elif events and isinstance(events[0].event, Carried):  # the events before are only archived
        events = [*(one for one in archived if one.sequence < events[0].sequence), *events]
    work, verdicts = fold_history(tenant, name, events)
    story: list[RecordedEvent] = []
    for recorded, verdict in zip(events, verdicts, strict=True):
        void = verdict in (Verdict.VOID, Verdict.IMPOSSIBLE)
        story.append(msgspec.structs.replace(recorded, void=void) if void else recorded)
    return work, story


def page(shared: SharedState, asked: Requested, tenant: str | None) -> Conversation:
    """List one tenant's workloads. ``tenant`` None lists the workloads of all tenants."""
    request = validation.list_request(asked.data)
    if isinstance(request, Refusal):
        return request
    if not shared.caught_up:
        return unavailable("the log has not been read to its end yet")
    steps = shared.view.listed(tenant, request)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            reply: ListReply = end.value
            return reply
        yield Breathe(ref=asked.ref, asker=tenant or "")


def hello(asked: Requested, now_s: float) -> ApiReply:
    request = validation.hello_request(asked.data)
    return request if isinstance(request, Refusal) else HelloReply(now_s=now_s)


def order(shared: SharedState, asked: Requested, now_s: float) -> Conversation:
    """Store an operator's action, then confirm. A repetition is harmless."""
    made = _control_fact(shared, asked, now_s)
    if isinstance(made, Refusal):
        return made
    fact, note = made
    return (yield from put(shared, asked.ref, fact, note))


def put(shared: SharedState, ref: str, fact: ControlFact, note: str) -> Conversation:
    step = yield PutControl(ref=ref, fact=fact)
    if isinstance(step.told, Answered) and isinstance(step.told.outcome, Stored):
        if isinstance(fact, QueueSetting):
            shared.set_queue(fact, step.told.outcome.sequence)  # usable at once
        elif isinstance(fact, RuntimeSetting):
            shared.set_runtime(fact, step.told.outcome.sequence)
        return OperatorReply(sequence=step.told.outcome.sequence, note=note)
    why = ""
    if isinstance(step.told, Answered) and isinstance(step.told.outcome, Unknown):
        why = f" ({step.told.outcome.why})"
    return unavailable(f"{AGAIN}{why}")


def _control_fact(
    shared: SharedState, asked: Requested, now_s: float
) -> tuple[ControlFact, str] | Refusal:
    match asked.verb:
        case "drain":
            drain = validation.drain_request(asked.data, now_s)
            if isinstance(drain, Refusal):
                return drain
            draining = Cordon(
                cluster=drain.cluster,
                node=drain.node,
                cordoned=True,
                drain=True,
                drain_by_s=drain.by_s,
                reason=drain.reason,
                set_by=drain.who or shared.by,
                set_at_s=now_s,
            )
            note = "what runs there is moved away; `berth problems cordons` tells how far it is"
            return draining, note
        case "cordon" | "uncordon":
            cordon = validation.cordon_request(asked.data)
            if isinstance(cordon, Refusal):
                return cordon
            on = asked.verb == "cordon"
            if cordon.node is not None and cordon.gpu is not None:
                gpu = GpuCordon(
                    cluster=cordon.cluster,
                    node=cordon.node,
                    gpu=cordon.gpu,
                    cordoned=on,
                    reason=cordon.reason,
                    set_by=cordon.who or shared.by,
                    set_at_s=now_s,
                )
                return gpu, "new pods stay away from it; what runs there continues" if on else ""
            fact = Cordon(
                cluster=cordon.cluster,
                node=cordon.node,
                cordoned=on,
                reason=cordon.reason,
                set_by=cordon.who or shared.by,
                set_at_s=now_s,
            )
            return fact, "nothing new is placed there; what runs there goes on" if on else ""
        case "lost" | "found":
            lost = validation.lost_request(asked.data)
            if isinstance(lost, Refusal):
                return lost
            gone = asked.verb == "lost"
            told = ClusterLost(
                cluster=lost.cluster,
                lost=gone,
                reason=lost.reason,
                set_by=shared.by,
                set_at_s=now_s,
            )
            return told, "what was claimed there is placed anew" if gone else ""
        case "queue":
            setting = validation.queue_setting(asked.data)
            if isinstance(setting, Refusal):
                return setting
            if not shared.queues_known:
                return unavailable("the queues have not been read yet")
            if fault := placing_fault(shared.queues, setting):
                return fault
            by = setting.set_by or shared.by
            return msgspec.structs.replace(setting, set_by=by, set_at_s=now_s), _idle(setting)
        case "runtime":
            runtime = runtime_setting(asked.data)
            if isinstance(runtime, Refusal):
                return runtime
            by = runtime.set_by or shared.by
            return msgspec.structs.replace(runtime, set_by=by, set_at_s=now_s), ""
        case _:
            return malformed_verb(asked.verb)


def _idle(setting: QueueSetting) -> str:
    """Return a note with the settings that limit nothing because Kueue governs the queue, or ""."""
    if setting.via == "direct":
        return ""
    usual = QueueSetting(queue=setting.queue)
    idle = [name for name in AMOUNTS if getattr(setting, name) != getattr(usual, name)]
    told = "Kueue governs this queue, so that these limit nothing: "
    return told + ", ".join(idle) if idle else ""


def _append(
    ref: str,
    event: Submitted | Released | Ending | CancelRequested | Reprioritized | JobEvent,
) -> Generator[Ask, Step, tuple[Stored | Refused | Unknown, float]]:
    step = yield Append(ref=ref, event=event)
    if not isinstance(step.told, Answered):
        raise TypeError(f"Append was answered by {type(step.told).__name__}")
    return step.told.outcome, step.now_s


def _read_story(
    ref: str, tenant: str, workload_id: str
) -> Generator[Ask, Step, tuple[StoryRead, float]]:
    step = yield ReadStory(ref=ref, tenant=tenant, id=workload_id)
    if not isinstance(step.told, StoryRead):
        raise TypeError(f"ReadStory was answered by {type(step.told).__name__}")
    return step.told, step.now_s


def _reload(
    ref: str, tenant: str, workload_id: str
) -> Generator[Ask, Step, tuple[Reloaded, float]]:
    step = yield Reload(ref=ref, tenant=tenant, id=workload_id)
    if not isinstance(step.told, Reloaded):
        raise TypeError(f"Reload was answered by {type(step.told).__name__}")
    return step.told, step.now_s
