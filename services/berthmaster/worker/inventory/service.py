"""`berth serve inventory`: what a worker cluster has and does, as facts of the fleet.

::

    berth serve inventory --cluster east                       in a pod of the cluster
    berth serve inventory --cluster east --kubeconfig F --context C

Needs to get, list and watch, and nothing else (deploy/chart/templates/worker-rights.yaml). While
the API server is away nothing is told, the sign of life neither: whoever places jobs then closes
the cluster to new ones, and what runs there goes on.
"""

from berthmaster.lib.door_client.service_door import service_door
from berthmaster.lib.kube.service_client import service_client
from berthmaster.lib.runtime.service import Context, Service
from berthmaster.worker.inventory.settings import InventorySettings
from berthmaster.worker.inventory.worker import WorkerInventory

NAME = "inventory"


async def main(ctx: Context[InventorySettings]) -> None:
    """Connect to both sides, then tell."""
    async with service_client(ctx, NAME) as client, service_door(ctx, ctx.settings.cluster) as door:
        if door is not None:
            await WorkerInventory(ctx, door, client).run()


SERVICE = Service(NAME, InventorySettings, main)
