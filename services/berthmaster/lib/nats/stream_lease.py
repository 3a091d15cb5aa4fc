"""A lease with its record as the last message of a subject, for services with a bus."""

from collections.abc import Callable
from typing import Final

from berthmaster.lib.messages.families import LEASES as LEASE_RECORDS
from berthmaster.lib.messages.families import UNREADABLE, encode
from berthmaster.lib.messages.records import Lease as LeaseRecord
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import ApiError, BusError
from berthmaster.lib.nats.stream_messages import GUARD, WRONG_LAST_SEQUENCE
from berthmaster.lib.nats.stream_reads import last_message
from berthmaster.lib.nats.streams import LEASES
from berthmaster.lib.runtime import lease
from berthmaster.lib.runtime.candidacy import Record
from berthmaster.lib.runtime.lease import ANSWER_SHARE, Outdated, StoreAway

TTL_S: Final = 1.5


class StreamLease(lease.Lease):
    """Tries to hold one lease of the bus as long as ``run`` runs."""

    def __init__(
        self,
        conn: Connection,
        name: str,
        holder: str,
        *,
        on_gained: Callable[[int], None] | None = None,
        on_lost: Callable[[], None] | None = None,
        ttl_s: float = TTL_S,
    ) -> None:
        store = SubjectRecord(conn, name, ttl_s * ANSWER_SHARE)
        super().__init__(
            store,
            name,
            holder,
            ttl_s=ttl_s,
            log=conn.log,
            on_gained=on_gained,
            on_lost=on_lost,
        )


class SubjectRecord:
    """A record's version is its sequence in the stream. The sequence is also the new holder's
    epoch.
    """

    def __init__(self, conn: Connection, name: str, timeout_s: float) -> None:
        self._conn = conn
        self._name = name
        self._subject = subjects.lease(name)
        self._timeout_s = timeout_s
        self._renewals = 0

    async def read(self) -> Record | None:
        """Implement ``Store.read``."""
        try:
            message = await last_message(
                self._conn, LEASES, self._subject, timeout_s=self._timeout_s
            )
        except BusError as error:
            raise StoreAway(str(error)) from error
        if message is None:
            return None
        version = str(message.sequence)
        try:
            found = LEASE_RECORDS.decode(message.data)
        except UNREADABLE:
            return Record(version, "")
        holder = "" if found.released else found.holder
        return Record(version, holder, found.ttl_s, message.sequence)

    async def write(self, over: Record | None, holder: str, ttl_s: float, *, taken: bool) -> Record:
        return await self._put(over, holder, ttl_s, released=False)

    async def release(self, over: Record) -> None:
        await self._put(over, over.holder, over.ttl_s, released=True)

    async def _put(
        self, over: Record | None, holder: str, ttl_s: float, *, released: bool
    ) -> Record:
        self._renewals += 1
        record = LeaseRecord(
            name=self._name,
            holder=holder,
            ttl_s=ttl_s,
            renewals=self._renewals,
            released=released,
        )
        try:
            sequence = await self._conn.store(
                self._subject,
                encode(record),
                headers={GUARD: over.version if over is not None else "0"},
                timeout_s=self._timeout_s,
            )
        except ApiError as error:
            if error.code in WRONG_LAST_SEQUENCE:
                raise Outdated(str(error)) from error
            raise StoreAway(str(error)) from error
        except BusError as error:
            raise StoreAway(str(error)) from error
        return Record(str(sequence), holder, ttl_s, sequence)
