"""The stream of changes: server-sent events, one for each version of the board that a browser
reads.

Nothing is queued for a browser. While the last event is not sent, the browser's cursor stays, and
the next event has the current state of all changes since then. A browser that reads nothing for
``WRITE_LIMIT_S`` is disconnected. The browser then reconnects with its position (Last-Event-ID).
"""

import asyncio
from collections.abc import Callable
from typing import Final

from aiohttp import web

from berthmaster.control.dashboard.core.board import Board, Scope
from berthmaster.control.dashboard.web import HEADERS

WRITE_LIMIT_S: Final = 20.0  # in which a browser must read an event
BEAT_S: Final = 10.0  # heartbeat interval without changes, to notice a dead connection
CHECK_S: Final = 5.0  # between two checks of the user's rights
RETRY_MS: Final = 1_000


class Streams:
    def __init__(
        self,
        board: Board,
        most: int,
        now: Callable[[], float],
        stopping: asyncio.Event,
        *,
        write_limit_s: float = WRITE_LIMIT_S,
    ) -> None:
        self._write_limit_s = write_limit_s
        self._board = board
        self._most = most
        self._now = now
        self._stopping = stopping
        self._changed = asyncio.Event()
        self.viewers = 0
        self.refused = 0
        self.let_go = 0
        self.sent_bytes = 0

    def turned(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def stop(self) -> None:
        """End all streams: each one sees that the service is stopping."""
        self._changed.set()

    async def serve(
        self, request: web.BaseRequest, scope: Scope, still: Callable[[], bool]
    ) -> web.StreamResponse:
        """Send changes until the browser disconnects. ``still`` returns whether its rights are
        unchanged.
        """
        if self.viewers >= self._most:
            self.refused += 1
            headers = HEADERS | {"Retry-After": "5"}
            return web.Response(status=503, headers=headers, text="too many look at once")
        response = web.StreamResponse(
            headers=HEADERS
            | {
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",
            }
        )
        self.viewers += 1
        try:
            await response.prepare(request)
            said = request.headers.get("Last-Event-ID") or request.query.get("after", "")
            await self._run(response, self._board.cursor_of(said), scope, still)
        except ConnectionError:
            pass  # the browser disconnected during a write
        except TimeoutError:
            self.let_go += 1
            if request.transport is not None:
                request.transport.abort()
        finally:
            self.viewers -= 1
        return response

    async def _run(
        self, response: web.StreamResponse, cursor: int, scope: Scope, still: Callable[[], bool]
    ) -> None:
        loop = asyncio.get_running_loop()
        await self._write(response, b"retry: %d\n\n" % RETRY_MS)
        check_s = loop.time() + CHECK_S
        while not self._stopping.is_set():
            changed = self._changed
            if cursor < self._board.version:
                told = self._board.update(cursor, scope, self._now())
                cursor = self._board.version
                await self._write(response, told)
                continue
            try:
                async with asyncio.timeout(BEAT_S):
                    await changed.wait()
            except TimeoutError:
                await self._write(response, b": nothing new\n\n")
            if loop.time() >= check_s:
                check_s = loop.time() + CHECK_S
                if not still():
                    return

    async def _write(self, response: web.StreamResponse, data: bytes) -> None:
        async with asyncio.timeout(self._write_limit_s):
            await response.write(data)
        self.sent_bytes += len(data)
