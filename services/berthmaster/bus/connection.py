"""One connection to NATS, with limits that suit a service that must never hang and never lie.

It reconnects for ever, gives up on no request later than its time limit, keeps the server's clock
(ages are measured by one clock, never by that of a distant machine), and makes permission
violations loud: the server reports them out of band, so that without this they look like time-outs.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

import msgspec
import nats.errors
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from berthmaster.bus.errors import ApiError, BusError, NoAnswer, NotConnected, TooLarge

REQUEST_TIMEOUT_S: Final = 1.0
CONNECT_TIMEOUT_S: Final = 2
RECONNECT_WAIT_S: Final = 0.1
PING_INTERVAL_S: Final = 5
PENDING_BYTES: Final = 8 * 1024 * 1024  # what is buffered while the server is away
CLOCK_INTERVAL_S: Final = 30.0
CLOSE_TIMEOUT_S: Final = 2.0


class LogLike(Protocol):
    """The part of runtime.log that the bus uses."""

    def info(self, event: str, /, **fields: object) -> None: ...
    def warning(self, event: str, /, **fields: object) -> None: ...
    def error(
        self, event: str, /, *, error: BaseException | None = None, **fields: object
    ) -> None: ...


class ConnectionSettings(Protocol):
    """What must be known to connect; runtime's CommonSettings has it."""

    @property
    def nats_url(self) -> str: ...  # one or several, separated by commas
    @property
    def nats_seed_file(self) -> str: ...  # "" = no nkey
    @property
    def inbox_prefix(self) -> str: ...


class _ApiErrorBody(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _ApiReply(msgspec.Struct):
    error: _ApiErrorBody | None = None
    ts: str = ""


class _Stream(msgspec.Struct):
    ts: str = ""
    error: _ApiErrorBody | None = None


_API_REPLY: Final = msgspec.json.Decoder(_ApiReply)
_STREAM_TS: Final = msgspec.json.Decoder(_Stream)
Handler = Callable[[str, bytes], None]


def _read_seed(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise BusError(f"cannot read the nkey seed file {path}: {error.strerror}") from error


class Connection:
    """An open connection. Make it with ``open``; use it as an async context manager."""

    def __init__(self, name: str, log: LogLike) -> None:
        self.name = name
        self.log = log
        self.nc = NatsClient()
        self.reconnects = 0
        self.violations: list[str] = []  # newest last, bounded
        self.closed = asyncio.Event()
        self.on_violation: Callable[[str], None] | None = None
        self._reconnect_waiters: list[Callable[[], None]] = []
        self._offset_s = 0.0
        self._clock_task: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        settings: ConnectionSettings,
        name: str,
        log: LogLike,
        *,
        timeout_s: float | None = None,
    ) -> "Connection":
        """Connect; waits for a server that is not there yet, for ``timeout_s`` or for ever.

        Raises NotConnected when the time is over, BusError when the server will not have us.
        """
        self = cls(name, log)
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        told = False
        while True:
            try:
                await self._connect(settings)
                break
            except (OSError, nats.errors.Error, TimeoutError) as error:
                text = str(error) or type(error).__name__
                if "uthorization" in text:
                    raise BusError(f"{settings.nats_url} refuses this user: {text}") from error
                if deadline is not None and loop.time() >= deadline:
                    raise NotConnected(f"no NATS server at {settings.nats_url}: {text}") from error
                if not told:
                    log.warning("waiting for NATS", url=settings.nats_url, why=text)
                    told = True
                await asyncio.sleep(RECONNECT_WAIT_S)
        await self._read_clock()
        self._clock_task = asyncio.create_task(self._keep_clock(), name=f"{name}: server clock")
        return self

    async def _connect(self, settings: ConnectionSettings) -> None:
        options: dict[str, Any] = {}
        if settings.nats_seed_file:
            options["nkeys_seed_str"] = _read_seed(settings.nats_seed_file)
        self.nc = NatsClient()
        await asyncio.wait_for(
            self.nc.connect(
                servers=[url.strip() for url in settings.nats_url.split(",") if url.strip()],
                name=self.name,
                inbox_prefix=settings.inbox_prefix or f"_INBOX.{self.name}",
                allow_reconnect=True,
                max_reconnect_attempts=-1,
                reconnect_time_wait=RECONNECT_WAIT_S,  # type: ignore[arg-type] # a float works
                connect_timeout=CONNECT_TIMEOUT_S,
                ping_interval=PING_INTERVAL_S,
                max_outstanding_pings=2,
                pending_size=PENDING_BYTES,
                skip_subject_validation=True,  # subjects.py builds them
                error_cb=self._on_error,
                disconnected_cb=self._on_disconnected,
                reconnected_cb=self._on_reconnected,
                closed_cb=self._on_closed,
                **options,
            ),
            CONNECT_TIMEOUT_S + 1,
        )

    # What the client library tells us

    async def _on_error(self, error: Exception) -> None:
        text = str(error) or type(error).__name__
        if "ermissions violation" in text.lower() or "permissions violation" in text.lower():
            self.violations = [*self.violations[-99:], text]
            self.log.error("permission violation", what=text.removeprefix("nats: "))
            if self.on_violation is not None:
                self.on_violation(text)
        elif isinstance(error, nats.errors.SlowConsumerError):
            self.log.error("slow consumer: messages were dropped", subject=error.subject)
        elif self.nc.is_connected:
            self.log.error("NATS error", error=error)

    async def _on_disconnected(self) -> None:
        if not self.nc.is_closed:
            self.log.warning("disconnected from NATS")

    async def _on_reconnected(self) -> None:
        self.reconnects += 1
        self.log.info("reconnected to NATS", reconnects=self.reconnects)
        for waiter in list(self._reconnect_waiters):
            waiter()

    async def _on_closed(self) -> None:
        self.closed.set()

    def when_reconnected(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call this at each reconnection. Returns what ends that."""
        self._reconnect_waiters.append(call)
        return lambda: self._reconnect_waiters.remove(call)

    # Core NATS

    @property
    def connected(self) -> bool:
        """Whether the server is there now."""
        return self.nc.is_connected

    async def publish(
        self, subject: str, data: bytes, *, reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        """Send and forget. Raises NotConnected when the buffer for an absent server is full."""
        try:
            await self.nc.publish(subject, data, reply=reply, headers=headers)
        except nats.errors.MaxPayloadError as error:
            raise self._too_large(data) from error
        except (nats.errors.Error, OSError) as error:
            raise NotConnected(f"cannot publish: {error}") from error

    async def request(
        self,
        subject: str,
        data: bytes,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        headers: dict[str, str] | None = None,
    ) -> Msg:
        """Send and wait for one answer. Raises NoAnswer, TooLarge, NotConnected."""
        try:
            return await self.nc.request(subject, data, timeout=timeout_s, headers=headers)
        except nats.errors.MaxPayloadError as error:
            raise self._too_large(data) from error
        except nats.errors.NoRespondersError as error:
            raise NoAnswer(f"nobody listens on {subject}") from error
        except nats.errors.TimeoutError as error:
            raise NoAnswer(f"no answer on {subject} within {timeout_s} s") from error
        except (nats.errors.Error, OSError) as error:
            raise NotConnected(f"cannot ask {subject}: {error}") from error

    def _too_large(self, data: bytes) -> TooLarge:
        return TooLarge(f"{len(data)} bytes; the server takes at most {self.nc.max_payload}")

    async def subscribe(
        self, subject: str, handler: Handler, *, queue: str = "", pending_messages: int = 65_536
    ) -> Subscription:
        """Core subscription; the handler is plain and quick. Beyond the bound, messages drop."""

        async def each(msg: Msg) -> None:
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
        """Core subscription to whole messages, for the rest of the bus package."""
        try:
            return await self.nc.subscribe(
                subject,
                queue=queue,
                cb=each,
                pending_msgs_limit=pending_messages,
                pending_bytes_limit=256 * 1024 * 1024,
            )
        except (nats.errors.Error, OSError) as error:
            raise NotConnected(f"cannot subscribe to {subject}: {error}") from error

    # JetStream's API

    async def api(
        self, subject: str, body: Mapping[str, object] | None = None, *, timeout_s: float = 5.0
    ) -> bytes:
        """One request to ``$JS.API.<subject>``; the raw reply. Raises ApiError for its errors."""
        data = msgspec.json.encode(body) if body is not None else b""
        reply = await self.request(f"$JS.API.{subject}", data, timeout_s=timeout_s)
        head = _API_REPLY.decode(reply.data)
        if head.error is not None:
            raise ApiError(head.error.err_code, head.error.description)
        return reply.data

    # The server's clock

    def now(self) -> float:
        """The server's time in seconds since 1970, as far as we know it."""
        return time.time() + self._offset_s

    async def _read_clock(self) -> None:
        try:
            sent = time.time()
            reply = await self.request("$JS.API.STREAM.INFO.FLEET", b"")
            received = time.time()
            stamp = _STREAM_TS.decode(reply.data).ts
            if stamp:
                self._offset_s = datetime.fromisoformat(stamp).timestamp() - (sent + received) / 2
        except (BusError, msgspec.DecodeError, ValueError):
            pass  # the streams may not be made yet; the local clock serves until the next try

    async def _keep_clock(self) -> None:
        while True:
            await asyncio.sleep(CLOCK_INTERVAL_S if self._offset_s else 1.0)
            if self.connected:
                await self._read_clock()

    # The end

    async def close(self) -> None:
        """Send what is buffered, then close; never longer than its time limit."""
        if self._clock_task is not None:
            self._clock_task.cancel()
        try:
            if self.nc.is_connected:
                await asyncio.wait_for(self.nc.flush(), CLOSE_TIMEOUT_S)
            await asyncio.wait_for(self.nc.close(), CLOSE_TIMEOUT_S)
        except (TimeoutError, nats.errors.Error, OSError):
            pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
