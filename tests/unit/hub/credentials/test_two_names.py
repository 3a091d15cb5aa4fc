"""One worker that is to have access under two names."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from berthmaster.hub.credentials.core import manifests, names
from berthmaster.hub.credentials.core.errors import HasAnotherName
from berthmaster.hub.credentials.core.observed import Bootstrap, Endpoint
from berthmaster.hub.credentials.worker import WorkerSteps
from berthmaster.lib.kube.config import Access
from tests.support.site import Site
from tests.unit.lib.kube.stage import Lines, status

NAMESPACE = "berth-workers"


class Server(Site):
    """A worker's API server: takes what is made, and has what a test puts there."""

    def __init__(self, uid: str) -> None:
        super().__init__()
        self.uid = uid
        self.made: list[str] = []
        self.secrets: list[dict[str, Any]] = []

    def routes(self) -> list[web.RouteDef]:
        return [web.route("*", "/{path:.*}", self._answer)]

    async def _answer(self, request: web.Request) -> web.Response:
        if request.path == f"/api/v1/namespaces/{NAMESPACE}":
            return web.json_response({"metadata": {"name": NAMESPACE, "uid": self.uid}})
        if request.method == "POST":
            body = await request.json()
            self.made.append(f"{request.path}/{body['metadata']['name']}")
            return web.json_response(body, status=201)
        if request.path.endswith("/secrets"):
            return web.json_response({"metadata": {}, "items": self.secrets})
        return web.json_response(status(404, "NotFound"), status=404)


class WaysIn:
    def __init__(self, server: Server) -> None:
        self.server = server

    def access(self, source: Bootstrap) -> Access:
        return Access(server=self.server.url)


def steps(server: Server) -> WorkerSteps:
    return WorkerSteps(
        hub=lambda: "hub-1",
        namespace=NAMESPACE,
        rules=[],
        lifetime_s=3600.0,
        timeout_s=5.0,
        now=lambda: 1000.0,
        log=Lines(),
        bootstraps=WaysIn(server),  # type: ignore[arg-type]
    )


def source(cluster: str) -> Bootstrap:
    endpoint = Endpoint(server=f"https://{cluster}:6443")
    return Bootstrap(endpoint=endpoint, secret=f"ns/bootstrap-{cluster}", version="1")


def test_second_name_of_a_worker_gets_no_access_until_the_first_is_dropped() -> None:
    async def story() -> None:
        async with Server("ns-1") as server:
            workers = steps(server)
            await workers.prepare("east", source("east"))
            made = list(server.made)
            with pytest.raises(HasAnotherName, match="copy is the API server of east, which has"):
                await workers.prepare("copy", source("copy"))
            assert server.made == made
            await workers.prepare("east", source("east"))  # the same again is no other name
            await workers.drop("east")
            await workers.prepare("copy", source("copy"))
            await workers.close()

    asyncio.run(story())


def test_name_that_has_tokens_keeps_its_access() -> None:
    """After a restart the newer name may come first: the older one is not taken away for that."""

    async def story() -> None:
        async with Server("ns-1") as server:
            workers = steps(server)
            await workers.prepare("copy", source("copy"))
            account = workers.account("east")
            server.secrets = [manifests.bound_secret(account, "s1", "hub-1", "east", 900.0)]
            assert server.secrets[0]["metadata"]["name"] == names.bound(account, "s1")
            survey = await workers.prepare("east", source("east"))
            assert list(survey.bound) == ["s1"]
            await workers.close()

    asyncio.run(story())
