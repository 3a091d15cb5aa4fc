"""The verb ``events``: pages of a tenant's workload events after a sequence.

Pages come from the log itself. A reconnected tenant thus gets every event, also of workloads new to
the tenant. A page is bounded by number, bytes and time. A tenant reads one page at a time, because
each event is one read of the stream.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from berthmaster.control.gateway.core.answers import overloaded, unavailable
from berthmaster.lib.event_log.workload_log import recorded
from berthmaster.lib.messages.api import EventsReply, RecordedEvent, Refusal
from berthmaster.lib.messages.families import UNREADABLE
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import BusError
from berthmaster.lib.nats.stream_reads import next_message
from berthmaster.lib.nats.streams import WORKLOADS
from berthmaster.lib.requests import validation

PAGE_BYTES: Final = 200_000  # of events. A single larger event fills a page alone
PAGE_LIMIT_S: Final = 1.0  # below the 2 s after which our client repeats the request
PAGES_AT_ONCE: Final = 16  # of all tenants
AGAIN_S: Final = 0.1


class EventReader:
    """Pages of one gateway. ``followed_to`` returns the last log sequence read by the gateway."""

    def __init__(self, conn: Connection, followed_to: Callable[[], int]) -> None:
        self._conn = conn
        self._followed_to = followed_to
        self._reading: set[str] = set()

    async def answer(self, tenant: str, data: bytes) -> EventsReply | Refusal:
        request = validation.events_request(data)
        if isinstance(request, Refusal):
            return request
        if request.after is None:
            return EventsReply(next_after=self._followed_to())
        if tenant in self._reading:
            return overloaded("one page of events of a tenant is read at a time", AGAIN_S)
        if len(self._reading) >= PAGES_AT_ONCE:
            return overloaded(f"{PAGES_AT_ONCE} pages of events are being read", AGAIN_S)
        self._reading.add(tenant)
        try:
            return await self._page(tenant, request.after, request.limit)
        except BusError as error:
            return unavailable(f"the log could not be read ({error})")
        finally:
            self._reading.discard(tenant)

    async def _page(self, tenant: str, after: int, limit: int) -> EventsReply:
        """Return one page, complete up to the sequence followed before the first read."""
        known_to = max(after, self._followed_to())
        over_s = asyncio.get_running_loop().time() + PAGE_LIMIT_S
        filter_ = subjects.workloads_of(tenant)
        events: list[RecordedEvent] = []
        page_bytes = 0
        while len(events) < limit and asyncio.get_running_loop().time() < over_s:
            found = await next_message(self._conn, WORKLOADS, filter_, after + 1)
            if found is None:
                return EventsReply(events=tuple(events), next_after=max(after, known_to))
            if events and page_bytes + len(found.data) > PAGE_BYTES:
                break
            page_bytes += len(found.data)
            after = found.sequence
            try:
                events.append(recorded(found))
            except UNREADABLE:
                continue  # the followers of the log report the event
        return EventsReply(events=tuple(events), next_after=after, more=True)
