"""Whom we trust and what we show, against a server that asks for certificates."""

import asyncio
import os
import ssl
from pathlib import Path

import pytest
from aiohttp import web

from berthmaster.kubernetes.access import Access, Credential, Fixed
from berthmaster.kubernetes.client import Client
from berthmaster.kubernetes.errors import BadConfig, Unreachable
from berthmaster.kubernetes.tls import show, trusting
from tests.unit.kubernetes.papers import Authority, serving
from tests.unit.kubernetes.stage import Lines, Stage

AUTHORITY = Authority()


class Rotating:
    """A source whose certificate changes when the test says so."""

    def __init__(self, certificate: bytes, key: bytes) -> None:
        self.now = Credential("", certificate, key)

    async def credential(self, *, renew: bool = False) -> Credential:
        return self.now


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
            source = Rotating(*AUTHORITY.issue("ann"))
            access = Access(server=stage.url, ca=AUTHORITY.pem, source=source)
            async with await stage.client(access=access) as client:
                assert await name_shown(stage, client) == "ann"
                source.now = Credential("", *AUTHORITY.issue("bob"))
                assert await name_shown(stage, client) == "bob"
            nobody = Access(server=stage.url, ca=AUTHORITY.pem)
            async with await stage.client(access=nobody) as client:
                assert await name_shown(stage, client) == "nobody"

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
        source = Fixed(Credential("", b"no PEM", b"no key"))
        unpaired = Access(server="https://127.0.0.1:1", context="here", source=source)
        async with await Client.open(unpaired, user_agent="t", log=Lines()) as client:
            with pytest.raises(BadConfig, match="client-certificate: certificate and key are no"):
                await client.version()

    asyncio.run(story())


def test_a_key_is_never_on_a_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    load = ssl.SSLContext.load_cert_chain

    def spy(self: ssl.SSLContext, certfile: str, *rest: object, **more: object) -> None:
        opened.append(str(Path(certfile).readlink()))
        load(self, certfile, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", spy)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  (PathLib would hold one open)
    show(trusting(verify=False), *AUTHORITY.issue("ann"))
    assert opened == ["/memfd:client certificate (deleted)"]
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_where_nothing_is_said_the_systems_authorities_are_trusted() -> None:
    context = trusting()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert trusting(AUTHORITY.pem).cert_store_stats()["x509_ca"] == 1
