"""Last-value facts, with stamps: a mirror recognises late facts and misses no fact.

Example: a writer's incarnation has epoch 1700000000000 and stamps its facts with counters 1, 2, 3.
Its successor has a larger epoch. A mirror that has (epoch, 3) ignores (epoch, 2).

- Each incarnation of a writer has an epoch larger than all earlier ones on the same subject. A
  counter rises within the epoch.
- A mirror applies a fact only if the stamp is not older than the current one. So facts never go
  back, in any order of arrival.
- A writer that was suspended for a while must not overwrite a newer fact. A mirror that starts
  afterwards could not recognise the older fact.
- The age of a fact is the server's time stamp.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from berthmaster.lib.messages.families import FLEET_FACTS, UNREADABLE, encode
from berthmaster.lib.messages.fleet import FleetFact, Stamp
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.dead_letters import store_dead_letter
from berthmaster.lib.nats.errors import ApiError, BusError, NoAnswer
from berthmaster.lib.nats.fact_stamps import Seen, Stamps
from berthmaster.lib.nats.follower import Follower
from berthmaster.lib.nats.stream_messages import GUARD, WRONG_LAST_SEQUENCE, Message, Recorded
from berthmaster.lib.nats.stream_reads import last_message
from berthmaster.lib.nats.streams import FLEET

RELIST_S: Final = 600.0
PUT_TIMEOUT_S: Final = 2.0
LIST_LIMIT_S: Final = 10.0
MAX_OF_CLUSTER: Final = 200_000  # subjects of one cluster in a mirror: some 1 KiB each
IGNORED_EVERY_S: Final = 10.0
MAX_LETTERS: Final = 1000  # undecodable facts waiting to be stored; above, they are only logged


class Overtaken(BusError):
    """Another incarnation of the writer has stored something newer there."""


class _AnyStamp(msgspec.Struct):
    epoch: int = 0
    counter: int = 0


class _AnyFact(msgspec.Struct):
    stamp: _AnyStamp | None = None


_ANY_FACT: Final = msgspec.json.Decoder(_AnyFact)


class FactWriter(Stamps):
    """Writes facts under one epoch. Call ``begin`` first, and again after the lease was
    regained.
    """

    def __init__(self, conn: Connection) -> None:
        super().__init__()
        self._conn = conn
        # subject -> sequence of the fact stored by this incarnation
        self._last: dict[str, int] = {}

    async def begin(self, filter_subject: str) -> int:
        """Choose an epoch above the newest fact's epoch under these subjects. Raises BusError."""
        previous = await last_message(self._conn, FLEET, filter_subject)
        self._last.clear()
        return self.new_life(_stamp_of(previous).epoch if previous else 0, self._conn.now())

    async def put(self, subject: str, fact: FleetFact, *, keep_s: float | None = None) -> int:
        """Store a fact and return its sequence.

        ``keep_s``: seconds until the server deletes the fact, for objects that come and go; None =
        never.

        Raises BusError, Overtaken if a newer fact is stored. A newer value follows soon, so there
        is no retry.
        """
        headers = {"Nats-TTL": f"{max(1, round(keep_s))}s"} if keep_s is not None else {}
        after = self._last.get(subject)
        if after is None:
            after = await self._behind(subject, fact.stamp)
        try:
            sequence = await self._store(subject, fact, headers, after)
        except ApiError as error:
            if error.code not in WRONG_LAST_SEQUENCE:
                raise
            # An unacknowledged write of this incarnation has arrived, or another incarnation has
            # written.
            after = await self._behind(subject, fact.stamp)
            sequence = await self._store(subject, fact, headers, after)
        if keep_s is None:
            self._last[subject] = sequence
        return sequence

    async def _behind(self, subject: str, stamp: Stamp) -> int:
        """Return the sequence of the last fact there; 0 = none. Raises Overtaken if that fact is
        newer.
        """
        last = await last_message(self._conn, FLEET, subject)
        if last is None:
            return 0
        there = _stamp_of(last)
        if (there.epoch, there.counter) > (stamp.epoch, stamp.counter):
            raise Overtaken(f"a newer fact than this is stored under {subject}")
        return last.sequence

    async def _store(
        self, subject: str, fact: FleetFact, headers: dict[str, str], after: int
    ) -> int:
        return await self._conn.store(
            subject,
            encode(fact),
            timeout_s=PUT_TIMEOUT_S,
            headers={**headers, GUARD: str(after)},
        )


def _stamp_of(message: Message) -> _AnyStamp:
    try:
        return _ANY_FACT.decode(message.data).stamp or _AnyStamp()
    except UNREADABLE:
        return _AnyStamp()  # not a Berthmaster fact, so without an order


def _cluster_of(subject: str) -> str:
    return subject.split(".", 3)[2]


class FactMirror:
    """The last value under every subject of FLEET (or some), kept up to date.

    ``on_fact`` is called, in stream order, with each new fact not older than the current fact.
    ``on_gone`` is called with a subject missing in a relisting.
    """

    def __init__(
        self,
        conn: Connection,
        service: str,
        filters: Sequence[str],
        *,
        on_fact: Callable[[Seen], None],
        on_gone: Callable[[str], None] | None = None,
        relist_s: float = RELIST_S,
    ) -> None:
        self._conn = conn
        self._service = service
        self._on_fact = on_fact
        self._on_gone = on_gone
        self._follower = Follower(conn, FLEET, filters, start="last-per-subject", relist_s=relist_s)
        self._stamps: dict[str, tuple[int, Stamp]] = {}
        self._listed: set[str] | None = None
        self._buried: dict[str, int] = {}  # subject -> sequence that could not be decoded
        self._letters: deque[tuple[Recorded, str]] = deque()
        self._some_letters = asyncio.Event()
        self._of_cluster: Counter[str] = Counter()
        self._next_line_s = 0.0
        self.dropped_old = 0
        self.ignored = 0
        self.undecodable = 0

    @property
    def sequence(self) -> int:
        """Return the last sequence applied. The mirror equals the stream up to there."""
        return self._follower.sequence

    @property
    def caught_up(self) -> bool:
        """Return whether all facts stored at the start have been applied."""
        return self._follower.caught_up

    @property
    def last_heard_s(self) -> float:
        """Return the event loop time of the last message or heartbeat."""
        return self._follower.last_heard_s

    async def run(self, *, caught_up: Callable[[], None] | None = None) -> None:
        def listed() -> None:
            self._forget_unlisted()
            if caught_up is not None:
                caught_up()

        burying = asyncio.create_task(self._bury_as_they_come(), name="undecodable facts")
        try:
            await self._follower.run(self._take, caught_up=listed, relisting=self._start_listing)
        finally:
            burying.cancel()

    def _start_listing(self, replaced: bool) -> None:
        self._listed = set()
        if replaced:  # sequences are reused now; stamps still order the facts
            self._stamps = {subject: (0, stamp) for subject, (_, stamp) in self._stamps.items()}
            self._buried.clear()

    def _forget_unlisted(self) -> None:
        if self._listed is None:
            return
        for subject in sorted(set(self._stamps) - self._listed):
            del self._stamps[subject]
            self._of_cluster[_cluster_of(subject)] -= 1
            if self._on_gone is not None:
                self._on_gone(subject)
        self._listed = None

    def _take(self, recorded: Recorded) -> None:
        subject = recorded.subject
        if self._listed is not None:
            self._listed.add(subject)
        known = self._stamps.get(subject)
        if known is not None and known[0] == recorded.sequence:
            return  # listed again, unchanged
        try:
            fact = FLEET_FACTS.decode(recorded.data)
        except UNREADABLE as error:
            self._keep_letter(recorded, str(error))
            return
        if known is not None and fact.stamp < known[1]:
            self.dropped_old += 1
            return
        if known is None and not self._has_room(subject):
            return
        self._stamps[subject] = (recorded.sequence, fact.stamp)
        self._on_fact(Seen(subject, recorded.sequence, recorded.stored_at_s, fact))

    def _has_room(self, subject: str) -> bool:
        """Return whether a cluster may have one more fact here. A cluster with endless nodes must
        not exhaust the memory of services that watch all clusters.
        """
        cluster = _cluster_of(subject)
        if self._of_cluster[cluster] < MAX_OF_CLUSTER:
            self._of_cluster[cluster] += 1
            return True
        self.ignored += 1
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._next_line_s:
            self._next_line_s = now_s + IGNORED_EVERY_S
            self._conn.log.error(
                "too many facts, new ignored",
                cluster=cluster,
                most=MAX_OF_CLUSTER,
                so_far=self.ignored,
            )
        return False

    def _keep_letter(self, recorded: Recorded, reason: str) -> None:
        if self._buried.get(recorded.subject) == recorded.sequence:
            return  # listed again, stored already
        self._buried[recorded.subject] = recorded.sequence
        self.undecodable += 1
        if len(self._letters) >= MAX_LETTERS:
            self._conn.log.error(
                "undecodable fact, queue full", subject=recorded.subject, reason=reason
            )
            return
        self._letters.append((recorded, reason))
        self._some_letters.set()

    async def _bury_as_they_come(self) -> None:
        while True:
            await self._some_letters.wait()
            self._some_letters.clear()
            await self._bury_undecodable()

    async def _bury_undecodable(self) -> None:
        """Store undecodable facts as dead letters. ``run`` does so by itself."""
        while self._letters:
            recorded, reason = self._letters.popleft()
            await store_dead_letter(
                self._conn,
                service=self._service,
                subject=recorded.subject,
                reason=reason,
                body=recorded.data,
                stream=FLEET,
                sequence=recorded.sequence,
            )


class StreamFacts:
    """Writes facts to the stream directly, as the Writer of reporting.py."""

    def __init__(self, conn: Connection, scope: str) -> None:
        """``scope``: the pattern of all subjects reserved for this writer."""
        self._conn = conn
        self._scope = scope
        self._writer = FactWriter(conn)

    async def begin(self) -> list[FleetFact]:
        await self._writer.begin(self._scope)
        found: dict[str, FleetFact] = {}
        listed = asyncio.Event()

        def take(seen: Seen) -> None:
            found[seen.subject] = seen.fact

        mirror = FactMirror(self._conn, self._conn.name, [self._scope], on_fact=take)
        listing = asyncio.create_task(mirror.run(caught_up=listed.set), name="earlier facts")
        try:
            async with asyncio.timeout(LIST_LIMIT_S):
                await listed.wait()
        except TimeoutError as error:
            raise NoAnswer(f"{self._scope} was not listed in time") from error
        finally:
            listing.cancel()
            await asyncio.wait({listing})
        return list(found.values())

    def stamp(self) -> Stamp:
        return self._writer.stamp()

    async def put(self, subject: str, fact: FleetFact, *, keep_s: float | None = None) -> int:
        return await self._writer.put(subject, fact, keep_s=keep_s)
