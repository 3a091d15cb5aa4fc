"""An API server for tests of inventories: lists, watches, and objects that a real one refuses.

It keeps what it is given, valid or not. Kinds that were never given an object are not served.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

from aiohttp import web

from berthmaster.lib.kube.resources import Resource
from tests.support.site import Site

Json = dict[str, Any]
BOOKMARK_S = 0.5


class KubeApi(Site):
    """``async with KubeApi() as api`` starts it on a free port of the loopback."""

    def __init__(self) -> None:
        super().__init__()
        self._version = 1
        self._served: dict[str, dict[str, Json]] = {}  # collection -> key -> object
        self._history: list[tuple[str, str, Json]] = []  # collection, type, object
        self._changed = asyncio.Condition()
        self.silent = False  # no watch is told anything, not even bookmarks

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/version", self._tell_version), web.get("/{path:.*}", self._get)]

    def kubeconfig(self, folder: Path) -> Path:
        path = folder / "kubeconfig"
        path.write_text(
            json.dumps(
                {
                    "clusters": [{"name": "c", "cluster": {"server": self.url}}],
                    "users": [{"name": "u", "user": {}}],
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                    "current-context": "c",
                }
            )
        )
        return path

    def serve(self, *resources: Resource) -> None:
        """From now on these kinds are served, with nothing of them."""
        for resource in resources:
            self._served.setdefault(resource.path(), {})

    async def put(self, resource: Resource, body: Json) -> None:
        """Make or change an object, whatever it looks like."""
        metadata = body["metadata"]
        name, namespace = metadata["name"], metadata.get("namespace", "")
        objects = self._served.setdefault(resource.path(), {})
        self._version += 1
        marks = {"uid": f"uid-{name}", "resourceVersion": str(self._version)}
        body = {**body, "metadata": {**marks, **metadata, "resourceVersion": str(self._version)}}
        known = f"{namespace}/{name}" in objects
        objects[f"{namespace}/{name}"] = body
        await self._tell(resource, "MODIFIED" if known else "ADDED", body)

    async def remove(self, resource: Resource, name: str, namespace: str = "") -> None:
        gone = self._served[resource.path()].pop(f"{namespace}/{name}")
        self._version += 1
        gone = {**gone, "metadata": gone["metadata"] | {"resourceVersion": str(self._version)}}
        await self._tell(resource, "DELETED", gone)

    async def _tell(self, resource: Resource, kind: str, body: Json) -> None:
        async with self._changed:
            self._history.append((resource.path(), kind, body))
            self._changed.notify_all()

    # ---- answers

    async def _tell_version(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"gitVersion": "v1.36.3"})

    async def _get(self, request: web.Request) -> web.StreamResponse:
        objects = self._served.get(request.path)
        if objects is None:
            answer = {"kind": "Status", "code": 404, "reason": "NotFound", "message": "no"}
            return web.json_response(answer, status=404)
        if "watch" in request.query:
            response = web.StreamResponse()
            await response.prepare(request)
            try:
                await self._watch(request, response)
            except ConnectionError:
                pass  # whoever watched is gone
            return response
        start = int(request.query.get("continue", "0"))
        limit = int(request.query.get("limit", "0")) or len(objects)
        items = [body for body in objects.values() if _selected(body, request)]
        rest = str(start + limit) if start + limit < len(items) else ""
        metadata = {"resourceVersion": str(self._version), "continue": rest}
        return web.json_response({"metadata": metadata, "items": items[start : start + limit]})

    async def _watch(self, request: web.Request, response: web.StreamResponse) -> None:
        since = int(request.query["resourceVersion"])
        at = 0
        while True:
            while at < len(self._history):
                path, kind, body = self._history[at]
                at += 1
                version = int(body["metadata"]["resourceVersion"])
                if path == request.path and version > since and _selected(body, request):
                    line = json.dumps({"type": kind, "object": body}).encode()
                    await response.write(line + b"\n")
            if not self.silent:
                mark = {"metadata": {"resourceVersion": str(self._version)}}
                bookmark = {"type": "BOOKMARK", "object": mark}
                text = json.dumps(bookmark, separators=(",", ":"))
                await response.write(text.encode() + b"\n")
            try:
                async with asyncio.timeout(BOOKMARK_S), self._changed:
                    while at == len(self._history):
                        await self._changed.wait()
            except TimeoutError:
                pass


def _selected(body: Json, request: web.Request) -> bool:
    fields = request.query.get("fieldSelector", "")
    if fields.startswith("metadata.name="):
        return bool(body["metadata"]["name"] == fields.partition("=")[2])
    wanted = request.query.get("labelSelector", "")
    return not wanted or wanted in body["metadata"].get("labels", {})
