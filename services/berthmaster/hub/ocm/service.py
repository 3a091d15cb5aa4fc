"""`berth serve ocm`: write the scores of clusters for Open Cluster Management and ClusterProfiles.

::

    berth serve ocm                                     in a pod of the hub
    berth serve ocm --kubeconfig F --context C

The service writes an AddOnPlacementScore in each managed cluster's namespace, and properties on the
ClusterProfiles that Berthmaster manages. Rights: deploy/chart/templates/hub-rights.yaml. Guide:
docs/integrations/ocm.md.

Scores must not expire while the bus is unreachable, because OCM counts an expired score as 0. So
each replica then writes the only certain state: nothing is known.
"""

from contextlib import suppress
from functools import partial
from typing import Final

from berthmaster.hub.ocm.core.hub import Hub
from berthmaster.hub.ocm.core.instructions import Write, WriteScore
from berthmaster.hub.ocm.core.objects import PlacementScore, SetBinding
from berthmaster.hub.ocm.settings import OcmSettings
from berthmaster.hub.ocm.writer import OcmWriter
from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.controller.shell_contract import Answer
from berthmaster.lib.kube.controller.watch import Watched
from berthmaster.lib.kube.errors import KubernetesError
from berthmaster.lib.kube.managed_clusters import ManagedCluster
from berthmaster.lib.kube.multicluster import ClusterProfile
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
    """Return the controller of one hub.

    None of the kinds is required. On a hub without Open Cluster Management, the service stays quiet
    and checks again from time to time. A denied watch is reported.
    """
    settings = ctx.settings
    hub = Hub(settings.policy)
    home = settings.create_profiles_in
    bindings = Watched(MANAGED_CLUSTER_SET_BINDINGS, SetBinding, optional=True, namespace=home)
    if not home:
        hub.on_absent(bindings.name)  # no profiles are created, so OCM's namespaces do not matter
    return OcmController(
        ctx,
        client,
        hub,
        watched=(
            *((bindings,) if home else ()),
            Watched(MANAGED_CLUSTERS, ManagedCluster, optional=True),
            # A list with one name is still a list, so a Role may name the object.
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
    """Refuse to create profiles where Open Cluster Management creates its own.

    If the API server is unreachable, the watch decides later.
    """
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
    """Watch the API server at once, because scores expire without the bus too. Then join the
    bus."""
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
