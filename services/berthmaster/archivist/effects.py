"""Carries out what the archivist's core asks for: reads log and archive, writes behind guards.

The bus's errors end here: what could not be read or removed says so, and a write whose fate nobody
knows is Unknown; the core puts the task off, and the next try finds what is there.
"""

from typing import Final, assert_never

from berthmaster.archivist.archive_writer import ArchiveWriter
from berthmaster.archivist.events import ArchiveRead, LastDecision, Removed, StoryRead, Told
from berthmaster.archivist.instructions import (
    Ask,
    ReadArchive,
    ReadArchivedDecision,
    ReadLastDecision,
    ReadStory,
    RemoveDecision,
    RemoveEvents,
    WriteDecision,
    WriteStory,
)
from berthmaster.bus import subjects
from berthmaster.bus.connection import Connection
from berthmaster.bus.errors import ApiError, BusError
from berthmaster.bus.log import (
    NO_MESSAGE,
    EventLog,
    decode_story,
    last_message,
    next_message,
)
from berthmaster.bus.streams import ARCHIVE, WORKLOADS
from berthmaster.lifecycle.instructions import Answered
from berthmaster.messages.api import RecordedEvent
from berthmaster.messages.families import ARCHIVED_STORIES, UNREADABLE, encode

REMOVE_LIMIT_S: Final = 5.0


class Effects:
    """Log and archive on one connection."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._log = EventLog(conn)
        self._writer = ArchiveWriter(conn)

    async def perform(self, step: Ask, data: bytes) -> Told:
        """Carry out one instruction. ``data``: the decision's bytes, where there is one."""
        match step:
            case ReadStory():
                return await self._read_story(step)
            case ReadArchive():
                return await self._read_archive(step)
            case WriteStory():
                subject = subjects.archive(step.story.tenant, step.story.id)
                return await self._write(step.ref, subject, encode(step.story), step.guard)
            case RemoveEvents():
                return await self._remove(step.ref, *step.sequences)
            case WriteDecision():
                subject = subjects.archived_decision(step.cell, step.number)
                return await self._write(step.ref, subject, data, step.guard)
            case ReadArchivedDecision():
                return await self._compare_decision(step, data)
            case ReadLastDecision():
                return await self._last_decision(step)
            case RemoveDecision():
                return await self._remove(step.ref, step.sequence)
            case _:
                assert_never(step)

    async def _read_story(self, step: ReadStory) -> StoryRead:
        try:
            messages = await self._log.story(step.tenant, step.id)
            return StoryRead(ref=step.ref, events=tuple(decode_story(messages)))
        except BusError as error:
            return StoryRead(ref=step.ref, failed=str(error))
        except UNREADABLE as error:
            return StoryRead(ref=step.ref, unreadable=f"an event cannot be read: {error}")

    async def _read_archive(self, step: ReadArchive) -> ArchiveRead:
        """A long story is several messages, and an id that was used again has several stories."""
        subject = subjects.archive(step.tenant, step.id)
        events: list[RecordedEvent] = []
        guard = 0
        try:
            while found := await next_message(self._conn, ARCHIVE, subject, guard + 1):
                events += ARCHIVED_STORIES.decode(found.data).events
                guard = found.sequence
        except (BusError, *UNREADABLE) as error:
            return ArchiveRead(ref=step.ref, failed=f"the archive cannot be read: {error}")
        return ArchiveRead(ref=step.ref, guard=guard, events=tuple(events))

    async def _compare_decision(self, step: ReadArchivedDecision, data: bytes) -> ArchiveRead:
        subject = subjects.archived_decision(step.cell, step.number)
        try:
            found = await last_message(self._conn, ARCHIVE, subject)
        except BusError as error:
            return ArchiveRead(ref=step.ref, failed=str(error))
        if found is None:
            return ArchiveRead(ref=step.ref)
        return ArchiveRead(ref=step.ref, guard=found.sequence, same=found.data == data)

    async def _last_decision(self, step: ReadLastDecision) -> LastDecision:
        try:
            found = await last_message(self._conn, WORKLOADS, subjects.decision(step.cell))
        except BusError as error:
            return LastDecision(ref=step.ref, failed=str(error))
        return LastDecision(ref=step.ref, sequence=found.sequence if found else 0)

    async def _write(self, ref: str, subject: str, data: bytes, guard: int) -> Answered:
        return Answered(ref=ref, outcome=await self._writer.write(subject, data, guard))

    async def _remove(self, ref: str, *sequences: int) -> Removed:
        """Message by message. One purge of the aggregate would be a single request, but the server
        counts all messages anew for each consumer of the stream then, while everybody waits: 90 ms
        with 15 consumers and 60,000 messages, where these take 0.3 ms each."""
        for sequence in sequences:
            if why := await self._remove_one(sequence):
                return Removed(ref=ref, failed=why)
        return Removed(ref=ref)

    async def _remove_one(self, sequence: int) -> str:
        """Why it is not gone, or nothing. Already gone is what was wanted, and the server's
        complaint about it is no clear one."""
        query: dict[str, object] = {"seq": sequence, "no_erase": True}
        try:
            await self._conn.api(f"STREAM.MSG.DELETE.{WORKLOADS}", query, timeout_s=REMOVE_LIMIT_S)
        except ApiError as refused:
            try:
                await self._conn.api(f"STREAM.MSG.GET.{WORKLOADS}", {"seq": sequence})
            except ApiError as error:
                if error.code == NO_MESSAGE:
                    return ""
            except BusError:
                pass  # the refusal says enough
            return str(refused)
        except BusError as error:
            return str(error)
        return ""
