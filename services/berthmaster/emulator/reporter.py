"""Publishes the facts and the telemetry of one emulated cluster.

Facts are stored one at a time per node, each acknowledged: one that was not is due again. The sign
of life is sent only when nothing older is left to tell. Telemetry is spread over its interval and
not acknowledged.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from berthmaster.bus import subjects
from berthmaster.bus.connection import Connection
from berthmaster.bus.errors import BusError
from berthmaster.bus.facts import FactMirror, FactWriter, Seen
from berthmaster.emulator.host import Host
from berthmaster.emulator.inventory import Coalescer, Reports, profile
from berthmaster.emulator.telemetry import NodeModel
from berthmaster.messages.families import encode
from berthmaster.messages.fleet import REFRESH_S, ClusterAlive, NodeGone, NodeReport
from berthmaster.runtime.periodic import beats, stopped_within

AT_ONCE: Final = 64  # facts on their way
ALIVE_INTERVAL_S: Final = 1.0
LOOK_S: Final = 0.02  # how often pending changes are looked at while there are some
RETRY_S: Final = 0.5
LIST_LIMIT_S: Final = 10.0
TELEMETRY_SLOTS: Final = 20  # an interval's messages are sent in so many portions


class Reporter:
    """The inventory and the telemetry agents of one cluster."""

    def __init__(
        self,
        conn: Connection,
        host: Host,
        *,
        report_interval_s: float,
        report_rate_per_s: float,
        seed: int,
    ) -> None:
        self.reports_sent = 0
        self._behind = True  # there is something older to tell than now
        self._conn = conn
        self._host = host
        self._world = host.cluster.world
        self._cluster = self._world.spec.name
        self._writer = FactWriter(conn)
        self._reports = Reports(self._world)
        self._coalescer = Coalescer(report_interval_s, report_rate_per_s)
        self._seed = seed
        self._changed = asyncio.Event()
        self._refresh_at_s = 0.0  # event loop time
        host.on_dirty = self._changed.set

    # Facts

    async def run(self, stopping: asyncio.Event) -> None:
        """Until ``stopping`` is set."""
        await self._begin(stopping)
        while not stopping.is_set():
            if not self._coalescer.pending:
                await self._wait_for_change()
            self._changed.clear()
            await self._refresh()
            self._coalescer.mark(self._host.cluster.take_dirty())
            self._behind = not await self._send(self._coalescer.due(self._conn.now()))
            if not self._behind:
                await stopped_within(LOOK_S if self._coalescer.pending else 0.0, stopping)
            else:
                await stopped_within(RETRY_S, stopping)

    async def _refresh(self) -> None:
        """Tell everything again now and then: the log of facts keeps some days only, and whoever
        repeats a decision from it needs every fact that was true then."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._refresh_at_s:
            return
        first = not self._refresh_at_s
        self._refresh_at_s = now_s + REFRESH_S
        if first:
            return  # all has just been told
        self._coalescer.mark(dict.fromkeys(self._world.nodes, False))
        fact = profile(self._world.spec, self._writer.stamp(), self._conn.now())
        try:
            await self._writer.put(subjects.profile(self._cluster), fact)
        except BusError as error:
            self._conn.log.warning("profile not told again", cluster=self._cluster, why=str(error))

    async def _wait_for_change(self) -> None:
        try:
            async with asyncio.timeout(ALIVE_INTERVAL_S):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _begin(self, stopping: asyncio.Event) -> None:
        """Profile first, then the nodes that are no more, then every node. Tries until the bus
        takes it."""
        while not stopping.is_set():
            try:
                await self._writer.begin(subjects.fleet_of(self._cluster))
                now_s = self._conn.now()
                fact = profile(self._world.spec, self._writer.stamp(), now_s)
                await self._writer.put(subjects.profile(self._cluster), fact)
                for node in await self._gone():
                    left = NodeGone(
                        cluster=self._cluster,
                        node=node,
                        stamp=self._writer.stamp(),
                        observed_at_s=now_s,
                    )
                    await self._writer.put(subjects.node(self._cluster, node), left)
                break
            except (BusError, TimeoutError) as error:
                self._conn.log.warning("cannot report", cluster=self._cluster, why=str(error))
                await stopped_within(RETRY_S, stopping)
        self._world.dirty = dict.fromkeys(self._world.nodes, True)

    async def _gone(self) -> list[str]:
        """Nodes that earlier lives reported and that the cluster does not have any more. Raises
        TimeoutError."""
        reported: set[str] = set()
        listed = asyncio.Event()

        def take(seen: Seen) -> None:
            if isinstance(seen.fact, NodeReport):
                reported.add(seen.fact.node)

        mirror = FactMirror(
            self._conn, self._conn.name, [subjects.fleet_of(self._cluster)], on_fact=take
        )
        listing = asyncio.create_task(mirror.run(caught_up=listed.set), name="earlier nodes")
        try:
            async with asyncio.timeout(LIST_LIMIT_S):
                await listed.wait()
        finally:
            listing.cancel()
            await asyncio.wait({listing})
        return sorted(reported - set(self._world.nodes))

    async def _send(self, nodes: Sequence[str]) -> bool:
        """Report these nodes; whether all were taken. Those that were not are due again."""
        good = True
        for start in range(0, len(nodes), AT_ONCE):
            part = nodes[start : start + AT_ONCE]
            results = await asyncio.gather(*map(self._put, part), return_exceptions=True)
            for node, result in zip(part, results, strict=True):
                if isinstance(result, BusError):
                    good = False
                    self._coalescer.mark({node: True})
                elif isinstance(result, BaseException):
                    raise result
        return good

    async def _put(self, node: str) -> None:
        report = self._reports.report(node, self._writer.stamp(), self._conn.now())
        await self._writer.put(subjects.node(self._cluster, node), report)
        self.reports_sent += 1

    async def keep_alive(self, stopping: asyncio.Event) -> None:
        """The sign of life, once a second, unless there is something older to tell."""
        async for _ in beats(ALIVE_INTERVAL_S, stopping):
            if self._behind or not self._conn.connected:
                continue
            fact = ClusterAlive(
                cluster=self._cluster,
                stamp=self._writer.stamp(),
                observed_at_s=self._conn.now(),
                interval_s=ALIVE_INTERVAL_S,
            )
            try:
                await self._writer.put(subjects.alive(self._cluster), fact)
            except BusError as error:
                self._conn.log.warning("no sign of life", cluster=self._cluster, why=str(error))

    # Telemetry

    async def measure(self, interval_s: float, stopping: asyncio.Event) -> None:
        """One message a node and interval."""
        models = [
            (
                subjects.telemetry(self._cluster, name),
                NodeModel(self._cluster, node, self._reports.uuids(name), self._seed),
            )
            for name, node in self._world.nodes.items()
            if node.spec.gpus
        ]
        epoch = int(self._conn.now() * 1000)
        turn = 0
        async for _ in beats(interval_s / TELEMETRY_SLOTS, stopping):
            turn += 1
            if not self._conn.connected:
                continue  # an observation that nobody hears is none
            slot, now_s = turn % TELEMETRY_SLOTS, self._conn.now()
            try:
                for subject, model in models[slot::TELEMETRY_SLOTS]:
                    message = model.telemetry(
                        epoch=epoch,
                        counter=1 + turn // TELEMETRY_SLOTS,
                        now_s=now_s,
                        interval_s=interval_s,
                    )
                    await self._conn.publish(subject, encode(message))
            except BusError:
                pass  # the next one replaces it
