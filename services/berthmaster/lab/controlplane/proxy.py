"""A proxy before an API server that can be slow, interrupted, closed or silent.

The proxy forwards TLS unchanged, so certificates and tokens work. It delays a client's application
data by `delay_s`, but not the handshake, and needs no decryption for that. So each call takes that
much longer, on a new or a kept connection, while events of a watch arrive at once. The proxy runs
in its own thread and counts accepted connections.
"""

import asyncio
import struct
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from berthmaster.lab.controlplane.patience import hang_s
from berthmaster.lib.runtime.ports import PortClaims

ANSWER_LIMIT_S: Final = 10.0
_APPLICATION_DATA: Final = 23  # TLS record type; in TLS 1.3 the end of the handshake has it too
_HEADER: Final = struct.Struct("!BHH")
_CHUNK_BYTES: Final = 64 * 1024
_QUEUED: Final = 1024  # limit of delayed records of one connection; then the client must wait

Answer = TypeVar("Answer")


class Proxy:
    """One proxy. Changes of `delay_s` apply to later data."""

    def __init__(self, target_port: int, *, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self.connections = 0
        self._claims = PortClaims()  # kept, because the proxy closes and opens again
        [self.port] = self._claims.choose(1)
        self._target_port = target_port
        self._deaf = False
        self._open: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    @property
    def url(self) -> str:
        """Return the URL for clients."""
        return f"https://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the thread and open the proxy."""
        self._thread.start()
        self.open()

    def stop(self) -> None:
        """Close the proxy for good."""
        self.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(hang_s())
        self._loop.close()

    def cut(self) -> None:
        """Interrupt every connection, and accept new ones."""
        self._do(self._cut)

    def close(self) -> None:
        """End all connections, and refuse new ones."""

        async def work() -> None:
            if self._server is not None:
                self._server.close()
                self._server = None
            await self._cut()

        self._do(work)

    def open(self) -> None:
        """Accept and forward connections again."""

        async def work() -> None:
            self._deaf = False
            if self._server is None:
                self._server = await asyncio.start_server(
                    self._accept, "127.0.0.1", self.port, limit=_CHUNK_BYTES
                )

        self._do(work)

    def go_deaf(self) -> None:
        """Accept connections and answer nothing, like a host without network."""

        async def work() -> None:
            self._deaf = True

        self._do(work)

    def _do(self, work: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(ANSWER_LIMIT_S)

    async def _cut(self) -> None:
        await asyncio.sleep(0)  # so that connections accepted just now are included
        for task in tuple(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _accept(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        self.connections += 1
        try:
            await self._serve(client, answers)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # a side hung up, or the proxy was cut
        finally:
            self._open.discard(task)
            answers.transport.abort()

    async def _serve(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        server, requests = await asyncio.open_connection("127.0.0.1", self._target_port)
        held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_QUEUED)
        parts = [
            asyncio.ensure_future(self._hold_back(client, held)),
            asyncio.ensure_future(self._let_go(held, requests)),
            asyncio.ensure_future(self._pass_on(server, answers)),
        ]
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        finally:
            requests.transport.abort()  # before any wait, because a second cut would end that wait
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)

    async def _hold_back(
        self, client: asyncio.StreamReader, held: asyncio.Queue[tuple[float, bytes]]
    ) -> None:
        while True:
            header = await client.readexactly(_HEADER.size)
            kind, _version, length = _HEADER.unpack(header)
            record = header + await client.readexactly(length)
            delay_s = self.delay_s if kind == _APPLICATION_DATA else 0.0
            await held.put((self._loop.time() + delay_s, record))

    async def _let_go(
        self, held: asyncio.Queue[tuple[float, bytes]], requests: asyncio.StreamWriter
    ) -> None:
        while True:
            due_s, record = await held.get()
            await asyncio.sleep(max(0.0, due_s - self._loop.time()))
            await self._hearing()
            requests.write(record)
            await requests.drain()

    async def _pass_on(self, server: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        while data := await server.read(_CHUNK_BYTES):
            await self._hearing()
            answers.write(data)
            await answers.drain()

    async def _hearing(self) -> None:
        while self._deaf:  # noqa: ASYNC110 # another thread ends it
            await asyncio.sleep(0.05)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
