"""`berth serve admission`: write MultiKueueConfigs from Placements, and admit Workloads.

::

    berth serve admission                                     in a pod of the hub
    berth serve admission --kubeconfig F --context C

An AdmissionCheck with ``controllerName: berthmaster.io/placement`` names a Placement of Open
Cluster Management. The Placement's clusters become a MultiKueueConfig of the check's name, for use
by a MultiKueue check. Rights: deploy/chart/templates/hub-rights.yaml. Of several replicas, one
holds the lease and acts, and the others watch the same objects. While the bus is unreachable, every
replica acts, but removes nothing: see ``whole`` in the core.
"""

import asyncio
from functools import partial
from typing import Any, Final

from berthmaster.hub.admission.core.admission import Admission
from berthmaster.hub.admission.core.instructions import Write, WriteState, name_of
from berthmaster.hub.admission.metrics import AdmissionMetrics
from berthmaster.hub.admission.settings import AdmissionSettings
from berthmaster.hub.admission.watch import ABSENT_S, SURE_S, HubWatch, watched
from berthmaster.hub.admission.writer import AdmissionWriter
from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.controller.fleet_facts import FleetFacts
from berthmaster.lib.kube.controller.kube_events import instance_of
from berthmaster.lib.kube.controller.loop import Controller
from berthmaster.lib.kube.controller.shell_contract import Answer
from berthmaster.lib.kube.controller.watch import Watched
from berthmaster.lib.kube.resources import PLACEMENT_DECISIONS, PLACEMENTS
from berthmaster.lib.kube.service_client import service_client
from berthmaster.lib.messages.fleet import CopyReport
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.fact_stamps import Seen
from berthmaster.lib.nats.facts import FactMirror
from berthmaster.lib.nats.stream_connection import stream_connection
from berthmaster.lib.nats.stream_lease import StreamLease
from berthmaster.lib.nats.streams import FLEET
from berthmaster.lib.runtime.service import Context, Service

NAME: Final = "admission"
BUS_SILENT_S: Final = 3.0  # seconds without a heartbeat after which the bus counts as unreachable
SETTLE_S: Final = 3.0  # seconds without a passing Workload before a drained cluster is removed
# seconds to batch changes, because a pass over all checks is costly and Workloads change by the
# hundred
GATHER_S: Final = 0.02


class AdmissionController(Controller[Write]):
    watch: HubWatch

    def __init__(self, ctx: Context[AdmissionSettings], client: Client) -> None:
        settings = ctx.settings
        where = settings.placement_namespace or settings.kueue_namespace
        self._admission = Admission(where, settle_s=SETTLE_S)
        writer = AdmissionWriter(client, settings.kueue_namespace)
        super().__init__(ctx, client, self._admission, writer, name=NAME, gather_s=GATHER_S)
        self.watches(watched(where), absent_s=ABSENT_S, sure_s=SURE_S, kind=HubWatch)
        self._figures = AdmissionMetrics(ctx.metrics)
        self._fleet = FleetFacts(
            ctx,
            silent_s=BUS_SILENT_S,
            on_fact=self._on_fact,
            on_gone=self._on_gone,
            on_change=self.wake,
            on_fault=self.metrics.fault,
        )

    async def run(self, conn: Connection) -> None:
        """Run with the bus until the service stops."""
        copies = [subjects.fleet_facts("copy.*.*")]
        self._fleet.join(conn, partial(FactMirror, conn, NAME, copies))
        self.lead_by(StreamLease(conn, NAME, instance_of(NAME), on_gained=lambda _: self.wake()))
        await self.finish()

    # Inputs

    def on_object(self, one: Watched, thing: Any, gone: bool) -> None:
        self._admission.on_object(thing, gone=gone)

    def _on_fact(self, seen: Seen) -> None:
        fact = seen.fact
        if isinstance(fact, CopyReport):
            there = not fact.gone and not fact.finished
            self._admission.on_copy(fact.cluster, (fact.namespace, fact.workload), there=there)

    def _on_gone(self, subject: str) -> None:
        copy = subjects.parse_copy(subject)
        if copy is not None:
            cluster, *at = copy
            self._admission.on_copy(cluster, (at[0], at[1]), there=False)

    # Actions

    def now(self) -> float:
        """Return monotonic time, for settle periods and pauses."""
        return asyncio.get_running_loop().time()

    def may_act(self) -> bool:
        """Return whether to act: the leader always, every replica while the bus is unreachable."""
        if not self.watch.complete:
            return False
        return not self._bus_is_there or (self.lease is not None and self.lease.held)

    @property
    def _bus_is_there(self) -> bool:
        conn = self._fleet.conn
        return not self._fleet.silent and (conn is None or conn.connected)

    def before_act(self) -> None:
        """Update the core: missing kinds, and whether enough is known to remove anything."""
        core, watch = self._admission, self.watch
        core.on_absent(watch.absent)
        core.on_unreadable(
            watch.unreadable(PLACEMENTS.plural), watch.unreadable(PLACEMENT_DECISIONS.plural)
        )
        whole = self._bus_is_there and self._fleet.caught_up and not watch.trouble
        core.on_whole(whole, at_s=self.ctx.now())

    def about(self, write: Write) -> str:
        return name_of(write)

    def wrote(self, write: Write, answer: Answer) -> None:
        super().wrote(write, answer)
        if isinstance(write, WriteState) and write.passes and answer.found is not None:
            self._figures.passed.inc()

    def show(self) -> None:
        self._fleet.show()
        self._figures.show(self._admission)


async def main(ctx: Context[AdmissionSettings]) -> None:
    """Watch the hub at once, so that a missing bus delays no Workload. Then join the bus."""
    async with service_client(ctx, NAME) as client:
        controller = AdmissionController(ctx, client)
        controller.start()
        async with stream_connection(ctx, FLEET) as conn:
            if conn is not None:
                await controller.run(conn)


SERVICE = Service(NAME, AdmissionSettings, main)
