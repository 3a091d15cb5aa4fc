import asyncio
import ssl
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from berthmaster.lib.nats.connect_options import connect_options, exposed
from berthmaster.lib.nats.errors import BusError
from berthmaster.lib.nats.requests import PatientClient
from tests.support.patience import until

# isort: split
from nats.aio.client import Srv


class Settings(NamedTuple):
    nats_url: str
    nats_plaintext: bool = False
    nats_creds_file: Path | None = None
    inbox_prefix: str = "_INBOX"
    nats_ca_file: Path | None = None


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("nats://hub.example:4222", True),
        ("ws://10.0.0.7", True),
        ("hub:4222", True),  # what the client library takes for nats://
        ("nats://0.0.0.0:4222", True),
        ("nats://127.example.org:4222", True),
        ("nats://me:secret@[2001:db8::1]:4222", True),
        ("tls://hub.example:4222", False),
        ("wss://hub.example", False),
        ("nats://127.0.0.1:4222", False),
        ("nats://127.8.0.1", False),
        ("ws://[::1]:8080", False),
        ("nats://localhost:4222", False),
    ],
)
def test_remote_plain_url_is_exposed(url: str, told: bool) -> None:
    assert exposed(url) is told


def test_one_exposed_server_of_several_is_refused_unless_the_setting_for_it_says_so() -> None:
    urls = "tls://a:1, nats://me:secret@b:2"
    with pytest.raises(BusError) as refused:
        connect_options(Settings(urls), "x")
    assert str(refused.value) == (
        "nats://<hidden>@b:2 is on another machine, and without TLS: right is tls://HOST:PORT "
        "(or wss), or BERTH_NATS_PLAINTEXT=true where nobody can listen in between"
    )
    asked_for = connect_options(Settings(urls, nats_plaintext=True), "x")
    assert asked_for["servers"] == ["tls://a:1", "nats://me:secret@b:2"]


@pytest.mark.parametrize(
    ("url", "permitted", "followed"),
    [
        ("nats://127.0.0.1:1", False, {"127.0.0.1:2"}),
        ("nats://127.0.0.1:1", True, {"127.0.0.1:2", "10.1.2.3:4"}),
        ("tls://a:1", False, {"127.0.0.1:2", "10.1.2.3:4"}),  # which is gone to by TLS as well
    ],
)
def test_a_server_of_this_machine_leads_nobody_to_others_in_plain_text(
    url: str, permitted: bool, followed: set[str]
) -> None:
    client = PatientClient()
    client.plaintext = permitted
    client.options = {"dont_randomize": True}
    client._current_server = Srv(urlsplit(url))  # type: ignore[no-untyped-call,arg-type,unused-ignore]
    client._server_pool = []
    info = {"connect_urls": ["127.0.0.1:2", "10.1.2.3:4"], "tls_required": url[:3] == "tls"}
    client._server_info = info
    asyncio.run(client._process_info(info, initial_connection=True))
    assert {server.uri.netloc for server in client._server_pool} == followed


def test_connect_after_a_failed_handshake_tries_again() -> None:
    """A busy or restarting server ends the connection before the handshake is over."""
    tries: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"max_payload": 1048576, "tls_required": true}\r\n')
        await reader.read(10)  # the client's hello
        writer.close()
        tries.append(1)

    async def story() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        options: dict[str, Any] = {"reconnect_time_wait": 0.01, "max_reconnect_attempts": -1}
        client = PatientClient()
        url = f"tls://127.0.0.1:{port}"
        connecting = asyncio.ensure_future(client.connect([url], tls=context, **options))
        await until(lambda: len(tries) > 2, "the client has tried three times")
        connecting.cancel()
        await asyncio.gather(connecting, return_exceptions=True)
        server.close()

    context = ssl.create_default_context()
    asyncio.run(story())
