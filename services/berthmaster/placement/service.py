"""`berth serve placement`: Placements that are not Open Cluster Management's are decided by us.

::

    berth serve placement                      in a pod of the hub
    berth serve placement --kubeconfig F --context C --namespace berth-system

Ours are those annotated ``cluster.open-cluster-management.io/experimental-scheduling-disable:
"true"``; all others are left alone. It needs no bus; replicas stand by on a Lease. While the API
server is away all decisions stay as they are. Rights: deploy/kubernetes/placement.
"""

from berthmaster.kubernetes.joining import reached
from berthmaster.placement.settings import PlacementSettings
from berthmaster.placement.shell import Shell
from berthmaster.runtime.service import Context, Service

NAME = "placement"


async def main(ctx: Context[PlacementSettings]) -> None:
    """Mirror the hub, and act while the lease is ours."""
    async with reached(ctx, NAME) as client:
        await Shell(ctx, client).run()


SERVICE = Service(NAME, PlacementSettings, main)
