"""Reads a stream in order, without gaps, for as long as the service lives.

A follower owns an unacknowledged push consumer and distrusts it: consumers vanish with servers,
heartbeats stop, messages are dropped on the way. Whenever something does not add up it makes a new
consumer behind the last message that was handled. Nothing is handled twice, nothing is skipped.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple

import msgspec
import nats.errors
from nats.aio.msg import Msg

from berthmaster.bus.connection import Connection
from berthmaster.bus.errors import BusError, StreamReplaced
from berthmaster.bus.streams import stream_info

HEARTBEAT_S: Final = 1.0
MISSED_HEARTBEATS: Final = 3
FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 2.0
_NS: Final = 10**9

Start = int | Literal["last-per-subject"]


class Recorded(NamedTuple):
    """One message as the stream has it."""

    subject: str
    sequence: int
    stored_at_s: float  # the server's clock
    data: bytes
    pending: int  # messages behind this one when it was sent


class _CreatedConsumer(msgspec.Struct):
    name: str
    num_pending: int = 0


_CREATED: Final = msgspec.json.Decoder(_CreatedConsumer)


def parse_ack_subject(reply: str) -> tuple[int, int, float, int, int]:
    """(stream sequence, consumer sequence, stored at, pending, deliveries) of a reply subject."""
    parts = reply.split(".")
    # $JS.ACK.<stream>.<consumer>.<deliveries>.<sseq>.<cseq>.<ns>.<pending>, or with domain and
    # account in front of the stream and perhaps a token behind.
    at = 4 if len(parts) == 9 else 6
    return (
        int(parts[at + 1]),
        int(parts[at + 2]),
        int(parts[at + 3]) / _NS,
        int(parts[at + 4]),
        int(parts[at]),
    )


class Follower:
    """Follows a stream, or some subjects of it."""

    def __init__(
        self,
        conn: Connection,
        stream: str,
        filters: Sequence[str],
        *,
        start: Start = 1,
        relist_s: float | None = None,
    ) -> None:
        """``start``: the first sequence, or "last-per-subject" for a mirror of last values, which
        is listed anew every ``relist_s`` and when the stream was replaced. Other followers raise
        StreamReplaced then."""
        self._conn = conn
        self._stream = stream
        self._filters = list(filters)
        self._start = start
        self._relist_s = relist_s
        self._created = ""  # which incarnation of the stream
        self.sequence = 0 if isinstance(start, str) else start - 1  # last handled
        self.caught_up = False
        self.last_heard_s = 0.0  # event loop time: age of what we know

    async def run(
        self,
        handle: Callable[[Recorded], None],
        *,
        caught_up: Callable[[], None] | None = None,
        relisting: Callable[[], None] | None = None,
    ) -> None:
        """Handle every message until cancelled. ``caught_up`` is called whenever all that was
        stored when a consumer was made has been handled, ``relisting`` before a list of values."""
        pause_s = FIRST_PAUSE_S
        relist = isinstance(self._start, str)
        while True:
            session = _Session(self, handle, caught_up)
            try:
                relist |= await self._check_incarnation()
                if relist and relisting is not None:
                    relisting()
                await session.open(relist=relist)
                pause_s = FIRST_PAUSE_S
                listed_anew = await session.watch(
                    self._relist_s if relist or self._relist_s else None
                )
                relist = isinstance(self._start, str) and (listed_anew or not self.caught_up)
            except (BusError, nats.errors.Error, OSError) as error:
                if isinstance(error, StreamReplaced):
                    raise
                self._conn.log.warning(
                    "cannot follow the stream", stream=self._stream, why=str(error)
                )
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            finally:
                await session.close()

    async def _check_incarnation(self) -> bool:
        """Whether a mirror must be listed anew because its stream is another one."""
        info = await stream_info(self._conn, self._stream)
        replaced = bool(self._created) and (
            info.created != self._created or info.state.last_seq < self.sequence
        )
        self._created = info.created
        if not replaced:
            return False
        if not isinstance(self._start, str):
            raise StreamReplaced(f"stream {self._stream} is not the one that was followed")
        self._conn.log.warning("the stream was replaced; listing it anew", stream=self._stream)
        self.sequence = 0
        return True


class _Session:
    """One consumer's life."""

    def __init__(
        self,
        follower: Follower,
        handle: Callable[[Recorded], None],
        caught_up: Callable[[], None] | None,
    ) -> None:
        self._follower = follower
        self._conn = follower._conn
        self._handle = handle
        self._caught_up = caught_up
        self._broken = asyncio.Event()
        self._why = ""
        self._consumer_sequence = 0
        self._to_come = 0
        self._told = False
        self._name = ""
        self._subscription: object | None = None
        self._failure: BaseException | None = None
        self._heard_s = asyncio.get_running_loop().time()
        self._forget = self._conn.when_reconnected(lambda: self._break("the connection was lost"))

    async def open(self, *, relist: bool) -> None:
        follower = self._follower
        name = f"{self._conn.name}-{secrets.token_hex(6)}".replace(".", "_").replace("/", "_")
        inbox = self._conn.nc.new_inbox()
        config: dict[str, object] = {
            "name": name,
            "deliver_subject": inbox,
            "ack_policy": "none",
            "replay_policy": "instant",
            "max_deliver": 1,
            "flow_control": True,
            "idle_heartbeat": int(HEARTBEAT_S * _NS),
            "inactive_threshold": 30 * _NS,
            "mem_storage": True,
            "num_replicas": 1,
        }
        if relist:
            config["deliver_policy"] = "last_per_subject"
        else:
            config |= {
                "deliver_policy": "by_start_sequence",
                "opt_start_seq": follower.sequence + 1,
            }
        filters = follower._filters
        if len(filters) == 1:
            config["filter_subject"] = filters[0]
        else:
            config["filter_subjects"] = filters
        tail = f".{filters[0]}" if len(filters) == 1 else ""
        self._name = name
        self._subscription = await self._conn.subscribe_raw(
            inbox, self._each, pending_messages=1_000_000
        )
        raw = await self._conn.api(
            f"CONSUMER.CREATE.{follower._stream}.{name}{tail}",
            {"stream_name": follower._stream, "config": config, "action": "create"},
        )
        self._to_come = _CREATED.decode(raw).num_pending
        self._heard_s = asyncio.get_running_loop().time()
        if self._to_come <= self._consumer_sequence:
            self._tell_caught_up()

    async def watch(self, relist_s: float | None) -> bool:
        """Until the consumer is no good (False) or it is time to list anew (True)."""
        loop = asyncio.get_running_loop()
        relist_at = None if relist_s is None else loop.time() + relist_s
        while True:
            try:
                await asyncio.wait_for(self._broken.wait(), HEARTBEAT_S)
            except TimeoutError:
                pass
            if self._failure is not None:
                raise self._failure
            if self._broken.is_set():
                self._conn.log.info("following anew", stream=self._follower._stream, why=self._why)
                return False
            if loop.time() - self._heard_s > MISSED_HEARTBEATS * HEARTBEAT_S:
                self._break("no heartbeat")
            elif relist_at is not None and loop.time() >= relist_at and self._told:
                return True

    async def close(self) -> None:
        self._forget()
        if self._subscription is None:
            return
        try:
            await self._subscription.unsubscribe()  # type: ignore[attr-defined]
            if self._conn.connected and not self._broken.is_set():
                await self._conn.api(
                    f"CONSUMER.DELETE.{self._follower._stream}.{self._name}", timeout_s=0.5
                )
        except (BusError, nats.errors.Error, OSError):
            pass  # it goes by itself after its inactive threshold

    def _break(self, why: str) -> None:
        self._why = self._why or why
        self._broken.set()

    async def _each(self, msg: Msg) -> None:
        if self._broken.is_set():
            return
        self._heard_s = self._follower.last_heard_s = asyncio.get_running_loop().time()
        if msg.headers is not None and not msg.data and "Status" in msg.headers:
            await self._control(msg, msg.headers)
            return
        sequence, consumer_sequence, stored_at_s, pending, _ = parse_ack_subject(msg.reply)
        if consumer_sequence != self._consumer_sequence + 1:
            self._break(f"message {self._consumer_sequence + 1} of the consumer is missing")
            return
        self._consumer_sequence = consumer_sequence
        follower = self._follower
        try:
            self._handle(Recorded(msg.subject, sequence, stored_at_s, msg.data, pending))
        except Exception as error:  # noqa: BLE001 # the owner's fault: it must hear of it
            self._failure = error
            self._break(f"the handler failed: {error}")
            return
        follower.sequence = max(follower.sequence, sequence)
        if not self._told and consumer_sequence >= self._to_come and self._to_come:
            self._tell_caught_up()

    async def _control(self, msg: Msg, headers: dict[str, str]) -> None:
        if msg.reply:  # flow control: all before it has been handled
            await self._conn.publish(msg.reply, b"")
            return
        if stalled := headers.get("Nats-Consumer-Stalled"):
            await self._conn.publish(stalled, b"")
        last = headers.get("Nats-Last-Consumer")
        if last is not None and int(last) != self._consumer_sequence:
            self._break(f"the consumer sent {last} messages, {self._consumer_sequence} arrived")

    def _tell_caught_up(self) -> None:
        self._told = True
        self._follower.caught_up = True
        if self._caught_up is not None:
            self._caught_up()
