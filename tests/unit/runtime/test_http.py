"""What a service shows over HTTP, and that nobody can keep a probe from it."""

import io
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import msgspec
import pytest

from berthmaster.runtime import http
from berthmaster.runtime.errors import CannotStart
from berthmaster.runtime.health import Health
from berthmaster.runtime.http import StatusServer
from berthmaster.runtime.log import Log
from berthmaster.runtime.metrics import Metrics
from berthmaster.runtime.open_files import raise_open_files
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
        (b"POST /healthz HTTP/1.1\r\n\r\n", b"HTTP/1.0 405 Method Not Allowed"),
        (b"\x16\x03\x01 nonsense\r\n\r\n", b"HTTP/1.0 405 Method Not Allowed"),
        (b"GET\r\n\r\n", b"HTTP/1.0 404 Not Found"),
        (b"GET //[ HTTP/1.1\r\n\r\n", b"HTTP/1.0 404 Not Found"),
        (b"GET /" + b"x" * 20_000, b"HTTP/1.0 431 Request Header Fields Too Large"),
    ],
)
def test_what_is_no_request_of_ours_is_answered_as_such(
    status: StatusServer, sent: bytes, line: bytes
) -> None:
    with connect(status, sent) as client:
        assert client.recv(100).split(b"\r\n")[0] == line


def test_a_thousand_idle_connections_and_slow_readers_leave_the_probe_its_answer(
    monkeypatch: pytest.MonkeyPatch, status: StatusServer, metrics: Metrics
) -> None:
    # A probe behind one of them would wait for ever.
    monkeypatch.setattr(http, "CONNECTION_LIMIT_S", NEVER_S)
    figure = metrics.gauge("width", "Wide enough to fill every buffer on its way", ["node"])
    for number in range(20_000):
        figure.labels(f"node-{number}-{'x' * 100}").set(number)
    assert raise_open_files() > 1500
    with ExitStack() as held:
        for _ in range(1000):
            held.enter_context(connect(status))
        assert is_probed(status)
        for _ in range(3 * http.MAX_PAGES):  # nobody reads what these have asked for
            reader = socket.socket()
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.connect(("127.0.0.1", status.port))
            reader.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            held.enter_context(reader)
            assert is_probed(status)
        assert (len(status.open) <= http.MAX_CONNECTIONS, len(status.pages)) == (
            True,
            http.MAX_PAGES,
        )


def test_a_connection_has_a_deadline_however_slowly_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, status: StatusServer
) -> None:
    monkeypatch.setattr(http, "CONNECTION_LIMIT_S", 0.3)
    began_s = time.monotonic()
    with connect(status) as client:
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
