"""A TCP proxy between a client and nats-server that loses what a test tells it to lose.

It understands the protocol far enough to drop whole messages: what it passes on is always valid, so
that a loss looks to both ends as if the network, or the other end, had swallowed it.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

from tests.support.patience import hang_s

_SIZED = re.compile(rb"(?i)^(MSG|HMSG|PUB|HPUB)\s")


class Passing(NamedTuple):
    line: bytes  # such as b"PUB subject reply 5"
    payload: bytes


Verdict = Callable[[Passing], bool]  # True = lose it


class Proxy:
    """Listens on a port of its own; every connection goes on to the server."""

    def __init__(self, target: str) -> None:
        host, _, port = target.removeprefix("nats://").rpartition(":")
        self._target = (host, int(port))
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._ways: set[asyncio.Task[None]] = set()
        self._stopped = False
        self._open = asyncio.Event()
        self._open.set()
        self.url = ""
        self.to_client: Verdict = lambda _: False
        self.to_server: Verdict = lambda _: False
        self.lost: list[Passing] = []

    def hold(self) -> None:
        """Nothing passes from now on, and nobody is told."""
        self._open.clear()

    def go_on(self) -> None:
        self._open.set()

    def cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"nats://127.0.0.1:{port}"

    async def stop(self) -> None:
        self._stopped = True
        self._open.set()
        if self._server is not None:
            self._server.close()
        self.cut()
        if self._ways:
            await asyncio.wait(self._ways, timeout=hang_s())

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, back}
        if self._stopped:
            self.cut()
            return
        ends = (writer, back)
        for way in (
            self._pass(reader, back, lambda: self.to_server, ends),
            self._pass(there, writer, lambda: self.to_client, ends),
        ):
            going = asyncio.create_task(way)
            self._ways.add(going)
            going.add_done_callback(self._ways.discard)

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        lose: Callable[[], Verdict],
        ends: tuple[asyncio.StreamWriter, ...],
    ) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            while line := await reader.readline():
                payload = b""
                if _SIZED.match(line):
                    payload = await reader.readexactly(int(line.split()[-1]) + 2)
                await self._open.wait()
                passing = Passing(line.strip(), payload[:-2])
                if lose()(passing):
                    self.lost.append(passing)
                    continue
                writer.write(line + payload)
                await writer.drain()
        for end in ends:
            end.transport.abort()
        self._writers.difference_update(ends)


@asynccontextmanager
async def proxied(url: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(url)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()


def the_next(matches: Verdict, count: int = 1) -> Verdict:
    left = count

    def lose(passing: Passing) -> bool:
        nonlocal left
        if left > 0 and matches(passing):
            left -= 1
            return True
        return False

    return lose


def acknowledgement(passing: Passing) -> bool:
    return b'"stream":' in passing.payload and b'"seq":' in passing.payload


def published_to(subject: str) -> Verdict:
    return lambda passing: passing.line.split()[1:2] == [subject.encode()]
