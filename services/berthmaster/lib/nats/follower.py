"""Reads a stream in order, without gaps, until the service stops.

A stream republishes stored messages with sequences (streams.py: ``republish``), and a follower
subscribes to them. No consumer exists. The server keeps no state for a follower, and one
publication reaches all followers. Subscriptions lose messages, so a follower also reads the stream
itself, by batches of DIRECT.GET: at the start, at a missing sequence, and after CHECK_S without a
message.

Example: a follower of WORKLOADS has handled 41. 42 arrives and is handled. 44 arrives: the follower
reads 43 and 44 from the stream. 45 is lost and nothing follows: the next check reads 45.

A follower of some subjects cannot see a gap in its sequences. Every VERIFY_S the follower reads
once more from the last verified sequence and handles missing messages, late and behind newer ones.
Mirrors of last values order facts by stamps.
"""

import asyncio
import random
import re
from collections.abc import Callable, Sequence
from typing import Final, Literal

from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import BusError, NoAnswer, StreamReplaced
from berthmaster.lib.nats.nats_py import errors as nats_errors
from berthmaster.lib.nats.requests import Listening
from berthmaster.lib.nats.stream_messages import Recorded, parse_time_s
from berthmaster.lib.nats.stream_reads import BatchReader
from berthmaster.lib.nats.streams import FOLLOWED, WORKLOADS, stream_info
from berthmaster.lib.nats.subjects import ALL_WORKLOADS, among, stored

CHECK_S: Final = 1.0
VERIFY_S: Final = 5.0
BEHIND_S: Final = 0.02  # pause before a server that is behind the leader is asked again
BEHIND_LIMIT_S: Final = 1.0  # the message may also be deleted; a later check continues
AWAY_POLL_S: Final = 0.1
REPLACED_AFTER_S: Final = 5.0  # a new leader may need some time to see all stored messages
FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 2.0
# A request may go to a server that has just stopped, and gets no answer. The next try goes to
# another server. A slow server gets longer each time.
ANSWER_S: Final = 1.0
LONGEST_ANSWER_S: Final = 8.0
# The server appends headers after the writer's headers, which may have the same names.
_MARK: Final = b"Nats-Stream: "
# Only a publication ends in these headers. An answer of DIRECT.GET, which another service can
# redirect here, has no Nats-Last-Sequence. A batched answer has Nats-Num-Pending before it.
_STORED: Final = re.compile(
    rb"Nats-Stream: (\S+)\r\nNats-Subject: (\S+)\r\nNats-Sequence: (\d+)\r\n"
    rb"Nats-Time-Stamp: (\S+)\r\nNats-Last-Sequence: \d+\r\n\r\n\Z"
)
Start = int | Literal["last-per-subject"]


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
        """``start``: the first sequence, or "last-per-subject" for a mirror of last values. A
        mirror is listed again every ``relist_s`` and when the stream was replaced. Other followers
        raise StreamReplaced then.
        """
        self._conn = conn
        self._stream = stream
        self._filters = list(filters)
        # Decisions are few: a follower of all workloads receives them too, and so sees gaps.
        whole = (ALL_WORKLOADS,) if stream == WORKLOADS else FOLLOWED[stream]
        self._is_whole = all(among(filters, each) for each in whole)
        self._takes_all = all(among(filters, each) for each in FOLLOWED[stream])
        self._start = start
        self._relist_s = relist_s
        self.making = ""  # the stream incarnation's id
        self._answer_s = ANSWER_S  # time limit of the next request
        self.sequence = 0 if isinstance(start, str) else start - 1  # last handled
        self.caught_up = False
        self.last_heard_s = 0.0  # event loop time, for the age of the state

    async def run(
        self,
        handle: Callable[[Recorded], None],
        *,
        caught_up: Callable[[], None] | None = None,
        relisting: Callable[[bool], None] | None = None,
    ) -> None:
        """Handle every message until cancelled. An exception of ``handle`` ends ``run`` and is
        raised.

        ``caught_up`` is called when all messages stored at the start of a session have been
        handled. ``relisting`` is called before values are listed, with whether the stream was
        replaced.
        """
        pause_s = FIRST_PAUSE_S
        mirrors = isinstance(self._start, str)
        list_next = mirrors
        while True:
            while not self._conn.connected:  # noqa: ASYNC110 # it is there again within 0.1 s or so
                await asyncio.sleep(AWAY_POLL_S)
            session = _Session(self, handle, caught_up)
            try:
                replaced = await self._check_incarnation()
                list_next |= replaced
                if list_next and relisting is not None:
                    relisting(replaced)
                await session.open(relist=list_next)
                pause_s, self._answer_s = FIRST_PAUSE_S, ANSWER_S
                time_to_list = await session.watch(self._relist_s if mirrors else None)
                # An interrupted list does not tell which subjects are gone: list once more.
                list_next = mirrors and (time_to_list or (list_next and not session.is_complete))
            except StreamReplaced:
                raise
            except (BusError, nats_errors.Error, OSError) as error:
                self._conn.log.warning(
                    "stream cannot be followed", stream=self._stream, why=str(error)
                )
                if isinstance(error, NoAnswer):
                    self._answer_s = min(2 * self._answer_s, LONGEST_ANSWER_S)
                # Randomly spread: many followers fail at the same time.
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            finally:
                await session.close()
            if session.failure is not None:
                raise session.failure

    async def _check_incarnation(self) -> bool:
        """Return whether a mirror must be listed again because its stream was replaced."""
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
        self._conn.log.warning("stream replaced, listing again", stream=self._stream)
        self.sequence = 0
        return True


class _Session:
    """Following during one connection."""

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
        self._stream = follower._stream.encode()
        self._batches = BatchReader(self._conn, follower._stream)
        self._look = asyncio.Event()  # set on an inconsistency: check the stream, or end
        self._why_ended = ""
        # reading from the stream, where messages that arrive meanwhile are read too
        self._reads = True
        self._newest = 0  # sequence of the newest message that arrived meanwhile
        self._verified = 0  # follower of some subjects: last sequence read from the stream itself
        self._since: set[int] = set()  # follower of some subjects: sequences handled since then
        self._has_received = False  # any message since the last check
        self.is_complete = False  # all messages stored at the start have been handled
        self.failure: Exception | None = None  # exception of the handler
        self._listening: list[Listening] = []
        self._loop = asyncio.get_running_loop()
        self._forget = self._conn.when_reconnected(lambda: self._end("the connection was lost"))

    async def open(self, *, relist: bool) -> None:
        """Subscribe, list the last values if requested, and read the backlog. Raises BusError."""
        follower = self._follower
        for subject in FOLLOWED[follower._stream] if follower._is_whole else follower._filters:
            self._listening.append(await self._conn.nc.listen(stored(subject), self._take))
        await self._batches.open()
        await self._conn.flush(timeout_s=follower._answer_s)
        if relist:
            last, names = await self._batches.subjects(
                follower._filters, timeout_s=follower._answer_s
            )
            found = await self._batches.last_messages(names, timeout_s=follower._answer_s)
            for each in sorted(found, key=lambda recorded: recorded.sequence):
                if each.sequence <= last:
                    self._give(each)
            follower.sequence = max(follower.sequence, last)
        self._verified = follower.sequence
        await self._read_on()
        if not self._is_over:
            self.is_complete = follower.caught_up = True
            if self._caught_up is not None:
                self._call(self._caught_up)

    async def watch(self, relist_s: float | None) -> bool:
        """Watch until the session is broken (False) or a relisting is due (True). Raises
        BusError.
        """
        loop = self._loop
        relist_at = None if relist_s is None else loop.time() + relist_s
        verify_at = loop.time() + VERIFY_S
        while not self._is_over:
            try:
                async with asyncio.timeout(CHECK_S):  # wait_for may swallow a cancellation
                    await self._look.wait()
            except TimeoutError:
                pass
            if self._why_ended or not self._conn.connected:
                continue
            if relist_at is not None and loop.time() >= relist_at:
                return True
            if self._look.is_set() or loop.time() >= verify_at:
                self._look.clear()
                verify_at = loop.time() + VERIFY_S
                await self._verify()
            elif not self._has_received:
                await self._read_on()
            self._has_received = False
        if self._why_ended:
            stream = self._follower._stream
            self._conn.log.info("following again", stream=stream, why=self._why_ended)
        return False

    async def _verify(self) -> None:
        """Read messages that the subscription may have lost, unless the stream was replaced. A
        follower of all subjects would have seen the loss.
        """
        follower = self._follower
        info = await stream_info(self._conn, follower._stream, timeout_s=follower._answer_s)
        if info.making != follower.making or info.state.last_seq < follower.sequence:
            self._end("the stream is not the one that was followed")
        elif self._reads or not follower._is_whole or not self._has_received:
            await self._read_on()

    async def close(self) -> None:
        """Unsubscribe."""
        self._forget()
        try:
            for each in self._listening:
                await each.unsubscribe()
            await self._batches.close()
        except (nats_errors.Error, OSError):
            pass  # the connection is gone, with its subscriptions

    @property
    def _is_over(self) -> bool:
        return self.failure is not None or bool(self._why_ended)

    def _end(self, why: str) -> None:
        self._why_ended = self._why_ended or why
        self._look.set()

    def _take(self, subject: bytes, reply: bytes, headers: bytes, body: bytes) -> None:
        """Handle a message that the stream has stored."""
        if self._is_over:
            return
        found = _STORED.match(headers, headers.rfind(_MARK))
        if found is None or found[1] != self._stream:
            return  # not published by this stream
        self._has_received = True
        self._follower.last_heard_s = self._loop.time()
        sequence = int(found[3])
        if self._reads:
            self._newest = sequence
        elif not self._follower._is_whole:
            if sequence not in self._since:
                self._since.add(sequence)
                self._give(_recorded(found, sequence, body))
        elif sequence == self._follower.sequence + 1:
            self._give(_recorded(found, sequence, body))
        elif sequence > self._follower.sequence:
            self._reads, self._newest = True, sequence
            self._look.set()
        else:
            self._look.set()  # a new leader's repetition, or another stream of the same name

    async def _read_on(self) -> None:
        """Handle all messages of the stream behind the last handled one."""
        follower = self._follower
        self._reads = follower._is_whole or not self.is_complete
        start = follower.sequence if self._reads else self._verified
        only = [] if follower._is_whole else follower._filters
        left, until = 1, self._loop.time() + BEHIND_LIMIT_S
        while left or self._newest > max(start, follower.sequence):
            if self._is_over:
                return
            batch, left = await self._batches.read(start + 1, only, timeout_s=follower._answer_s)
            if not batch and self._newest > max(start, follower.sequence):
                if self._loop.time() > until:
                    break
                await asyncio.sleep(BEHIND_S)
            follower.last_heard_s = self._loop.time()
            for each in batch:
                start = max(start, each.sequence)
                if self._reads or each.sequence not in self._since:
                    self._give(each)
        self._verified = start
        self._since = {one for one in self._since if one > start}
        self._reads, self._newest = False, 0

    def _give(self, recorded: Recorded) -> None:
        follower = self._follower
        if follower._takes_all or among(follower._filters, recorded.subject):
            self._call(self._handle, recorded)
        if self.failure is None:
            follower.sequence = max(follower.sequence, recorded.sequence)

    def _call(self, call: Callable[..., None], *what: Recorded) -> None:
        if self.failure is not None:
            return
        try:
            call(*what)
        except Exception as error:  # noqa: BLE001 # the owner's fault: it must hear of it
            self.failure = error
            self._look.set()


def _recorded(found: re.Match[bytes], sequence: int, body: bytes) -> Recorded:
    return Recorded(found[2].decode(), sequence, parse_time_s(found[4].decode()), body, 0)
