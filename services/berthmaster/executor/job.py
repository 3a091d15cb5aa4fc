"""What an executor knows of one attempt: what the log says, what its pods do, what is under way.

Two tables decide all: how far the log is (``logged``) and what the pods do (``pods``). The core
moves one of them at a time and asks again, so that it does not matter in which order things are
learned, nor whether they are learned from a restart.
"""

from enum import Enum
from typing import NamedTuple

import msgspec

from berthmaster.executor.words import Attempt
from berthmaster.lifecycle.fold import Workload
from berthmaster.lifecycle.states import State
from berthmaster.messages.placement import PodBinding, Target
from berthmaster.messages.workload import JobRequest


class Pods(Enum):
    """What the cluster has of the attempt, as far as we know."""

    NONE = "none"  # nothing was asked for
    ASKED = "asked"  # job object made, not all pods run
    RUNNING = "running"
    STOPPING = "stopping"  # told to stop
    GONE = "gone"  # the object is there, and holds no resources


class How(Enum):
    """How the attempt ends."""

    COMPLETED = "completed"
    FAILED = "failed"  # by its own doing
    EVICTED = "evicted"  # by the cluster's doing or by a limit
    CANCELLED = "cancelled"


class Verdict(NamedTuple):
    """What will be appended once no pod is left."""

    how: How
    reason: str = ""
    exit_code: int | None = None


class Job(msgspec.Struct, kw_only=True):
    """One attempt of one workload that we hold, or look at."""

    attempt: Attempt
    # The log
    logged: State = State.NEW  # NEW = not read yet
    sequence: int = 0  # the guard
    request: JobRequest | None = None
    placed: tuple[PodBinding, ...] = ()
    target: Target = Target()
    digest: str = ""
    submitted_at_s: float = 0.0  # 0 = not known
    claimed_at_s: float = 0.0  # not later than the log's own time of the claim
    evictions: int | None = None  # None = not known
    cancel: bool = False
    cancel_reason: str = ""
    told_pods: tuple[PodBinding, ...] = ()  # as the last ``running`` says
    # The cluster
    pods: Pods = Pods.NONE
    observed: tuple[PodBinding, ...] = ()
    queued: bool = False  # in the cluster's own queue
    admitted: bool = False  # out of it
    waits_for: str = ""  # what the cluster says of pods that do not run
    due_s: float = 0.0  # if not all pods run by then, the attempt is given back
    verdict: Verdict | None = None
    # Under way
    ref: str = ""  # of the one write or read in flight; "" = none
    stale: bool = False  # the log has moved: read it before the next write
    patience_s: float = 0.0  # the ending is not appended before then; 0 = not decided
    hints: list[int] = []

    def adopt(self, work: Workload) -> None:
        """Take over what the log says of this attempt."""
        self.logged = work.state
        self.sequence = work.sequence
        self.request = work.request
        self.digest = work.digest
        self.submitted_at_s = work.submitted_at_s
        self.claimed_at_s = work.claimed_at_s
        self.evictions = work.evictions
        self.cancel = work.cancel_requested
        if work.state is State.RUNNING:
            self.told_pods = work.pods
        self.placed = self.placed or work.pods
        self.target = work.target
