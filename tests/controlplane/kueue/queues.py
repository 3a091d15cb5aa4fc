"""ClusterQueues, LocalQueues and AdmissionChecks: who leads where, what is active, and the counts
in their status.

The decisions are pure functions over the cluster's cache; `QueueStatus` writes what they say when
it differs from what stands there. Rule: a status that is right is never written again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

from berthmaster.kubernetes import resources
from berthmaster.kubernetes.errors import NotFound
from berthmaster.kubernetes.resources import Resource
from tests.controlplane.kueue import lifecycle, quota
from tests.controlplane.kueue.clusters import Cluster
from tests.controlplane.kueue.objects import (
    MULTIKUEUE,
    Key,
    Obj,
    is_true,
    labels_of,
    merge_difference,
    set_condition,
    status_of,
)


def local_queue_of(cluster: Cluster, workload: Obj) -> Obj | None:
    name = workload["spec"].get("queueName", "")
    return cluster.get(resources.LOCAL_QUEUES, (workload["metadata"]["namespace"], name))


def queue_of(cluster: Cluster, workload: Obj) -> str | None:
    """The ClusterQueue that a Workload stands in; None if its LocalQueue is missing or stopped."""
    local = local_queue_of(cluster, workload)
    if local is None or local["spec"].get("stopPolicy", "None") != "None":
        return None
    name = local["spec"].get("clusterQueue")
    return None if name is None else str(name)


def checks_for(queue: Obj) -> list[str]:
    """The admission checks of a ClusterQueue. Checks for some flavors only are not told apart
    here."""
    strategy = queue["spec"].get("admissionChecksStrategy") or {}
    return [check["name"] for check in strategy.get("admissionChecks") or ()]


def may_use(cluster: Cluster, workload: Obj, queue: Obj) -> bool:
    """Whether the ClusterQueue takes Workloads of this namespace: no selector takes none, an empty
    one all."""
    selector = queue["spec"].get("namespaceSelector")
    if selector is None:
        return False
    wanted = selector.get("matchLabels") or {}
    if not wanted:
        return True
    namespace = cluster.get(resources.NAMESPACES, ("", workload["metadata"]["namespace"]))
    have = labels_of(namespace) if namespace else {}
    return all(have.get(name) == value for name, value in wanted.items())


def inactive_reason(cluster: Cluster, queue: Obj) -> tuple[str, str] | None:
    """Why a ClusterQueue admits nothing; None if it does."""
    if "deletionTimestamp" in queue["metadata"]:
        return "Terminating", "Can't admit new workloads; clusterQueue is terminating"
    found: list[tuple[str, str]] = []
    if queue["spec"].get("stopPolicy", "None") != "None":
        found.append(("Stopped", "is stopped"))
    missing = [
        name
        for name in quota.flavors_of(queue)
        if cluster.get(resources.RESOURCE_FLAVORS, ("", name)) is None
    ]
    if missing:
        words = f"references missing ResourceFlavor(s): {','.join(missing)}"
        found.append(("FlavorNotFound", words))
    checks = {
        name: cluster.get(resources.ADMISSION_CHECKS, ("", name)) for name in checks_for(queue)
    }
    if absent := [name for name, check in checks.items() if check is None]:
        words = f"references missing AdmissionCheck(s): {','.join(absent)}"
        found.append(("AdmissionCheckNotFound", words))
    present = {name: check for name, check in checks.items() if check is not None}
    if idle := [name for name, check in present.items() if not is_true(check, "Active")]:
        words = f"references inactive AdmissionCheck(s): {','.join(idle)}"
        found.append(("AdmissionCheckInactive", words))
    ours = [
        name for name, check in present.items() if check["spec"]["controllerName"] == MULTIKUEUE
    ]
    if len(ours) > 1:
        words = f"has more than one MultiKueue AdmissionCheck: {','.join(ours)}"
        found.append(("MultipleMultiKueueAdmissionChecks", words))
    if not found:
        return None
    return found[0][0], f"Can't admit new workloads: {', '.join(words for _, words in found)}."


def _usage_lists(queue: Obj, used: quota.Usage, *, borrowed: bool) -> list[Obj]:
    lists = []
    for group in queue["spec"].get("resourceGroups") or ():
        for flavor in group["flavors"]:
            entries = []
            for resource in flavor["resources"]:
                amount = used.get((flavor["name"], resource["name"]))
                entry: Obj = {
                    "name": resource["name"],
                    "total": quota.text_of(amount) if amount else "0",
                }
                if borrowed:
                    entry["borrowed"] = "0"
                entries.append(entry)
            lists.append({"name": flavor["name"], "resources": entries})
    return lists


class QueueStatus:
    """Writes the status of ClusterQueues, LocalQueues and MultiKueue's AdmissionChecks."""

    def __init__(self, cluster: Cluster, now: Callable[[], str]) -> None:
        self._cluster = cluster
        self._now = now

    async def sync(self) -> None:
        """Everything that is not as it should stand."""
        for check in self._cluster.all(resources.ADMISSION_CHECKS):
            if check["spec"]["controllerName"] == MULTIKUEUE:
                await self._write(resources.ADMISSION_CHECKS, check, self._check_status)
        for queue in self._cluster.all(resources.CLUSTER_QUEUES):
            await self._write(resources.CLUSTER_QUEUES, queue, self._cluster_queue_status)
        for queue in self._cluster.all(resources.LOCAL_QUEUES):
            await self._write(resources.LOCAL_QUEUES, queue, self._local_queue_status)

    async def _write(self, resource: Resource, old: Obj, fill: Callable[[Obj], None]) -> None:
        new = copy.deepcopy(old)
        fill(new)
        if patch := merge_difference(old.get("status") or {}, new.get("status") or {}):
            meta = old["metadata"]
            key: Key = meta.get("namespace", ""), meta["name"]
            body = {"metadata": {"resourceVersion": meta["resourceVersion"]}, "status": patch}
            try:
                await self._cluster.merge_patch(resource, key, body, subresource="status")
            except NotFound:
                pass  # gone, and we were not told so yet: the rest goes on

    def _check_status(self, check: Obj) -> None:
        true, reason, message = self._check_active(check)
        now = self._now()
        set_condition(check, "Active", true=true, reason=reason, message=message, now=now)

    def _check_active(self, check: Obj) -> tuple[bool, str, str]:
        parameters = check["spec"].get("parameters")
        if parameters is None:
            return (
                False,
                "BadConfig",
                "The AdmissionCheck names no MultiKueueConfig in spec.parameters",
            )
        name = parameters["name"]
        config = self._cluster.get(resources.MULTIKUEUE_CONFIGS, ("", name))
        if config is None:
            return False, "BadConfig", f"MultiKueueConfig {name} not found"
        missing, idle = [], []
        names = config["spec"]["clusters"]
        for cluster in names:
            found = self._cluster.get(resources.MULTIKUEUE_CLUSTERS, ("", cluster))
            if found is None:
                missing.append(cluster)
            elif not is_true(found, "Active"):
                idle.append(cluster)
        if not missing and not idle:
            return True, "Active", "The admission check is active"
        words = [
            f"{kind} clusters: {names}"
            for kind, names in (("Missing", missing), ("Inactive", idle))
            if names
        ]
        some = len(missing) + len(idle) < len(names)
        return some, "SomeActiveClusters" if some else "NoUsableClusters", ", ".join(words)

    def _cluster_queue_status(self, queue: Obj) -> None:
        name = queue["metadata"]["name"]
        status = status_of(queue)
        problem = inactive_reason(self._cluster, queue)
        set_condition(
            queue,
            "Active",
            true=problem is None,
            reason=problem[0] if problem else "Ready",
            message=problem[1] if problem else "Can admit new workloads",
            now=self._now(),
        )
        standing = [
            workload
            for workload in self._cluster.all(resources.WORKLOADS)
            if self._stands_in(workload) == name
        ]
        self._count(status, standing)
        for field, keep in (
            ("flavorsReservation", lifecycle.has_quota),
            ("flavorsUsage", lifecycle.is_admitted),
        ):
            used = quota.total(
                quota.usage_of(one)
                for one in standing
                if keep(one) and not lifecycle.is_finished(one)
            )
            status[field] = _usage_lists(queue, used, borrowed=True)

    def _stands_in(self, workload: Obj) -> str | None:
        """The ClusterQueue that counts it: the one that gave quota, else the one it waits for."""
        admission = workload.get("status", {}).get("admission")
        if admission:
            return str(admission["clusterQueue"])
        local = local_queue_of(self._cluster, workload)
        return None if local is None else local["spec"].get("clusterQueue")

    @staticmethod
    def _count(status: Obj, standing: list[Obj]) -> None:
        alive = [workload for workload in standing if not lifecycle.is_finished(workload)]
        reserving = [workload for workload in alive if lifecycle.has_quota(workload)]
        status["reservingWorkloads"] = len(reserving)
        status["admittedWorkloads"] = sum(map(lifecycle.is_admitted, reserving))
        status["pendingWorkloads"] = sum(
            lifecycle.is_active(workload) and not lifecycle.has_quota(workload)
            for workload in alive
        )

    def _local_queue_status(self, queue: Obj) -> None:
        status = status_of(queue)
        name = queue["spec"].get("clusterQueue", "")
        leads_to = self._cluster.get(resources.CLUSTER_QUEUES, ("", name))
        if queue["spec"].get("stopPolicy", "None") != "None":
            state = (
                False,
                "Stopped",
                "Can't submit new workloads to the LocalQueue: it is stopped",
            )
        elif leads_to is None:
            state = (
                False,
                "ClusterQueueDoesNotExist",
                "Can't submit new workloads to clusterQueue",
            )
        elif inactive_reason(self._cluster, leads_to) is not None:
            state = (False, "ClusterQueueIsInactive", "Can't submit new workloads to clusterQueue")
        else:
            state = (True, "Ready", "Can submit new workloads to the LocalQueue")
        true, reason, message = state
        set_condition(queue, "Active", true=true, reason=reason, message=message, now=self._now())
        meta = queue["metadata"]
        standing = [
            workload
            for workload in self._cluster.all(resources.WORKLOADS)
            if workload["metadata"]["namespace"] == meta["namespace"]
            and workload["spec"].get("queueName") == meta["name"]
        ]
        self._count(status, standing)
        if leads_to is not None:
            for field, keep in (
                ("flavorsReservation", lifecycle.has_quota),
                ("flavorsUsage", lifecycle.is_admitted),
            ):
                used = quota.total(
                    quota.usage_of(one)
                    for one in standing
                    if keep(one) and not lifecycle.is_finished(one)
                )
                status[field] = _usage_lists(leads_to, used, borrowed=False)
