"""Perform the core's instructions: read the log, write to the archive, remove events.

Bus errors end here. A failed read, removal or write is an outcome, and the core postpones the task.
"""

from typing import Final, assert_never

from berthmaster.control.archivist.archive_writer import ArchiveWriter
from berthmaster.control.archivist.core.events import (
    NextDecision,
    Removed,
    StoryRead,
    Told,
    Written,
)
from berthmaster.control.archivist.core.instructions import (
    Ask,
    ReadNextDecision,
    ReadStory,
    RemoveDecision,
    RemoveEvents,
    WriteDecision,
    WriteStory,
)
from berthmaster.lib.event_log.story_reader import StoryReader
from berthmaster.lib.event_log.workload_log import EventLog, decode_story
from berthmaster.lib.messages.families import DECISIONS, UNREADABLE, encode
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import ApiError, BusError
from berthmaster.lib.nats.stream_reads import NO_MESSAGE, next_message
from berthmaster.lib.nats.streams import WORKLOADS

REMOVE_LIMIT_S: Final = 5.0


class Effects:
    """Log and archive on one connection."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self.stories = StoryReader(conn, EventLog(conn))
        self._writer = ArchiveWriter(conn)

    async def perform(self, step: Ask, data: bytes) -> Told:
        """Perform one instruction. ``data`` has the bytes of a decision, if any."""
        match step:
            case ReadStory():
                return await self._read_story(step)
            case WriteStory():
                subject = subjects.archive(step.story.tenant, step.story.id)
                return await self._write(step.ref, subject, encode(step.story))
            case RemoveEvents():
                return await self._remove(step.ref, *step.sequences)
            case WriteDecision():
                subject = subjects.archived_decision(step.cell, step.number)
                return await self._write(step.ref, subject, data)
            case ReadNextDecision():
                return await self._next_decision(step)
            case RemoveDecision():
                return await self._remove(step.ref, step.sequence)
            case _:
                assert_never(step)

    async def _read_story(self, step: ReadStory) -> StoryRead:
        try:
            messages = await self.stories.read(step.tenant, step.id)
            return StoryRead(ref=step.ref, events=tuple(decode_story(messages)))
        except BusError as error:
            return StoryRead(ref=step.ref, failed=str(error))
        except UNREADABLE as error:
            return StoryRead(ref=step.ref, unreadable=f"an event cannot be read: {error}")

    async def _next_decision(self, step: ReadNextDecision) -> NextDecision:
        chain = subjects.decision(step.cell)
        try:
            found = await next_message(self._conn, WORKLOADS, chain, step.sequence + 1)
        except BusError as error:
            return NextDecision(ref=step.ref, failed=str(error))
        if found is None:
            return NextDecision(ref=step.ref)
        try:
            DECISIONS.decode(found.data)
        except UNREADABLE:
            return NextDecision(ref=step.ref, sequence=found.sequence, unreadable=True)
        return NextDecision(ref=step.ref, sequence=found.sequence)

    async def _write(self, ref: str, subject: str, data: bytes) -> Written:
        return Written(ref=ref, failed=await self._writer.write(subject, data))

    async def _remove(self, ref: str, *sequences: int) -> Removed:
        """Remove message by message. One purge of the subject would be a single request, but the
        server then recounts all messages for each consumer of the stream, and all requests wait: 90
        ms with 15 consumers and 60,000 messages. Single removals take 0.3 ms each.
        """
        for sequence in sequences:
            if why := await self._remove_one(sequence):
                return Removed(ref=ref, failed=why)
        return Removed(ref=ref)

    async def _remove_one(self, sequence: int) -> str:
        """Remove one message, and return "" or the fault. A message removed before is no fault, but
        the server's error for that case is unclear.
        """
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
                pass  # the refusal is enough
            return str(refused)
        except BusError as error:
            return str(error)
        return ""
