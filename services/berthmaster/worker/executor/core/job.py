"""An executor's knowledge of one attempt: log, pods, and pending operations.

Two states decide everything: progress in the log (``logged``) and progress of the pods (``pods``).
The core advances one of them at a time and checks again, so the order of news, and restarts, do not
matter. Example: ``logged=CLAIMED, pods=NONE`` leads to ``CreatePods``.
"""

from enum import Enum
from typing import NamedTuple, assert_never

import msgspec

from berthmaster.lib.lifecycle.pods import (
    index_of,
    is_elastic,
    least,
    set_of,
    together,
    with_bound,
)
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Workload, request_digest
from berthmaster.lib.messages.placement import PodBinding, Target
from berthmaster.lib.messages.workload import Checkpoint, Fault, JobRequest, Placed, Progress
from berthmaster.worker.executor.core.cluster_protocol import (
    Attempt,
    PodEvent,
    PodsAdmitted,
    PodsCompleted,
    PodsExpired,
    PodsFailed,
    PodsFound,
    PodsGone,
    PodsQueued,
    PodsQuiet,
    PodsRefused,
    PodsRunning,
    PodsSaid,
    PodsWaiting,
)


class Pods(Enum):
    """State of the pods in the cluster, as far as known."""

    NONE = "none"  # nothing was asked for
    ASKED = "asked"  # job object made, not all pods run
    RUNNING = "running"
    STOPPING = "stopping"  # told to stop
    GONE = "gone"  # the object is there, and holds no resources


class How(Enum):
    COMPLETED = "completed"
    FAILED = "failed"  # by their own fault
    EVICTED = "evicted"  # by the cluster's doing or by a limit
    CANCELLED = "cancelled"


class FinalResult(NamedTuple):
    """The ending to append once no pod is left."""

    how: How
    reason: str = ""
    exit_code: int | None = None
    blameless: bool = False  # of an eviction without a fault
    fault: Fault = ""
    node: str = ""  # node of the cause; "" = unknown
    hopeless: bool = False  # of a failure: another attempt would end the same way


class Job(msgspec.Struct, kw_only=True):
    """One attempt that this executor holds or examines."""

    attempt: Attempt
    # The log
    logged: State = State.NEW  # NEW = not read yet
    sequence: int = 0  # the guard
    request: JobRequest | None = None
    placed: tuple[PodBinding, ...] = ()
    target: Target = Target()
    digest: str = ""
    submitted_at_s: float = 0.0  # 0 = not known
    claimed_at_s: float = 0.0  # by our clock, and not later than the log's own time of the claim
    running_at_s: float = 0.0  # start of all pods; 0 = not all run yet
    ran_s: float = 0.0  # run time of earlier attempts that counts toward max_run_s
    checkpoint: Checkpoint | None = None  # checkpoint to continue from
    told_checkpoint: Checkpoint | None = None  # the last in the log
    evictions: int | None = None  # None = unknown
    failures: int = 0  # failures before this attempt; known with evictions
    last_fault: Fault = ""
    repeats: int = 0  # consecutive attempts with that end
    cancel: bool = False
    cancel_reason: str = ""
    committed: bool = False  # all parts of the gang are claimed, so pods may start
    leaving: str = ""  # reason of a pending eviction; "" = none
    told_pods: tuple[PodBinding, ...] = ()  # as the last ``running`` or ``resized`` says
    resizing: tuple[PodBinding, ...] = ()  # pods after a pending resize; () = none
    resize_ordered: tuple[PodBinding, ...] = ()  # of the cluster, by this life
    resize_failed: str = ""  # why fewer new pods than ordered remain
    receipt: str = ""  # signed by the door; "" = unknown
    read_back: bool = False  # the claim was read, not made by this process run as far as known
    # The cluster
    pods: Pods = Pods.NONE
    observed: tuple[PodBinding, ...] = ()
    part_running: tuple[PodBinding, ...] = ()  # running pods while others do not run
    queued: bool = False  # in the cluster's own queue
    admitted: bool = False  # admitted by Kueue
    resizable: bool = False  # the number of pods may change
    waits_for: str = ""  # the cluster's message about waiting pods
    bound: int = 0  # pods with a node while others have none
    bound_since_s: float = 0.0  # so many
    # Reports of the job not in the log yet; None = none
    said_progress: Progress | None = None
    said_at_s: float = 0.0  # time of that report
    said_age_s: float = 0.0  # its age at that time
    said_checkpoint: Checkpoint | None = None
    checkpoint_refusals: int = 0  # by the log, in a row
    progress_due_s: float = 0.0  # not told before then
    checkpoint_due_s: float = 0.0
    due_s: float = 0.0  # if not all pods run by then, the attempt is given back
    verdict: FinalResult | None = None
    look_at_s: float = 0.0  # read again then: frozen, or not claimed as the cluster is away
    # Under way
    ref: str = ""  # id of the pending write or read; "" = none
    stale: bool = False  # the log has news: read before the next write
    told: int = 0  # newest reported event since the pending read was requested
    frozen: str = ""  # why its events cannot be read; "" = readable
    patience_s: float = 0.0  # the ending is not appended before then; 0 = not decided
    hints: list[int] = []

    @classmethod
    def of(cls, placed: Placed, sequence: int, receipt: str = "") -> "Job":
        return cls(
            attempt=Attempt(placed.tenant, placed.id, placed.attempt),
            logged=State.PLACED,
            sequence=sequence,
            request=with_bound(placed.request, placed.pods),
            placed=placed.pods,
            target=placed.target,
            digest=request_digest(placed.request),
            submitted_at_s=placed.submitted_at_s,
            receipt=receipt,
            ran_s=placed.ran_s,
            checkpoint=placed.checkpoint,
            told_checkpoint=placed.checkpoint,
        )

    def judge(self, verdict: FinalResult) -> None:
        """Set the verdict. The first one stays, because later ones are consequences."""
        if self.verdict is None:
            self.verdict = verdict

    @property
    def held_back(self) -> bool:
        """Return whether its pods must not start yet, as in the fold."""
        part = self.request.part if self.request is not None else None
        return part is not None and part.gang and not self.committed

    @property
    def may_begin(self) -> bool:
        """Return whether a pending write or read may report it claimed, after which its pods start
        at once.
        """
        return self.logged is State.PLACED and bool(self.ref) and not self.held_back

    @property
    def resizable_pods(self) -> tuple[PodBinding, ...]:
        """Return present and ordered pods of an elastic job."""
        if self.request is None or not is_elastic(self.request):
            return ()
        return together(self.observed, self.resize_ordered)

    @property
    def half_started(self) -> bool:
        """Return whether some pods hold capacity while others wait for capacity."""
        request = self.request
        waits = self.pods is Pods.ASKED and self.verdict is None and not self.queued
        count = sum(pods.count for pods in request.pod_sets) if request is not None else 0
        return waits and self.bound > 0 and count > 1

    @property
    def is_resized(self) -> bool:
        return {each.pod for each in self.observed} == {each.pod for each in self.resizing}

    def running_of(self, pods: tuple[PodBinding, ...]) -> tuple[PodBinding, ...]:
        """Return the running ones of these pods, per pod set up to the first gap; () if a pod set
        is below its minimum.
        """
        running = {each.pod for each in self.part_running}
        found: list[PodBinding] = []
        counts: dict[str, int] = {}
        for each in sorted(pods, key=lambda one: (set_of(one.pod), index_of(one.pod))):
            name = set_of(each.pod)
            if each.pod in running and counts.get(name, 0) == index_of(each.pod):
                counts[name] = counts.get(name, 0) + 1
                found.append(each)
        sets = self.request.pod_sets if self.request is not None else ()
        return tuple(found) if all(counts.get(s.name, 0) >= least(s) for s in sets) else ()

    def hear(self, event: PodEvent) -> bool:
        """Apply an event of the cluster. Return whether the time limit of the start begins."""
        match event:
            case PodsFound(_, receipt):
                self.receipt = self.receipt or receipt
            case PodsQueued():
                begins, self.queued = not self.queued, True
                return begins
            case PodsAdmitted(_, resizable):
                begins, self.queued, self.admitted = not self.admitted, False, True
                self.resizable = resizable
                return begins
            case PodsWaiting(_, reason, _, running):
                self.waits_for = reason
                self.part_running = running
            case PodsRunning(_, pods):
                if self.pods is Pods.ASKED:
                    self.pods = Pods.RUNNING
                self.observed = pods
            case PodsSaid(_, progress, checkpoint):
                self.said_progress = progress or self.said_progress
                if checkpoint is not None:
                    is_news = checkpoint != self.told_checkpoint
                    self.said_checkpoint = checkpoint if is_news else None
            case PodsQuiet():
                pass  # the executor knows the limit
            case PodsRefused(_, reason, fault, node, hopeless):
                how = How.FAILED if hopeless else How.EVICTED
                self.judge(FinalResult(how, reason, fault=fault, node=node, hopeless=hopeless))
            case PodsFailed(_, reason, exit_code, fault, node):
                self.judge(FinalResult(How.FAILED, reason, exit_code, fault=fault, node=node))
            case PodsCompleted():
                self.judge(FinalResult(How.COMPLETED))
                self.pods = Pods.GONE
            case PodsExpired():
                self.judge(FinalResult(How.EVICTED, "deadline", fault="deadline"))
                self.pods = Pods.GONE
            case PodsGone(_, reason):
                self.judge(FinalResult(How.EVICTED, reason or "its pods vanished from the cluster"))
                self.pods = Pods.GONE
            case _:
                assert_never(event)
        return False

    def moved_on(self, sequence: int) -> None:
        """Note a reported event that is not read yet. A pending read may be older."""
        self.stale = True
        self.told = max(self.told, sequence)

    def adopt(self, work: Workload, behind_s: float) -> None:
        """Apply the log's state of this attempt. ``behind_s``: offset of the local clock."""
        self.logged = work.state
        self.read_back = work.state is not State.PLACED
        self.sequence = work.sequence
        self.stale = self.told > work.sequence
        self.request = work.request
        self.digest = work.digest
        self.submitted_at_s = work.submitted_at_s
        self.claimed_at_s = work.claimed_at_s - behind_s
        self.running_at_s = work.running_at_s
        self.ran_s = work.ran_s
        if self.pods is Pods.NONE:  # orders to its pods stay
            self.checkpoint = work.checkpoint
        self.told_checkpoint = work.checkpoint
        if self.said_checkpoint == work.checkpoint:
            self.said_checkpoint = None
        self.evictions = work.evictions
        self.failures = work.failures
        self.last_fault, self.repeats = work.last_fault, work.repeats
        self.cancel = work.cancel_requested
        self.leaving = work.leaving
        self.committed = work.committed
        if not (work.resizing and self.resize_failed):  # otherwise it is being reverted
            self.resizing, self.resize_failed = work.resizing, ""
        # Report running again, if the log lost that.
        self.told_pods = work.pods if work.state is State.RUNNING else ()
        self.placed = self.placed or work.pods
        self.target = work.target
