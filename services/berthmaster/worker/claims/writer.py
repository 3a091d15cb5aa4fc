"""Carries out the writes of ClusterClaims."""

from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.controller.shell_contract import Answer
from berthmaster.lib.ocm.writer import ObjectWriter
from berthmaster.worker.claims.core.instructions import KINDS, CreateClaim, Write


class ClaimWriter(ObjectWriter[Write]):
    def __init__(self, client: Client) -> None:
        super().__init__(client, KINDS)

    async def write(self, write: Write) -> Answer:
        spec = {"value": write.value}
        if isinstance(write, CreateClaim):
            return await self.create(write.key, spec=spec)
        version = write.resource_version
        return await self.patch(write.key, {"spec": spec}, resource_version=version, subresource="")
