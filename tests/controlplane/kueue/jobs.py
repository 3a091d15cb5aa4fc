"""batch/v1 Jobs with a queue label: each gets a Workload, waits suspended, starts when admitted,
stops when not.

On a worker a Job of MultiKueue names its Workload (the copy that came before it), which then
becomes its own; if the two no longer describe the same pods the Workload ends as OutOfSync. On the
hub the Job is started too, but nothing runs there, since spec.managedBy keeps the Job controller
away and the status is copied from the worker.
"""

from __future__ import annotations

import copy
import hashlib

from berthmaster.kubernetes import resources
from berthmaster.kubernetes.errors import AlreadyExists
from berthmaster.kubernetes.resources import Resource
from tests.controlplane.kueue import lifecycle
from tests.controlplane.kueue.clusters import Cluster
from tests.controlplane.kueue.objects import (
    API_VERSION,
    GROUP,
    IN_USE_FINALIZER,
    JOB_UID_LABEL,
    ORIGIN_LABEL,
    POD_SET_LABEL,
    PRIORITY_LABEL,
    QUEUE_LABEL,
    WORKLOAD_ANNOTATION,
    Key,
    Obj,
    condition_of,
    controller_of,
    is_deleting,
    key_of,
    labels_of,
    prebuilt_of,
)
from tests.controlplane.kueue.workloads import Workloads
from tests.controlplane.kueue.writing import Writer

PRIORITY_CLASSES = Resource(
    GROUP, "v1beta2", "workloadpriorityclasses", "WorkloadPriorityClass", namespaced=False
)
# The API server puts these on a Job's pods; a copy of the template must not carry another Job's.
MANAGED_POD_LABELS = (
    "controller-uid",
    "job-name",
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-name",
)


def workload_name(job: Obj) -> str:
    """Deterministic, since a restart must find the same Workload."""
    name = job["metadata"]["name"]
    digest = hashlib.sha1(f"{name}/Job/{job['metadata']['uid']}".encode()).hexdigest()
    return f"job-{name[:240]}-{digest[:5]}"


def clean_template(template: Obj) -> Obj:
    """A pod template without what belongs to one Job only."""
    cleaned = copy.deepcopy(template)
    meta = cleaned.setdefault("metadata", {})
    labels = {
        name: value
        for name, value in (meta.get("labels") or {}).items()
        if name not in MANAGED_POD_LABELS
    }
    meta.pop("labels", None)
    meta.pop("creationTimestamp", None)
    if labels:
        meta["labels"] = labels
    return cleaned


def pod_sets_of(job: Obj) -> list[Obj]:
    """One pod set: as many pods as run at once."""
    spec = job["spec"]
    count = spec.get("parallelism", 1)
    if spec.get("completions") is not None:
        count = min(count, spec["completions"])
    return [{"name": "main", "count": count, "template": clean_template(spec["template"])}]


def ending_of(job: Obj) -> tuple[str, str] | None:
    """Reason and message of a Job that is over."""
    for condition in job.get("status", {}).get("conditions") or ():
        if condition["status"] == "True" and condition["type"] in ("Complete", "Failed"):
            reason = "Succeeded" if condition["type"] == "Complete" else "Failed"
            return reason, condition.get("message", "")
    return None


def are_ready(job: Obj) -> bool:
    """Every pod that the Job runs at once is ready, or one like it is done."""
    status = job.get("status") or {}
    fresh = (status.get("uncountedTerminatedPods") or {}).get("succeeded") or ()
    there: int = status.get("succeeded", 0) + status.get("ready", 0) + len(fresh)
    return there >= int(pod_sets_of(job)[0]["count"])


class Jobs:
    """The controller of Jobs."""

    def __init__(self, cluster: Cluster, writer: Writer, workloads: Workloads) -> None:
        self._cluster = cluster
        self._writer = writer
        self._workloads = workloads

    def workloads_of(self, job: Obj) -> list[Obj]:
        uid = job["metadata"]["uid"]
        return [
            workload
            for workload in self._cluster.all(resources.WORKLOADS)
            if (owner := controller_of(workload)) is not None and owner["uid"] == uid
        ]

    async def look(self, key: Key) -> float | None:
        """One look at one Job, with at most one write of each kind."""
        job = self._cluster.get(resources.JOBS, key)
        if job is None or is_deleting(job):
            await self._released(key)
            return None
        if QUEUE_LABEL not in labels_of(job):
            return None
        workload = await self._workload(job)
        ending = ending_of(job)
        if workload is not None and lifecycle.is_finished(workload):
            await self._workloads.release(workload)
            return None
        if workload is not None and is_deleting(workload):
            await self._stop(job, workload)
            await self._workloads.release(workload)
            return None
        if ending is not None:
            if workload is not None:
                await self._writer.admission(
                    workload, lambda obj, now: lifecycle.finish(obj, *ending, now)
                )
            return None
        if workload is None:
            await self._without_workload(job)
            return None
        if not await self._tell_readiness(job, workload):
            await self._follow(job, workload)
        return None

    async def _tell_readiness(self, job: Obj, workload: Obj) -> bool:
        """PodsReady. The real manager writes it now before, now after the quota, and then it meets
        whoever nominates at once: here too it comes late for every second Workload."""
        late = int(workload["metadata"]["uid"][-1], 16) % 2 == 1
        known = condition_of(workload, lifecycle.PODS_READY) is not None
        if late and not known and not lifecycle.has_quota(workload):
            return False
        ready = are_ready(job)
        return await self._writer.condition(
            workload,
            lifecycle.PODS_READY,
            lambda obj, now: lifecycle.set_pods_ready(obj, now, ready=ready),
        )

    async def _released(self, key: Key) -> None:
        """The Job is gone: its Workloads end, and go once garbage collection asks for it."""
        for workload in self._cluster.all(resources.WORKLOADS):
            owner = controller_of(workload)
            if (
                owner is not None
                and owner["kind"] == "Job"
                and (workload["metadata"]["namespace"], owner["name"]) == key
            ):
                if not is_deleting(workload) and await self._writer.admission(
                    workload,
                    lambda obj, now: lifecycle.finish(obj, "OwnerNotFound", "The Job is gone", now),
                ):
                    workload = self._cluster.get(resources.WORKLOADS, key_of(workload)) or workload
                await self._workloads.release(workload)

    async def _workload(self, job: Obj) -> Obj | None:
        """The Workload of a Job; on a worker the copy that came before it."""
        prebuilt = prebuilt_of(job)
        if prebuilt is None:
            mine = self.workloads_of(job)
            return mine[0] if mine else None
        namespace = job["metadata"]["namespace"]
        workload = self._cluster.get(resources.WORKLOADS, (namespace, prebuilt))
        if workload is None or lifecycle.is_finished(workload):
            return workload
        if controller_of(workload) is None and not is_deleting(workload):
            owners = [*(workload["metadata"].get("ownerReferences") or ()), _owner(job)]
            body = {
                "metadata": {
                    "resourceVersion": workload["metadata"]["resourceVersion"],
                    "ownerReferences": owners,
                }
            }
            workload = await self._cluster.merge_patch(resources.WORKLOADS, key_of(workload), body)
        admitted = lifecycle.is_admitted(workload)
        if not admitted and not _same_pods(workload["spec"]["podSets"], pod_sets_of(job)):
            words = "The prebuilt workload is out of sync with its user job"
            await self._writer.admission(
                workload, lambda obj, now: lifecycle.finish(obj, "OutOfSync", words, now)
            )
        return workload

    async def _without_workload(self, job: Obj) -> None:
        if not job["spec"].get("suspend"):
            await self._suspend(job)
            return
        if prebuilt_of(job) is not None:
            return
        spec: Obj = {"active": True, "podSets": pod_sets_of(job)}
        spec["queueName"] = labels_of(job)[QUEUE_LABEL]
        spec["priority"] = 0
        if name := labels_of(job).get(PRIORITY_LABEL):
            priority = self._cluster.get(PRIORITY_CLASSES, ("", name))
            if priority is None:
                return  # made when the class is there
            spec["priority"] = priority["value"]
            spec["priorityClassRef"] = {
                "group": GROUP,
                "kind": "WorkloadPriorityClass",
                "name": name,
            }
        meta = job["metadata"]
        workload = {
            "apiVersion": API_VERSION,
            "kind": "Workload",
            "metadata": {
                "name": workload_name(job),
                "namespace": meta["namespace"],
                "labels": {JOB_UID_LABEL: meta["uid"]},
                "finalizers": [IN_USE_FINALIZER],
                "ownerReferences": [_owner(job)],
            },
            "spec": spec,
        }
        try:
            await self._cluster.create(resources.WORKLOADS, workload)
        except AlreadyExists:
            return  # the cache has not seen it yet

    async def _follow(self, job: Obj, workload: Obj) -> None:
        """Make the Job do what its Workload says."""
        evicted = condition_of(workload, lifecycle.EVICTED)
        if evicted is not None and evicted["status"] == "True":
            await self._stop(job, workload)
            job = self._cluster.get(resources.JOBS, key_of(job)) or job
            if lifecycle.has_quota(workload) and not job.get("status", {}).get("active"):
                reason, message = evicted["reason"], evicted["message"]
                preempted = reason == "Preempted"

                def change(obj: Obj, now: str) -> None:
                    lifecycle.set_requeued(
                        obj, true=preempted, reason=reason, message=message, now=now
                    )
                    lifecycle.unreserve(obj, "Pending", message, now)

                await self._writer.admission(workload, change)
            return
        if job["spec"].get("suspend"):
            if lifecycle.is_admitted(workload):
                await self._start(job, workload)
            else:
                await self._queue_name(job, workload)
        elif not lifecycle.is_admitted(workload):
            await self._stop(job, workload)

    async def _queue_name(self, job: Obj, workload: Obj) -> None:
        """A Job that waits may change its queue."""
        name = labels_of(job)[QUEUE_LABEL]
        if workload["spec"].get("queueName") != name and not lifecycle.has_quota(workload):
            body = {"spec": {"queueName": name}}
            await self._cluster.merge_patch(resources.WORKLOADS, key_of(workload), body)

    async def _suspend(self, job: Obj) -> None:
        await self._cluster.merge_patch(resources.JOBS, key_of(job), {"spec": {"suspend": True}})

    async def _start(self, job: Obj, workload: Obj) -> None:
        """Unsuspend, with the node labels and tolerations of the flavor and what checks ask for."""
        assigned = workload["status"]["admission"]["podSetAssignments"][0]
        template: Obj = {"metadata": {}, "spec": {}}
        if labels_of(workload).get(ORIGIN_LABEL):  # MultiKueue's copy: whose pods they are
            template["metadata"] = {
                "labels": {POD_SET_LABEL: assigned["name"]},
                "annotations": {WORKLOAD_ANNOTATION: workload["metadata"]["name"]},
            }
        spec = job["spec"]["template"]["spec"]
        selector: dict[str, str] = {}
        tolerations: list[Obj] = list(spec.get("tolerations") or ())
        for name in sorted(set((assigned.get("flavors") or {}).values())):
            flavor = self._cluster.get(resources.RESOURCE_FLAVORS, ("", name))
            flavor_spec = (flavor or {}).get("spec") or {}
            selector |= flavor_spec.get("nodeLabels") or {}
            tolerations += flavor_spec.get("tolerations") or ()
        for check in lifecycle.checks_of(workload):
            for update in check.get("podSetUpdates") or ():
                if update["name"] != assigned["name"]:
                    continue
                selector |= update.get("nodeSelector") or {}
                tolerations += update.get("tolerations") or ()
                for field in ("labels", "annotations"):
                    if update.get(field):
                        template["metadata"].setdefault(field, {}).update(update[field])
        if selector:
            template["spec"]["nodeSelector"] = selector
        if len(tolerations) > len(spec.get("tolerations") or ()):
            template["spec"]["tolerations"] = tolerations
        body: Obj = {"spec": {"suspend": False}}
        if template["metadata"] or template["spec"]:
            body["spec"]["template"] = template
        await self._cluster.merge_patch(resources.JOBS, key_of(job), body)

    async def _stop(self, job: Obj, workload: Obj) -> None:
        """Suspend, and give the pods their own node selector and tolerations back."""
        if not job["spec"].get("suspend"):
            await self._suspend(job)
            return
        if job.get("status", {}).get("active"):
            return
        asked = workload["spec"]["podSets"][0]["template"].get("spec", {})
        has = job["spec"]["template"]["spec"]
        fields = ("nodeSelector", "tolerations")
        changed = [name for name in fields if (has.get(name) or {}) != (asked.get(name) or {})]
        if not changed:
            return
        if job.get("status", {}).get("startTime"):
            # A Job that was started once may change its pods only after its start time is cleared.
            body: Obj = {"status": {"startTime": None}}
            await self._cluster.merge_patch(resources.JOBS, key_of(job), body, subresource="status")
        restored: Obj = {}
        if "nodeSelector" in changed:
            wanted = asked.get("nodeSelector") or {}
            gone = dict.fromkeys(has.get("nodeSelector") or {})
            restored["nodeSelector"] = {**gone, **wanted} if wanted else None
        if "tolerations" in changed:
            restored["tolerations"] = asked.get("tolerations")
        body = {"spec": {"template": {"spec": restored}}}
        await self._cluster.merge_patch(resources.JOBS, key_of(job), body)


def _owner(job: Obj) -> Obj:
    meta = job["metadata"]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _same_pods(one: list[Obj], other: list[Obj]) -> bool:
    """The same counts, images and requests; what a server or a flavor adds does not matter."""

    def gist(pod_sets: list[Obj]) -> list[object]:
        return [
            (
                pod_set.get("count", 1),
                [
                    (box["name"], box.get("image"), box.get("resources") or {})
                    for box in pod_set["template"].get("spec", {}).get("containers") or ()
                ],
            )
            for pod_set in pod_sets
        ]

    return gist(one) == gist(other)
