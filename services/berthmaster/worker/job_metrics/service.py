"""`berth serve figures`: measure the GPU usage of each job in a worker cluster.

::

    berth serve figures --cluster east                       in a pod of the cluster
    berth serve figures --cluster east --kubeconfig F --context C --namespaces team

The service receives the telemetry of the cluster's nodes on its way to the door. It watches pods,
finds their topmost owners, and sends the door one message per job every half minute. In the named
namespaces it also writes annotations on Jobs, and removes them when a job ends. Rights:
deploy/chart/templates/worker-rights.yaml. Run one. A second replica is safe, because the messages
of the later one count and both write the same annotations, but doubles messages and writes.
"""

import asyncio
from typing import Any, Final

from berthmaster.lib.door_client.client import DoorClient
from berthmaster.lib.door_client.service_door import service_door
from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.controller.loop import Controller
from berthmaster.lib.kube.controller.watch import Watched
from berthmaster.lib.kube.resources import JOB_SETS, JOBS, PODS
from berthmaster.lib.kube.service_client import service_client
from berthmaster.lib.messages.families import TELEMETRY, UNREADABLE, encode
from berthmaster.lib.messages.telemetry import JobFigures, job_key
from berthmaster.lib.nats.errors import BusError
from berthmaster.lib.nats.subjects import SubjectError, job_figures
from berthmaster.lib.runtime.service import Context, Service
from berthmaster.worker.job_metrics.core.figures import Figures
from berthmaster.worker.job_metrics.core.instructions import Write, name_of
from berthmaster.worker.job_metrics.core.meter import Meter
from berthmaster.worker.job_metrics.core.notes import MARK
from berthmaster.worker.job_metrics.core.objects import HOLDING_PODS, JobObject, PodObject
from berthmaster.worker.job_metrics.metrics import FiguresMetrics
from berthmaster.worker.job_metrics.settings import FiguresSettings
from berthmaster.worker.job_metrics.writer import FiguresWriter

NAME: Final = "figures"
ABSENT_S: Final = 60.0
IDLE_PERCENT: Final = 5.0  # a GPU that is busy for less of the time counts as idle
ANNOTATE_S: Final = 300.0  # between two writes of a Job's annotations, at least
SHOWN_JOBS: Final = 100  # jobs with their own labels, those with the most GPUs
POD_PAGE: Final = 250  # as the inventory's: a page of pods as JSON is several MB
MAX_OUTBOX: Final = 20_000
WRONG_A_ROUND: Final = 20  # logged contradictions; the metric counts the rest

WATCHED: Final = (
    Watched(PODS, PodObject, fields=HOLDING_PODS, page=POD_PAGE),
    Watched(JOBS, JobObject, optional=True, labels=MARK),
    Watched(JOB_SETS, JobObject, optional=True, labels=MARK),
)


class FiguresController(Controller[Write]):
    def __init__(self, ctx: Context[FiguresSettings], client: Client, door: DoorClient) -> None:
        settings = ctx.settings
        meter = Meter(
            settings.cluster,
            # By the server's clock: this machine's may be set back between two lives.
            epoch=int(door.now() * 1000),
            idle_percent=IDLE_PERCENT,
            idle_limit_s=settings.idle_limit_s,
        )
        self._figures = Figures(meter, settings.namespaces, ANNOTATE_S)
        super().__init__(ctx, client, self._figures, FiguresWriter(client), name=NAME)
        self.watches(WATCHED, absent_s=ABSENT_S)
        self._door = door
        self._outbox: asyncio.Queue[JobFigures] = asyncio.Queue(MAX_OUTBOX)
        self._shown = FiguresMetrics(ctx.metrics, SHOWN_JOBS)

    async def run(self) -> None:
        """Until the service is asked to stop."""
        self.start()
        await self._door.hear_nodes(self._on_node)
        self.ctx.spawn(self._send(), name="sender")
        await self.finish()

    # Input

    def on_object(self, one: Watched, thing: Any, gone: bool) -> None:
        if one.resource == PODS:
            self._figures.on_pod(thing, gone=gone)
        else:
            self._figures.on_job(one.resource.kind, thing, gone=gone)

    def _on_node(self, _: str, data: bytes) -> None:
        try:
            told = TELEMETRY.decode(data)
        except UNREADABLE:
            self._shown.unread.labels("undecodable").inc()
            return
        self._figures.on_node(told, self.now())

    # Acting

    def may_act(self) -> bool:
        """As soon as all pods are known."""
        return self.watch.complete

    async def act(self) -> None:
        await super().act()
        for figures in self._figures.take_told():
            try:
                self._outbox.put_nowait(figures)
            except asyncio.QueueFull:
                self._shown.dropped.labels("outbox_full").inc()

    async def _send(self) -> None:
        while True:
            figures = await self._outbox.get()
            if why := await self._send_one(figures):
                self._shown.dropped.labels(why).inc()

    async def _send_one(self, figures: JobFigures) -> str:
        """Send a message now; return why not, or ""."""
        if not self._door.conn.connected:  # the client would keep it until the server returns
            return "not_connected"
        try:
            job_figures(figures.tenant or None, figures.cluster, job_key(figures))
            await self._door.figures(encode(figures))
        except SubjectError:
            return "bad_name"
        except BusError:
            return "not_sent"
        self._shown.sent.inc()
        return ""

    def about(self, write: Write) -> str:
        return name_of(write)

    def show(self) -> None:
        health, door = self.ctx.health, self._door
        health.ready("bus", door.conn.connected, "no connection to NATS")
        health.ready("door", not door.silent, door.silent)
        self._shown.show(self._figures, self.now())
        for wrong in self._figures.meter.take_new_disagreements()[:WRONG_A_ROUND]:
            self.ctx.log.warning("sources_disagree", kind=wrong.kind.value, what=wrong.text)


async def main(ctx: Context[FiguresSettings]) -> None:
    """Connect to both sides, then tell."""
    async with (
        service_client(ctx, NAME) as client,
        service_door(ctx, ctx.settings.cluster) as door,
    ):
        if door is not None:
            await FiguresController(ctx, client, door).run()


SERVICE = Service(NAME, FiguresSettings, main)
