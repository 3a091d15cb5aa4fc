"""The gateway's core: take one event and the time, return instructions. Pure.

Example: ``Requested(ref="g/7", verb="submit")`` returns an ``Append`` with ref g/7. The caller
stores the event and passes ``Answered(ref="g/7")`` in. The core then returns ``Reply(ref="g/7")``.

Every request is a conversation under its ref. Each outcome leads to exactly one more instruction,
until this is a Reply, which ends the conversation. The number of conversations is bounded.
conversations.py has the verbs. This module chooses the conversation, and updates the state that all
conversations share from the log and the queues.

Conversations with a ref that begins with ``wish/`` have no request and no Reply. Example: an
eviction overtakes a cancel, and the gateway completes the cancel.
"""

from collections import Counter
from collections.abc import Generator
from typing import Final, assert_never

from berthmaster.control.gateway.core import conversations
from berthmaster.control.gateway.core.answers import malformed_verb, overloaded, unavailable
from berthmaster.control.gateway.core.conversations import Conversation, Settle, Step, Told, Wish
from berthmaster.control.gateway.core.events import (
    Abandoned,
    Breathed,
    CaughtUp,
    CordonSet,
    Event,
    FiguresHeard,
    LogDamaged,
    Logged,
    LogReplaced,
    LogSize,
    QueueSet,
    QueuesKnown,
    QueuesListed,
    Requested,
    RuntimeSet,
    Storing,
    StoryRead,
    Tick,
    UnreadableEvent,
)
from berthmaster.control.gateway.core.idle_watch import IdleWatch
from berthmaster.control.gateway.core.instructions import Breathe, Instruction, ReadStory
from berthmaster.control.gateway.core.job_verbs import ORDERS, Order
from berthmaster.control.gateway.core.limit_watch import LimitWatch
from berthmaster.control.gateway.core.shared_state import Limits, SharedState, Waiting
from berthmaster.control.gateway.core.suspects import Suspects
from berthmaster.control.gateway.core.workload_index import WorkloadIndex
from berthmaster.lib.lifecycle.fold import Verdict
from berthmaster.lib.lifecycle.instructions import (
    Answered,
    Append,
    PutControl,
    Reload,
    Reloaded,
    Reply,
)
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.trials import trial_ids
from berthmaster.lib.lifecycle.workload import Key, Workload
from berthmaster.lib.messages.api import JOB_VERBS, ApiReply, Refusal
from berthmaster.lib.messages.control import Cordon
from berthmaster.lib.messages.telemetry import JobFigures
from berthmaster.lib.messages.workload import Evicted, ExceededLimit
from berthmaster.lib.requests import validation

WISH: Final = "wish/"
JOB_TALKS: Final = (*JOB_VERBS, "checkpointed", "progressed")
CHANGING: Final = ("submit", "cancel", "reprioritize", *JOB_TALKS)
_ANSWER_TO: Final[dict[type, type]] = {
    Append: Answered,
    Breathe: Breathed,
    PutControl: Answered,
    Reload: Reloaded,
    ReadStory: StoryRead,
}


class Gateway:
    def __init__(self, *, by: str, limits: Limits | None = None) -> None:
        self._shared = SharedState(by, limits or Limits())
        self._talks: dict[str, tuple[Conversation, type]] = {}  # with the type of the next outcome
        self._wishes: dict[str, Wish | Order | Cordon | Settle] = {}  # not started yet, by ref
        self._waiting = Waiting()
        limits = self._shared.limits
        self._suspects = Suspects(limits.cordon_after, limits.cordon_within_s)
        self._idle = IdleWatch()
        self._limits = LimitWatch()
        self._pursued: dict[str, Wish | Order | Cordon | Settle] = {}
        self._again: dict[str, Wish | Order | Cordon | Settle] = {}  # after the open conversation
        self.verdicts: Counter[Verdict] = Counter()  # of the log's events

    @property
    def caught_up(self) -> bool:
        """Return whether the log has been read up to its end at the start."""
        return self._shared.caught_up

    @property
    def queues_known(self) -> bool:
        """Return whether all stored queue settings have been read."""
        return self._shared.queues_known

    @property
    def is_full(self) -> bool:
        """Return whether the log is nearly full, so that new submits are refused."""
        return self._shared.is_full

    @property
    def followed_to(self) -> int:
        """Return the last log sequence read."""
        return self._shared.followed_to

    @property
    def view(self) -> WorkloadIndex:
        """Return the index, for metrics and tests."""
        return self._shared.view

    @property
    def in_flight(self) -> int:
        """Return the number of open conversations."""
        return len(self._talks)

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        """Take one event and return instructions. No input of a client makes this method raise."""
        match event:
            case Logged():
                return self._on_logged(event, now_s)
            case Requested():
                return self._on_request(event, now_s)
            case Answered() | Breathed() | Reloaded() | StoryRead():
                return self._on_told(event, now_s)
            case Abandoned():
                return self._on_abandoned(event)
            case Tick():
                limits = self._shared.limits
                self._shared.view.forget(now_s - limits.keep_ended_s, most=limits.max_ended)
                self._suspect(now_s)
                self._note_measured(now_s)
                self._settle_on(self._shared.trials.due(now_s))
                return self._pursue(now_s)
            case CaughtUp():
                self._shared.caught_up = True
                for work in self._shared.view.open_workloads():
                    self._wish_on(work)
                    self._follow(work, now_s)
                return self._pursue(now_s)
            case UnreadableEvent():
                why = f"this version cannot read its event {event.sequence} ({event.why})"
                self._shared.view.freeze(event.tenant, event.id, event.sequence, why)
                self._shared.followed(event.sequence)
            case LogReplaced():
                self._shared.restart()
                self._waiting = Waiting()
                self._idle.forget()
                self._limits.forget()
                self._wishes.clear()
                self._again.clear()
            case LogDamaged():
                self._shared.damage = event.why
            case QueueSet():
                self._shared.set_queue(event.setting, event.sequence)
            case CordonSet():
                self._suspects.said(event.cordon)
            case RuntimeSet():
                self._shared.set_runtime(event.setting, event.sequence)
            case FiguresHeard():
                self._on_figures(event.figures, now_s)
            case QueuesListed():
                self._shared.list_queues()
            case QueuesKnown():
                self._shared.queues_known = True
            case LogSize():
                limit = event.max_bytes * self._shared.limits.full_share
                self._shared.is_full = event.max_bytes > 0 and event.bytes >= limit
            case Storing():
                self._shared.set_trouble(event.trouble, now_s)
            case _:
                assert_never(event)
        return []

    # Conversations

    def _on_request(self, asked: Requested, now_s: float) -> list[Instruction]:
        if len(self._talks) >= self._shared.limits.max_in_flight:
            most = self._shared.limits.max_in_flight
            reply: ApiReply = overloaded(f"at most {most} requests at once")
            return [Reply(ref=asked.ref, reply=reply)]
        begun = self._begin(asked, now_s)
        if isinstance(begun, Generator):
            return self._advance(asked.ref, begun, None)
        return [Reply(ref=asked.ref, reply=begun)]

    def _begin(self, asked: Requested, now_s: float) -> Conversation | ApiReply:
        tenant = asked.tenant
        if tenant is None and asked.verb in ORDERS:
            if self._shared.damage:
                return unavailable(self._shared.damage)
            verb = ORDERS[asked.verb]
            return conversations.job_order(self._shared, asked, verb, now_s)
        if tenant is None and asked.verb == "list":
            return conversations.page(self._shared, asked, None)
        if tenant is None:
            return conversations.order(self._shared, asked, now_s)
        if wrong := validation.tenant_refusal(tenant):
            return wrong
        if self._shared.damage and asked.verb in CHANGING:
            return unavailable(self._shared.damage)
        match asked.verb:
            case "hello":
                return conversations.hello(asked, now_s)
            case "submit":
                return conversations.submit(self._shared, asked, tenant, now_s)
            case "cancel" | "reprioritize":
                return conversations.change(self._shared, asked, tenant, now_s)
            case talk if talk in JOB_TALKS:
                return conversations.job_verb(self._shared, asked, tenant, now_s)
            case "get":
                return conversations.get(self._shared, asked, tenant)
            case "list":
                return conversations.page(self._shared, asked, tenant)
            case _:
                return malformed_verb(asked.verb)

    def _on_told(self, told: Told, now_s: float) -> list[Instruction]:
        talk, waits_for = self._talks.get(told.ref, (None, None))
        if talk is None or type(told) is not waits_for:
            return []  # abandoned, or a repeated outcome: no conversation waits
        steps = self._advance(told.ref, talk, Step(told, now_s))
        if told.ref in self._again and told.ref not in self._talks:
            steps += self._start(told.ref, self._again.pop(told.ref), now_s)
        return steps

    def _advance(self, ref: str, talk: Conversation, step: Step | None) -> list[Instruction]:
        try:
            ask = next(talk) if step is None else talk.send(step)
        except StopIteration as end:
            self._talks.pop(ref, None)
            return self._finish(ref, end.value)
        self._talks[ref] = (talk, _ANSWER_TO[type(ask)])
        return [ask]

    def _finish(self, ref: str, reply: ApiReply) -> list[Instruction]:
        if not ref.startswith(WISH):
            return [Reply(ref=ref, reply=reply)]
        wish = self._pursued.pop(ref)
        if isinstance(reply, Refusal) and reply.retry:
            self._wishes[ref] = wish  # retried at the next tick
        return []

    def _on_abandoned(self, event: Abandoned) -> list[Instruction]:
        talk, _ = self._talks.pop(event.ref, (None, None))
        if talk is None:
            return []
        if event.ref in self._again:
            self._wishes[event.ref] = self._again.pop(event.ref)
        return self._finish(event.ref, unavailable(conversations.AGAIN))

    # Events of the log

    def _on_logged(self, event: Logged, now_s: float) -> list[Instruction]:
        offered = self._shared.view.offer(
            event.event, event.sequence, event.stored_at_s, void=event.is_astray
        )
        self._shared.followed(event.sequence)
        if offered is None:
            return []
        verdict, work = offered
        self.verdicts[verdict] += 1
        begun: list[Instruction] = []
        if self._shared.caught_up and verdict is Verdict.COUNTED:
            self._limits.follow(work)
            self._follow(work, now_s)
            begun = self._pursue(now_s) if self._wishes else []
        if verdict is Verdict.COUNTED:
            self._suspects.take(event.event, work, event.stored_at_s)
        if isinstance(event.event, Evicted) and self._shared.caught_up:
            self._wish_on(work)
            return [*begun, *self._pursue(now_s)]
        return begun

    def _follow(self, work: Workload, now_s: float) -> None:
        """Note a changed workload wherever later events depend on it."""
        self._idle.follow(work, now_s)
        self._settle_on(self._waiting.follow(work))
        self._settle_on(self._shared.trials.follow(work))
        self._end_trials(work)

    def _settle_on(self, names: list[Key]) -> None:
        """Check the jobs that depend on a changed workload."""
        for name in names:
            tenant, _, workload_id = name.partition("/")
            self._wishes[f"{WISH}after/{name}"] = Settle(tenant, workload_id)

    def _end_trials(self, work: Workload) -> None:
        """Cancel trials of a job that has ended or needs none."""
        request, view = work.wished or work.request, self._shared.view
        if request is None:
            return
        strays: list[Workload] = []
        if request.trial_of:
            job = view.find(work.tenant, request.trial_of)
            strays = [work] if job is None or job.released else []
        elif work.ended or work.released:
            found = (view.find(work.tenant, name) for name in trial_ids(request))
            strays = [trial for trial in found if trial is not None]
        for trial in strays:
            if not trial.ended and not trial.cancel_requested:
                wish = Wish(trial.tenant, trial.id, reason="its job needs it no more")
                self._wishes[f"{WISH}trial/{trial.key}"] = wish

    def _wish_on(self, work: Workload) -> None:
        """Cancel an evicted workload whose cancel was requested before, so that no attempt
        starts.
        """
        if work.state is State.QUEUED and work.cancel_requested:
            ref = f"{WISH}{work.key}"
            if ref not in self._pursued:
                reason = "its cancel had been requested before it was evicted"
                if work.after_eviction == "end":
                    reason = f"its queue ends idle jobs: {work.reason}"
                self._wishes[ref] = Wish(work.tenant, work.id, reason=reason)

    @property
    def idle_jobs(self) -> int:
        """Return the number of running jobs idle by the log."""
        return self._idle.idle

    @property
    def exceeding(self) -> Counter[ExceededLimit]:
        """Return the number of running jobs with GPU fractions above each limit."""
        return self._limits.exceeding

    def _on_figures(self, figures: JobFigures, now_s: float) -> None:
        if not (figures.tenant and figures.id and self._shared.queues_known):
            return
        work = self._shared.certain(figures.tenant, figures.id)
        if work is None or work.request is None:
            return
        self._limits.take(figures, work)
        setting = self._shared.queues.get(work.request.queue)
        if setting is not None and setting.idle_after_s is not None:
            self._idle.take(figures, work, setting, now_s)

    def _note_measured(self, now_s: float) -> None:
        """Record measured changes in the log. An unstored change is measured again."""
        if not self._shared.caught_up:
            return
        for order in (*self._idle.due(self._shared.certain, now_s), *self._limits.due()):
            ref = f"{WISH}{order.verb}/{order.tenant}/{order.id}"
            if ref not in self._pursued:
                self._wishes[ref] = order

    def _suspect(self, now_s: float) -> None:
        """Cordon nodes that fail jobs of all tenants, once the log and the cordons are known."""
        if not (self._shared.caught_up and self._shared.queues_known):
            return
        for cordon in self._suspects.due(now_s):
            ref = f"{WISH}cordon/{cordon.cluster}/{cordon.node}"
            if ref not in self._pursued:
                self._wishes[ref] = cordon

    def _pursue(self, now_s: float) -> list[Instruction]:
        begun: list[Instruction] = []
        if self._shared.damage:
            return begun
        waiting, self._wishes = self._wishes, {}  # after a failure: retried at a tick
        while waiting and len(self._talks) < self._shared.limits.max_in_flight:
            ref, wish = waiting.popitem()
            if ref in self._talks:  # one conversation a ref, as outcomes name nothing else
                self._again[ref] = wish
            else:
                begun += self._start(ref, wish, now_s)
        self._wishes |= waiting
        return begun

    def _start(
        self, ref: str, wish: Wish | Order | Cordon | Settle, now_s: float
    ) -> list[Instruction]:
        self._pursued[ref] = wish
        if isinstance(wish, Cordon):
            talk = conversations.put(self._shared, ref, wish, "")
        elif isinstance(wish, Settle):
            talk = conversations.settle(self._shared, ref, wish, now_s)
        else:
            talk = conversations.fulfil(self._shared, ref, wish, now_s)
        return self._advance(ref, talk, None)
