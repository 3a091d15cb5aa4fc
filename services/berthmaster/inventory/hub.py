"""The inventory of a hub: what it knows of its clusters, told as their memberships."""

from typing import Any, Final

from berthmaster.bus import subjects
from berthmaster.bus.connection import Connection
from berthmaster.inventory.membership import HubKind, HubMembership
from berthmaster.inventory.objects import ClusterProfile, ManagedCluster
from berthmaster.inventory.publisher import FactPublisher
from berthmaster.inventory.settings import InventorySettings
from berthmaster.inventory.watching import Mirrors, Watched
from berthmaster.kubernetes.client import Client
from berthmaster.kubernetes.mirror import Change
from berthmaster.kubernetes.resources import CLUSTER_PROFILES, MANAGED_CLUSTERS
from berthmaster.runtime.periodic import beats
from berthmaster.runtime.service import Context

BEAT_S: Final = 0.5


class HubSide:
    """One replica of the inventory of one hub."""

    def __init__(self, ctx: Context[InventorySettings], conn: Connection, client: Client) -> None:
        self._ctx = ctx
        self._conn = conn
        self._core = HubMembership()
        watched = (
            Watched(
                HubKind.PROFILES,
                CLUSTER_PROFILES,
                ClusterProfile,
                namespace=ctx.settings.profile_namespace,
            ),
            Watched(HubKind.MANAGED, MANAGED_CLUSTERS, ManagedCluster),
        )
        self._mirrors = Mirrors(ctx, client, watched, self._on_change)
        self._teller = FactPublisher(
            ctx,
            conn,
            self._core,
            lease="inventory",
            scope=subjects.fleet_facts("membership"),
        )
        self._clusters = ctx.metrics.gauge("clusters", "Clusters that the hub knows")

    async def run(self) -> None:
        """Until the service is asked to stop; the lease is given back at the end."""
        self._mirrors.start()
        self._ctx.spawn(self._keep_house(), name="keep house")
        await self._teller.run(lambda: self._mirrors.ready)

    def _on_change(self, kind: HubKind, change: Change[Any]) -> None:
        self._core.take(kind, change)
        self._teller.reporter.wake()

    async def _keep_house(self) -> None:
        async for _ in beats(BEAT_S, self._ctx.stopping):
            for kind in self._mirrors.absent():
                self._core.listed(kind)
            for kind, keys in self._mirrors.unreadable().items():
                self._core.unreadable(kind, keys)
            self._ctx.health.ready("bus", self._conn.connected, "no connection to NATS")
            self._teller.show()
            self._clusters.set(len(self._core))
            self._mirrors.show(self._core.problems.count())
            self._mirrors.tell(self._core.problems.take_new())
