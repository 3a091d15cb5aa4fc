"""A hub's Job and its double on a worker: made once, its status copied back.

The double carries the hub's Job spec as it is, without managedBy, selector and the labels that
belong to one Job only. While the hub's Job is still suspended, a running double's status is not
copied: a Job that has a start time could no longer change. The hub's Job gets the condition
Suspended meanwhile, which Kubernetes 1.36 wants for such changes.
"""

from __future__ import annotations

import copy

from berthmaster.kubernetes import resources
from berthmaster.kubernetes.errors import AlreadyExists, NotFound
from tests.controlplane.kueue.clusters import Cluster
from tests.controlplane.kueue.jobs import clean_template, ending_of
from tests.controlplane.kueue.objects import (
    ORIGIN_LABEL,
    PREBUILT,
    Key,
    Obj,
    labels_of,
    merge_difference,
)
from tests.controlplane.kueue.writing import now_text


class NotOurs(Exception):
    """Another Job has the name of the double: it is left alone, and tried again."""


async def sync(
    local: Cluster, remote: Cluster, key: Key, workload: str, origin: str, *, fresh: bool = False
) -> bool:
    """One step. True: the double runs but its status cannot be copied yet. ``fresh``: nothing may
    be copied after this one, so both are read past the caches, which may not have the Job's end
    yet when they have its Workload's."""
    mine = local.get(resources.JOBS, key)
    if mine is None:
        return False
    try:
        double = None if fresh else remote.get(resources.JOBS, key)
        double = double or await remote.read(resources.JOBS, key)
        if labels_of(double).get(ORIGIN_LABEL) != origin:
            raise NotOurs(f"Job {'/'.join(key)}: remote object not owned by multikueue")
    except NotFound:
        try:
            await remote.create(resources.JOBS, _double(mine, workload, origin))
        except AlreadyExists:
            pass  # its event is on the way
        return False
    if fresh:
        try:
            mine = await local.read(resources.JOBS, key)
        except NotFound:
            return False
    suspended = bool(mine["spec"].get("suspend"))
    running = not double["spec"].get("suspend") and ending_of(double) is None
    deferred = suspended and running
    wanted = _suspended(mine) if deferred else double.get("status") or {}
    patch = merge_difference(mine.get("status") or {}, wanted)
    if patch:
        await local.merge_patch(resources.JOBS, key, {"status": patch}, subresource="status")
    return deferred


async def remove(remote: Cluster, key: Key, origin: str) -> None:
    """Delete the double, if it is this hub's."""
    double = remote.get(resources.JOBS, key)
    if double is None:
        try:
            double = await remote.read(resources.JOBS, key)
        except NotFound:
            return
    if labels_of(double).get(ORIGIN_LABEL) == origin:
        await remote.delete(resources.JOBS, key)


def _double(mine: Obj, workload: str, origin: str) -> Obj:
    meta, spec = mine["metadata"], copy.deepcopy(mine["spec"])
    spec.pop("selector", None)
    spec.pop("managedBy", None)
    spec.pop("manualSelector", None)
    spec["template"] = clean_template(spec["template"])
    labels = {**labels_of(mine), ORIGIN_LABEL: origin}
    annotations = {**(meta.get("annotations") or {}), PREBUILT: workload}
    new: Obj = {"name": meta["name"], "namespace": meta["namespace"]}
    new |= {"labels": labels, "annotations": annotations}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": new, "spec": spec}


def _suspended(job: Obj) -> Obj:
    """The status of a waiting Job, with the condition that says that it waits."""
    status: Obj = copy.deepcopy(job.get("status") or {})
    conditions = status.setdefault("conditions", [])
    for condition in conditions:
        if condition["type"] == "Suspended":
            if condition["status"] != "True":
                condition.update(status="True", lastTransitionTime=now_text())
            return status
    now = now_text()
    conditions.append(
        {
            "type": "Suspended",
            "status": "True",
            "reason": "MultiKueue",
            "message": "Waits on the hub",
            "lastTransitionTime": now,
            "lastProbeTime": now,
        }
    )
    return status
