"""Telling facts, on a real server: what is told when, again, anew, and not at all."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest

from berthmaster.lib.messages.fleet import (
    Amounts,
    ClusterAlive,
    FleetFact,
    NodeGone,
    NodeReport,
    Stamp,
)
from berthmaster.lib.nats import reporting, subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.fact_stamps import Seen
from berthmaster.lib.nats.facts import FactMirror, StreamFacts
from berthmaster.lib.nats.reporting import FactReporter, Told
from berthmaster.lib.nats.subjects import ALL_FLEET
from berthmaster.lib.supervisor.embedded import Server
from tests.bus.tools import connected, story, task
from tests.support.patience import until


class Nodes:
    """A source that knows nodes by name and CPU."""

    def __init__(self, **cpu_milli: int) -> None:
        self.cpu_milli = dict(cpu_milli)
        self.dirty: dict[str, bool] = {}
        self.left: list[FleetFact] = []
        self.large = ""  # this node's report is too large for any message

    def set(self, node: str, cpu_milli: int | None) -> None:
        if cpu_milli is None:
            del self.cpu_milli[node]
        else:
            self.cpu_milli[node] = cpu_milli
        self.dirty[subjects.node("east", node)] = True

    def changes(self) -> Mapping[str, bool]:
        changed, self.dirty = self.dirty, {}
        return changed

    def everything(self) -> Iterable[str]:
        return [subjects.node("east", node) for node in self.cpu_milli]

    def earlier(self, facts: Sequence[FleetFact]) -> None:
        self.left = list(facts)
        for fact in facts:
            if isinstance(fact, NodeReport) and fact.node not in self.cpu_milli:
                self.dirty[subjects.node("east", fact.node)] = True

    def fact(self, subject: str, stamp: Stamp, now_s: float) -> Told | None:
        node = subjects.parse_fact(subject)[2][0]
        cpu_milli = self.cpu_milli.get(node)
        if cpu_milli is None:
            return NodeGone(cluster="east", node=node, stamp=stamp, observed_at_s=now_s), 60.0
        labels = {"much": "x" * 2_000_000} if node == self.large else {}
        return NodeReport(
            cluster="east",
            node=node,
            stamp=stamp,
            observed_at_s=now_s,
            labels=labels,
            allocatable=Amounts(cpu_milli=cpu_milli),
        ), None


class Heard:
    def __init__(self) -> None:
        self.facts: list[FleetFact] = []
        self.at_s: list[float] = []

    def take(self, seen: Seen) -> None:
        self.facts.append(seen.fact)
        self.at_s.append(asyncio.get_running_loop().time())

    def told(self) -> list[tuple[str, int | None]]:
        """(node, its CPU or None) in the order in which it was told."""
        return [
            (fact.node, fact.allocatable.cpu_milli if isinstance(fact, NodeReport) else None)
            for fact in self.facts
            if isinstance(fact, NodeReport | NodeGone)
        ]


@asynccontextmanager
async def hearing(server: Server) -> AsyncIterator[tuple[Connection, Heard]]:
    heard = Heard()
    async with connected(server.url, replicas=1) as conn:
        mirror = FactMirror(conn, "test", [ALL_FLEET], on_fact=heard.take)
        async with task(mirror.run()):
            yield conn, heard


def reporter(
    conn: Connection, source: Nodes, *, interval_s: float = 0.0, rate_per_s: float = 1000.0
) -> FactReporter:
    facts = StreamFacts(conn, subjects.fleet_of("east"))
    return FactReporter(conn, source, facts, interval_s=interval_s, rate_per_s=rate_per_s)


def alive(stamp: Stamp, now_s: float) -> ClusterAlive:
    return ClusterAlive(cluster="east", stamp=stamp, observed_at_s=now_s, interval_s=1.0)


@story
async def test_reporter_sends_all_then_changes_then_removals(server: Server) -> None:
    async with hearing(server) as (conn, heard):
        nodes = Nodes(a=1, b=2)
        first = reporter(conn, nodes)
        async with task(first.run(asyncio.Event())):
            # Facts of different nodes are on their way together, and either may be the first.
            await until(lambda: sorted(heard.told()) == [("a", 1), ("b", 2)])
            nodes.set("a", 5)
            nodes.set("b", None)
            first.wake()
            await until(lambda: sorted(heard.told()[2:]) == [("a", 5), ("b", None)])
        assert first.behind  # who tells nothing any more has something left to tell

        second = Nodes(b=7)
        async with task(reporter(conn, second).run(asyncio.Event())):
            await until(lambda: sorted(heard.told()[4:], key=str) == [("a", None), ("b", 7)])
        epochs = [fact.stamp.epoch for fact in heard.facts]
        assert epochs[:4] == [epochs[0]] * 4
        assert epochs[4:] == [epochs[4]] * 2
        assert epochs[4] > epochs[0]
        assert {type(fact) for fact in second.left} == {NodeReport, NodeGone}


@story
async def test_changes_within_interval_become_one_report(server: Server) -> None:
    async with hearing(server) as (conn, heard):
        nodes = Nodes(a=0)
        teller = reporter(conn, nodes, interval_s=0.3)
        async with task(teller.run(asyncio.Event())):
            await until(lambda: heard.told() == [("a", 0)])
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            for cpu_milli in range(1, 30):
                nodes.set("a", cpu_milli)
                teller.wake()
                await asyncio.sleep(0.01)
            await until(lambda: heard.told()[-1] == ("a", 29))
            assert 2 <= len(heard.told()) <= 3 + (loop.time() - began_s) / 0.3


@story
async def test_unstored_report_delays_sign_of_life(server: Server) -> None:
    async with hearing(server) as (conn, heard):
        nodes = Nodes(a=0)
        teller = reporter(conn, nodes)
        where = subjects.alive("east")
        stopping = asyncio.Event()
        async with (
            task(teller.run(asyncio.Event())),
            task(teller.keep_alive(where, alive, stopping)),
        ):
            await until(lambda: any(isinstance(fact, ClusterAlive) for fact in heard.facts))
            server.stop()
            nodes.set("a", 1)
            teller.wake()
            await until(lambda: teller.behind)
            server.start()
            await until(lambda: heard.told()[-1] == ("a", 1))
            await until(lambda: not teller.behind)
            stopping.set()
        # Since the loss, the report came before the next sign of life.
        signs = [fact.stamp for fact in heard.facts if isinstance(fact, ClusterAlive)]
        change = next(
            fact.stamp
            for fact in heard.facts
            if isinstance(fact, NodeReport) and fact.allocatable.cpu_milli == 1
        )
        assert signs[0] < change


@story
async def test_the_first_sign_of_life_comes_when_all_is_told_and_not_a_beat_later(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting, "ALIVE_INTERVAL_S", 3600.0)
    async with hearing(server) as (conn, heard):
        teller = reporter(conn, Nodes(a=1))
        beating = teller.keep_alive(subjects.alive("east"), alive, asyncio.Event())
        async with task(beating):
            await asyncio.sleep(0.1)  # it is the first to run, and has nothing to say yet
            assert heard.facts == []
            async with task(teller.run(asyncio.Event())):
                await until(lambda: len(heard.facts) == 2)
        assert [type(fact) for fact in heard.facts] == [NodeReport, ClusterAlive]


@story
async def test_everything_is_told_again_now_and_then(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting, "REFRESH_S", 0.3)
    async with (
        hearing(server) as (conn, heard),
        task(reporter(conn, Nodes(a=1)).run(asyncio.Event())),
    ):
        await until(lambda: heard.told() == [("a", 1)] * 3)


@story
async def test_a_fact_too_large_for_the_bus_silences_no_other(server: Server) -> None:
    async with hearing(server) as (conn, heard):
        nodes = Nodes(a=1, b=2)
        nodes.large = "a"
        teller = reporter(conn, nodes)
        async with task(teller.run(asyncio.Event())):
            await until(lambda: heard.told() == [("b", 2)])
            await until(lambda: not teller.behind)
            nodes.large = ""
            nodes.set("a", 3)
            teller.wake()
            await until(lambda: heard.told() == [("b", 2), ("a", 3)])


@story
async def test_who_may_not_tell_tells_nothing_and_keeps_no_list(server: Server) -> None:
    async with hearing(server) as (conn, heard):
        nodes = Nodes(a=1)
        may = False
        teller = FactReporter(
            conn,
            nodes,
            StreamFacts(conn, subjects.fleet_of("east")),
            interval_s=0,
            rate_per_s=1000,
            may_tell=lambda: may,
        )
        nodes.set("a", 2)
        teller.wake()  # before any life
        assert nodes.dirty == {}
        async with task(teller.run(asyncio.Event())):
            await until(lambda: not teller.behind)
            may = True
            nodes.set("a", 3)
            teller.wake()
            await until(lambda: heard.told() == [("a", 3)])
