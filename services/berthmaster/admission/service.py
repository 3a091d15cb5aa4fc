"""`berth serve admission`: checks of ours get their MultiKueueConfig, and Workloads pass them.

::

    berth serve admission                                     in a pod of the hub
    berth serve admission --kubeconfig F --context C

An AdmissionCheck with ``controllerName: berthmaster.io/placement`` names a Placement of Open
Cluster Management. The clusters that it selects become a MultiKueueConfig of the check's name, for
a check of MultiKueue to name. Rights: deploy/kubernetes/admission. Several replicas may run; one
acts.
"""

from dataclasses import dataclass

from berthmaster.admission.shell import Shell
from berthmaster.bus.joining import joined
from berthmaster.bus.streams import FLEET
from berthmaster.kubernetes.joining import ClusterSettings, reached
from berthmaster.runtime.service import Context, Service
from berthmaster.runtime.settings import setting

NAME = "admission"


@dataclass(frozen=True, kw_only=True)
class AdmissionSettings(ClusterSettings):
    """Settings of the admission check controller of a hub."""

    kueue_namespace: str = setting(
        "kueue-system", help="where Kueue runs and the kubeconfig Secrets multikueue-CLUSTER are"
    )
    placement_namespace: str = setting(
        "", help="where the Placements are that checks name; empty = where Kueue runs"
    )
    settle_s: float = setting(
        3.0,
        least=0.1,
        most=60,
        help="seconds for which nobody passes before a drained cluster is taken out, so that what "
        "was just decided can show",
    )


async def main(ctx: Context[AdmissionSettings]) -> None:
    """Mirror the hub at once, so that a bus that is away holds nobody up; then join the bus."""
    settings = ctx.settings
    async with reached(ctx, NAME) as client:
        shell = Shell(
            ctx,
            client,
            kueue_namespace=settings.kueue_namespace,
            placement_namespace=settings.placement_namespace or settings.kueue_namespace,
            settle_s=settings.settle_s,
        )
        shell.begin()
        async with joined(ctx, FLEET) as conn:
            if conn is not None:
                await shell.run(conn)


SERVICE = Service(NAME, AdmissionSettings, main)
