"""How Kueue writes the status of a Workload, which decides whether others may write there too.

With the gate WorkloadRequestUseMergePatch: a merge patch with the resource version, which takes a
field away whoever owns it. Without it: a forced server-side apply of the whole admission status
under a manager's name, which can only take away what that manager wrote. A nomination by anybody
else therefore stays, the API server refuses clusterName beside it, and the hub waits for ever while
the worker runs. That trap is not programmed here: the API server sets it.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

from berthmaster.kubernetes import resources
from tests.controlplane.kueue.clusters import Cluster
from tests.controlplane.kueue.objects import (
    API_VERSION,
    MULTIKUEUE,
    Obj,
    key_of,
    merge_difference,
    text_of,
)

ADMISSION_MANAGER = "kueue-admission"
ADMISSION_FIELDS = (
    "admission",
    "requeueState",
    "accumulatedPastExecutionTimeSeconds",
    "schedulingStats",
    "clusterName",
    "nominatedClusterNames",
    "conditions",
    "admissionChecks",
)

# Changes the copy it is given; False: there was nothing to change.
Change = Callable[[Obj, str], object]


def now_text() -> str:
    """The time as the API writes it."""
    return text_of(time.time())


class Writer:
    """Writes statuses to one cluster, in one of the two ways."""

    def __init__(self, cluster: Cluster, *, merge_patch: bool) -> None:
        self._cluster = cluster
        self._merge_patch = merge_patch

    async def admission(self, workload: Obj, change: Change) -> bool:
        """Change what belongs to the admission. Raises KubernetesError; False: nothing to do."""
        new = self._changed(workload, change)
        if new is None:
            return False
        if self._merge_patch:
            await self.merge(workload, new)
        else:
            status = {
                name: new["status"][name] for name in ADMISSION_FIELDS if name in new["status"]
            }
            await self._apply(workload, status, ADMISSION_MANAGER)
        return True

    async def check(self, workload: Obj, name: str, change: Change) -> bool:
        """Change one admission check alone, as MultiKueue's controller does."""
        new = self._changed(workload, change)
        if new is None:
            return False
        if self._merge_patch:
            await self.merge(workload, new)
        else:
            checks = [one for one in new["status"]["admissionChecks"] if one["name"] == name]
            await self._apply(workload, {"admissionChecks": checks}, MULTIKUEUE)
        return True

    async def condition(self, workload: Obj, kind: str, change: Change) -> bool:
        """Change one condition alone, as the controller of Jobs does."""
        new = self._changed(workload, change)
        if new is None:
            return False
        if self._merge_patch:
            await self.merge(workload, new)
        else:
            conditions = [one for one in new["status"]["conditions"] if one["type"] == kind]
            await self._apply(workload, {"conditions": conditions}, f"kueue-job-controller-{kind}")
        return True

    async def plain(self, workload: Obj, change: Change) -> bool:
        """A plain update, whatever the gate says."""
        new = self._changed(workload, change)
        if new is not None:
            await self.merge(workload, new)
        return new is not None

    async def merge(self, old: Obj, new: Obj) -> None:
        """The difference as a merge patch, guarded by the resource version."""
        patch = merge_difference(old.get("status") or {}, new["status"])
        meta = {"resourceVersion": old["metadata"]["resourceVersion"]}
        body = {"metadata": meta, "status": patch}
        await self._cluster.merge_patch(
            resources.WORKLOADS, key_of(old), body, subresource="status"
        )

    async def _apply(self, workload: Obj, status: Obj, manager: str) -> None:
        meta = workload["metadata"]
        names = ("name", "namespace", "uid", "resourceVersion")
        body = {
            "apiVersion": API_VERSION,
            "kind": "Workload",
            "metadata": {name: meta[name] for name in names},
            "status": status,
        }
        await self._cluster.apply(
            resources.WORKLOADS, key_of(workload), body, manager=manager, subresource="status"
        )

    def _changed(self, workload: Obj, change: Change) -> Obj | None:
        new = copy.deepcopy(workload)
        new.setdefault("status", {})
        if change(new, now_text()) is False or new["status"] == (workload.get("status") or {}):
            return None
        return new
