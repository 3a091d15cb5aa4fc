"""Publishes the facts and the telemetry of one emulated cluster.

Facts use the common inventory code (lib/nats/reporting.py). Telemetry is spread over its interval,
without acknowledgement.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from berthmaster.lab.emulator.figures import EmulatedFigures
from berthmaster.lab.emulator.host import Host
from berthmaster.lab.emulator.inventory import Reports, profile
from berthmaster.lab.emulator.telemetry import NodeModel
from berthmaster.lib.door_client.client import DoorClient
from berthmaster.lib.door_client.door_facts import DoorFacts
from berthmaster.lib.messages.families import encode
from berthmaster.lib.messages.fleet import ClusterAlive, FleetFact, NodeGone, NodeReport, Stamp
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.errors import BusError
from berthmaster.lib.nats.reporting import ALIVE_INTERVAL_S, FactReporter, Told
from berthmaster.lib.runtime.periodic import beats

TELEMETRY_SLOTS: Final = 20  # number of batches per interval


class Facts:
    """The facts of one emulated cluster's inventory."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._world = host.cluster.world
        self._cluster = self._world.spec.name
        self._reports = Reports(self._world)
        self._profile = subjects.profile(self._cluster)
        self._subjects = {name: subjects.node(self._cluster, name) for name in self._world.nodes}
        self._nodes = {subject: name for name, subject in self._subjects.items()}
        self._gone: dict[str, str] = {}  # subject -> node of an earlier process run

    def changes(self) -> Mapping[str, bool]:
        """Return the changed nodes; True: by more than managed pods."""
        dirty = self._host.cluster.take_dirty()
        return {self._subjects[node]: urgent for node, urgent in dirty.items()}

    def everything(self) -> Iterable[str]:
        """Return all subjects, the profile first, because the nodes belong to it."""
        return (self._profile, *self._gone, *self._nodes)

    def earlier(self, facts: Sequence[FleetFact]) -> None:
        """Note the nodes that no longer exist."""
        self._gone = {
            subjects.node(self._cluster, fact.node): fact.node
            for fact in facts
            if isinstance(fact, NodeReport) and fact.node not in self._world.nodes
        }

    def fact(self, subject: str, stamp: Stamp, now_s: float) -> Told | None:
        """Return the profile, a node's report, or a node's tombstone."""
        if subject == self._profile:
            return profile(self._world.spec, stamp, now_s), None
        if (name := self._nodes.get(subject)) is not None:
            return self._reports.report(name, stamp, now_s), None
        if (gone := self._gone.get(subject)) is not None:
            left = NodeGone(cluster=self._cluster, node=gone, stamp=stamp, observed_at_s=now_s)
            return left, None
        return None

    def uuids(self, node: str) -> tuple[str, ...]:
        return self._reports.uuids(node)


class Reporter:
    """The inventory and the telemetry agents of one cluster."""

    def __init__(
        self,
        door: DoorClient,
        host: Host,
        *,
        report_interval_s: float,
        report_rate_per_s: float,
        seed: int,
    ) -> None:
        self.reports_sent = 0
        self._door = door
        self._world = host.cluster.world
        self._cluster = self._world.spec.name
        self._facts = Facts(host)
        self._reporter = FactReporter(
            door.conn,
            self._facts,
            DoorFacts(door),
            interval_s=report_interval_s,
            rate_per_s=report_rate_per_s,
            on_told=self._count,
        )
        self._seed = seed
        host.on_dirty = self._reporter.wake

    def _count(self, fact: FleetFact, _waited_s: float | None) -> None:
        self.reports_sent += isinstance(fact, NodeReport)

    async def run(self, stopping: asyncio.Event) -> None:
        """Publish facts until ``stopping`` is set."""
        await self._reporter.run(stopping)

    async def keep_alive(self, stopping: asyncio.Event) -> None:
        """Publish the heartbeat, once a second."""
        await self._reporter.keep_alive(subjects.alive(self._cluster), self._alive, stopping)

    def _alive(self, stamp: Stamp, now_s: float) -> ClusterAlive:
        return ClusterAlive(
            cluster=self._cluster, stamp=stamp, observed_at_s=now_s, interval_s=ALIVE_INTERVAL_S
        )

    async def measure(self, interval_s: float, stopping: asyncio.Event) -> None:
        """Publish telemetry, one message per node and interval, and each job's GPU usage."""
        models = [
            (node, NodeModel(self._cluster, node, self._facts.uuids(name), self._seed))
            for name, node in self._world.nodes.items()
            if node.spec.gpus
        ]
        epoch = int(self._door.now() * 1000)
        jobs = EmulatedFigures(self._cluster, epoch)
        turn = 0
        async for _ in beats(interval_s / TELEMETRY_SLOTS, stopping):
            turn += 1
            if not self._door.conn.connected:
                continue  # skip a sample that no service can receive
            slot, now_s = turn % TELEMETRY_SLOTS, self._door.now()
            try:
                for node, model in models[slot::TELEMETRY_SLOTS]:
                    message = model.telemetry(
                        epoch=epoch,
                        counter=1 + turn // TELEMETRY_SLOTS,
                        now_s=now_s,
                        interval_s=interval_s,
                    )
                    await self._door.observe(encode(message))
                    jobs.on_node(node, message, now_s)
                if slot == 0:
                    for figures in jobs.take(now_s):
                        await self._door.figures(encode(figures))
            except BusError:
                pass  # the next sample replaces it
