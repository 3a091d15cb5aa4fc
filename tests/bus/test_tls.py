"""The bus over TLS: who trusts whom, what is told when they do not, and what stays as it was."""

import asyncio
import functools
import os
import runpy
import socket
import ssl
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from cryptography import x509

from berthmaster.lib.access.certificates import (
    CA_LIFE,
    RENEW_BEFORE,
    SERVER_LIFE,
    Certificates,
    CertificatesError,
    ensure_certificates,
)
from berthmaster.lib.access.keys import creds_file
from berthmaster.lib.access.permissions import inbox_prefix
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import BusError, NotConnected, NotPermitted
from berthmaster.lib.nats.streams import ensure_streams
from berthmaster.lib.supervisor.embedded import EVERYWHERE, Server, ServerConfig
from berthmaster.lib.supervisor.running_servers import running
from tests.bus.tools import Lines, Settings, accounts_of, story
from tests.support.patience import ANSWER_S, hang_s, until

DAY_S = 86400.0
ROOT = Path(__file__).parents[2]
USERS = ("setup", "gateway", "agent.berlin")


class Bus(NamedTuple):
    """A server with TLS that knows its users."""

    server: Server
    folder: Path
    files: Certificates

    def settings(self, user: str, *, trusting: Path | None = None) -> Settings:
        return Settings(
            self.server.url,
            creds_file(self.folder / "keys", user),
            inbox_prefix(user),
            trusting or self.files.ca,
        )

    async def connect(self, user: str, *, trusting: Path | None = None) -> Connection:
        settings = self.settings(user, trusting=trusting)
        return await Connection.open(settings, user, Lines(), timeout_s=ANSWER_S, clock_subject="")


def serve(folder: Path, *, now_s: float | None = None, host: str = "127.0.0.1") -> Bus:
    folder.mkdir(exist_ok=True)
    (folder / "accounts.conf").write_text(accounts_of(folder / "keys", USERS))
    files = ensure_certificates(folder / "tls", ["hub.test"], now_s=now_s or time.time())
    config = ServerConfig(
        sync="default", host=host, tls=(files.certificate, files.key), extra="include accounts.conf"
    )
    return Bus(Server(folder, config), folder, files)


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    made = serve(tmp_path / "up")
    with made.server:
        yield made


def names(certificate: Path) -> list[str]:
    loaded = x509.load_pem_x509_certificate(certificate.read_bytes())
    held = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in held]


# ---- certificates


def test_certificates_are_made_once_with_private_keys(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    files = ensure_certificates(folder, ["hub.test", "192.0.2.7"], now_s=0)
    assert files == (folder / "ca.crt", folder / "server.crt", folder / "server.key")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in folder.iterdir()} == {
        "ca.crt": "0o644",
        "ca.key": "0o600",
        "server.crt": "0o644",
        "server.key": "0o600",
    }
    assert names(files.certificate) == ["localhost", "127.0.0.1", "hub.test", "192.0.2.7"]

    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    ensure_certificates(folder, ["hub.test", "192.0.2.7"], now_s=30 * DAY_S)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_certificate_is_renewed_before_its_end_and_by_the_same_authority(tmp_path: Path) -> None:
    files = ensure_certificates(tmp_path, ["hub.test"], now_s=0)
    ca, first = files.ca.read_bytes(), files.certificate.read_bytes()
    just_before_s = (SERVER_LIFE - RENEW_BEFORE).total_seconds() - 60
    ensure_certificates(tmp_path, ["hub.test"], now_s=just_before_s)
    assert files.certificate.read_bytes() == first
    ensure_certificates(tmp_path, ["hub.test"], now_s=just_before_s + 120)
    second = files.certificate.read_bytes()
    assert (second != first, files.ca.read_bytes() == ca) == (True, True)
    # Another name is another certificate, at once.
    ensure_certificates(tmp_path, ["hub.test", "other.test"], now_s=just_before_s + 121)
    assert names(files.certificate) == ["localhost", "127.0.0.1", "hub.test", "other.test"]
    assert files.certificate.read_bytes() != second


def test_lost_key_is_remade_lost_authority_reported(tmp_path: Path) -> None:
    files = ensure_certificates(tmp_path, [], now_s=0)
    files.key.unlink()
    ensure_certificates(tmp_path, [], now_s=0)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)  # they belong together

    (tmp_path / "ca.key").write_text("nonsense")
    with pytest.raises(CertificatesError, match=r"ca\.key holds no private key of ours"):
        ensure_certificates(tmp_path, [], now_s=0)


def test_an_authority_that_has_expired_is_told_with_what_to_do(tmp_path: Path) -> None:
    ensure_certificates(tmp_path, [], now_s=0)
    with pytest.raises(CertificatesError, match=r"ca\.crt has expired: remove .*cluster add"):
        ensure_certificates(tmp_path, [], now_s=CA_LIFE.total_seconds() + 1)


def test_a_name_that_is_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(CertificatesError, match="'hüb' is no host name"):
        ensure_certificates(tmp_path, ["hüb"], now_s=0)


# ---- connections


@story
async def test_with_the_authority_a_user_connects_and_may_what_it_may_without_tls(bus: Bus) -> None:
    assert bus.server.url.startswith("tls://127.0.0.1:")
    async with await bus.connect("setup") as setup:
        await ensure_streams(setup)
    async with await bus.connect("agent.berlin") as agent:
        await agent.publish("berth.agent.berlin.telemetry", b"")
        await agent.flush()
        assert agent.violations == []
        await agent.publish("berth.agent.rome.telemetry", b"")
        await until(lambda: agent.violations, "a subject of another cluster is refused")
        with pytest.raises(NotPermitted):
            await agent.request("$JS.API.STREAM.DELETE.WORKLOADS", b"")


@story
async def test_connection_without_authority_fails_at_once(bus: Bus, tmp_path: Path) -> None:
    other = ensure_certificates(tmp_path / "other", ["hub.test"], now_s=time.time())
    for trusting, why in (
        (other.ca, "its authority is not the one that is trusted here"),
        (None, "trusted are the system's authorities"),
    ):
        settings = Settings(
            bus.server.url,
            creds_file(bus.folder / "keys", "gateway"),
            inbox_prefix("gateway"),
            trusting,
        )
        with pytest.raises(BusError, match=f"certificate is refused.*{why}"):
            await Connection.open(settings, "gateway", Lines())  # no time limit, and yet no hang


@story
async def test_connection_names_expired_or_foreign_certificate(tmp_path: Path) -> None:
    old = serve(tmp_path / "old", now_s=time.time() - (SERVER_LIFE.total_seconds() + DAY_S))
    with old.server, pytest.raises(BusError, match="it has expired"):
        await old.connect("gateway")
    fresh = serve(tmp_path / "fresh", host="127.0.0.2")
    with fresh.server, pytest.raises(BusError, match="it is not for this address"):
        await fresh.connect("gateway")


@story
async def test_a_url_that_says_tls_is_never_served_in_plain_text(tmp_path: Path) -> None:
    with Server(tmp_path, ServerConfig(sync="default")) as plain:
        url = plain.url.replace("nats://", "tls://")
        with pytest.raises(NotConnected, match="the URL says tls and the server offers none"):
            await Connection.open(Settings(url), "x", Lines(), timeout_s=0.5)


@story
async def test_a_file_that_holds_no_authority_is_named(tmp_path: Path) -> None:
    empty = tmp_path / "ca.crt"
    for content, why in ((None, "cannot read the certificates"), ("x", "holds no certificates")):
        if content is not None:
            empty.write_text(content)
        settings = Settings("tls://127.0.0.1:1", None, "_INBOX", empty)
        with pytest.raises(BusError, match=why):
            await Connection.open(settings, "x", Lines())


@story
async def test_server_on_all_addresses_is_reached_locally(tmp_path: Path) -> None:
    bus = serve(tmp_path, host=EVERYWHERE)
    with bus.server:
        assert bus.server.url.startswith("tls://127.0.0.1:")
        async with await bus.connect("gateway") as conn:
            assert conn.connected


# ---- certificates of a server that runs


@story
async def test_server_reads_a_renewed_certificate_by_its_health_check(
    bus: Bus,
) -> None:
    healthy = runpy.run_path(str(ROOT / "deploy/nats/healthy.py"))
    check = functools.partial(
        healthy["main"],
        bus.server.monitor_url,
        str(bus.folder),
        bus.server.pid,
        str(bus.files.certificate),
    )
    served = functools.partial(certificate_of, bus.server.config.port)
    async with await bus.connect("gateway") as conn:
        first = await asyncio.to_thread(served)
        assert await asyncio.to_thread(check) == ""
        assert await asyncio.to_thread(served) == first
        renewed = ensure_certificates(
            bus.folder / "tls", ["hub.test"], now_s=time.time() + SERVER_LIFE.total_seconds() * 0.7
        )
        later_s = time.time() + 5
        os.utime(renewed.certificate, (later_s, later_s))
        assert await asyncio.to_thread(check) == ""
        await until(lambda: served() != first, "the server shows the new certificate")
        assert conn.connected
        assert conn.reconnects == 0


def test_folder_without_a_server_has_none_that_runs(tmp_path: Path) -> None:
    assert running(tmp_path) == []
    with Server(tmp_path / "one", ServerConfig(sync="default")) as server:
        assert running(tmp_path / "one") == [tmp_path / "one"]
        # Another folder names the port of this server, which is not its own any more.
        (tmp_path / "two").mkdir()
        text = server.config_path.read_text().replace("one/jetstream", "two/jetstream")
        (tmp_path / "two" / server.config_path.name).write_text(text)
        assert running(tmp_path / "two") == []
    assert running(tmp_path / "one") == []


def certificate_of(port: int) -> bytes:
    """What a server shows to whoever connects: nats-server begins TLS after its first line."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), timeout=hang_s()) as plain:
        plain.recv(4096)
        with context.wrap_socket(plain) as secure:
            return secure.getpeercert(binary_form=True) or b""
