"""`berth serve inventory`: what clusters have and do, as facts of the fleet.

::

    berth serve inventory --cluster east                       in a pod of the cluster
    berth serve inventory --cluster east --kubeconfig F --context C
    berth serve inventory --side hub --context hub             what a hub knows of its clusters

Needs to get, list and watch, and nothing else (deploy/chart/templates/worker-rights.yaml). While
the API server is away nothing is told, the sign of life neither: whoever places jobs then closes
the cluster to new ones, and what runs there goes on.
"""

from berthmaster.lib.door_client.service_door import service_door
from berthmaster.lib.kube.service_client import service_client
from berthmaster.lib.nats.service_connection import service_connection
from berthmaster.lib.nats.streams import FLEET
from berthmaster.lib.runtime.errors import SettingsError
from berthmaster.lib.runtime.service import Context, Service
from berthmaster.worker.inventory.hub import HubSide
from berthmaster.worker.inventory.settings import InventorySettings
from berthmaster.worker.inventory.worker import WorkerInventory

NAME = "inventory"


async def main(ctx: Context[InventorySettings]) -> None:
    """Connect to both sides, then tell."""
    settings = ctx.settings
    if settings.side == "worker" and not settings.cluster:
        raise SettingsError("--cluster: missing, expected the worker cluster's name in the fleet")
    async with service_client(ctx, NAME) as client:
        if settings.side == "hub":
            async with service_connection(ctx, FLEET) as conn:
                if conn is not None:
                    await HubSide(ctx, conn, client).run()
        else:
            async with service_door(ctx, settings.cluster) as door:
                if door is not None:
                    await WorkerInventory(ctx, door, client).run()


SERVICE = Service(NAME, InventorySettings, main)
