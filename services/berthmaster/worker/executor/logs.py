"""Answer the gateway's requests for logs of this cluster's pods, and store the end of each log.

Rules of this file:

- One request, one answer of bounded size. A slow reader asks seldom. For a reader that is gone, the
  open stream is closed.
- A pod is read once for any number of readers: the gateway asks for all, and the stream stays open
  between requests. If a cursor matches the open stream, reading continues, else it starts from the
  cursor. The last answer is kept until the next request, since an answer may be lost.
- Bytes per second, open pods and pending requests of a cluster are bounded.
- The end of a log is read before its pod is deleted and sent to the door, which stores it for a
  day.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from berthmaster.lib.door_client.client import DoorClient
from berthmaster.lib.jobs.lines import START, CursorError, Lines, advanced, parse_cursor
from berthmaster.lib.jobs.pace import Pace
from berthmaster.lib.messages.door import (
    MAX_LOG_BYTES,
    MAX_LOG_ENDS,
    MAX_LOG_ENDS_TOLD,
    MAX_LOG_WAIT_S,
    LogAsk,
    LogChunk,
    LogEndRequest,
    PodLogEnd,
)
from berthmaster.lib.messages.families import LOG_ASKS, UNREADABLE, encode
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.errors import BusError
from berthmaster.lib.runtime.periodic import beats
from berthmaster.worker.executor.core.cluster_protocol import Attempt

MAX_OPEN: Final = 64  # pods read at a time
MAX_ASKS: Final = 64  # in hand
IDLE_S: Final = 30.0  # without a request: the reader is gone
SWEEP_S: Final = 5.0
QUIET_S: Final = 0.05  # without new bytes, so the present ones are sent
END_BYTES: Final = 64 * 1024
GATHER_S: Final = 0.1  # time to collect ends for one request
TOLD_BYTES: Final = 192 * 1024  # of logs in one request; JSON adds a third
END_LIMIT_S: Final = 3.0  # to read and tell them; then the pods are deleted all the same


class NoLog(Exception):
    """There is nothing to be read, and why."""


class LogStream(Protocol):
    async def read(self) -> bytes:
        """Return the next bytes; empty = the end. Raises NoLog."""

    def close(self) -> None: ...


class LogSource(Protocol):
    """Where logs of a cluster's pods come from."""

    async def pods(self, attempt: Attempt) -> Sequence[str]:
        """Return its pods in the order of names. Raises NoLog."""

    async def open(
        self,
        attempt: Attempt,
        pod: str,
        *,
        since_s: float | None,
        tail: int | None,
        follow: bool,
    ) -> LogStream:
        """The log, with times; ``since_s``: from that time on. Raises NoLog."""


class _Reading:
    """One pod being read, between requests."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.stream: LogStream | None = None
        self.lines = Lines()
        self.waiting: list[bytes] = []  # lines beyond the size of the last answer
        self.behind = START  # cursor behind all sent lines
        self.pending: asyncio.Future[bytes] | None = None
        self.last: tuple[str, LogChunk] | None = None  # last answer, by its request's cursor
        self.asked_at_s = 0.0

    def close(self) -> None:
        if self.pending is not None:
            self.pending.cancel()
            self.pending = None
        if self.stream is not None:
            self.stream.close()
            self.stream = None
        self.waiting = []


class _Key(NamedTuple):
    attempt: Attempt
    pod: int


class LogEnds:
    """Sends the ends of logs to the door, several in one request: where many short jobs end, a
    request for each would cost as much as all their events."""

    def __init__(self, door: DoorClient) -> None:
        self._door = door
        self._waiting: list[tuple[PodLogEnd, asyncio.Future[None]]] = []
        self._sending: asyncio.Task[None] | None = None

    async def tell(self, end: PodLogEnd) -> None:
        """Send an end until the door stores it. Raises BusError."""
        kept: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((end, kept))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send(), name="ends of logs")
        await kept

    async def _send(self) -> None:
        while self._waiting:
            await asyncio.sleep(GATHER_S)
            few, size = 0, 0
            for end, _ in self._waiting[:MAX_LOG_ENDS_TOLD]:
                size += len(end.data)
                if few and size > TOLD_BYTES:
                    break
                few += 1
            some, self._waiting = self._waiting[:few], self._waiting[few:]
            error: BusError | None = None
            try:
                ends = tuple(end for end, _ in some)
                request = LogEndRequest(ends=ends, after=self._door.seen)
                await self._door.ask("log_end", request)
            except BusError as why:
                error = why
            for _, kept in some:
                if kept.done():
                    continue  # its caller gave up
                if error is None:
                    kept.set_result(None)
                else:
                    kept.set_exception(error)


class LogDesk:
    def __init__(
        self,
        door: DoorClient,
        source: LogSource,
        *,
        bytes_per_s: float,
        pods_at_once: int = MAX_OPEN,
    ) -> None:
        self._door = door
        self._source = source
        self._pace = Pace(bytes_per_s)
        self._ends = LogEnds(door)
        self._most = pods_at_once
        self._readings: dict[_Key, _Reading] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._keeping: set[asyncio.Task[None]] = set()  # ends of the logs of whole attempts
        self._loop = asyncio.get_running_loop()
        self.opened = 0  # streams, for figures and tests

    async def run(self, stopping: asyncio.Event) -> None:
        conn = self._door.conn
        subscription = await conn.subscribe(subjects.assign_logs(self._door.cluster), self._on_ask)
        try:
            async for _ in beats(SWEEP_S, stopping):
                self._sweep()
        finally:
            for task in self._tasks:
                task.cancel()
            for reading in self._readings.values():
                reading.close()
            await subscription.unsubscribe()

    def _on_ask(self, _: str, data: bytes) -> None:
        try:
            ask = LOG_ASKS.decode(data)
        except UNREADABLE:
            return  # the reader waits no longer than its limit
        if len(self._tasks) >= MAX_ASKS:
            return
        task = self._loop.create_task(self._answer(ask), name=f"log of {ask.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, ask: LogAsk) -> None:
        chunk = LogChunk(ask=ask.ask, reader=ask.reader, cursor=ask.after)
        try:
            chunk = await self._chunk(ask)
        except (NoLog, CursorError) as error:
            chunk = LogChunk(ask=ask.ask, reader=ask.reader, cursor=ask.after, why=str(error))
        try:
            await self._door.conn.publish(subjects.agent(self._door.cluster, "logs"), encode(chunk))
        except BusError:
            pass  # requested again, if still wanted

    async def _chunk(self, ask: LogAsk) -> LogChunk:
        attempt = Attempt(ask.tenant, ask.id, ask.attempt)
        pods = await self._source.pods(attempt)
        if not pods:
            raise NoLog("no pod of it is there yet, or any more")
        if ask.pod >= len(pods):
            raise NoLog(f"pod {ask.pod}: it has pods 0 to {len(pods) - 1}")
        key = _Key(attempt, ask.pod)
        if not ask.after:  # from the beginning or the end: a separate stream
            reading = _Reading()
            try:
                await self._open(reading, key, pods, ask, follow=False)
                return await self._read(reading, ask, len(pods), following=False)
            finally:
                reading.close()
        reading = self._reading(key)
        async with reading.turn:
            if reading.last is not None and reading.last[0] == ask.after:
                return msgspec.structs.replace(reading.last[1], ask=ask.ask, reader=ask.reader)
            try:
                if reading.stream is None or str(reading.behind) != ask.after:
                    reading.close()
                    await self._open(reading, key, pods, ask, follow=True)
                chunk = await self._read(reading, ask, len(pods), following=True)
            except NoLog:
                reading.close()  # the next request opens a broken stream again
                raise
            reading.last = (ask.after, chunk) if chunk.data else None
            return chunk

    def _reading(self, key: _Key) -> _Reading:
        reading = self._readings.get(key)
        if reading is None:
            if len(self._readings) >= self._most:
                raise NoLog(f"{self._most} pods of this cluster are read now; ask again later")
            reading = self._readings[key] = _Reading()
        reading.asked_at_s = self._loop.time()
        return reading

    async def _open(
        self, reading: _Reading, key: _Key, pods: Sequence[str], ask: LogAsk, *, follow: bool
    ) -> None:
        after = parse_cursor(ask.after)
        since_s: float | None = None
        if after.lines:
            since_s = after.since_s
        elif ask.since_s is not None:
            since_s = self._door.now() - ask.since_s
        reading.lines, reading.behind = Lines(after), after
        self.opened += 1
        reading.stream = await self._source.open(
            key.attempt, pods[key.pod], since_s=since_s, tail=ask.tail, follow=follow
        )

    async def _read(
        self, reading: _Reading, ask: LogAsk, pods: int, *, following: bool
    ) -> LogChunk:
        """Until there is as much as may be, or nothing more comes for a moment."""
        most = max(1, min(ask.max_bytes, MAX_LOG_BYTES))
        deadline_s = self._loop.time() + min(ask.wait_s, MAX_LOG_WAIT_S)
        found, ended = reading.waiting, False
        reading.waiting = []
        size = sum(map(len, found))
        await asyncio.sleep(min(self._pace.wait_s(self._loop.time()), MAX_LOG_WAIT_S))
        while not ended and size < most:
            left_s = deadline_s - self._loop.time()
            limit_s = QUIET_S if found else max(QUIET_S, left_s)
            data = await self._next(reading, limit_s if following else MAX_LOG_WAIT_S)
            if data is None:
                break
            ended = not data
            more = reading.lines.end() if ended else reading.lines.feed(data)
            found += more
            size += sum(map(len, more))
            self._pace.read(len(data), self._loop.time())
        sent, room = found, most
        for at, line in enumerate(found):
            room -= len(line)
            if room < 0 and at:
                sent, reading.waiting = found[:at], found[at:]
                break
        reading.behind = advanced(reading.behind, sent)
        over = ended and not reading.waiting
        if over and following:
            reading.close()
        return LogChunk(
            ask=ask.ask,
            reader=ask.reader,
            data=b"".join(sent),
            cursor=str(reading.behind),
            pods=pods,
            ended=over and following,
        )

    async def _next(self, reading: _Reading, limit_s: float) -> bytes | None:
        """Return the next bytes; None after the limit. A pending read continues."""
        assert reading.stream is not None
        if reading.pending is None:
            reading.pending = asyncio.ensure_future(reading.stream.read())
        await asyncio.wait({reading.pending}, timeout=limit_s)
        if not reading.pending.done():
            return None
        over, reading.pending = reading.pending, None
        return over.result()

    def _sweep(self) -> None:
        now_s = self._loop.time()
        for key, reading in list(self._readings.items()):
            if now_s - reading.asked_at_s > IDLE_S and not reading.turn.locked():
                reading.close()
                del self._readings[key]

    # The end of a log

    def keep_ends(self, attempt: Attempt, then: Callable[[], None] = lambda: None) -> None:
        """Send the ends of the logs of its first pods, then call ``then``, also after the time
        limit.
        """
        task = self._loop.create_task(self._keep_ends(attempt), name=f"log ends of {attempt.id}")
        self._keeping.add(task)
        task.add_done_callback(self._keeping.discard)
        task.add_done_callback(lambda _: then())

    async def close(self) -> None:
        """Stop. Waiting callers are released at once."""
        for task in self._keeping:
            task.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)

    async def _keep_ends(self, attempt: Attempt) -> None:
        try:
            async with asyncio.timeout(END_LIMIT_S):
                pods = await self._source.pods(attempt)
                await asyncio.gather(
                    *(
                        self._keep_end(attempt, pod, at, len(pods))
                        for at, pod in enumerate(pods[:MAX_LOG_ENDS])
                    ),
                    return_exceptions=True,
                )
        except (NoLog, TimeoutError):
            pass

    async def keep_end(self, attempt: Attempt, pod: str, at: int, pods: int) -> None:
        """Send the end of one pod's log: pod number ``at`` of ``pods``."""
        try:
            async with asyncio.timeout(END_LIMIT_S):
                await self._keep_end(attempt, pod, at, pods)
        except (NoLog, BusError, TimeoutError):
            pass

    async def _keep_end(self, attempt: Attempt, pod: str, at: int, pods: int) -> None:
        stream = await self._source.open(
            attempt, pod, since_s=None, tail=END_BYTES // 16, follow=False
        )
        lines, kept, size = Lines(), [], 0
        try:
            while data := await stream.read():
                kept += lines.feed(data)
                size += len(data)
                if size > 64 * END_BYTES:
                    break
        finally:
            stream.close()
        kept += lines.end()
        end: list[bytes] = []
        room = END_BYTES
        for line in reversed(kept):
            room -= len(line)
            if room < 0:
                break
            end.append(line)
        if not end:
            return
        await self._ends.tell(
            PodLogEnd(
                tenant=attempt.tenant,
                id=attempt.id,
                attempt=attempt.number,
                pod=at,
                pods=pods,
                data=b"".join(reversed(end)),
                cut=len(end) < len(kept),
            )
        )
