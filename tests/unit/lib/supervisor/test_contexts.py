"""What `berth up` finds behind its contexts: one cluster twice, and clusters that do not answer."""

import asyncio
import json
import socket
import time
from pathlib import Path
from typing import Any

from aiohttp import web

from berthmaster.lib.supervisor.contexts import Met, away, meet, named_twice
from berthmaster.lib.supervisor.plan import KubeTarget
from tests.support.site import Site
from tests.unit.lib.kube.stage import status

LIMIT_S = 3.0
FORBIDDEN = status(403, "Forbidden", 'User "us" cannot get resource "namespaces"')


class Server(Site):
    """An API server that knows its namespace kube-system, or refuses."""

    def __init__(self, uid: str = "", refusal: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.uid = uid
        self.refusal = refusal

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/api/v1/namespaces/kube-system", self._answer)]

    async def _answer(self, request: web.Request) -> web.Response:
        if self.refusal is not None:
            return web.json_response(self.refusal, status=self.refusal["code"])
        return web.json_response({"metadata": {"name": "kube-system", "uid": self.uid}})


def kubeconfig(folder: Path, servers: dict[str, str], **users: dict[str, Any]) -> Path:
    """A file with a context for each server."""
    told = {
        "clusters": [{"name": n, "cluster": {"server": url}} for n, url in servers.items()],
        "users": [{"name": n, "user": users.get(n, {})} for n in servers],
        "contexts": [{"name": n, "context": {"cluster": n, "user": n}} for n in servers],
    }
    path = folder / "config"
    path.write_text(json.dumps(told))
    return path


def targets(path: Path, *names: str) -> list[KubeTarget]:
    return [KubeTarget(name=name, kubeconfig=path, context=name) for name in names]


def test_one_api_server_under_two_names_is_refused_by_name(tmp_path: Path) -> None:
    async def story() -> list[Met]:
        async with Server("5c1e") as one, Server("77aa") as other:
            path = kubeconfig(tmp_path, {"a": one.url, "b": other.url, "c": one.url})
            return await meet(targets(path, "a", "b", "c"), limit_s=LIMIT_S)

    met = asyncio.run(story())
    assert [one.uid for one in met] == ["5c1e", "77aa", "5c1e"]
    assert away(met) == {}
    assert named_twice(met) == (
        "workers 'a' and 'c' are one cluster: the namespace kube-system has the UID 5c1e in both; "
        "name it once"
    )
    assert named_twice(met[:2]) == ""


def test_broken_and_deaf_contexts_are_away_within_the_limit_each_by_name(tmp_path: Path) -> None:
    async def story() -> tuple[list[Met], float]:
        # The kernel takes connections to the one port, and no program answers. Nobody listens at
        # the other.
        hung, closed = (
            socket.create_server(("127.0.0.1", 0)),
            socket.create_server(("127.0.0.1", 0)),
        )
        deaf, nobody = hung.getsockname()[1], closed.getsockname()[1]
        closed.close()
        unknown = Server(refusal=status(401, "Unauthorized", "Unauthorized"))
        async with Server("5c1e") as well, unknown, Server(refusal=FORBIDDEN) as strict:
            plugin = {
                "apiVersion": "client.authentication.k8s.io/v1",
                "command": "sleep",
                "args": ["60"],
                "interactiveMode": "Never",
            }
            path = kubeconfig(
                tmp_path,
                {
                    "well": well.url,
                    "refused": f"http://127.0.0.1:{nobody}",
                    "deaf": f"http://127.0.0.1:{deaf}",
                    "token": unknown.url,
                    "plugin": well.url,
                    "strict": strict.url,
                },
                plugin={"exec": plugin},
            )
            names = ("well", "refused", "deaf", "token", "plugin", "strict", "missing")
            began_s = time.monotonic()
            met = await meet(targets(path, *names), limit_s=LIMIT_S)
            took_s = time.monotonic() - began_s
            hung.close()
            return met, took_s

    met, took_s = asyncio.run(story())
    assert took_s < 3 * LIMIT_S  # all at once
    why = away(met)
    assert list(why) == ["refused", "deaf", "token", "plugin", "missing"]
    assert "no connection" in why["refused"]
    assert "no answer within 3 s" in why["deaf"]
    assert "Unauthorized" in why["token"]
    assert "no answer within 3 s" in why["plugin"]
    assert "no such context" in why["missing"]
    assert named_twice(met) == ""  # what is not known is equal to nothing
