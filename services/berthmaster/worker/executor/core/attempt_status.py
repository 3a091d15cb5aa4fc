"""The status of an attempt, from its job object and pods. Pure, and from the present alone.

Example: the Job has the condition Failed, and pod main-0 terminated with exit code 137 and reason
OOMKilled. The status is ``PodsFailed`` with fault ``out_of_memory``.

Rules of this file:

- The object's own conditions decide about its end. Pods tell nodes and faults.
- A pod that is being deleted is not gone: it is over after its end or its absence. A pod on a lost
  node stays until its node or an operator reports it, and is awaited.
- The same objects give the same status after a restart, word for word.
- A job that lost a pod to a drain, preemption or eviction is evicted, not failed.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from berthmaster.lib.accelerators.written import read_hami
from berthmaster.lib.jobs.kinds.job import JOB
from berthmaster.lib.jobs.kinds.kind import JobKind
from berthmaster.lib.jobs.objects import JobObject
from berthmaster.lib.jobs.progress import heard_in
from berthmaster.lib.kube.labels import FINALIZER, ISOLATION, gpu_indices, identity
from berthmaster.lib.kube.objects import Condition, condition, holds, seconds
from berthmaster.lib.kueue.workloads import Slices
from berthmaster.lib.lifecycle.pods import index_of, set_of
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import Fault, Isolation
from berthmaster.lib.requests.validation import uri_fault
from berthmaster.worker.executor.core.cluster_protocol import (
    Attempt,
    PodEvent,
    PodsAdmitted,
    PodsCompleted,
    PodsExpired,
    PodsFailed,
    PodsGone,
    PodsQueued,
    PodsRefused,
    PodsRunning,
    PodsSaid,
    PodsWaiting,
)
from berthmaster.worker.executor.core.objects import (
    GroupObject,
    KaiGroupObject,
    PodObject,
    Terminated,
)

DEADLINE: Final = "deadline"
LOST_AFTER: Final = 2  # looks in a row: one may fall between two writes of Kueue's
FOREGROUND: Final = "foregroundDeletion"  # Kubernetes' own finalizer: pods are deleted first
DELETED: Final = "its job object was deleted"
PULL_S: Final = 30.0  # time for an image or a setting to recover
SETTLE_S: Final = 2.0  # pods and job have separate watches, so news of one may come first
MAX_MESSAGE_CHARS: Final = 300
_NO_IMAGE: Final = "InvalidImageName"
_NEVER: Final = (_NO_IMAGE, "ErrImageNeverPull")
_PERHAPS: Final = (
    "ErrImagePull",
    "ImagePullBackOff",
    "ImageInspectError",
    "RegistryUnavailable",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
)


def _nobody_knows(node: str, uuid: str) -> int | None:
    return None


class Scene(msgspec.Struct, kw_only=True):
    """The known objects of one attempt in the cluster."""

    attempt: Attempt
    wanted: dict[str, int]  # pod set -> pods
    kind: JobKind = JOB
    job: JobObject | None = None
    pods: dict[str, PodObject] = {}  # by name
    group: GroupObject | None = None  # PodGroup of Volcano, if it starts the pods
    kai_group: KaiGroupObject | None = None  # where KAI's scheduler does
    elastic: bool = False  # the number of pods may change during the run
    resizable: bool = False  # the cluster's Kueue allows that
    slices: Slices | None = None  # Kueue's Workloads of the attempt; None = not checked
    without_quota: int = 0  # consecutive checks without quota
    queued: bool = False  # started by the cluster's own queueing
    stopped: str | None = None  # reason of the executor's stop, once stored
    expires_s: float | None = None
    settles: bool = False  # the object has just gone, so news of its pods may follow
    since_s: dict[str, float] = {}  # first sight of conditions that may pass
    gpu_index: Callable[[str, str], int | None] = _nobody_knows  # index of a node's GPU by UUID

    def lasted_s(self, what: str, now_s: float) -> float:
        return now_s - self.since_s.setdefault(what, now_s)

    def saw(self, slices: Slices | None) -> None:
        """Note a check of Kueue's Workloads."""
        self.slices = slices
        has_quota = slices is None or slices.have_quota
        self.without_quota = 0 if has_quota else self.without_quota + 1

    @property
    def has_lost_quota(self) -> bool:
        """Return whether Kueue released the quota of a running job (lib/kueue/workloads.py)."""
        return self.without_quota >= LOST_AFTER


def last_words(scene: Scene) -> PodsSaid | None:
    """Return the progress in the termination messages of ended pods, if any."""
    messages = [
        line.encode()
        for pod in _in_order(scene)
        for how in sorted(_terminated(pod), key=lambda one: one.finished_at or "")
        for line in how.message.splitlines()
    ]
    heard = heard_in(messages)
    if heard.checkpoint is None or uri_fault(heard.checkpoint.uri) is not None:
        return None
    return PodsSaid(scene.attempt, checkpoint=heard.checkpoint)


class AttemptStatus(NamedTuple):
    """Events to report, and the time of the next check without a change."""

    events: list[PodEvent]
    again_s: float | None = None


def standing(scene: Scene, now_s: float) -> AttemptStatus:
    attempt, job = scene.attempt, scene.job
    left = [pod for pod in scene.pods.values() if not pod.over]
    if job is None:
        if left:
            return AttemptStatus([_still_there(scene, left)])
        if scene.settles and scene.lasted_s("gone", now_s) < SETTLE_S:
            return AttemptStatus([], SETTLE_S)
        return AttemptStatus(
            [PodsGone(attempt, DELETED if scene.stopped is None else scene.stopped)]
        )
    conditions = job.conditions
    if holds(conditions, "Complete") or holds(conditions, "Completed"):
        return AttemptStatus([_still_there(scene, left)] if left else [PodsCompleted(attempt)])
    failed = condition(conditions, "Failed")
    if failed is not None and failed.true:
        return _failed(scene, failed, left, now_s, final=True)
    failing = condition(conditions, "FailureTarget")
    if failing is not None and failing.true:
        return _failed(scene, failing, left, now_s, final=False)
    leaving = job.metadata.deletion_timestamp is not None
    if scene.stopped is not None:
        # An object that a queue may restart, or that is being deleted, is over once absent, or once
        # only the executor's finalizer remains.
        if leaving and not left and _kept_by_us_alone(job):
            return AttemptStatus([PodsGone(attempt, scene.stopped)])
        if not left and not leaving and not scene.queued and _halted(job):
            expired = scene.stopped == DEADLINE
            return AttemptStatus(
                [PodsExpired(attempt) if expired else PodsGone(attempt, scene.stopped)]
            )
        return AttemptStatus([_still_there(scene, left)])
    if leaving:
        return AttemptStatus([PodsRefused(attempt, "somebody deletes its job object")])
    return _alive(scene, job, now_s)


def _kept_by_us_alone(job: JobObject) -> bool:
    """Return whether only the executor's finalizer keeps a deleted object."""
    return set(job.metadata.finalizers) == {FINALIZER}


def _alive(scene: Scene, job: JobObject, now_s: float) -> AttemptStatus:
    attempt = scene.attempt
    events: list[PodEvent] = []
    if scene.queued:
        if job.spec.suspend or scene.has_lost_quota:
            return AttemptStatus([PodsQueued(attempt)])
        events.append(PodsAdmitted(attempt, scene.resizable))
    elif job.suspended:
        return AttemptStatus([PodsRefused(attempt, "somebody suspended its job object")])
    elif scene.kind.has_queue:
        if _waits_in_queue(scene, job):
            waits = PodsWaiting(attempt, _group_says(scene) or _waits_in(scene))
            return AttemptStatus([PodsQueued(attempt), waits])
        events.append(PodsAdmitted(attempt))
    if scene.kind.replaces_pods and (verdict := _whose_fault(scene)) is not None:
        # Its controller would recreate the pod, but a gang runs as a whole or not at all.
        return AttemptStatus([*events, verdict])
    if scene.kind.ends_on_eviction and (taken := _leaves(scene)) is not None:
        # After the pod is gone, the controller ends the rest and removes the cause.
        return AttemptStatus([*events, taken])
    running = _running(scene)
    beyond = _beyond(scene)
    if running is not None and beyond:
        return AttemptStatus([*events, _still_there(scene, beyond)])
    if running is not None:
        return AttemptStatus([*events, PodsWaiting(attempt, ""), PodsRunning(attempt, running)])
    again_s = None
    reason = ""
    for pod in _in_order(scene):
        why, heals, hopeless = _stuck(pod)
        # The kubelet alternates between names of one problem, so the pod's time counts.
        if why and (not heals or scene.lasted_s(_name(pod), now_s) >= PULL_S):
            node = "" if hopeless else pod.spec.node_name  # not related to the node
            refused = PodsRefused(attempt, why, "not_started", node, hopeless)
            return AttemptStatus([*events, refused])
        if why:
            again_s = PULL_S
        else:
            scene.since_s.pop(_name(pod), None)
        reason = reason or why or _unscheduled(pod, scene)
    missing = sum(scene.wanted.values()) - len(scene.pods)
    reason = reason or _group_says(scene)
    if not reason and missing > 0:
        reason = f"{missing} of {sum(scene.wanted.values())} pods are not made yet"
    bound = sum(bool(pod.spec.node_name) for pod in scene.pods.values() if not pod.over)
    half = bound if bound < sum(scene.wanted.values()) else 0
    some = _some_running(scene) if scene.elastic else ()
    return AttemptStatus([*events, PodsWaiting(attempt, reason, half, some)], again_s)


def _waits_in_queue(scene: Scene, job: JobObject) -> bool:
    """Return whether its scheduler's queue has not admitted it, so no pods exist yet."""
    let_in = scene.group is not None and scene.group.let_in
    return job.waits_in_queue and not (scene.pods or let_in)


def _waits_in(scene: Scene) -> str:
    return _cut(scene.group.waits_in) if scene.group is not None else ""


def _group_says(scene: Scene) -> str:
    return _cut(scene.group.waits_for) if scene.group is not None else ""


def _running(scene: Scene) -> tuple[PodBinding, ...] | None:
    """Where all pods are, if all run or have run."""
    found = _found_running(scene)
    names = [f"{pods}-{n}" for pods, count in scene.wanted.items() for n in range(count)]
    if not names or not all(name in found for name in names):
        return None
    return tuple(found[name] for name in names)


def _some_running(scene: Scene) -> tuple[PodBinding, ...]:
    """Return the running pods while others do not run."""
    found = _found_running(scene)
    return tuple(found[name] for name in sorted(found))


def _beyond(scene: Scene) -> list[PodObject]:
    """Pods that are there still and are more than there shall be."""
    left = []
    for pod in scene.pods.values():
        wanted = scene.wanted.get(set_of(_name(pod)))
        if wanted is not None and index_of(_name(pod)) >= wanted and not pod.over:
            left.append(pod)
    return left


def _found_running(scene: Scene) -> dict[str, PodBinding]:
    found: dict[str, PodBinding] = {}
    for pod in scene.pods.values():
        name = _name(pod)
        if pod.status.phase in ("Running", "Succeeded") and pod.spec.node_name and not pod.leaving:
            gpus = gpu_indices(pod.metadata.annotations) or _given_by_hami(scene, pod)
            found[name] = PodBinding(
                pod=name, node=pod.spec.node_name, gpus=gpus, isolation=_isolation(pod)
            )
    return found


def _given_by_hami(scene: Scene, pod: PodObject) -> tuple[int, ...]:
    """Return the GPUs that HAMi gave a pod, which may differ from the chosen ones. Empty if one is
    unknown.
    """
    node, uses = pod.spec.node_name, read_hami(pod.metadata.annotations).uses
    found = {scene.gpu_index(node, use.uuid) for use in uses}
    known = {index for index in found if index is not None}
    return tuple(sorted(known)) if known == found else ()


def _isolation(pod: PodObject) -> Isolation:
    """Return the isolation of a pod's GPU fraction, from its annotation; "" if malformed."""
    match pod.metadata.annotations.get(ISOLATION):
        case "hardware" | "memory" | "none" as known:
            return known
        case _:
            return ""


def _halted(job: JobObject) -> bool:
    """Return whether the controller has suspended the job and no pod is left."""
    status = job.status
    suspended = bool(job.spec.suspend) and holds(job.conditions, "Suspended")
    return suspended and not status.active and not status.terminating


def _failed(
    scene: Scene, why: Condition, left: Sequence[PodObject], now_s: float, *, final: bool
) -> AttemptStatus:
    attempt = scene.attempt
    over = final and not left
    late = scene.expires_s is not None and now_s >= scene.expires_s
    if why.reason == "DeadlineExceeded" or (why.reason in scene.kind.pod_failures and late):
        return AttemptStatus([PodsExpired(attempt)] if over else [_still_there(scene, left)])
    events: list[PodEvent] = []
    verdict = _whose_fault(scene)
    if verdict is None:
        verdict = _as_its_controller_says(scene, why)
    unsure = verdict is None or (isinstance(verdict, PodsFailed) and _kai_may_yet_say(scene))
    if unsure and ((verdict is None and not final) or scene.lasted_s("fault", now_s) < SETTLE_S):
        return AttemptStatus([_still_there(scene, left)] if left else [], SETTLE_S)
    events.append(verdict or _cleaned_up(scene, why) or _taken_away(scene, why))
    if over:
        events.append(PodsGone(attempt, scene.stopped or ""))
    elif left:
        events.append(_still_there(scene, left))
    return AttemptStatus(events)


def _leaves(scene: Scene) -> PodEvent | None:
    """Return the event for the first pod being deleted with a known cause."""
    taken = [one for pod in scene.pods.values() if pod.leaving for one in _said_by(pod)]
    return _given_back(scene.attempt, min(taken)) if taken else None


def _as_its_controller_says(scene: Scene, why: Condition) -> PodEvent | None:
    """Return the verdict from the object's condition, after its controller removed the pods."""
    failure = scene.kind.failure(why)
    if failure is None:
        return None
    if failure.by_job:
        return PodsFailed(scene.attempt, _cut(failure.reason), failure.exit_code, "exit")
    return PodsRefused(scene.attempt, _cut(failure.reason), "not_started")


def _whose_fault(scene: Scene) -> PodEvent | None:
    """Return the event for the first pod that ended badly; None without information."""
    attempt = scene.attempt
    taken = [one for pod in scene.pods.values() for one in _said_by(pod)] + _said_by_kai(scene)
    ended = [
        (_when_s(t.finished_at), _name(pod), t, pod)
        for pod in scene.pods.values()
        if pod.status.phase == "Failed" and not pod.leaving and not _said_by(pod)
        for t in _terminated(pod)[:1]
    ]
    first_taken, first_ended = min(taken, default=None), min(ended, default=None, key=_by_time)
    if first_taken and (first_ended is None or first_taken.at_s <= first_ended[0]):
        return _given_back(attempt, first_taken)
    if first_ended:
        _, name, how, pod = first_ended
        return _of_its_own(attempt, name, how, pod)
    for pod in _in_order(scene):  # rejected by the kubelet before the start
        if pod.status.phase == "Failed" and not _terminated(pod) and not pod.leaving:
            told = f"{pod.status.reason or 'failed'}: pod {_name(pod)} on {pod.spec.node_name}"
            message = pod.status.message
            told = _cut(f"{told}: {message}" if message else told)
            return PodsRefused(attempt, told, "not_started", pod.spec.node_name)
    return None


def _of_its_own(attempt: Attempt, name: str, how: Terminated, pod: PodObject) -> PodEvent:
    """Return the event for a failed container: by itself, out of memory, or with a lost GPU."""
    told, node = _ending(name, how), pod.spec.node_name
    if lost := _lost_devices(pod):
        told = _cut(f"its node says that {lost} is unhealthy: {told}")
        return PodsRefused(attempt, told, "gpu_lost", node)
    fault: Fault = "out_of_memory" if how.reason == "OOMKilled" else "exit"
    return PodsFailed(attempt, told, how.exit_code, fault, node)


def _lost_devices(pod: PodObject) -> str:
    """Return a pod's unhealthy devices as its kubelet reports (ResourceHealthStatus, Kubernetes
    1.31).
    """
    lost = [
        f"{resource.name} {device.resource_id}".strip()
        for status in pod.status.container_statuses or ()
        for resource in status.allocated_resources_status or ()
        for device in resource.resources or ()
        if device.health == "Unhealthy"
    ]
    return ", ".join(lost[:4])


def _by_time(ended: tuple[float, str, Terminated, PodObject]) -> tuple[float, str]:
    return ended[:2]


def _cleaned_up(scene: Scene, why: Condition) -> PodEvent | None:
    """Return the verdict of a failed object deleted after its end, pods included, as by a TTL
    controller. None if it was deleted before, which then caused the failure.
    """
    job = scene.job
    if (
        job is None
        or scene.pods
        or scene.kind.ends_on_eviction
        or job.metadata.deletion_timestamp is None
    ):
        return None
    if _when_s(why.last_transition_time) > _when_s(job.metadata.deletion_timestamp):
        return None
    told = f"{why.message or why.reason}; its pods were removed after that, with their exit codes"
    return PodsFailed(scene.attempt, _cut(told))


def _taken_away(scene: Scene, why: Condition) -> PodEvent:
    """Return an event for missing pods without a known cause."""
    leaving = sorted(_name(pod) for pod in scene.pods.values() if pod.leaving)
    if leaving:
        return PodsRefused(scene.attempt, _cut(f"somebody deleted pod {leaving[0]}"), "evicted")
    if any(pod.status.phase == "Failed" for pod in scene.pods.values()):
        return PodsFailed(scene.attempt, _cut(why.message or why.reason))
    told = _cut(f"its pods were taken away: {why.message or why.reason}")
    # Volcano evicts by deleting, and a Job of Volcano terminates after an eviction.
    return PodsRefused(scene.attempt, told, "evicted" if scene.kind.ends_on_eviction else "")


# Why Kubernetes takes a pod away; another word counts as evicted.
_TAKEN: Final[dict[str, Fault]] = {
    "PreemptionByScheduler": "preempted",
    "DeletionByTaintManager": "node_lost",
    "DeletionByPodGC": "node_lost",
    "EvictionByEvictionAPI": "evicted",
    "TerminationByKubelet": "evicted",
}


class _Taken(NamedTuple):
    """Cause of the removal of a pod, from the pod itself."""

    at_s: float
    pod: str
    text: str
    fault: Fault
    node: str = ""


def _said_by(pod: PodObject) -> list[_Taken]:
    found = condition(pod.status.conditions or (), "DisruptionTarget")
    if found is None or not found.true:
        return []
    fault = _TAKEN.get(found.reason, "evicted")
    name = _name(pod)
    text = f"pod {name}: {found.reason}: {found.message}"
    at_s = _when_s(found.last_transition_time)
    return [_Taken(at_s, name, text, fault, pod.spec.node_name)]


def _said_by_kai(scene: Scene) -> list[_Taken]:
    """Return removals that KAI notes on the pod group. Deletions by users are not noted there."""
    group = scene.kai_group
    if group is None or group.evicted_s is None:
        return []
    meta = group.metadata
    where = f"`kubectl describe podgroups.scheduling.run.ai -n {meta.namespace} {meta.name}`"
    return [_Taken(group.evicted_s, "", f"KAI took pods of it away: {where} says why", "evicted")]


def _kai_may_yet_say(scene: Scene) -> bool:
    """Return whether pods are missing under KAI, which notes the cause at the end of its cycle.
    Until then failures of other gang members look like their own.
    """
    group = scene.kai_group
    there = sum(not pod.leaving for pod in scene.pods.values())
    missing = there < sum(scene.wanted.values())
    return group is not None and group.evicted_s is None and missing


def _given_back(attempt: Attempt, why: _Taken) -> PodsRefused:
    return PodsRefused(attempt, _cut(why.text), why.fault, why.node)


def _when_s(time: str | None) -> float:
    try:
        return seconds(time)
    except ValueError:
        return 0.0  # malformed times sort first


def _terminated(pod: PodObject) -> list[Terminated]:
    """Return the ends of its containers, the first failure first."""
    statuses = pod.status.container_statuses or ()
    found = [s.state.terminated for s in statuses if s.state.terminated is not None]
    return sorted(found, key=lambda t: (t.exit_code == 0, t.finished_at or ""))


def _ending(pod: str, how: Terminated) -> str:
    told = f"pod {pod} exited with {how.exit_code}"
    if how.reason and how.reason != "Error":
        told += f" ({how.reason})"
    return _cut(f"{told}: {how.message.strip()}" if how.message else told)


def _stuck(pod: PodObject) -> tuple[str, bool, bool]:
    """Return why a container cannot start, whether it may recover, and whether no cluster could
    start it.
    """
    for status in pod.status.container_statuses or ():
        waits = status.state.waiting
        if waits is not None and waits.reason in (*_NEVER, *_PERHAPS):
            told = f"pod {_name(pod)}: {waits.reason}"
            told = f"{told}: {waits.message}" if waits.message else told
            return _cut(told), waits.reason in _PERHAPS, waits.reason == _NO_IMAGE
    return "", True, False


def _unscheduled(pod: PodObject, scene: Scene) -> str:
    if pod.spec.waits_for_kueue:
        told = f"pod {_name(pod)}: Kueue has not let in so many"
        words = scene.slices.words if scene.slices is not None else ""
        return _cut(f"{told}: {words}" if words else told)
    found = condition(pod.status.conditions or (), "PodScheduled")
    if found is None or found.status != "False":
        return ""
    return _cut(f"pod {_name(pod)}: {found.message or found.reason}")


def _still_there(scene: Scene, left: Sequence[PodObject]) -> PodEvent:
    """Return the event for a stop or an end that still waits for pods."""
    if not left:
        return PodsWaiting(scene.attempt, "its controllers have not said that no pod is left")
    pod = min(left, key=_name)
    told = f"{len(left)} pods are not gone yet, such as {_name(pod)} on {pod.spec.node_name or '-'}"
    ready = condition(pod.status.conditions or (), "Ready")
    if ready is not None and not ready.true and pod.leaving:
        told += "; if its node is lost, its pod stays until the node or a person says otherwise"
    return PodsWaiting(scene.attempt, told)


def _in_order(scene: Scene) -> list[PodObject]:
    return [scene.pods[name] for name in sorted(scene.pods)]


def _name(pod: PodObject) -> str:
    whose = identity(pod.metadata.labels, pod.metadata.annotations)
    return whose.pod if whose is not None else pod.metadata.name


def _cut(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE_CHARS else f"{text[: MAX_MESSAGE_CHARS - 1]}…"
