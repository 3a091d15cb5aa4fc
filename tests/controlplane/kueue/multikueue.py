"""The hub's side of MultiKueue: one Workload and its copies on the workers, made to agree.

A look reads the Workload, its Job and every copy, and does the first thing that applies, in this
order: clean up what has no quota or is finished; finish when a copy finished; react to a copy's
eviction; drop copies that describe other pods; settle on the copy that was admitted first; and only
if none is, send copies to the nominated clusters. That order is the contract. News from workers is
gathered for a second before a look, as Kueue does it.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses

from berthmaster.kubernetes import resources
from berthmaster.kubernetes.errors import AlreadyExists, KubernetesError, NotFound
from tests.controlplane.kueue import lifecycle, remote_jobs
from tests.controlplane.kueue.clusters import Cluster
from tests.controlplane.kueue.dispatchers import (
    ALL_AT_ONCE,
    check_of,
    clusters_of,
    wants_nomination,
)
from tests.controlplane.kueue.objects import (
    API_VERSION,
    JOB_UID_LABEL,
    MULTIKUEUE,
    ORIGIN_LABEL,
    Key,
    Obj,
    condition_of,
    controller_of,
    is_deleting,
    labels_of,
    set_condition,
    status_of,
)
from tests.controlplane.kueue.remotes import Remotes
from tests.controlplane.kueue.writing import Writer

DEFERRED_S = 2.0  # a status that cannot be copied yet is tried again after so long


class NotSent(Exception):
    """A nominated cluster that got no copy, or no config: tried again, told in the log only."""


@dataclasses.dataclass
class Group:
    """One Workload and its copies."""

    local: Obj
    check: Obj
    job: Key
    clusters: dict[str, Cluster]  # connected, of the config
    lost: list[str]  # of the config, not connected
    copies: dict[str, Obj]

    @property
    def key(self) -> Key:
        return self.job[0], self.local["metadata"]["name"]


def first_with(copies: dict[str, Obj], kind: str) -> tuple[str, Obj] | None:
    """The cluster whose copy has this condition for longest, and the condition."""
    found = [
        (condition["lastTransitionTime"], name, condition)
        for name, one in copies.items()
        if (condition := condition_of(one, kind)) and condition["status"] == "True"
    ]
    if not found:
        return None
    _, name, condition = min(found, key=lambda entry: entry[0])
    return name, condition


class MultiKueue:
    """The controller of Workloads with a MultiKueue check."""

    def __init__(
        self,
        local: Cluster,
        writer: Writer,
        remotes: Remotes,
        *,
        dispatcher: str,
        origin: str,
        worker_lost_s: float,
        merge_patch: bool,
    ) -> None:
        self._local = local
        self._writer = writer
        self._remotes = remotes
        self._dispatcher = dispatcher
        self._origin = origin
        self._worker_lost_s = worker_lost_s
        self._merge_patch = merge_patch
        self._deleted: dict[Key, Obj] = {}  # the last of Workloads whose copies are still to go

    def deleted(self, key: Key, last: Obj) -> None:
        """A Workload is gone; its copies shall follow."""
        self._deleted[key] = last

    async def look(self, key: Key) -> float | None:
        """One look; how many seconds until the next, if time alone can change something."""
        local = self._local.get(resources.WORKLOADS, key) or self._deleted.get(key)
        if local is None:
            return None
        check = check_of(self._local, local)
        owner = controller_of(local)
        if check is None or check["state"] == "Rejected":
            self._deleted.pop(key, None)
            return None
        if owner is None or owner["kind"] != "Job":
            await self._set_check(local, check, "Rejected", "No MultiKueue adapter for the owner")
            return None
        job: Key = key[0], owner["name"]
        gone = self._local.get(resources.WORKLOADS, key) is None or is_deleting(local)
        if not gone:
            described = self._local.get(resources.JOBS, job)
            if described is None:
                return None
            if described["spec"].get("managedBy") != MULTIKUEUE:
                words = f"The owner is not managed by Kueue: spec.managedBy is not {MULTIKUEUE}"
                await self._set_check(local, check, "Rejected", words)
                return None
        group = self._read(local, check, job)
        if gone:
            for name in list(group.copies):
                await self._remove(group, name)
            self._deleted.pop(key, None)
            return None
        return await self._reconcile(group)

    def _read(self, local: Obj, check: Obj, job: Key) -> Group:
        names = clusters_of(self._local, check["name"])
        if names is None:
            raise NotSent(f"admission check {check['name']}: no MultiKueueConfig")
        clusters = {name: one for name in names if (one := self._remotes.connected(name))}
        key = (job[0], local["metadata"]["name"])
        copies = {
            name: found
            for name, one in clusters.items()
            if (found := one.get(resources.WORKLOADS, key)) is not None
        }
        lost = [name for name in names if name not in clusters]
        return Group(local, check, job, clusters, lost, copies)

    async def _reconcile(self, group: Group) -> float | None:
        local, check = group.local, group.check
        if lifecycle.is_finished(local) or not lifecycle.has_quota(local):
            for name in list(group.copies):
                await self._remove(group, name)
            return self._worker_lost_s if group.lost else None
        if finished := first_with(group.copies, lifecycle.FINISHED):
            await self._finish(group, *finished)
            return None
        if evicted := first_with(group.copies, lifecycle.EVICTED):
            if lifecycle.is_evicted(local):
                return await self._sync_job(group, evicted[0], fresh=True)
            if check["state"] == "Ready":
                words = (
                    f'Workload evicted on worker cluster "{evicted[0]}": {evicted[1]["message"]}'
                )
                await self._set_check(local, check, "Retry", words, admission=True)
                return None
        if lifecycle.is_evicted(local) and _are_ending(group.copies):
            # The worker ends its copy at the hub's word by two writes, spec.active and Evicted. Who
            # looks between them drops the copy, and with it the last word on its pods. So does the
            # real manager, where they are milliseconds apart; here looks take turns, and it would
            # be common.
            return None
        await self._drop_out_of_sync(group)
        admitted = first_with(group.copies, lifecycle.ADMITTED)
        if admitted is not None:
            return await self._settle(group, admitted[0])
        if check["state"] == "Ready":
            return await self._lost(group)
        if wants_nomination(local, check):
            await self._send(group)
        return None

    # ------------------------------------------------------------ the steps

    async def _finish(self, group: Group, name: str, condition: Obj) -> None:
        # The real manager reads copies past any cache: one of an earlier attempt, whose Job is gone
        # and which is on its way out, is not taken for the end of this one.
        try:
            there = await group.clusters[name].read(resources.WORKLOADS, group.key)
        except NotFound:
            return  # its event is on the way
        if not lifecycle.is_finished(there) or is_deleting(there):
            return
        if condition["reason"] == "OutOfSync":
            if group.check["state"] == "Ready":
                words = (
                    f'The remote workload on worker cluster "{name}" is out of sync with its job'
                )
                await self._set_check(group.local, group.check, "Retry", words)
            return
        await self._sync_job(group, name, fresh=True)
        await self._writer.admission(
            group.local,
            lambda obj, now: lifecycle.finish(obj, condition["reason"], condition["message"], now),
        )

    async def _drop_out_of_sync(self, group: Group) -> None:
        for name, one in list(group.copies.items()):
            if one["spec"] == group.local["spec"]:
                continue
            if _without_priority(one["spec"]) == _without_priority(group.local["spec"]):
                fields = ("priority", "priorityClassRef")
                body = {"spec": {field: group.local["spec"].get(field) for field in fields}}
                await group.clusters[name].merge_patch(resources.WORKLOADS, group.key, body)
                continue
            await self._remove(group, name)

    async def _lost(self, group: Group) -> float | None:
        """The check is Ready and no copy is admitted: the worker is away, or the copy is."""
        chosen = group.local["status"].get("clusterName")
        if chosen in group.lost:
            left_s = self._worker_lost_s - self._remotes.lost_for_s(chosen)
            if left_s > 0:
                return left_s
            words = "Admitting remote lost"
        else:
            words = "Admitting remote no longer exists"
        await self._set_check(group.local, group.check, "Retry", words)
        return None

    async def _settle(self, group: Group, name: str) -> float | None:
        """One copy is admitted: the others go, its Job is made and followed, the check is Ready."""
        for other in list(group.copies):
            if other != name:
                await self._remove(group, other)
        evicted = condition_of(group.local, lifecycle.EVICTED)
        if evicted is not None and evicted["status"] == "True":
            await self._evict_copy(group, name, evicted["message"])
            return None
        wait_s = await self._sync_job(group, name)
        if group.check["state"] not in ("Retry", "Rejected"):
            await self._accept(group, name)
        return wait_s if wait_s is not None else self._worker_lost_s

    async def _accept(self, group: Group, name: str) -> None:
        check_name = group.check["name"]

        def change(obj: Obj, now: str) -> None:
            words = f'The workload was admitted on "{name}"'
            lifecycle.set_check(obj, check_name, "Ready", words, now)
            status = status_of(obj)
            status.setdefault("clusterName", name)
            status.pop("nominatedClusterNames", None)

        await self._writer.admission(group.local, change)

    async def _evict_copy(self, group: Group, name: str, message: str) -> None:
        """The hub wants its Workload back: the worker switches the copy off."""
        writer = Writer(group.clusters[name], merge_patch=self._merge_patch)
        words = f"Evicted on manager: {message}"
        await writer.admission(
            group.copies[name],
            lambda obj, now: set_condition(
                obj,
                lifecycle.DEACTIVATION,
                true=True,
                reason=lifecycle.ON_HUB,
                message=words,
                now=now,
            ),
        )

    async def _send(self, group: Group) -> None:
        """Copies go to the nominated clusters, and only when every other check is Ready."""
        others = [
            one for one in lifecycle.checks_of(group.local) if one["name"] != group.check["name"]
        ]
        if any(one["state"] != "Ready" for one in others):
            return
        nominated = list(group.local["status"].get("nominatedClusterNames") or ())
        if self._dispatcher == ALL_AT_ONCE:
            wanted = list(group.clusters)
            if set(wanted) != set(nominated):

                def change(obj: Obj, _now: str) -> None:
                    status_of(obj)["nominatedClusterNames"] = wanted

                await self._writer.admission(group.local, change)
            nominated = wanted
        failed = [f"{name}: not connected" for name in nominated if name not in group.clusters]
        for name, cluster in group.clusters.items():
            if name in nominated and name not in group.copies:
                try:
                    await cluster.create(resources.WORKLOADS, self._copy_of(group.local))
                except AlreadyExists:
                    pass  # its event is on the way
                except KubernetesError as error:
                    failed.append(f"{name}: {error}")  # such as a namespace that is not there
            elif name not in nominated and name in group.copies:
                await self._remove(group, name)
        if failed:
            raise NotSent("; ".join(failed))

    # ------------------------------------------------------------ copies

    def _copy_of(self, local: Obj) -> Obj:
        meta = local["metadata"]
        labels = {name: text for name, text in labels_of(local).items() if name != JOB_UID_LABEL}
        labels[ORIGIN_LABEL] = self._origin
        new: Obj = {"name": meta["name"], "namespace": meta["namespace"], "labels": labels}
        if meta.get("annotations"):
            new["annotations"] = meta["annotations"]
        return {
            "apiVersion": API_VERSION,
            "kind": "Workload",
            "metadata": new,
            "spec": copy.deepcopy(local["spec"]),
        }

    async def _remove(self, group: Group, name: str) -> None:
        """The Job first: its Workload may be gone already by garbage collection. Whatever is gone
        already, the rest goes all the same."""
        cluster = group.clusters[name]
        with contextlib.suppress(NotFound):
            await remote_jobs.remove(cluster, group.job, self._origin)
        one = group.copies.pop(name)
        with contextlib.suppress(NotFound):
            if one["metadata"].get("finalizers"):
                body: Obj = {"metadata": {"finalizers": None}}
                await cluster.merge_patch(resources.WORKLOADS, group.key, body)
            await cluster.delete(resources.WORKLOADS, group.key)

    async def _sync_job(self, group: Group, name: str, *, fresh: bool = False) -> float | None:
        """Make the remote Job, or copy its status; seconds until the next try if it must wait."""
        remote = group.clusters[name]
        deferred = await remote_jobs.sync(
            self._local, remote, group.job, group.key[1], self._origin, fresh=fresh
        )
        return DEFERRED_S if deferred else None

    async def _set_check(
        self, local: Obj, check: Obj, state: str, message: str, *, admission: bool = False
    ) -> None:
        name, before = check["name"], check["state"]
        words = f'{message}, Previously: "{before}"'

        def change(obj: Obj, now: str) -> bool:
            return lifecycle.set_check(obj, name, state, words, now)

        if admission:
            await self._writer.admission(local, change)
        else:
            await self._writer.check(local, name, change)

    async def collect(self) -> None:
        """Copies whose Workload is no more, such as those of a Job deleted while a worker was
        away."""
        for cluster in self._remotes.all_connected().values():
            for one in cluster.all(resources.WORKLOADS):
                meta = one["metadata"]
                key: Key = meta["namespace"], meta["name"]
                local = self._local.get(resources.WORKLOADS, key)
                if local is not None and not is_deleting(local):
                    continue
                if (owner := controller_of(one)) is not None:
                    await remote_jobs.remove(cluster, (key[0], owner["name"]), self._origin)
                await cluster.delete(resources.WORKLOADS, key)


def _are_ending(copies: dict[str, Obj]) -> bool:
    """Whether a worker has switched a copy off and has not told its eviction yet."""
    return any(
        not lifecycle.is_active(one) and not lifecycle.is_evicted(one) for one in copies.values()
    )


def _without_priority(spec: Obj) -> Obj:
    return {name: value for name, value in spec.items() if not name.startswith("priority")}
