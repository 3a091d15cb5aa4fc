"""Requests and answers over a single inbox. A refusal of the server is an answer too.

A server that denies a request reports the denial out of band and sends no reply. Here the caller
gets an error at once, instead of mistaking the silence for a slow or absent service.

A request is sent only while the server is connected, never buffered. Repeated requests would
otherwise all reach a returning server at once. Requests to JetStream's API share a window (see
window.py).
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

from berthmaster.lib.nats.connect_options import exposed
from berthmaster.lib.nats.errors import NoAnswer, NotConnected, NotPermitted
from berthmaster.lib.nats.message_parser import MessageParser, Taker
from berthmaster.lib.nats.nats_py import Client as NatsClient
from berthmaster.lib.nats.nats_py import Msg, Subscription
from berthmaster.lib.nats.nats_py import errors as nats_errors
from berthmaster.lib.nats.subjects import IMPORTED_JETSTREAM, JETSTREAM
from berthmaster.lib.nats.window import Window

API: Final = (JETSTREAM, IMPORTED_JETSTREAM)
GRACE_S: Final = 0.1
WRITE_AHEAD_BYTES: Final = 256 * 1024  # written bytes that the system has not sent yet
NO_RESPONDERS: Final = "503"
_VIOLATION: Final = re.compile(r'permissions violation for (publish|subscription) to "([^"]+)"')


def parse_violation(text: str) -> tuple[str, str] | None:
    """Return ("publish" or "subscription", subject in lower case) of a server's permission
    violation. The client library passes the text on in lower case.
    """
    found = _VIOLATION.search(text.lower())
    return (found[1], found[2]) if found else None


class _Question(NamedTuple):
    token: str
    subject: str
    data: bytes
    headers: dict[str, str] | None
    answer: "asyncio.Future[Msg]"


class Requests:
    """A connection's requests that wait for answers."""

    def __init__(self, nc: "PatientClient") -> None:
        self._nc = nc
        self._inbox = ""
        self._count = 0
        self._waiting: dict[str, _Question] = {}
        self._inbox_denied = ""
        self._window = Window()
        self._back = asyncio.Event()

    async def start(self) -> None:
        self._inbox = self._nc.new_inbox()
        await self._nc.listen(f"{self._inbox}.*", self._answer)

    async def ask(
        self, subject: str, data: bytes, timeout_s: float, headers: dict[str, str] | None
    ) -> Msg:
        """Send and wait for one answer.

        Raises NoAnswer, NotConnected, NotPermitted, and nats_errors.Error.
        """
        if self._inbox_denied:
            raise NotPermitted(self._inbox_denied)
        self._count += 1
        answer: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        question = _Question(str(self._count), subject, data, headers, answer)
        try:
            if subject.startswith(API):
                msg = await self._in_window(question, timeout_s)
            else:
                msg = await self._sent(question, timeout_s)
        except TimeoutError as error:
            why = "" if self._nc.is_connected else "; the server is away"
            raise NoAnswer(f"no answer on {subject} within {timeout_s:g} s{why}") from error
        if msg.headers is not None and msg.headers.get("Status") == NO_RESPONDERS:
            raise NoAnswer(f"nobody listens on {subject}")
        return msg

    async def _there(self) -> None:
        """Wait until a server is connected."""
        while not (self._nc.is_connected or self._nc.is_closed):
            self._back.clear()
            await self._back.wait()

    async def _sent(self, question: _Question, limit_s: float) -> Msg:
        answer = question.answer
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit_s
        if not self._nc.is_connected:
            async with asyncio.timeout_at(deadline):
                await self._there()
        self._waiting[question.token] = question
        reply = f"{self._inbox}.{question.token}"
        # After a suspension of the process, answers may wait to be read: allow another pause.
        timer = loop.call_at(deadline, loop.call_later, GRACE_S, _end_unanswered, answer)
        self._nc.message_parser.await_answer()
        try:
            await self._nc.publish(
                question.subject, question.data, reply=reply, headers=question.headers
            )
            return await answer
        finally:
            self._nc.message_parser.end_answer()
            timer.cancel()
            del self._waiting[question.token]
            answer.cancel()

    async def _in_window(self, question: _Question, limit_s: float) -> Msg:
        """Send within the window. The time limit applies twice: to the wait for a place, then to
        the server. Otherwise a request that waited long for a place would be sent with no time
        left, and the lateness would say nothing about the server.
        """
        key = (question.subject, question.data)
        async with asyncio.timeout(limit_s):
            await self._window.enter(key)
        try:
            msg = await self._sent(question, limit_s)
        except (asyncio.CancelledError, TimeoutError):
            if _was_unanswered(question.answer):
                self._window.late(question.token, key, limit_s)
            else:
                # the request was not sent yet, or the answer came together with the cancellation
                self._window.failed()
            raise
        except BaseException:
            self._window.failed()
            raise
        self._window.answered(key)
        return msg

    def denied(self, text: str) -> None:
        """Fail the requests that a reported permission violation concerns."""
        violation = parse_violation(text)
        if violation is None:
            return
        kind, subject = violation
        error: Exception = NotPermitted(text.removeprefix("nats: "))
        inbox_denied = kind == "subscription" and subject == f"{self._inbox}.*".lower()
        if inbox_denied:
            self._inbox_denied = f"this user may not listen to its own inbox: {error}"
            error = NotPermitted(self._inbox_denied)
        for question in self._waiting.values():
            concerned = inbox_denied or (kind == "publish" and question.subject.lower() == subject)
            if concerned and not question.answer.done():
                question.answer.set_exception(error)

    def interrupted(self) -> None:
        """Fail all requests after a disconnect: their answers do not reach the next connection."""
        self._fail(NoAnswer("the connection broke before the answer came"))

    def resumed(self) -> None:
        self._back.set()

    def closed(self) -> None:
        """Fail all requests after the connection was closed for good."""
        self._fail(NotConnected("the connection was closed"))
        self._back.set()

    def _fail(self, error: Exception) -> None:
        self._window.forget()
        for question in self._waiting.values():
            if not question.answer.done():
                question.answer.set_exception(error)

    def _answer(self, subject: bytes, reply: bytes, headers: bytes, body: bytes) -> None:
        token = subject.rpartition(b".")[2].decode("utf-8", "replace")
        self._window.came(token)
        question = self._waiting.get(token)
        if question is not None and not question.answer.done():
            fields = headers_of(headers) if headers else None
            question.answer.set_result(
                Msg(self._nc, subject.decode("utf-8", "replace"), reply.decode(), body, fields)
            )


def _was_unanswered(answer: "asyncio.Future[Msg]") -> bool:
    """Return whether the request was sent and abandoned without an answer."""
    if not answer.done():
        return False  # not sent yet
    return answer.cancelled() or isinstance(answer.exception(), TimeoutError)


def _end_unanswered(answer: "asyncio.Future[Msg]") -> None:
    if not answer.done():
        answer.set_exception(TimeoutError())


@asynccontextmanager
async def _cancellable() -> AsyncIterator[None]:
    """Raise CancelledError if the block swallowed a cancellation.

    The library connects under `asyncio.wait_for`. If a cancellation and a refused connection meet
    in one pass of the event loop, `wait_for` raises the refusal only. A client closed while a
    server is away would then retry for ever.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    try:
        yield
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError


def headers_of(block: bytes) -> dict[str, str]:
    """Return the headers of a message, with the status from the server's first line."""
    first, _, lines = block.partition(b"\r\n")
    headers = header_lines(lines)
    status, _, description = first.removeprefix(b"NATS/1.0").strip().partition(b" ")
    if status.isdigit():
        headers["Status"] = status.decode()
        if description:
            headers["Description"] = description.decode("utf-8", "replace")
    return headers


def header_lines(raw: bytes) -> dict[str, str]:
    """Return names and values, by lines. The library's reader tests each letter of a name for a
    blank: a tenth of the work of a service that follows the log.
    """
    headers = {}
    for line in raw.split(b"\r\n"):
        name, colon, value = line.partition(b":")
        words = name.split()
        if colon and len(words) == 1 and name.isascii():
            headers[words[0].decode()] = value.strip().decode("utf-8", "replace")
    return headers


class Listening:
    """A subscription whose messages go to a taker."""

    def __init__(self, client: "PatientClient", subscription: Subscription) -> None:
        self._client = client
        self._subscription = subscription

    async def unsubscribe(self) -> None:
        """Unsubscribe. Raises nats_errors.Error, OSError."""
        self._client.message_parser.takers.pop(b"%d" % self._subscription._id, None)
        await self._subscription.unsubscribe()


async def _none(_: Msg) -> None:
    """Ignore the message: the taker has handled it."""


class PatientClient(NatsClient):
    """The library's client, with these differences:

    - No error reported by a server closes the client for good. A service reconnects and reports the
      error, while operators correct users and limits. The library closes on any error but a stale
      connection or a missing permission.
    - Sockets of connection attempts that failed half-way are closed, without a wait. The library
      forgets some, and waits for others: asyncio never reports the end of a stream whose TLS
      handshake failed.
    - A tls URL requires TLS. The library would continue in plain text if the server, or an
      impostor, offers nothing else.
    - A local server cannot redirect the client to plain-text servers, unless permitted.
    - Headers are read in half the time. All publications of one event loop pass go to the server in
      one write, without a task in between.
    """

    plaintext = False

    def __init__(self) -> None:
        super().__init__()
        self._ps = self.message_parser = MessageParser(self)
        self._is_write_due = False

    async def listen(self, subject: str, take: Taker, queue: str = "") -> Listening:
        """Subscribe. ``take`` is called with each message as it is read, and must not raise.

        Raises nats_errors.Error, OSError.
        """
        subscription = await self.subscribe(subject, queue=queue, cb=_none)
        self.message_parser.takers[b"%d" % subscription._id] = take
        return Listening(self, subscription)

    def send_now(self, subject: str, data: bytes = b"") -> None:
        """Publish from synchronous code. The message is dropped while the server is away."""
        if self.is_connected:
            command = b"PUB %b %d\r\n%b\r\n" % (subject.encode(), len(data), data)
            self._pending.append(command)
            self._pending_data_size += len(command)
            self._write_soon()

    async def send_raw(self, publishing: list[bytes]) -> None:
        """Send publications that are already in the protocol's form."""
        self.stats["out_msgs"] += len(publishing)
        await self._send_command(b"".join(publishing))
        await self._flush_pending()

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        if force_flush or not self.is_connected:
            return await super()._flush_pending(force_flush)
        self._write_soon()
        return None

    def _write_soon(self) -> None:
        if not self._is_write_due:
            self._is_write_due = True
            asyncio.get_running_loop().call_soon(self._write)

    def _write(self) -> None:
        """Write all pending data. If the system accepts no more at present, the library's own
        flusher waits.
        """
        self._is_write_due = False
        if not self.is_connected:
            return  # connecting sends the pending data
        if not self._pending:  # a ping: counted here, but written by the library itself
            self._pending_data_size = 0
            return
        writer = getattr(self._transport, "_io_writer", None)
        if writer is None or writer.transport.get_write_buffer_size() > WRITE_AHEAD_BYTES:
            if self._flush_queue is not None and self._flush_queue.empty():
                self._flush_queue.put_nowait(asyncio.get_running_loop().create_future())
            return
        pending, self._pending, self._pending_data_size = self._pending, [], 0
        writer.transport.write(b"".join(pending))

    _parse_header_lines = staticmethod(header_lines)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        server = self._current_server
        is_tls = server is not None and server.uri.scheme == "tls"
        if initial_connection and is_tls and not info.get("tls_required"):
            raise nats_errors.Error("nats: the URL says tls and the server offers none")
        if not is_tls and not self.plaintext and (urls := info.get("connect_urls")):
            info = info | {"connect_urls": [each for each in urls if not exposed(each)]}
        await super()._process_info(info, initial_connection)

    async def _process_connect_init(self) -> None:
        try:
            async with _cancellable():
                await super()._process_connect_init()
        except BaseException:
            if self._transport is not None:
                self._transport.close()  # type: ignore[no-untyped-call]
                self._transport = None
            raise
        # asyncio would warn at each end of a TLS stream without this mark.
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None and writer.get_extra_info("sslcontext") is not None:
            writer.transport.get_protocol()._over_ssl = True

    async def _select_next_server(self) -> None:
        """Try the server that was left last. A suspended server accepts connections but stays
        silent.
        """
        if (left := self._current_server) in self._server_pool:
            self._server_pool.remove(left)
            self._server_pool.append(left)
        await super()._select_next_server()

    async def _connect_to_server(self, s: Any) -> None:
        if self._transport:
            self._transport.close()  # type: ignore[no-untyped-call]
        async with _cancellable():
            await super()._connect_to_server(s)

    async def _process_err(self, err_msg: str) -> None:
        if "stale connection" in err_msg or "permissions violation" in err_msg:
            await super()._process_err(err_msg)
            return
        error = nats_errors.Error(f"nats: {err_msg}")
        await self._error_cb(error)
        await self._process_op_err(error)
