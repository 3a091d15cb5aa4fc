"""Carries out the cores' writes, each with the resource version of what was looked at.

JSON merge patches of a status, or of a spec: they work whether a schema calls a list a map or not,
and leave no field owned by a manager whom nobody asks any more. On a conflict what the server has
is read and the core decides anew on it.
"""

from collections.abc import Hashable
from typing import Any, Final, assert_never

from berthmaster.hub.ocm.core.instructions import (
    CLAIM,
    PROFILE,
    RESOURCES,
    SCORE,
    Create,
    CreateClaim,
    CreateProfile,
    CreateScore,
    DeleteProfile,
    Write,
    WriteClaim,
    WriteProperties,
    WriteScore,
)
from berthmaster.hub.ocm.core.objects import (
    CLUSTER_MANAGER,
    FIELD_MANAGER,
    FRESH,
    MANAGED_BY,
    OURS,
    ClusterClaim,
    ClusterProfile,
    PlacementScore,
)
from berthmaster.lib.kube.controller.shell_contract import Answer
from berthmaster.lib.kube.controller.writer import Writer
from berthmaster.lib.kube.errors import NotFound
from berthmaster.lib.kube.objects import Object

_STRUCTS: Final[dict[str, type[Object]]] = {
    SCORE: PlacementScore,
    PROFILE: ClusterProfile,
    CLAIM: ClusterClaim,
}


class OcmWriter(Writer[Write]):
    def right(self, write: Write) -> Hashable:
        return type(write).__name__, write.key[1]

    async def read(self, write: Write) -> Object | None:
        """What is there instead; the core decides anew on it."""
        kind, namespace, name = write.key
        path = RESOURCES[kind].path(namespace=namespace, name=name)
        try:
            return await self.client.get(path, _STRUCTS[kind])
        except NotFound:
            return None

    async def write(self, write: Write) -> Answer:
        if isinstance(write, DeleteProfile):
            await self._delete(write)
            return Answer()
        return Answer(found=await self._stored(write))

    async def _delete(self, write: DeleteProfile) -> None:
        _, namespace, name = write.key
        await self.client.delete(
            RESOURCES[PROFILE].path(namespace=namespace, name=name),
            uid=write.uid,
            resource_version=write.resource_version,
        )

    async def _stored(self, write: Create | WriteScore | WriteProperties | WriteClaim) -> Object:
        resource, kind = RESOURCES[write.key[0]], _STRUCTS[write.key[0]]
        _, namespace, name = write.key
        if isinstance(write, Create):
            body = {
                "apiVersion": resource.group_version,
                "kind": resource.kind,
                **_new(write, namespace, name),
            }
            path = resource.path(namespace=namespace)
            return await self.client.create(path, body, kind, field_manager=FIELD_MANAGER)
        part = "" if isinstance(write, WriteClaim) else "status"
        return await self.client.merge_patch(
            resource.path(namespace=namespace, name=name, subresource=part),
            changed(write),
            kind,
            resource_version=write.resource_version,
            field_manager=FIELD_MANAGER,
        )


def _new(write: Create, namespace: str, name: str) -> dict[str, Any]:
    labels = {MANAGED_BY: OURS}
    metadata: dict[str, Any] = {"name": name, "labels": labels}
    if namespace:
        metadata["namespace"] = namespace
    match write:
        case CreateScore():
            return {"metadata": metadata}
        case CreateProfile():
            labels[CLUSTER_MANAGER] = write.manager
            spec = {"clusterManager": {"name": write.manager}, "displayName": name}
            return {"metadata": metadata, "spec": spec}
        case CreateClaim():
            return {"metadata": metadata, "spec": {"value": write.value}}
        case _:
            assert_never(write)


def changed(write: WriteScore | WriteProperties | WriteClaim) -> dict[str, Any]:
    """The fields that a patch changes."""
    match write:
        case WriteScore():
            fresh = {
                "type": FRESH,
                "status": write.status,
                "reason": write.reason,
                "message": write.message,
                "lastTransitionTime": write.since,
            }
            scores = [{"name": name, "value": value} for name, value in write.scores.items()]
            status = {
                "scores": scores,
                "validUntil": write.valid_until,
                "conditions": [*write.others, fresh],
            }
            return {"status": status}
        case WriteProperties():
            return {"status": {"properties": write.properties}}
        case WriteClaim():
            return {"spec": {"value": write.value}}
        case _:
            assert_never(write)
