"""Performs the core's writes on the hub's API server.

Each write is guarded: a configuration by its resource version, a Workload's check by the contract
(gate.py). After a conflict, the contract is checked again on the server's object. Only
Berthmaster's own item in a Workload's list of checks is applied. Other items belong to other
controllers.
"""

import time
from typing import Any, Final, assert_never

from berthmaster.hub.admission.core import gate
from berthmaster.hub.admission.core.gate import CheckVerdict
from berthmaster.hub.admission.core.instructions import (
    Connect,
    DeleteConfig,
    Write,
    WriteConditions,
    WriteConfig,
    WriteState,
)
from berthmaster.hub.admission.core.objects import CHECK_ANNOTATION, MANAGED_LABEL, MANAGER
from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.controller.shell_contract import Answer, Outcome
from berthmaster.lib.kube.controller.writer import Writer
from berthmaster.lib.kube.errors import AlreadyExists, NotFound
from berthmaster.lib.kube.objects import Object, timestamp
from berthmaster.lib.kube.resources import (
    ADMISSION_CHECKS,
    KUEUE_WORKLOADS,
    MULTIKUEUE_CLUSTERS,
    MULTIKUEUE_CONFIGS,
    SECRETS,
    Resource,
)
from berthmaster.lib.kube.retry import on_conflict
from berthmaster.lib.kueue.multikueue import AdmissionCheck, MultiKueueCluster, MultiKueueConfig
from berthmaster.lib.kueue.names import DRAINING_ANNOTATION
from berthmaster.lib.kueue.workloads import Workload

ATTEMPTS: Final = 6
SECRET_PREFIX: Final = "multikueue-"  # prefix of Open Cluster Management's addon
MAX_MANAGER_CHARS: Final = 128


class AdmissionWriter(Writer[Write]):
    def __init__(self, client: Client, kueue_namespace: str) -> None:
        super().__init__(client)
        self._namespace = kueue_namespace

    async def write(self, write: Write) -> Answer:
        match write:
            case WriteConfig():
                return await self._write_config(write)
            case DeleteConfig():
                meta = write.base.metadata
                path = MULTIKUEUE_CONFIGS.path(name=meta.name)
                await self.client.delete(path, uid=meta.uid, resource_version=meta.resource_version)
                return Answer()
            case Connect():
                return await self._connect(write)
            case WriteConditions():
                return await self._tell_check(write)
            case WriteState():
                return await self._set_state(write)
            case _:
                assert_never(write)

    async def _write_config(self, write: WriteConfig) -> Answer:
        spec = {"clusters": write.clusters}
        draining = ",".join(write.draining)
        if write.base is None:
            notes = {CHECK_ANNOTATION: write.name}
            if draining:
                notes[DRAINING_ANNOTATION] = draining
            made = await self.client.create(
                MULTIKUEUE_CONFIGS.path(),
                {**_named(MULTIKUEUE_CONFIGS, write.name, notes), "spec": spec},
                MultiKueueConfig,
                field_manager=MANAGER,
            )
            return Answer(found=made)
        body = {
            "metadata": {"annotations": {DRAINING_ANNOTATION: draining or None}},
            "spec": spec,
        }
        written = await self.client.merge_patch(
            MULTIKUEUE_CONFIGS.path(name=write.name),
            body,
            MultiKueueConfig,
            resource_version=write.base.metadata.resource_version,
            field_manager=MANAGER,
        )
        return Answer(found=written)

    async def _connect(self, write: Connect) -> Answer:
        secret = f"{SECRET_PREFIX}{write.cluster}"
        try:
            # Only its existence matters: the struct has no field for the content.
            await self.client.get(SECRETS.path(namespace=self._namespace, name=secret), Object)
        except NotFound:
            return Answer(
                Outcome.GONE, "NoSecret", f"there is no Secret {self._namespace}/{secret}"
            )
        source = {"kubeConfig": {"locationType": "Secret", "location": secret}}
        body = {
            **_named(MULTIKUEUE_CLUSTERS, write.cluster, {}),
            "spec": {"clusterSource": source},
        }
        try:
            await self.client.create(
                MULTIKUEUE_CLUSTERS.path(), body, MultiKueueCluster, field_manager=MANAGER
            )
        except AlreadyExists:
            pass  # another client's object is equally good
        return Answer()

    async def _tell_check(self, write: WriteConditions) -> Answer:
        told = [
            {
                "type": one.type,
                "status": one.status,
                "reason": one.reason,
                "message": one.message,
                "lastTransitionTime": one.last_transition_time,
                "observedGeneration": one.observed_generation,
            }
            for one in write.conditions
        ]
        body = {
            "apiVersion": ADMISSION_CHECKS.group_version,
            "kind": ADMISSION_CHECKS.kind,
            "metadata": {"name": write.check},
            "status": {"conditions": told},
        }
        path = ADMISSION_CHECKS.path(name=write.check, subresource="status")
        await self.client.apply(path, body, AdmissionCheck, field_manager=MANAGER, force=True)
        return Answer()

    async def _set_state(self, write: WriteState) -> Answer:
        meta = write.base.metadata
        at = {"namespace": meta.namespace, "name": meta.name}
        mirrored: Workload | None = write.base

        async def read() -> Workload:
            nonlocal mirrored
            if mirrored is not None:
                found, mirrored = mirrored, None
                return found
            return await self.client.get(KUEUE_WORKLOADS.path(**at), Workload)

        def change(workload: Workload) -> gate.NewState | None:
            if workload.metadata.uid != meta.uid:
                return None  # another Workload of the same name
            return gate.new_state(workload, write.check, CheckVerdict(write.passes, write.message))

        async def apply(workload: Workload, said: object) -> Workload:
            assert isinstance(said, gate.NewState)
            return await self._apply_state(workload, write.check, said)

        try:
            written = await on_conflict(read, change, apply, attempts=ATTEMPTS)
        except NotFound:
            return Answer()  # the Workload is gone
        return Answer(found=written)  # None: nothing was left to write

    async def _apply_state(self, workload: Workload, check: str, said: gate.NewState) -> Workload:
        meta = workload.metadata
        found = workload.check(check)
        since = found.last_transition_time if found and found.state == said.state else None
        item = {
            "name": check,
            "state": said.state,
            "message": said.message,
            "lastTransitionTime": since or timestamp(time.time()),
        }
        body = {
            "apiVersion": KUEUE_WORKLOADS.group_version,
            "kind": KUEUE_WORKLOADS.kind,
            "metadata": {
                "name": meta.name,
                "namespace": meta.namespace,
                "uid": meta.uid,
                "resourceVersion": meta.resource_version,
            },
            "status": {"admissionChecks": [item]},
        }
        path = KUEUE_WORKLOADS.path(namespace=meta.namespace, name=meta.name, subresource="status")
        # One field manager per check: an apply for another check would remove this item.
        manager = f"{MANAGER}-{check}"[:MAX_MANAGER_CHARS]
        return await self.client.apply(path, body, Workload, field_manager=manager, force=True)


def _named(resource: Resource, name: str, annotations: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": resource.group_version,
        "kind": resource.kind,
        "metadata": {
            "name": name,
            "labels": {MANAGED_LABEL: MANAGER},
            **({"annotations": annotations} if annotations else {}),
        },
    }
