"""One API server as the stand-in sees it: a cache that follows it, and the verbs.

What a write returned enters the cache at once, so that the next decision knows it; an event that is
older than what stands there is ignored (resource versions of one kind may be compared since
Kubernetes 1.35). Whoever wants to know of changes registers once. `follow` raises when the
connection breaks: for its own cluster the manager follows again, for a worker that is the news that
it is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import msgspec

from berthmaster.kubernetes.client import Client
from berthmaster.kubernetes.errors import Gone
from berthmaster.kubernetes.objects import Object
from berthmaster.kubernetes.resources import Resource
from tests.controlplane.kueue.objects import Key, Obj, key_of, version_of

WATCH_S = 240.0


class Whole(Object, frozen=True):
    """An object with all that the stand-in must not lose; what is inside stays as it came."""

    api_version: str = ""
    kind: str = ""
    spec: dict[str, Any] | None = None
    status: dict[str, Any] | None = None
    data: dict[str, str] | None = None
    value: int | None = None


# The resource, its key, what it was, what it is now.
OnChange = Callable[[Resource, Key, Obj | None, Obj | None], None]


class Cluster:
    """A cache of some resources of one API server, and writing to it."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._objects: dict[Resource, dict[Key, Obj]] = {}
        self._gone: dict[tuple[Resource, Key], int] = {}
        self._listeners: list[OnChange] = []

    def listen(self, listener: OnChange) -> None:
        self._listeners.append(listener)

    def all(self, resource: Resource) -> list[Obj]:
        """Everything of a kind. Nobody may change what is handed out: copy first."""
        return list(self._objects.get(resource, {}).values())

    def get(self, resource: Resource, key: Key) -> Obj | None:
        return self._objects.get(resource, {}).get(key)

    async def read(self, resource: Resource, key: Key) -> Obj:
        """Past the cache. Raises KubernetesError."""
        path = resource.path(namespace=key[0], name=key[1])
        return await self._client.get(path, dict)

    async def prove(self, every_s: float, limit_s: float) -> None:
        """Ask now and then whether anybody is there: a server that stands still keeps its
        connections, and a silent watch looks like a quiet one. Raises KubernetesError."""
        while True:
            await asyncio.sleep(every_s)
            await self._client.get("/version", dict, timeout_s=limit_s)

    # ------------------------------------------------------------ writing

    async def create(self, resource: Resource, obj: Obj) -> Obj:
        path = resource.path(namespace=obj["metadata"].get("namespace", ""))
        return self._put(resource, await self._client.create(path, obj, dict))

    async def merge_patch(
        self, resource: Resource, key: Key, body: Obj, *, subresource: str = ""
    ) -> Obj:
        path = resource.path(namespace=key[0], name=key[1], subresource=subresource)
        answer = await self._client.merge_patch(path, body, dict, field_manager="kueue")
        return self._put(resource, answer)

    async def apply(
        self, resource: Resource, key: Key, body: Obj, *, manager: str, subresource: str = ""
    ) -> Obj:
        path = resource.path(namespace=key[0], name=key[1], subresource=subresource)
        answer = await self._client.apply(path, body, dict, field_manager=manager, force=True)
        return self._put(resource, answer)

    async def delete(self, resource: Resource, key: Key) -> None:
        await self._client.delete(resource.path(namespace=key[0], name=key[1]))

    # ------------------------------------------------------------ following

    async def follow(
        self,
        resource: Resource,
        *,
        namespace: str = "",
        label_selector: str = "",
        listed: Callable[[], None],
    ) -> None:
        """List, then watch for ever. Raises KubernetesError when the connection breaks."""
        while True:
            seen: dict[Key, Obj] = {}
            version = ""
            pages = self._client.list_pages(
                resource, Whole, namespace=namespace, label_selector=label_selector
            )
            async with contextlib.aclosing(pages) as found:
                async for page in found:
                    if page.first:
                        seen.clear()
                    for item in page.items:
                        obj = _plain(item)
                        seen[key_of(obj)] = obj
                    version = page.resource_version
            self._relist(resource, seen, int(version))
            listed()
            try:
                while True:
                    version = await self._watch(resource, namespace, label_selector, version)
            except Gone:
                continue

    async def _watch(
        self, resource: Resource, namespace: str, label_selector: str, version: str
    ) -> str:
        events = self._client.watch(
            resource,
            Whole,
            namespace=namespace,
            label_selector=label_selector,
            resource_version=version,
            timeout_s=WATCH_S,
        )
        async with contextlib.aclosing(events) as changes:
            async for event in changes:
                version = event.resource_version
                if event.type == "DELETED":
                    obj = _plain(event.object)
                    self._remove(resource, key_of(obj), int(version), obj)
                elif event.type != "BOOKMARK":
                    self._put(resource, _plain(event.object))
        return version

    def _relist(self, resource: Resource, seen: dict[Key, Obj], version: int) -> None:
        for key in list(self._objects.get(resource, {})):
            if key not in seen and version_of(self._objects[resource][key]) <= version:
                self._remove(resource, key, version, None)
        for obj in seen.values():
            self._put(resource, obj)

    def _put(self, resource: Resource, obj: Obj) -> Obj:
        obj["metadata"].pop("managedFields", None)
        key, version = key_of(obj), version_of(obj)
        held = self._objects.setdefault(resource, {})
        old = held.get(key)
        if old is not None and version_of(old) >= version:
            return old if version_of(old) == version else obj
        if self._gone.get((resource, key), -1) >= version:
            return obj
        held[key] = obj
        self._tell(resource, key, old, obj)
        return obj

    def _remove(self, resource: Resource, key: Key, version: int, last: Obj | None) -> None:
        old = self._objects.get(resource, {}).get(key)
        if old is not None and version_of(old) > version:
            return  # made anew under the same name meanwhile
        self._gone[resource, key] = version
        if old is not None:
            del self._objects[resource][key]
            self._tell(resource, key, last or old, None)

    def _tell(self, resource: Resource, key: Key, old: Obj | None, new: Obj | None) -> None:
        for listener in self._listeners:
            listener(resource, key, old, new)


def _plain(item: Whole) -> Obj:
    plain: Obj = msgspec.to_builtins(item)
    plain.setdefault("metadata", {})
    return plain


class Quiet:
    """The client wants a log; the stand-in writes its own."""

    def info(self, event: str, /, **fields: object) -> None:
        """Nothing to say."""

    def warning(self, event: str, /, **fields: object) -> None:
        """Nothing to say."""

    def error(self, event: str, /, *, error: BaseException | None = None, **fields: object) -> None:
        """Nothing to say."""
