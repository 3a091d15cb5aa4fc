"""A Lease of the API server: one replica does the job, others stand by.

For services that need a cluster and no bus. It keeps the peace; writes stay guarded all the same.
No clock is compared with another machine's: who waits watches, on its own monotonic clock, how long
the record has not moved. A holder that could not renew in time stops by itself, before anybody may
take over.
"""

import asyncio
import math
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from berthmaster.kubernetes.client import Client
from berthmaster.kubernetes.errors import AlreadyExists, Conflict, KubernetesError, NotFound
from berthmaster.kubernetes.objects import Object, Struct
from berthmaster.kubernetes.resources import LEASES
from berthmaster.kubernetes.transport import LogLike

TTL_S: Final = 10.0
RENEW_SHARE: Final = 0.25  # three tries can fail before it is over
LOOK_SHARE: Final = 0.1
RELEASE_S: Final = 1.0


class LeaseSpec(Struct, frozen=True):
    """Who holds it, and since when nothing was heard."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class LeaseObject(Object, frozen=True):
    """A Lease."""

    spec: LeaseSpec = LeaseSpec()


class Leader:
    """Tries to hold one Lease for as long as ``run`` runs."""

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        name: str,
        holder: str,
        now: Callable[[], float],
        log: LogLike,
        ttl_s: float = TTL_S,
        on_gained: Callable[[], None] | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        """``now``: seconds since 1970, only shown to people."""
        self._client = client
        self._namespace = namespace
        self._name = name
        self._holder = f"{holder[:200]}#{secrets.token_hex(4)}"  # a life of its own
        self._now = now
        self._log = log
        self._ttl_s = ttl_s
        self._on_gained = on_gained
        self._on_lost = on_lost
        self._version = ""
        self._moved_at_s = 0.0  # our clock, when we saw it move
        self._held_until_s = 0.0
        self._held = False
        self._transitions = 0
        self._running_out: asyncio.TimerHandle | None = None
        self.trouble = "not looked at yet"
        self.seen_holder = ""

    @property
    def held(self) -> bool:
        """Whether we may act now. False as soon as a renewal is overdue."""
        return self._held and asyncio.get_running_loop().time() < self._held_until_s

    async def run(self, stopping: asyncio.Event) -> None:
        """Hold or wait until told to stop; then give it back."""
        told = ""
        try:
            while not stopping.is_set():
                try:
                    await (self._renew() if self.held else self._try_to_take())
                    told = self.trouble = ""
                except KubernetesError as error:
                    self.trouble = str(error)
                    if type(error).__name__ != told:
                        told = type(error).__name__
                        self._log.warning("cannot see the lease", lease=self._name, why=str(error))
                share = RENEW_SHARE if self._held else LOOK_SHARE
                try:
                    async with asyncio.timeout(self._ttl_s * share):
                        await stopping.wait()
                except TimeoutError:
                    pass
        finally:
            await self._release()

    @property
    def _path(self) -> str:
        return LEASES.path(namespace=self._namespace, name=self._name)

    async def _look(self) -> LeaseObject | None:
        try:
            found = await self._client.get(self._path, LeaseObject, timeout_s=self._ttl_s / 3)
        except NotFound:
            self._version = ""
            return None
        self._seen(found)
        return found

    def _seen(self, found: LeaseObject) -> None:
        if found.metadata.resource_version != self._version:
            self._version = found.metadata.resource_version
            self._moved_at_s = asyncio.get_running_loop().time()
        self._transitions = found.spec.lease_transitions or 0
        self.seen_holder = (found.spec.holder_identity or "").rpartition("#")[0]

    async def _write(self, *, taken: bool) -> None:
        before_s = asyncio.get_running_loop().time()
        stamp = datetime.fromtimestamp(self._now(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec: dict[str, object] = {
            "holderIdentity": self._holder,
            "leaseDurationSeconds": max(1, math.ceil(self._ttl_s)),
            "renewTime": stamp,
        }
        if taken:
            spec |= {"acquireTime": stamp, "leaseTransitions": self._transitions + 1}
        timeout_s = self._ttl_s / 3
        if self._version:
            found = await self._client.merge_patch(
                self._path,
                {"spec": spec},
                LeaseObject,
                resource_version=self._version,
                timeout_s=timeout_s,
            )
        else:
            body = {"metadata": {"name": self._name}, "spec": spec}
            path = LEASES.path(namespace=self._namespace)
            found = await self._client.create(path, body, LeaseObject, timeout_s=timeout_s)
        self._seen(found)
        self._held_until_s = before_s + self._ttl_s  # others count from when they see it: later
        if self._running_out is not None:
            self._running_out.cancel()
        loop = asyncio.get_running_loop()
        self._running_out = loop.call_at(
            self._held_until_s, self._lose, "it could not be renewed in time"
        )

    async def _renew(self) -> None:
        try:
            await self._write(taken=False)
        except (Conflict, AlreadyExists):
            # Our own renewal whose answer was lost, or another holder: only one is ours.
            found = await self._look()
            if found is None or found.spec.holder_identity != self._holder:
                self._lose(f"taken by {self.seen_holder or 'nobody'}")
                return
            await self._write(taken=False)

    async def _try_to_take(self) -> None:
        found = await self._look()
        holder = found.spec.holder_identity if found is not None else ""
        if found is not None and holder and holder != self._holder:
            now_s = asyncio.get_running_loop().time()
            told_s = float(found.spec.lease_duration_seconds or 0)
            if now_s < self._moved_at_s + max(told_s, self._ttl_s):
                return
        try:
            await self._write(taken=True)
        except (Conflict, AlreadyExists):
            return  # somebody else was quicker
        self._held = True
        self._log.info("lease gained", lease=self._name)
        if self._on_gained is not None:
            self._on_gained()

    def _lose(self, why: str) -> None:
        if not self._held:
            return
        self._held = False
        self._log.warning("lease lost", lease=self._name, why=why)
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
            async with asyncio.timeout(RELEASE_S):
                found = await self._look()
                if found is not None and found.spec.holder_identity == self._holder:
                    await self._client.merge_patch(
                        self._path,
                        {"spec": {"holderIdentity": ""}},
                        LeaseObject,
                        resource_version=self._version,
                    )
        except (KubernetesError, TimeoutError):
            pass  # it runs out by itself
