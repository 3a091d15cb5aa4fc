"""The words between an executor and its cluster, whatever that is made of.

A cluster keeps one *job object* per attempt, named by workload id and attempt, and pods under it:

- ``CreatePods`` makes both. Doing it again changes nothing; the cluster tells again how it stands.
- ``ResizePods`` starts more of them, or ends those of the highest indices.
- ``StopPods`` ends the pods and keeps the object with the reason, so that an executor that was
  killed before it could say how the attempt ended finds out. Answered by ``PodsGone``.
- ``DeletePods`` removes everything. Not answered: nobody waits for it.

The cluster tells what happened by events. Each is about all pods of an attempt together, and may be
told more than once.
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
        """Of one of its pods (``<pod set>-<index>``)."""
        return f"{self.id}-{self.number}-{pod}"


# What the executor asks of the cluster


class CreatePods(NamedTuple):
    """Make the job object and its pods, unless they are there."""

    attempt: Attempt
    executor: str  # a label of the object: who claimed the attempt
    pods: tuple[PodBinding, ...]
    request: JobRequest
    stop_after_s: float | None  # then the cluster stops the pods by itself; None = never
    asked_at_s: float | None = None  # from when that counts; None = from when it is carried out.
    # Whoever stands still between asking and doing must not start what is placed anew by then.
    target: Target = Target()  # where and how, in a Kubernetes cluster
    ran: bool = False  # its pods were told to run: what is gone of them is not made a second time
    claimed_before: bool = False  # the claim was read in the log: there may be an object already
    receipt: str = ""  # of its placement: to be kept with the object, opaque
    checkpoint: Checkpoint | None = None  # that an earlier attempt has told


class ResizePods(NamedTuple):
    """Have these pods and no others: start or end the rest. Answered by ``PodsRunning`` with them,
    when they run and none of the others is left; until then by ``PodsWaiting``."""

    attempt: Attempt
    pods: tuple[PodBinding, ...]
    request: JobRequest  # what pods are like


class StopPods(NamedTuple):
    """End the pods, keep the object and this reason."""

    attempt: Attempt
    reason: str


class DeletePods(NamedTuple):
    """Remove pods and object."""

    attempt: Attempt
    reason: str


ClusterInstruction = CreatePods | ResizePods | StopPods | DeletePods


# What the cluster tells


class PodsFound(NamedTuple):
    """At the executor's start: this object exists. How it stands is told next."""

    attempt: Attempt
    receipt: str = ""  # as it is kept with the object


class PodsQueued(NamedTuple):
    """The cluster's own queueing (Kueue) has it: no pod is made until it is let in."""

    attempt: Attempt


class PodsAdmitted(NamedTuple):
    """The cluster's own queueing let it in. Clusters without such never say it."""

    attempt: Attempt
    resizable: bool = False  # it lets the number of its pods change while they run


class PodsWaiting(NamedTuple):
    """Not all pods run, and this is what the cluster says of it; "" = nothing any more."""

    attempt: Attempt
    reason: str
    bound: int = 0  # pods that have a node, and so hold room, while others have none
    running: tuple[PodBinding, ...] = ()  # those that run, where their number is being changed


class PodsRunning(NamedTuple):
    """All pods run, there."""

    attempt: Attempt
    pods: tuple[PodBinding, ...]


class PodsSaid(NamedTuple):
    """What the job itself said last: how far it is, where its checkpoint is; None = nothing new."""

    attempt: Attempt
    progress: Progress | None = None
    checkpoint: Checkpoint | None = None


class PodsRefused(NamedTuple):
    """The cluster did not take a pod, or lost one through no fault of the job. ``hopeless``: the
    request itself cannot run, so that no other cluster is tried."""

    attempt: Attempt
    reason: str
    fault: Fault = ""
    node: str = ""  # on which that happened, "" = not known
    hopeless: bool = False


class PodsCompleted(NamedTuple):
    """All pods ended well and hold nothing any more."""

    attempt: Attempt


class PodsFailed(NamedTuple):
    """A pod of the job ended badly by itself; others may still run."""

    attempt: Attempt
    reason: str
    exit_code: int | None = None
    fault: Fault = "exit"
    node: str = ""


class PodsExpired(NamedTuple):
    """``stop_after_s`` has passed: the cluster stopped the pods, and they hold nothing any more."""

    attempt: Attempt


class PodsGone(NamedTuple):
    """No pod is left; the object may be. ``reason``: the one that StopPods gave, if it did."""

    attempt: Attempt
    reason: str = ""


PodEvent = (
    PodsFound
    | PodsQueued
    | PodsAdmitted
    | PodsWaiting
    | PodsRunning
    | PodsSaid
    | PodsRefused
    | PodsCompleted
    | PodsFailed
    | PodsExpired
    | PodsGone
)
