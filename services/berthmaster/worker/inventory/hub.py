"""The inventory of a hub: what it knows of its clusters, told as their memberships."""

from functools import partial
from typing import Any, Final

from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.controller.watch import Watched
from berthmaster.lib.kube.mirror import Change
from berthmaster.lib.kube.resources import CLUSTER_PROFILES, MANAGED_CLUSTERS, MEMBER_CLUSTERS
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.reporting import StreamFacts
from berthmaster.lib.nats.stream_lease import StreamLease
from berthmaster.lib.runtime.periodic import beats
from berthmaster.lib.runtime.service import Context
from berthmaster.worker.inventory.core.membership import HubKind, HubMembership
from berthmaster.worker.inventory.core.objects import ClusterProfile, ManagedCluster, MemberCluster
from berthmaster.worker.inventory.publisher import FactPublisher
from berthmaster.worker.inventory.settings import InventorySettings
from berthmaster.worker.inventory.watch import FactWatch

BEAT_S: Final = 0.5


class HubSide:
    def __init__(self, ctx: Context[InventorySettings], conn: Connection, client: Client) -> None:
        self._ctx = ctx
        self._conn = conn
        self._core = HubMembership()
        watched = (
            Watched(
                CLUSTER_PROFILES,
                ClusterProfile,
                optional=True,
                namespace=ctx.settings.profile_namespace,
            ),
            Watched(MANAGED_CLUSTERS, ManagedCluster, optional=True),
            Watched(MEMBER_CLUSTERS, MemberCluster, optional=True),
        )
        self._watch = FactWatch(ctx, client, watched, self._on_change)
        self._teller = FactPublisher(
            ctx,
            conn,
            self._core,
            lease=partial(StreamLease, conn, "inventory"),
            writer=StreamFacts(conn, subjects.fleet_facts("membership")),
        )
        self._clusters = ctx.metrics.gauge("clusters", "Clusters that the hub knows")

    async def run(self) -> None:
        """Until the service is asked to stop; the lease is given back at the end."""
        self._watch.start()
        self._ctx.spawn(self._keep_house(), name="keep house")
        await self._teller.run(lambda: self._watch.ready)

    def _on_change(self, plural: str, change: Change[Any]) -> None:
        self._core.take(HubKind(plural), change)
        self._teller.reporter.wake()

    async def _keep_house(self) -> None:
        async for _ in beats(BEAT_S, self._ctx.stopping):
            for plural in self._watch.absent:
                self._core.listed(HubKind(plural))
            for plural, keys in self._watch.unreadable_keys().items():
                self._core.unreadable(HubKind(plural), keys)
            self._ctx.health.ready("bus", self._conn.connected, "no connection to NATS")
            self._teller.show()
            self._clusters.set(len(self._core))
            self._watch.show_problems(self._core.problems)
