"""Kubeconfigs of each kind, as files, from reading them to the answer of a server with TLS."""

import asyncio
import base64
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from berthmaster.kubernetes.client import Client
from berthmaster.kubernetes.config import from_kubeconfig, from_kubeconfig_bytes, in_cluster
from berthmaster.kubernetes.errors import BadConfig, TimedOut, Unauthorized, Unreachable
from tests.support.patience import until
from tests.unit.kubernetes.papers import (
    V1,
    Authority,
    credential,
    encoded,
    kubeconfig,
    serving,
    text,
)
from tests.unit.kubernetes.stage import Lines, Stage, refuse

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


# ---------------------------------------------------------------- issuers


def jwt(name: str, ends_in_s: float) -> str:
    """A token of an issuer; its payload is base64 for URLs, as the standard has it."""
    claims = {"sub": name, "hint": "?>~ÿ?>~ÿ", "exp": int(time.time() + ends_in_s)}
    payload = json.dumps(claims, ensure_ascii=False).encode()
    return f"e30.{base64.urlsafe_b64encode(payload).decode().rstrip('=')}.c2ln"


class Issuer:
    """Hands out tokens for refresh tokens; each serves once."""

    def __init__(self, folder: Path, *, authority: Authority = AUTHORITY, rotates: bool = True):
        folder = folder / "issuer"
        folder.mkdir()
        self._tls = serving(folder, authority, "127.0.0.1")
        self._rotates = rotates
        self.url = ""
        self.endpoint = ""
        self.refresh = "refresh-0"
        self.lives_s = 3600.0
        self.handed_out: list[str] = []
        self.forms: list[dict[str, str]] = []
        self.clients: list[str] = []
        self.instead: Callable[[], web.Response] | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Issuer"]:
        app = web.Application()
        app.router.add_get("/.well-known/openid-configuration", self._well_known)
        app.router.add_post("/token", self._token)
        runner = web.AppRunner(app, shutdown_timeout=0.01, handle_signals=False)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self._tls).start()
        self.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
        self.endpoint = f"{self.url}/token"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _well_known(self, request: web.Request) -> web.Response:
        return web.json_response({"issuer": self.url, "token_endpoint": self.endpoint})

    async def _token(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.forms.append(form)
        self.clients.append(request.headers.get("Authorization", ""))
        if self.instead is not None:
            return self.instead()
        if form.get("refresh_token") != self.refresh:
            return web.json_response({"error": "invalid_grant"}, status=400)
        self.handed_out.append(jwt(f"ann-{len(self.handed_out)}", self.lives_s))
        answer = {"id_token": self.handed_out[-1], "token_type": "Bearer"}
        if self._rotates:
            self.refresh = f"refresh-{len(self.handed_out)}"
            answer["refresh_token"] = self.refresh
        return web.json_response(answer)

    def user(self, **config: str) -> dict[str, Any]:
        whole = {
            "idp-issuer-url": self.url,
            "idp-certificate-authority-data": encoded(AUTHORITY.pem),
            "client-id": "berth",
            "client-secret": "s3cret",
            "refresh-token": "refresh-0",
            **config,
        }
        return {"auth-provider": {"name": "oidc", "config": whole}}


def test_issuer_token_is_renewed_at_expiry(tmp_path: Path) -> None:
    async def story() -> None:
        async with Server(tmp_path) as server, Issuer(tmp_path).running() as issuer:
            first = jwt("ann", 3600)
            user = issuer.user(**{"id-token": first})
            before = text(kubeconfig({"server": server.url, **TRUSTED}, user))
            async with reached(server, tmp_path, user) as client:
                await client.version()
                assert (server.shown, issuer.forms) == ([first], [])

                # Refused: another one is asked for, with the refresh token of then each time.
                issuer.lives_s = 10.0  # less than we let it have
                server.takes = {"nothing"}
                with pytest.raises(Unauthorized):
                    await client.version()
                issuer.lives_s, server.takes = 3600.0, set()
                await client.version()
                await client.version()
            assert server.shown[1:] == [first, *issuer.handed_out[:1], *issuer.handed_out[1:] * 2]
            assert [form["refresh_token"] for form in issuer.forms] == ["refresh-0", "refresh-1"]
            assert {form["grant_type"] for form in issuer.forms} == {"refresh_token"}
            pair = base64.b64encode(b"berth:s3cret").decode()
            assert set(issuer.clients) == {f"Basic {pair}"}
            assert (tmp_path / "config").read_bytes() == before  # a person's file is left alone

    asyncio.run(story())


def test_issuer_without_client_secret_is_accepted(tmp_path: Path) -> None:
    async def story() -> None:
        issuer = Issuer(tmp_path, rotates=False)
        async with Server(tmp_path) as server, issuer.running():
            authority = tmp_path / "issuer.pem"
            authority.write_bytes(AUTHORITY.pem)
            user = issuer.user(
                **{
                    "client-secret": "",
                    "id-token": jwt("ann", -60),  # over
                    "idp-certificate-authority": "issuer.pem",  # a file beside the kubeconfig
                    "idp-certificate-authority-data": "",
                }
            )
            async with reached(server, tmp_path, user) as client:
                await client.version()
                server.takes = {"nothing"}
                with pytest.raises(Unauthorized):
                    await client.version()
            assert server.shown == [issuer.handed_out[0], *issuer.handed_out]
            assert [form["refresh_token"] for form in issuer.forms] == ["refresh-0"] * 2
            assert [form["client_id"] for form in issuer.forms] == ["berth"] * 2
            assert issuer.clients == ["", ""]

    asyncio.run(story())


def test_nothing_is_sent_to_an_issuer_that_is_not_the_one(tmp_path: Path) -> None:
    async def story() -> None:
        issuer = Issuer(tmp_path, authority=Authority("somebody else"))
        async with Server(tmp_path) as server, issuer.running():
            known = {"idp-certificate-authority-data": encoded(AUTHORITY.pem)}
            unknown = {"idp-certificate-authority-data": ""}  # the system's authorities
            for config in (known, unknown):
                async with reached(server, tmp_path, issuer.user(**config)) as client:
                    with pytest.raises(BadConfig) as caught:
                        await client.version()
                assert "auth-provider.idp-issuer-url: not trusted: " in str(caught.value)
                assert "self-signed certificate" in str(caught.value)
            assert (issuer.forms, server.shown) == ([], [])

    asyncio.run(story())


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (lambda: web.Response(status=400, text="s3cret"), "failed to refresh access token: status"),
        (lambda: web.Response(status=302, headers={"Location": "/"}), "answers with status 302"),
        (lambda: web.Response(text="s3cret"), "answers no JSON object"),
        (lambda: web.Response(body=b" " * 300_000), "answers more than 262144 bytes"),
        (lambda: web.json_response({"access_token": "s3cret"}), "the answer has no id_token"),
        (lambda: web.json_response({"id_token": "s3cret\n"}), "the answer has no id_token"),
    ],
)
def test_an_issuer_that_hands_out_nothing_is_told_without_showing_what_it_said(
    tmp_path: Path, answer: Callable[[], web.Response], problem: str
) -> None:
    async def story() -> None:
        async with Server(tmp_path) as server, Issuer(tmp_path).running() as issuer:
            issuer.instead = answer
            async with reached(server, tmp_path, issuer.user()) as client:
                with pytest.raises(BadConfig) as caught:
                    await client.version()
                told = str(caught.value)
                assert f"context 'here': auth-provider.idp-issuer-url: {problem}" in told
                assert "s3cret" not in told
                assert "refresh-0" not in told

                issuer.instead = None  # and the next request finds it well
                await client.version()
            assert server.shown == issuer.handed_out

    asyncio.run(story())


def test_a_refresh_token_does_not_travel_in_the_open(tmp_path: Path) -> None:
    async def story() -> None:
        async with Server(tmp_path) as server, Issuer(tmp_path).running() as issuer:
            issuer.endpoint = issuer.endpoint.replace("https", "http")
            async with reached(server, tmp_path, issuer.user()) as client:
                with pytest.raises(BadConfig, match="its token_endpoint is no https address"):
                    await client.version()
            assert issuer.forms == []

    asyncio.run(story())


def test_a_token_that_is_over_and_cannot_be_renewed_is_told(tmp_path: Path) -> None:
    async def story() -> None:
        async with Server(tmp_path) as server:
            config = {"id-token": jwt("ann", -5)}
            user = {"auth-provider": {"name": "oidc", "config": config}}
            async with reached(server, tmp_path, user) as client:
                with pytest.raises(BadConfig, match="id-token: over, without a refresh-token"):
                    await client.version()
            user["auth-provider"]["config"] = {"id-token": jwt("ann", 3600)}
            async with reached(server, tmp_path, user) as client:
                await client.version()
                server.takes = {"another"}
                with pytest.raises(Unauthorized):
                    await client.version()
            assert len(server.shown) == 2

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
