"""Reports facts on change, and all facts again from time to time.

Emulated and real inventories have different facts and report them alike. Only the last value of a
fact matters, so changes within an interval become one report, and the first change is sent at once.
Each report is stored and acknowledged. An unacknowledged one is due again.

An incarnation of a writer begins by reporting everything. The source receives the facts of earlier
incarnations and detects obsolete facts.

The heartbeat means "nothing older than this is unreported". So no heartbeat is sent while reports
are pending, and one follows immediately afterwards. Until then no decider places anything in the
cluster.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from berthmaster.lib.messages.fleet import REFRESH_S, ClusterAlive, FleetFact, Stamp
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import BusError, TooLarge
from berthmaster.lib.runtime.periodic import beats, set_within, stopped_within, unless_stopped

AT_ONCE: Final = 64  # facts in flight
ALIVE_INTERVAL_S: Final = 1.0
LOOK_S: Final = 0.02  # interval of checks while changes are pending
RETRY_S: Final = 0.5
REMEMBERED: Final = 1024  # subjects whose last report's time is kept unconditionally


# A fact to store, and the seconds after which the bus deletes the fact; None = never.
Told = tuple[FleetFact, float | None]


class Source(Protocol):
    """The source of facts. Called from the event loop, one call at a time. Methods must not
    block.
    """

    def changes(self) -> Mapping[str, bool]:
        """Return subjects that have changed since the last call. True: urgent."""
        ...

    def everything(self) -> Iterable[str]:
        """Return every subject with a fact, in the order of the first report. AT_ONCE of them are
        sent together and may be stored in any order.
        """
        ...

    def earlier(self, facts: Sequence[FleetFact]) -> None:
        """Receive the facts that earlier incarnations left on the bus. Obsolete ones become
        changes.
        """
        ...

    def fact(self, subject: str, stamp: Stamp, now_s: float) -> Told | None:
        """Return the fact to report under a subject now; None = no fact."""
        ...


class Writer(Protocol):
    """The destination of facts. Calls raise BusError."""

    async def begin(self) -> list[FleetFact]:
        """Begin an incarnation with an epoch above all earlier ones. Return the facts left by
        those.
        """
        ...

    def stamp(self) -> Stamp: ...

    async def put(self, subject: str, fact: FleetFact, *, keep_s: float | None = None) -> int:
        """Store a fact and return its sequence."""
        ...


class Coalescer:
    """Chooses the subjects to report now. Has no clock."""

    def __init__(self, interval_s: float, rate_per_s: float) -> None:
        """Allow a report of a subject per interval, and ``rate_per_s`` non-urgent reports in
        total.
        """
        self._interval_s = interval_s
        self._rate_per_s = rate_per_s
        self._pending: dict[str, bool] = {}
        self._sent_s: dict[str, float] = {}
        self._tidy_at = REMEMBERED
        self._budget = 1.0
        self._budget_s = 0.0

    def mark(self, changed: Mapping[str, bool]) -> None:
        """Record changed subjects. True: urgent."""
        for subject, urgent in changed.items():
            self._pending[subject] = urgent or self._pending.get(subject, False)

    @property
    def pending(self) -> int:
        """Return the number of subjects with unreported changes."""
        return len(self._pending)

    def due(self, now_s: float) -> list[str]:
        """Return subjects to report now, urgent ones first, each once. They are then recorded as
        reported.
        """
        most = max(1.0, self._rate_per_s * self._interval_s)
        gained = (now_s - self._budget_s) * self._rate_per_s
        self._budget = min(most, self._budget + max(0.0, gained))
        self._budget_s = now_s
        ripe_s = now_s - self._interval_s
        ripe = [n for n in self._pending if self._sent_s.get(n, -1e18) <= ripe_s]
        chosen = [subject for subject in ripe if self._pending[subject]]
        for subject in ripe:
            if self._budget < 1:
                break
            if not self._pending[subject]:
                self._budget -= 1
                chosen.append(subject)
        for subject in chosen:
            del self._pending[subject]
            self._sent_s[subject] = now_s
        if len(self._sent_s) > self._tidy_at:
            self._sent_s = {n: at_s for n, at_s in self._sent_s.items() if at_s > ripe_s}
            self._tidy_at = max(REMEMBERED, 2 * len(self._sent_s))
        return chosen


class FactReporter:
    """Reports a source's facts, as long as permitted."""

    def __init__(
        self,
        conn: Connection,
        source: Source,
        writer: Writer,
        *,
        interval_s: float,
        rate_per_s: float,
        may_tell: Callable[[], bool] = lambda: True,
        on_told: Callable[[FleetFact, float | None], None] = lambda _fact, _waited_s: None,
    ) -> None:
        """``may_tell`` is called before each write, for writers under a lease. ``on_told`` gets
        each fact with the seconds since the change; None = repeated without a change.
        """
        self._conn = conn
        self._source = source
        self._writer = writer
        self._coalescer = Coalescer(interval_s, rate_per_s)
        self._may_tell = may_tell
        self._on_told = on_told
        self._changed = asyncio.Event()
        self._since_s: dict[str, float] = {}  # subject -> when a change was first known
        self._telling = False
        self._refresh_at_s = 0.0  # event loop time
        self._too_large: set[str] = set()
        self._abreast = asyncio.Event()

    @property
    def behind(self) -> bool:
        """Return whether older facts are still unreported."""
        return not self._abreast.is_set()

    def wake(self) -> None:
        """Note the source's changes. A standby replica drops changes, because an incarnation begins
        with all facts.
        """
        changed = self._source.changes()
        if not (changed and self._telling):
            return
        now_s = asyncio.get_running_loop().time()
        for subject in changed:
            self._since_s.setdefault(subject, now_s)
        self._coalescer.mark(changed)
        self._changed.set()

    async def run(self, until: asyncio.Event) -> None:
        """Run one incarnation: begin, report everything, then changes. May be called again."""
        try:
            await self._begin(until)
            while not until.is_set():
                if not self._coalescer.pending:
                    await self._wait_for_change()
                self._changed.clear()
                self._refresh()
                if await self._send(self._coalescer.due(self._conn.now())):
                    self._abreast.set()
                    await stopped_within(LOOK_S if self._coalescer.pending else 0.0, until)
                else:
                    self._abreast.clear()
                    await stopped_within(RETRY_S, until)
        finally:
            self._abreast.clear()
            self._telling = False
            self._since_s.clear()

    async def _begin(self, until: asyncio.Event) -> None:
        """Choose an epoch and read the facts of earlier incarnations. Retries until the bus
        answers.
        """
        while not until.is_set():
            try:
                earlier = await self._writer.begin()
            except BusError as error:
                self._conn.log.warning("facts not reported", why=str(error))
                await stopped_within(RETRY_S, until)
                continue
            self._telling = True
            self._source.earlier(earlier)
            self._coalescer.mark(dict.fromkeys(self._source.everything(), True))
            self._refresh_at_s = asyncio.get_running_loop().time() + REFRESH_S
            self.wake()
            return

    def _refresh(self) -> None:
        """Report everything again from time to time. The log of facts keeps only some days, and
        repeating a decision needs every fact that was true then.
        """
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._refresh_at_s:
            self._refresh_at_s = now_s + REFRESH_S
            self._coalescer.mark(dict.fromkeys(self._source.everything(), False))

    async def _wait_for_change(self) -> None:
        try:
            async with asyncio.timeout(ALIVE_INTERVAL_S):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _send(self, subjects: Sequence[str]) -> bool:
        """Report these subjects. Return whether all were stored. The others are due again."""
        good = True
        for start in range(0, len(subjects), AT_ONCE):
            part = subjects[start : start + AT_ONCE]
            results = await asyncio.gather(*map(self._put, part), return_exceptions=True)
            for subject, result in zip(part, results, strict=True):
                if isinstance(result, BusError):
                    good = False
                    self._coalescer.mark({subject: True})
                elif isinstance(result, BaseException):
                    raise result
        return good

    async def _put(self, subject: str) -> None:
        if not self._may_tell():
            return  # the next incarnation reports everything
        since_s = self._since_s.pop(subject, None)
        told = self._source.fact(subject, self._writer.stamp(), self._conn.now())
        if told is None:
            return
        fact, keep_s = told
        try:
            await self._writer.put(subject, fact, keep_s=keep_s)
        except TooLarge as error:  # repeating is pointless, and must not block the other facts
            if subject not in self._too_large:
                self._too_large.add(subject)
                self._conn.log.error("fact too large", subject=subject, why=str(error))
            return
        except BusError:
            if since_s is not None:
                self._since_s.setdefault(subject, since_s)
            raise
        now_s = asyncio.get_running_loop().time()
        self._on_told(fact, now_s - since_s if since_s is not None else None)

    async def keep_alive(
        self,
        subject: str,
        sign: Callable[[Stamp, float], ClusterAlive | None],
        stopping: asyncio.Event,
    ) -> None:
        """Send the heartbeat once a second. While older facts are unreported, wait for their
        storage. ``sign`` may return None for other reasons.
        """
        async for _ in beats(ALIVE_INTERVAL_S, stopping):
            if self.behind:
                await unless_stopped(set_within(ALIVE_INTERVAL_S, self._abreast), stopping)
            if self.behind or not self._conn.connected or not self._may_tell():
                continue
            fact = sign(self._writer.stamp(), self._conn.now())
            if fact is None:
                continue
            try:
                await self._writer.put(subject, fact)
            except BusError as error:
                self._conn.log.warning("heartbeat not sent", cluster=fact.cluster, why=str(error))
