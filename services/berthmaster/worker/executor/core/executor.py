"""The decisions of one cluster's executor. Pure: event in, instructions out, time passed in.

``Executor.handle`` takes an event and returns instructions. Example: ``placed`` for attempt 1 leads
to an Append of ``claimed``. After the answer Stored it returns ``CreatePods``. ``PodsRunning``
leads to ``running``, and ``PodsCompleted`` to ``succeeded``. After that is stored it returns
``DeletePods``.

Rules of this file:

- Nothing is created before ``claimed`` is stored, and no ending is appended while pods hold
  resources. Pods and job object are deleted after the ending is stored, because a restarted
  executor recognizes the attempt by them.
- One write or read per workload is in flight. After a refused write, or one with an unknown result,
  a read (Reload) decides.
- A hint is only a hint. ``placed`` of an unknown workload is claimed at once, guarded by its own
  sequence. Other hints lead to a read.
- A periodic list of open attempts leads to reads of held attempts that the list does not name.
- Pods of a gang's part are created once the log has all parts claimed.
- A resize is carried out by the cluster and reported (``resized``) once exactly those pods run.
  Until then all of them hold capacity. New pods that do not run in time are given up, without an
  eviction.
- Pods of an attempt that the log ended, or gave to another owner, are deleted without an event.
- Silence of the bus changes nothing: no timer in this file ends a running job.
- Of several gangs that each hold part of the capacity they need, one gives way after a while: the
  youngest with the lowest priority, without blame. Gang scheduling in the cluster avoids this.
- Reports of a job are forwarded seldom, less often as it ages. Its last checkpoint is forwarded
  before its end. Reports that the log refuses are dropped.
- While the cluster does not answer, nothing is claimed, so placements here may be withdrawn. Held
  attempts are read again now and then, in case the log gave them to another owner.

The shell repeats a Reload until the log is readable. ``Reloaded.failed`` therefore means events
that this version cannot decode, or that a damaged log lost. The workload is then frozen here: pods
are watched, and nothing is changed or reported. Reads are repeated now and then, because an
operator may declare events void or cancel the workload, and a recovery may restore events.
"""

import heapq
from typing import Final, assert_never

from berthmaster.lib.lifecycle.attempts import MAX_REASON_CHARS, sent_by_hub
from berthmaster.lib.lifecycle.instructions import (
    Answered,
    Append,
    Outcome,
    Refused,
    Reload,
    Reloaded,
    Stored,
    Unknown,
)
from berthmaster.lib.lifecycle.pods import with_bound
from berthmaster.lib.lifecycle.states import HELD, State
from berthmaster.lib.lifecycle.workload import Key, Workload, key, progress_every_s
from berthmaster.lib.messages.door import HeldAttempt
from berthmaster.lib.messages.placement import HUB_CELL
from berthmaster.lib.messages.workload import (
    Admitted,
    CancelRequested,
    Checkpointed,
    Claimed,
    Committed,
    Evicted,
    EvictionRequested,
    Failed,
    Placed,
    Progressed,
    Resized,
    ResizeRequested,
    Running,
    WorkloadEvent,
)
from berthmaster.worker.executor.core.cluster_protocol import (
    Attempt,
    DeletePods,
    PodEvent,
    PodsFound,
    PodsQuiet,
    PodsSaid,
    PodsWaiting,
    ResizePods,
    StopPods,
)
from berthmaster.worker.executor.core.events import (
    Acknowledge,
    ClusterReached,
    Event,
    Freeze,
    HintSeen,
    Instruction,
    Listed,
    Tick,
)
from berthmaster.worker.executor.core.job import FinalResult, How, Job, Pods
from berthmaster.worker.executor.core.limits import (
    Limits,
    left_s,
    max_run_ends_s,
    order_of,
    stalled,
)
from berthmaster.worker.executor.core.log_events import LogEvents

NO_READING_YET: Final = 1 << 62  # above all sequences: a read in flight may be older
FROZEN_LOOK_S: Final = 60.0  # interval of reads of a frozen workload
HOLD_BACK_S: Final = 15.0  # time in which the resolver usually withdraws unclaimed placements
CHECKPOINT_EVERY_S: Final = 10.0  # minimum interval between checkpoint events of one job
CHECKPOINT_SHARE: Final = 0.001  # share of the run time, which keeps histories short
MAX_REFUSALS: Final = 3  # of a checkpoint, in a row
BACK_IN_QUEUE: Final = "its cluster's queue took it back: evicted or preempted there"


class Executor:
    def __init__(self, cluster: str, name: str = "", limits: Limits = Limits()) -> None:  # noqa: B008
        self.cluster = cluster
        self.name = name or f"executor/{cluster}"
        self._says = LogEvents(self.name, cluster)
        self._limits = limits
        self._jobs: dict[Key, Job] = {}
        self._refs: dict[str, tuple[Key, WorkloadEvent | None]] = {}
        self._timers: list[tuple[float, Attempt]] = []
        self._number = 0
        self.away = ""  # why the cluster does not answer; "" = it does

    @property
    def next_due_s(self) -> float | None:
        """When a Tick is wanted at the latest."""
        return self._timers[0][0] if self._timers else None

    @property
    def jobs(self) -> int:
        return len(self._jobs)

    @property
    def held(self) -> list[HeldAttempt]:
        """Return attempts with an object in the cluster, ended ones with a pending report included,
        and attempts being claimed, which may still start.
        """
        return [
            HeldAttempt(
                tenant=tenant,
                id=workload,
                attempt=attempt,
                receipt=job.receipt,
                executor=self.name,
                pods=job.resizable_pods,
            )
            for job in self._jobs.values()
            if job.pods is not Pods.NONE or job.may_begin
            for tenant, workload, attempt in [job.attempt]
        ]

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        """Apply one event and return the instructions in order."""
        match event:
            case HintSeen():
                return self._on_told(event, now_s)
            case Listed():
                return self._on_listed(event, now_s)
            case Answered():
                return self._on_answered(event, now_s)
            case Reloaded():
                return self._on_reloaded(event, now_s)
            case Tick():
                return self._on_tick(now_s)
            case ClusterReached(away):
                self.away = away
                waiting = [j for j in self._jobs.values() if j.logged is State.PLACED]
                return [do for job in waiting for do in self._advance(job, now_s)]
            case _:
                return self._on_pods(event, now_s)

    # Hints

    def _on_told(self, told: HintSeen, now_s: float) -> list[Instruction]:
        hint, event, sequence, receipt = told
        if event.cluster != self.cluster:
            return [Acknowledge(hint)]
        job = self._jobs.get(key(event.tenant, event.id))
        if job is not None and job.frozen:
            job.moved_on(sequence)  # the reporter can read it
            return [Acknowledge(hint), *self._advance(job, now_s)]
        match event:
            case Placed() if event.cell == HUB_CELL or sent_by_hub(event):
                # The hub sends the job here, and another party claims it
                return [Acknowledge(hint)]
            case Placed():
                return self._on_placed(hint, event, sequence, receipt, now_s)
            case CancelRequested() | EvictionRequested() | ResizeRequested() | Committed():
                return self._on_wish(hint, event, sequence, now_s)
            case Evicted() | Failed():
                return self._on_over(hint, event, sequence, now_s)
            case _:
                assert_never(event)

    def _on_placed(
        self, hint: int, placed: Placed, sequence: int, receipt: str, now_s: float
    ) -> list[Instruction]:
        name = key(placed.tenant, placed.id)
        job = self._jobs.get(name)
        if job is None:
            job = self._jobs[name] = Job.of(placed, sequence, receipt)
            job.hints.append(hint)
        elif placed.attempt < job.attempt.number or (
            placed.attempt == job.attempt.number and job.pods is not Pods.NONE
        ):
            return [Acknowledge(hint)]
        else:
            job.hints.append(hint)
            if placed.attempt > job.attempt.number:
                job.moved_on(sequence)
        return self._advance(job, now_s)

    def _on_wish(
        self,
        hint: int,
        wish: CancelRequested | EvictionRequested | ResizeRequested | Committed,
        sequence: int,
        now_s: float,
    ) -> list[Instruction]:
        """Acted at once: if we die now, whatever makes us look at the workload shows the wish."""
        job = self._jobs.get(key(wish.tenant, wish.id))
        if job is None:
            return [Acknowledge(hint)]
        if not job.ref and not job.stale and wish.after == job.sequence and job.logged in HELD:
            job.sequence = sequence
            match wish:
                case CancelRequested():
                    job.cancel = True
                    job.cancel_reason = wish.reason
                case EvictionRequested():
                    job.leaving = wish.reason
                case ResizeRequested():
                    job.resizing = wish.pods
                case Committed():
                    job.committed = True
        elif sequence > job.sequence:
            job.moved_on(sequence)
        return [Acknowledge(hint), *self._advance(job, now_s)]

    def _on_over(
        self, hint: int, over: Evicted | Failed, sequence: int, now_s: float
    ) -> list[Instruction]:
        """Apply the end of an attempt by another party, for example after a lost cluster."""
        job = self._jobs.get(key(over.tenant, over.id))
        if job is None or over.by == self.name or sequence <= job.sequence:
            return [Acknowledge(hint)]
        job.moved_on(sequence)
        return [Acknowledge(hint), *self._advance(job, now_s)]

    def _on_listed(self, listed: Listed, now_s: float) -> list[Instruction]:
        """Read held attempts that the list does not name, or names as unclaimed: an event was
        missed or is in flight. Read all after a change of the log.
        """
        done: list[Instruction] = []
        for name, job in list(self._jobs.items()):
            is_ours = name in listed.open and not (name in listed.unheld and job.logged in HELD)
            is_missed = not is_ours and job.sequence <= listed.sequence
            if listed.renewed or job.frozen or is_missed:
                job.moved_on(NO_READING_YET)
                done += self._advance(job, now_s)
        return done

    # The log's answers

    def _on_answered(self, answer: Answered, now_s: float) -> list[Instruction]:
        name, event = self._refs.pop(answer.ref, (None, None))
        job = self._jobs.get(name) if name is not None else None
        if job is None or event is None or job.ref != answer.ref:
            return []  # of a job dropped meanwhile
        job.ref = ""
        return self._on_outcome(job, event, answer.outcome, now_s)

    def _on_outcome(
        self, job: Job, event: WorkloadEvent, outcome: Outcome, now_s: float
    ) -> list[Instruction]:
        match outcome:
            case Stored(sequence):
                job.sequence = sequence
            case Refused() | Unknown():
                job.stale = True
                if isinstance(outcome, Refused):
                    _let_go_of_said(job, event)
                return self._advance(job, now_s)
            case _:
                assert_never(outcome)
        match event:
            case Claimed():
                job.logged = State.CLAIMED
                job.claimed_at_s = event.at_s
                # Our clock has gone back since: how long ago that was only the server can say.
                job.stale |= now_s < event.at_s
            case Admitted():
                job.logged = State.ADMITTED
            case Running():
                job.logged = State.RUNNING
                job.told_pods = event.pods
                job.running_at_s = job.running_at_s or event.at_s
                self._watch_run(job)
            case Checkpointed() | Progressed():
                _said_is_told(job, event, now_s)
            case Resized():
                job.told_pods = event.pods
                job.resizing = job.resize_ordered = ()
                job.resize_failed = ""
                if job.request is not None:
                    job.request = with_bound(job.request, event.pods)
            case _:
                return self._leave(job, "ended")
        return self._advance(job, now_s)

    def _on_reloaded(self, read: Reloaded, now_s: float) -> list[Instruction]:
        name, event = self._refs.pop(read.ref, (None, None))
        job = self._jobs.get(name) if name is not None else None
        if job is None or name is None or event is not None or job.ref != read.ref:
            return []
        job.ref = ""
        job.stale = False
        if read.failed:
            return self._freeze(job, read.failed, now_s)
        if job.frozen:
            job.frozen, job.look_at_s = "", 0.0
            if job.pods is Pods.ASKED:
                self._be_patient(job, now_s)
        work = read.workload
        if work is None or not self._is_ours(work):
            return self._leave(job, read.why or "not ours (any more)")
        if work.attempt != job.attempt.number:
            return self._replace(job, work, read, now_s)
        job.adopt(work, _behind_s(read, now_s))
        self._watch_run(job)
        job.receipt = job.receipt or read.receipt
        return self._advance(job, now_s)

    def _freeze(self, job: Job, why: str, now_s: float) -> list[Instruction]:
        """Told once for each reason."""
        freeze = [Freeze(job.attempt.tenant, job.attempt.id, why)] if job.frozen != why else []
        hints, job.hints = job.hints, []
        job.frozen, job.look_at_s = why, now_s + FROZEN_LOOK_S
        self._set_timer(job.look_at_s, job.attempt)
        return [*freeze, *(Acknowledge(hint) for hint in hints)]

    def _is_ours(self, work: Workload) -> bool:
        if work.cluster != self.cluster:
            return False
        return work.state is State.PLACED or (work.state in HELD and work.executor == self.name)

    def _replace(self, old: Job, work: Workload, read: Reloaded, now_s: float) -> list[Instruction]:
        """Another attempt of the same workload is ours: the one we knew is over."""
        hints, old.hints = old.hints, []
        left = self._leave(old, "its attempt is over")
        attempt = Attempt(work.tenant, work.id, work.attempt)
        job = Job(attempt=attempt, hints=hints, receipt=read.receipt, told=old.told)
        self._jobs[work.key] = job
        job.adopt(work, _behind_s(read, now_s))
        return [*left, *self._advance(job, now_s)]

    def _leave(self, job: Job, why: str) -> list[Instruction]:
        """Drop the job and delete its objects."""
        del self._jobs[key(job.attempt.tenant, job.attempt.id)]
        self._refs.pop(job.ref, None)
        gone: list[Instruction] = []
        if job.pods is not Pods.NONE:
            gone.append(DeletePods(job.attempt, why))
        return [*gone, *(Acknowledge(hint) for hint in job.hints)]

    # The cluster's events

    def _on_pods(self, event: PodEvent, now_s: float) -> list[Instruction]:
        attempt = event.attempt
        job = self._jobs.get(key(attempt.tenant, attempt.id))
        if job is not None and job.frozen:
            if job.attempt == attempt:
                job.hear(event)
            return []
        if isinstance(event, PodsFound):
            return self._on_found(job, event, now_s)
        if job is None or job.attempt != attempt:
            return []
        if job.hear(event):
            self._be_patient(job, now_s)
        if isinstance(event, PodsSaid) and event.progress is not None:
            job.said_at_s, job.said_age_s = now_s, event.age_s
        if isinstance(event, PodsQuiet) and (why := stalled(job, event.quiet_s)):
            job.judge(FinalResult(How.EVICTED, why, fault="stalled"))
        if isinstance(event, PodsWaiting) and event.bound != job.bound:
            job.bound = event.bound
            self._watch_gang(job, now_s)
        return self._advance(job, now_s)

    def _on_found(self, job: Job | None, found: PodsFound, now_s: float) -> list[Instruction]:
        """At the start. Of two attempts with pods only the later can be open."""
        attempt = found.attempt
        if job is not None and job.attempt.number > attempt.number:
            return [DeletePods(attempt, "a later attempt was made")]
        left: list[Instruction] = []
        hints: list[int] = []
        if job is not None and job.attempt.number < attempt.number:
            hints, job.hints = job.hints, []
            left = self._leave(job, "a later attempt was made")
            job = None
        if job is None:
            name = key(attempt.tenant, attempt.id)
            job = self._jobs[name] = Job(attempt=attempt, stale=True, hints=hints)
        job.hear(found)
        if job.pods is Pods.NONE:
            job.pods = Pods.ASKED
            self._be_patient(job, now_s)
        return [*left, *self._advance(job, now_s)]

    # Time

    def _set_timer(self, due_s: float, attempt: Attempt) -> None:
        heapq.heappush(self._timers, (due_s, attempt))

    def _be_patient(self, job: Job, now_s: float) -> None:
        job.due_s = now_s + self._limits.patience_s(job)
        self._set_timer(job.due_s, job.attempt)

    def _watch_run(self, job: Job) -> None:
        ends_s = max_run_ends_s(job)
        if ends_s is not None:
            self._set_timer(ends_s, job.attempt)

    def _on_tick(self, now_s: float) -> list[Instruction]:
        """A timer only makes us look at its attempt again; most are for nothing by then."""
        done: list[Instruction] = []
        while self._timers and self._timers[0][0] <= now_s:
            _, attempt = heapq.heappop(self._timers)
            job = self._jobs.get(key(attempt.tenant, attempt.id))
            if job is None or job.attempt != attempt:
                continue
            if job.frozen:
                job.stale = job.stale or now_s >= job.look_at_s
            elif job.resizing and now_s >= job.due_s:
                self._let_go_of_new_pods(job, now_s)
            elif job.pods is Pods.ASKED and now_s >= job.due_s:
                job.judge(FinalResult(How.EVICTED, self._limits.too_late(job), fault="late"))
            done += self._advance(job, now_s)
        return [*done, *self._give_way(now_s)]

    def _let_go_of_new_pods(self, job: Job, now_s: float) -> None:
        """Give up new pods that did not run in time and continue with the others. Pods that are
        ending are awaited.
        """
        self._be_patient(job, now_s)
        rest = job.running_of(job.resizing)
        if rest and len(rest) < len(job.resizing):
            job.resize_failed = self._limits.too_late(job)
            job.resizing = rest

    def _watch_gang(self, job: Job, now_s: float) -> None:
        job.bound_since_s = now_s
        if job.half_started:
            self._set_timer(now_s + self._limits.gang_s, job.attempt)

    def _give_way(self, now_s: float) -> list[Instruction]:
        """Let one of several stuck gangs give its capacity to the others."""
        stuck = [
            job
            for job in self._jobs.values()
            if job.half_started
            and not job.frozen
            and now_s >= job.bound_since_s + self._limits.gang_s
        ]
        if len(stuck) < 2:
            return []
        job = max(stuck, key=_gives_way)
        for other in stuck:
            self._watch_gang(other, now_s)  # the freed capacity may suffice
        job.judge(FinalResult(How.EVICTED, self._limits.in_the_way(job), blameless=True))
        return self._advance(job, now_s)

    # Next steps

    def _advance(self, job: Job, now_s: float) -> list[Instruction]:
        """Return the next step from log and pods: one write at a time, with orders to the cluster
        in parallel.
        """
        if job.frozen:
            return [self._reload(job)] if job.stale and not job.ref else []
        if job.logged in HELD and not job.stale:
            if job.pods is Pods.NONE and job.verdict is None and not self._unwanted(job, now_s):
                if job.held_back:
                    return self._write(job, now_s)
                return [*self._create(job, now_s), *self._write(job, now_s)]
            if job.queued and (job.admitted or job.logged is not State.CLAIMED):
                job.judge(FinalResult(How.EVICTED, BACK_IN_QUEUE))
            if job.cancel and job.pods is not Pods.GONE:
                job.judge(FinalResult(How.CANCELLED, job.cancel_reason))
            elif job.leaving and job.pods is not Pods.GONE:
                job.judge(FinalResult(How.EVICTED, job.leaving))
            elif job.pods is Pods.RUNNING and job.request is not None:
                ends_s = max_run_ends_s(job)
                if ends_s is not None and now_s >= ends_s:
                    too_long = f"it ran for longer than its max_run_s, {job.request.max_run_s:g} s"
                    job.judge(FinalResult(How.FAILED, too_long))
        stop: list[Instruction] = []
        running = job.pods in (Pods.ASKED, Pods.RUNNING)
        if job.verdict is not None and running and job.logged in HELD:
            job.pods = Pods.STOPPING
            stop.append(StopPods(job.attempt, job.verdict.reason[:MAX_REASON_CHARS]))
        if not stop and running and job.logged is State.RUNNING and not job.stale:
            stop = self._resize(job, now_s)
        return [*stop, *self._write(job, now_s)]

    def _resize(self, job: Job, now_s: float) -> list[Instruction]:
        """Order the size in the log, if not ordered yet."""
        if not job.resizing or job.resizing == job.resize_ordered or job.request is None:
            return []
        if not job.resize_ordered:
            self._be_patient(job, now_s)
        job.resize_ordered = job.resizing
        return [ResizePods(job.attempt, job.resizing, job.request)]

    def _unwanted(self, job: Job, now_s: float) -> bool:
        """Return whether pods must not be created: cancelled, evicted, or past the deadline."""
        if job.cancel:
            job.judge(FinalResult(How.CANCELLED, job.cancel_reason))
        elif job.leaving:
            job.judge(FinalResult(How.EVICTED, job.leaving))
        elif (rest_s := left_s(job, now_s)) is not None and rest_s <= 0:
            job.judge(FinalResult(How.EVICTED, "deadline", fault="deadline"))
        return job.verdict is not None

    def _create(self, job: Job, now_s: float) -> list[Instruction]:
        if job.request is None:  # open workloads always have a request
            return []
        job.pods = Pods.ASKED
        self._be_patient(job, now_s)
        hints, job.hints = job.hints, []
        return [order_of(job, self.name, now_s), *(Acknowledge(hint) for hint in hints)]

    def _write(self, job: Job, now_s: float) -> list[Instruction]:
        if job.ref:
            return []
        if job.stale:
            return [self._reload(job)]
        if job.logged is State.PLACED and self.away:
            return self._hold_back(job, now_s)
        if job.logged is State.PLACED:
            return [self._append(job, self._says.claimed(job, now_s))]
        if job.logged not in HELD:
            return []
        if job.verdict is not None:
            return self._end(job, job.verdict, now_s)
        if job.held_back:
            return []  # its pods run only if a damaged log lost the permission
        if job.admitted and job.logged is State.CLAIMED:
            return [self._append(job, self._says.admitted(job, now_s))]
        if job.resizing:
            if job.pods is Pods.RUNNING and job.is_resized:
                return [self._append(job, self._says.resized(job, now_s))]
        elif job.pods is Pods.RUNNING and job.observed != job.told_pods:
            return [self._append(job, self._says.running(job, now_s))]
        return self._tell_said(job, now_s)

    def _tell_said(self, job: Job, now_s: float) -> list[Instruction]:
        """Append the job's reports if due; else set a timer."""
        if job.said_checkpoint is not None and self._is_due(job, job.checkpoint_due_s, now_s):
            return [self._append(job, self._says.checkpointed(job, job.said_checkpoint, now_s))]
        if job.said_progress is None or job.logged is not State.RUNNING:
            return []
        if self._is_due(job, job.progress_due_s, now_s):
            return [self._append(job, self._says.progressed(job, job.said_progress, now_s))]
        return []

    def _is_due(self, job: Job, due_s: float, now_s: float) -> bool:
        if now_s < due_s:
            self._set_timer(due_s, job.attempt)
        return now_s >= due_s

    def _hold_back(self, job: Job, now_s: float) -> list[Instruction]:
        """Not claimed now; read again after a while."""
        job.look_at_s = _pause_until_s(job.look_at_s, HOLD_BACK_S, now_s)
        if now_s < job.look_at_s:
            self._set_timer(job.look_at_s, job.attempt)
            return []
        job.look_at_s = 0.0
        return [self._reload(job)]

    def _end(self, job: Job, verdict: FinalResult, now_s: float) -> list[Instruction]:
        if job.pods not in (Pods.NONE, Pods.GONE):
            return []  # they still hold resources
        if job.said_checkpoint is not None and verdict.how is not How.COMPLETED:
            return [self._append(job, self._says.checkpointed(job, job.said_checkpoint, now_s))]
        known = job.submitted_at_s > 0
        retries = job.request.retries if job.request is not None else 0
        counts = verdict.how is How.EVICTED or (verdict.how is How.FAILED and retries)
        if counts and not job.leaving:
            known = known and job.evictions is not None
        if not known:
            return [self._reload(job)]
        if verdict.how is How.EVICTED and not (job.cancel or job.leaving):
            pause_s = self._limits.pause_s(job.evictions or 0)
            job.patience_s = _pause_until_s(job.patience_s, pause_s, now_s)
            if now_s < job.patience_s:
                self._set_timer(job.patience_s, job.attempt)
                return []
        return [self._append(job, self._says.ending(job, verdict, now_s))]

    # The words to the log

    def _ref(self, job: Job, event: WorkloadEvent | None) -> str:
        self._number += 1
        job.ref = str(self._number)
        self._refs[job.ref] = (key(job.attempt.tenant, job.attempt.id), event)
        return job.ref

    def _reload(self, job: Job) -> Reload:
        """Read the workload, with the receipt in case the log lost the placement."""
        receipt = "" if job.pods is Pods.NONE else job.receipt
        tenant, workload, _ = job.attempt
        job.told = 0
        return Reload(ref=self._ref(job, None), tenant=tenant, id=workload, receipt=receipt)

    def _append(self, job: Job, event: WorkloadEvent) -> Append:
        return Append(ref=self._ref(job, event), event=event)


def _behind_s(read: Reloaded, now_s: float) -> float:
    """By how much our clock is behind the server's. A claim that was read is at least as old as the
    server says: its deadline may be believed to have passed by now."""
    return max(0.0, read.now_s - now_s)


def _gives_way(job: Job) -> tuple[int, float, Attempt]:
    priority = job.request.priority if job.request is not None else 0
    return -priority, job.submitted_at_s, job.attempt


def _said_is_told(job: Job, event: Checkpointed | Progressed, now_s: float) -> None:
    """Note a stored report. Newer reports may have arrived meanwhile."""
    ran_s = max(0.0, now_s - job.running_at_s) if job.running_at_s else 0.0
    if isinstance(event, Progressed):
        job.progress_due_s = now_s + progress_every_s(ran_s)
        if job.said_at_s <= event.at_s:
            job.said_progress = None
        return
    job.told_checkpoint, job.checkpoint_refusals = event.checkpoint, 0
    job.checkpoint_due_s = now_s + max(CHECKPOINT_EVERY_S, CHECKPOINT_SHARE * ran_s)
    if job.said_checkpoint == event.checkpoint:
        job.said_checkpoint = None


def _let_go_of_said(job: Job, event: WorkloadEvent) -> None:
    """Drop a report that the log refused, after a race or for good. More reports follow."""
    if isinstance(event, Progressed):
        job.said_progress = None
    elif isinstance(event, Checkpointed):
        job.checkpoint_refusals += 1
        if job.checkpoint_refusals >= MAX_REFUSALS:
            job.said_checkpoint, job.checkpoint_refusals = None, 0


def _pause_until_s(until_s: float, pause_s: float, now_s: float) -> float:
    """Return the end of a pause, possibly already running (0 = not). A clock set back makes no
    pause longer. Its timer may have fired with a fast clock, so set it again.
    """
    return min(until_s or now_s + pause_s, now_s + pause_s)
