"""`berth serve telemetry`: sample the GPUs of a node, and send the samples to the door.

The agent sends one NodeTelemetry per node and interval, unacknowledged. While NATS is away,
messages are dropped and counted, because a late observation is worse than none.

::

    berth serve telemetry --cluster east                           NVIDIA driver, or dcgm-exporter
    berth serve telemetry --cluster east --source dcgm --dcgm-url http://10.0.0.7:9400/metrics
    berth serve telemetry --cluster lab --node n1 --source emulated

Without such a source, the agent logs one line and ends with exit code 3. A thread reads the source
(source_thread.py). Of two tasks, one ticks and one sends.
"""

import asyncio
from typing import Final, TypeVar, assert_never

from berthmaster.lib.door_client.client import DoorClient
from berthmaster.lib.messages.families import encode
from berthmaster.lib.messages.telemetry import NodeTelemetry
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.errors import BusError, NotConnected, TooLarge
from berthmaster.lib.nats.service_connection import connected
from berthmaster.lib.nats.subjects import SubjectError, token
from berthmaster.lib.runtime.errors import CannotStart
from berthmaster.lib.runtime.periodic import beats, unless_stopped
from berthmaster.lib.runtime.service import Context, Service
from berthmaster.worker.telemetry.core.agent import (
    Agent,
    Count,
    Event,
    Instruction,
    Publish,
    Ready,
    StartRead,
    Tell,
    Ticked,
    What,
)
from berthmaster.worker.telemetry.core.source import SourceAbsent
from berthmaster.worker.telemetry.opening import Opener, open_source
from berthmaster.worker.telemetry.settings import TelemetrySettings
from berthmaster.worker.telemetry.source_thread import SourceThread

T = TypeVar("T")

# A longer read counts as hung, and its result is dropped.
READ_LIMIT_S: Final = 5.0
# Opening a driver without persistence wakes every GPU, a second or two each.
OPEN_LIMIT_S: Final = 60.0
# One tick of the largest exporter; the rest is dropped.
MAX_OUTBOX: Final = 1024

_HELP: Final = {
    What.SKIPPED: "Ticks at which the last read was still under way, or that came too late",
    What.HUNG: "Reads that did not come back within the limit",
    What.LATE: "Reads that came back after the limit and were thrown away",
    What.FAILED: "Reads that the source could not do",
    What.UNREAD: "Lines of exporters' pages that could not be read and were skipped",
    What.REFUSED: "Values that cannot be right and count as not measured",
}


class Shell:
    """Performs the core's instructions, and counts."""

    def __init__(self, ctx: Context[TelemetrySettings], worker: SourceThread, agent: Agent) -> None:
        self._ctx = ctx
        self._worker = worker
        self._agent = agent
        self._clock = asyncio.get_running_loop().time
        self._outbox: asyncio.Queue[NodeTelemetry] = asyncio.Queue(MAX_OUTBOX)
        self._gpus: dict[str, dict[str, int]] = {}
        metrics = ctx.metrics
        self._sent = metrics.counter("messages", "Published messages")
        self._sent_bytes = metrics.counter("messages_bytes", "Bytes of published messages")
        self._dropped = metrics.counter("messages_dropped", "Messages not sent, by reason", ["why"])
        self._read_s = metrics.histogram("read_seconds", "Seconds for one read of the source")
        self._health = metrics.gauge("gpus", "GPUs by node and health", ["node", "health"])
        self._counts = {what: metrics.counter(what.value, _HELP[what]) for what in What}

    async def run(self, door: DoorClient) -> None:
        """Tick until asked to stop."""
        self._worker.listen(self._on_read)
        sender = self._ctx.spawn(self._send(door), name="sender")
        try:
            async for missed in beats(self._ctx.settings.interval_s, self._ctx.stopping):
                self._ctx.health.ready("bus", door.conn.connected, "no connection to NATS")
                self._handle(Ticked(missed))
        finally:
            sender.cancel()

    def _on_read(self, event: Event, took_s: float) -> None:
        self._read_s.observe(took_s)
        self._handle(event)

    def _handle(self, event: Event) -> None:
        for instruction in self._agent.handle(event, self._clock()):
            self._perform(instruction)

    def _perform(self, instruction: Instruction) -> None:
        match instruction:
            case StartRead():
                self._worker.start_read()
            case Publish(message):
                self._show_health(message)
                try:
                    self._outbox.put_nowait(message)
                except asyncio.QueueFull:
                    self._dropped.labels("outbox_full").inc()
            case Ready(ok, why):
                self._ctx.health.ready("source", ok, why)
            case Tell(level, event, fields):
                tell = self._ctx.log.info if level == "info" else self._ctx.log.warning
                tell(event, **fields)
            case Count(what, times):
                self._counts[what].inc(times)
            case _:
                assert_never(instruction)

    def _show_health(self, message: NodeTelemetry) -> None:
        now = {"ok": 0, "degraded": 0, "lost": 0}
        for gpu in message.gpus:
            now[gpu.health] += 1
        if self._gpus.get(message.node) != now:
            self._gpus[message.node] = now
            for health, count in now.items():
                self._health.labels(message.node, health).set(count)

    async def _send(self, door: DoorClient) -> None:
        while True:
            message = await self._outbox.get()
            why = await self._send_one(door, message)
            if why:
                self._dropped.labels(why).inc()

    async def _send_one(self, door: DoorClient, message: NodeTelemetry) -> str:
        """Send a message now; return why not, or ""."""
        if not door.conn.connected:  # the client would keep it until the server returns
            return "not_connected"
        data = encode(message)
        try:
            token(message.node)
            await door.observe(data)
        except SubjectError:
            return "bad_name"
        except NotConnected:
            return "not_connected"
        except TooLarge as error:
            self._ctx.log.warning("message_too_large", node=message.node, why=str(error))
            return "too_large"
        self._sent.inc()
        self._sent_bytes.inc(len(data))
        return ""


async def serve(ctx: Context[TelemetrySettings], opener: Opener) -> None:
    """Open the source, connect, run."""
    settings = ctx.settings
    ctx.health.ready("source", False, "not opened yet")
    worker = SourceThread(ctx.log, ctx.now)
    try:
        opening = worker.open(lambda: opener(settings, ctx.log), OPEN_LIMIT_S)
        source = await unless_stopped(opening, ctx.stopping)
        if source is None:
            return
        ctx.log.info("source_opened", source=source.kind, node=settings.node_name)
        clock = subjects.agent(settings.cluster, "hello")
        async with connected(ctx, clock_subject=clock) as conn:
            if conn is None:
                return
            agent = Agent(
                cluster=settings.cluster,
                node=settings.node_name,
                source=source.kind,
                # By the server's clock: a node's own may be set back between two lives.
                epoch=int(conn.now() * 1000),
                interval_s=settings.interval_s,
                read_limit_s=READ_LIMIT_S,
            )
            await Shell(ctx, worker, agent).run(DoorClient(conn, settings.cluster))
    except SourceAbsent as absent:
        raise CannotStart(str(absent)) from absent
    except TimeoutError as error:
        raise CannotStart(
            f"the source {settings.source!r} did not open within {OPEN_LIMIT_S:g} s"
        ) from error
    except BusError as error:
        raise CannotStart(str(error)) from error
    finally:
        await worker.close()


def service(opener: Opener = open_source) -> Service[TelemetrySettings]:
    """The service over another way to open sources; tests put a scripted driver there."""

    async def main(ctx: Context[TelemetrySettings]) -> None:
        await serve(ctx, opener)

    return Service("telemetry", TelemetrySettings, main)


SERVICE = service()
