"""A lease: one does the job, others stand by. It keeps the peace; writes stay guarded all the same.

No clock is compared with another machine's. The holder renews with a guarded write; whoever waits
watches, on its own monotonic clock, how long the record has not moved. A holder that could not
renew in time stops by itself, before anybody may take over.
"""

import asyncio
import secrets
from collections.abc import Callable
from typing import Final

from berthmaster.bus import subjects
from berthmaster.bus.acks import stored_sequence
from berthmaster.bus.connection import Connection
from berthmaster.bus.errors import ApiError, BusError
from berthmaster.bus.log import GUARD, WRONG_LAST_SEQUENCE, last_message
from berthmaster.bus.streams import LEASES
from berthmaster.messages.families import LEASES as LEASE_RECORDS
from berthmaster.messages.families import UNREADABLE, encode
from berthmaster.messages.records import Lease as LeaseRecord

TTL_S: Final = 1.5
RENEW_S: Final = 0.4  # at a TTL of TTL_S; other TTLs in proportion
LOOK_S: Final = 0.2  # how often who waits looks


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
        # A name of its own for this life, so that a record of ours is surely ours: a namesake that
        # was killed, or runs beside us, is somebody else.
        self._holder = f"{holder}#{secrets.token_hex(4)}"
        self._on_gained = on_gained
        self._on_lost = on_lost
        self._ttl_s = ttl_s
        self._sequence = 0  # of the record as we last saw it
        self._moved_at_s = 0.0  # our clock, when we saw it move
        self._held_until_s = 0.0  # our clock
        self._held = False
        self._running_out: asyncio.TimerHandle | None = None
        self._renewals = 0
        self.seen_holder = ""

    @property
    def held(self) -> bool:
        """Whether we may act now. False as soon as a renewal is overdue, told or not."""
        return self._held and asyncio.get_running_loop().time() < self._held_until_s

    async def run(self) -> None:
        """Hold or wait until cancelled; then give the lease back."""
        share = self._ttl_s / TTL_S
        told = ""
        try:
            while True:
                pause_s = LOOK_S
                try:
                    await (self._renew() if self.held else self._try_to_take())
                    told = ""
                    if self._held:
                        pause_s = RENEW_S
                except BusError as error:
                    if str(error) != told:
                        told = str(error)
                        self._conn.log.warning("cannot see the lease", lease=self._name, why=told)
                await asyncio.sleep(pause_s * share)
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
            timeout_s=self._ttl_s / 3,
        )
        self._sequence = stored_sequence(reply.data)
        self._moved_at_s = before_s
        self._held_until_s = before_s + self._ttl_s  # others count from when they see it: later

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
                return
            await self._write()
        self._watch_the_clock()

    def _watch_the_clock(self) -> None:
        if self._running_out is not None:
            self._running_out.cancel()
        self._running_out = asyncio.get_running_loop().call_at(
            self._held_until_s, self._lose, "it could not be renewed in time"
        )

    async def _look(self) -> LeaseRecord | None:
        message = await last_message(self._conn, LEASES, self._subject, timeout_s=self._ttl_s / 3)
        now_s = asyncio.get_running_loop().time()
        if message is None:
            self._sequence = 0
            return None
        if message.sequence != self._sequence:
            self._sequence = message.sequence
            self._moved_at_s = now_s
        try:
            record = LEASE_RECORDS.decode(message.data)
        except UNREADABLE:
            return None  # unreadable: nobody can renew it, so it may be taken
        self.seen_holder = "" if record.released else record.holder.rpartition("#")[0]
        return record

    async def _try_to_take(self) -> None:
        record = await self._look()
        if record is not None and not record.released and record.holder != self._holder:
            now_s = asyncio.get_running_loop().time()
            if now_s < self._moved_at_s + max(record.ttl_s, self._ttl_s):
                return
        try:
            await self._write()
        except ApiError as error:
            if error.code in WRONG_LAST_SEQUENCE:
                return  # somebody else was quicker
            raise
        self._held = True
        self._watch_the_clock()
        self.seen_holder = self._holder.rpartition("#")[0]
        self._conn.log.info("lease gained", lease=self._name, epoch=self._sequence)
        if self._on_gained is not None:
            self._on_gained(self._sequence)

    def _lose(self, why: str) -> None:
        if not self._held:
            return
        self._held = False
        self._conn.log.warning("lease lost", lease=self._name, why=why)
        if self._on_lost is not None:
            self._on_lost()

    async def _release(self) -> None:
        if self._running_out is not None:
            self._running_out.cancel()
        if not self._held:
            return
        self._held = False
        if self._on_lost is not None:
            self._on_lost()
        try:
            async with asyncio.timeout(0.5):
                record = await self._look()  # a renewal may have been cut short, stored or not
                if record is not None and record.holder == self._holder:
                    await self._write(released=True)
        except (BusError, TimeoutError):
            pass  # it runs out by itself
