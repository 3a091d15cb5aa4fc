"""/healthz, /readyz and /metrics over HTTP, by http.server in threads of their own.

Not on the event loop: a loop that is stuck must still be reported as stuck. A connection is for one
GET or HEAD. Every connection has one deadline for all that happens on it, and one connection too
many ends the oldest, so slow clients hold only a few threads and keep no probe from its answer. By
default only this machine can connect.
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

CONNECTION_LIMIT_S: Final = 5.0  # a prober or scraper that needs longer has gone
MAX_CONNECTIONS: Final = 32  # threads, each with a page of metrics of some 100 KiB at most
LOOK_S: Final = 0.1  # between two looks for connections whose time is over

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


class StatusServer(ThreadingHTTPServer):
    """Serves the state of one service until closed."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 1024  # connections that the kernel keeps for us

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
        self.log = log
        self.metrics = metrics
        self.answers: dict[str, Answer] = {"/healthz": health.alive, "/readyz": health.readiness}
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._limit_s = limit_s
        self.encoding = threading.Lock()  # one page at a time, or pages would starve the event loop
        self._lock = threading.Lock()
        self._open: dict[socket.socket, float] = {}  # connection -> its deadline, the oldest first
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise CannotStart(
                f"--http-host {host} --http-port {port}: {error}; "
                "choose another port, 0 for any free one, or -1 for none"
            ) from error
        self.port = int(self.server_address[1])
        self._thread = threading.Thread(
            target=self.serve_forever, args=(LOOK_S,), name="status-http", daemon=True
        )
        self._thread.start()

    @property
    def connections(self) -> int:
        return len(self._open)

    def has(self, connection: socket.socket) -> bool:
        """Return whether a connection is open still."""
        return connection in self._open

    def server_bind(self) -> None:
        """Bind as TCPServer does: HTTPServer would also ask a name server for the host's name."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def close(self) -> None:
        """Take no more requests, end those that are open, and free the port."""
        self.shutdown()
        self.server_close()
        self._end(MAX_CONNECTIONS, float("inf"))

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start the thread of a connection; one too many ends the oldest."""
        self._end(len(self._open) + 1 - MAX_CONNECTIONS, 0.0)
        with self._lock:
            self._open[request] = time.monotonic() + self._limit_s
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """End the connections whose time is over; serve_forever calls this."""
        self._end(0, time.monotonic())

    def shutdown_request(self, request: Any) -> None:
        """Forget a connection that is answered, and close it."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log what a handler raised; a client that has gone is no error of ours."""
        self.log.debug("http", text="connection failed", why=str(sys.exception()))

    def _end(self, oldest: int, now_s: float) -> None:
        with self._lock:
            found = list(self._open.items())
            for number, (request, deadline_s) in enumerate(found):
                if number < oldest or deadline_s <= now_s:
                    del self._open[request]
                    try:
                        request.shutdown(socket.SHUT_RDWR)  # wakes its thread, which closes it
                    except OSError:
                        continue  # the client was faster
