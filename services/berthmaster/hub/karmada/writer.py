"""Performs writes on a Karmada API server. Each write names the version of its decision."""

from collections.abc import Mapping
from typing import Any, Final

from berthmaster.hub.karmada.core.instructions import PutBinding, PutCondition, PutOverride, Write
from berthmaster.hub.karmada.core.objects import ResourceBinding
from berthmaster.lib.kube.controller.shell_contract import Answer
from berthmaster.lib.kube.controller.writer import Writer
from berthmaster.lib.kube.errors import AlreadyExists
from berthmaster.lib.kube.objects import Metadata, Object, timestamp
from berthmaster.lib.kube.resources import OVERRIDE_POLICIES, RESOURCE_BINDINGS

MANAGER: Final = "berthmaster-karmada"


class KarmadaWriter(Writer[Write]):
    """Writer of one control plane."""

    async def write(self, write: Write) -> Answer:
        meta = write.binding.metadata
        match write:
            case PutBinding():
                body = {"metadata": {"annotations": write.annotations}, "spec": write.spec}
                return await self._patched(meta, body)
            case PutOverride():
                await self._override(meta, write.policy)
                return Answer()
            case PutCondition():
                status: dict[str, Any] = {"conditions": write.conditions}
                status["schedulerObservedGeneration"] = meta.generation
                if write.scheduled:
                    status["lastScheduledTime"] = timestamp(self.now())
                return await self._patched(meta, {"status": status}, "status")

    async def read(self, write: Write) -> object:
        """Return the current binding after another client's write."""
        return await self.client.get(_path(write.binding.metadata), ResourceBinding)

    def now(self) -> float:
        """Return the time. The service replaces this method."""
        raise NotImplementedError

    async def _patched(
        self, meta: Metadata, body: Mapping[str, Any], subresource: str = ""
    ) -> Answer:
        found = await self.client.merge_patch(
            _path(meta, subresource),
            body,
            ResourceBinding,
            resource_version=meta.resource_version,
            field_manager=MANAGER,
        )
        return Answer(found=found)

    async def _override(self, meta: Metadata, body: Mapping[str, Any]) -> None:
        """Create or patch the OverridePolicy. Its name belongs to the binding."""
        name = body["metadata"]["name"]
        try:
            path = OVERRIDE_POLICIES.path(namespace=meta.namespace)
            await self.client.create(path, body, Object, field_manager=MANAGER)
        except AlreadyExists:
            path = OVERRIDE_POLICIES.path(namespace=meta.namespace, name=name)
            spec = {"spec": body["spec"]}
            await self.client.merge_patch(path, spec, Object, field_manager=MANAGER)


def _path(meta: Metadata, subresource: str = "") -> str:
    return RESOURCE_BINDINGS.path(namespace=meta.namespace, name=meta.name, subresource=subresource)
