"""Runs a replica's candidacy for a lease against the lease's store: read, write, rest, release.

The rules are in candidacy.py, the record's format in the store. Cancel ``run`` to stop. The lease
is then released, so that another replica takes over at once.
"""

import asyncio
import secrets
from collections.abc import Callable
from typing import Final, Protocol

from berthmaster.lib.runtime.candidacy import Candidacy, LeaseState, LeaseStep, Record
from berthmaster.lib.runtime.log import LogLike

RENEW_SHARE: Final = 0.25  # of the TTL: three renewals can fail before it expires
LOOK_SHARE: Final = 0.125  # of the TTL: interval of candidates, and of retries after a failure
ANSWER_SHARE: Final = 1 / 3  # of the TTL: time limit of a store's answer
RELEASE_LIMIT_S: Final = 1.0
MAX_HOLDER_CHARS: Final = 200
# read, take; or renew, read, renew: an inconsistent store causes a rest too
STEPS_A_ROUND: Final = 4


class Outdated(Exception):
    """Another replica has written since the record was read."""


class StoreAway(Exception):
    """The store did not answer, or refused. The text says how."""


class Store(Protocol):
    """Stores one lease's record. Each call ends within the store's time limit."""

    async def read(self) -> Record | None:
        """Return the record; None = no record. Raises StoreAway."""

    async def write(self, over: Record | None, holder: str, ttl_s: float, *, taken: bool) -> Record:
        """Write over the read record, or create one. Raises Outdated and StoreAway."""

    async def release(self, over: Record) -> None:
        """Remove the holder. Raises Outdated and StoreAway."""


class Lease:
    """Tries to hold one lease as long as ``run`` runs."""

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
        """``on_gained`` gets the lease's epoch, which grows each time a replica takes the lease."""
        self._store = store
        self._name = name
        self._log = log
        self._on_gained = on_gained
        self._on_lost = on_lost
        # A unique name for this process run: a killed or concurrent process with the same name is
        # another holder.
        life = f"{holder[:MAX_HOLDER_CHARS]}#{secrets.token_hex(4)}"
        self._candidacy = Candidacy(life, ttl_s)
        self._ttl_s = ttl_s
        self._running_out: asyncio.TimerHandle | None = None
        self.trouble = "not looked at yet"  # why the store cannot be read; "" = readable

    @property
    def held(self) -> bool:
        """Return whether this replica may act now. False as soon as a renewal is overdue, even
        before ``on_lost`` is called.
        """
        return self._candidacy.held(asyncio.get_running_loop().time())

    @property
    def seen_holder(self) -> str:
        """Return the last known holder; "" = none."""
        record = self._candidacy.record
        return record.holder.rpartition("#")[0] if record is not None else ""

    async def run(self) -> None:
        """Hold or wait until cancelled, then release the lease."""
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
        """Take steps until the next rest."""
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
                )  # a renewal may have been interrupted, stored or not
                if record is not None and record.holder == candidacy.holder:
                    await self._store.release(record)
        except (Outdated, StoreAway, TimeoutError):
            pass  # the lease expires by itself
