"""`berth serve ocm`: the fleet's scores where Open Cluster Management and others look for them.

::

    berth serve ocm                                     in a pod of the hub
    berth serve ocm --kubeconfig F --context C
    berth serve ocm --side worker --cluster east        in a pod of the managed cluster

On the hub: an AddOnPlacementScore in each managed cluster's namespace, and properties on the
ClusterProfiles that we manage. In a managed cluster: a few ClusterClaims. Rights:
deploy/chart/templates/hub-rights.yaml and worker-rights.yaml; what it all means: docs/ocm.md.

One replica holds the lease and writes; the others watch and stand by. While the bus is away nobody
holds it, and what stands on the hub must not run out, since what has run out counts as 0 there: so
each replica then writes what is surely so, that nothing is known. Every write carries the resource
version of what was looked at, and what stands there already is not written: several that do so
write once.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, Literal, Protocol

from berthmaster.hub.ocm.core.claims import Claims
from berthmaster.hub.ocm.core.hub import Hub
from berthmaster.hub.ocm.core.instructions import Write
from berthmaster.hub.ocm.core.kept_objects import KeptObjects
from berthmaster.hub.ocm.core.objects import (
    ClusterClaim,
    ClusterProfile,
    ManagedCluster,
    PlacementScore,
    SetBinding,
)
from berthmaster.hub.ocm.metrics import OcmMetrics
from berthmaster.hub.ocm.settings import OcmSettings
from berthmaster.hub.ocm.writer import OcmWriter
from berthmaster.lib.door_client.client import DoorClient, DoorLease
from berthmaster.lib.door_client.service_door import service_door
from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.controller.fleet_facts import FleetFacts
from berthmaster.lib.kube.controller.kube_events import instance_of
from berthmaster.lib.kube.controller.loop import Controller, Core
from berthmaster.lib.kube.controller.shell_contract import Answer
from berthmaster.lib.kube.controller.watch import Watched
from berthmaster.lib.kube.errors import KubernetesError
from berthmaster.lib.kube.objects import Object
from berthmaster.lib.kube.resources import (
    ADD_ON_PLACEMENT_SCORES,
    CLUSTER_CLAIMS,
    CLUSTER_PROFILES,
    MANAGED_CLUSTER_SET_BINDINGS,
    MANAGED_CLUSTERS,
)
from berthmaster.lib.kube.service_client import service_client
from berthmaster.lib.messages.fleet import ClusterScore
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.facts import Seen
from berthmaster.lib.nats.service_connection import service_connection
from berthmaster.lib.nats.stream_lease import StreamLease
from berthmaster.lib.nats.streams import FLEET
from berthmaster.lib.runtime import lease as runtime_lease
from berthmaster.lib.runtime.errors import SettingsError
from berthmaster.lib.runtime.service import Context, Service

NAME: Final[Literal["ocm"]] = "ocm"
ABSENT_S: Final = 30.0  # between two looks for a kind that is not served
LEASE_TTL_S: Final = 3.0  # until a silent writer is replaced by one that stands by
BUS_SILENT_S: Final = 10.0  # no heartbeat of the fleet for so long: the bus is away


class Side(Core[Write], Protocol):
    """What a side decides with, hub or worker."""

    @property
    def targets(self) -> KeptObjects[Any]: ...

    def listen(self, now_s: float, *, blind: bool) -> None:
        """Scores that are told from now on are heard, or the bus is away."""

    def on_score(self, score: ClusterScore, stored_at_s: float) -> None: ...

    def on_gone(self, cluster: str) -> None:
        """The bus has no score of the cluster any more."""

    def on_object(self, thing: Object, *, gone: bool) -> None: ...

    def on_listed(self, plural: str) -> None: ...

    def on_absent(self, plural: str) -> None:
        """A kind is not served."""


class OcmController(Controller[Write]):
    """One replica of one side."""

    def __init__(
        self,
        ctx: Context[OcmSettings],
        client: Client,
        side: Side,
        *,
        watched: tuple[Watched, ...],
    ) -> None:
        super().__init__(ctx, client, side, OcmWriter(client), name=NAME)
        self.watches(watched, absent_s=ABSENT_S)
        self._side = side
        self._figures = OcmMetrics(ctx.metrics)
        self._fleet = FleetFacts(
            ctx,
            silent_s=BUS_SILENT_S,
            on_fact=self._on_fact,
            on_gone=lambda subject: side.on_gone(subjects.parse_fact(subject)[0]),
            on_change=self.wake,
            on_fault=self.metrics.fault,
        )

    async def run(self, conn: Connection) -> None:
        """On a hub, with the bus, until the service is asked to stop."""
        self._fleet.join(conn, [subjects.fleet_facts("score")])
        await self._lead(partial(StreamLease, conn, NAME))

    async def run_at(self, door: DoorClient) -> None:
        """In a managed cluster, until the service is asked to stop."""
        self._fleet.join_door(door, ["score"])
        await self._lead(partial(DoorLease, door, NAME))

    async def _lead(self, lease: Callable[..., runtime_lease.Lease]) -> None:
        ttl_s = LEASE_TTL_S
        self.lead_by(lease(instance_of(NAME), on_gained=lambda _: self.wake(), ttl_s=ttl_s))
        await self.finish()

    # What comes in

    def on_object(self, one: Watched, thing: Any, gone: bool) -> None:
        self._side.on_object(thing, gone=gone)

    def on_listed(self, one: Watched) -> None:
        self._side.on_listed(one.name)

    def _on_fact(self, seen: Seen) -> None:
        if isinstance(seen.fact, ClusterScore):
            self._side.on_score(seen.fact, seen.stored_at_s)

    # Acting

    def now(self) -> float:
        conn = self._fleet.conn
        return conn.now() if conn is not None else self.ctx.now()

    @property
    def _leads(self) -> bool:
        return self._fleet.caught_up and self.lease is not None and self.lease.held

    def may_act(self) -> bool:
        """By the lease; or, while the bus is away, each replica. A kind that is not listed yet, or
        not served, is the core's to wait for."""
        return self._leads or self._fleet.silent

    def before_act(self) -> None:
        for kind in self.watch.lacking:
            self._side.on_absent(kind)
        if self.may_act():
            self._side.listen(self.now(), blind=self._fleet.silent and not self._leads)

    def about(self, write: Write) -> str:
        return "/".join(part for part in write.key[1:] if part)

    def wrote(self, write: Write, answer: Answer) -> None:
        super().wrote(write, answer)
        self._figures.wrote(write, answer, self.now())

    def show(self) -> None:
        self._fleet.show()
        self.ctx.health.ready("objects", True, note=self._figures.show(self._side.targets))


def hub_side(ctx: Context[OcmSettings], client: Client) -> OcmController:
    """Of one hub. None of its kinds is needed: a hub without Open Cluster Management stays quiet,
    and is looked at again now and then; one where we may not look is complained about."""
    settings = ctx.settings
    hub = Hub(settings.policy)
    home = settings.create_profiles_in
    bindings = Watched(MANAGED_CLUSTER_SET_BINDINGS, SetBinding, optional=True, namespace=home)
    if not home:
        hub.on_absent(bindings.name)  # none are made, so it does not matter where OCM makes some
    return OcmController(
        ctx,
        client,
        hub,
        watched=(
            *((bindings,) if home else ()),
            Watched(MANAGED_CLUSTERS, ManagedCluster, optional=True),
            # A list of one name is still a list, and a Role may name it.
            Watched(
                ADD_ON_PLACEMENT_SCORES,
                PlacementScore,
                optional=True,
                fields=f"metadata.name={settings.score_name}",
            ),
            Watched(
                CLUSTER_PROFILES,
                ClusterProfile,
                optional=True,
                namespace=settings.profile_namespace,
            ),
        ),
    )


def worker_side(ctx: Context[OcmSettings], client: Client) -> OcmController:
    """Of one managed cluster."""
    settings = ctx.settings
    return OcmController(
        ctx,
        client,
        Claims(settings.cluster, settings.policy),
        watched=(Watched(CLUSTER_CLAIMS, ClusterClaim, optional=True),),
    )


async def _refuse_bound(client: Client, home: str) -> None:
    """Profiles of ours are refused where Open Cluster Management makes its own. Whether it does is
    not known while the API server is away: then the watch tells."""
    found: list[str] = []
    with suppress(KubernetesError):
        async for page in client.list_pages(
            MANAGED_CLUSTER_SET_BINDINGS, SetBinding, namespace=home
        ):
            found += [one.metadata.name for one in page.items]
    if found:
        names = ", ".join(sorted(found)[:10])
        why = f"has ManagedClusterSetBindings ({names}), so Open Cluster Management makes profiles"
        raise SettingsError(f"--create-profiles-in: {home} {why}, expected one without")


async def main(ctx: Context[OcmSettings]) -> None:
    """Watch the API server at once: scores run out without the bus too. Then join the bus."""
    if ctx.settings.side == "worker" and not ctx.settings.cluster:
        raise SettingsError("--cluster: missing, expected the managed cluster's name in the fleet")
    async with service_client(ctx, NAME) as client:
        if ctx.settings.side == "hub" and ctx.settings.create_profiles_in:
            await _refuse_bound(client, ctx.settings.create_profiles_in)
        if ctx.settings.side == "hub":
            controller = hub_side(ctx, client)
            controller.start()
            async with service_connection(ctx, FLEET) as conn:
                if conn is not None:
                    await controller.run(conn)
        else:
            controller = worker_side(ctx, client)
            controller.start()
            async with service_door(ctx, ctx.settings.cluster) as door:
                if door is not None:
                    await controller.run_at(door)


SERVICE = Service(NAME, OcmSettings, main)
