"""A Kubernetes cluster for its executor: orders in, events out.

Knowledge comes from mirrors of the managed job objects and pods. Orders are carried out attempt by
attempt (effects.py). Everything here can be read again from cluster and log after a restart.

Rules of this file:

- The status of an attempt is computed (core/attempt_status.py) after each change. An event repeats
  only after a new order.
- A labelled object without an order is reported as found, and the log decides.
- Nothing is computed until every mirror is complete, so that absence is certain.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from berthmaster.lib.jobs.gangs import GROUP
from berthmaster.lib.jobs.kinds.job import JOB
from berthmaster.lib.jobs.kinds.kind import JobKind
from berthmaster.lib.jobs.objects import JobObject
from berthmaster.lib.jobs.rendezvous import SERVICE
from berthmaster.lib.kube import labels
from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.errors import KubernetesError
from berthmaster.lib.kube.reflector import Added, Change, Deleted, Listed, Unreadable, Updated
from berthmaster.lib.kube.resources import Resource
from berthmaster.lib.runtime.log import LogLike
from berthmaster.worker.executor.attempts import Goal, Held, attempt_of, not_later
from berthmaster.worker.executor.core.affinity import Offers
from berthmaster.worker.executor.core.attempt_status import DEADLINE, Scene, last_words
from berthmaster.worker.executor.core.claims import TEMPLATES
from berthmaster.worker.executor.core.cluster_protocol import (
    Attempt,
    ClusterInstruction,
    CreatePods,
    DeletePods,
    PodEvent,
    PodsAdmitted,
    PodsExpired,
    PodsFound,
    PodsGone,
    PodsQueued,
    PodsRefused,
    PodsWaiting,
    ResizePods,
    StopPods,
)
from berthmaster.worker.executor.core.objects import GroupObject, KaiGroupObject, PodObject
from berthmaster.worker.executor.effects import AttemptEffects
from berthmaster.worker.executor.elastic_looks import ElasticLooks
from berthmaster.worker.executor.watch import JobMirrors
from berthmaster.worker.executor.writer import JobWriter

LOOK_S: Final = 0.1  # at whether all was listed: a namespace closes by time alone
ORPHAN_S: Final = 5.0  # delay between news of a pod and of its job
FEW_PODS: Final = 32
GATHER_S: Final = 0.05
DEADLINE_GRACE_S: Final = 5.0  # the cluster's own controllers come first
_OPPOSITE: Final[dict[type, type]] = {PodsQueued: PodsAdmitted, PodsAdmitted: PodsQueued}
_MADE: Final = (Goal.NONE, Goal.COMPLETE, Goal.CREATE, Goal.RESIZE)
_OVER: Final = (PodsGone, PodsExpired, PodsRefused)
G = TypeVar("G", GroupObject, KaiGroupObject)


class ClusterRuntime:
    """The Runtime of an executor, over an API server."""

    def __init__(
        self,
        client: Client,
        writer: JobWriter,
        *,
        executor: str,
        namespaces: tuple[str, ...],
        kinds: Sequence[JobKind] = (JOB,),
        groups: Sequence[Resource] = (),
        offers: Offers | None = None,
        clock: Callable[[], float],
        log: LogLike,
    ) -> None:
        """``kinds``: served kinds of job objects. ``groups``: readable kinds of PodGroups.
        ``offers``: GPUs by UUID.
        """
        self.writer = writer
        self._executor = executor
        self._offers = offers or Offers()
        self._clock = clock
        self._log = log
        self._held: dict[Attempt, Held] = {}
        self._groups: dict[Attempt, GroupObject] = {}  # of Volcano's
        self._kai_groups: dict[Attempt, KaiGroupObject] = {}
        self._tell: Callable[[PodEvent], None] | None = None
        self._ready = False
        self._listed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        writer.closed = self.closed
        self._effects = AttemptEffects(writer, say=self._say, judge=self._judge, log=log)
        self._looks = ElasticLooks(writer, judge=self._judge, log=log)
        self._mirrors = JobMirrors(
            client,
            namespaces,
            executor=executor,
            kinds=kinds,
            groups=groups,
            on_job=self._on_job,
            on_pod=self._on_pod,
            on_group=lambda change: self._on_group(change, self._groups),
            on_kai_group=lambda change: self._on_group(change, self._kai_groups),
            log=log,
        )

    # ---- life

    async def run(self, stopping: asyncio.Event) -> None:
        """Mirror until told to stop; then let go of what is under way."""
        try:
            await self._mirrors.run(stopping)
        finally:
            self._tell = None
            for held in self._held.values():
                if held.timer is not None:
                    held.timer.cancel()
            await self._effects.close(self._held.values())
            await self._looks.close()

    @property
    def ready(self) -> bool:
        """Whether everything was listed and told once."""
        return self._ready

    @property
    def attempts(self) -> int:
        """How many are in hand."""
        return len(self._held)

    @property
    def set_aside(self) -> int:
        """How many objects cannot be handled."""
        return len(self._mirrors.aside)

    def holds(self, attempt: Attempt) -> bool:
        """Return whether something of it exists or is ordered."""
        return attempt in self._held

    def pods_of(self, attempt: Attempt) -> list[PodObject]:
        """Pods of an attempt that are there, in the order of set and number."""
        held = self._held.get(attempt)
        pods = held.scene.pods.values() if held is not None else ()
        return sorted(pods, key=lambda pod: _place(pod.metadata.name))

    def ill(self) -> str:
        """Return the problem with the API server; "" = none."""
        effects = self._effects
        return effects.broken or self._mirrors.ill(self._loop.time()) or effects.trouble

    @property
    def trouble(self) -> str:
        """Return the last failed call; "" since the last success."""
        return self._effects.trouble

    def lacking(self) -> dict[str, str]:
        """Return namespaces with missing rights."""
        return self._effects.lacking | self._mirrors.all_closed(self._loop.time())

    def closed(self, namespace: str) -> str:
        """Return why a namespace is not readable; "" = readable."""
        return self._mirrors.closed(namespace, self._loop.time())

    def away(self) -> str:
        """Why nothing new should be claimed: no API server answers us. "" = one does."""
        effects, mirrors, now_s = self._effects, self._mirrors, self._loop.time()
        if effects.unanswered_at_s > mirrors.heard_at_s and effects.unanswered:
            return effects.unanswered
        if not mirrors.complete(now_s) and self._ready:
            return mirrors.ill(now_s)  # all are closed by now
        return mirrors.unanswered() or effects.slow(now_s)

    async def release(self, namespace: str) -> None:
        """Remove the finalizers in a namespace that is being deleted. Never raises: failures are
        retried by the caller's next scan.
        """
        for held in list(self._held.values()):
            if held.namespace == namespace and held.goal is not Goal.DELETE:
                try:
                    await self.writer.release(held)
                except KubernetesError as error:
                    self._log.warning("finalizer not removed", attempt=held.text, why=str(error))

    # ---- Runtime

    def start(self, tell: Callable[[PodEvent], None]) -> None:
        self._tell = tell

    async def found(self, executor: str) -> list[PodEvent]:
        """Return the events of all existing objects, once everything is listed, however long that
        takes.
        """
        if executor != self._executor:
            raise ValueError(f"this runtime is that of {self._executor}, not of {executor}")
        while not self._mirrors.complete(self._loop.time()):
            self._listed.clear()
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._listed.wait()
            except TimeoutError:
                pass
        events: list[PodEvent] = []
        for held in list(self._held.values()):
            held.known = True  # listed, so it has no object
            events.append(PodsFound(held.attempt, held.receipt))
            events += self._news(held)
        self._ready = True
        return events

    def perform(self, order: ClusterInstruction) -> None:
        """Carry out an order, soon."""
        held = self._held.get(order.attempt)
        match order:
            case CreatePods():
                held = held or self._hold(order.attempt)
                held.order = order
                held.scene.wanted = {pods.name: pods.count for pods in order.request.pod_sets}
                held.scene.queued = order.target.via == "worker"
                self._effects.want(held, Goal.CREATE)
            case ResizePods() if held is not None:
                held.resize = order
                self._effects.want(held, Goal.RESIZE)
            case ResizePods(attempt) | StopPods(attempt) if held is None:
                self._say(PodsGone(attempt))
            case StopPods(_, reason) if held is not None:
                held.stop_reason = reason
                self._effects.want(held, Goal.STOP)
            case DeletePods() if held is not None:
                self._effects.want(held, Goal.DELETE)
            case _:
                pass  # nothing exists

    def flush(self) -> None:
        """Nothing is kept here: a claim whose object was never made is found in the log."""

    # ---- Mirrors

    def _on_job(self, kind: JobKind, namespace: str, change: Change[JobObject]) -> None:
        match change:
            case Added(job) | Updated(job):
                self._see(kind, job)
            case Deleted(job):
                self._lose(job)
            case Unreadable(bad):
                self._log.error("job object unreadable", object=bad.name, why=bad.why)
            case Listed(version):
                self._compare(kind, namespace, version)
                self._listed.set()

    def _see(self, kind: JobKind, job: JobObject) -> None:
        mine = attempt_of(job)
        if mine is None or mine[1] != self._executor:
            self._log.warning("foreign object with Berthmaster label", object=job.metadata.name)
            return
        held = self._held.get(mine[0])
        new = held is None or not (held.known or held.order)
        if held is None:
            held = self._hold(mine[0])
        held.see(kind, job)
        self._see_groups(held)  # possibly seen before
        if {TEMPLATES, GROUP, SERVICE} & job.metadata.annotations.keys():
            self._effects.complete(held)
        if new and self._ready:
            self._say(PodsFound(held.attempt, held.receipt))
        self._judge(held)

    def _lose(self, job: JobObject) -> None:
        mine = attempt_of(job)
        held = self._held.get(mine[0]) if mine is not None else None
        if held is None or held.scene.job is None or held.uid != job.metadata.uid:
            return
        held.lose()
        self._judge(held)

    def _compare(self, kind: JobKind, namespace: str, version: str) -> None:
        """Drop objects of an older version missing in a newer list."""
        objects = self._mirrors.jobs(kind, namespace)
        for held in list(self._held.values()):
            job = held.scene.job
            if job is None or (held.kind, held.namespace) != (kind, namespace):
                continue
            if (namespace, held.name) not in objects and not_later(job, version):
                held.lose()
                self._judge(held)

    def _on_pod(self, change: Change[PodObject]) -> None:
        match change:
            case Added(pod) | Updated(pod) | Deleted(pod):
                whose = labels.identity(pod.metadata.labels, pod.metadata.annotations)
                if whose is None:
                    return
                attempt = Attempt(whose.tenant, whose.workload, whose.attempt)
                held = self._held.get(attempt)
                if held is None:
                    if isinstance(change, Deleted):
                        return
                    held = self._hold(attempt)
                    self._set_timer(held, ORPHAN_S)
                if isinstance(change, Deleted):
                    held.scene.pods.pop(pod.metadata.name, None)
                else:
                    held.scene.pods[pod.metadata.name] = pod
                self._judge_soon(held)
            case Unreadable(bad):
                self._log.error("pod unreadable", pod=bad.name, why=bad.why)
            case Listed():
                self._listed.set()

    def _on_group(self, change: Change[G], groups: dict[Attempt, G]) -> None:
        match change:
            case Added(group) | Updated(group) | Deleted(group):
                mine = attempt_of(group)
                if mine is None or mine[1] != self._executor:
                    return
                if isinstance(change, Deleted):
                    groups.pop(mine[0], None)
                else:
                    groups[mine[0]] = group
                if (held := self._held.get(mine[0])) is not None:
                    self._see_groups(held)
                    self._judge(held)
            case Unreadable(bad):
                self._log.error("PodGroup unreadable", group=bad.name, why=bad.why)
            case Listed():
                pass

    def _see_groups(self, held: Held) -> None:
        held.scene.group = self._groups.get(held.attempt)
        held.scene.kai_group = self._kai_groups.get(held.attempt)

    # ---- Events

    def _hold(self, attempt: Attempt) -> Held:
        held = self._held[attempt] = Held(
            scene=Scene(attempt=attempt, wanted={}, gpu_index=self._offers.gpu_index)
        )
        return held

    def _say(self, event: PodEvent) -> None:
        if self._tell is not None:
            self._tell(event)

    def _judge_soon(self, held: Held) -> None:
        """At once, or with the next few pods of a large gang: each look costs a look at all."""
        if len(held.scene.pods) <= FEW_PODS:
            self._judge(held)
        elif held.soon is None:
            held.soon = self._loop.call_later(GATHER_S, self._judge, held)

    def _judge(self, held: Held) -> None:
        """Report what is new after a change, and forget what is gone."""
        if held.soon is not None:
            held.soon.cancel()
            held.soon = None
        if held.goal is Goal.DELETE:
            self._let_go(held)
            return
        if not self._ready or not held.known:
            return
        self._looks.follow(held)
        for event in self._news(held):
            if isinstance(event, PodsWaiting) and held.goal is Goal.STOP:
                self._log.info("object still exists", attempt=held.text, why=event.reason)
            self._say(event)

    def _news(self, held: Held) -> list[PodEvent]:
        """Return the present events not published yet."""
        now_s = self._clock()
        events, again_s = held.standing(now_s)
        if (said := last_words(held.scene)) is not None:
            events = [said, *events]
        nothing = PodsWaiting(held.attempt, "")
        told = {PodsWaiting: nothing, **held.told}
        fresh = [event for event in events if told.get(type(event)) != event]
        for event in fresh:
            held.told[type(event)] = event
            # Queueing and admission end each other: after one, the other is news.
            held.told.pop(_OPPOSITE.get(type(event), type(None)), None)
        expires_s = held.scene.expires_s
        if expires_s is not None and held.goal in _MADE:
            left_s = expires_s + DEADLINE_GRACE_S - now_s
            again_s = left_s if again_s is None else min(again_s, left_s)
        if again_s is not None:
            self._set_timer(held, again_s)
        return fresh

    def _set_timer(self, held: Held, after_s: float) -> None:
        if held.timer is not None:
            held.timer.cancel()
        held.timer = self._loop.call_later(max(0.05, after_s), self._on_time, held)

    def _on_time(self, held: Held) -> None:
        """Check an attempt whose status may change with time alone."""
        held.timer = None
        if self._held.get(held.attempt) is not held or not self._ready:
            return
        if not held.known and held.order is None:  # pods whose job never appears
            held.known = True
            self._say(PodsFound(held.attempt, held.receipt))
        expires_s = held.scene.expires_s
        job = held.scene.job
        if (
            expires_s is not None
            and job is not None
            and held.goal in _MADE
            and self._clock() >= expires_s + DEADLINE_GRACE_S
            and not any(isinstance(event, _OVER) for event in held.told.values())
        ):
            self._log.warning("deadline not enforced by cluster", attempt=held.text)
            held.stop_reason = DEADLINE
            self._effects.want(held, Goal.STOP)
        self._judge(held)

    def _let_go(self, held: Held) -> None:
        """Forget a deleted attempt once nothing is left."""
        if held.work is not None:
            return
        if held.uid and held.uid != held.deleted:
            self._effects.want(held, Goal.DELETE)  # it came late
        elif held.scene.job is None and not held.unsure and not held.scene.pods:
            if held.timer is not None:
                held.timer.cancel()
            self._held.pop(held.attempt, None)


def _place(name: str) -> tuple[object, ...]:
    """Names by the numbers in them: a Job's pods are <job>-<number>-<random>."""
    return tuple(part.zfill(8) if part.isdecimal() else part for part in name.split("-"))
