"""The event log: guarded appends to workload aggregates, and atomic commits of decisions.

Every write has a guard: the last sequence that the writer knew. The server stores the write only if
the aggregate still ends there. So a write may be repeated safely. After a lost acknowledgement the
first event after the guard's sequence decides the outcome. Example: an event with ``after=40`` was
sent without an answer.

    first event after 40     outcome
    missing                  not stored: tried again
    47, the same bytes       stored under 47
    47, another event        refused, since the write can never be stored
"""

import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from berthmaster.lib.lifecycle.instructions import Outcome, Refused, Stored, Unknown
from berthmaster.lib.messages.api import RecordedEvent
from berthmaster.lib.messages.families import ARCHIVED_STORIES, encode
from berthmaster.lib.messages.placement import Decision
from berthmaster.lib.messages.workload import WorkloadEvent
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import ApiError, BusError, NoAnswer, NotConnected, NotPermitted
from berthmaster.lib.nats.message_subjects import decode_event, event_subject
from berthmaster.lib.nats.stream_messages import GUARD, GUARD_SUBJECT, WRONG_LAST_SEQUENCE, Message
from berthmaster.lib.nats.stream_reads import GET_TIMEOUT_S, last_message, next_message
from berthmaster.lib.nats.streams import ARCHIVE, WORKLOADS

Part = tuple[str, bytes, dict[str, str]]  # subject, data, headers (guards)


async def send_batch(conn: Connection, parts: Sequence[Part], *, timeout_s: float) -> int:
    """Send an atomic batch and return the sequence of its last message. Raises BusError, and
    ValueError for an empty batch.
    """
    if not conn.connected:
        raise NotConnected("the server is away")  # buffered messages would not be a batch
    batch = secrets.token_hex(12)
    for number, (subject, data, guards) in enumerate(parts, 1):
        headers = guards | {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}
        if number < len(parts):
            await conn.publish(subject, data, headers=headers)
            continue
        headers["Nats-Batch-Commit"] = "1"
        return await conn.store(subject, data, timeout_s=timeout_s, headers=headers)
    raise ValueError("an empty batch")


# Nothing was stored, and the same write may succeed soon: during an election or a restart, after a
# batch lost a message, or while other batches use all slots.
_TRANSIENT: Final = frozenset({10004, 10008, 10009, 10076, 10118, 10163, 10167, 10176, 10210})
_STORE_FAILED: Final = 10077  # only the description says why
TRY_TIMEOUT_S: Final = 2.0
INFO_PATIENCE: Final = 2.5  # multiplier of the time limit: the server answers other requests first
SETTLE_LIMIT_S: Final = 10.0
MAX_BATCH: Final = 1000  # messages, the server's limit
FIRST_PAUSE_S: Final = 0.02
LONGEST_PAUSE_S: Final = 0.5


class _SubjectState(msgspec.Struct):
    subjects: dict[str, int] | None = None


class _SubjectInfo(msgspec.Struct):
    state: _SubjectState


# The longest headers of a batch, so that sizes are checked before the first message is sent.
_BATCH_HEADERS: Final = {
    "Nats-Batch-Id": "0" * 24,
    "Nats-Batch-Sequence": "1000",
    "Nats-Batch-Commit": "1",
}
_Once = Callable[[], Awaitable[int]]
_Ours = Callable[[float], Awaitable[int | None]]  # called with the time limit of each request
_SUBJECTS: Final = msgspec.json.Decoder(_SubjectInfo)


class EventLog:
    """Writes to and reads from the stream WORKLOADS."""

    def __init__(self, conn: Connection, *, settle_limit_s: float = SETTLE_LIMIT_S) -> None:
        self._conn = conn
        self._settle_limit_s = settle_limit_s
        self._try_s = min(TRY_TIMEOUT_S, settle_limit_s)

    async def append(self, event: WorkloadEvent, *, in_doubt: bool = False) -> Outcome:
        """Store an event if the aggregate is still at ``event.after``. Raises TooLarge.

        Returns Unknown only after the time limit: reload before the next decision. ``in_doubt``:
        the event was sent before with an unknown outcome.
        """
        guard = subjects.aggregate(event.tenant, event.id)
        data = encode(event)
        headers = _guarded(guard, event.after)
        subject = event_subject(event)

        async def once() -> int:
            return await self._conn.store(subject, data, timeout_s=self._try_s, headers=headers)

        async def ours(limit_s: float) -> int | None:
            """Return the event's sequence if stored, None if not (yet). Raise _Lost if another
            event is the first behind the guard's sequence: this event can never be stored.
            """
            last = await last_message(self._conn, WORKLOADS, guard, timeout_s=limit_s)
            if last is None or last.sequence <= event.after:
                return None
            if last.data == data:
                return last.sequence
            # Another event follows. The whole history costs the server less than a search for the
            # aggregate's next message, which walks through all events stored since.
            for message in await self.story(event.tenant, event.id, timeout_s=limit_s):
                if message.sequence > event.after:
                    if message.data == data:
                        return message.sequence
                    break
            raise _Lost(last.sequence)

        return await self._settled(event.after, once, ours, in_doubt=in_doubt)

    async def append_together(self, events: Sequence[WorkloadEvent]) -> list[Outcome] | None:
        """Try to store events of different workloads as a batch, each with a guard. Raises
        TooLarge.

        None: the outcome is unknown, or not all was stored. Then append each event ``in_doubt``.
        """
        parts = []
        for event in events:
            guard = subjects.aggregate(event.tenant, event.id)
            parts.append((event_subject(event), encode(event), _guarded(guard, event.after)))
        if len({guarded[GUARD_SUBJECT] for _, _, guarded in parts}) < len(parts):
            # two events of the same workload: the second depends on an event not stored yet
            return None
        for _, body, headers in parts:
            self._conn.check_size(body, headers | _BATCH_HEADERS)
        try:
            last = await send_batch(self._conn, parts, timeout_s=2 * self._try_s)
        except (ApiError, NoAnswer, NotConnected):
            return None
        return [Stored(last - len(parts) + number) for number in range(1, len(parts) + 1)]

    async def commit(self, decision: Decision, events: Sequence[WorkloadEvent]) -> Outcome:
        """Store a decision and the events, all or nothing, each with a guard.

        ``events`` are of different workloads. Raises TooLarge, and ValueError above MAX_BATCH.
        """
        if len(events) + 1 > MAX_BATCH:
            raise ValueError(f"{len(events)} events; one commit holds at most {MAX_BATCH - 1}")
        chain = subjects.decision(decision.cell)
        data = encode(decision)
        parts = [(chain, data, _guarded(chain, decision.after))]
        for event in events:
            guard = subjects.aggregate(event.tenant, event.id)
            parts.append((event_subject(event), encode(event), _guarded(guard, event.after)))
        for _, body, headers in parts:
            self._conn.check_size(body, headers | _BATCH_HEADERS)

        async def once() -> int:
            return await send_batch(self._conn, parts, timeout_s=2 * TRY_TIMEOUT_S)

        async def ours(limit_s: float) -> int | None:
            found = await next_message(
                self._conn, WORKLOADS, chain, decision.after + 1, timeout_s=limit_s
            )
            if found is None:
                return None
            if found.data == data:
                return found.sequence + len(events)  # a batch is stored without gaps
            raise _Lost(found.sequence)

        return await self._settled(decision.after, once, ours)

    async def _settled(
        self, after: int, once: _Once, ours: _Ours, *, in_doubt: bool = False
    ) -> Outcome:
        """Try until the outcome is certain, or the time limit passes.

        After a try without an answer, the write may be stored or still in flight. The next try may
        then be refused because of the same write. From then on only the messages behind ``after``
        decide the outcome, never a refusal alone. Nothing is written again until the stream has
        been read, so that a lagging server gets no more work.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settle_limit_s
        pause_s = FIRST_PAUSE_S
        look_s = least_look_s = min(GET_TIMEOUT_S, self._settle_limit_s / 4)
        may_write = True
        why = ""
        while True:
            guard_sequence: int | None = None
            try:
                if may_write:
                    return Stored(await once())
            except ApiError as error:
                why = str(error)
                if error.code in WRONG_LAST_SEQUENCE:
                    guard_sequence = _stated_sequence(error)
                    if not in_doubt or (guard_sequence is not None and guard_sequence < after):
                        # Below ``after`` this write can never have been stored.
                        return Refused(guard_sequence)
                elif not _may_pass(error):
                    return Unknown(why)
            except NotPermitted as error:
                return Unknown(str(error))
            except (NoAnswer, NotConnected) as error:
                why = str(error)
                in_doubt = True
            try:
                limit_s = max(min(look_s, deadline - loop.time()), least_look_s)
                if in_doubt and (sequence := await ours(limit_s)) is not None:
                    return Stored(sequence)
                may_write = True
            except _Lost as lost:
                return Refused(lost.last)
            except BusError as error:
                why = str(error)
                may_write = False
                look_s = min(2 * look_s, self._settle_limit_s)
            if loop.time() >= deadline:
                return Unknown(self._conn.write_health.trouble(WORKLOADS) or why)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def story(
        self, tenant: str, workload_id: str, *, timeout_s: float = GET_TIMEOUT_S
    ) -> list[Message]:
        """Return all of one workload's events in order, from the leader. Raises BusError.

        ``timeout_s``: of each request. A caller that retries should wait longer each time. The
        stream's index names the subjects with messages. Asking for the next message of the whole
        aggregate instead would walk through all events written in between.
        """
        while True:
            counts = await self.counts(tenant, workload_id, timeout_s=timeout_s)
            read = [self._under(subject, count, timeout_s) for subject, count in counts.items()]
            messages = sorted(
                itertools.chain.from_iterable(await asyncio.gather(*read)),
                key=lambda message: message.sequence,
            )
            if await self.counts(tenant, workload_id, timeout_s=timeout_s) == counts:
                return messages
            # A message was written or removed meanwhile, and a history with a gap would be folded
            # as if complete. A workload has few events, so the loop ends.

    async def counts(
        self, tenant: str, workload_id: str, *, timeout_s: float = GET_TIMEOUT_S
    ) -> dict[str, int]:
        """Return the number of messages of each subject of one workload, from the leader. Raises
        BusError.
        """
        guard = subjects.aggregate(tenant, workload_id)
        raw = await self._conn.api(
            f"STREAM.INFO.{WORKLOADS}",
            {"subjects_filter": guard},
            timeout_s=INFO_PATIENCE * timeout_s,
        )
        return _SUBJECTS.decode(raw).state.subjects or {}

    async def _under(self, subject: str, count: int, timeout_s: float) -> list[Message]:
        """Return all messages of a subject, nearly always a single message."""
        last = await last_message(self._conn, WORKLOADS, subject, timeout_s=timeout_s)
        if last is None:
            return []
        messages = [last]
        start = 1
        while len(messages) < count:
            found = await next_message(self._conn, WORKLOADS, subject, start, timeout_s=timeout_s)
            if found is None or found.sequence >= last.sequence:
                break
            messages.append(found)
            start = found.sequence + 1
        return messages


def recorded(message: Message) -> RecordedEvent:
    """Return the event of one message of the log. Raises UNREADABLE if this reader cannot decode
    the event.
    """
    event, is_astray = decode_event(message.subject, message.data)
    return RecordedEvent(
        sequence=message.sequence, stored_at_s=message.stored_at_s, event=event, void=is_astray
    )


def decode_story(messages: Sequence[Message]) -> list[RecordedEvent]:
    """Return the events of all messages. Raises UNREADABLE at the first undecodable one
    (``recorded``).
    """
    return [recorded(message) for message in messages]


async def archived_story(conn: Connection, tenant: str, workload_id: str) -> list[RecordedEvent]:
    """Return a workload's archived events. A long history spans several messages. Of duplicates the
    first is used. Raises BusError, UNREADABLE.
    """
    events: dict[tuple[int, float], RecordedEvent] = {}
    subject = subjects.archive(tenant, workload_id)
    start = 1
    while (found := await next_message(conn, ARCHIVE, subject, start)) is not None:
        story = ARCHIVED_STORIES.decode(found.data)
        if story.id == workload_id:
            for recorded in story.events:
                events.setdefault((recorded.sequence, recorded.stored_at_s), recorded)
        start = found.sequence + 1
    return list(events.values())


class _Lost(Exception):
    """Another writer stored an event first."""

    def __init__(self, last: int) -> None:
        self.last = last


def _guarded(guard: str, after: int) -> dict[str, str]:
    return {GUARD: str(after), GUARD_SUBJECT: guard}


def _may_pass(error: ApiError) -> bool:
    """Return whether the same write may succeed soon. A full stream (an error "maximum …") needs an
    operator or the archivist, so the caller gets the error at once.
    """
    if error.code == _STORE_FAILED:
        return "maximum" not in error.description
    return error.code in _TRANSIENT


def _stated_sequence(error: ApiError) -> int | None:
    tail = error.description.rpartition(":")[2].strip()
    return int(tail) if tail.isdigit() else None
