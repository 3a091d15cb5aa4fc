"""Parses the server's messages, faster than the library does, and passes messages to takers.

A subscription may have a taker: the parser calls the taker with the bytes of each message at once,
and the library never sees that message. The parser reads one client's burst before the messages of
the next client. So the cost of a message decides how long the others wait.

Three rules bound the time of one connection:

- After ``SLICE`` messages the event loop runs, however much there is to read.
- A connection for requests also pauses (``pause_s``), so that the server and the service have the
  cores meanwhile. In a long burst the pauses end, or the server would drop the connection.
- A service that only shows or records events reads in rounds (``round_s``), since a wake-up costs
  more than a message. Example: at 100 jobs a second a dashboard wakes 10 times a second instead of
  400 times. A pending answer ends the pause.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from berthmaster.lib.nats.nats_py import errors as nats_errors

# isort: split
from nats.protocol.parser import Parser  # after nats_py, which sees to what nats imports

Taker = Callable[[bytes, bytes, bytes, bytes], None]  # (subject, reply, headers or b"", body)
_END: Final = b"\r\n"
SLICE: Final = 32  # messages read before the event loop runs; less than a millisecond of work
PAUSE_S: Final = 0.001  # between slices of other clients' messages
PAUSES_S: Final = 0.25  # total of such pauses in a row: some 8,000 messages
PAUSES_SHARE: Final = 0.1  # fraction of the time, in the long run
FULL_READ: Final = 32 * 1024  # the maximum of one read, so more data waits
_MESSAGES: Final = (b"MSG", b"HMSG")


class MessageParser(Parser):
    """The library's parser, with message parsing replaced."""

    def __init__(self, nc: Any) -> None:
        self.takers: dict[bytes, Taker] = {}  # by subscription number
        self.pause_s = 0.0
        self.round_s = 0.0  # seconds between two reads of the server's messages; 0 = at once
        self.pending_answers = 0  # while above 0, messages are read at once
        self._wake: asyncio.Future[None] | None = None
        self._pauses_left_s = PAUSES_S
        self._paused_at_s = 0.0
        self._connections = 0
        self._needs = 0
        super().__init__(nc)

    def reset(self) -> None:
        """Begin another connection, with an empty buffer."""
        self._connections += 1
        self._needs = 0
        super().reset()

    async def parse(self, data: bytes = b"") -> None:
        """Handle all complete messages. The remaining bytes wait for more."""
        self.buf.extend(data)
        if len(self.buf) < self._needs:
            return
        stock = bytes(self.buf)
        at = self._needs = 0
        connection = self._connections
        read = 0
        try:
            while (end := stock.find(_END, at)) >= 0:
                fields = stock[at:end].split()
                kind = fields[0] if fields else b""
                if kind not in _MESSAGES:
                    line = stock[at : end + 2]
                    at = end + 2
                    await self._other(line)
                else:
                    begin = end + 2
                    try:
                        stop = begin + int(fields[-1])
                        has_headers = kind == b"HMSG"
                        body = begin + int(fields[-2]) if has_headers else begin
                        number = fields[2]
                    except (ValueError, IndexError):
                        raise nats_errors.ProtocolError("nats: malformed MSG") from None
                    if len(stock) < stop + 2:
                        self._needs = stop + 2 - at
                        break
                    at = stop + 2
                    reply = fields[3] if len(fields) == (6 if has_headers else 5) else b""
                    take = self.takers.get(number)
                    headers = stock[begin:body] if has_headers else b""
                    if take is None:
                        await self.nc._process_msg(
                            int(number), fields[1], reply, stock[body:stop], headers or None
                        )
                    else:
                        take(fields[1], reply, headers, stock[body:stop])
                    read += 1
                    if read % SLICE == 0:
                        await self._pause()
                if connection != self._connections:
                    return
        finally:
            if connection == self._connections:
                self.buf = bytearray(stock[at:])
        if self.round_s and not self.pending_answers and len(data) < FULL_READ:
            await self._let_gather(self.round_s)

    def await_answer(self) -> None:
        """Read at once, since an answer is expected. Call ``end_answer`` afterwards."""
        self.pending_answers += 1
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def end_answer(self) -> None:
        """End ``await_answer``: the answer has come, or the request was abandoned."""
        self.pending_answers -= 1

    async def _let_gather(self, round_s: float) -> None:
        """Leave new bytes in the kernel, without a wake-up."""
        writer = getattr(self.nc._transport, "_io_writer", None)
        if writer is None or writer.transport.is_closing():
            return
        transport, loop = writer.transport, asyncio.get_running_loop()
        wake = self._wake = loop.create_future()
        timer = loop.call_later(round_s, _set, wake)
        transport.pause_reading()
        try:
            await wake
        finally:
            timer.cancel()
            if not transport.is_closing():
                transport.resume_reading()

    async def _pause(self) -> None:
        pause_s = self.pause_s
        if pause_s:
            now_s = asyncio.get_running_loop().time()
            earned_s = PAUSES_SHARE * (now_s - self._paused_at_s)
            self._pauses_left_s = min(PAUSES_S, self._pauses_left_s + earned_s)
            self._paused_at_s = now_s
            pause_s = pause_s if pause_s <= self._pauses_left_s else 0.0
            self._pauses_left_s -= pause_s
        await asyncio.sleep(pause_s)

    async def _other(self, line: bytes) -> None:
        """Parse a line other than a message, by the library's rules."""
        connection = self._connections
        self.buf = bytearray(line)
        await super().parse()
        if connection == self._connections and self.buf:
            raise nats_errors.ProtocolError("nats: unknown protocol")


def _set(wake: "asyncio.Future[None]") -> None:
    if not wake.done():
        wake.set_result(None)
