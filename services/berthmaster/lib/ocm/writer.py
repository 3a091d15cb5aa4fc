"""Creates and patches Berthmaster's objects, with the resource version that the core saw.

Writes are JSON merge patches of a status or a spec. Merge patches work whether a schema declares a
list as a map or not, and leave no field owned by a field manager that no longer exists. After a
conflict the writer reads the server's object, and the core decides again.
"""

from collections.abc import Hashable, Mapping
from typing import Any

from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.controller.shell_contract import Answer
from berthmaster.lib.kube.controller.writer import Writer
from berthmaster.lib.kube.errors import NotFound
from berthmaster.lib.kube.objects import Object
from berthmaster.lib.ocm.core.kept_objects import Key, Kind, W
from berthmaster.lib.ocm.core.ownership import FIELD_MANAGER, MANAGED_BY, OURS


class ObjectWriter(Writer[W]):
    def __init__(self, client: Client, kinds: Mapping[str, Kind]) -> None:
        super().__init__(client)
        self._kinds = kinds

    def right(self, write: W) -> Hashable:
        return type(write).__name__, write.key[1]

    async def read(self, write: W) -> Object | None:
        """Return the server's object after a conflict, for a new decision of the core."""
        kind, namespace, name = write.key
        resource, struct = self._kinds[kind]
        try:
            return await self.client.get(resource.path(namespace=namespace, name=name), struct)
        except NotFound:
            return None

    async def create(
        self, key: Key, *, labels: Mapping[str, str] | None = None, **parts: object
    ) -> Answer:
        """Create the object, with the label of its owner. Raise KubernetesError."""
        kind, namespace, name = key
        resource, struct = self._kinds[kind]
        metadata: dict[str, Any] = {"name": name, "labels": {MANAGED_BY: OURS, **(labels or {})}}
        if namespace:
            metadata["namespace"] = namespace
        about = {"apiVersion": resource.group_version, "kind": resource.kind, "metadata": metadata}
        path = resource.path(namespace=namespace)
        return Answer(
            found=await self.client.create(path, about | parts, struct, field_manager=FIELD_MANAGER)
        )

    async def patch(
        self, key: Key, changed: Mapping[str, object], *, resource_version: str, subresource: str
    ) -> Answer:
        """Change these fields. Raise KubernetesError."""
        kind, namespace, name = key
        resource, struct = self._kinds[kind]
        return Answer(
            found=await self.client.merge_patch(
                resource.path(namespace=namespace, name=name, subresource=subresource),
                changed,
                struct,
                resource_version=resource_version,
                field_manager=FIELD_MANAGER,
            )
        )
