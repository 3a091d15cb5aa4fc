"""The webhook's server: TLS, limits, and a certificate that is renewed or ends."""

import http.client
import io
import json
import shutil
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from berthmaster.hub.clearing.core.review import Reply
from berthmaster.hub.clearing.server import MAX_BYTES, Certificate, ReviewServer
from berthmaster.lib.access.certificates import certificates_in, ensure_certificates
from berthmaster.lib.runtime.errors import CannotStart
from berthmaster.lib.runtime.log import Log
from tests.support.patience import hang_s, wait_until
from tests.unit.hub.clearing.test_review import review, workload

NOMINATED = {"nominatedClusterNames": ["east"]}
CHOSEN = review(workload(NOMINATED), workload({**NOMINATED, "clusterName": "east"}))


def write_pair(folder: Path, made_s: float, name: str = "berth-clearing.ns.svc") -> Path:
    """A pair as in the Secret, made at a time; its authority."""
    tls = folder / "authority"
    made = ensure_certificates(tls, [name], now_s=made_s, server="clearing")
    for path, file in ((made.certificate, "tls.crt"), (made.key, "tls.key")):
        shutil.copy(path, folder / file)
    return made.ca


class Server:
    def __init__(self, folder: Path, limit_s: float) -> None:
        self.replies: list[Reply] = []
        self.ca = write_pair(folder, time.time())
        self.certificate = Certificate(folder)
        assert self.certificate.read(time.time()) == ""
        self.log = Log("clearing", stream=io.BytesIO())
        self.server = ReviewServer(
            "127.0.0.1", 0, self.certificate, self.log, self._done, limit_s=limit_s
        )

    def _done(self, reply: Reply, _: float) -> None:
        self.replies.append(reply)

    def post(self, body: bytes, path: str = "/clear", **headers: str) -> tuple[int, Any]:
        trusted = ssl.create_default_context(cafile=str(self.ca))
        trusted.check_hostname = True
        client = http.client.HTTPSConnection(
            "127.0.0.1", self.server.port, timeout=hang_s(), context=trusted
        )
        try:
            client.request("POST", path, body, headers)
            reply = client.getresponse()
            return reply.status, json.loads(reply.read())
        finally:
            client.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path, hang_s())
    yield made
    made.server.close()


def test_review_is_answered_over_tls_and_counted(server: Server) -> None:
    status, told = server.post(CHOSEN, "/clear?timeout=5s")
    assert (status, told["response"]["allowed"], "patch" in told["response"]) == (200, True, True)
    wait_until(lambda: [each.result for each in server.replies] == ["cleared"], "counted")


@pytest.mark.parametrize(
    ("path", "headers", "status", "why"),
    [
        ("/mutate", {}, 404, "no page /mutate; right is POST /clear"),
        ("/clear", {"Content-Length": "many"}, 411, "Content-Length is 'many'"),
        ("/clear", {"Content-Length": str(MAX_BYTES + 1)}, 413, "the body has 8388609 bytes"),
    ],
)
def test_request_that_is_no_review_says_what_would_be_right(
    server: Server, path: str, headers: dict[str, str], status: int, why: str
) -> None:
    found, told = server.post(b"{}", path, **headers)
    assert found == status
    assert told["error"].startswith(why)


def test_client_that_says_nothing_keeps_no_review_waiting(tmp_path: Path) -> None:
    slow = Server(tmp_path, 1.0)
    try:
        silent = [
            socket.create_connection(("127.0.0.1", slow.server.port), timeout=hang_s())
            for _ in range(20)
        ]
        assert slow.post(CHOSEN)[0] == 200
        for each in silent:  # before any handshake
            assert each.recv(1) == b""
            each.close()
        wait_until(lambda: slow.server.connections == 0, "all are closed")
    finally:
        slow.server.close()


def test_renewed_certificate_serves_new_connections(server: Server, tmp_path: Path) -> None:
    before = certificates_in(tmp_path / "authority", "clearing").certificate.read_bytes()
    write_pair(tmp_path, time.time(), "other.ns.svc")  # a new name is a new certificate
    assert (tmp_path / "tls.crt").read_bytes() != before
    (tmp_path / "tls.key").write_bytes(b"half of it")  # the Secret is renewed file by file
    assert "no pair in PEM form" in server.certificate.read(time.time())
    assert server.post(CHOSEN)[0] == 200  # by the old one
    shutil.copy(tmp_path / "authority" / "clearing.key", tmp_path / "tls.key")
    assert server.certificate.read(time.time()) == ""
    assert server.post(CHOSEN)[0] == 200


def test_certificate_that_ended_or_is_missing_is_told(tmp_path: Path) -> None:
    assert Certificate(tmp_path / "none").read(0.0).endswith("No such file or directory")
    write_pair(tmp_path, 0.0)
    why = Certificate(tmp_path).read(time.time())
    assert "tls.crt ended at 1971-01-02T00:00:00Z: API servers refuse it" in why


def test_address_that_is_taken_is_told(server: Server) -> None:
    with pytest.raises(CannotStart, match=r"--http-host 127\.0\.0\.1 --port \d+: .*in use"):
        ReviewServer("127.0.0.1", server.server.port, server.certificate, server.log, server._done)
