"""Reads messages of a stream: single messages from the leader, batches, or the whole stream.

A batch is one answer to DIRECT.GET. Such reads create no consumer, so the messages can go only to
the reader's own inbox.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import ApiError, NoAnswer
from berthmaster.lib.nats.requests import Listening, headers_of
from berthmaster.lib.nats.stream_messages import Message, Recorded, message_of, parse_time_s
from berthmaster.lib.nats.stream_names import FLEET, FLEET_LOG

NO_MESSAGE: Final = 10037
GET_TIMEOUT_S: Final = 2.0


class _StoredMessage(msgspec.Struct):
    subject: str
    seq: int
    time: str
    data: bytes = b""


class _MessageReply(msgspec.Struct):
    message: _StoredMessage


_MESSAGE: Final = msgspec.json.Decoder(_MessageReply)


async def last_message(
    conn: Connection, stream: str, subject: str, *, timeout_s: float = GET_TIMEOUT_S
) -> Message | None:
    """Return the last message under a subject or filter, from the leader: never an outdated one."""
    return await _get(conn, stream, {"last_by_subj": subject}, timeout_s)


async def next_message(
    conn: Connection, stream: str, subject: str, start: int, *, timeout_s: float = GET_TIMEOUT_S
) -> Message | None:
    """Return the first message at or after a sequence under a filter, from the leader."""
    return await _get(conn, stream, {"seq": start, "next_by_subj": subject}, timeout_s)


async def message_at(
    conn: Connection, stream: str, sequence: int, *, timeout_s: float = GET_TIMEOUT_S
) -> Message | None:
    """Return the message with this sequence, from the leader."""
    return await _get(conn, stream, {"seq": sequence}, timeout_s)


async def _get(
    conn: Connection, stream: str, query: dict[str, object], timeout_s: float
) -> Message | None:
    try:
        raw = await conn.api(f"STREAM.MSG.GET.{stream}", query, timeout_s=timeout_s)
    except ApiError as error:
        if error.code == NO_MESSAGE:
            return None
        raise
    found = _MESSAGE.decode(raw).message
    return Message(found.subject, found.seq, parse_time_s(found.time), found.data)


BATCH: Final = 512  # messages of one answer; a server takes at most 1,024 subjects at once
NO_MESSAGES: Final = "404"  # the stream has no such message
PAGE: Final = 100_000  # subjects in an answer of the server


class _State(msgspec.Struct):
    last_seq: int = 0
    subjects: dict[str, int] | None = None


class _Info(msgspec.Struct):
    state: _State


_INFO: Final = msgspec.json.Decoder(_Info)


class BatchReader:
    """Reads batches for one reader, one at a time. Every method raises BusError."""

    def __init__(self, conn: Connection, stream: str) -> None:
        self._conn = conn
        self._stream = stream
        self._inbox = conn.nc.new_inbox()
        self._requests = 0
        self._subscription: Listening | None = None
        self._batch: list[Recorded] = []
        # sequence of the batch's newest message; each message names the previous one
        self._last = 0
        self._outcome: asyncio.Future[int] | None = None  # number of messages behind the batch

    async def open(self) -> None:
        """Listen for batches."""
        self._subscription = await self._conn.nc.listen(f"{self._inbox}.*", self._take)

    async def close(self) -> None:
        """Stop listening. Raises nats_errors.Error, OSError."""
        if self._subscription is not None:
            await self._subscription.unsubscribe()

    async def read(
        self, start: int, filters: Sequence[str], *, timeout_s: float
    ) -> tuple[list[Recorded], int]:
        """Return a batch of messages from this sequence on, and how many are left.

        The server accepts one filter. With several the batch is not filtered.
        """
        only = filters[0] if len(filters) == 1 else ">"
        return await self._request({"seq": start, "batch": BATCH, "next_by_subj": only}, timeout_s)

    async def last_messages(self, names: Sequence[str], *, timeout_s: float) -> list[Recorded]:
        """Return the last message of each of these subjects."""
        found: list[Recorded] = []
        for at in range(0, len(names), BATCH):
            part = names[at : at + BATCH]
            batch, _ = await self._request({"multi_last": part, "batch": len(part)}, timeout_s)
            found += batch
        return found

    async def subjects(self, filters: Sequence[str], *, timeout_s: float) -> tuple[int, list[str]]:
        """Return the stream's last sequence, and the subjects under any of the filters."""
        names: set[str] = set()
        last = None
        for only in filters or [">"]:
            offset = 0
            while True:
                query = {"subjects_filter": only, "offset": offset}
                raw = await self._conn.api(
                    f"STREAM.INFO.{self._stream}", query, timeout_s=timeout_s
                )
                state = _INFO.decode(raw).state
                last = state.last_seq if last is None else last
                page = state.subjects or {}
                names |= set(page)
                offset += len(page)
                if len(page) < PAGE:
                    break
        return last or 0, sorted(names)

    async def _request(self, query: dict[str, Any], timeout_s: float) -> tuple[list[Recorded], int]:
        self._batch, self._last = [], 0
        self._outcome = asyncio.get_running_loop().create_future()
        self._conn.nc.message_parser.await_answer()
        try:
            self._requests += 1
            subject = self._conn.api_subject(f"DIRECT.GET.{self._stream}")
            reply = f"{self._inbox}.{self._requests}"
            await self._conn.publish(subject, msgspec.json.encode(query), reply=reply)
            async with asyncio.timeout(timeout_s):
                left = await self._outcome
        except TimeoutError as error:
            raise NoAnswer(f"no batch of stream {self._stream} came in time") from error
        finally:
            self._outcome = None
            self._conn.nc.message_parser.end_answer()
        return self._batch, left

    def _take(self, subject: bytes, reply: bytes, headers: bytes, body: bytes) -> None:
        outcome = self._outcome
        if (
            outcome is None
            or outcome.done()
            or subject.rpartition(b".")[2] != b"%d" % self._requests
        ):
            return  # of a batch whose reader has timed out
        fields = headers_of(headers)
        before = int(fields.get("Nats-Last-Sequence", self._last))
        if before != self._last:
            why = f"sequence {before} of a batch of {self._stream} did not arrive"
            outcome.set_exception(NoAnswer(why))
        elif "Nats-Subject" in fields:
            found = message_of(fields, body)
            left = int(fields.get("Nats-Num-Pending", 0))
            self._last = found.sequence
            self._batch.append(
                Recorded(found.subject, found.sequence, found.stored_at_s, found.data, left)
            )
        elif fields.get("Status") == NO_MESSAGES or "Nats-Num-Pending" in fields:
            outcome.set_result(int(fields.get("Nats-Num-Pending", 0)))
        else:
            why = fields.get("Description", "") or fields.get("Status", "no status")
            outcome.set_exception(NoAnswer(f"no batch of {self._stream}: {why}"))


READ_LIMIT_S: Final = 120.0
ANSWER_S: Final = 10.0


async def read_all(
    conn: Connection,
    stream: str,
    filters: Sequence[str],
    take: Callable[[Recorded], None],
    *,
    start: int = 1,
    limit_s: float = READ_LIMIT_S,
) -> None:
    """Pass each message from sequence ``start`` on to ``take``. Exceptions of ``take`` are raised.

    Raises BusError, and TimeoutError if the limit passes first.
    """
    last = _INFO.decode(await conn.api(f"STREAM.INFO.{stream}")).state.last_seq
    batches = BatchReader(conn, stream)
    await batches.open()
    try:
        async with asyncio.timeout(limit_s):
            left = 1
            while left and start <= last:
                found, left = await batches.read(start, filters, timeout_s=ANSWER_S)
                for each in found:
                    start = each.sequence + 1
                    if subjects.among(filters, each.subject):
                        take(each)
    except TimeoutError:
        raise TimeoutError(f"stream {stream} was not read within {limit_s:.0f} s") from None
    finally:
        await batches.close()


async def read_fleet_history(conn: Connection, take: Callable[[Recorded], None]) -> None:
    """Pass every fact to ``take``, in order: all of FLEET_LOG, then newer facts of FLEET. The
    mirror may be many seconds behind after a server was lost. Raises as read_all does.
    """
    last = 0

    def take_logged(recorded: Recorded) -> None:
        nonlocal last
        take(recorded)
        last = recorded.sequence

    await read_all(conn, FLEET_LOG, [subjects.ALL_FLEET], take_logged)
    await read_all(conn, FLEET, [subjects.ALL_FLEET], take, start=last + 1)
