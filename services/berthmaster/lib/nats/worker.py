"""Works through a stream with a durable pull consumer: bounded, acknowledged after the work.

A message that a handler cannot process now is redelivered with growing pauses. A message that can
never be processed, or failed too often, becomes a dead letter. Handlers run concurrently up to a
bound, and the worker pulls no more than they can take. Progress reports to the server prevent a
second delivery of a slow message. A handler that never ends is cancelled.

The user "setup" creates the consumer, together with the streams (durables.py).
"""

import asyncio
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.dead_letters import store_dead_letter
from berthmaster.lib.nats.durables import Durable
from berthmaster.lib.nats.errors import ApiError, BusError, NoAnswer, NotConnected
from berthmaster.lib.nats.nats_py import Msg
from berthmaster.lib.nats.nats_py import errors as nats_errors
from berthmaster.lib.nats.stream_messages import Recorded

_NS: Final = 10**9
PULL_EXPIRES_S: Final = 20.0
PULL_HEARTBEAT_S: Final = 5.0
HANDLER_LIMIT_S: Final = 60.0
MAX_DELIVERIES: Final = 20
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 30.0
LONGEST_RETRY_S: Final = 5.0  # between two tries to find the consumer
AWAY_POLL_S: Final = 0.2
DRAIN_S: Final = 2.0
REMEMBERED_FAILURES: Final = 10_000


def parse_ack_subject(reply: str) -> tuple[int, int, float, int, int]:
    """Return (stream sequence, consumer sequence, stored at, pending, deliveries) of a reply
    subject.
    """
    parts = reply.split(".")
    # $JS.ACK.<stream>.<consumer>.<deliveries>.<sseq>.<cseq>.<ns>.<pending>, or with domain and
    # account before the stream and perhaps a token at the end.
    at = 4 if len(parts) == 9 else 6
    return (
        int(parts[at + 1]),
        int(parts[at + 2]),
        int(parts[at + 3]) / _NS,
        int(parts[at + 4]),
        int(parts[at]),
    )


class Later(Exception):  # a request of the handler, not an error
    """Deliver the message again after ``pause_s`` (None: growing pauses). A failure of the message,
    unless ``counted`` is False.
    """

    def __init__(self, why: str, *, pause_s: float | None = None, counted: bool = True) -> None:
        super().__init__(why)
        self.pause_s = pause_s
        self.counted = counted


class Never(Exception):
    """The message can never be processed: store a dead letter."""


Handle = Callable[[Recorded], Awaitable[None]]


class _Counts:
    """How often something happened to each message, as seen by this process. The server's number of
    deliveries would also blame a message for waiting and for an absent bus.
    """

    def __init__(self) -> None:
        self._counts: OrderedDict[int, int] = OrderedDict()

    def count(self, sequence: int) -> int:
        """Add one, and return the number."""
        count = self._counts.pop(sequence, 0) + 1
        self._counts[sequence] = count
        if len(self._counts) > REMEMBERED_FAILURES:
            self._counts.popitem(last=False)
        return count

    def forget(self, sequence: int) -> None:
        self._counts.pop(sequence, None)


class Worker:
    """A durable consumer and its handlers."""

    def __init__(
        self,
        conn: Connection,
        service: str,
        durable: Durable,
        handle: Handle,
        *,
        concurrency: int = 256,
        max_deliveries: int = MAX_DELIVERIES,
        handler_limit_s: float = HANDLER_LIMIT_S,
    ) -> None:
        self._conn = conn
        self._service = service
        self._stream = durable.stream
        self._durable = durable.name
        self._ack_wait_s = durable.ack_wait_s
        self._handle = handle
        self._concurrency = min(concurrency, durable.most_unfinished)
        self._max_deliveries = max_deliveries
        self._handler_limit_s = handler_limit_s
        self.missing = ""  # why there is no consumer to pull from
        self._expected = 0  # messages requested and not yet received
        # with the reply subject for the acknowledgement
        self._tasks: dict[asyncio.Task[None], str] = {}
        self._failures = _Counts()
        self._setbacks = _Counts()  # failures, and other reasons for growing pauses
        self._look = asyncio.Event()  # pull more, or begin again
        self._broken = False
        self._received_s = 0.0
        self.handled = 0
        self.dead_letters = 0

    async def run(self, stopping: asyncio.Event | None = None) -> None:
        """Work until cancelled, or until ``stopping`` is set. Messages in flight are then
        finished.
        """
        pause_s = FIRST_PAUSE_S
        progress_task = asyncio.create_task(
            self._report_progress(), name=f"{self._durable}: progress"
        )
        try:
            while stopping is None or not stopping.is_set():
                if not self._conn.connected:
                    await asyncio.sleep(AWAY_POLL_S)
                    continue
                try:
                    await self._check_consumer()
                    pause_s = FIRST_PAUSE_S
                    await self._pull_until_broken(stopping)
                except (BusError, nats_errors.Error) as error:
                    self._conn.log.warning(
                        "consuming failed",
                        stream=self._stream,
                        consumer=self._durable,
                        why=str(error),
                    )
                    # Randomly spread: workers failed at the same time.
                    await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
                    pause_s = min(2 * pause_s, LONGEST_RETRY_S)
        finally:
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=DRAIN_S)
            progress_task.cancel()
            await self._give_back()

    async def _give_back(self) -> None:
        """Return unfinished messages to another process at once, not after the acknowledgement's
        time limit. Cancelled handlers must be safe to repeat: a crash could have interrupted them
        too.
        """
        unfinished = list(self._tasks.items())
        for task, _ in unfinished:
            task.cancel()
        for _, reply in unfinished:
            await self._answer(reply, b"-NAK")
        if unfinished:
            await asyncio.wait([task for task, _ in unfinished], timeout=DRAIN_S)

    async def _check_consumer(self) -> None:
        try:
            await self._conn.api(f"CONSUMER.INFO.{self._stream}.{self._durable}")
        except ApiError as error:
            self.missing = f"consumer {self._durable} of {self._stream}: {error.description}"
            raise
        self.missing = ""

    async def _pull_until_broken(self, stopping: asyncio.Event | None) -> None:
        loop = asyncio.get_running_loop()
        inbox = self._conn.nc.new_inbox()
        self._expected = 0
        self._broken = False
        self._received_s = loop.time()
        forget = self._conn.when_reconnected(self._restart)
        subscription = await self._conn.subscribe_raw(inbox, self._each)
        try:
            while not self._broken and (stopping is None or not stopping.is_set()):
                room = self._concurrency - len(self._tasks) - self._expected
                if room >= max(1, self._concurrency // 4) or (room > 0 and self._expected == 0):
                    await self._pull(inbox, room)
                self._look.clear()
                looked_s = loop.time()
                try:
                    async with asyncio.timeout(0.5):  # wait_for may swallow a cancellation
                        await self._look.wait()
                except TimeoutError:
                    pass
                if loop.time() - looked_s > PULL_HEARTBEAT_S or not self._conn.connected:
                    # This process was suspended, not the server, or the server is known to be away.
                    self._received_s = loop.time()
                silent_s = loop.time() - self._received_s
                if self._expected and silent_s > 3 * PULL_HEARTBEAT_S:
                    self._conn.log.info("pulling again", consumer=self._durable)
                    return
        finally:
            forget()
            try:
                await subscription.unsubscribe()
            except (nats_errors.Error, OSError):
                pass  # the connection is gone, with its subscription

    def _restart(self) -> None:
        self._broken = True
        self._look.set()

    async def _pull(self, inbox: str, batch: int) -> None:
        self._expected += batch
        await self._conn.publish(
            self._conn.api_subject(f"CONSUMER.MSG.NEXT.{self._stream}.{self._durable}"),
            b'{"batch":%d,"expires":%d,"idle_heartbeat":%d}'
            % (batch, int(PULL_EXPIRES_S * _NS), int(PULL_HEARTBEAT_S * _NS)),
            reply=inbox,
        )

    async def _each(self, msg: Msg) -> None:
        if self._broken:
            return  # of an abandoned pull: the message is delivered again
        self._received_s = asyncio.get_running_loop().time()
        headers = msg.headers
        if headers is not None and "Status" in headers and not msg.data:
            if headers["Status"] != "100":  # a pull has ended
                self._pull_ended(headers)
            return
        self._expected = max(0, self._expected - 1)
        task = asyncio.create_task(self._work(msg), name=f"{self._durable}: {msg.subject}")
        self._tasks[task] = msg.reply
        task.add_done_callback(self._done)

    def _pull_ended(self, headers: dict[str, str]) -> None:
        left = headers.get("Nats-Pending-Messages")
        if left is None:  # the consumer is gone or moved: the valid pulls are unknown
            self._conn.log.info(
                "consuming again",
                consumer=self._durable,
                why=headers.get("Description", headers["Status"]),
            )
            self._restart()
            return
        self._expected = max(0, self._expected - int(left))  # the rest of the pull was not sent
        self._look.set()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if self._concurrency - len(self._tasks) - self._expected >= self._concurrency // 4:
            self._look.set()

    async def _report_progress(self) -> None:
        """Report progress, so that the server does not deliver messages in work to another
        process.
        """
        while True:
            await asyncio.sleep(self._ack_wait_s / 3)
            for reply in list(self._tasks.values()):
                await self._answer(reply, b"+WPI")

    async def _work(self, msg: Msg) -> None:
        sequence, _, stored_at_s, pending, deliveries = parse_ack_subject(msg.reply)
        limit = asyncio.timeout(self._handler_limit_s)
        try:
            async with limit:
                await self._handle(Recorded(msg.subject, sequence, stored_at_s, msg.data, pending))
        except Later as later:
            if later.counted:
                await self._failed(msg, sequence, deliveries, str(later), later.pause_s)
            else:
                await self._again(msg, sequence, later.pause_s)
        except Never as never:
            await self._store_dead_letter(msg, sequence, str(never))
        except (NoAnswer, NotConnected):  # the bus is away, the message is not to blame
            await self._again(msg, sequence, None)
        except Exception as error:  # noqa: BLE001 # a message never ends a service
            why = repr(error)
            if isinstance(error, TimeoutError) and limit.expired():
                why = f"not handled within {self._handler_limit_s:g} s"
            self._conn.log.error("message handler failed", error=error, subject=msg.subject)
            await self._failed(msg, sequence, deliveries, why, None)
        else:
            self.handled += 1
            self._forget(sequence)
            await self._answer(msg.reply, b"+ACK")

    def _forget(self, sequence: int) -> None:
        self._failures.forget(sequence)
        self._setbacks.forget(sequence)

    async def _failed(
        self, msg: Msg, sequence: int, deliveries: int, why: str, pause_s: float | None
    ) -> None:
        """Deliver again, or store a dead letter after too many failures: in this process alone, or
        twice here after as many deliveries to earlier processes.
        """
        failures = self._failures.count(sequence)
        enough = failures >= min(2, self._max_deliveries) and deliveries >= self._max_deliveries
        if failures >= self._max_deliveries or enough:
            await self._store_dead_letter(msg, sequence, f"after {deliveries} tries: {why}")
        else:
            await self._again(msg, sequence, pause_s)

    async def _again(self, msg: Msg, sequence: int, pause_s: float | None) -> None:
        if pause_s is None:
            setbacks = self._setbacks.count(sequence)
            full_s = min(FIRST_PAUSE_S * 2 ** min(setbacks, 16), LONGEST_PAUSE_S)
            # spread: many that failed at once do not return at once
            pause_s = full_s * (1 - sequence % 8 / 32)
        await self._answer(msg.reply, b'-NAK {"delay": %d}' % int(pause_s * _NS))

    async def _store_dead_letter(self, msg: Msg, sequence: int, reason: str) -> None:
        is_stored = await store_dead_letter(
            self._conn,
            service=self._service,
            subject=msg.subject,
            reason=reason,
            body=msg.data,
            stream=self._stream,
            sequence=sequence,
        )
        if not is_stored:  # not lost: redelivered until the letter is stored
            await self._answer(msg.reply, b'-NAK {"delay": %d}' % int(LONGEST_PAUSE_S * _NS))
            return
        self.dead_letters += 1
        self._forget(sequence)
        await self._answer(msg.reply, b"+TERM")

    async def _answer(self, reply: str, payload: bytes) -> None:
        try:
            await self._conn.publish(reply, payload)
        except BusError:
            pass  # redelivered after the acknowledgement's time limit
