"""Whom we trust and what we show, against a server that asks for certificates."""

import asyncio
import contextlib
import os
import ssl
from pathlib import Path

import pytest
from aiohttp import web
from kubernetes_asyncio.client.configuration import Configuration
from kubernetes_asyncio.config import kube_config

from berthmaster.lib.kube.certificate_files import in_memory
from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.config import Access
from berthmaster.lib.kube.errors import BadConfig, Unreachable
from berthmaster.lib.kube.kubeconfig import Exec, User
from berthmaster.lib.kube.transport import Rest
from tests.unit.lib.kube.papers import V1, Authority, credential, serving
from tests.unit.lib.kube.stage import WIDGETS, Lines, Stage, Widget, refuse

AUTHORITY = Authority()


async def name_shown(stage: Stage, client: Client) -> str:
    """The name in the certificate that the server was shown."""
    seen: list[str] = []

    async def look(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        found = request.transport.get_extra_info("ssl_object").getpeercert()
        seen.append(found["subject"][0][0][1] if found else "nobody")
        return web.json_response({}, headers={"Connection": "close"})

    stage.before.append(look)
    await client.version()
    return seen[0]


def test_the_server_is_checked_and_sees_the_certificate_of_now(tmp_path: Path) -> None:
    async def story() -> None:
        async with Stage(serving(tmp_path, AUTHORITY, "127.0.0.1")) as stage:
            access = Access(server=stage.url, ca=AUTHORITY.pem, pair=AUTHORITY.issue("ann"))
            async with await stage.client(access=access) as client:
                assert await name_shown(stage, client) == "ann"
            nobody = Access(server=stage.url, ca=AUTHORITY.pem)
            async with await stage.client(access=nobody) as client:
                assert await name_shown(stage, client) == "nobody"

    asyncio.run(story())


def test_another_certificate_of_a_plugin_is_shown_on_connections_of_its_own(tmp_path: Path) -> None:
    async def story() -> None:
        async with Stage(serving(tmp_path, AUTHORITY, "127.0.0.1")) as stage:
            for name in ("bob", "eve"):
                certificate, key = AUTHORITY.issue(name)
                pair = {
                    "clientCertificateData": certificate.decode(),
                    "clientKeyData": key.decode(),
                }
                (tmp_path / name).write_text(credential(pair))
            script = f"cd {tmp_path}; if [ -e again ]; then cat eve; else touch again; cat bob; fi"
            user = User(exec=Exec(command="sh", api_version=V1, args=["-c", script]))
            access = Access(server=stage.url, ca=AUTHORITY.pem, user=user)
            async with await stage.client(access=access) as client:
                watch = client.watch(WIDGETS, Widget, resource_version="100")
                async with contextlib.aclosing(watch):
                    first = asyncio.create_task(anext(watch))
                    await stage.until_watched()
                    shown = [await name_shown(stage, client)]
                    # Refused over a connection that stays open, which is not used for the next.
                    stage.before.append(refuse(401, "Unauthorized"))
                    shown += [await name_shown(stage, client) for _ in range(2)]
                    assert shown == ["bob", "eve", "eve"]
                    await stage.put("a")  # and the watch that was open lives on
                    assert (await first).object.metadata.name == "a"

    asyncio.run(story())


@pytest.mark.parametrize(
    ("names", "ca", "server_name", "why"),
    [
        (
            ("127.0.0.1",),
            Authority("other").pem,
            "",
            "self-signed certificate in certificate chain",
        ),
        (("elsewhere",), AUTHORITY.pem, "", "IP address mismatch"),
        (("127.0.0.1",), AUTHORITY.pem, "kubernetes", "Hostname mismatch"),
    ],
)
def test_a_server_that_is_not_the_one_is_not_talked_to(
    tmp_path: Path, names: tuple[str, ...], ca: bytes, server_name: str, why: str
) -> None:
    async def story() -> None:
        async with Stage(serving(tmp_path, AUTHORITY, *names)) as stage:
            access = Access(server=stage.url, ca=ca, server_name=server_name)
            async with await stage.client(access=access) as client:
                with pytest.raises(Unreachable) as caught:
                    await client.version()
                assert "its certificate is not trusted" in str(caught.value)
                assert why in str(caught.value)
            assert stage.requests == []

    asyncio.run(story())


def test_a_name_in_the_certificate_other_than_the_host_can_be_asked_for(tmp_path: Path) -> None:
    async def story() -> None:
        async with Stage(serving(tmp_path, AUTHORITY, "kubernetes")) as stage:
            access = Access(server=stage.url, ca=AUTHORITY.pem, server_name="kubernetes")
            async with await stage.client(access=access) as client:
                assert await client.version() == "v1.36.3"
            careless = Access(server=stage.url, verify=False)
            async with await stage.client(access=careless) as client:
                assert await client.version() == "v1.36.3"

    asyncio.run(story())


def test_what_cannot_be_used_is_told_by_context_and_field() -> None:
    async def story() -> None:
        bad = Access(server="https://api", context="here", ca=b"no PEM")
        with pytest.raises(BadConfig, match="context 'here': certificate-authority: no certifi"):
            await Client.open(bad, user_agent="t", log=Lines())
        unpaired = Access(server="https://api", context="here", pair=(b"no PEM", b"no key"))
        with pytest.raises(BadConfig, match="client-certificate: certificate and key are no"):
            await Client.open(unpaired, user_agent="t", log=Lines())

    asyncio.run(story())


def test_a_key_is_never_on_a_disk_and_not_kept_by_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    load = ssl.SSLContext.load_cert_chain

    def spy(self: ssl.SSLContext, certfile: str, *rest: object, **more: object) -> None:
        names = [certfile, more.get("keyfile") or certfile]
        opened.extend(str(Path(str(name)).readlink()) for name in names)
        load(self, certfile, *rest, **more)  # type: ignore[arg-type]

    async def story() -> None:
        async with Stage(serving(tmp_path, AUTHORITY, "127.0.0.1")) as stage:
            monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", spy)
            access = Access(server=stage.url, ca=AUTHORITY.pem, pair=AUTHORITY.issue("ann"))
            async with await stage.client(access=access) as client:
                assert await name_shown(stage, client) == "ann"
                names = [Path(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")]  # noqa: PTH208  (PathLib would hold one open)
                left = [str(name.readlink()) for name in names if name.is_symlink()]
                assert not [name for name in left if "memfd" in name]

    asyncio.run(story())
    assert set(opened) == {"/memfd:certificates (deleted)"}
    assert kube_config._temp_files == {}


def test_where_nothing_is_said_the_systems_authorities_are_trusted() -> None:
    async def story() -> None:
        rest = Rest(Configuration(), "t")
        assert rest.tls.verify_mode is ssl.CERT_REQUIRED
        assert rest.tls.check_hostname
        await rest.close()
        with in_memory(AUTHORITY.pem) as name:
            rest = Rest(Configuration(ssl_ca_cert=name), "t")
        assert rest.tls.cert_store_stats()["x509_ca"] == 1
        await rest.close()

    asyncio.run(story())
