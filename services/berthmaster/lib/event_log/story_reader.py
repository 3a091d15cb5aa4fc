"""Reads the stories of many workloads at once, each as whole as if it were read alone.

One request brings the last message of every subject of all the workloads that somebody waits for.
It may be answered by a replica that is behind, and of a subject with several messages it tells one.
So the leader's index is asked for each workload afterwards: if it names just what was read, that is
the story; else the story is read by itself.
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
AT_ONCE: Final = 64  # stories: some hundred messages, while others wait for that replica as well
MOST: Final = 1024  # messages that the server brings for one request
END_OF_BATCH: Final = "204"
PAUSE_S: Final = 30.0  # after a batch that did not come; each story is read by itself meanwhile

Name = tuple[str, str]  # tenant and id
_Each = Callable[[Msg], Awaitable[None]]


class _Query(NamedTuple):
    name: Name
    found: "asyncio.Future[list[Message]]"


class StoryReader:
    """``read`` from as many tasks as you like; they are the bound of what waits."""

    def __init__(self, conn: Connection, log: EventLog) -> None:
        self._conn = conn
        self._log = log
        self._waiting: list[_Query] = []
        self._task: asyncio.Task[None] | None = None
        self._next_s = float("-inf")  # when the next batch may be asked for
        self.batches = 0
        self.alone = 0  # stories that had to be read by themselves

    async def read(self, tenant: str, workload_id: str) -> list[Message]:
        """All of one workload's events in order, as ``EventLog.story`` reads them. Raises
        BusError."""
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
        """Until nobody waits."""
        try:
            while self._waiting:
                asked, self._waiting = self._waiting[:AT_ONCE], self._waiting[AT_ONCE:]
                found = await self._together({each.name for each in asked})
                for name, future in asked:
                    if not future.done():  # its task may have been given up
                        future.set_result(found.get(name, []))
        finally:
            self._task = None
            for each in self._waiting:  # only if this was cancelled: the process ends
                each.found.cancel()

    async def _together(self, names: set[Name]) -> dict[Name, list[Message]]:
        """What one request brings; nothing if it fails, so that each is read by itself."""
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
                    return  # the index names it, and so the story is read by itself
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
        """Until the last of it came. Raises BusError."""
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
                pass  # the connection is gone, and the subscription with it
