"""A lease stored as a Lease object, for services that need a cluster and no bus."""

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.errors import AlreadyExists, Conflict, KubernetesError, NotFound
from berthmaster.lib.kube.objects import Object, Struct
from berthmaster.lib.kube.resources import LEASES
from berthmaster.lib.runtime import lease
from berthmaster.lib.runtime.candidacy import Record
from berthmaster.lib.runtime.lease import ANSWER_SHARE, Outdated, StoreAway
from berthmaster.lib.runtime.log import LogLike

TTL_S: Final = 10.0


class LeaseSpec(Struct, frozen=True):
    """The holder of a lease, and the time of the holder's last renewal."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class LeaseObject(Object, frozen=True):
    spec: LeaseSpec = LeaseSpec()


class ApiLease(lease.Lease):
    """Tries to hold one Lease as long as ``run`` runs."""

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
        on_gained: Callable[[int], None] | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        """``now`` returns seconds since 1970, only to show operators."""
        store = _LeaseStore(client, namespace, name, now, ttl_s * ANSWER_SHARE)
        super().__init__(
            store, name, holder, ttl_s=ttl_s, log=log, on_gained=on_gained, on_lost=on_lost
        )


class _LeaseStore:
    """Stores records as Lease objects: version = resource version, epoch = lease transitions."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        now: Callable[[], float],
        timeout_s: float,
    ) -> None:
        self._client = client
        self._name = name
        self._collection = LEASES.path(namespace=namespace)
        self._path = LEASES.path(namespace=namespace, name=name)
        self._now = now
        self._timeout_s = timeout_s

    async def read(self) -> Record | None:
        try:
            return _record(
                await self._client.get(self._path, LeaseObject, timeout_s=self._timeout_s)
            )
        except NotFound:
            return None
        except KubernetesError as error:
            raise StoreAway(str(error)) from error

    async def write(self, over: Record | None, holder: str, ttl_s: float, *, taken: bool) -> Record:
        stamp = datetime.fromtimestamp(self._now(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec: dict[str, object] = {
            "holderIdentity": holder,
            "leaseDurationSeconds": max(1, math.ceil(ttl_s)),
            "renewTime": stamp,
        }
        if taken:
            epoch = over.epoch if over is not None else 0
            spec |= {"acquireTime": stamp, "leaseTransitions": epoch + 1}
        return await self._put(over, spec)

    async def release(self, over: Record) -> None:
        await self._put(over, {"holderIdentity": ""})

    async def _put(self, over: Record | None, spec: dict[str, object]) -> Record:
        timeout_s = self._timeout_s
        try:
            if over is None:
                body = {"metadata": {"name": self._name}, "spec": spec}
                return _record(
                    await self._client.create(
                        self._collection, body, LeaseObject, timeout_s=timeout_s
                    )
                )
            return _record(
                await self._client.merge_patch(
                    self._path,
                    {"spec": spec},
                    LeaseObject,
                    resource_version=over.version,
                    timeout_s=timeout_s,
                )
            )
        except (Conflict, AlreadyExists, NotFound) as error:
            raise Outdated(str(error)) from error
        except KubernetesError as error:
            raise StoreAway(str(error)) from error


def _record(found: LeaseObject) -> Record:
    spec = found.spec
    return Record(
        found.metadata.resource_version,
        spec.holder_identity or "",
        float(spec.lease_duration_seconds or 0),
        spec.lease_transitions or 0,
    )
