"""Drives one replica's candidacy for a lease against its store: reads, writes, rests, gives back.

What may be done when is in candidacy.py; how a record is kept is the store's. Whoever runs the
lease cancels it to stop: it is then given back, so that another takes over at once.
"""

import asyncio
import secrets
from collections.abc import Callable
from typing import Final, Protocol

from berthmaster.lib.runtime.candidacy import Candidacy, LeaseState, LeaseStep, Record
from berthmaster.lib.runtime.log import LogLike

RENEW_SHARE: Final = 0.25  # of its life: three renewals can fail before it is over
LOOK_SHARE: Final = 0.125  # how often who waits looks, and who failed tries again
ANSWER_SHARE: Final = 1 / 3  # within which a store must answer
RELEASE_LIMIT_S: Final = 1.0
MAX_HOLDER_CHARS: Final = 200
STEPS_A_ROUND: Final = 4  # read, take; or renew, read, renew: a store at odds with itself rests too


class Outdated(Exception):
    """Somebody else has written since the record was read."""


class StoreAway(Exception):
    """The store did not answer, or refused; the text says how."""


class Store(Protocol):
    """Keeps one lease's record. Each call ends within the time limit that the store was given."""

    async def read(self) -> Record | None:
        """The record, if there is one. Raises StoreAway."""

    async def write(self, over: Record | None, holder: str, ttl_s: float, *, taken: bool) -> Record:
        """Write over what was read, or make it. Raises Outdated and StoreAway."""

    async def release(self, over: Record) -> None:
        """Make it nobody's. Raises Outdated and StoreAway."""


class Lease:
    """Tries to hold one lease for as long as ``run`` runs."""

    def __init__(
        self,
        store: Store,
        name: str,
        holder: str,
        *,
        ttl_s: float,
        log: LogLike,
        on_gained: Callable[[int], None] | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        """``on_gained`` gets the lease's epoch, which grows whenever it is taken."""
        self._store = store
        self._name = name
        self._log = log
        self._on_gained = on_gained
        self._on_lost = on_lost
        # A name of its own for this life: a namesake that was killed, or runs beside us, is
        # somebody else.
        life = f"{holder[:MAX_HOLDER_CHARS]}#{secrets.token_hex(4)}"
        self._candidacy = Candidacy(life, ttl_s)
        self._ttl_s = ttl_s
        self._running_out: asyncio.TimerHandle | None = None
        self.trouble = "not looked at yet"  # why the store cannot be seen; "" = it can

    @property
    def held(self) -> bool:
        """Whether we may act now. False as soon as a renewal is overdue, told or not."""
        return self._candidacy.held(asyncio.get_running_loop().time())

    @property
    def seen_holder(self) -> str:
        """Who had it when it was last seen; "" = nobody."""
        record = self._candidacy.record
        return record.holder.rpartition("#")[0] if record is not None else ""

    async def run(self) -> None:
        """Hold or wait until cancelled; then give the lease back."""
        try:
            while True:
                share = LOOK_SHARE
                try:
                    await self._round()
                    self.trouble = ""
                    share = RENEW_SHARE if self.held else LOOK_SHARE
                except StoreAway as error:
                    if str(error) != self.trouble:
                        self.trouble = str(error)
                        self._log.warning("lease unreadable", lease=self._name, why=self.trouble)
                await asyncio.sleep(self._ttl_s * share)
        finally:
            await self._release()

    async def _round(self) -> None:
        """From one rest to the next."""
        candidacy, now = self._candidacy, asyncio.get_running_loop().time
        step = candidacy.due(now())
        for _ in range(STEPS_A_ROUND):
            if step is LeaseStep.REST:
                return
            if step is LeaseStep.READ:
                held = candidacy.state is not LeaseState.CANDIDATE
                step = candidacy.on_read(await self._store.read(), now())
                if held and candidacy.state is LeaseState.CANDIDATE:
                    self._lost(f"taken by {self.seen_holder or 'nobody'}")
            else:
                step = await self._write(taken=step is LeaseStep.TAKE)

    async def _write(self, *, taken: bool) -> LeaseStep:
        candidacy = self._candidacy
        loop = asyncio.get_running_loop()
        sent_at_s = loop.time()
        try:
            record = await self._store.write(
                candidacy.record, candidacy.holder, self._ttl_s, taken=taken
            )
        except Outdated:
            return candidacy.on_outdated()
        gained = candidacy.state is LeaseState.CANDIDATE
        step = candidacy.on_written(record, sent_at_s)
        self._stop_the_clock()
        self._running_out = loop.call_at(candidacy.until_s, self._on_time)
        if gained:
            self._log.info("lease gained", lease=self._name, epoch=record.epoch)
            if self._on_gained is not None:
                self._on_gained(record.epoch)
        return step

    def _on_time(self) -> None:
        if self._candidacy.on_time(asyncio.get_running_loop().time()):
            self._lost("it could not be renewed in time")

    def _stop_the_clock(self) -> None:
        if self._running_out is not None:
            self._running_out.cancel()

    def _lost(self, why: str) -> None:
        self._log.warning("lease lost", lease=self._name, why=why)
        if self._on_lost is not None:
            self._on_lost()

    async def _release(self) -> None:
        self._stop_the_clock()
        candidacy = self._candidacy
        if candidacy.state is LeaseState.CANDIDATE:
            return
        candidacy.state = LeaseState.CANDIDATE
        if self._on_lost is not None:
            self._on_lost()
        try:
            async with asyncio.timeout(RELEASE_LIMIT_S):
                record = (
                    await self._store.read()
                )  # a renewal may have been cut short, stored or not
                if record is not None and record.holder == candidacy.holder:
                    await self._store.release(record)
        except (Outdated, StoreAway, TimeoutError):
            pass  # it runs out by itself
