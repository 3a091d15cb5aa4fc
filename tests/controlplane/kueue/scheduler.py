"""Who gets quota next: the stand-in's scheduling cycle.

Every cycle looks at all pending Workloads, queue by queue, by priority and then by age, and admits
what fits. What does not fit is told why, in status; in a StrictFIFO queue it also holds up those
behind it. A Workload that would fit if less important ones of its own ClusterQueue went
(preemption.withinClusterQueue) evicts them and waits for their quota. Rules: what an own write
returned counts at once (the cluster's cache holds it), so a cycle never gives the same quota twice;
a write that lost against somebody else is simply decided anew in the next cycle.
"""

from __future__ import annotations

from collections.abc import Iterable

from berthmaster.kubernetes import resources
from berthmaster.kubernetes.errors import Conflict, NotFound
from tests.controlplane.kueue import lifecycle, quota
from tests.controlplane.kueue.clusters import Cluster
from tests.controlplane.kueue.cohorts import Room
from tests.controlplane.kueue.objects import Obj, condition_of, key_of, labels_of, set_condition
from tests.controlplane.kueue.queues import checks_for, inactive_reason, may_use, queue_of
from tests.controlplane.kueue.writing import Writer


def is_pending(workload: Obj) -> bool:
    """It wants quota and may ask for it."""
    if "deletionTimestamp" in workload["metadata"] or lifecycle.is_finished(workload):
        return False
    if not lifecycle.is_active(workload) or lifecycle.has_quota(workload):
        return False
    requeued = condition_of(workload, lifecycle.REQUEUED)
    if requeued is not None and requeued["status"] == "False":
        return False
    return "requeueAt" not in (workload.get("status", {}).get("requeueState") or {})


def order(workload: Obj) -> tuple[int, str, str]:
    """The more important first, then the older; an eviction does not cost the place in the line."""
    meta = workload["metadata"]
    return -priority_of(workload), meta["creationTimestamp"], meta["uid"]


def priority_of(workload: Obj) -> int:
    return int(workload["spec"].get("priority") or 0)


def reserving(workloads: Iterable[Obj], queue: str) -> list[Obj]:
    """Those that hold quota of this ClusterQueue."""
    return [
        workload
        for workload in workloads
        if lifecycle.has_quota(workload)
        and not lifecycle.is_finished(workload)
        and workload["status"].get("admission", {}).get("clusterQueue") == queue
    ]


class Scheduler:
    """Reads the cluster's cache, writes quota and evictions."""

    def __init__(self, cluster: Cluster, writer: Writer) -> None:
        self._cluster = cluster
        self._writer = writer

    async def cycle(self) -> None:
        """One pass over all ClusterQueues. Raises KubernetesError: then it wants another."""
        pending: dict[str, list[Obj]] = {}
        for workload in self._cluster.all(resources.WORKLOADS):
            if not is_pending(workload):
                continue
            leads_to = queue_of(self._cluster, workload)
            if leads_to is not None:
                pending.setdefault(leads_to, []).append(workload)
        for name in sorted(pending):
            queue = self._cluster.get(resources.CLUSTER_QUEUES, ("", name))
            if queue is None or inactive_reason(self._cluster, queue) is not None:
                continue  # the workload controller tells why
            await self._fill(queue, sorted(pending[name], key=order))

    async def _fill(self, queue: Obj, line: list[Obj]) -> None:
        """One ClusterQueue: everybody in line, until a strict queue is held up."""
        strict = queue["spec"].get("queueingStrategy") == "StrictFIFO"
        name = queue["metadata"]["name"]
        holding = reserving(self._cluster.all(resources.WORKLOADS), name)
        used = quota.total(quota.usage_of(other) for other in holding)
        room = self._room()
        for workload in line:
            try:
                admitted = await self._try(workload, queue, holding, room.with_used(name, used))
            except (Conflict, NotFound):
                continue  # an event of it is on its way, and with it the next cycle
            if admitted is not None:
                used = quota.total([used, quota.usage_of({"status": {"admission": admitted}})])
            elif strict:
                break

    async def _try(self, workload: Obj, queue: Obj, holding: list[Obj], room: Room) -> Obj | None:
        """Admit, or make room, or tell why not. The admission, if it got one."""
        name = queue["metadata"]["name"]
        if not may_use(self._cluster, workload, queue):
            message = "Workload namespace doesn't match ClusterQueue selector"
            await self._tell(workload, "Pending", message)
            return None
        less = self._less_important(workload, queue, holding)
        spare = quota.total(quota.usage_of(other) for other in less)
        found = quota.assign(workload, queue, self._flavors(), room, spare=spare)
        if found.admission is None:
            await self._tell(workload, "Pending", found.message)
            return None
        if found.preemptible:
            victims = self._victims(workload, queue, holding, less, room)
            await self._preempt(workload, name, victims)
            words = f"couldn't fit yet: waiting for {len(victims)} preempted workload(s) to go"
            await self._tell(workload, "Pending", words)
            return None
        admission, checks = found.admission, checks_for(queue)
        await self._writer.admission(
            workload, lambda copy, now: lifecycle.reserve(copy, admission, checks, now)
        )
        return admission

    def _room(self) -> Room:
        queues = self._cluster.all(resources.CLUSTER_QUEUES)
        workloads = self._cluster.all(resources.WORKLOADS)
        used = {
            name: quota.total(quota.usage_of(one) for one in reserving(workloads, name))
            for name in (queue["metadata"]["name"] for queue in queues)
        }
        return Room(queues, self._cluster.all(resources.COHORTS), used)

    def _flavors(self) -> dict[str, Obj]:
        return {key_of(one)[1]: one for one in self._cluster.all(resources.RESOURCE_FLAVORS)}

    def _less_important(self, workload: Obj, queue: Obj, holding: list[Obj]) -> list[Obj]:
        """Whom this Workload may displace, the least important and newest first."""
        policy = (queue["spec"].get("preemption") or {}).get("withinClusterQueue", "Never")
        mine = order(workload)

        def displaceable(other: Obj) -> bool:
            if policy == "Never":
                return False
            if priority_of(other) < priority_of(workload):
                return True
            return policy == "LowerOrNewerEqualPriority" and order(other) > mine

        return sorted(filter(displaceable, holding), key=order, reverse=True)

    def _victims(
        self, workload: Obj, queue: Obj, holding: list[Obj], less: list[Obj], room: Room
    ) -> list[Obj]:
        """As few as suffice: from the least important on, until it fits."""
        flavors = self._flavors()
        victims: list[Obj] = []
        for other in less:
            victims.append(other)
            stay = [one for one in holding if all(key_of(one) != key_of(gone) for gone in victims)]
            used = quota.total(quota.usage_of(one) for one in stay)
            now = room.with_used(queue["metadata"]["name"], used)
            found = quota.assign(workload, queue, flavors, now)
            if found.admission is not None and not found.preemptible:
                break
        return victims

    async def _preempt(self, workload: Obj, queue: str, victims: list[Obj]) -> None:
        uid = workload["metadata"]["uid"]
        job = labels_of(workload).get("kueue.x-k8s.io/job-uid", "unknown")
        words = (
            f"Preempted to accommodate a workload (UID: {uid}, JobUID: {job}) due to "
            f"prioritization in the ClusterQueue; preemptor: {queue}"
        )

        def change(copy: Obj, now: str) -> None:
            lifecycle.evict(copy, "Preempted", words, now)
            set_condition(
                copy,
                lifecycle.PREEMPTED,
                true=True,
                reason="InClusterQueue",
                message=words,
                now=now,
            )

        for victim in victims:
            if not lifecycle.is_evicted(victim):
                await self._writer.admission(victim, change)

    async def _tell(self, workload: Obj, reason: str, message: str) -> None:
        told = condition_of(workload, lifecycle.RESERVED)
        if told is not None and (told["reason"], told["message"]) == (reason, message):
            return
        await self._writer.admission(
            workload, lambda copy, now: lifecycle.unreserve(copy, reason, message, now)
        )
