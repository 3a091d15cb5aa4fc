"""Carry out the core's writes to the hub's API server, each under the contract.

A nomination is written with the resource version that the decision is based on. The first try uses
the mirror's version, which costs one call without other writers. After a conflict the writer reads
the server's object, asks the contract again and retries, a bounded number of times. Writes are
merge patches, except for the service's own entries in lists with owners.
"""

import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Final, TypeVar, assert_never

from berthmaster.hub.multikueue.core.instructions import (
    ClearNomination,
    DeleteJob,
    FindWriter,
    ForgetPods,
    MakeJob,
    Nominate,
    Nudge,
    PassCheck,
    SendBack,
    SetCheckActive,
    SwitchOff,
    SwitchOn,
    Write,
    Writers,
)
from berthmaster.hub.multikueue.core.known.hub import Hub, ObjectKey, labelled
from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.controller.shell_contract import Answer, Declined, Outcome
from berthmaster.lib.kube.controller.writer import Writer
from berthmaster.lib.kube.errors import AlreadyExists, Conflict
from berthmaster.lib.kube.objects import Object, timestamp
from berthmaster.lib.kube.resources import ADMISSION_CHECKS, JOBS, KUEUE_WORKLOADS, Resource
from berthmaster.lib.kube.retry import on_conflict
from berthmaster.lib.kueue.contract import clearing, may_be_switched_off, nomination
from berthmaster.lib.kueue.jobs import HubJob
from berthmaster.lib.kueue.multikueue import (
    OUR_MANAGER,
    AdmissionCheck,
    ManagedWorkload,
    others_writing,
)
from berthmaster.lib.kueue.names import HELD_ANNOTATION, NUDGED_ANNOTATION, READY, RETRY
from berthmaster.lib.kueue.workloads import KueueWorkload

MANAGER: Final = OUR_MANAGER
CHECK_MANAGER: Final = "berthmaster-placement"
ATTEMPTS: Final = 6
T = TypeVar("T", bound=Object)


class NotOurs(Declined):
    """The object of this name belongs to another party."""


class HubWriter(Writer[Write]):
    def __init__(self, client: Client, hub: Hub) -> None:
        super().__init__(client)
        self._hub = hub
        self.conflicts = 0

    def right(self, write: Write) -> Hashable:
        return type(write).__name__, _namespace(write)

    async def write(self, write: Write) -> Answer:
        match write:
            case Nominate():
                return await self._nominate(write)
            case ClearNomination():
                return await self._clear(write)
            case FindWriter():
                path = KUEUE_WORKLOADS.path(namespace=write.at[0], name=write.at[1])
                workload = await self.client.get(path, ManagedWorkload)
                return Answer(found=Writers(others_writing(workload)))
            case Nudge():
                return await self._nudge(write)
            case PassCheck():
                return await self._set_check(write, READY)
            case SendBack():
                return await self._set_check(write, RETRY)
            case SwitchOff():
                return await self._switch_off(write)
            case SwitchOn():
                return await self._switch_on(write)
            case ForgetPods():
                path = JOBS.path(namespace=write.at[0], name=write.at[1], subresource="status")
                meta = {"uid": write.uid, "resourceVersion": write.version}
                body = {"metadata": meta, "status": {"active": 0, "ready": 0}}
                job = await self.client.merge_patch(path, body, HubJob, field_manager=MANAGER)
                return Answer(found=job)
            case MakeJob():
                return await self._make_job(write)
            case DeleteJob():
                return await self._delete_job(write)
            case SetCheckActive():
                return await self._tell_check(write)
            case _:
                assert_never(write)

    def _reader(
        self, resource: Resource, at: ObjectKey, kind: type[T], known: T | None
    ) -> Callable[[], Awaitable[T]]:
        """Return a reader that gives the mirrored object first, and the server's object
        afterwards.
        """
        path = resource.path(namespace=at[0], name=at[1])
        mirrored = known

        async def read() -> T:
            nonlocal mirrored
            if mirrored is not None:
                found, mirrored = mirrored, None
                return found
            self.conflicts += 1
            return await self.client.get(path, kind)

        return read

    async def _nominate(self, write: Nominate) -> Answer:
        return await self._set_nomination(
            write.at, lambda found: nomination(found, write.uid, write.check, write.cluster)
        )

    async def _clear(self, write: ClearNomination) -> Answer:
        def change(found: KueueWorkload) -> tuple[tuple[str, ...] | None, str]:
            may, why = clearing(found, write.uid, write.check, write.clusters)
            return () if may else None, why

        return await self._set_nomination(write.at, change)

    async def _nudge(self, write: Nudge) -> Answer:
        path = KUEUE_WORKLOADS.path(namespace=write.at[0], name=write.at[1])

        def change(workload: KueueWorkload) -> bool | None:
            is_waiting = bool(workload.nominated) and not workload.cluster_name
            return True if workload.metadata.uid == write.uid and is_waiting else None

        body = {"metadata": {"annotations": {NUDGED_ANNOTATION: timestamp(time.time())}}}
        return await self._patch(path, write.at, change, body)

    async def _set_nomination(
        self,
        at: ObjectKey,
        wanted: Callable[[KueueWorkload], tuple[tuple[str, ...] | None, str]],
    ) -> Answer:
        path = KUEUE_WORKLOADS.path(namespace=at[0], name=at[1], subresource="status")
        seen: list[tuple[KueueWorkload, str]] = []

        def change(workload: KueueWorkload) -> tuple[str, ...] | None:
            names, why = wanted(workload)
            seen.append((workload, why))
            return names

        async def patch(workload: KueueWorkload, names: object) -> KueueWorkload:
            body = {"status": {"nominatedClusterNames": names or None}}
            return await self.client.merge_patch(
                path,
                body,
                KueueWorkload,
                resource_version=workload.metadata.resource_version,
                field_manager=MANAGER,
            )

        known = self._hub.workloads.get(at)
        written = await on_conflict(
            self._reader(KUEUE_WORKLOADS, at, KueueWorkload, known),
            change,
            patch,
            attempts=ATTEMPTS,
        )
        if written is not None:
            return Answer(found=written)
        workload, why = seen[-1]
        outcome = Outcome.CONFLICT if why else Outcome.DONE
        found = workload if len(seen) > 1 else None
        return Answer(outcome, "Contract" if why else "", why, found=found)

    async def _set_check(self, write: PassCheck | SendBack, state: str) -> Answer:
        item: dict[str, Any] = {
            "name": write.check,
            "state": state,
            "message": write.message,
            "lastTransitionTime": timestamp(time.time()),
        }
        metadata = {"name": write.at[1], "namespace": write.at[0], "uid": write.uid}
        if isinstance(write, SendBack):
            metadata["resourceVersion"] = write.version
            if write.again_s:
                item["requeueAfterSeconds"] = write.again_s
        body = {
            "apiVersion": KUEUE_WORKLOADS.group_version,
            "kind": KUEUE_WORKLOADS.kind,
            "metadata": metadata,
            "status": {"admissionChecks": [item]},
        }
        path = KUEUE_WORKLOADS.path(namespace=write.at[0], name=write.at[1], subresource="status")
        workload = await self.client.apply(
            path, body, KueueWorkload, field_manager=CHECK_MANAGER, force=True
        )
        return Answer(found=workload)

    async def _switch_off(self, write: SwitchOff) -> Answer:
        path = KUEUE_WORKLOADS.path(namespace=write.at[0], name=write.at[1])

        def change(workload: KueueWorkload) -> bool | None:
            same = workload.metadata.uid == write.uid
            if write.held_by and not may_be_switched_off(workload, write.nominated):
                return None  # Kueue has acted on it meanwhile
            return True if same and workload.active else None

        body: dict[str, Any] = {"spec": {"active": False}}
        if write.held_by:
            body["metadata"] = {"annotations": {HELD_ANNOTATION: write.held_by}}
        return await self._patch(path, write.at, change, body)

    async def _switch_on(self, write: SwitchOn) -> Answer:
        path = KUEUE_WORKLOADS.path(namespace=write.at[0], name=write.at[1])

        def change(workload: KueueWorkload) -> bool | None:
            same = workload.metadata.uid == write.uid
            held = HELD_ANNOTATION in workload.metadata.annotations
            return True if same and held and not workload.active else None

        body = {"metadata": {"annotations": {HELD_ANNOTATION: None}}, "spec": {"active": True}}
        return await self._patch(path, write.at, change, body)

    async def _patch(
        self,
        path: str,
        at: ObjectKey,
        change: Callable[[KueueWorkload], bool | None],
        body: dict[str, Any],
    ) -> Answer:
        """Patch a Workload if ``change`` still wants it, in its version at the write."""

        async def patch(workload: KueueWorkload, _: object) -> KueueWorkload:
            version = workload.metadata.resource_version
            said = {**body, "metadata": {**body.get("metadata", {}), "resourceVersion": version}}
            return await self.client.merge_patch(path, said, KueueWorkload, field_manager=MANAGER)

        known = self._hub.workloads.get(at)
        read = self._reader(KUEUE_WORKLOADS, at, KueueWorkload, known)
        written = await on_conflict(read, change, patch, attempts=ATTEMPTS)
        return Answer(found=written)

    async def _make_job(self, write: MakeJob) -> Answer:
        path = JOBS.path(namespace=write.namespace)
        try:
            found = await self.client.create(path, write.manifest, HubJob, field_manager=MANAGER)
        except AlreadyExists:
            name = write.manifest["metadata"]["name"]
            where = JOBS.path(namespace=write.namespace, name=name)
            found = await self.client.get(where, HubJob)
            if labelled(found) != write.workload:
                why = f"Job {write.namespace}/{name} is there already and is not ours"
                raise NotOurs(why) from None
        return Answer(found=found)

    async def _delete_job(self, write: DeleteJob) -> Answer:
        try:
            await self.client.delete(
                JOBS.path(namespace=write.at[0], name=write.at[1]), uid=write.uid
            )
        except Conflict:
            pass  # another Job of the name: the service's own is gone
        return Answer()

    async def _tell_check(self, write: SetCheckActive) -> Answer:
        condition = {
            "type": "Active",
            "status": "True" if write.active else "False",
            "reason": write.reason,
            "message": write.message,
            "lastTransitionTime": timestamp(time.time()),
        }
        body = {
            "apiVersion": ADMISSION_CHECKS.group_version,
            "kind": ADMISSION_CHECKS.kind,
            "metadata": {"name": write.check},
            "status": {"conditions": [condition]},
        }
        path = ADMISSION_CHECKS.path(name=write.check, subresource="status")
        await self.client.apply(path, body, AdmissionCheck, field_manager=CHECK_MANAGER, force=True)
        return Answer()


def _namespace(write: Write) -> str:
    """Return the namespace of the needed rights; "" = cluster-wide."""
    match write:
        case MakeJob():
            return write.namespace
        case SetCheckActive():
            return ""
        case _:
            return write.at[0]
