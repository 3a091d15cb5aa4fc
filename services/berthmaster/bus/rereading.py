"""Reads stories again that a follower of the log has heard of behind a gap.

An event that names one before it that was not heard counts for nothing by itself: either the one
before was removed meanwhile, or the event is a lie (see lifecycle/fold.py). The whole story tells
which. It is read from the stream's leader, once for all events of a workload that are in doubt, and
for as long as it takes: nothing of the workload counts before.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, NamedTuple

from berthmaster.bus.connection import Connection
from berthmaster.bus.errors import BusError
from berthmaster.bus.log import EventLog, Message, decode_story
from berthmaster.lifecycle.flaws import LOST, NO_FLAWS, Flaws
from berthmaster.lifecycle.fold import Verdict, heard, judged_story
from berthmaster.messages.families import UNREADABLE
from berthmaster.messages.workload import WorkloadEvent

AT_ONCE: Final = 64
PAUSE_S: Final = 0.25

Name = tuple[str, str]  # tenant and id
Spawn = Callable[[Coroutine[Any, Any, None]], object]


class Judged(NamedTuple):
    """One event of a story, and what became of it."""

    message: Message
    event: WorkloadEvent
    verdict: Verdict


class Rereading:
    def __init__(
        self,
        conn: Connection,
        spawn: Spawn,
        *,
        judged: Callable[[Name, Sequence[Judged]], None],
        unreadable: Callable[[Name, int, str], None],
        settled: Callable[[Name], None] = lambda _: None,
        flaws: Callable[[], Awaitable[Flaws]] | None = None,
    ) -> None:
        """``judged`` takes a whole story; ``unreadable`` a workload that must be left alone, with a
        sequence and why; ``settled`` hears that a workload is in doubt no more. ``flaws``: reads
        anew what is known of those of the log; without it ``known_flaws`` is."""
        self._read_flaws = flaws
        self.known_flaws: Callable[[], Flaws] = lambda: NO_FLAWS  # see LogGuard
        self._conn = conn
        self._log = EventLog(conn)
        self._spawn = spawn
        self._judged = judged
        self._unreadable = unreadable
        self._settled = settled
        self._doubted: dict[Name, int] = {}  # the last event of it that was heard behind a gap
        self._turns = asyncio.Semaphore(AT_ONCE)

    @property
    def in_doubt(self) -> int:
        """Workloads of which something that was heard does not count yet."""
        return len(self._doubted)

    def doubts(self, tenant: str, workload_id: str) -> bool:
        """Whether nothing of this workload counts before its story is read."""
        return (tenant, workload_id) in self._doubted

    def doubt(self, tenant: str, workload_id: str, sequence: int) -> None:
        """This event was heard behind a gap."""
        name = (tenant, workload_id)
        is_new = name not in self._doubted
        self._doubted[name] = max(sequence, self._doubted.get(name, 0))
        if is_new:
            self._spawn(self._reread(name))

    async def _reread(self, name: Name) -> None:
        read_to = 0
        try:
            while read_to < self._doubted[name]:
                try:
                    async with self._turns:
                        messages = await self._log.story(*name)
                    flaws = self.known_flaws()
                    if self._read_flaws is not None:
                        flaws = await self._read_flaws()
                    story = decode_story(messages, flaws)
                except BusError as error:
                    self._conn.log.warning(
                        "cannot read a story", workload="/".join(name), why=str(error)
                    )
                    await asyncio.sleep(PAUSE_S)
                    continue
                except UNREADABLE as error:
                    self._unreadable(name, self._doubted[name], str(error))
                    return
                doubted = self._doubted[name]
                story = list(heard(story, doubted))
                _, verdicts = judged_story(*name, story, flaws.is_lost)
                if Verdict.MISSED in verdicts and doubted < self._doubted[name]:
                    continue  # what came meanwhile may say all
                found = [
                    Judged(message, one.event, verdict)
                    for message, one, verdict in zip(messages, story, verdicts, strict=False)
                ]
                # What was told of it before may have ended it: told again it would begin anew.
                self._tell(name, [one for one in found if one.message.sequence > read_to])
                # Nothing there: it ended, its tombstone is gone, and nothing of it is to come.
                read_to = max(doubted, story[-1].sequence if story else 0)
        finally:
            del self._doubted[name]
            self._settled(name)

    def _tell(self, name: Name, found: Sequence[Judged]) -> None:
        for one in found:
            if one.verdict is Verdict.MISSED:
                self._unreadable(name, one.message.sequence, LOST)
                return
        for one in found:
            if one.verdict is Verdict.VOID and one.message.sequence >= self._doubted[name]:
                self._conn.log.warning(
                    "an event builds on what never was: void",
                    subject=one.message.subject,
                    sequence=one.message.sequence,
                )
        self._judged(name, found)
