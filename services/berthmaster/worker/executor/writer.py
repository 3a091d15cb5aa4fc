"""Calls to the API server for one attempt: make, resize, stop, delete. Each step is repeatable.

A Job with claim templates is created first, and its templates after it with the Job as owner. They
disappear with the Job in any case, and the pods wait for them. The Job has the content of the
templates, so a later process run can create missing ones (``complete``).

A step may already have been done by this or an earlier process run, and may fail with an unknown
result. So each starts from the known state and is repeatable. A refusal ends it. Other errors are
raised, and the caller retries.

A plain Job is stopped by suspending it, like other kinds that then end their pods: the object stays
and explains the end. An object that a queue or controller would restart is deleted in the
foreground: it stays until its last pod is gone, and no right to Kueue's own objects is needed.

Each object has a finalizer (``labels.FINALIZER``) until ``delete``, which follows the stored ending
or another owner's claim. Example: the executor is killed, its Job completes, and Kubernetes' TTL
controller deletes the Job. The Job stays, marked as deleted, and the next process run reads that
the attempt succeeded. Without the finalizer the attempt would seem evicted and would run again.
Objects in a namespace being deleted lose the finalizer at once (``release``), because the rights
end with the namespace.
"""

import asyncio
import math
from collections.abc import Callable
from typing import Final, cast

from berthmaster.lib.jobs import gangs, rendezvous
from berthmaster.lib.jobs.gangs import GROUP, SERVED_BY
from berthmaster.lib.jobs.kinds.job import JOB
from berthmaster.lib.jobs.kinds.table import kind_of
from berthmaster.lib.jobs.objects import JobObject
from berthmaster.lib.jobs.pods import Document, Existing
from berthmaster.lib.kube import labels
from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.denials import Denials, is_about_object
from berthmaster.lib.kube.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    KubernetesError,
    NotFound,
    TooManyRequests,
    Unauthorized,
)
from berthmaster.lib.kube.objects import Object, holds
from berthmaster.lib.kube.resources import (
    KUEUE_WORKLOADS,
    NAMESPACES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    SERVICES,
    Resource,
)
from berthmaster.lib.kube.resources import PODS as POD_OBJECTS
from berthmaster.lib.kueue.names import JOB_UID_LABEL
from berthmaster.lib.kueue.workloads import Slices, Workload, slices_of
from berthmaster.lib.lifecycle.pods import counts_of, is_set_elastic
from berthmaster.worker.executor.attempts import Held, attempt_of
from berthmaster.worker.executor.core import claims
from berthmaster.worker.executor.core.affinity import Offers
from berthmaster.worker.executor.core.attempt_status import FOREGROUND
from berthmaster.worker.executor.core.claims import TEMPLATES
from berthmaster.worker.executor.core.cluster_protocol import CreatePods, ResizePods
from berthmaster.worker.executor.core.manifest import (
    LEAVING,
    PODS,
    STOPPED,
    Style,
    Unmakeable,
    counts_text,
    document,
    kueue_may_resize,
    object_name,
)

_IDENTITY: Final = (labels.TENANT, labels.WORKLOAD, labels.ATTEMPT, labels.EXECUTOR)
FIELD_MANAGER: Final = "berthmaster-executor"
_REQUEST_TIMEOUT: Final = 408
WARN_LIMIT_S: Final = 2.0
MAX_WARNED_AT_ONCE: Final = 16


class Expired(Exception):
    """Its time is over, so it is not created."""


class RefusedToMake(Exception):
    """The cluster will not have it; repeating is pointless. The text says why. ``of_request``: for
    the request's own sake, so that no other cluster is worth a try."""

    def __init__(self, why: str, *, of_request: bool = False) -> None:
        super().__init__(why)
        self.of_request = of_request


class JobWriter:
    """Calls of one executor to its API server."""

    def __init__(
        self,
        client: Client,
        executor: str,
        namespaces: tuple[str, ...],
        offers: Offers,
        style: Style,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._executor = executor
        self._namespaces = namespaces
        self._offers = offers
        self.style = style  # replaced when the cluster serves other things
        self._clock = clock
        self._denials = Denials()
        self.closed: Callable[[str], str] = lambda namespace: ""  # why a namespace is not readable
        self.made = 0
        self.refused = 0
        self.resized = 0
        self.stopped = 0
        self.deleted = 0

    async def make(self, held: Held, order: CreatePods) -> None:
        """Create the object and its parts. Raises Expired, RefusedToMake, KubernetesError."""
        if held.scene.job is None:
            await self._make_job(held, order)
        await self.complete(held)

    async def _make_job(self, held: Held, order: CreatePods) -> None:
        kind = kind_of(order.request, order.target.via, self.style.kinds)
        held.scene.kind, held.namespace = kind, order.target.namespace
        held.name = object_name(order.attempt, kind)
        if order.ran:  # must not run again, so only look
            held.unsure = True
            await self.look(held)
            return
        if held.namespace not in self._namespaces:
            raise RefusedToMake(self._not_served(held))
        if why := self.closed(held.namespace):
            if order.claimed_before:  # may exist, and must not run twice
                held.unsure = True
                await self.look(held)
                return
            raise RefusedToMake(f"namespace {held.namespace} is closed to its executor: {why}")
        if kind not in self.style.kinds:
            raise RefusedToMake(
                "several pod sets need a JobSet, which this cluster did not serve when its "
                "executor started"
            )
        existing = await self._existing(order)
        try:
            body = document(order, self._left_s(order), self._offers, self.style, existing)
        except Unmakeable as error:
            raise RefusedToMake(str(error), of_request=error.of_request) from error
        path = kind.resource.path(namespace=held.namespace)
        if kueue_may_resize(order, kind) and not await self._lets_resize(path, body):
            left_s = self._left_s(order)
            body = document(order, left_s, self._offers, self.style, existing, resizable=False)
        doubtful, held.unsure = held.unsure, True
        try:
            type_ = kind.object_type
            job = await self._client.create(path, body, type_, field_manager=FIELD_MANAGER)
        except AlreadyExists:
            await self._adopt(held)
            return
        except ApiError as error:
            if not _final(error):
                raise
            held.unsure = doubtful  # from an earlier call without an answer
            if self._may_pass(error, path):
                raise
            self.refused += 1
            of_request = is_about_object(error)
            raise RefusedToMake(error.message or str(error), of_request=of_request) from error
        self.made += 1
        self._denials.allowed(path)
        held.see(kind, job)

    async def _lets_resize(self, path: str, body: Document) -> bool:
        """Return whether the cluster's Kueue allows resizes of this Job during the run, by its
        scheduling gate in a dry run. An old Kueue, or one without the feature, would leave the Job
        and end it at the first resize. No other readable object tells. Raises KubernetesError.
        """
        manager = FIELD_MANAGER
        try:
            made = await self._client.create(
                path, body, JobObject, field_manager=manager, dry_run=True
            )
        except ApiError as error:
            if not _final(error) and not isinstance(error, AlreadyExists):
                raise
            return False  # the real call reports the error or the existing object
        return made.is_elastic_to_kueue

    async def _existing(self, order: CreatePods) -> dict[str, Existing]:
        """Return the claims named by the request. A missing one would block its pods forever
        without a message. Raises RefusedToMake, KubernetesError.
        """
        found: dict[str, Existing] = {}
        namespace = order.target.namespace
        for pods in order.request.pod_sets:
            for name in pods.claims:
                if name in found:
                    continue
                kinds = (RESOURCE_CLAIM_TEMPLATES, "template"), (RESOURCE_CLAIMS, "claim")
                for resource, kind in kinds:
                    if await self._is_there(resource, namespace, name):
                        found[name] = cast("Existing", kind)
                        break
                else:
                    raise RefusedToMake(
                        f"pod set {pods.name} names the claim {name}: there is no "
                        f"ResourceClaimTemplate and no ResourceClaim of that name in {namespace}"
                    )
        return found

    async def _is_there(self, resource: Resource, namespace: str, name: str) -> bool:
        path = resource.path(namespace=namespace, name=name)
        try:
            await self._client.get(path, Object)
        except NotFound:
            return False
        except ApiError as error:
            if _final(error) and not self._may_pass(error, path):
                raise RefusedToMake(error.message or str(error)) from error
            raise
        return True

    async def complete(self, held: Held) -> None:
        """Create the parts of an object that has not ended: Service, pod group, and claim
        templates. Raises RefusedToMake, KubernetesError.
        """
        job = held.scene.job
        if job is None or held.completed == job.metadata.uid:
            return
        told = job.metadata.annotations
        leaving = job.metadata.deletion_timestamp is not None
        if not (leaving or ended(job)):
            owner = _owner(held, job)
            whose = {key: text for key, text in job.metadata.labels.items() if key in _IDENTITY}
            if name := told.get(rendezvous.SERVICE, ""):
                body = rendezvous.service(name, whose, owner)
                await self._make_owned(held, SERVICES, body)
            if (group := gangs.read(told.get(GROUP, ""))) is not None:
                wholly = {key: text for key, text in told.items() if key in _IDENTITY}
                body = gangs.document(group, held.name, whose, owner, wholly)
                await self._make_owned(held, SERVED_BY[group.gangs], body)
            for name, asked in sorted(claims.decode(told.get(TEMPLATES, "")).items()):
                body = claims.template(name, asked, whose, owner)
                await self._make_owned(held, RESOURCE_CLAIM_TEMPLATES, body)
        held.completed = job.metadata.uid

    async def _make_owned(self, held: Held, resource: Resource, body: Document) -> None:
        name, uid = body["metadata"]["name"], held.uid
        path = resource.path(namespace=held.namespace)
        try:
            await self._client.create(path, body, Object, field_manager=FIELD_MANAGER)
        except AlreadyExists:
            there = await self._client.get(f"{path}/{name}", Object)
            if uid not in [one.uid for one in there.metadata.owner_references]:
                raise RefusedToMake(
                    f"{resource.kind} {held.namespace}/{name} is there already and is not of "
                    f"{held.kind.resource.kind} {held.name}"
                ) from None
        except ApiError as error:
            if not _final(error) or self._may_pass(error, path):
                raise
            self.refused += 1  # of the request nothing is in it but the cluster's own settings
            raise RefusedToMake(error.message or str(error)) from error
        else:
            self._denials.allowed(path)

    def _may_pass(self, error: ApiError, path: str) -> bool:
        """Whether it is refused only because the server has not read our Role yet."""
        now_s = asyncio.get_running_loop().time()
        return (
            isinstance(error, Forbidden) and self._denials.pause_s(path, error, now_s) is not None
        )

    def _left_s(self, order: CreatePods) -> int | None:
        if order.stop_after_s is None:
            return None
        now_s = self._clock()
        asked_at_s = now_s if order.asked_at_s is None else min(now_s, order.asked_at_s)
        left_s = math.floor(asked_at_s + order.stop_after_s - now_s)
        if left_s < 1:
            raise Expired
        return left_s

    def _not_served(self, held: Held) -> str:
        allowed = ", ".join(self._namespaces)
        return f"namespace {held.namespace} is none of those that this executor serves: {allowed}"

    async def _adopt(self, held: Held) -> None:
        """Adopt an existing object of the name, if created by this executor in a call with a lost
        answer.
        """
        await self.look(held)
        job = held.scene.job
        if job is None:
            raise Conflict(409, "", "an object of its name came and went", held.path)
        if attempt_of(job) != (held.attempt, self._executor):
            held.scene.job = None
            held.known = False
            raise RefusedToMake(
                f"{held.kind.resource.kind} {held.namespace}/{held.name} is there already and is "
                "not ours"
            )

    async def look(self, held: Held) -> None:
        """Read the object from the server. Raises KubernetesError."""
        if held.namespace not in self._namespaces:
            # Nothing watches there, so nothing can report it gone.
            raise KubernetesError(self._not_served(held))
        try:
            held.see(held.kind, await self._client.get(held.path, held.kind.object_type))
        except NotFound:
            held.lose()

    async def slices(self, held: Held) -> Slices | None:
        """Return Kueue's Workloads of it. Raises KubernetesError."""
        found: list[Workload] = []
        selector = f"{JOB_UID_LABEL}={held.uid}"
        async for page in self._client.list_pages(
            KUEUE_WORKLOADS, Workload, namespace=held.namespace, label_selector=selector
        ):
            found = [*([] if page.first else found), *page.items]
        return slices_of(found)

    async def resize(self, held: Held, order: ResizePods) -> None:
        """Request the number of pods on its object. Raises KubernetesError.

        A Job ends pods with the highest indices. In a JobSet the controller creates the Jobs, and
        the executor resizes them; its annotation with the sizes is written last.
        """
        job, counts = held.scene.job, counts_of(order.pods)
        if (
            job is None
            or ended(job)
            or job.metadata.deletion_timestamp
            or STOPPED in (job.metadata.annotations)
        ):
            return
        change: Document = {"metadata": {"annotations": {PODS: counts_text(counts)}}}
        if held.kind is JOB:
            change["spec"] = _size(next(iter(counts.values())))
        else:
            for number, pods in enumerate(order.request.pod_sets):
                if (count := counts.get(pods.name)) is not None and is_set_elastic(pods):
                    await self._resize_part(held, f"{held.name}-s{number}-0", count)
        told = job.metadata.annotations.get(PODS)
        if told == counts_text(counts) and (held.kind is not JOB or _has(job, change["spec"])):
            return
        try:
            await self._patch(held, job, change)
        except (Conflict, NotFound):
            await self.look(held)  # changed meanwhile: decide again on the present object
            raise
        self.resized += 1

    async def _patch(self, held: Held, job: JobObject, change: Document) -> None:
        """Change the object in the version seen. Raises KubernetesError, Conflict for another
        version.
        """
        version, type_ = job.metadata.resource_version, held.kind.object_type
        job = await self._client.merge_patch(
            held.path, change, type_, resource_version=version, field_manager=FIELD_MANAGER
        )
        held.see(held.kind, job)

    async def _resize_part(self, held: Held, name: str, count: int) -> None:
        path = JOB.resource.path(namespace=held.namespace, name=name)
        part = await self._client.get(path, JobObject)
        owners = [one.uid for one in part.metadata.owner_references]
        if held.uid in owners and not _has(part, _size(count)):
            version = part.metadata.resource_version
            await self._client.merge_patch(
                path,
                {"spec": _size(count)},
                JobObject,
                resource_version=version,
                field_manager=FIELD_MANAGER,
            )

    async def stop(self, held: Held) -> None:
        """Let its pods end, with no new ones. Raises KubernetesError."""
        if held.scene.job is None and held.unsure:
            await self.look(held)
        job = held.scene.job
        if job is None:
            held.scene.stopped = held.stop_reason
            held.lose()
            return
        conditions = job.conditions
        leaving = job.metadata.deletion_timestamp is not None
        if ended(job) or holds(conditions, "FailureTarget") or leaving:
            if leaving and FOREGROUND not in job.metadata.finalizers and not ended(job):
                # With a background deletion, pods would wait for the object, which the finalizer
                # keeps.
                await self._client.delete(held.path, uid=held.uid, propagation="Foreground")
            held.scene.stopped = held.stop_reason
            return
        here = held.kind.stops_by_suspending and not held.scene.queued
        change: Document = {"metadata": {"annotations": {STOPPED: held.stop_reason}}}
        if here:
            change["spec"] = {"suspend": True}
        if STOPPED not in job.metadata.annotations:
            await self._warn(held)
        try:
            if STOPPED not in job.metadata.annotations or (here and not job.spec.suspend):
                await self._patch(held, job, change)
            if not here:
                await self._client.delete(held.path, uid=held.uid, propagation="Foreground")
        except (Conflict, NotFound):
            await self.look(held)  # changed meanwhile: decide again on the present object
            raise
        self.stopped += 1

    async def _warn(self, held: Held) -> None:
        """Tell its pods the reason before the signal, through mounted annotations or a sidecar.
        Best effort: it may lack the right and never waits long.
        """
        body = {"metadata": {"annotations": {LEAVING: held.stop_reason}}}
        some = asyncio.Semaphore(MAX_WARNED_AT_ONCE)

        async def one(name: str) -> None:
            path = POD_OBJECTS.path(namespace=held.namespace, name=name)
            async with some:
                try:
                    await self._client.merge_patch(path, body, Object, field_manager=FIELD_MANAGER)
                except KubernetesError:
                    pass

        pods = [pod for pod in held.scene.pods.values() if not (pod.over or pod.leaving)]
        try:
            async with asyncio.timeout(WARN_LIMIT_S):
                await asyncio.gather(*(one(pod.metadata.name) for pod in pods))
        except TimeoutError:
            pass

    async def delete(self, held: Held) -> None:
        """Object and pods go. Raises KubernetesError."""
        if held.scene.job is None and held.unsure:
            await self.look(held)
        uid = held.uid
        if not uid or uid == held.deleted:
            return
        await self.release(held)
        try:
            await self._client.delete(held.path, uid=uid, propagation="Background")
        except Conflict:
            pass  # another object of that name, not the one to delete
        held.deleted = uid
        self.deleted += 1

    async def release(self, held: Held) -> None:
        """Remove the finalizer. Raises KubernetesError."""
        job = held.scene.job
        if job is None or labels.FINALIZER not in job.metadata.finalizers:
            return
        others = [each for each in job.metadata.finalizers if each != labels.FINALIZER]
        try:
            await self._patch(held, job, {"metadata": {"uid": held.uid, "finalizers": others}})
        except NotFound:
            held.lose()
            return
        except Conflict:
            await self.look(held)  # changed meanwhile: decide again on the present object
            raise

    async def is_leaving(self, namespace: str) -> bool:
        """Whether a namespace is being deleted. Raises KubernetesError."""
        found = await self._client.get(NAMESPACES.path(name=namespace), Object)
        return found.metadata.deletion_timestamp is not None


def _owner(held: Held, job: JobObject) -> Document:
    return {
        "apiVersion": held.kind.resource.group_version,
        "kind": held.kind.resource.kind,
        "name": job.metadata.name,
        "uid": job.metadata.uid,
        "controller": True,
    }


def _size(count: int) -> Document:
    """Of an Indexed Job: both change together, or neither may."""
    return {"parallelism": count, "completions": count}


def _has(job: JobObject, size: Document) -> bool:
    return (job.spec.parallelism, job.spec.completions) == (
        size["parallelism"],
        size["completions"],
    )


def ended(job: JobObject) -> bool:
    """Return whether nothing of it runs any more."""
    conditions = job.conditions
    return any(holds(conditions, one) for one in ("Complete", "Completed", "Failed"))


def _final(error: ApiError) -> bool:
    """Whether the server's no is its last word, as far as a machine can tell."""
    if is_about_object(error):
        return True
    if isinstance(error, Unauthorized | TooManyRequests | Conflict):
        return False
    return 400 <= error.status < 500 and error.status != _REQUEST_TIMEOUT
