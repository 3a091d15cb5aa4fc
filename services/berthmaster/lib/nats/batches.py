"""Reads a stream by batches of DIRECT.GET: last values, and what stands behind a sequence.

No consumer is made, so a reader can have the messages delivered to its own inbox only.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import NoAnswer
from berthmaster.lib.nats.recorded import Recorded
from berthmaster.lib.nats.requests import Listening, headers_of
from berthmaster.lib.nats.stored import message_of

BATCH: Final = 512  # messages of one answer; a server takes at most 1,024 subjects at once
NOTHING: Final = "404"  # the stream has no such message
PAGE: Final = 100_000  # subjects in one answer of the server's


class _State(msgspec.Struct):
    last_seq: int = 0
    subjects: dict[str, int] | None = None


class _Subjects(msgspec.Struct):
    state: _State


_SUBJECTS: Final = msgspec.json.Decoder(_Subjects)


class Batches:
    """One reader's batches, one at a time. Every method raises BusError."""

    def __init__(self, conn: Connection, stream: str) -> None:
        self._conn = conn
        self._stream = stream
        self._inbox = conn.nc.new_inbox()
        self._asked = 0
        self._listening: Listening | None = None
        self._batch: list[Recorded] = []
        self._last = 0  # sequence of the batch's newest message: each names the one before it
        self._ended: asyncio.Future[int] | None = None  # how many are left behind the batch

    async def open(self) -> None:
        """Listen for batches."""
        self._listening = await self._conn.nc.listen(f"{self._inbox}.*", self._take)

    async def close(self) -> None:
        """Listen no more. Raises nats_errors.Error, OSError."""
        if self._listening is not None:
            await self._listening.unsubscribe()

    async def read(
        self, start: int, filters: Sequence[str], *, timeout_s: float
    ) -> tuple[list[Recorded], int]:
        """Some messages from this sequence on, and how many are left. Of several filters none
        counts: the server takes one."""
        only = filters[0] if len(filters) == 1 else ">"
        return await self._ask({"seq": start, "batch": BATCH, "next_by_subj": only}, timeout_s)

    async def last_of(self, names: Sequence[str], *, timeout_s: float) -> list[Recorded]:
        """The last message of each of these subjects."""
        found: list[Recorded] = []
        for at in range(0, len(names), BATCH):
            part = names[at : at + BATCH]
            batch, _ = await self._ask({"multi_last": part, "batch": len(part)}, timeout_s)
            found += batch
        return found

    async def subjects(self, filters: Sequence[str], *, timeout_s: float) -> tuple[int, list[str]]:
        """The stream's last sequence, and its subjects under any of these filters."""
        names: set[str] = set()
        last = None
        for only in filters or [">"]:
            offset = 0
            while True:
                asked = {"subjects_filter": only, "offset": offset}
                raw = await self._conn.api(
                    f"STREAM.INFO.{self._stream}", asked, timeout_s=timeout_s
                )
                state = _SUBJECTS.decode(raw).state
                last = state.last_seq if last is None else last
                page = state.subjects or {}
                names |= set(page)
                offset += len(page)
                if len(page) < PAGE:
                    break
        return last or 0, sorted(names)

    async def _ask(self, asked: dict[str, Any], timeout_s: float) -> tuple[list[Recorded], int]:
        self._batch, self._last = [], 0
        self._ended = asyncio.get_running_loop().create_future()
        self._conn.nc.reading.await_answer()
        try:
            self._asked += 1
            subject = self._conn.api_subject(f"DIRECT.GET.{self._stream}")
            reply = f"{self._inbox}.{self._asked}"
            await self._conn.publish(subject, msgspec.json.encode(asked), reply=reply)
            async with asyncio.timeout(timeout_s):
                left = await self._ended
        except TimeoutError as error:
            raise NoAnswer(f"no batch of stream {self._stream} came in time") from error
        finally:
            self._ended = None
            self._conn.nc.reading.answered()
        return self._batch, left

    def _take(self, subject: bytes, reply: bytes, headers: bytes, body: bytes) -> None:
        ended = self._ended
        if ended is None or ended.done() or subject.rpartition(b".")[2] != b"%d" % self._asked:
            return  # of a batch that nobody waits for
        told = headers_of(headers)
        before = int(told.get("Nats-Last-Sequence", self._last))
        if before != self._last:
            why = f"sequence {before} of a batch of {self._stream} did not arrive"
            ended.set_exception(NoAnswer(why))
        elif "Nats-Subject" in told:
            found = message_of(told, body)
            left = int(told.get("Nats-Num-Pending", 0))
            self._last = found.sequence
            self._batch.append(
                Recorded(found.subject, found.sequence, found.stored_at_s, found.data, left)
            )
        elif told.get("Status") == NOTHING or "Nats-Num-Pending" in told:
            ended.set_result(int(told.get("Nats-Num-Pending", 0)))
        else:
            why = told.get("Description", "") or told.get("Status", "no status")
            ended.set_exception(NoAnswer(f"no batch of {self._stream}: {why}"))
