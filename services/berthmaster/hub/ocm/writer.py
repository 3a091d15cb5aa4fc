"""Performs the writes of scores and profiles."""

from typing import Any, assert_never

from berthmaster.hub.ocm.core.instructions import (
    KINDS,
    PROFILE,
    CreateProfile,
    CreateScore,
    DeleteProfile,
    Write,
    WriteProperties,
    WriteScore,
)
from berthmaster.hub.ocm.core.objects import FRESH
from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.controller.shell_contract import Answer
from berthmaster.lib.ocm.core.ownership import CLUSTER_MANAGER
from berthmaster.lib.ocm.writer import ObjectWriter


class OcmWriter(ObjectWriter[Write]):
    def __init__(self, client: Client) -> None:
        super().__init__(client, KINDS)

    async def write(self, write: Write) -> Answer:
        match write:
            case DeleteProfile():
                _, namespace, name = write.key
                await self.client.delete(
                    KINDS[PROFILE].resource.path(namespace=namespace, name=name),
                    uid=write.uid,
                    resource_version=write.resource_version,
                )
                return Answer()
            case CreateScore():
                return await self.create(write.key)
            case CreateProfile():
                spec = {
                    "clusterManager": {"name": write.manager},
                    "displayName": write.key[2],
                }
                return await self.create(
                    write.key, labels={CLUSTER_MANAGER: write.manager}, spec=spec
                )
            case _:
                return await self.patch(
                    write.key,
                    changed(write),
                    resource_version=write.resource_version,
                    subresource="status",
                )


def changed(write: WriteScore | WriteProperties) -> dict[str, Any]:
    """Return the fields that a patch changes."""
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
            version = {"version": {"kubernetes": write.version}} if write.version else {}
            told = {"properties": write.properties, "conditions": write.conditions}
            return {"status": told | version}
        case _:
            assert_never(write)
