"""Carries out the core's writes to the hub's API server, each under the contract.

A Workload's nomination is written with the resource version of what was looked at: first that of
the mirror, which costs one call when nobody has written since; after a conflict what the server has
is read, the contract is asked again, and it is tried at once, a bounded number of times. Merge
patches only, except for our own item of lists that have owners.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar, assert_never

from berthmaster.kubernetes.client import Client
from berthmaster.kubernetes.denials import Denials
from berthmaster.kubernetes.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Invalid,
    KubernetesError,
    NotFound,
)
from berthmaster.kubernetes.objects import Object, timestamp
from berthmaster.kubernetes.resources import (
    ADMISSION_CHECKS,
    JOBS,
    MULTIKUEUE_CONFIGS,
    WORKLOADS,
    Resource,
)
from berthmaster.kubernetes.retry import on_conflict
from berthmaster.kueue.contract import nomination, reordered
from berthmaster.kueue.jobs import HubJob
from berthmaster.kueue.multikueue import AdmissionCheck, MultiKueueConfig
from berthmaster.kueue.names import READY
from berthmaster.kueue.workloads import KueueWorkload
from berthmaster.multikueue.instructions import (
    DeleteJob,
    Done,
    MakeJob,
    Nominate,
    PassCheck,
    Reorder,
    SetCheckActive,
    SwitchOff,
    Write,
)
from berthmaster.multikueue.known.hub import Hub, ObjectKey, labelled

MANAGER: Final = "berthmaster-multikueue"
CHECK_MANAGER: Final = "berthmaster-placement"
ATTEMPTS: Final = 6
T = TypeVar("T", bound=Object)


class Writer:
    """Writes for one core."""

    def __init__(self, client: Client, hub: Hub) -> None:
        self._client = client
        self._hub = hub
        self._denials = Denials()
        self.conflicts = 0

    async def carry_out(self, write: Write) -> Done:
        """Do it; what became of it."""
        what = (type(write), _namespace(write))
        try:
            done = await self._do(write)
        except Forbidden as error:
            now_s = asyncio.get_running_loop().time()
            pause_s = self._denials.pause_s(what, error, now_s)
            why = str(error)[:500]
            return Done(write.ref, why=why, permanent=pause_s is None, pause_s=pause_s)
        except KubernetesError as error:
            permanent = isinstance(error, Invalid) or (
                isinstance(error, NotFound) and isinstance(write, MakeJob)
            )
            return Done(write.ref, why=str(error)[:500], permanent=permanent)
        self._denials.allowed(what)
        return done

    async def _do(self, write: Write) -> Done:
        match write:
            case Nominate():
                return await self._nominate(write)
            case PassCheck():
                return await self._pass_check(write)
            case SwitchOff():
                return await self._switch_off(write)
            case MakeJob():
                return await self._make_job(write)
            case DeleteJob():
                return await self._delete_job(write)
            case Reorder():
                return await self._reorder(write)
            case SetCheckActive():
                return await self._tell_check(write)
            case _:
                assert_never(write)

    def _reader(
        self, resource: Resource, at: ObjectKey, kind: type[T], known: T | None
    ) -> Callable[[], Awaitable[T]]:
        """What the mirror has first, and what the server has from then on."""
        path = resource.path(namespace=at[0], name=at[1])
        mirrored = known

        async def read() -> T:
            nonlocal mirrored
            if mirrored is not None:
                found, mirrored = mirrored, None
                return found
            self.conflicts += 1
            return await self._client.get(path, kind)

        return read

    async def _nominate(self, write: Nominate) -> Done:
        path = WORKLOADS.path(namespace=write.at[0], name=write.at[1], subresource="status")
        seen: list[tuple[KueueWorkload, str]] = []

        def change(workload: KueueWorkload) -> tuple[str, ...] | None:
            names, why = nomination(workload, write.uid, write.check, write.cluster)
            seen.append((workload, why))
            return names

        async def patch(workload: KueueWorkload, names: object) -> KueueWorkload:
            body = {"status": {"nominatedClusterNames": names}}
            return await self._client.merge_patch(
                path,
                body,
                KueueWorkload,
                resource_version=workload.metadata.resource_version,
                field_manager=MANAGER,
            )

        known = self._hub.workloads.get(write.at)
        written = await on_conflict(
            self._reader(WORKLOADS, write.at, KueueWorkload, known),
            change,
            patch,
            attempts=ATTEMPTS,
        )
        if written is not None:
            return Done(write.ref, thing=written)
        workload, why = seen[-1]
        return Done(write.ref, why=why, thing=workload if len(seen) > 1 else None)

    async def _pass_check(self, write: PassCheck) -> Done:
        item = {
            "name": write.check,
            "state": READY,
            "message": write.message,
            "lastTransitionTime": timestamp(time.time()),
        }
        body = {
            "apiVersion": WORKLOADS.group_version,
            "kind": WORKLOADS.kind,
            "metadata": {"name": write.at[1], "namespace": write.at[0], "uid": write.uid},
            "status": {"admissionChecks": [item]},
        }
        path = WORKLOADS.path(namespace=write.at[0], name=write.at[1], subresource="status")
        workload = await self._client.apply(
            path, body, KueueWorkload, field_manager=CHECK_MANAGER, force=True
        )
        return Done(write.ref, thing=workload)

    async def _switch_off(self, write: SwitchOff) -> Done:
        path = WORKLOADS.path(namespace=write.at[0], name=write.at[1])

        def change(workload: KueueWorkload) -> bool | None:
            same = workload.metadata.uid == write.uid
            return True if same and workload.active else None

        async def patch(workload: KueueWorkload, _: object) -> KueueWorkload:
            return await self._client.merge_patch(
                path,
                {"spec": {"active": False}},
                KueueWorkload,
                resource_version=workload.metadata.resource_version,
                field_manager=MANAGER,
            )

        known = self._hub.workloads.get(write.at)
        read = self._reader(WORKLOADS, write.at, KueueWorkload, known)
        written = await on_conflict(read, change, patch, attempts=ATTEMPTS)
        return Done(write.ref, thing=written)

    async def _make_job(self, write: MakeJob) -> Done:
        path = JOBS.path(namespace=write.namespace)
        try:
            found = await self._client.create(path, write.manifest, HubJob, field_manager=MANAGER)
        except AlreadyExists:
            name = write.manifest["metadata"]["name"]
            where = JOBS.path(namespace=write.namespace, name=name)
            found = await self._client.get(where, HubJob)
            if labelled(found) != write.workload:
                why = f"Job {write.namespace}/{name} is there already and is not ours"
                return Done(write.ref, why=why, permanent=True)
        return Done(write.ref, thing=found)

    async def _delete_job(self, write: DeleteJob) -> Done:
        try:
            await self._client.delete(
                JOBS.path(namespace=write.at[0], name=write.at[1]), uid=write.uid
            )
        except Conflict:
            pass  # another Job of that name: ours is gone
        return Done(write.ref)

    async def _reorder(self, write: Reorder) -> Done:
        path = MULTIKUEUE_CONFIGS.path(name=write.config)

        def change(config: MultiKueueConfig) -> tuple[str, ...] | None:
            return reordered(config.clusters, write.clusters)

        async def patch(config: MultiKueueConfig, clusters: object) -> MultiKueueConfig:
            return await self._client.merge_patch(
                path,
                {"spec": {"clusters": clusters}},
                MultiKueueConfig,
                resource_version=config.metadata.resource_version,
                field_manager=MANAGER,
            )

        known = self._hub.configs.get(write.config)
        read = self._reader(MULTIKUEUE_CONFIGS, ("", write.config), MultiKueueConfig, known)
        await on_conflict(read, change, patch, attempts=ATTEMPTS)
        return Done(write.ref)

    async def _tell_check(self, write: SetCheckActive) -> Done:
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
        await self._client.apply(
            path, body, AdmissionCheck, field_manager=CHECK_MANAGER, force=True
        )
        return Done(write.ref)


def _namespace(write: Write) -> str:
    """Where rights for it are looked up; "" = in the whole cluster."""
    match write:
        case MakeJob():
            return write.namespace
        case Reorder() | SetCheckActive():
            return ""
        case _:
            return write.at[0]
