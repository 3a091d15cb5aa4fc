"""`berth serve ocm`: the fleet's scores where Open Cluster Management and others look for them.

::

    berth serve ocm                                     in a pod of the hub
    berth serve ocm --kubeconfig F --context C

An AddOnPlacementScore in each managed cluster's namespace, and properties on the ClusterProfiles
that we manage. Rights: deploy/chart/templates/hub-rights.yaml. Guide:
docs/integrations/ocm.md.

What stands on the hub must not run out while the bus is away, since what has run out counts as 0
there: so each replica then writes what is surely so, that nothing is known.
"""

from contextlib import suppress
from functools import partial
from typing import Final

from berthmaster.hub.ocm.core.hub import Hub
from berthmaster.hub.ocm.core.instructions import Write, WriteScore
from berthmaster.hub.ocm.core.objects import (
    ClusterProfile,
    ManagedCluster,
    PlacementScore,
    SetBinding,
)
from berthmaster.hub.ocm.settings import OcmSettings
from berthmaster.hub.ocm.writer import OcmWriter
from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.controller.shell_contract import Answer
from berthmaster.lib.kube.controller.watch import Watched
from berthmaster.lib.kube.errors import KubernetesError
from berthmaster.lib.kube.resources import (
    ADD_ON_PLACEMENT_SCORES,
    CLUSTER_PROFILES,
    MANAGED_CLUSTER_SET_BINDINGS,
    MANAGED_CLUSTERS,
)
from berthmaster.lib.kube.service_client import service_client
from berthmaster.lib.messages.fleet import KUBERNETES_VERSION
from berthmaster.lib.messages.fleet import ClusterProfile as FleetProfile
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.fact_stamps import Seen
from berthmaster.lib.nats.facts import FactMirror
from berthmaster.lib.nats.stream_connection import stream_connection
from berthmaster.lib.nats.stream_lease import StreamLease
from berthmaster.lib.nats.streams import FLEET
from berthmaster.lib.ocm.controller import ScoreController
from berthmaster.lib.runtime.errors import SettingsError
from berthmaster.lib.runtime.service import Context, Service

NAME: Final = "ocm"


class OcmController(ScoreController[Write]):
    def __init__(
        self, ctx: Context[OcmSettings], client: Client, hub: Hub, *, watched: tuple[Watched, ...]
    ) -> None:
        self._hub = hub
        super().__init__(ctx, client, hub, OcmWriter(client), watched=watched)
        self._waited_s = ctx.metrics.histogram(
            "score_seconds", "Seconds from a score on the bus to its AddOnPlacementScore"
        )

    def _on_fact(self, seen: Seen) -> None:
        if isinstance(seen.fact, FleetProfile):
            version = seen.fact.properties.get(KUBERNETES_VERSION, "")
            self._hub.on_version(seen.fact.cluster, version)
        super()._on_fact(seen)

    def wrote(self, write: Write, answer: Answer) -> None:
        super().wrote(write, answer)
        if answer.done and isinstance(write, WriteScore) and write.told_at_s is not None:
            self._waited_s.observe(max(0.0, self.now() - write.told_at_s))


def controller_of(ctx: Context[OcmSettings], client: Client) -> OcmController:
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
    async with service_client(ctx, NAME) as client:
        if home := ctx.settings.create_profiles_in:
            await _refuse_bound(client, home)
        controller = controller_of(ctx, client)
        controller.start()
        async with stream_connection(ctx, FLEET) as conn:
            if conn is not None:
                facts = [subjects.fleet_facts("score"), subjects.fleet_facts("profile")]
                mirror = partial(FactMirror, conn, NAME, facts)
                await controller.run(conn, mirror, partial(StreamLease, conn, NAME))


SERVICE = Service(NAME, OcmSettings, main)
