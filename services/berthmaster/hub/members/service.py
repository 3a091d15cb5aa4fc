"""`berth serve members`: report a hub's clusters and their state as facts of the fleet.

::

    berth serve members                                 in a pod of the hub
    berth serve members --kubeconfig F --context C

The service needs only the verbs get, list and watch (deploy/chart/templates/hub-rights.yaml).
"""

from functools import partial
from typing import Any, Final

from berthmaster.hub.members.core.membership import HubKind, HubMembership
from berthmaster.hub.members.core.objects import MemberCluster
from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.controller.fact_watch import FactWatch
from berthmaster.lib.kube.controller.watch import Watched
from berthmaster.lib.kube.managed_clusters import ManagedCluster
from berthmaster.lib.kube.mirror import Change
from berthmaster.lib.kube.multicluster import ClusterProfile
from berthmaster.lib.kube.resources import CLUSTER_PROFILES, MANAGED_CLUSTERS, MEMBER_CLUSTERS
from berthmaster.lib.kube.service_client import ProfileSettings, service_client
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.fact_publisher import FactPublisher
from berthmaster.lib.nats.facts import StreamFacts
from berthmaster.lib.nats.stream_connection import stream_connection
from berthmaster.lib.nats.stream_lease import StreamLease
from berthmaster.lib.nats.streams import FLEET
from berthmaster.lib.runtime.periodic import beats
from berthmaster.lib.runtime.service import Context, Service

NAME: Final = "members"
BEAT_S: Final = 0.5


class Members:
    def __init__(self, ctx: Context[ProfileSettings], conn: Connection, client: Client) -> None:
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
        self._publisher = FactPublisher(
            ctx,
            conn,
            self._core,
            lease=partial(StreamLease, conn, NAME),
            writer=StreamFacts(conn, subjects.fleet_facts("membership")),
        )
        self._clusters = ctx.metrics.gauge("clusters", "Clusters known to the hub")

    async def run(self) -> None:
        """Run until the service stops, then release the lease."""
        self._watch.start()
        self._ctx.spawn(self._keep_house(), name="keep house")
        await self._publisher.run(lambda: self._watch.ready)

    def _on_change(self, plural: str, change: Change[Any]) -> None:
        self._core.take(HubKind(plural), change)
        self._publisher.reporter.wake()

    async def _keep_house(self) -> None:
        async for _ in beats(BEAT_S, self._ctx.stopping):
            for plural in self._watch.absent:
                self._core.listed(HubKind(plural))
            for plural, keys in self._watch.unreadable_keys().items():
                self._core.unreadable(HubKind(plural), keys)
            self._ctx.health.ready("bus", self._conn.connected, "no connection to NATS")
            self._publisher.show()
            self._clusters.set(len(self._core))
            self._watch.show_problems(self._core.problems)


async def main(ctx: Context[ProfileSettings]) -> None:
    """Connect to the API server and the bus, then report."""
    async with service_client(ctx, NAME) as client, stream_connection(ctx, FLEET) as conn:
        if conn is not None:
            await Members(ctx, conn, client).run()


SERVICE = Service(NAME, ProfileSettings, main)
