"""`berth serve multikueue`: what MultiKueue sends shows on the bus, and goes where there is room.

::

    berth serve multikueue --mode observe                      in a pod of the hub
    berth serve multikueue --mode dispatch --kubeconfig F --context C

Modes, each undone by the next start: ``observe`` writes nothing to Kubernetes, ``order`` writes the
order of MultiKueueConfigs, ``dispatch`` nominates clusters (Kueue's ``dispatcherName`` must then be
a name of ours). Rights: deploy/kubernetes/hub/multikueue-rbac.yaml, one ClusterRole a mode.
"""

from dataclasses import dataclass

from berthmaster.bus.joining import joined
from berthmaster.bus.streams import CONTROL, FLEET, WORKLOADS
from berthmaster.kubernetes.joining import ClusterSettings, reached
from berthmaster.multikueue.settings import ENGINE_VERSION, Mode, Policy
from berthmaster.multikueue.shell import Shell
from berthmaster.runtime.service import Context, Service
from berthmaster.runtime.settings import setting

NAME = "multikueue"


def _pairs(parts: tuple[str, ...]) -> str:
    good = all(0 < part.find("=") < len(part) - 1 for part in parts)
    return "" if good else "NAMESPACE=TENANT, several with commas between them"


@dataclass(frozen=True, kw_only=True)
class MultiKueueSettings(ClusterSettings):
    """Settings of the reconciler on a hub."""

    mode: Mode = setting(
        "observe",
        help="observe: write nothing to the hub; order: keep the order of the MultiKueueConfigs; "
        "dispatch: nominate clusters for each Workload",
    )
    namespace: str = setting(
        "", help="where ConfigMaps of our own checks are; empty = the pod's, or the context's"
    )
    tenant_of_namespace: tuple[str, ...] = setting(
        (), check=_pairs, help="whose a namespace is, NAMESPACE=TENANT; others are their own tenant"
    )
    patience_s: float = setting(
        30.0,
        least=0.1,
        help="seconds that a nominated Workload waits for admission before the next best cluster "
        "is added",
    )
    stale_after_s: float = setting(
        10.0, least=1, help="seconds of silence after which a cluster gets no new placements"
    )
    silent_s: float = setting(
        5.0,
        least=0.1,
        help="seconds without anything known of any cluster after which the configuration's order "
        "counts, so that no queue stands still",
    )
    trap_s: float = setting(
        5.0, least=1, help="seconds for which a copy may run without the hub saying so"
    )
    eviction_s: float = setting(
        60.0,
        least=1,
        help="seconds for which the pods of what Kueue takes back may end before it is said to be "
        "stuck; as long at least as pods ask for",
    )
    order_every_s: float = setting(
        1.0, least=0.1, help="seconds between two orders of one MultiKueueConfig, at least"
    )
    order_margin: float = setting(
        1.0, least=0, help="GPUs by which a cluster must be ahead to overtake another in the order"
    )
    commit_limit: int = setting(
        128, least=1, most=900, help="placements in one commit; more only cost latency"
    )
    former_hubs: tuple[str, ...] = setting(
        (),
        help="ids (uid of namespace kube-system) of hubs that are no more, with commas between "
        "them: what is open on them is cancelled; of other hubs than this one all is left alone",
    )

    @property
    def policy(self) -> Policy:
        """The part that decisions depend on."""
        return Policy(
            mode=self.mode,
            patience_s=self.patience_s,
            stale_after_s=self.stale_after_s,
            silent_s=self.silent_s,
            trap_s=self.trap_s,
            eviction_s=self.eviction_s,
            order_every_s=self.order_every_s,
            order_margin=self.order_margin,
            commit_limit=self.commit_limit,
        )

    @property
    def tenants(self) -> dict[str, str]:
        """Namespace -> tenant."""
        pairs = (part.partition("=") for part in self.tenant_of_namespace)
        return {namespace: tenant for namespace, _, tenant in pairs}


async def main(ctx: Context[MultiKueueSettings]) -> None:
    """Mirror the hub at once, so that a bus that is away stops no queue; then join the bus."""
    settings = ctx.settings
    ctx.log.info("multikueue", mode=settings.mode, engine=ENGINE_VERSION)
    async with reached(ctx, NAME) as client:
        shell = Shell(
            ctx,
            client,
            policy=settings.policy,
            tenants=settings.tenants,
            former_hubs=settings.former_hubs,
            namespace=settings.namespace or client.access.namespace or "default",
        )
        shell.begin()
        async with joined(ctx, WORKLOADS, FLEET, CONTROL) as conn:
            if conn is not None:
                await shell.run(conn)


SERVICE = Service(NAME, MultiKueueSettings, main)
