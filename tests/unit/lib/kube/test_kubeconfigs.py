"""Kubeconfigs of each kind, as files, from reading them to the answer of a server with TLS."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.config import from_kubeconfig, from_kubeconfig_bytes, in_cluster
from berthmaster.lib.kube.errors import BadConfig, TimedOut, Unreachable
from tests.support.patience import until
from tests.unit.lib.kube.papers import V1, Authority, credential, encoded, kubeconfig, serving, text
from tests.unit.lib.kube.stage import Lines, Stage, refuse

AUTHORITY = Authority()
TRUSTED = {"certificate-authority-data": encoded(AUTHORITY.pem)}


class Server(Stage):
    """An API server that takes one token, or a certificate, and notes who came."""

    def __init__(self, folder: Path, *names: str) -> None:
        super().__init__(serving(folder, AUTHORITY, *(names or ("127.0.0.1",))))
        self.takes: set[str] = set()
        self.shown: list[str] = []  # a token, or the name in a certificate

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        found = request.transport.get_extra_info("ssl_object").getpeercert()
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        self.shown.append(token or (found["subject"][0][0][1] if found else "nobody"))
        if self.takes and self.shown[-1] not in self.takes:
            return await refuse(401, "Unauthorized")(request)
        return await super()._handle(request)


def written(folder: Path, cluster: dict[str, Any], user: dict[str, Any]) -> Path:
    path = folder / "config"
    path.write_bytes(text(kubeconfig(cluster, user)))
    return path


@contextlib.asynccontextmanager
async def reached(
    to: Server, folder: Path, user: dict[str, Any], timeout_s: float = 20.0, /, **cluster: Any
) -> AsyncIterator[Client]:
    path = written(folder, {"server": to.url, **TRUSTED, **cluster}, user)
    access = await from_kubeconfig(path)
    async with await Client.open(
        access, user_agent="t", log=Lines(), timeout_s=timeout_s
    ) as client:
        yield client


def test_a_token(tmp_path: Path) -> None:
    async def story() -> None:
        async with Server(tmp_path) as server:
            async with reached(server, tmp_path, {"token": "abc"}) as client:
                assert await client.version() == "v1.36.3"
            assert server.shown == ["abc"]

    asyncio.run(story())


def test_a_token_file_that_somebody_else_renews(tmp_path: Path) -> None:
    async def story() -> None:
        async with Server(tmp_path) as server:
            (tmp_path / "token").write_text("first\n")
            user = {"tokenFile": "token", "token": "older"}  # the file counts, as for kubectl
            async with reached(server, tmp_path, user) as client:
                await client.version()
                (tmp_path / "token").write_text("second\n")
                server.takes = {"second"}
                await client.version()
            assert server.shown == ["first", "first", "second"]

    asyncio.run(story())


def test_a_client_certificate_with_an_old_token_beside_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with Server(tmp_path) as server:
            certificate, key = AUTHORITY.issue("ann")
            (tmp_path / "ann.key").write_bytes(key)
            user = {"client-certificate-data": encoded(certificate), "client-key": "ann.key"}
            async with reached(server, tmp_path, user) as client:
                await client.version()
            assert server.shown == ["ann"]

    asyncio.run(story())


# ---------------------------------------------------------------- programs


def program(folder: Path, body: str) -> dict[str, Any]:
    path = folder / "plugin"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return {"exec": {"apiVersion": V1, "command": "./plugin", "interactiveMode": "Never"}}


def test_a_plugin_whose_tokens_end(tmp_path: Path) -> None:
    status = {"token": "NUMBER", "expirationTimestamp": "2020-01-01T00:00:00Z"}
    body = (
        f"cd {tmp_path}; echo x >>runs; echo '{credential(status)}' | sed s/NUMBER/$(wc -l <runs)/"
    )

    async def story() -> None:
        async with Server(tmp_path) as server:
            async with reached(server, tmp_path, program(tmp_path, body)) as client:
                assert not (tmp_path / "runs").exists()  # nothing is asked before it is needed
                await client.version()
                await client.version()
            assert server.shown == ["1", "2"]

    asyncio.run(story())


@pytest.mark.parametrize(
    ("body", "kind", "problem"),
    [
        ("exec sleep 60", TimedOut, "no answer within 0.5 s"),
        ("echo s3cret", BadConfig, "exec.command: did not print an ExecCredential"),
        ("yes s3cret | head -c 3000000", BadConfig, "exec.command: prints more than 1048576"),
        ("yes s3cret | head -c 3000000 >&2; exit 1", BadConfig, "exec.command: ended with code 1"),
        (f"echo '{credential({'token': ''})}'", BadConfig, "exec.status: neither token nor client"),
    ],
)
def test_a_plugin_that_hangs_prints_rubbish_or_writes_a_lot(
    tmp_path: Path, body: str, kind: type[Exception], problem: str
) -> None:
    limit_s = 0.5 if kind is TimedOut else 20.0

    async def story() -> None:
        async with Server(tmp_path) as server:
            user = program(tmp_path, f"echo $$ >{tmp_path}/pid; {body}")
            async with reached(server, tmp_path, user, limit_s) as client:
                with pytest.raises(kind) as caught:
                    await client.version()
                assert problem in str(caught.value)
            assert server.shown == []
        pid = tmp_path / "pid"
        await until(
            lambda: not pid.exists() or not Path(f"/proc/{pid.read_text().strip()}").exists()
        )

    asyncio.run(story())


# ---------------------------------------------------------------- pods and Secrets


def test_a_pods_own_account_whose_token_is_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with Server(tmp_path) as server:
            (tmp_path / "ca.crt").write_bytes(AUTHORITY.pem)
            (tmp_path / "token").write_text("first")
            host, _, port = server.url.removeprefix("https://").rpartition(":")
            monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
            monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
            access = await in_cluster(tmp_path)
            async with await Client.open(access, user_agent="t", log=Lines()) as client:
                await client.version()
                (tmp_path / "token").write_text("second")
                server.takes = {"second"}
                await client.version()
            assert server.shown == ["first", "first", "second"]

    asyncio.run(story())


def test_secret_kubeconfig_naming_program_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with Server(tmp_path) as server:
            cluster = {"server": server.url, **TRUSTED}
            access = from_kubeconfig_bytes(text(kubeconfig(cluster, {"token": "abc"})))
            async with await Client.open(access, user_agent="t", log=Lines()) as client:
                await client.version()
            user = program(tmp_path, f"touch {tmp_path}/ran")
            for bad in (user, {"tokenFile": "/etc/passwd"}, {"client-key": "/etc/shadow"}):
                with pytest.raises(BadConfig, match="not accepted from a Secret"):
                    from_kubeconfig_bytes(text(kubeconfig(cluster, bad)))
            assert server.shown == ["abc"]
            assert not (tmp_path / "ran").exists()

    asyncio.run(story())


# ---------------------------------------------------------------- ways and names


@contextlib.asynccontextmanager
async def proxy(seen: list[bytes], to_port: int) -> AsyncIterator[str]:
    """An HTTP proxy that leads everybody to one port; its URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        far, out = await asyncio.open_connection("127.0.0.1", to_port)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await asyncio.gather(_pump(reader, out), _pump(far, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://ann:s3cret@127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while part := await reader.read(65_536):
            writer.write(part)
            await writer.drain()
    writer.close()


def test_by_way_of_a_proxy_to_a_server_with_another_name(tmp_path: Path) -> None:
    async def story() -> None:
        seen: list[bytes] = []
        async with Server(tmp_path, "kubernetes.default") as server:
            port = int(server.url.rpartition(":")[2])
            async with (
                proxy(seen, port) as url,
                reached(
                    server,
                    tmp_path,
                    {"token": "abc"},
                    server="https://api.invalid:6443",
                    **{"proxy-url": url, "tls-server-name": "kubernetes.default"},
                ) as client,
            ):
                assert await client.version() == "v1.36.3"
            assert server.shown == ["abc"]
        assert seen[0].startswith(b"CONNECT api.invalid:6443 HTTP/1.1\r\n")
        assert b"Proxy-Authorization: Basic " in seen[0]
        assert b"abc" not in seen[0]

    asyncio.run(story())


def test_a_server_that_a_person_does_not_want_checked(tmp_path: Path) -> None:
    async def story() -> None:
        async with Server(tmp_path, "elsewhere") as server:
            async with reached(server, tmp_path, {"token": "abc"}) as client:
                with pytest.raises(Unreachable, match="its certificate is not trusted"):
                    await client.version()
            careless = {"certificate-authority-data": "", "insecure-skip-tls-verify": True}
            async with reached(server, tmp_path, {"token": "abc"}, **careless) as client:
                assert await client.version() == "v1.36.3"
            assert server.shown == ["abc"]

    asyncio.run(story())
