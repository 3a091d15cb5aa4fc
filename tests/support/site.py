"""An HTTP server of a test's own, on a port of the loopback that it keeps from life to life."""

import ssl
from types import TracebackType
from typing import Final, Self

from aiohttp import web

MOST_BYTES: Final = 2**26  # of a request


class Site:
    """``async with`` starts it; those who derive from it say what it answers."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._runner: web.AppRunner | None = None
        self.port = 0

    def routes(self) -> list[web.RouteDef]:
        raise NotImplementedError

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    async def start(self) -> None:
        app = web.Application(client_max_size=MOST_BYTES)
        app.add_routes(self.routes())
        self._runner = web.AppRunner(app, shutdown_timeout=0.01, handle_signals=False)
        await self._runner.setup()
        site = web.TCPSite(
            self._runner, "127.0.0.1", self.port, ssl_context=self._tls, reuse_address=True
        )
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """As if killed: connections break, nothing listens."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()
