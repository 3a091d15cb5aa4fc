"""/healthz, /readyz and /metrics over HTTP, from a thread of their own.

Not on the event loop: a loop that is stuck must still be able to be reported as stuck. Every answer
is short and built from memory, requests have a time limit and a bound on how many run at once, and
by default nobody outside the machine can ask.
"""

import socket
import threading
from collections.abc import Callable, Iterable
from http import HTTPStatus
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import make_wsgi_app

from berthmaster.runtime.errors import CannotStart
from berthmaster.runtime.health import Health
from berthmaster.runtime.log import Log
from berthmaster.runtime.metrics import Metrics
from berthmaster.runtime.plain_json import dumps

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

REQUEST_LIMIT_S = 5.0  # a scraper that needs longer has gone
MAX_REQUESTS = 16  # at once; a probe and a few scrapers need two or three

Answer = Callable[[], tuple[bool, dict[str, object]]]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, host: str, port: int, log: Log) -> None:
        self.log = log
        self._free = threading.BoundedSemaphore(MAX_REQUESTS)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # past HTTPServer's, which asks the DNS for our name
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread to be had: this request is lost, its place is not
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        self.log.debug("http_request_broken", client=str(client_address))


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_LIMIT_S
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        self.server.log.debug("http", text=format % args)


class StatusServer:
    """Serves the state of one service until closed."""

    def __init__(self, host: str, port: int, health: Health, metrics: Metrics, log: Log) -> None:
        try:
            self._server = _Server(host, port, log)
        except (OSError, OverflowError) as error:
            raise CannotStart(
                f"--http-host {host} --http-port {port}: {error}; "
                "choose another port, 0 for any free one, or -1 for none"
            ) from error
        self._server.set_app(status_app(health, metrics))
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.1},
            name="status-http",
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        """Take no more requests and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(REQUEST_LIMIT_S)


def status_app(health: Health, metrics: Metrics) -> "WSGIApplication":
    """The three pages; everything else is 404 with their names."""
    exposition = make_wsgi_app(metrics.registry)
    answers: dict[str, Answer] = {"/healthz": health.alive, "/readyz": health.readiness}

    def app(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            shown: Iterable[bytes] = exposition(environ, start_response)
            return shown
        if answer := answers.get(path):
            ok, fields = answer()
            status = HTTPStatus.OK if ok else HTTPStatus.SERVICE_UNAVAILABLE
        else:
            status = HTTPStatus.NOT_FOUND
            fields = {"error": "try /healthz, /readyz or /metrics"}
        body = dumps(fields) + b"\n"
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        start_response(f"{status.value} {status.phrase}", headers)
        return [body]

    return app
