"""An API server with Jobs and pods and no controllers: tests are the controllers.

It keeps what it is told, with resource versions, and answers lists, watches, creates, merge patches
and deletes as a real one does, preconditions and foreground deletion included. A test may have a
call refused, answered late, or carried out and never answered.
"""

import asyncio
import copy
import json
from collections.abc import Callable
from typing import Any

from aiohttp import web

from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.config import Access
from tests.support.site import Site
from tests.unit.lib.kube.stage import Lines, status

FOREGROUND = "foregroundDeletion"
Json = dict[str, Any]
Misfortune = Callable[[str, str], str | tuple[int, str, str] | None]
# Of (method, plural): "lost" = done and never answered, "hung" = not done and never answered, or
# (status, reason, message) of a refusal.


class LittleApi(Site):
    """``async with LittleApi() as api`` starts it."""

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[tuple[str, str, str], Json] = {}  # plural, namespace, name
        self.calls: list[tuple[str, str]] = []  # method, plural; no lists, no watches
        self.misfortune: Misfortune = lambda method, plural: None
        self.mutate: Callable[[Json], Json] = lambda found: found  # of what is made, as webhooks do
        self.dry_runs = 0
        self.job_sets = True
        self.logs: dict[str, bytes] = {}  # by pod
        self.closed: set[str] = set()  # namespaces in which nobody has any right
        self.leaving: set[str] = set()  # namespaces that are being deleted
        self._version = 10
        self._history: list[tuple[int, str, str, Json]] = []  # version, type, plural, object
        self._changed = asyncio.Condition()

    def routes(self) -> list[web.RouteDef]:
        return [web.route("*", "/{path:.*}", self._handle)]

    async def client(self, log: Lines, timeout_s: float = 1.0) -> Client:
        access = Access(server=self.url)
        return await Client.open(access, user_agent="tests", log=log, timeout_s=timeout_s)

    # What tests do to it

    async def put(self, plural: str, found: Json) -> Json:
        """Make or change an object, as a controller does."""
        metadata = found["metadata"]
        key = (plural, metadata["namespace"], metadata["name"])
        kind = "MODIFIED" if key in self.objects else "ADDED"
        self._version += 1
        metadata.setdefault("uid", f"uid-{self._version}")
        metadata["resourceVersion"] = str(self._version)
        self.objects[key] = found
        await self._tell(kind, plural, found)
        return found

    async def change(self, plural: str, name: str, **parts: Json) -> Json:
        """Merge into parts of an object: ``status=…``, ``spec=…``, ``metadata=…``."""
        [key] = [key for key in self.objects if key[0] == plural and key[2] == name]
        found = copy.deepcopy(self.objects[key])
        for part, fields in parts.items():
            found[part] = {**found.get(part, {}), **fields}
        return await self.put(plural, found)

    async def remove(self, plural: str, name: str) -> None:
        """Somebody deletes it in the background: it is gone, unless a finalizer keeps it. Of one
        that is deleted in the foreground the last pod is gone."""
        [key] = [key for key in self.objects if key[0] == plural and key[2] == name]
        kept = self.objects[key]["metadata"].get("finalizers", [])
        if FOREGROUND in kept:
            kept = [each for each in kept if each != FOREGROUND]
            await self.change(plural, name, metadata={"finalizers": kept})
        await self._delete(plural, name, foreground=False)

    async def vanish(self, plural: str, name: str) -> None:
        """It is gone, whatever finalizers it had: a person has removed these."""
        await self._gone(plural, name)

    async def _delete(self, plural: str, name: str, *, foreground: bool) -> None:
        [key] = [key for key in self.objects if key[0] == plural and key[2] == name]
        kept = list(self.objects[key]["metadata"].get("finalizers", []))
        if foreground and FOREGROUND not in kept:
            kept.append(FOREGROUND)
        if not kept:
            await self._gone(plural, name)
            return
        since = self.objects[key]["metadata"].get("deletionTimestamp", "2026-11-21T12:00:00Z")
        await self.change(plural, name, metadata={"deletionTimestamp": since, "finalizers": kept})

    async def _gone(self, plural: str, name: str) -> None:
        [key] = [key for key in self.objects if key[0] == plural and key[2] == name]
        found = self.objects.pop(key)
        self._version += 1
        found["metadata"]["resourceVersion"] = str(self._version)
        await self._tell("DELETED", plural, found)

    def all(self, plural: str) -> list[Json]:
        return [found for key, found in self.objects.items() if key[0] == plural]

    async def _tell(self, kind: str, plural: str, found: Json) -> None:
        async with self._changed:
            self._history.append((self._version, kind, plural, copy.deepcopy(found)))
            self._changed.notify_all()

    # What it answers

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.strip("/").split("/")
        if "namespaces" not in parts:  # which kinds there are
            names = [{"name": "jobsets"}] if self.job_sets else []
            return web.json_response({"resources": names})
        at = parts.index("namespaces")
        if len(parts) == at + 2:  # one of them
            left = (
                {"deletionTimestamp": "2026-11-21T12:00:00Z"} if parts[-1] in self.leaving else {}
            )
            return web.json_response({"metadata": {"name": parts[-1], "uid": "n", **left}})
        namespace, plural, *rest = parts[at + 1 :]
        name = rest[0] if rest else ""
        if namespace in self.closed:
            why = f'{plural} is forbidden: User "us" cannot list resource in "{namespace}"'
            return web.json_response(status(403, "Forbidden", why), status=403)
        if request.method == "GET" and not name:
            if "watch" in request.query:
                return await self._watch(request, plural, namespace)
            chosen = self._list(plural, namespace, request.query.get("labelSelector", ""))
            return web.json_response(chosen)
        if rest[1:] == ["log"]:
            return web.Response(body=self.logs[name])
        self.calls.append((request.method, plural))
        fate = self.misfortune(request.method, plural)
        if isinstance(fate, tuple):
            return web.json_response(status(*fate), status=fate[0])
        if fate == "hung":
            await asyncio.sleep(3600)
        body = json.loads(await request.text() or "{}")
        if request.method == "POST":
            body = self.mutate(body)
        if "dryRun" in request.query:
            self.dry_runs += 1
            return web.json_response(body, status=201)
        code, answer = await self._do(request.method, plural, namespace, name, body)
        if fate == "lost":
            await asyncio.sleep(3600)
        return web.json_response(answer, status=code)

    async def _do(
        self, method: str, plural: str, namespace: str, name: str, body: Json
    ) -> tuple[int, Json]:
        name = name or body["metadata"]["name"]
        found = self.objects.get((plural, namespace, name))
        if method == "POST":
            if found is not None:
                return 409, status(409, "AlreadyExists", f"{plural} {name!r} already exists")
            body["metadata"]["namespace"] = namespace
            return 201, await self.put(plural, body)
        if found is None:
            return 404, status(404, "NotFound")
        if method == "GET":
            return 200, found
        if method == "DELETE":
            if (
                body.get("preconditions", {}).get("uid", found["metadata"]["uid"])
                != (found["metadata"]["uid"])
            ):
                return 409, status(409, "Conflict")
            await self._delete(plural, name, foreground=body["propagationPolicy"] == "Foreground")
            return 200, {}
        version = body.get("metadata", {}).get("resourceVersion", "")
        if version and version != found["metadata"]["resourceVersion"]:
            return 409, status(409, "Conflict")
        found = await self.put(plural, _merged(found, body))
        if found["metadata"].get("deletionTimestamp") and not found["metadata"].get("finalizers"):
            await self._gone(plural, name)
        return 200, found

    def _list(self, plural: str, namespace: str, selector: str) -> Json:
        items = [
            found
            for key, found in self.objects.items()
            if key[:2] == (plural, namespace) and _is_chosen(found, selector)
        ]
        return {"metadata": {"resourceVersion": str(self._version)}, "items": items}

    async def _watch(self, request: web.Request, plural: str, namespace: str) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        version = int(request.query["resourceVersion"])
        while True:
            news = [each for each in self._history if each[0] > version]
            for at, kind, of, found in news:
                version = max(version, at)
                if of == plural and found["metadata"]["namespace"] == namespace:
                    line = json.dumps({"type": kind, "object": found})
                    await response.write(line.encode() + b"\n")
            async with self._changed:
                await self._changed.wait_for(lambda seen=version: self._told > seen)  # type: ignore[misc]

    @property
    def _told(self) -> int:
        return self._history[-1][0] if self._history else 0


def _is_chosen(found: Json, selector: str) -> bool:
    """By its labels: ``key=value``, ``key``, ``!key``."""
    has = found["metadata"].get("labels", {})
    for each in filter(None, selector.split(",")):
        name, equals, value = each.partition("=")
        if equals and has.get(name) != value:
            return False
        if not equals and (name.lstrip("!") in has) == name.startswith("!"):
            return False
    return True


def _merged(old: Json, patch: Json) -> Json:
    made = copy.deepcopy(old)
    for key, value in patch.items():
        if value is None:
            made.pop(key, None)
        elif isinstance(value, dict):
            made[key] = _merged(made.get(key) or {}, value)
        else:
            made[key] = value
    return made
