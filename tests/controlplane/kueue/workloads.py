"""One Workload at a time: the checks it needs, Admitted, evictions for every reason but preemption,
switching off.

The order of the questions is the contract: first what ends everything (finished, deleted), then
backoff and switching off, then the checks of its ClusterQueue, then Admitted, and only for a
Workload that holds quota what may take it away. Each look does at most one write and returns; the
event of that write brings the next look.
"""

from __future__ import annotations

import time

from berthmaster.kubernetes import resources
from tests.controlplane.kueue import lifecycle, queues
from tests.controlplane.kueue.clusters import Cluster
from tests.controlplane.kueue.objects import (
    IN_USE_FINALIZER,
    Key,
    Obj,
    condition_of,
    is_deleting,
    is_true,
    remove_condition,
    seconds_of,
    status_of,
    text_of,
)
from tests.controlplane.kueue.writing import Writer

RESTARTED = {
    lifecycle.BY_CLUSTER_QUEUE: "ClusterQueueRestarted",
    lifecycle.BY_LOCAL_QUEUE: "LocalQueueRestarted",
}


class Workloads:
    """The controller of Workloads."""

    def __init__(self, cluster: Cluster, writer: Writer) -> None:
        self._cluster = cluster
        self._writer = writer

    async def look(self, key: Key) -> float | None:
        """One look; how many seconds until the next, if time alone can change something."""
        workload = self._cluster.get(resources.WORKLOADS, key)
        if workload is None:
            return None
        if is_deleting(workload) and not workload["metadata"].get("ownerReferences"):
            await self.release(workload)
            return None
        if lifecycle.is_finished(workload):
            return None
        if lifecycle.is_active(workload):
            if is_true(workload, lifecycle.DEACTIVATION):
                body = {"spec": {"active": False}}
                await self._cluster.merge_patch(resources.WORKLOADS, key, body)
                return None
            wait_s = await self._backoff(workload)
            if wait_s is not None:
                return wait_s if wait_s > 0 else None
        elif await self._switch_off(workload):
            return None
        await self._in_queue(workload)
        return None

    async def release(self, workload: Obj) -> None:
        """Take Kueue's finalizer off, so that a deletion can end."""
        meta = workload["metadata"]
        kept = [name for name in meta.get("finalizers") or () if name != IN_USE_FINALIZER]
        if len(kept) != len(meta.get("finalizers") or ()):
            body = {"metadata": {"finalizers": kept or None}}
            await self._cluster.merge_patch(
                resources.WORKLOADS, (meta["namespace"], meta["name"]), body
            )

    async def _backoff(self, workload: Obj) -> float | None:
        """Wait before asking for quota again. None: go on; 0: a write was made; else seconds."""
        due_s = 0.0
        for check in lifecycle.checks_of(workload):
            if check["state"] == "Retry" and check.get("requeueAfterSeconds"):
                since_s = seconds_of(check["lastTransitionTime"])
                due_s = max(due_s, since_s + check["requeueAfterSeconds"])
        state = workload.get("status", {}).get("requeueState") or {}
        known_s = seconds_of(state["requeueAt"]) if "requeueAt" in state else 0.0
        if due_s > time.time() and due_s > known_s:
            at = text_of(due_s + 1)

            def set_due(copy: Obj, _now: str) -> None:
                status_of(copy).setdefault("requeueState", {})["requeueAt"] = at

            await self._writer.admission(workload, set_due)
            return 0.0
        if known_s and not lifecycle.has_quota(workload):
            if known_s > time.time():
                return known_s - time.time()

            def clear(copy: Obj, _now: str) -> None:
                state = status_of(copy)["requeueState"]
                state.pop("requeueAt", None)
                if not state:  # an object of nothing is sent as null, which is refused
                    del status_of(copy)["requeueState"]

            await self._writer.admission(workload, clear)
            return 0.0
        if await self._requeue(workload):
            return 0.0
        return None

    async def _requeue(self, workload: Obj) -> bool:
        requeued = condition_of(workload, lifecycle.REQUEUED)
        if requeued is None or requeued["status"] == "True":
            return False
        if requeued["reason"] == lifecycle.BY_DEACTIVATION:
            reason, message = "Reactivated", "Active again"
        elif requeued["reason"] == lifecycle.BY_CHECK:
            reason, message = "BackoffFinished", "The pause after the eviction is over"
        elif requeued["reason"] in RESTARTED and self._stopped(workload) is None:
            reason, message = RESTARTED[requeued["reason"]], "The queue is no longer stopped"
        else:
            return False
        return await self._writer.admission(
            workload,
            lambda copy, now: lifecycle.set_requeued(
                copy, true=True, reason=reason, message=message, now=now
            ),
        )

    async def _switch_off(self, workload: Obj) -> bool:
        if lifecycle.is_evicted(workload):
            return False
        cause = condition_of(workload, lifecycle.DEACTIVATION)
        reason, message = lifecycle.BY_DEACTIVATION, "The workload is deactivated"
        if cause is not None:
            reason = f"{reason}DueTo{cause['reason']}"
            message = f"{message} due to {cause['message']}"

        def change(copy: Obj, now: str) -> None:
            remove_condition(copy, lifecycle.DEACTIVATION)
            status_of(copy).pop("requeueState", None)
            lifecycle.evict(copy, reason, message, now)

        return await self._writer.admission(workload, change)

    async def _in_queue(self, workload: Obj) -> None:
        local = queues.local_queue_of(self._cluster, workload)
        name = local["spec"].get("clusterQueue", "") if local else ""
        admission = workload.get("status", {}).get("admission") or {}
        queue = self._cluster.get(
            resources.CLUSTER_QUEUES, ("", admission.get("clusterQueue") or name)
        )
        if queue is not None:
            wanted = queues.checks_for(queue)
            # A plain update in both ways of writing, as the controller of Workloads does.
            if await self._writer.plain(
                workload, lambda copy, now: lifecycle.sync_checks(copy, wanted, now)
            ):
                return
        if not lifecycle.has_quota(workload):
            if lifecycle.is_active(workload):
                await self._tell_inadmissible(workload, local, name, queue)
            return
        if not lifecycle.is_admitted(workload) and await self._writer.admission(
            workload, lifecycle.sync_admitted
        ):
            return
        if not lifecycle.is_evicted(workload) and not await self._by_checks(workload):
            await self._by_queue(workload)

    async def _tell_inadmissible(
        self, workload: Obj, local: Obj | None, name: str, queue: Obj | None
    ) -> None:
        queue_name = workload["spec"].get("queueName", "")
        if local is None:
            message = f"LocalQueue {queue_name} doesn't exist"
        elif local["spec"].get("stopPolicy", "None") != "None":
            message = f"LocalQueue {queue_name} is inactive"
        elif queue is None:
            message = f"ClusterQueue {name} doesn't exist"
        elif queues.inactive_reason(self._cluster, queue) is not None:
            message = f"ClusterQueue {name} is inactive"
        else:
            return
        await self._writer.admission(
            workload, lambda copy, now: lifecycle.unreserve(copy, "Inadmissible", message, now)
        )

    async def _by_checks(self, workload: Obj) -> bool:
        """Rejected switches off, Retry evicts."""
        checks = lifecycle.checks_of(workload)
        for state in ("Rejected", "Retry"):
            told = [
                f'"{one["name"]}" ({one["message"]})' for one in checks if one["state"] == state
            ]
            if not told:
                continue
            noun = "AdmissionChecks" if len(told) > 1 else "AdmissionCheck"
            words = f"{noun} in {state} state: {'; '.join(told)}"
            if state == "Rejected":
                return await self._reject(workload, words)
            await self._evict(workload, lifecycle.BY_CHECK, f"Evicted due to {words}")
            return True
        return False

    async def _reject(self, workload: Obj, words: str) -> bool:
        return await self._writer.admission(
            workload,
            lambda copy, now: lifecycle.target_deactivation(copy, lifecycle.BY_CHECK, words, now),
        )

    def _stopped(self, workload: Obj) -> tuple[str, str, str] | None:
        """Reason, stop policy and words of the queue that is stopped, if one is."""
        local = queues.local_queue_of(self._cluster, workload)
        if local is not None and local["spec"].get("stopPolicy", "None") != "None":
            name = local["metadata"]["name"]
            return (
                lifecycle.BY_LOCAL_QUEUE,
                local["spec"]["stopPolicy"],
                f"LocalQueue {name} is stopped",
            )
        admission = workload.get("status", {}).get("admission") or {}
        name = admission.get("clusterQueue") or (local["spec"].get("clusterQueue") if local else "")
        queue = self._cluster.get(resources.CLUSTER_QUEUES, ("", name or ""))
        if queue is not None and queue["spec"].get("stopPolicy", "None") != "None":
            return (
                lifecycle.BY_CLUSTER_QUEUE,
                queue["spec"]["stopPolicy"],
                f"ClusterQueue {name} is stopped",
            )
        return None

    async def _by_queue(self, workload: Obj) -> None:
        stopped = self._stopped(workload)
        if stopped is None:
            return
        reason, policy, words = stopped
        if lifecycle.is_admitted(workload):
            if policy == "HoldAndDrain":
                await self._evict(workload, reason, f"The {words}")
            return
        await self._writer.admission(
            workload, lambda copy, now: lifecycle.unreserve(copy, "Inadmissible", words, now)
        )

    async def _evict(self, workload: Obj, reason: str, message: str) -> None:
        await self._writer.admission(
            workload, lambda copy, now: lifecycle.evict(copy, reason, message, now)
        )
