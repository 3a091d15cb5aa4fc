"""`berth serve inventory`: what clusters have and do, as facts of the fleet.

::

    berth serve inventory --cluster east                       in a pod of the cluster
    berth serve inventory --cluster east --kubeconfig F --context C
    berth serve inventory --side hub --context hub             what a hub knows of its clusters

Needs to get, list and watch, and nothing else (deploy/chart/templates/worker-rights.yaml). While
the API server is away nothing is told, the sign of life neither: whoever places jobs then closes
the cluster to new ones, and what runs there goes on.
"""

from berthmaster.bus.door_joining import at_the_door
from berthmaster.bus.joining import joined
from berthmaster.bus.streams import FLEET
from berthmaster.inventory.hub import HubSide
from berthmaster.inventory.settings import InventorySettings
from berthmaster.inventory.worker import WorkerInventory
from berthmaster.kubernetes.joining import reached
from berthmaster.runtime.errors import SettingsError
from berthmaster.runtime.service import Context, Service

NAME = "inventory"


async def main(ctx: Context[InventorySettings]) -> None:
    """Connect to both sides, then tell."""
    settings = ctx.settings
    if settings.side == "worker" and not settings.cluster:
        raise SettingsError("--cluster: missing, expected the worker cluster's name in the fleet")
    async with reached(ctx, NAME) as client:
        if settings.side == "hub":
            async with joined(ctx, FLEET) as conn:
                if conn is not None:
                    await HubSide(ctx, conn, client).run()
        else:
            async with at_the_door(ctx, settings.cluster) as door:
                if door is not None:
                    await WorkerInventory(ctx, door, client).run()


SERVICE = Service(NAME, InventorySettings, main)
