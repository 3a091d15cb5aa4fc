"""Makes and patches objects of ours, each with the resource version of what was looked at.

JSON merge patches of a status, or of a spec: they work whether a schema calls a list a map or not,
and leave no field owned by a manager whom nobody asks any more. On a conflict what the server has
is read and the core decides anew on it.
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
        """What is there instead; the core decides anew on it."""
        kind, namespace, name = write.key
        resource, struct = self._kinds[kind]
        try:
            return await self.client.get(resource.path(namespace=namespace, name=name), struct)
        except NotFound:
            return None

    async def create(
        self, key: Key, *, labels: Mapping[str, str] | None = None, **parts: object
    ) -> Answer:
        """Make the object, with a label that says whose it is. Raises KubernetesError."""
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
        """Change these fields. Raises KubernetesError."""
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
