"""The HTTPS server: POST /clear, one review a connection, and a certificate that may be renewed.

Each connection has a deadline below the API server's own (5 s in the chart). So a client that sends
nothing costs a thread for some seconds, and no review waits longer.
"""

import socket
import ssl
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Final

from berthmaster.hub.clearing.core.review import Reply, answer, malformed
from berthmaster.lib.access.certificates import CertificatesError, ends_at_s
from berthmaster.lib.kube.certificate_files import check_pair
from berthmaster.lib.kube.objects import timestamp
from berthmaster.lib.runtime.errors import CannotStart
from berthmaster.lib.runtime.http import BoundedServer
from berthmaster.lib.runtime.log import Log

PATH: Final = "/clear"
LIMIT_S: Final = 4.0  # of a connection: the API server waits 5 s
MAX_CONNECTIONS: Final = 256  # Kueue's manager has some tens of writes in flight
MAX_BYTES: Final = 8 * 1024 * 1024  # two objects of at most 1.5 MiB each, as JSON


class Certificate:
    """The pair in a folder, as a context for new connections."""

    def __init__(self, folder: Path) -> None:
        self._certificate, self._key = folder / "tls.crt", folder / "tls.key"
        self._loaded: tuple[bytes, bytes] = (b"", b"")
        self.context: ssl.SSLContext | None = None

    def read(self, now_s: float) -> str:
        """Load a new pair; the old one stays if the new one is invalid. Return what is wrong, or
        "".
        """
        try:
            pair = self._certificate.read_bytes(), self._key.read_bytes()
            if pair != self._loaded:
                check_pair(*pair)
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.minimum_version = ssl.TLSVersion.TLSv1_2
                context.load_cert_chain(self._certificate, self._key)
                self.context, self._loaded = context, pair
            until_s = ends_at_s(self._certificate)
        except OSError as error:  # ssl.SSLError too
            return f"{error.filename or self._certificate}: {error.strerror or error}"
        except (ValueError, CertificatesError) as error:
            return f"{self._certificate}: {error}"
        if until_s <= now_s:
            return (
                f"{self._certificate} ended at {timestamp(until_s)}: API servers refuse it; the "
                "pod berth-accounts or cert-manager renews it"
            )
        return ""


class _Handler(BaseHTTPRequestHandler):
    server: "ReviewServer"

    def do_POST(self) -> None:  # http.server's name
        began_s = time.monotonic()
        reply = self._reply()
        self.send_response(reply.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body)
        self.server.done(reply, time.monotonic() - began_s)

    def _reply(self) -> Reply:
        if self.path.partition("?")[0] != PATH:
            why = f"no page {self.path}; right is POST {PATH}"
            return malformed(why, HTTPStatus.NOT_FOUND)
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal()):
            why = f"Content-Length is {length!r}; right is the number of bytes of the body"
            return malformed(why, HTTPStatus.LENGTH_REQUIRED)
        if int(length[:12]) > MAX_BYTES:
            why = f"the body has {length[:12]} bytes; at most {MAX_BYTES} are read"
            return malformed(why, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            return malformed(f"the body ended after {len(body)} of {length} bytes")
        return answer(body)

    def log_message(self, format: str, *args: Any) -> None:
        self.server.log.debug("http", text=format % args)


class ReviewServer(BoundedServer):
    """Answers reviews until closed."""

    def __init__(
        self,
        host: str,
        port: int,
        certificate: Certificate,
        log: Log,
        done: Callable[[Reply, float], None],
        *,
        limit_s: float = LIMIT_S,
    ) -> None:
        """``done`` gets each answer and its seconds, in the connection's thread."""
        self._certificate = certificate
        self.done = done
        try:
            super().__init__(host, port, _Handler, log, limit_s=limit_s, most=MAX_CONNECTIONS)
        except (OSError, OverflowError) as error:
            raise CannotStart(
                f"--http-host {host} --port {port}: {error}; choose another port, 0 = any free one"
            ) from error
        self.start("reviews")

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection. Its own thread does the handshake, under the deadline."""
        plain, address = super().get_request()
        context = self._certificate.context
        if context is None:
            plain.close()
            raise ConnectionAbortedError("no certificate yet")  # OSError: socketserver goes on
        try:
            return context.wrap_socket(
                plain, server_side=True, do_handshake_on_connect=False
            ), address
        except OSError:
            plain.close()
            raise
