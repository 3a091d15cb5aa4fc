"""A lease: one does the job, others stand by. It keeps the peace; writes stay guarded all the same.

No clock is compared with another machine's. The holder renews with a guarded write; whoever waits
watches, on its own monotonic clock, how long the record has not moved. A holder that could not
renew in time stops by itself, before anybody may take over.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from berthmaster.bus import subjects
from berthmaster.bus.acks import stored_sequence
from berthmaster.bus.connection import Connection
from berthmaster.bus.errors import ApiError, BusError
from berthmaster.bus.log import GUARD, WRONG_LAST_SEQUENCE, last_message
from berthmaster.bus.streams import LEASES
from berthmaster.messages.families import LEASES as LEASE_RECORDS
from berthmaster.messages.families import encode
from berthmaster.messages.records import Lease as LeaseRecord

TTL_S: Final = 1.5
RENEW_S: Final = 0.4


class Lease:
    """Tries to hold one lease for as long as ``run`` runs."""

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
        self._conn = conn
        self._subject = subjects.lease(name)
        self._name = name
        self._holder = holder
        self._on_gained = on_gained
        self._on_lost = on_lost
        self._ttl_s = ttl_s
        self._sequence = 0  # of the record as we last saw it
        self._moved_at_s = 0.0  # our clock, when we saw it move
        self._renewed_at_s = 0.0  # our clock, just before the last renewal that was stored
        self._held = False
        self._renewals = 0
        self.seen_holder = ""

    @property
    def held(self) -> bool:
        """Whether we may act now. False as soon as a renewal is overdue, told or not."""
        now_s = asyncio.get_running_loop().time()
        return self._held and now_s < self._renewed_at_s + self._ttl_s

    async def run(self) -> None:
        """Hold or wait until cancelled; then give the lease back."""
        try:
            while True:
                try:
                    await (self._renew() if self._held else self._try_to_take())
                except BusError as error:
                    if self._held and not self.held:
                        self._lose(str(error))
                await asyncio.sleep(RENEW_S * self._ttl_s / TTL_S)
        finally:
            await self._release()

    async def _write(self, *, released: bool = False) -> None:
        self._renewals += 1
        record = LeaseRecord(
            name=self._name,
            holder=self._holder,
            ttl_s=self._ttl_s,
            renewals=self._renewals,
            released=released,
        )
        before_s = asyncio.get_running_loop().time()
        reply = await self._conn.request(
            self._subject,
            encode(record),
            headers={GUARD: str(self._sequence)},
            timeout_s=self._ttl_s / 2,
        )
        self._sequence = stored_sequence(reply.data)
        self._renewed_at_s = self._moved_at_s = before_s

    async def _renew(self) -> None:
        try:
            await self._write()
        except ApiError as error:
            if error.code not in WRONG_LAST_SEQUENCE:
                raise
            # Our own renewal whose acknowledgement was lost, or another holder: only one is ours.
            record = await self._look()
            if record is None or record.holder != self._holder or record.released:
                self._lose(f"taken by {record.holder if record else 'nobody'}")

    async def _look(self) -> LeaseRecord | None:
        message = await last_message(self._conn, LEASES, self._subject)
        now_s = asyncio.get_running_loop().time()
        if message is None:
            self._sequence = 0
            return None
        if message.sequence != self._sequence:
            self._sequence = message.sequence
            self._moved_at_s = now_s
        try:
            record = LEASE_RECORDS.decode(message.data)
        except msgspec.DecodeError:
            return None  # unreadable: nobody can renew it, so it may be taken
        self.seen_holder = "" if record.released else record.holder
        return record

    async def _try_to_take(self) -> None:
        record = await self._look()
        now_s = asyncio.get_running_loop().time()
        waits = record is not None and not record.released
        if (
            waits
            and record is not None
            and now_s < self._moved_at_s + max(record.ttl_s, self._ttl_s)
        ):
            return
        try:
            await self._write()
        except ApiError as error:
            if error.code in WRONG_LAST_SEQUENCE:
                return  # somebody else was quicker
            raise
        self._held = True
        self.seen_holder = self._holder
        self._conn.log.info("lease gained", lease=self._name, epoch=self._sequence)
        if self._on_gained is not None:
            self._on_gained(self._sequence)

    def _lose(self, why: str) -> None:
        self._held = False
        self._conn.log.warning("lease lost", lease=self._name, why=why)
        if self._on_lost is not None:
            self._on_lost()

    async def _release(self) -> None:
        if not self._held:
            return
        self._held = False
        if self._on_lost is not None:
            self._on_lost()
        try:
            await asyncio.wait_for(self._write(released=True), 0.5)
        except (BusError, TimeoutError):
            pass  # it runs out by itself
