"""Work through a stream with a durable pull consumer: bounded, acknowledged after the work.

A message that a handler cannot do now comes again later, with growing pauses; one that it can never
do, or that failed too often, becomes a dead letter. Handlers run concurrently up to a bound, and no
more is pulled than they can take.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import nats.errors
from nats.aio.msg import Msg

from berthmaster.bus.connection import Connection
from berthmaster.bus.dead import bury
from berthmaster.bus.errors import ApiError, BusError
from berthmaster.bus.follow import Recorded, parse_ack_subject

_NS: Final = 10**9
PULL_EXPIRES_S: Final = 20.0
PULL_HEARTBEAT_S: Final = 5.0
ACK_WAIT_S: Final = 10.0
MAX_DELIVERIES: Final = 20
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 30.0
DRAIN_S: Final = 2.0


class Later(Exception):  # it is a wish of the handler, not a failure
    """Not now: deliver it again after ``pause_s`` (None: growing pauses). It counts as a failure of
    the message unless ``counted`` is False."""

    def __init__(self, why: str, *, pause_s: float | None = None, counted: bool = True) -> None:
        super().__init__(why)
        self.pause_s = pause_s
        self.counted = counted


class Never(Exception):
    """It cannot be handled and never will be: a dead letter."""


Handle = Callable[[Recorded], Awaitable[None]]


class Worker:
    """One durable consumer and the handlers that it feeds."""

    def __init__(
        self,
        conn: Connection,
        service: str,
        stream: str,
        durable: str,
        filters: Sequence[str],
        handle: Handle,
        *,
        concurrency: int = 256,
        max_deliveries: int = MAX_DELIVERIES,
        ack_wait_s: float = ACK_WAIT_S,
    ) -> None:
        self._conn = conn
        self._service = service
        self._stream = stream
        self._durable = durable.replace(".", "_").replace("/", "_").replace("=", "_")
        self._filters = list(filters)
        self._handle = handle
        self._concurrency = concurrency
        self._max_deliveries = max_deliveries
        self._ack_wait_s = ack_wait_s
        self._asked = 0  # messages asked for and not yet received
        self._tasks: set[asyncio.Task[None]] = set()
        self._pull_again = asyncio.Event()
        self._heard_s = 0.0
        self.handled = 0
        self.buried = 0

    async def run(self, stopping: asyncio.Event | None = None) -> None:
        """Work until cancelled, or until ``stopping`` is set; then what is in hand is finished."""
        try:
            while stopping is None or not stopping.is_set():
                try:
                    await self._make_consumer()
                    await self._pull_until_broken(stopping)
                except (BusError, nats.errors.Error, OSError) as error:
                    self._conn.log.warning(
                        "cannot consume",
                        stream=self._stream,
                        consumer=self._durable,
                        why=str(error),
                    )
                    await asyncio.sleep(0.5)
        finally:
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=DRAIN_S)
            for task in self._tasks:
                task.cancel()

    async def _make_consumer(self) -> None:
        tail = f".{self._filters[0]}" if len(self._filters) == 1 else ""
        config: dict[str, object] = {
            "name": self._durable,
            "durable_name": self._durable,
            "ack_policy": "explicit",
            "ack_wait": int(self._ack_wait_s * _NS),
            "deliver_policy": "all",
            "max_ack_pending": max(1000, 4 * self._concurrency),
            "max_waiting": 512,
        }
        if len(self._filters) == 1:
            config["filter_subject"] = self._filters[0]
        else:
            config["filter_subjects"] = self._filters
        await self._conn.api(
            f"CONSUMER.CREATE.{self._stream}.{self._durable}{tail}",
            {"stream_name": self._stream, "config": config},
        )

    async def _pull_until_broken(self, stopping: asyncio.Event | None) -> None:
        loop = asyncio.get_running_loop()
        inbox = self._conn.nc.new_inbox()
        self._asked = 0
        self._heard_s = loop.time()
        broken = asyncio.Event()
        forget = self._conn.when_reconnected(broken.set)
        subscription = await self._conn.subscribe_raw(inbox, self._each)
        try:
            while not broken.is_set() and (stopping is None or not stopping.is_set()):
                room = self._concurrency - len(self._tasks) - self._asked
                if room >= max(1, self._concurrency // 4) or (room > 0 and self._asked == 0):
                    await self._pull(inbox, room)
                self._pull_again.clear()
                try:
                    await asyncio.wait_for(self._pull_again.wait(), 0.5)
                except TimeoutError:
                    pass
                silent_s = loop.time() - self._heard_s
                if self._asked and silent_s > 3 * PULL_HEARTBEAT_S:
                    self._conn.log.info("pulling anew", consumer=self._durable)
                    return
        finally:
            forget()
            try:
                await subscription.unsubscribe()
            except (nats.errors.Error, OSError):
                pass  # the connection is gone, and the subscription with it

    async def _pull(self, inbox: str, batch: int) -> None:
        self._asked += batch
        await self._conn.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._durable}",
            b'{"batch":%d,"expires":%d,"idle_heartbeat":%d}'
            % (batch, int(PULL_EXPIRES_S * _NS), int(PULL_HEARTBEAT_S * _NS)),
            reply=inbox,
        )

    async def _each(self, msg: Msg) -> None:
        self._heard_s = asyncio.get_running_loop().time()
        headers = msg.headers
        if headers is not None and "Status" in headers and not msg.data:
            if headers["Status"] != "100":  # a pull is over: what it did not bring was not sent
                left = headers.get("Nats-Pending-Messages")
                self._asked = max(0, self._asked - int(left)) if left else 0
                self._pull_again.set()
            return
        self._asked = max(0, self._asked - 1)
        task = asyncio.create_task(self._work(msg))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._concurrency - len(self._tasks) - self._asked >= self._concurrency // 4:
            self._pull_again.set()

    async def _work(self, msg: Msg) -> None:
        sequence, _, stored_at_s, pending, deliveries = parse_ack_subject(msg.reply)
        try:
            await self._handle(Recorded(msg.subject, sequence, stored_at_s, msg.data, pending))
            self.handled += 1
            await self._conn.publish(msg.reply, b"+ACK")
        except Later as later:
            if later.counted and deliveries >= self._max_deliveries:
                await self._bury(msg, sequence, f"after {deliveries} tries: {later}")
            else:
                await self._again(msg, later.pause_s, deliveries)
        except Never as never:
            await self._bury(msg, sequence, str(never))
        except (BusError, nats.errors.Error, OSError):
            await self._again(msg, None, deliveries)  # the bus is away, the message is not to blame
        except Exception as error:  # noqa: BLE001 # a message never ends a service
            self._conn.log.error("message handler failed", error=error, subject=msg.subject)
            if deliveries >= self._max_deliveries:
                await self._bury(msg, sequence, f"after {deliveries} tries: {error!r}")
            else:
                await self._again(msg, None, deliveries)

    async def _again(self, msg: Msg, pause_s: float | None, deliveries: int) -> None:
        if pause_s is None:
            pause_s = min(FIRST_PAUSE_S * 2 ** min(deliveries, 16), LONGEST_PAUSE_S)
        try:
            await self._conn.publish(msg.reply, b'-NAK {"delay": %d}' % int(pause_s * _NS))
        except BusError:
            pass  # it comes again after ack_wait

    async def _bury(self, msg: Msg, sequence: int, reason: str) -> None:
        self.buried += 1
        await bury(
            self._conn,
            service=self._service,
            subject=msg.subject,
            reason=reason,
            body=msg.data,
            stream=self._stream,
            sequence=sequence,
        )
        try:
            await self._conn.publish(msg.reply, b"+TERM")
        except (BusError, ApiError):
            pass
