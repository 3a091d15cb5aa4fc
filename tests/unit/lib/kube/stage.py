"""An API server for tests, as far as a client can tell: lists, watches, patches, and misfortunes.

It keeps widgets. Every change has a resource version and stays in the history until it is
compacted, so lists, pages and watches agree with each other as they do on a real one. A test may
put an answer of its own before the next request, or say something strange to the open watches.
"""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.config import Access
from berthmaster.lib.kube.objects import Object, Struct
from berthmaster.lib.kube.resources import Resource
from tests.support.patience import until
from tests.support.site import Site

WIDGETS = Resource("toys.example", "v1", "widgets", "Widget")


class Spec(Struct, frozen=True):
    size: int = 0
    parts: tuple[str, ...] = ()


class Widget(Object, frozen=True):
    spec: Spec = Spec()


class Lines:
    """A log that remembers what it was told: (level, event, fields)."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, object]]] = []

    def info(self, event: str, /, **fields: object) -> None:
        self.lines.append(("info", event, fields))

    def warning(self, event: str, /, **fields: object) -> None:
        self.lines.append(("warning", event, fields))

    def error(self, event: str, /, *, error: BaseException | None = None, **fields: object) -> None:
        self.lines.append(("error", event, {**fields, "error": error}))

    def events(self) -> list[str]:
        return [event for _, event, _ in self.lines]


Json = dict[str, Any]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def status(code: int, reason: str, message: str = "no") -> Json:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


def refuse(
    code: int, reason: str, message: str = "no", headers: dict[str, str] | None = None
) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response(status(code, reason, message), status=code, headers=headers)

    return answer


class Refusal(Exception):
    def __init__(self, code: int, reason: str, message: str = "no") -> None:
        super().__init__(reason)
        self.answer = status(code, reason, message)


class _Watch:
    def __init__(self, response: web.StreamResponse, request: web.Request, at: int) -> None:
        self.response = response
        self.request = request
        self.at = at  # index into the history
        self.lock = asyncio.Lock()


class Stage(Site):
    """The server. ``async with Stage() as stage`` starts it on a free port of the loopback."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(tls)
        self._some = asyncio.Condition()
        self._version = 100
        self._compacted = 100
        self._history: list[tuple[int, str, Json]] = []
        self._watches: list[_Watch] = []
        self.objects: dict[tuple[str, str], Json] = {}
        self.requests: list[tuple[str, str, dict[str, str]]] = []  # method, path, query
        self.bodies: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.before: list[Handler] = []  # each answers one request instead of us
        self.served = True
        self.allowed = True

    # ------------------------------------------------------------ life

    def routes(self) -> list[web.RouteDef]:
        return [web.route("*", "/{path:.*}", self._handle)]

    async def stop(self) -> None:
        self.drop()
        await super().stop()

    @property
    def version(self) -> str:
        return str(self._version)

    @property
    def watching(self) -> int:
        return len(self._watches)

    def seen(self, method: str, *, watch: bool | None = None) -> list[dict[str, str]]:
        return [
            query
            for verb, _, query in self.requests
            if verb == method and (watch is None or ("watch" in query) == watch)
        ]

    # ------------------------------------------------------------ the world changes

    async def put(self, name: str, namespace: str = "toys", **fields: Any) -> Json:
        old = self.objects.get((namespace, name))
        found = {"apiVersion": "toys.example/v1", "kind": "Widget", **(old or {}), **fields}
        self._version += 1
        found["metadata"] = {
            "uid": f"uid-{name}-{self._version}",
            **((old or {}).get("metadata") or {}),
            **fields.get("metadata", {}),
            "name": name,
            "namespace": namespace,
            "resourceVersion": str(self._version),
        }
        self.objects[namespace, name] = found
        await self._tell("MODIFIED" if old else "ADDED", found)
        return found

    async def remove(self, name: str, namespace: str = "toys") -> None:
        gone = self.objects.pop((namespace, name))
        self._version += 1
        gone = {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(self._version)}}
        await self._tell("DELETED", gone)

    async def _tell(self, type: str, found: Json) -> None:
        self._history.append((self._version, type, found))
        await self._flush()

    async def _flush(self) -> None:
        for watch in list(self._watches):
            async with watch.lock:
                batch = self._history[watch.at :]
                watch.at = len(self._history)
                lines = [
                    json.dumps({"type": what, "object": found}, separators=(",", ":"))
                    for _, what, found in batch
                ]
                if lines:
                    await self._write(watch, ("\n".join(lines) + "\n").encode())

    def compact(self) -> None:
        """Forget the history: watches and pages that need it end with 410."""
        self._compacted = self._version

    async def say(self, raw: bytes) -> None:
        """Write this to every open watch as it is."""
        for watch in list(self._watches):
            async with watch.lock:
                await self._write(watch, raw)

    async def bookmark(self) -> None:
        """Tell the watches how far we are, as the API does: the object is half empty."""
        self._version += 1
        found = {
            "kind": "Widget",
            "apiVersion": "toys.example/v1",
            "metadata": {"resourceVersion": str(self._version), "creationTimestamp": None},
            "spec": {"parts": None},
        }
        line = json.dumps({"type": "BOOKMARK", "object": found}, separators=(",", ":"))
        await self.say(line.encode() + b"\n")

    def drop(self) -> None:
        for watch in self._watches:
            if watch.request.transport is not None:
                watch.request.transport.abort()
        self._watches.clear()

    async def end(self) -> None:
        for watch in list(self._watches):
            await watch.response.write_eof()
        self._watches.clear()

    async def client(self, **options: Any) -> Client:
        access = options.pop("access", None) or Access(server=self.url, context="stage")
        options.setdefault("log", Lines())
        return await Client.open(access, user_agent="berth-tests", **options)

    async def until_watched(self, watches: int = 1) -> None:
        """Wait until so many watches are open."""
        await until(lambda: self.watching >= watches, f"{watches} watches")

    # ------------------------------------------------------------ requests

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        self.requests.append((request.method, request.path, query))
        self.headers.append(dict(request.headers))
        body = await request.read()
        self.bodies.append(json.loads(body) if body else None)
        if self.before:
            return await self.before.pop(0)(request)
        try:
            return await self._answer(request, query, self.bodies[-1])
        except Refusal as refusal:
            return web.json_response(refusal.answer, status=refusal.answer["code"])

    async def _answer(
        self, request: web.Request, query: dict[str, str], body: Any
    ) -> web.StreamResponse:
        parts = request.path.strip("/").split("/")
        if request.path == "/version":
            return web.json_response({"gitVersion": "v1.36.3", "major": "1"})
        if not self.allowed:
            raise Refusal(403, "Forbidden", 'User "us" cannot list resource "widgets"')
        if parts[:3] != ["apis", "toys.example", "v1"] or not self.served:
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        if len(parts) == 3:
            names = [{"name": "widgets"}, {"name": "widgets/status"}]
            return web.json_response({"kind": "APIResourceList", "resources": names})
        namespace, rest = (parts[4], parts[5:]) if parts[3] == "namespaces" else ("", parts[3:])
        match request.method:
            case "GET" if len(rest) > 1:
                return web.json_response(self._found(namespace, rest[1]))
            case "GET" if "watch" in query:
                return await self._watch(request, int(query["resourceVersion"] or 0))
            case "GET":
                return web.json_response(self.list_now(namespace, query))
            case "POST":
                name = body["metadata"]["name"]
                if (namespace, name) in self.objects:
                    raise Refusal(409, "AlreadyExists")
                made = await self.put(name, namespace, **body)
                return web.json_response(made, status=201)
            case "PATCH":
                return web.json_response(await self._patch(namespace, rest[1], body))
            case _:
                await self._delete(namespace, rest[1], body or {})
                return web.json_response({"kind": "Status", "status": "Success"})

    def _found(self, namespace: str, name: str) -> Json:
        try:
            return self.objects[namespace, name]
        except KeyError:
            raise Refusal(404, "NotFound", f'widgets "{name}" not found') from None

    async def _patch(self, namespace: str, name: str, body: Any) -> Json:
        found = self._found(namespace, name)
        fields = body if isinstance(body, dict) else {}
        wanted = fields.get("metadata", {}).get("resourceVersion")
        if wanted and wanted != found["metadata"]["resourceVersion"]:
            raise Refusal(409, "Conflict", "the object has been modified")
        return await self.put(name, namespace, **fields)

    async def _delete(self, namespace: str, name: str, options: Json) -> None:
        meta = self._found(namespace, name)["metadata"]
        for field, value in options.get("preconditions", {}).items():
            if meta[field] != value:
                raise Refusal(409, "Conflict", f"precondition {field} failed")
        await self.remove(name, namespace)

    def list_now(self, namespace: str, query: dict[str, str]) -> Json:
        start, at = 0, self._version
        if token := query.get("continue"):
            at, start = (int(part) for part in token.split("."))
            if at < self._compacted:
                raise Refusal(410, "Expired", "the continue token is too old")
        everything = sorted(self.objects.items())
        found = [one for (where, _), one in everything if namespace in ("", where)]
        limit = int(query.get("limit", 0)) or len(found)
        page = found[start : start + limit]
        meta: Json = {"resourceVersion": str(at)}
        if start + limit < len(found):
            meta["continue"] = f"{at}.{start + limit}"
            meta["remainingItemCount"] = len(found) - start - limit
        return {"kind": "WidgetList", "metadata": meta, "items": page}

    async def _watch(self, request: web.Request, since: int) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_type = "application/json"
        await response.prepare(request)
        if since < self._compacted:
            line = {"type": "ERROR", "object": status(410, "Expired", "too old resource version")}
            await response.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
            return response
        at = next(
            (at for at, (version, _, _) in enumerate(self._history) if version > since),
            len(self._history),
        )
        watch = _Watch(response, request, at)
        self._watches.append(watch)
        await self._flush()
        while watch in self._watches:
            await asyncio.sleep(0.005)
        return response

    async def _write(self, watch: _Watch, raw: bytes) -> None:
        try:
            await watch.response.write(raw)
        except (ConnectionError, RuntimeError):
            if watch in self._watches:
                self._watches.remove(watch)
