"""A connection to NATS, with time limits, so that the service never hangs.

The connection reconnects for ever, ends each request within its time limit, and keeps the server's
clock. Ages are measured by that clock, never by a distant machine's. The server reports permission
violations out of band. The connection reports violations, which would look like time-outs
otherwise.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from berthmaster.lib.nats.clock import ClockSync, ServerClock
from berthmaster.lib.nats.connect_faults import ConnectFaults
from berthmaster.lib.nats.connect_options import ConnectionSettings, connect_options, user_of
from berthmaster.lib.nats.errors import ApiError, BusError, NoAnswer, NotConnected, TooLarge
from berthmaster.lib.nats.nats_py import Msg, Subscription
from berthmaster.lib.nats.nats_py import errors as nats_errors
from berthmaster.lib.nats.requests import Listening, PatientClient, Requests
from berthmaster.lib.nats.stream_messages import stored_sequence
from berthmaster.lib.nats.subjects import JETSTREAM, jetstream, without_lanes
from berthmaster.lib.nats.write_health import WriteHealth
from berthmaster.lib.runtime.log import LogLike

REQUEST_TIMEOUT_S: Final = 1.0
CLOSE_TIMEOUT_S: Final = 1.0  # of each of two steps; a service has five seconds to stop
MAX_PASSED_ON_BYTES: Final = 4 * 1024 * 1024  # bytes that wait for the server
REPORT_INTERVAL_S: Final = 1.0  # between two lines about drops, which may number thousands


class _ApiErrorBody(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _ApiReply(msgspec.Struct):
    error: _ApiErrorBody | None = None


_API_REPLY: Final = msgspec.json.Decoder(_ApiReply)
# A header of each stored message in an answer of DIRECT.GET. JetStream answers to any subject that
# a request names. A message with this header on an observed subject was redirected by another
# service.
OF_A_STREAM: Final = "Nats-Stream"
_OF_A_STREAM: Final = OF_A_STREAM.encode()
# JetStream's answers contain the server's time
SERVER_CLOCK: Final = f"{JETSTREAM}STREAM.INFO.FLEET"
Handler = Callable[[str, bytes], None]


def _header_bytes(headers: Mapping[str, str] | None) -> int:
    """Return the header bytes that the server adds to the payload when checking the limit."""
    if not headers:
        return 0
    return 14 + sum(len(name) + len(value.encode()) + 4 for name, value in headers.items())


class Connection:
    """An open connection. Create with ``open`` and use as an async context manager."""

    def __init__(self, name: str, log: LogLike, clock: ServerClock | None = None) -> None:
        self.name = name
        self.log = log
        self.nc = PatientClient()
        self.reconnects = 0
        self._stored_listeners: list[Callable[[str, bytes, int], None]] = []
        self.dropped = 0  # messages dropped because of slow handlers
        self.parts: dict[type, object] = {}  # objects shared by users of the connection, by type
        self.violations: list[str] = []  # newest last, at most 100
        self.closed = asyncio.Event()
        self.on_violation: Callable[[str], None] | None = None
        self._requests = Requests(self.nc)
        self._reconnect_waiters: list[Callable[[], None]] = []
        self._clock = clock or ServerClock()
        self.write_health = WriteHealth(log, self._clock.monotonic)
        self._clock_subject = SERVER_CLOCK
        self._clock_sync = ClockSync(self._clock, self._request_time, lambda: self.connected)
        self.imports = False  # whether JetStream is in another account
        self._begun = False  # a connect has begun, so ``close`` has work to do
        self._faults: ConnectFaults | None = None  # None = no connect was attempted
        self._next_report_s = 0.0

    @classmethod
    async def open(
        cls,
        settings: ConnectionSettings,
        name: str,
        log: LogLike,
        *,
        timeout_s: float | None = None,
        clock: ServerClock | None = None,
        clock_subject: str = SERVER_CLOCK,
    ) -> "Connection":
        """Connect. Waits for an absent server for ``timeout_s``, or for ever.

        ``clock_subject``: the request whose answer has the server's time. A user without JetStream
        sends ``hello`` to a service. "" = no request; the local clock is used.

        Raises NotConnected after ``timeout_s``, BusError for a refused user or invalid settings.
        """
        self = cls(name, log, clock)
        self._clock_subject = clock_subject
        try:
            await self._connect(settings, timeout_s)
            await self._requests.start()
            await self._clock_sync.observe()
        except BaseException:
            await self.close()
            raise
        self._clock_sync.start(f"{name}: server clock")
        return self

    async def _connect(self, settings: ConnectionSettings, timeout_s: float | None) -> None:
        options = connect_options(settings, self.name)
        self.imports = bool(user_of(settings.nats_creds_file))
        self.nc.plaintext = settings.nats_plaintext
        faults = self._faults = ConnectFaults(settings, self.log)
        attempt = asyncio.ensure_future(
            self.nc.connect(
                error_cb=self._on_error,
                disconnected_cb=self._on_disconnected,
                reconnected_cb=self._on_reconnected,
                closed_cb=self._on_closed,
                **options,
            )
        )
        self._begun = True
        first: set[asyncio.Future[Any]] = {attempt, faults.refusal}
        try:  # the library retries for ever, after a refusal too
            await asyncio.wait(first, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if faults.refusal.done():
                raise BusError(f"{faults.url}: {faults.refusal.result()}")
            if not attempt.done():
                raise NotConnected(f"no NATS server at {faults.url}: {faults.reason or 'silence'}")
            try:
                attempt.result()
            except (nats_errors.Error, ValueError, OSError) as error:
                self._begun = False
                raise BusError(f"cannot connect to {faults.url}: {error}") from error
        finally:
            attempt.cancel()
            faults.refusal.cancel()
        faults.clear()

    # Callbacks of the client library

    async def _on_error(self, error: Exception) -> None:
        text = (str(error) or type(error).__name__).removeprefix("nats: ")
        if "permissions violation" in text.lower():
            text = without_lanes(text)
            self.violations = [*self.violations[-99:], text]
            self.log.error("permission violation", what=text)
            self._requests.denied(text)
            if self.on_violation is not None:
                self.on_violation(text)
        elif isinstance(error, nats_errors.SlowConsumerError):
            self._count_drop(error)
        elif self._faults is None:
            self.log.error("NATS error", error=error)
        elif "authorization violation" in text.lower() or "authentication" in text.lower():
            self._faults.on_refused_user(text)
        elif self.nc.is_connected and not isinstance(error, ssl.SSLCertVerificationError):
            self.log.error("NATS error", error=error)
        else:
            self._faults.on_error(error, text)

    def _count_drop(self, error: nats_errors.SlowConsumerError) -> None:
        self.dropped += 1
        now_s = self._clock.monotonic()
        if now_s >= self._next_report_s:
            self._next_report_s = now_s + REPORT_INTERVAL_S
            self.log.error(
                "slow consumer: messages were dropped", subject=error.subject, so_far=self.dropped
            )

    async def _on_disconnected(self) -> None:
        if not self.nc.is_closed:
            self._requests.interrupted()
            self.log.warning("disconnected from NATS")

    async def _on_reconnected(self) -> None:
        self.reconnects += 1
        if self._faults is not None:
            self._faults.clear()
        self._requests.resumed()
        self.write_health.restarted()
        self.log.info("reconnected to NATS", reconnects=self.reconnects)
        for waiter in list(self._reconnect_waiters):
            waiter()

    async def _on_closed(self) -> None:
        self._requests.closed()
        self.closed.set()

    def when_reconnected(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call ``call`` at each reconnection. Return a function that removes the listener."""
        self._reconnect_waiters.append(call)
        return lambda: self._reconnect_waiters.remove(call)

    def when_stored(self, call: Callable[[str, bytes, int], None]) -> None:
        """Call ``call`` with subject, data and sequence of each write that is acknowledged from now
        on. For a batch, ``call`` gets those of the last message.
        """
        self._stored_listeners.append(call)

    # Core NATS

    @property
    def connected(self) -> bool:
        return self.nc.is_connected

    def check_size(self, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Raise TooLarge for an oversized message. The server counts the headers too, and closes
        the connection on an oversized message.
        """
        size = len(data) + _header_bytes(headers)
        if size > self.nc.max_payload:
            raise TooLarge(
                f"{size} bytes with headers; the server takes at most {self.nc.max_payload}"
            )

    async def publish(
        self, subject: str, data: bytes, *, reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        """Send without waiting for an answer.

        Raises TooLarge, and NotConnected when the buffer for an absent server is full.
        """
        self.check_size(data, headers)
        try:
            await self.nc.publish(subject, data, reply=reply, headers=headers)
        except (nats_errors.Error, OSError) as error:
            raise NotConnected(f"cannot publish: {error}") from error

    async def flush(self, *, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        """Wait until the server has received all earlier messages and subscriptions.

        Raises NoAnswer, NotConnected.
        """
        try:
            async with asyncio.timeout(timeout_s):
                # The library's ping overtakes buffered data, and no callback reports when the
                # buffer is sent.
                while self.nc.pending_data_size:  # noqa: ASYNC110
                    await asyncio.sleep(0.0005)
                await self.nc.flush()
        except TimeoutError as error:
            raise NoAnswer(f"the server did not take all within {timeout_s:g} s") from error
        except (nats_errors.Error, OSError) as error:
            raise NotConnected(f"cannot flush: {error}") from error

    async def request(
        self,
        subject: str,
        data: bytes,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        headers: dict[str, str] | None = None,
    ) -> Msg:
        """Send and wait for one answer. Raises NoAnswer, TooLarge, NotConnected, NotPermitted."""
        self.check_size(data, headers)
        try:
            return await self._requests.ask(subject, data, timeout_s, headers)
        except (nats_errors.Error, OSError) as error:
            raise NotConnected(f"cannot ask {subject}: {error}") from error

    async def store(
        self,
        subject: str,
        data: bytes,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        headers: dict[str, str] | None = None,
    ) -> int:
        """Write to a stream and return the sequence. Raises as ``request`` does, and ApiError when
        the stream refuses the message.
        """
        began_s = self.write_health.began()
        try:
            reply = await self.request(subject, data, timeout_s=timeout_s, headers=headers)
            sequence = stored_sequence(reply.data)
        except BusError as error:
            if self.connected:
                self.write_health.failed(subject, error, began_s)
            raise
        self.write_health.stored(subject)
        for listener in self._stored_listeners:
            listener(subject, data, sequence)
        return sequence

    async def subscribe(
        self, subject: str, handler: Handler, *, queue: str = "", pending_messages: int = 65_536
    ) -> Subscription:
        """Subscribe with a plain, quick handler. Messages beyond the bound are dropped, and so are
        answers of JetStream.
        """

        async def each(msg: Msg) -> None:
            if msg.headers and OF_A_STREAM in msg.headers:
                return
            try:
                handler(msg.subject, msg.data)
            except Exception as error:  # noqa: BLE001 # one message must not end them all
                self.log.error("message handler failed", error=error, subject=msg.subject)

        return await self.subscribe_raw(
            subject, each, queue=queue, pending_messages=pending_messages
        )

    async def subscribe_raw(
        self,
        subject: str,
        each: Callable[[Msg], Awaitable[None]],
        *,
        queue: str = "",
        pending_messages: int = 65_536,
    ) -> Subscription:
        """Subscribe to whole messages. For this package only."""
        try:
            return await self.nc.subscribe(
                subject,
                queue=queue,
                cb=each,
                pending_msgs_limit=pending_messages,
                pending_bytes_limit=256 * 1024 * 1024,
            )
        except (nats_errors.Error, OSError) as error:
            raise NotConnected(f"cannot subscribe to {subject}: {error}") from error

    async def observe(self, subject: str, handler: Handler, *, queue: str = "") -> Listening:
        """Subscribe without a queue. The parser calls the handler with each message as soon as the
        message is read, so the handler can drop the message before any other work. Raises
        NotConnected.
        """

        def take(name: bytes, reply: bytes, headers: bytes, body: bytes) -> None:
            del reply
            if _OF_A_STREAM in headers:
                return
            try:
                handler(name.decode("utf-8", "replace"), body)
            except Exception as error:  # noqa: BLE001 # one message must not end them all
                self.log.error("message handler failed", error=error, subject=subject)

        try:
            return await self.nc.listen(subject, take, queue)
        except (nats_errors.Error, OSError) as error:
            raise NotConnected(f"cannot subscribe to {subject}: {error}") from error

    def pass_on(self, subject: str, data: bytes) -> bool:
        """Publish without waiting. Return False without publishing if the server is away, or if too
        much earlier data is still unsent. A late message is worth less than the memory for keeping
        it.
        """
        if not self.connected or self.nc.pending_data_size > MAX_PASSED_ON_BYTES:
            return False
        self.nc.send_now(subject, data)
        return True

    # JetStream's API

    async def api(
        self, subject: str, body: Mapping[str, object] | None = None, *, timeout_s: float = 5.0
    ) -> bytes:
        """Send one request to ``$JS.API.<subject>``, under the account's name for the subject.
        Return the raw reply. Raises ApiError for JetStream's errors.
        """
        data = msgspec.json.encode(body) if body is not None else b""
        reply = await self.request(self.api_subject(subject), data, timeout_s=timeout_s)
        head = _API_REPLY.decode(reply.data)
        if head.error is not None:
            raise ApiError(head.error.err_code, head.error.description)
        return reply.data

    def api_subject(self, request: str) -> str:
        """Return the subject of a request to JetStream, for this user's account."""
        return jetstream(request, imported=self.imports)

    # The server's clock

    def now(self) -> float:
        """Return the server's time in seconds since 1970, as estimated here."""
        return self._clock.now()

    async def _request_time(self) -> bytes | None:
        subject = self._clock_subject
        if not subject:
            return None
        if subject.startswith(JETSTREAM):
            subject = self.api_subject(subject.removeprefix(JETSTREAM))
        return (await self.request(subject, b"{}")).data

    # Closing

    async def close(self) -> None:
        """Send buffered data, then close. Each step ends within its time limit."""
        self._clock_sync.stop()
        if not self._begun:
            return
        try:
            if self.nc.is_connected:
                await self.flush(timeout_s=CLOSE_TIMEOUT_S)
            elif unsent := self.nc.pending_data_size:
                self.log.warning("closing with unsent messages", bytes=unsent)
        except BusError:
            self.log.warning("closing with unconfirmed messages")
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self.nc.close()
        except (TimeoutError, nats_errors.Error, OSError, RuntimeError):
            pass  # the process does not wait for the close (uvloop: "the handler is closed")
        except asyncio.CancelledError:
            # A stream raises this too, if a connection attempt was cancelled while the stream
            # waited.
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
        self._requests.closed()
        self.closed.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
