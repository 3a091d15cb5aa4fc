"""The page's HTTP server: connections, common headers and shutdown.

aiohttp waits without limit for a connection's first request. This server closes a silent connection
after ``FIRST_REQUEST_S``. Connections beyond the bound are closed at once, so that a client with
many connections takes no memory and no descriptors from others.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Final, cast

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from berthmaster.lib.runtime.errors import CannotStart
from berthmaster.lib.runtime.log import LogLike

FIRST_REQUEST_S: Final = 10.0
KEEPALIVE_S: Final = 30.0
MAX_BODY_BYTES: Final = 256 * 1024
END_S: Final = 1.0
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class _Visitor(RequestHandler):
    __slots__ = ("_patience",)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        loop = asyncio.get_running_loop()
        # uvloop's transports are no subclass of asyncio's.
        abort = cast("asyncio.Transport", transport).abort
        self._patience = loop.call_later(FIRST_REQUEST_S, abort)

    def asked(self) -> None:
        """Note the arrival of a request's head."""
        self._patience.cancel()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._patience.cancel()
        super().connection_lost(exc)


class _TooMany(asyncio.Protocol):
    """A connection beyond the bound."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).abort()


class Site:
    def __init__(self, handler: Handler, most: int, log: LogLike) -> None:
        self._most = most
        self._log = log
        self.refused = 0
        self._handler = handler
        self._web = web.Server(self._answer, handler_cancellation=True)
        self._server: asyncio.Server | None = None

    @property
    def connections(self) -> int:
        return len(self._web.connections)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if isinstance(request.protocol, _Visitor):
            request.protocol.asked()
        return await self._handler(request)

    async def listen(self, host: str, port: int) -> int:
        """Listen, and return the port. Raises CannotStart."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._protocol, host, port, backlog=1024)
        except (OSError, OverflowError) as error:
            raise CannotStart(f"the page cannot listen on {host}:{port}: {error}") from error
        return int(self._server.sockets[0].getsockname()[1])

    def _protocol(self) -> asyncio.Protocol:
        if self.connections >= self._most:
            self.refused += 1
            return _TooMany()
        return _Visitor(
            self._web,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=KEEPALIVE_S,
        )

    async def close(self) -> None:
        """Close within about a second."""
        if self._server is not None:
            self._server.close()
            await self._web.shutdown(END_S)


def new_life() -> str:
    """Return a name for one process run."""
    return secrets.token_hex(6)
