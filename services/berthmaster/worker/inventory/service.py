"""`berth serve inventory`: report nodes, pods and queues of a worker cluster as facts.

::

    berth serve inventory --cluster east                       in a pod of the cluster
    berth serve inventory --cluster east --kubeconfig F --context C

The service needs only the verbs get, list and watch (deploy/chart/templates/worker-rights.yaml).
While the API server is away, the service reports nothing, also no heartbeat. The resolver then
places no new jobs in the cluster, and running jobs continue.

``WorkerInventory`` connects mirrors, core and the writer of facts.
"""

import asyncio
from functools import partial
from typing import Any, Final

from berthmaster.lib.door_client.client import DoorClient, DoorLease
from berthmaster.lib.door_client.door_facts import DoorFacts
from berthmaster.lib.door_client.service_door import service_door
from berthmaster.lib.jobs.kinds.job import JOB
from berthmaster.lib.jobs.kinds.table import KINDS
from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.controller.fact_watch import FactWatch
from berthmaster.lib.kube.controller.watch import Watched
from berthmaster.lib.kube.errors import BadAnswer, Forbidden, KubernetesError, NotFound
from berthmaster.lib.kube.mirror import Change
from berthmaster.lib.kube.resources import (
    CLUSTER_QUEUES,
    COHORTS,
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    DEVICE_CLASSES,
    JOBS,
    KUEUE_WORKLOADS,
    LOCAL_QUEUES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_FLAVORS,
    RESOURCE_SLICES,
)
from berthmaster.lib.kube.service_client import service_client
from berthmaster.lib.kueue.configuration import ConfigMap
from berthmaster.lib.kueue.jobs import HubJob
from berthmaster.lib.kueue.names import ORIGIN_LABEL
from berthmaster.lib.kueue.queues import ClusterQueue, Cohort, LocalQueue, ResourceFlavor
from berthmaster.lib.kueue.workloads import Workload
from berthmaster.lib.messages.fleet import REFRESH_S, ClusterAlive, Stamp
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.fact_publisher import FactPublisher
from berthmaster.lib.nats.reporting import ALIVE_INTERVAL_S
from berthmaster.lib.runtime.periodic import beats, stopped_within
from berthmaster.lib.runtime.service import Context, Service
from berthmaster.worker.inventory.blockers import Blockers
from berthmaster.worker.inventory.core.inventory import KAI_CRD, Inventory
from berthmaster.worker.inventory.core.kinds import WatchedKind
from berthmaster.worker.inventory.core.objects import (
    HOLDING_PODS,
    WAITING_PODS,
    Definition,
    DeviceClass,
    Node,
    Pod,
    ResourceClaim,
    ResourceSlice,
    WaitingPod,
)
from berthmaster.worker.inventory.settings import InventorySettings

BEAT_S: Final = 0.5
RETRY_S: Final = 5.0
DENIED_S: Final = 60.0  # between two questions for an identity that the Role does not let us read
IDENTITY_PART: Final = "identity of the API server"
IDENTITY_RULE: Final = "bind the ClusterRole berthmaster-inventory, which lets it be read"
POD_PAGE: Final = 250  # a page of pods as JSON is several MB; half as much costs two calls more

WATCHED: Final = (
    Watched(NODES, Node),
    Watched(PODS, Pod, fields=HOLDING_PODS, page=POD_PAGE),
    Watched(
        PODS,
        WaitingPod,
        optional=True,
        fields=WAITING_PODS,
        page=POD_PAGE,
        part=WatchedKind.WAITING.value,
    ),
    Watched(RESOURCE_SLICES, ResourceSlice, optional=True),
    Watched(RESOURCE_CLAIMS, ResourceClaim, optional=True),
    Watched(DEVICE_CLASSES, DeviceClass, optional=True),
    Watched(RESOURCE_FLAVORS, ResourceFlavor, optional=True),
    Watched(COHORTS, Cohort, optional=True),
    Watched(CLUSTER_QUEUES, ClusterQueue, optional=True),
    Watched(LOCAL_QUEUES, LocalQueue, optional=True),
    Watched(KUEUE_WORKLOADS, Workload, optional=True, labels=ORIGIN_LABEL),
    Watched(JOBS, HubJob, optional=True, labels=ORIGIN_LABEL),
    *(
        Watched(
            CUSTOM_RESOURCE_DEFINITIONS,
            Definition,
            optional=True,
            fields=f"metadata.name={name}",
            part=f"{CUSTOM_RESOURCE_DEFINITIONS.plural} {name}",
        )
        for name in (*(kind.definition for kind in KINDS if kind is not JOB), KAI_CRD)
    ),
)


def _configuration(place: str) -> tuple[Watched, ...]:
    """Watch Kueue's configuration, if set."""
    namespace, _, name = place.partition("/")
    fields = f"metadata.name={name}"
    found = Watched(
        CONFIG_MAPS, ConfigMap, optional=True, deniable=True, namespace=namespace, fields=fields
    )
    return (found,) if name else ()


class WorkerInventory:
    def __init__(self, ctx: Context[InventorySettings], door: DoorClient, client: Client) -> None:
        settings = ctx.settings
        self._ctx = ctx
        self._door = door
        self._client = client
        self._core = Inventory(
            settings.cluster,
            settings.cluster_labels,
            settings.device_classes,
            jobs=settings.jobs,
        )
        watched = (*WATCHED, *_configuration(settings.kueue_config))
        self._watch = FactWatch(
            ctx, client, watched, self._on_change, own_kinds=(WatchedKind.WAITING.value,)
        )
        self._teller = FactPublisher(
            ctx,
            door.conn,
            self._core,
            lease=partial(DoorLease, door, "inventory"),
            writer=DoorFacts(door),
        )
        self._identified = False
        self._holding = ctx.metrics.gauge("pods_holding", "Pods with resources on a node")

    async def run(self) -> None:
        """Until the service is asked to stop; the lease is given back at the end."""
        ctx = self._ctx
        self._watch.start()
        ctx.spawn(self._learn_server(), name="identity of the API server")
        alive = self._teller.reporter.keep_alive(
            subjects.alive(ctx.settings.cluster), self._alive, ctx.stopping
        )
        ctx.spawn(alive, name="sign of life")
        ctx.spawn(self._keep_house(), name="keep house")
        ctx.spawn(self._find_blockers(), name="find what blocks copies")
        await self._teller.run(lambda: self._identified and self._watch.ready)

    def _on_change(self, kind: str, change: Change[Any]) -> None:
        self._core.take(WatchedKind(kind), change)
        self._teller.reporter.wake()

    def _alive(self, stamp: Stamp, now_s: float) -> ClusterAlive | None:
        """Return the heartbeat; None if a change may be missing, so that silence shows it."""
        if self._watch.live():
            return None
        return ClusterAlive(
            cluster=self._ctx.settings.cluster,
            stamp=stamp,
            observed_at_s=now_s,
            interval_s=ALIVE_INTERVAL_S,
        )

    async def _learn_server(self) -> None:
        """Read identity and version of the API server. Nothing is reported before its identity is
        known or refused, because a cluster under another name would seem to be a second one.
        """
        while not self._ctx.stopping.is_set():
            pause_s = REFRESH_S
            try:
                self._core.set_uid(await self._client.uid())
                self._identified = True
                self._ctx.health.ready(IDENTITY_PART, True)
            except (Forbidden, NotFound, BadAnswer) as error:
                self._identified = True
                self._ctx.health.ready(
                    IDENTITY_PART, True, note=f"unknown: {error}; {IDENTITY_RULE}"
                )
                pause_s = DENIED_S
            except KubernetesError:
                pause_s = RETRY_S  # reported by the mirrors
            try:
                self._core.set_version(await self._client.version())
                self._teller.reporter.wake()
            except KubernetesError:
                pause_s = min(pause_s, RETRY_S)
            await stopped_within(pause_s, self._ctx.stopping)

    async def _find_blockers(self) -> None:
        blockers = Blockers(self._client, self._core.queues, self._teller.reporter.wake)
        now = asyncio.get_running_loop().time
        async for _ in beats(BEAT_S, self._ctx.stopping):
            await blockers.look(now())

    async def _keep_house(self) -> None:
        async for _ in beats(BEAT_S, self._ctx.stopping):
            for plural in self._watch.absent:
                self._core.absent(WatchedKind(plural))
            for plural, keys in self._watch.unreadable_keys().items():
                self._core.unreadable(WatchedKind(plural), keys)
            self._core.unlisted(self._watch.unlisted(), self._door.now())
            self._teller.reporter.wake()
            self._ctx.health.ready("bus", self._door.conn.connected, "no connection to NATS")
            self._ctx.health.ready("door", not self._door.silent, self._door.silent)
            why = self._watch.live()
            self._ctx.health.ready("sign of life", not why, why)
            self._teller.show()
            self._holding.set(self._core.nodes.pods)
            self._watch.show_problems(self._core.problems)


NAME = "inventory"


async def main(ctx: Context[InventorySettings]) -> None:
    """Connect to both sides, then tell."""
    async with service_client(ctx, NAME) as client, service_door(ctx, ctx.settings.cluster) as door:
        if door is not None:
            await WorkerInventory(ctx, door, client).run()


SERVICE = Service(NAME, InventorySettings, main)
