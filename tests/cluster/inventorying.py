"""An inventory of a real cluster (or hub) inside a test, and whatever it says on a real bus."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

from berthmaster.hub.members import service as members_service
from berthmaster.lib.kube.controller import fact_watch
from berthmaster.lib.kube.service_client import ProfileSettings
from berthmaster.lib.messages.fleet import ClusterAlive, FleetFact
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.fact_stamps import Seen
from berthmaster.lib.nats.facts import FactMirror
from berthmaster.lib.nats.subjects import ALL_FLEET
from berthmaster.lib.runtime.service import Context
from berthmaster.lib.supervisor.embedded import Server, ServerConfig
from berthmaster.worker.inventory import service as inventory_service
from berthmaster.worker.inventory.settings import InventorySettings
from tests.bus.doors import door
from tests.bus.shells import client, running
from tests.support.patience import Patience, until

F = TypeVar("F", bound=FleetFact)
CLUSTER = "east"


class Told:
    """All facts of the bus as they come, and the last of each subject."""

    def __init__(self, conn: Connection, url: str) -> None:
        self.conn = conn
        self.url = url
        self.now: dict[str, FleetFact] = {}
        self.story: list[tuple[float, FleetFact]] = []  # event loop time
        self._mirror = FactMirror(conn, "test", [ALL_FLEET], on_fact=self._take)

    def _take(self, seen: Seen) -> None:
        self.now[seen.subject] = seen.fact
        self.story.append((asyncio.get_running_loop().time(), seen.fact))

    async def run(self) -> None:
        """Until cancelled."""
        await self._mirror.run()

    def of(self, kind: type[F]) -> list[F]:
        """Every fact of a kind that was told, in order."""
        return [fact for _, fact in self.story if isinstance(fact, kind)]

    async def until(self, subject: str, kind: type[F], right: Callable[[F], object]) -> F:
        """The fact under a subject, once it is right."""
        patience = Patience(f"the right {kind.__name__} under {subject}")
        while True:
            fact = self.now.get(subject)
            if isinstance(fact, kind) and right(fact):
                return fact
            patience.look(fact)
            await asyncio.sleep(patience.pause_s)

    async def eventually(self, right: Callable[[], object], what: str) -> None:
        """Wait until it is so."""
        await until(right, what)

    def signs(self) -> int:
        """Signs of life told so far."""
        return len(self.of(ClusterAlive))

    async def lives(self) -> None:
        """Wait for the next sign of life."""
        before = self.signs()
        await self.until(subjects.alive(CLUSTER), ClusterAlive, lambda _: self.signs() > before)


@asynccontextmanager
async def bus(folder: Path) -> AsyncIterator[Told]:
    """A bus, and somebody who listens to all facts."""
    with Server(folder / "nats", ServerConfig(sync="default")) as server:
        async with client(server.url) as conn, door(server.url):
            told = Told(conn, server.url)
            listening = asyncio.create_task(told.run())
            try:
                yield told
            finally:
                listening.cancel()
                await asyncio.wait({listening})


@asynccontextmanager
async def inventory(
    url: str, kubeconfig: Path, **settings: Any
) -> AsyncIterator[Context[InventorySettings]]:
    """The service, ready, until the block ends."""
    wanted: dict[str, Any] = {"cluster": CLUSTER, "http_port": -1} | settings
    given = InventorySettings(nats_url=url, kubeconfig=kubeconfig, **wanted)
    with mock.patch.object(fact_watch, "ABSENT_S", 1.0):
        async with running("inventory", given, inventory_service.main) as ctx:
            yield ctx


@asynccontextmanager
async def members(url: str, kubeconfig: Path) -> AsyncIterator[Context[ProfileSettings]]:
    """The hub's side, ready, until the block ends."""
    given = ProfileSettings(nats_url=url, kubeconfig=kubeconfig, http_port=-1)
    with mock.patch.object(fact_watch, "ABSENT_S", 1.0):
        async with running("members", given, members_service.main) as ctx:
            yield ctx
