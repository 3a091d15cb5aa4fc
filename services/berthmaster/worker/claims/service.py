"""`berth serve claims`: write ClusterClaims of a managed cluster from its score.

::

    berth serve claims --cluster east                       in a pod of the managed cluster
    berth serve claims --cluster east --kubeconfig F --context C

Rights: deploy/chart/templates/worker-rights.yaml. Meaning of the claims: docs/integrations/ocm.md.
"""

from functools import partial
from typing import Final, Literal

from berthmaster.lib.door_client.client import DoorLease
from berthmaster.lib.door_client.door_facts import DoorMirror
from berthmaster.lib.door_client.service_door import service_door
from berthmaster.lib.kube.controller.watch import Watched
from berthmaster.lib.kube.resources import CLUSTER_CLAIMS
from berthmaster.lib.kube.service_client import service_client
from berthmaster.lib.ocm.controller import ScoreController
from berthmaster.lib.ocm.core.telling import SILENT_AFTER_S
from berthmaster.lib.runtime.service import Context, Service
from berthmaster.worker.claims.core.claims import RULES, Claims
from berthmaster.worker.claims.core.objects import ClusterClaim
from berthmaster.worker.claims.settings import ClaimsSettings
from berthmaster.worker.claims.writer import ClaimWriter

NAME: Final[Literal["claims"]] = "claims"
WATCHED: Final = (Watched(CLUSTER_CLAIMS, ClusterClaim, optional=True),)


async def main(ctx: Context[ClaimsSettings]) -> None:
    """Watch the API server, then ask the door for the cluster's score."""
    cluster = ctx.settings.cluster
    async with service_client(ctx, NAME) as client:
        core = Claims(cluster, RULES, SILENT_AFTER_S)
        controller = ScoreController(ctx, client, core, ClaimWriter(client), watched=WATCHED)
        controller.start()
        async with service_door(ctx, cluster) as door:
            if door is not None:
                mirror = partial(DoorMirror, door, ["score"])
                await controller.run(door.conn, mirror, partial(DoorLease, door, NAME))


SERVICE = Service(NAME, ClaimsSettings, main)
