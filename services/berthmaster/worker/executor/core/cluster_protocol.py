"""The protocol between an executor and its cluster, for any kind of cluster.

A cluster has one *job object* per attempt, named by workload id and attempt, with pods below:

- ``CreatePods`` creates both. Repeating it changes nothing but reports the state again.
- ``ResizePods`` starts more pods, or ends those with the highest indices.
- ``StopPods`` ends the pods and keeps the object with the reason. An executor killed before its
  report finds the reason there. Answered by ``PodsGone``.
- ``DeletePods`` removes everything. Not answered.

Events report changes. Each concerns all pods of an attempt together, and may repeat. Example:
``CreatePods`` leads to ``PodsWaiting`` with the scheduler's message, then ``PodsRunning`` with
nodes, then ``PodsCompleted``.
"""

from typing import NamedTuple

from berthmaster.lib.messages.placement import PodBinding, Target
from berthmaster.lib.messages.workload import Checkpoint, Fault, JobRequest, Progress


class Attempt(NamedTuple):
    """Names the job object."""

    tenant: str
    id: str
    number: int

    def pod_name(self, pod: str) -> str:
        """Return the name of a pod (``<pod set>-<index>``)."""
        return f"{self.id}-{self.number}-{pod}"


# Orders of the executor


class CreatePods(NamedTuple):
    """Create the job object and its pods, unless they exist."""

    attempt: Attempt
    executor: str  # label of the object: executor that claimed the attempt
    pods: tuple[PodBinding, ...]
    request: JobRequest
    stop_after_s: float | None  # seconds after which the cluster stops the pods; None = never
    asked_at_s: float | None = None  # start of that time; None = when carried out
    # An executor paused between order and creation must not start a job that is placed elsewhere by
    # then.
    target: Target = Target()  # where and how, in a Kubernetes cluster
    ran: bool = False  # its pods were ordered to run: missing ones are not created again
    claimed_before: bool = False  # the claim was read in the log: there may be an object already
    receipt: str = ""  # receipt of the placement, to store with the object
    checkpoint: Checkpoint | None = None  # checkpoint of an earlier attempt


class ResizePods(NamedTuple):
    """Have exactly these pods: start or end the others. Answered by ``PodsRunning`` once they run
    and no other is left, and by ``PodsWaiting`` before.
    """

    attempt: Attempt
    pods: tuple[PodBinding, ...]
    request: JobRequest  # template of the pods


class StopPods(NamedTuple):
    """End the pods, keep the object and this reason."""

    attempt: Attempt
    reason: str


class DeletePods(NamedTuple):
    """Remove pods and object."""

    attempt: Attempt
    reason: str


ClusterInstruction = CreatePods | ResizePods | StopPods | DeletePods


# Events of the cluster


class PodsFound(NamedTuple):
    """This object exists at the executor's start. Its state follows."""

    attempt: Attempt
    receipt: str = ""  # as stored with the object


class PodsQueued(NamedTuple):
    """Kueue in the cluster holds the job: pods are created after the admission."""

    attempt: Attempt


class PodsAdmitted(NamedTuple):
    """Kueue in the cluster admitted the job. Never sent without Kueue."""

    attempt: Attempt
    resizable: bool = False  # allows other numbers of pods during the run


class PodsWaiting(NamedTuple):
    """Not all pods run, with the cluster's message; "" = no message any more."""

    attempt: Attempt
    reason: str
    bound: int = 0  # pods with a node, holding capacity while others have none
    running: tuple[PodBinding, ...] = ()  # running pods during a resize


class PodsRunning(NamedTuple):
    """All pods run, there."""

    attempt: Attempt
    pods: tuple[PodBinding, ...]


class PodsSaid(NamedTuple):
    """Last report of the job about itself: progress and checkpoint; None = unchanged."""

    attempt: Attempt
    progress: Progress | None = None
    checkpoint: Checkpoint | None = None
    age_s: float = 0.0  # of the progress


class PodsQuiet(NamedTuple):
    """The log was read to its end. It had no new progress line for so long, as far as it was read
    without a gap."""

    attempt: Attempt
    quiet_s: float


class PodsRefused(NamedTuple):
    """The cluster rejected or lost a pod, without a fault of the job. ``hopeless``: the request
    itself cannot run, so no other cluster is tried.
    """

    attempt: Attempt
    reason: str
    fault: Fault = ""
    node: str = ""  # node of the cause; "" = unknown
    hopeless: bool = False


class PodsCompleted(NamedTuple):
    """All pods ended well and hold nothing any more."""

    attempt: Attempt


class PodsFailed(NamedTuple):
    """A pod failed by itself. Others may still run."""

    attempt: Attempt
    reason: str
    exit_code: int | None = None
    fault: Fault = "exit"
    node: str = ""


class PodsExpired(NamedTuple):
    """``stop_after_s`` has passed: the cluster stopped the pods, and they hold nothing any more."""

    attempt: Attempt


class PodsGone(NamedTuple):
    """No pod is left; the object may be. ``reason``: as given to StopPods."""

    attempt: Attempt
    reason: str = ""


PodEvent = (
    PodsFound
    | PodsQueued
    | PodsAdmitted
    | PodsWaiting
    | PodsRunning
    | PodsSaid
    | PodsQuiet
    | PodsRefused
    | PodsCompleted
    | PodsFailed
    | PodsExpired
    | PodsGone
)
