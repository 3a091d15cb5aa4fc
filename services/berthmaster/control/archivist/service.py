"""The archivist: move old event histories and decisions from the log to the archive.

Durable consumers feed one core, and this module performs the core's instructions. Any number of
archivists share the consumers. A message is acknowledged after its task. A message that is not due
is returned until then. Endings are due in the order of the stream, so the few messages that the
consumer holds back are always the next ones.

Removed events cannot be restored, and archived histories count as complete. So the archivist does
neither while the log is damaged.
"""

import asyncio
import itertools
from collections.abc import Sequence
from typing import Final, assert_never

from berthmaster.control.archivist.core.archivist import ArchiveRules, Archivist
from berthmaster.control.archivist.core.events import DecisionSeen, EndingSeen
from berthmaster.control.archivist.core.instructions import End, TaskDone, TaskFrozen, TaskLater
from berthmaster.control.archivist.core.pace import Pace
from berthmaster.control.archivist.effects import Effects
from berthmaster.control.archivist.settings import ArchivistSettings
from berthmaster.lib.event_log.guard import CHECK_S, LogGuard
from berthmaster.lib.messages.families import DECISIONS, UNREADABLE
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.durables import ARCHIVED_DECISIONS, ARCHIVED_STORIES, TOMBSTONES, Durable
from berthmaster.lib.nats.errors import StreamReplaced
from berthmaster.lib.nats.stream_connection import stream_connection
from berthmaster.lib.nats.stream_messages import Recorded
from berthmaster.lib.nats.streams import ARCHIVE, WORKLOADS
from berthmaster.lib.nats.worker import Handle, Later, Never, Worker
from berthmaster.lib.runtime.periodic import beats, together
from berthmaster.lib.runtime.service import Context, Service

TASK_LIMIT_S: Final = 30.0  # after which the message is delivered again
STORIES_PER_S: Final = 1000.0  # at least the target rate of endings, else the log grows
TOMBSTONES_PER_S: Final = 1000.0
DECISIONS_PER_S: Final = 100.0
CONCURRENCY: Final = 64  # tasks of each kind in flight, so that the archive is written in batches
BURST_S: Final = 0.1  # burst of a rate, in seconds: small enough for the main path


class Shell:
    def __init__(self, ctx: Context[ArchivistSettings], conn: Connection) -> None:
        settings = ctx.settings
        self._ctx = ctx
        self._conn = conn
        self._core = Archivist(
            ArchiveRules(
                story_after_s=settings.story_after_s,
                max_ended=settings.max_ended,
                max_tombstones=settings.max_tombstones,
                tombstone_after_s=settings.tombstone_days * 86_400,
                decision_after_s=settings.decision_after_s,
            )
        )
        self._effects = Effects(conn)
        self._guard = LogGuard(ctx, conn, "archivist")
        self._numbers = itertools.count(1)
        self._story_pace = _pace(STORIES_PER_S)
        self._tombstone_pace = _pace(TOMBSTONES_PER_S)
        self._decision_pace = _pace(DECISIONS_PER_S)
        counter = ctx.metrics.counter
        self._done = counter("tasks", "Tasks by kind and result", ("kind", "end"))
        self._archived = counter("archived_messages", "Events and decisions archived")

    async def run(self) -> None:
        """Work until the service is asked to stop, then finish the tasks in flight."""
        while await self._guard.begin():
            try:
                await self._work()
            except* StreamReplaced as errors:
                self._ctx.log.warning("logs are scanned again", why=str(errors.exceptions[0]))

    async def _work(self) -> None:
        """Run all consumers. Raises StreamReplaced, in a group, after a replacement of the log."""
        workers = [
            self._worker(ARCHIVED_DECISIONS, self._on_decision),
            *(self._worker(each, self._on_ending) for each in ARCHIVED_STORIES),
            *(self._worker(each, self._on_tombstone) for each in TOMBSTONES),
        ]
        running = [worker.run(self._ctx.stopping) for worker in workers]
        await together(self._tell_health(workers), self._guard.run(), *running)

    def _worker(self, durable: Durable, handle: Handle) -> Worker:
        return Worker(self._conn, "archivist", durable, handle, concurrency=CONCURRENCY)

    async def _tell_health(self, workers: Sequence[Worker]) -> None:
        async for _ in beats(1.0, self._ctx.stopping):
            missing = next((each.missing for each in workers if each.missing), "")
            self._ctx.health.ready("consumers", not missing, missing)
            self._ctx.health.ready("bus", self._conn.connected, "no connection to NATS")

    # Messages

    async def _on_ending(self, recorded: Recorded) -> None:
        await self._carry_out(self._ending(recorded), self._story_pace, "story", b"")

    async def _on_tombstone(self, recorded: Recorded) -> None:
        seen = self._ending(recorded, remove=True)
        await self._carry_out(seen, self._tombstone_pace, "tombstone", b"")

    def _ending(self, recorded: Recorded, *, remove: bool = False) -> EndingSeen:
        """Return the event of an ending, from the subject alone: the message is only a hint in any
        version.
        """
        try:
            place = subjects.parse_workload_event(recorded.subject)
        except subjects.SubjectError as error:
            raise Never(str(error)) from error
        return EndingSeen(
            ref=str(next(self._numbers)),
            tenant=place.tenant,
            id=place.id,
            sequence=recorded.sequence,
            stored_at_s=recorded.stored_at_s,
            behind=recorded.pending,
            remove=remove,
        )

    async def _on_decision(self, recorded: Recorded) -> None:
        try:
            decision = DECISIONS.decode(recorded.data)
        except UNREADABLE as error:
            raise Never(str(error)) from error
        if subjects.decision(decision.cell) != recorded.subject:
            raise Never(f"it is a decision of cell {decision.cell!r}")
        seen = DecisionSeen(
            ref=str(next(self._numbers)),
            cell=decision.cell,
            number=decision.number,
            sequence=recorded.sequence,
            stored_at_s=recorded.stored_at_s,
        )
        await self._carry_out(seen, self._decision_pace, "decision", recorded.data)

    # Tasks

    async def _carry_out(
        self, seen: EndingSeen | DecisionSeen, pace: Pace, kind: str, data: bytes
    ) -> None:
        """Run one task to its end, and translate the end for the consumer."""
        try:
            async with asyncio.timeout(TASK_LIMIT_S):
                end = await self._task(seen, pace, data)
        except TimeoutError as error:
            raise Later(f"not done within {TASK_LIMIT_S:.0f} s") from error
        finally:
            self._core.drop(seen.ref)
        self._done.labels(kind, type(end).__name__.lower()).inc()
        match end:
            case TaskDone():
                self._archived.inc(end.archived)
            case TaskLater():
                raise Later(end.why, pause_s=end.pause_s, counted=end.failed)
            case TaskFrozen():
                raise Never(end.why)
            case _:
                assert_never(end)

    async def _task(self, seen: EndingSeen | DecisionSeen, pace: Pace, data: bytes) -> End:
        todo = self._core.handle(seen, self._conn.now())
        waited = False
        while True:
            (step,) = todo
            if isinstance(step, TaskDone | TaskLater | TaskFrozen):
                return step
            if not self._guard.sound:
                why = self._guard.why
                return TaskLater(ref=seen.ref, why=why, pause_s=CHECK_S)
            if not waited:  # a message that is not due takes no rate
                await asyncio.sleep(pace.take(asyncio.get_running_loop().time()))
                waited = True
            todo = self._core.handle(await self._effects.perform(step, data), self._conn.now())


def _pace(per_s: float) -> Pace:
    return Pace(per_s, max(1.0, per_s * BURST_S))


async def main(ctx: Context[ArchivistSettings]) -> None:
    async with stream_connection(ctx, WORKLOADS, ARCHIVE) as conn:
        if conn is not None:
            ctx.log.info("working")
            await Shell(ctx, conn).run()


SERVICE = Service("archivist", ArchivistSettings, main)
