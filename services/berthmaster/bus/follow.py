"""Reads a stream in order, without gaps, for as long as the service lives.

A follower owns an unacknowledged push consumer and distrusts it: consumers vanish with servers,
heartbeats stop, messages are dropped on the way. Whenever something does not add up it makes a new
consumer behind the last message that was handled. Nothing is handled twice, nothing is skipped.

Several filters are dear: for each message that the server sends it compares all subjects of a block
with them, while writers wait. Who wants all of a stream therefore asks for it without any.
"""

import asyncio
import random
import secrets
from collections.abc import Callable, Sequence
from typing import Final, Literal

import msgspec

from berthmaster.bus.connection import Connection
from berthmaster.bus.direct import DirectSession
from berthmaster.bus.errors import BusError, NoAnswer, StreamReplaced
from berthmaster.bus.nats_py import errors as nats_errors
from berthmaster.bus.recorded import Recorded
from berthmaster.bus.requests import Listening, headers_of
from berthmaster.bus.streams import WORKLOADS, stream_info
from berthmaster.bus.subjects import ALL_DECISIONS, ALL_WORKLOADS, token

__all__ = ["Follower", "Recorded", "Start", "parse_ack_subject"]

HEARTBEAT_S: Final = 0.5
MISSED_HEARTBEATS: Final = 3
LONGEST_SILENCE_S: Final = 24.0
RELIABLE_S: Final = 30.0  # a consumer that was heard for so long makes up for those that were not
AWAY_POLL_S: Final = 0.1
SILENT: Final = "no heartbeat"
REPLACED_AFTER_S: Final = 5.0  # a new leader may need a moment to see all that was stored
FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 2.0
# Of several servers, one that has just gone may be chosen for a new consumer, and then nobody
# answers: the next try chooses anew. A server that is only slow has longer each time.
ANSWER_S: Final = 1.0
LONGEST_ANSWER_S: Final = 8.0
_NS: Final = 10**9
_STATUS: Final = b"NATS/1.0 "  # what the server itself says; a stored message has no blank there

_WHOLE: Final = {WORKLOADS: {ALL_WORKLOADS, ALL_DECISIONS}}  # of streams with several subjects

Start = int | Literal["last-per-subject"]


class _Delivered(msgspec.Struct):
    consumer_seq: int = 0


class _CreatedConsumer(msgspec.Struct):
    name: str
    delivered: _Delivered
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
        self._filters = [] if _WHOLE.get(stream) == set(filters) else list(filters)
        self._start = start
        self._relist_s = relist_s
        self.making = ""  # of the stream
        self._silence_s = MISSED_HEARTBEATS * HEARTBEAT_S  # that is not tolerated
        self._answer_s = ANSWER_S  # within which the next request must be answered
        self.sequence = 0 if isinstance(start, str) else start - 1  # last handled
        self.caught_up = False
        self.last_heard_s = 0.0  # event loop time: age of what we know

    async def run(
        self,
        handle: Callable[[Recorded], None],
        *,
        caught_up: Callable[[], None] | None = None,
        relisting: Callable[[bool], None] | None = None,
    ) -> None:
        """Handle every message until cancelled; what ``handle`` raises ends it and is raised.

        ``caught_up`` is called whenever all that was stored when a consumer was made has been
        handled, ``relisting`` before a list of values, with whether the stream was replaced.
        """
        pause_s = FIRST_PAUSE_S
        mirrors = isinstance(self._start, str)
        list_next = mirrors
        while True:
            while not self._conn.connected:  # noqa: ASYNC110 # it is there again within 0.1 s or so
                await asyncio.sleep(AWAY_POLL_S)
            kind = _Session if self._conn.follows else DirectSession
            session = kind(self, handle, caught_up)
            try:
                replaced = await self._check_incarnation()
                list_next |= replaced
                if list_next and relisting is not None:
                    relisting(replaced)
                await session.open(relist=list_next)
                pause_s, self._answer_s = FIRST_PAUSE_S, ANSWER_S
                time_to_list = await session.watch(self._relist_s if mirrors else None)
                # A list that was cut short tells nothing of what is gone: list once more.
                list_next = mirrors and (time_to_list or (list_next and not session.told))
            except StreamReplaced:
                raise
            except (BusError, nats_errors.Error, OSError) as error:
                self._conn.log.warning(
                    "cannot follow the stream", stream=self._stream, why=str(error)
                )
                if isinstance(error, NoAnswer):
                    self._answer_s = min(2 * self._answer_s, LONGEST_ANSWER_S)
                # Not all at once: many followers fail at the same moment.
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            finally:
                await session.close()
            if session.failure is not None:
                raise session.failure

    def _heard_for(self, lived_s: float, silent: bool) -> None:
        """A busy server is silent for long, and each new consumer gives it more to do: from one
        that is given up for its silence to the next, more of that is tolerated."""
        if lived_s >= RELIABLE_S:
            self._silence_s = MISSED_HEARTBEATS * HEARTBEAT_S
        if silent:
            self._silence_s = min(2 * self._silence_s, LONGEST_SILENCE_S)

    async def _check_incarnation(self) -> bool:
        """Whether a mirror must be listed anew because its stream is another one."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + REPLACED_AFTER_S
        while True:
            info = await stream_info(self._conn, self._stream, timeout_s=self._answer_s)
            remade = bool(self.making) and info.making != self.making
            behind = bool(self.making) and info.state.last_seq < self.sequence
            if not behind or remade or loop.time() >= deadline:
                break
            await asyncio.sleep(0.1)
        self.making = info.making
        if not (remade or behind):
            return False
        if not isinstance(self._start, str):
            raise StreamReplaced(f"stream {self._stream} is not the one that was followed")
        self._conn.log.warning("the stream was replaced; listing it anew", stream=self._stream)
        self.sequence = 0
        return True


class _Session:
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
        self.told = False  # that all which was stored at the start has been handled
        self.failure: Exception | None = None  # of the handler
        self._opened = False
        self._name = ""
        self._subscription: Listening | None = None
        self._loop = asyncio.get_running_loop()
        self._heard_s = self._loop.time()
        self._forget = self._conn.when_reconnected(lambda: self._break("the connection was lost"))

    async def open(self, *, relist: bool) -> None:
        follower = self._follower
        name = f"{token(self._conn.name)}-{secrets.token_hex(6)}"
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
        elif filters:
            config["filter_subjects"] = filters
        tail = f".{filters[0]}" if len(filters) == 1 else ""
        self._name = name
        self._subscription = await self._conn.nc.listen(inbox, self._take)
        raw = await self._conn.api(
            f"CONSUMER.CREATE.{follower._stream}.{name}{tail}",
            {"stream_name": follower._stream, "config": config, "action": "create"},
            timeout_s=follower._answer_s,
        )
        created = _CREATED.decode(raw)  # it may have sent some of them already
        self._to_come = created.num_pending + created.delivered.consumer_seq
        self._opened = True
        self._heard_s = asyncio.get_running_loop().time()
        if self._consumer_sequence >= self._to_come:
            self._tell_caught_up()

    async def watch(self, relist_s: float | None) -> bool:
        """Until the consumer is no good (False) or it is time to list anew (True)."""
        loop = asyncio.get_running_loop()
        opened_s = loop.time()
        relist_at = None if relist_s is None else opened_s + relist_s
        while True:
            looked_s = loop.time()
            try:
                async with asyncio.timeout(HEARTBEAT_S):  # wait_for may swallow a cancellation
                    await self._broken.wait()
            except TimeoutError:
                pass
            if self.failure is not None:
                return False
            if self._broken.is_set():
                self._conn.log.info("following anew", stream=self._follower._stream, why=self._why)
                self._follower._heard_for(self._heard_s - opened_s, self._why == SILENT)
                return False
            if loop.time() - looked_s > 2 * HEARTBEAT_S or not self._conn.connected:
                continue  # this process stood still, what came meanwhile waits to be read; or away
            if loop.time() - self._heard_s > self._follower._silence_s:
                self._break(SILENT)
            elif relist_at is not None and loop.time() >= relist_at and self.told:
                return True

    async def close(self) -> None:
        self._forget()
        if self._subscription is None:
            return
        try:
            await self._subscription.unsubscribe()
            delete = f"CONSUMER.DELETE.{self._follower._stream}.{self._name}"
            if self._conn.connected and not self._opened:  # it may be made yet
                await self._conn.publish(self._conn.api_subject(delete), b"")
            elif self._conn.connected and not self._broken.is_set():
                await self._conn.api(delete, timeout_s=0.5)
        except (BusError, nats_errors.Error, OSError):
            pass  # it goes by itself after its inactive threshold

    def _break(self, why: str) -> None:
        self._why = self._why or why
        self._broken.set()

    def _take(self, subject: bytes, reply: bytes, headers: bytes, body: bytes) -> None:
        if self._broken.is_set():
            return
        self._heard_s = self._follower.last_heard_s = self._loop.time()
        if not body and headers.startswith(_STATUS):
            self._control(reply.decode(), headers_of(headers))
            return
        sequence, consumer_sequence, stored_at_s, pending, _ = parse_ack_subject(reply.decode())
        if consumer_sequence != self._consumer_sequence + 1:
            self._break(f"message {self._consumer_sequence + 1} of the consumer is missing")
            return
        self._consumer_sequence = consumer_sequence
        follower = self._follower
        try:
            self._handle(Recorded(subject.decode(), sequence, stored_at_s, body, pending))
        except Exception as error:  # noqa: BLE001 # the owner's fault: it must hear of it
            self.failure = error
            self._break(f"the handler failed: {error}")
            return
        follower.sequence = max(follower.sequence, sequence)
        if pending == 0 or consumer_sequence >= self._to_come:
            self._tell_caught_up()

    def _control(self, reply: str, headers: dict[str, str]) -> None:
        if headers["Status"] != "100":
            self._break(headers.get("Description", "the consumer is gone"))
            return
        if reply:  # flow control: all before it has been handled
            self._conn.nc.send_now(reply)
            return
        stalled = headers.get("Nats-Consumer-Stalled")
        if stalled:
            self._conn.nc.send_now(stalled)
        last = headers.get("Nats-Last-Consumer")
        if last is None:
            return
        if int(last) != self._consumer_sequence:
            self._break(f"the consumer sent {last} messages, {self._consumer_sequence} arrived")
        elif not stalled:
            self._tell_caught_up()  # it has nothing to send, though some of the list were purged

    def _tell_caught_up(self) -> None:
        if self.told or not self._opened or self._broken.is_set():
            return
        self.told = True
        self._follower.caught_up = True
        if self._caught_up is None:
            return
        try:
            self._caught_up()
        except Exception as error:  # noqa: BLE001 # as with the handler
            self.failure = error
            self._break(f"the handler failed: {error}")
