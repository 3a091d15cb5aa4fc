"""/healthz, /readyz and /metrics over HTTP, by http.server in threads of its own.

Threads, because a stuck event loop must still be reported as stuck. A connection serves a single
GET or HEAD and has a single deadline. Above MAX_CONNECTIONS, a new connection closes the oldest. So
slow clients occupy only a few threads and block no probe. By default only this machine can connect.

`BoundedServer` holds these limits, for other small servers too: hub/clearing/server.py.
"""

import socket
import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs

from prometheus_client.exposition import choose_encoder

from berthmaster.lib.runtime.errors import CannotStart
from berthmaster.lib.runtime.health import Health
from berthmaster.lib.runtime.log import Log
from berthmaster.lib.runtime.metrics import Metrics
from berthmaster.lib.runtime.visible_text import dumps

CONNECTION_LIMIT_S: Final = 5.0  # slower probes and scrapers have timed out
MAX_CONNECTIONS: Final = 32  # threads, each with a page of metrics of some 100 KiB at most
LOOK_S: Final = 0.1  # between two checks for expired connections

Answer = Callable[[], tuple[bool, dict[str, object]]]


class _Handler(BaseHTTPRequestHandler):
    server: "StatusServer"

    def do_GET(self) -> None:  # http.server's name
        path, _, query = self.path.partition("?")
        if path == "/metrics":
            self._show_metrics(query)
        elif answer := self.server.answers.get(path):
            ok, fields = answer()
            self._say(HTTPStatus.OK if ok else HTTPStatus.SERVICE_UNAVAILABLE, fields)
        else:
            self._say(HTTPStatus.NOT_FOUND, {"error": "try /healthz, /readyz or /metrics"})

    do_HEAD = do_GET  # noqa: N815 # http.server's name

    def _show_metrics(self, query: str) -> None:
        encode, kind = choose_encoder(self.headers.get("Accept", ""))
        registry: Any = self.server.metrics.registry
        if names := parse_qs(query).get("name[]"):
            registry = registry.restricted_registry(names)
        try:
            with self.server.encoding:
                if not self.server.has(self.connection):
                    return
                page = encode(registry)
        except Exception as error:  # noqa: BLE001 # one gauge that fails ends nothing
            self.server.log.error("metrics", error=error)
            fields: dict[str, object] = {"error": "the metrics cannot be read"}
            self._say(HTTPStatus.INTERNAL_SERVER_ERROR, fields)
        else:
            self._send(HTTPStatus.OK, kind, page)

    def _say(self, status: HTTPStatus, fields: dict[str, object]) -> None:
        self._send(status, "application/json", dumps(fields) + b"\n")

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        self.server.log.debug("http", text=format % args)


class BoundedServer(ThreadingHTTPServer):
    """Serves with a thread for each connection, a deadline for each, and a limit of connections.

    A subclass calls ``start`` when its own fields are set. Raises OSError or OverflowError if the
    address cannot be used.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 1024  # pending connections in the kernel

    def __init__(
        self,
        host: str,
        port: int,
        handler: type[BaseHTTPRequestHandler],
        log: Log,
        *,
        limit_s: float,
        most: int = MAX_CONNECTIONS,
    ) -> None:
        self.log = log
        self._most = most
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._open: dict[socket.socket, float] = {}  # connection -> its deadline, oldest first
        super().__init__((host, port), handler)
        self.port = int(self.server_address[1])

    def start(self, name: str) -> None:
        """Serve in a thread of this name until ``close``."""
        loop = threading.Thread(target=self.serve_forever, args=(LOOK_S,), name=name, daemon=True)
        loop.start()

    @property
    def connections(self) -> int:
        return len(self._open)

    def has(self, connection: socket.socket) -> bool:
        """Return whether a connection is still open."""
        return connection in self._open

    def server_bind(self) -> None:
        """Bind as TCPServer does. HTTPServer would also look up the host's name in the DNS."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def close(self) -> None:
        """Accept no more requests, close open connections, and free the port."""
        self.shutdown()
        self.server_close()
        self._end(self._most, float("inf"))

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start the thread of a connection. Above the limit, close the oldest connection."""
        self._end(len(self._open) + 1 - self._most, 0.0)
        with self._lock:
            self._open[request] = time.monotonic() + self._limit_s
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Close the expired connections. serve_forever calls this."""
        self._end(0, time.monotonic())

    def shutdown_request(self, request: Any) -> None:
        """Forget an answered connection, and close it."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a handler's exception as debug: a client that disconnects is no error of the
        service.
        """
        self.log.debug("http", text="connection failed", why=str(sys.exception()))

    def _end(self, oldest: int, now_s: float) -> None:
        with self._lock:
            found = list(self._open.items())
            for number, (request, deadline_s) in enumerate(found):
                if number < oldest or deadline_s <= now_s:
                    del self._open[request]
                    try:
                        # wakes the thread, which closes the connection
                        request.shutdown(socket.SHUT_RDWR)
                    except OSError:
                        continue  # the client was faster


class StatusServer(BoundedServer):
    """Serves the state of one service until closed."""

    def __init__(
        self,
        host: str,
        port: int,
        health: Health,
        metrics: Metrics,
        log: Log,
        *,
        limit_s: float = CONNECTION_LIMIT_S,
    ) -> None:
        self.metrics = metrics
        self.answers: dict[str, Answer] = {"/healthz": health.alive, "/readyz": health.readiness}
        self.encoding = threading.Lock()  # one page at a time, or pages would starve the event loop
        try:
            super().__init__(host, port, _Handler, log, limit_s=limit_s)
        except (OSError, OverflowError) as error:
            raise CannotStart(
                f"--http-host {host} --http-port {port}: {error}; "
                "choose another port, 0 for any free one, or -1 for none"
            ) from error
        self.start("status-http")
