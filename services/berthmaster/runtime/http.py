"""/healthz, /readyz and /metrics over HTTP, from a thread of their own.

Not on the event loop: a loop that is stuck must still be able to be reported as stuck. And nobody
may take a probe's answer away: a connection is for one request and has a deadline for all of it, so
many may be open, and one more ends the oldest, which has had the most time. A page of metrics is
made beside, so that it delays no probe, and only so many are on their way to slow readers. By
default nobody outside the machine can ask.
"""

import asyncio
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs

from prometheus_client.exposition import choose_encoder

from berthmaster.runtime.errors import CannotStart
from berthmaster.runtime.health import Health
from berthmaster.runtime.log import Log
from berthmaster.runtime.metrics import Metrics
from berthmaster.runtime.plain_json import dumps

CONNECTION_LIMIT_S: Final = 5.0  # a prober or scraper that needs longer has gone
MAX_CONNECTIONS: Final = 256
MAX_PAGES: Final = 16  # of metrics, made or being read; some 100 KiB each
MAX_HEAD_BYTES: Final = 16 * 1024  # of a request
ACCEPTED_AT_ONCE: Final = 64  # far below the bound: who comes is heard before it is the oldest
WAITING: Final = 1024  # connections that the system keeps for us
STOP_LIMIT_S: Final = 5.0

Answer = Callable[[], tuple[bool, dict[str, object]]]


class StatusServer:
    """Serves the state of one service until closed."""

    def __init__(self, host: str, port: int, health: Health, metrics: Metrics, log: Log) -> None:
        self.log = log
        self.answers: dict[str, Answer] = {"/healthz": health.alive, "/readyz": health.readiness}
        self.open: dict[_Connection, None] = {}  # the oldest first
        self.pages: dict[_Connection, None] = {}
        self._metrics = metrics
        self._pool = ThreadPoolExecutor(1, "status-metrics")
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(self._on_error)
        try:
            listener = _listen(host, port)
            listening = self.loop.create_server(
                lambda: _Connection(self), sock=listener, backlog=ACCEPTED_AT_ONCE
            )
            self._server = self.loop.run_until_complete(listening)
        except (OSError, OverflowError) as error:
            self.loop.close()
            raise CannotStart(
                f"--http-host {host} --http-port {port}: {error}; "
                "choose another port, 0 for any free one, or -1 for none"
            ) from error
        listener.listen(WAITING)
        self.port = int(listener.getsockname()[1])
        self._thread = threading.Thread(
            target=self.loop.run_forever, name="status-http", daemon=True
        )
        self._thread.start()

    async def page(self, query: str, accept: str) -> tuple[str, bytes]:
        """The figures and their content type."""
        encode, kind = choose_encoder(accept)
        registry: Any = self._metrics.registry
        if names := parse_qs(query).get("name[]"):
            registry = registry.restricted_registry(names)
        return kind, await self.loop.run_in_executor(self._pool, encode, registry)

    def close(self) -> None:
        """Take no more requests and free the port."""
        self.loop.call_soon_threadsafe(self._stop)
        self._thread.join(STOP_LIMIT_S)
        self._pool.shutdown(wait=False, cancel_futures=True)
        if not self._thread.is_alive():
            self.loop.close()

    def _stop(self) -> None:
        self._server.close()
        for connection in list(self.open):
            connection.end()
        self.loop.call_soon(self.loop.stop)  # after what they have still to do

    def _on_error(self, loop: asyncio.AbstractEventLoop, told: dict[str, Any]) -> None:
        # Such as no descriptor for one more connection: the loop waits a second by itself.
        why = str(told.get("exception") or "")
        self.log.warning("http", text=str(told.get("message")), why=why)


class _Connection(asyncio.Protocol):
    """One request and its answer."""

    def __init__(self, server: StatusServer) -> None:
        self._server = server
        self._head = bytearray()
        self._asked = False
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._page: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        _enter(self, self._server.open, MAX_CONNECTIONS)
        self._deadline = self._server.loop.call_later(CONNECTION_LIMIT_S, self.end)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.open.pop(self, None)
        self._server.pages.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
        if self._page is not None:
            self._page.cancel()

    def end(self) -> None:
        """At once, whatever is still to be sent."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._asked:
            return
        self._head += data
        head, found, _ = bytes(self._head).partition(b"\r\n\r\n")
        if len(self._head) > MAX_HEAD_BYTES:
            self._say(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, {"error": "too long a request"})
        elif found:
            self._answer(head.decode("latin-1"))

    def _answer(self, head: str) -> None:
        line, *fields = head.split("\r\n")
        method, _, rest = line.partition(" ")
        path, _, query = rest.partition(" ")[0].partition("?")
        self._server.log.debug("http", text=line)
        if method != "GET":
            self._say(HTTPStatus.METHOD_NOT_ALLOWED, {"error": "try GET"})
        elif path == "/metrics":
            self._asked = True
            _enter(self, self._server.pages, MAX_PAGES)
            self._page = self._server.loop.create_task(self._show(query, _accepted(fields)))
        elif answer := self._server.answers.get(path):
            ok, told = answer()
            self._say(HTTPStatus.OK if ok else HTTPStatus.SERVICE_UNAVAILABLE, told)
        else:
            self._say(HTTPStatus.NOT_FOUND, {"error": "try /healthz, /readyz or /metrics"})

    async def _show(self, query: str, accept: str) -> None:
        try:
            kind, page = await self._server.page(query, accept)
        except Exception as error:  # noqa: BLE001 # a figure that cannot be read ends nothing
            self._server.log.error("metrics", error=error)
            self._say(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": "the figures cannot be read"})
        else:
            self._send(HTTPStatus.OK, kind, page)

    def _say(self, status: HTTPStatus, fields: dict[str, object]) -> None:
        self._send(status, "application/json", dumps(fields) + b"\n")

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self._asked = True
        assert self._transport is not None
        head = (
            f"HTTP/1.0 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self._transport.write(head.encode("latin-1") + body)
        self._transport.close()  # when all is sent, or at the deadline


def _enter(who: _Connection, among: dict[_Connection, None], most: int) -> None:
    if len(among) >= most:
        oldest = next(iter(among))
        del among[oldest]
        oldest.end()
    among[who] = None


def _accepted(fields: list[str]) -> str:
    named = (field.partition(":") for field in fields)
    return next((value.strip() for name, _, value in named if name.lower() == "accept"), "")


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except BaseException:
        listener.close()
        raise
    return listener
