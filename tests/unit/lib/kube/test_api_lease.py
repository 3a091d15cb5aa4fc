"""A Lease of the API server: one holds it at a time, whatever becomes of who does."""

import asyncio
import time
from typing import Any, cast

import msgspec

from berthmaster.lib.kube.api_lease import ApiLease, LeaseObject
from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.errors import AlreadyExists, Conflict, NotFound, Unreachable
from tests.support.patience import until
from tests.unit.lib.kube.stage import Lines

PATH = "/apis/coordination.k8s.io/v1/namespaces/ours/leases/one"


class Server:
    """Keeps one Lease as an API server would, and may be away."""

    def __init__(self) -> None:
        self.found: dict[str, Any] | None = None
        self.version = 0
        self.away = False

    def _now(self) -> LeaseObject:
        return msgspec.convert(self.found, LeaseObject)

    async def get(self, path: str, kind: object, *, timeout_s: float) -> LeaseObject:
        await self._reached()
        if self.found is None:
            raise NotFound(404, "NotFound", "", path)
        return self._now()

    async def create(
        self, path: str, body: dict[str, Any], kind: object, *, timeout_s: float
    ) -> LeaseObject:
        await self._reached()
        if self.found is not None:
            raise AlreadyExists(409, "AlreadyExists", "", path)
        return self._store(body)

    async def merge_patch(
        self,
        path: str,
        body: dict[str, Any],
        kind: object,
        *,
        resource_version: str,
        timeout_s: float = 0,
    ) -> LeaseObject:
        await self._reached()
        if self.found is None:
            raise NotFound(404, "NotFound", "", path)
        if resource_version != str(self.version):
            raise Conflict(409, "Conflict", "", path)
        spec = {**self.found["spec"], **body["spec"]}
        return self._store({**self.found, "spec": spec})

    def _store(self, body: dict[str, Any]) -> LeaseObject:
        self.version += 1
        meta = {**body.get("metadata", {}), "resourceVersion": str(self.version)}
        self.found = {**body, "metadata": meta}
        return self._now()

    async def _reached(self) -> None:
        await asyncio.sleep(0)
        if self.away:
            raise Unreachable("away")


class Replica:
    def __init__(self, server: Server, name: str) -> None:
        self.story: list[str] = []
        self.leader = ApiLease(
            cast("Client", server),
            namespace="ours",
            name="one",
            holder=name,
            now=time.time,
            log=Lines(),
            ttl_s=1.0,
            on_gained=lambda _: self.story.append("gained"),
            on_lost=lambda: self.story.append("lost"),
        )
        self.task = asyncio.create_task(self.leader.run())

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})


def test_one_leads_and_the_other_takes_over_at_once_when_it_gives_back() -> None:
    async def story() -> None:
        server = Server()
        one = Replica(server, "one")
        await until(lambda: one.leader.held)
        other = Replica(server, "other")
        await asyncio.sleep(1.5)  # longer than it lasts: it is renewed
        assert (one.leader.held, other.leader.held) == (True, False)
        assert other.leader.seen_holder == "one"
        await one.stop()
        assert one.story == ["gained", "lost"]
        await until(lambda: other.leader.held)
        assert server.found is not None
        assert server.found["spec"]["leaseTransitions"] == 2
        await other.stop()
        assert server.found["spec"]["holderIdentity"] == ""

    asyncio.run(story())


def test_who_is_killed_is_followed_and_a_namesake_is_somebody_else() -> None:
    async def story() -> None:
        server = Server()
        one = Replica(server, "same")
        await until(lambda: one.leader.held)
        one.task.cancel()  # and nothing is given back:
        server.away = True
        await asyncio.wait({one.task})
        server.away = False
        again = Replica(server, "same")
        await asyncio.sleep(0.3)
        assert not again.leader.held
        await until(lambda: again.leader.held)
        await again.stop()

    asyncio.run(story())


def test_who_cannot_renew_stops_by_itself_and_may_lead_again() -> None:
    async def story() -> None:
        server = Server()
        one = Replica(server, "one")
        await until(lambda: one.leader.held)
        server.away = True
        await until(lambda: not one.leader.held)
        await until(lambda: one.story == ["gained", "lost"])
        assert one.leader.trouble == "away"
        server.away = False
        await until(lambda: one.leader.held)
        assert one.leader.trouble == ""
        await one.stop()

    asyncio.run(story())


def test_a_lease_that_somebody_took_is_lost_and_one_that_somebody_deleted_is_made_anew() -> None:
    async def story() -> None:
        server = Server()
        one = Replica(server, "one")
        await until(lambda: one.leader.held)
        assert server.found is not None
        spec = {**server.found["spec"], "holderIdentity": "thief#1"}
        server._store({**server.found, "spec": spec})
        await until(lambda: "lost" in one.story)
        assert not one.leader.held
        server.found = None
        await until(lambda: one.leader.held)
        await one.stop()

    asyncio.run(story())
