"""What a service shows over HTTP, and that nobody can keep a probe from it."""

import io
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress

import msgspec
import pytest

from berthmaster.lib.runtime import http
from berthmaster.lib.runtime.errors import CannotStart
from berthmaster.lib.runtime.health import Health
from berthmaster.lib.runtime.http import StatusServer
from berthmaster.lib.runtime.log import Log
from berthmaster.lib.runtime.metrics import Metrics
from berthmaster.lib.runtime.process_setup import raise_open_files
from tests.support.patience import NEVER_S, hang_s


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("tiny")


@pytest.fixture
def status(metrics: Metrics) -> Iterator[StatusServer]:
    log = Log("tiny", stream=io.BytesIO())
    server = StatusServer("127.0.0.1", 0, Health(), metrics, log)
    yield server
    server.close()


def get(status: StatusServer, path: str, **headers: str) -> tuple[int, str, bytes]:
    request = urllib.request.Request(f"http://127.0.0.1:{status.port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=hang_s()) as reply:
            return reply.status, reply.headers["Content-Type"], reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read()


def is_probed(status: StatusServer) -> bool:
    """Return whether /healthz says 200, ever."""
    return get(status, "/healthz")[0] == 200


def connect(status: StatusServer, sent: bytes = b"") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", status.port), timeout=hang_s())
    client.sendall(sent)
    return client


def test_the_three_pages_and_no_other(status: StatusServer, metrics: Metrics) -> None:
    metrics.counter("jobs", "Jobs").inc(3)
    code, kind, body = get(status, "/healthz")
    assert (code, kind, msgspec.json.decode(body)["alive"]) == (200, "application/json", True)
    code, kind, body = get(status, "/readyz")
    assert (code, msgspec.json.decode(body)["why"]) == (503, "no part has reported yet")
    code, kind, body = get(status, "/metrics")
    assert (code, kind.startswith("text/plain")) == (200, True)
    assert b"\nberth_tiny_jobs_total 3.0\n" in body
    assert b"process_open_fds" in body
    only = get(status, "/metrics?name[]=berth_tiny_jobs_total")[2]
    assert [line for line in only.splitlines() if line[:1] != b"#"] == [
        b"berth_tiny_jobs_total 3.0"
    ]
    code, kind, _ = get(status, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert (code, kind.startswith("application/openmetrics-text")) == (200, True)
    assert get(status, "/") == (
        404,
        "application/json",
        b'{"error":"try /healthz, /readyz or /metrics"}\n',
    )


@pytest.mark.parametrize(
    ("sent", "line"),
    [
        (b"POST /healthz HTTP/1.1\r\n\r\n", b"HTTP/1.0 501 Unsupported method ('POST')"),
        (b"HEAD /healthz HTTP/1.1\r\n\r\n", b"HTTP/1.0 200 OK"),
        (b"GET //[ HTTP/1.1\r\n\r\n", b"HTTP/1.0 404 Not Found"),
        (b"GET /" + b"x" * 70_000 + b"\r\n", b"HTTP/1.0 414"),
    ],
)
def test_requests_that_are_no_get_of_a_page_are_answered(
    status: StatusServer, sent: bytes, line: bytes
) -> None:
    with connect(status, sent) as client:
        assert client.recv(100).startswith(line)


def test_a_head_request_gets_no_body(status: StatusServer) -> None:
    with connect(status, b"HEAD /healthz HTTP/1.1\r\n\r\n") as client:
        answer = b"".join(iter(lambda: client.recv(1000), b""))
    assert answer.partition(b"\r\n\r\n")[2] == b""


def test_a_thousand_idle_connections_and_slow_readers_leave_the_probe_its_answer(
    metrics: Metrics,
) -> None:
    # A probe behind one of them would wait for ever.
    status = StatusServer("127.0.0.1", 0, Health(), metrics, Log("tiny"), limit_s=NEVER_S)
    wide = metrics.gauge("width", "Wide enough to fill every buffer on its way", ["node"])
    for number in range(20_000):
        wide.labels(f"node-{number}-{'x' * 100}").set(number)
    assert raise_open_files() > 1500
    with ExitStack() as held:
        held.callback(status.close)
        for _ in range(1000):
            held.enter_context(connect(status))
        assert is_probed(status)
        for _ in range(2 * http.MAX_CONNECTIONS):  # nobody reads what these have asked for
            reader = socket.socket()
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.connect(("127.0.0.1", status.port))
            reader.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            held.enter_context(reader)
        assert is_probed(status)
        assert status.connections <= http.MAX_CONNECTIONS


def test_a_connection_has_a_deadline_however_slowly_it_goes_on(metrics: Metrics) -> None:
    status = StatusServer("127.0.0.1", 0, Health(), metrics, Log("tiny"), limit_s=0.3)
    began_s = time.monotonic()
    with closing(status), connect(status) as client:
        client.settimeout(0.02)
        while client.fileno() >= 0 and time.monotonic() < began_s + hang_s():
            with suppress(TimeoutError):
                try:
                    client.sendall(b"G")
                    assert client.recv(10) == b""
                except ConnectionError:
                    client.close()
    assert time.monotonic() - began_s > 0.2


def test_a_figure_that_cannot_be_read_ends_nothing(status: StatusServer, metrics: Metrics) -> None:
    def broken() -> float:
        raise ValueError("no such file")

    metrics.gauge("broken", "Broken").set_function(broken)
    assert get(status, "/metrics")[0] == 500
    assert get(status, "/healthz")[0] == 200


def test_a_port_that_is_taken_is_named(status: StatusServer) -> None:
    with pytest.raises(CannotStart, match=f"--http-port {status.port}"):
        StatusServer("127.0.0.1", status.port, Health(), Metrics("b"), Log("b"))
