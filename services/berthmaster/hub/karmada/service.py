"""`berth serve karmada`: queue Karmada's ResourceBindings, and place each in a cluster.

::

    berth serve karmada --kubeconfig F --context karmada-apiserver

The service schedules the bindings whose policy has ``schedulerName: berthmaster``. Rights:
deploy/policies/karmada.yaml, on the Karmada API server. One replica holds the lease and acts. The
others mirror the same objects. Without the bus nothing changes: suspended bindings stay suspended,
and released bindings continue.
"""

from dataclasses import dataclass
from typing import Any, Final

from berthmaster.hub.karmada.core.instructions import Write
from berthmaster.hub.karmada.core.karmada import KarmadaCore
from berthmaster.hub.karmada.core.objects import KarmadaCluster, Policy, ResourceBinding
from berthmaster.hub.karmada.writer import KarmadaWriter
from berthmaster.lib.event_log.feed import Feed
from berthmaster.lib.event_log.group_commit import shared_group_commit
from berthmaster.lib.event_log.reader_settings import LogReaderSettings
from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.controller.hub_identity import PART, identify
from berthmaster.lib.kube.controller.kube_events import instance_of
from berthmaster.lib.kube.controller.loop import Controller
from berthmaster.lib.kube.controller.watch import Watched
from berthmaster.lib.kube.objects import Object
from berthmaster.lib.kube.resources import (
    CLUSTER_PROPAGATION_POLICIES,
    KARMADA_CLUSTERS,
    PROPAGATION_POLICIES,
    RESOURCE_BINDINGS,
)
from berthmaster.lib.kube.service_client import TenantSettings, service_client
from berthmaster.lib.lifecycle.instructions import Append, Outcome, Stored, Unknown
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import BusError
from berthmaster.lib.nats.stream_connection import stream_connection
from berthmaster.lib.nats.stream_lease import StreamLease
from berthmaster.lib.nats.streams import CONTROL, FLEET, WORKLOADS
from berthmaster.lib.runtime.service import Context, Service

NAME: Final = "karmada"
RIGHTS: Final = "deploy/policies/karmada.yaml"
ABSENT_S: Final = 5.0
WATCHED: Final = (
    Watched(RESOURCE_BINDINGS, ResourceBinding),
    Watched(KARMADA_CLUSTERS, KarmadaCluster),
    Watched(PROPAGATION_POLICIES, Policy),
    Watched(CLUSTER_PROPAGATION_POLICIES, Policy),
)


@dataclass(frozen=True, kw_only=True)
class KarmadaSettings(TenantSettings, LogReaderSettings):
    """Settings of the service beside a Karmada control plane."""


class KarmadaController(Controller[Write]):
    def __init__(self, ctx: Context[KarmadaSettings], client: Client, conn: Connection) -> None:
        self.core = core = KarmadaCore(instance_of(NAME), ctx.settings.tenants)
        writer = KarmadaWriter(client)
        super().__init__(ctx, client, core, writer, name=NAME)
        writer.now = conn.now  # type: ignore[method-assign]
        self.watches(WATCHED, absent_s=ABSENT_S)
        self._conn = conn
        self._feed = Feed(
            ctx,
            conn,
            core,
            self.wake,
            name=NAME,
            on_gone=self._on_gone,
            follows=[subjects.ALL_WORKLOADS],
        )
        self._submitted = ctx.metrics.counter("submitted", "Bindings submitted to the bus")
        self._open = ctx.metrics.gauge("workloads", "Open workloads of this control plane")
        self._troubled = ctx.metrics.gauge("troubled", "Bindings with a failed last write")

    async def run(self) -> None:
        """Run until the context stops."""
        ctx, conn = self.ctx, self._conn
        ctx.health.ready(PART, False, "catching up")
        if not await self._feed.begin():
            return
        ctx.spawn(
            identify(self.client, self.core.know, ctx.health, rights=RIGHTS),
            name="identity of the control plane",
        )
        self._feed.start()
        self.start()
        self.lead_by(StreamLease(conn, NAME, self.core.name, on_gained=lambda _: self.wake()))
        await self.finish()
        await self._feed.close()

    def _on_gone(self, subject: str) -> None:
        if (node := subjects.parse_node(subject)) is not None:
            self.core.on_node_gone(*node)

    def on_object(self, one: Watched, thing: Object, gone: bool) -> None:
        self.core.on_object(thing, gone=gone)

    def now(self) -> float:
        return self._conn.now()

    def may_act(self) -> bool:
        return super().may_act() and self._feed.whole and bool(self.core.know.id)

    async def act(self) -> None:
        await super().act()
        appends, self.core.appends = self.core.appends, []
        for append in appends:
            self.ctx.spawn(self._append(append), name="append")

    async def _append(self, append: Append) -> None:
        outcome: Outcome
        try:
            outcome = await shared_group_commit(self._conn).append(append.event)
        except BusError as error:
            outcome = Unknown(str(error))
        if isinstance(outcome, Stored):
            self._submitted.inc(append.event.after == 0)
        else:
            self.ctx.log.info("not appended", ref=append.ref, outcome=str(outcome))
        self.core.on_appended(append.ref, outcome, self.now())
        self.wake()

    def about(self, write: Write) -> str:
        meta = write.binding.metadata
        return f"{meta.namespace}/{meta.name}"

    def show(self) -> None:
        self.ctx.health.ready("bus", self._conn.connected, "no connection to NATS")
        self._open.set(len(self.core.know.open))
        self._troubled.set(len(self.core.trouble))


async def main(ctx: Context[Any]) -> None:
    """Connect to the bus and the control plane, and act while this replica holds the lease."""
    async with (
        service_client(ctx, NAME) as client,
        stream_connection(ctx, WORKLOADS, FLEET, CONTROL) as conn,
    ):
        if conn is not None:
            await KarmadaController(ctx, client, conn).run()


SERVICE = Service(NAME, KarmadaSettings, main)
