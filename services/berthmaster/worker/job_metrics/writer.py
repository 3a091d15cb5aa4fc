"""Reads owners and writes on Jobs, for the core."""

from typing import Any, Final, assert_never

from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.controller.shell_contract import Answer, Outcome
from berthmaster.lib.kube.controller.writer import Writer
from berthmaster.lib.kube.errors import NotFound
from berthmaster.lib.kube.objects import Object, OwnerReference
from berthmaster.lib.kube.resources import Resource
from berthmaster.worker.job_metrics.core.instructions import Annotate, FindOwner, Write

FIELD_MANAGER: Final = "berthmaster-figures"


class FiguresWriter(Writer[Write]):
    """Requests of one replica to its API server."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._kinds: dict[str, dict[str, tuple[str, bool]]] = {}  # group/version -> kind -> plural

    async def write(self, write: Write) -> Answer:
        match write:
            case FindOwner():
                return await self._find(write)
            case Annotate():
                return await self._annotate(write)
            case _:
                assert_never(write)

    async def _find(self, write: FindOwner) -> Answer:
        resource = await self._resource(write.reference)
        if resource is None:
            return Answer(Outcome.GONE, "NotServed", "its kind is not served any more")
        namespace = write.namespace if resource.namespaced else ""
        path = resource.path(namespace=namespace, name=write.reference.name)
        found = await self.client.get(path, Object)
        if found.metadata.uid != write.reference.uid:
            return Answer(Outcome.GONE, "Another", "another one of its name is there by now")
        return Answer(found=found.metadata)

    async def _resource(self, reference: OwnerReference) -> Resource | None:
        """Return the resource of a kind on the API server; None if not served."""
        version = reference.api_version
        kinds = self._kinds.get(version)
        if kinds is None or reference.kind not in kinds:
            kinds = self._kinds[version] = await self.client.served_kinds(version)
        if (found := kinds.get(reference.kind)) is None:
            return None
        group, _, number = version.rpartition("/")
        plural, namespaced = found
        return Resource(group, number, plural, reference.kind, namespaced)

    async def _annotate(self, write: Annotate) -> Answer:
        metadata: dict[str, Any] = {
            "uid": write.uid,  # refused for another object of the name
            "annotations": dict(write.annotations),
            "labels": dict(write.labels),
        }
        path = write.resource.path(namespace=write.namespace, name=write.name)
        try:
            await self.client.merge_patch(
                path, {"metadata": metadata}, Object, field_manager=FIELD_MANAGER
            )
        except NotFound:
            return Answer(Outcome.GONE, "NotFound", "it is not there any more")
        return Answer()
