"""The verb ``events``: what has happened to one tenant's workloads after a sequence, page by page.

Answered from the log itself, so that who was cut off learns of every event, and of workloads that
are new to it. A page is bounded by number, bytes and time, and a tenant reads one at a time: each
event is a look into the stream.
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

PAGE_BYTES: Final = 200_000  # of events; one that is larger alone has a page of its own
PAGE_LIMIT_S: Final = 1.0  # below the 2 s after which our client asks again
PAGES_AT_ONCE: Final = 16  # of all tenants
AGAIN_S: Final = 0.1


class EventReader:
    """Pages for one gateway. ``followed_to``: the last sequence of the log that it has read."""

    def __init__(self, conn: Connection, followed_to: Callable[[], int]) -> None:
        self._conn = conn
        self._followed_to = followed_to
        self._reading: set[str] = set()

    async def answer(self, tenant: str, data: bytes) -> EventsReply | Refusal:
        """One page."""
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
        """Up to where the log had been read before the first look, nothing is left out."""
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
                continue  # whoever follows the log sees to it
        return EventsReply(events=tuple(events), next_after=after, more=True)
