"""Perform the core's instructions and return every outcome.

Bus errors end here: a write with unknown outcome and a failed read are outcomes too. The core has a
next step for each.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final, assert_never

import msgspec

from berthmaster.control.gateway.core.conversations import Ask, Told
from berthmaster.control.gateway.core.events import Breathed, StoryRead, UnreadableEvent
from berthmaster.control.gateway.core.instructions import Breathe, ReadStory
from berthmaster.lib.event_log.group_commit import shared_group_commit
from berthmaster.lib.event_log.workload_log import EventLog, archived_story, recorded
from berthmaster.lib.lifecycle.fold import LOST, Verdict, fold_history, is_whole
from berthmaster.lib.lifecycle.instructions import (
    Answered,
    Append,
    PutControl,
    Reload,
    Reloaded,
    Stored,
    Unknown,
)
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.messages.api import RecordedEvent
from berthmaster.lib.messages.control import ControlFact
from berthmaster.lib.messages.families import UNREADABLE, encode
from berthmaster.lib.messages.workload import Carried
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import ApiError, BusError
from berthmaster.lib.nats.fair_lock import TimeSlices
from berthmaster.lib.nats.message_subjects import control_subject, later_than, read_control
from berthmaster.lib.nats.stream_messages import GUARD, WRONG_LAST_SEQUENCE, Message
from berthmaster.lib.nats.stream_reads import last_message
from berthmaster.lib.nats.streams import CONTROL

UNKNOWN_PAUSE_S: Final = 0.25  # before the next check of an unknown outcome
PUT_TIMEOUT_S: Final = 1.0
PUT_TRIES: Final = 3


def _readable(message: Message | None) -> ControlFact | None:
    if message is None:
        return None
    with suppress(*UNREADABLE):
        return read_control(message.subject, message.data)
    return None


def is_same(one: ControlFact, other: ControlFact) -> bool:
    """Return whether both set the same, apart from author, reason and time."""
    return _bare(one) == _bare(other)


def _bare(fact: ControlFact) -> ControlFact:
    nothing = {"reason": "", "set_by": "", "set_at_s": 0.0}
    fields = fact.__struct_fields__
    return msgspec.structs.replace(fact, **{n: no for n, no in nothing.items() if n in fields})


class Effects:
    """Reads and writes of one core. ``freeze`` receives each unreadable event."""

    def __init__(
        self, conn: Connection, settle_limit_s: float, freeze: Callable[[UnreadableEvent], object]
    ) -> None:
        self._conn = conn
        self._log = EventLog(conn, settle_limit_s=settle_limit_s)
        self._appends = shared_group_commit(conn, settle_limit_s=settle_limit_s)
        self._freeze = freeze
        self.stretches = TimeSlices()

    async def perform(self, step: Ask) -> Told:
        """Perform one instruction and return its outcome. Failures are outcomes too, never
        exceptions.
        """
        match step:
            case Append():
                return await self._append(step)
            case Breathe():
                await self.stretches.next(step.asker)
                return Breathed(ref=step.ref)
            case Reload():
                return await self._reload(step)
            case ReadStory():
                return await self._read_story(step)
            case PutControl():
                return await self._put_control(step)
            case _:
                assert_never(step)

    async def _append(self, step: Append) -> Answered:
        try:
            outcome = await self._appends.append(step.event)
        except BusError as error:
            outcome = Unknown(str(error))
        if isinstance(outcome, Unknown):
            self._conn.log.warning("outcome unknown", ref=step.ref, why=outcome.why)
            await asyncio.sleep(UNKNOWN_PAUSE_S)
        return Answered(ref=step.ref, outcome=outcome)

    async def _put_control(self, step: PutControl) -> Answered:
        """Store a setting, with retries. A repetition is harmless: the last value counts, and all
        tries have the same value. Readers refuse a setting with an earlier time than the one
        before, so the new time is later than the stored one.
        """
        why, subject = "", control_subject(step.fact)
        for _ in range(PUT_TRIES):
            try:
                last = await last_message(self._conn, CONTROL, subject)
                fact = later_than(step.fact, _readable(last))
                after = last.sequence if last else 0
                sequence = await self._conn.store(
                    subject, encode(fact), timeout_s=PUT_TIMEOUT_S, headers={GUARD: str(after)}
                )
                return Answered(ref=step.ref, outcome=Stored(sequence))
            except BusError as error:
                why = str(error)
                if isinstance(error, ApiError) and error.code in WRONG_LAST_SEQUENCE:
                    continue  # another writer was first
                await asyncio.sleep(UNKNOWN_PAUSE_S)
        return Answered(ref=step.ref, outcome=Unknown(why))

    async def _reload(self, step: Reload) -> Reloaded:
        try:
            messages = await self._log.story(step.tenant, step.id)
        except BusError as error:
            return Reloaded(ref=step.ref, workload=None, failed=str(error))
        events, unreadable = self._decoded(step.tenant, step.id, messages)
        if unreadable:
            return Reloaded(ref=step.ref, workload=None, failed=unreadable)
        if not events:
            return Reloaded(ref=step.ref, workload=None)
        work, verdicts = fold_history(step.tenant, step.id, events)
        if Verdict.AHEAD in verdicts and work.state is not State.NEW and not work.ended:
            return Reloaded(ref=step.ref, workload=None, failed=LOST)
        return Reloaded(ref=step.ref, workload=work)

    def _decoded(
        self, tenant: str, workload_id: str, messages: list[Message]
    ) -> tuple[list[RecordedEvent], str]:
        """Return the events up to the first unreadable one, and why this one is unreadable."""
        events: list[RecordedEvent] = []
        for message in messages:
            try:
                events.append(recorded(message))
            except UNREADABLE as error:
                self._freeze(
                    UnreadableEvent(
                        tenant=tenant, id=workload_id, sequence=message.sequence, why=str(error)
                    )
                )
                return events, f"its event {message.sequence} cannot be read ({error})"
        return events, ""

    async def _read_story(self, step: ReadStory) -> StoryRead:
        events: list[RecordedEvent] = []
        try:
            messages = await self._log.story(step.tenant, step.id)
            events, unreadable = self._decoded(step.tenant, step.id, messages)
            archived: list[RecordedEvent] = []
            if not unreadable and (not is_whole(events) or isinstance(events[0].event, Carried)):
                archived = await archived_story(self._conn, step.tenant, step.id)
        except BusError as error:
            return StoryRead(ref=step.ref, failed=str(error))
        except UNREADABLE as error:
            return StoryRead(ref=step.ref, events=tuple(events), unreadable=f"archive: {error}")
        return StoryRead(
            ref=step.ref,
            events=tuple(events),
            archived=tuple(archived),
            unreadable=unreadable,
        )
