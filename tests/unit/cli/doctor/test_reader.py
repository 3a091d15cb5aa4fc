"""What the doctor reads of an API server of which a part fails, and of one that is away."""

import asyncio
import json
from pathlib import Path
from typing import Any

from aiohttp import web

from berthmaster.cli.doctor.facts import HeldObject, Survey, WorkerFacts
from berthmaster.cli.doctor.reader import ClusterAccess, survey
from berthmaster.lib.kube import labels
from tests.support.site import Site
from tests.unit.lib.kube.stage import status

NOW_S = 1_700_000_000.0
HOOK = "conversion webhook for kueue.x-k8s.io failed: connect: connection refused"


class Server(Site):
    """Every kind is served and empty, but those that a test fills or lets fail."""

    def __init__(self, failing: dict[str, int] | None = None) -> None:
        super().__init__()
        self.failing = failing or {}  # plural -> the status of its lists
        self.items: dict[str, list[dict[str, Any]]] = {}
        self.after: int | None = None  # so many answers, then none at all
        self.asked = 0

    def routes(self) -> list[web.RouteDef]:
        return [web.route("*", "/{path:.*}", self._answer)]

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked += 1
        if self.after is not None and self.asked > self.after:
            assert request.transport is not None
            request.transport.abort()
        parts = request.path.strip("/").split("/")
        if parts == ["version"]:
            return web.json_response({"gitVersion": "v1.36.3"})
        if request.path == "/api/v1/namespaces/kube-system":
            return web.json_response({"metadata": {"name": "kube-system", "uid": "5c1e"}})
        if request.method == "POST":
            return web.json_response({"status": {"allowed": True}}, status=201)
        if len(parts) == 3 and parts[0] == "apis":
            return web.json_response({"resources": []})
        plural = parts[-1]
        if (code := self.failing.get(plural)) is not None:
            return web.json_response(status(code, "InternalError", HOOK), status=code)
        named = len(parts) > 4 and parts[-3] == "namespaces"
        if named and plural not in ("leases", "pods"):
            return web.json_response(status(404, "NotFound"), status=404)
        found = {"metadata": {"resourceVersion": "1"}, "items": self.items.get(plural, [])}
        return web.json_response(found)


def read(server: Server, folder: Path) -> WorkerFacts:
    async def story() -> Survey:
        async with server:
            path = folder / "config"
            context = {"name": "c", "context": {"cluster": "c", "user": "c"}}
            told = {
                "clusters": [{"name": "c", "cluster": {"server": server.url}}],
                "users": [{"name": "c", "user": {}}],
                "contexts": [context],
            }
            path.write_text(json.dumps(told))
            at = ClusterAccess(name="berlin", kubeconfig=path, context="c")
            return await survey(None, [at], mode="observe", namespace="sys", now_s=NOW_S)

    [found] = asyncio.run(story()).workers
    return found


def test_kind_whose_webhook_is_dead_leaves_the_rest_readable(tmp_path: Path) -> None:
    found = read(Server({"clusterqueues": 500, "resourceslices": 503}), tmp_path)
    assert found.unreachable == ""
    assert (found.version, found.uid) == ("v1.36.3", "5c1e")
    failing = {one.kind: one.why for one in found.failing}
    assert list(failing) == ["resourceslices.resource.k8s.io", "clusterqueues.kueue.x-k8s.io"]
    assert HOOK in failing["clusterqueues.kueue.x-k8s.io"]


def test_server_that_stops_answering_is_unreachable_and_no_kind_of_it(tmp_path: Path) -> None:
    server = Server()
    server.after = 6
    found = read(server, tmp_path)
    assert found.unreachable
    assert found.failing == ()


def test_jobs_that_only_our_finalizer_keeps_are_found_after_a_while(tmp_path: Path) -> None:
    def job(name: str, deleted: str | None, *finalizers: str) -> dict[str, Any]:
        marks = {labels.EXECUTOR: "executor-berlin"}
        meta = {"name": name, "namespace": "ml", "labels": marks, "finalizers": list(finalizers)}
        return {"metadata": meta | ({"deletionTimestamp": deleted} if deleted else {})}

    server = Server()
    old, new = "2023-11-14T20:00:00Z", "2023-11-14T22:13:00Z"  # NOW_S is 22:13:20
    server.items["jobs"] = [
        job("kept", old, labels.FINALIZER),
        job("lately", new, labels.FINALIZER),
        job("runs", None, labels.FINALIZER),
        job("theirs", old, "example.org/audit"),
    ]
    [*found] = read(server, tmp_path).held
    assert HeldObject("jobs.batch", "ml", "kept") in found
    assert {one.name for one in found} == {"kept"}
