"""Reads the event histories of many workloads at once, each as complete as if read alone.

One request returns the last message of every subject of all requested workloads. A lagging replica
may answer, and the answer has only the last message of a subject with several. So the leader's
index is read for each workload afterwards. Example: the index has a message each under two
subjects, and the batch returned both: the history is complete. Otherwise the history is read alone.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import msgspec

from berthmaster.lib.event_log.workload_log import EventLog
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import BusError, NoAnswer
from berthmaster.lib.nats.nats_py import Msg
from berthmaster.lib.nats.nats_py import errors as nats_errors
from berthmaster.lib.nats.stream_messages import Message, message_of
from berthmaster.lib.nats.stream_reads import GET_TIMEOUT_S
from berthmaster.lib.nats.streams import WORKLOADS

ASK: Final = f"DIRECT.GET.{WORKLOADS}"
# histories: some hundred messages, while other readers wait for the same replica
AT_ONCE: Final = 64
MOST: Final = 1024  # maximum number of messages in an answer
END_OF_BATCH: Final = "204"
PAUSE_S: Final = 30.0  # after a failed batch; meanwhile each history is read alone

Name = tuple[str, str]  # tenant and id
_Each = Callable[[Msg], Awaitable[None]]


class _Query(NamedTuple):
    name: Name
    found: "asyncio.Future[list[Message]]"


class StoryReader:
    """``read`` for any number of tasks. The number of tasks bounds the queue."""

    def __init__(self, conn: Connection, log: EventLog) -> None:
        self._conn = conn
        self._log = log
        self._waiting: list[_Query] = []
        self._task: asyncio.Task[None] | None = None
        self._next_s = float("-inf")  # time of the next permitted batch
        self.batches = 0
        self.alone = 0  # number of histories read alone

    async def read(self, tenant: str, workload_id: str) -> list[Message]:
        """Return all of one workload's events in order, as ``EventLog.story`` does. Raises
        BusError.
        """
        asked = _Query((tenant, workload_id), asyncio.get_running_loop().create_future())
        self._waiting.append(asked)
        if self._task is None:
            self._task = asyncio.create_task(self._work(), name="story reader")
        messages = await asked.found
        counts = await self._log.counts(tenant, workload_id)
        if counts == {message.subject: 1 for message in messages}:
            return messages
        self.alone += 1
        return await self._log.story(tenant, workload_id)

    async def _work(self) -> None:
        """Read batches until no request waits."""
        try:
            while self._waiting:
                asked, self._waiting = self._waiting[:AT_ONCE], self._waiting[AT_ONCE:]
                found = await self._together({each.name for each in asked})
                for name, future in asked:
                    if not future.done():  # its task may have been cancelled
                        future.set_result(found.get(name, []))
        finally:
            self._task = None
            for each in self._waiting:  # only if this task was cancelled: the process ends
                each.found.cancel()

    async def _together(self, names: set[Name]) -> dict[Name, list[Message]]:
        """Return the histories of a request; empty on failure, so that each is read alone."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._next_s:
            return {}
        ended: asyncio.Future[None] = loop.create_future()
        found: dict[Name, list[Message]] = {}

        async def each(msg: Msg) -> None:
            headers = msg.headers or {}
            if "Nats-Subject" in headers:
                message = message_of(headers, msg.data)
                try:
                    place = subjects.parse_workload_event(message.subject)
                except subjects.SubjectError:
                    return  # the index contains it, so the history is read alone
                found.setdefault((place.tenant, place.id), []).append(message)
            elif not ended.done():
                if headers.get("Status") != END_OF_BATCH:
                    found.clear()
                ended.set_result(None)

        try:
            await self._ask(names, each, ended)
        except BusError:
            self._next_s = loop.time() + PAUSE_S
            return {}
        self.batches += 1
        return {
            name: sorted(messages, key=lambda message: message.sequence)
            for name, messages in found.items()
        }

    async def _ask(
        self,
        names: set[Name],
        each: Callable[[Msg], Awaitable[None]],
        ended: "asyncio.Future[None]",
    ) -> None:
        """Send the request and wait for its last message. Raises BusError."""
        request = {"multi_last": [subjects.aggregate(*name) for name in names], "batch": MOST}
        inbox = self._conn.nc.new_inbox()
        subscription = await self._conn.subscribe_raw(inbox, each)
        try:
            where = self._conn.api_subject(ASK)
            await self._conn.publish(where, msgspec.json.encode(request), reply=inbox)
            async with asyncio.timeout(GET_TIMEOUT_S):
                await ended
        except TimeoutError as error:
            raise NoAnswer("no batch of stories came in time") from error
        finally:
            try:
                await subscription.unsubscribe()
            except (nats_errors.Error, OSError):
                pass  # the connection is gone, with its subscription
