import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from berthmaster.lib.messages.families import DEAD_LETTERS, encode
from berthmaster.lib.messages.fleet import ClusterAlive, CopyReport, FleetFact, Stamp
from berthmaster.lib.nats import facts, follower, subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.fact_stamps import Seen
from berthmaster.lib.nats.facts import FactMirror, FactWriter, Overtaken
from berthmaster.lib.nats.stream_reads import last_message
from berthmaster.lib.nats.streams import DEAD, FLEET, ensure_streams, stream_info
from berthmaster.lib.supervisor.embedded import Server
from tests.bus.proxy import proxied, the_next
from tests.bus.tools import Lines, alive, alive_subject, connected, patiently, story, task
from tests.support.patience import ANSWER_S, until

ALL = ["berth.fleet.>"]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tested is what follows missed heartbeats, not how long they are waited for."""
    monkeypatch.setattr(follower, "CHECK_S", 0.2)


class Mirrored:
    def __init__(
        self, conn: Connection, filters: Sequence[str] = ALL, relist_s: float = 600.0
    ) -> None:
        self.facts: dict[str, FleetFact] = {}
        self.told: list[Seen] = []
        self.gone: list[str] = []
        self.lists = 0
        self.mirror = FactMirror(
            conn, "tester", filters, on_fact=self.on_fact, on_gone=self.on_gone, relist_s=relist_s
        )

    def on_fact(self, seen: Seen) -> None:
        self.told.append(seen)
        self.facts[seen.subject] = seen.fact

    def on_gone(self, subject: str) -> None:
        self.gone.append(subject)
        del self.facts[subject]

    def listed(self) -> None:
        self.lists += 1

    async def run(self) -> None:
        await self.mirror.run(caught_up=self.listed)

    def counter(self, cluster: str) -> int | None:
        fact = self.facts.get(alive_subject(cluster))
        return fact.stamp.counter if fact is not None else None


async def put(conn: Connection, cluster: str, counter: int, *, epoch: int = 1) -> None:
    """As a writer would, with the stamp that the test wants."""
    data = encode(alive(cluster, counter, epoch=epoch))
    await patiently(lambda: conn.request(alive_subject(cluster), data, timeout_s=ANSWER_S))


@story
async def test_the_last_values_are_listed_and_then_followed(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        for counter in (1, 2, 3):
            for cluster in ("c1", "c2"):
                await put(conn, cluster, counter)
        one = Mirrored(conn)
        async with task(one.run()):
            await until(lambda: one.lists)
            assert [(seen.subject, seen.sequence) for seen in one.told] == [
                (alive_subject("c1"), 5),
                (alive_subject("c2"), 6),
            ]
            assert one.told[0].fact == alive("c1", 3)
            assert abs(one.told[0].stored_at_s - conn.now()) < 10
            assert (one.mirror.sequence, one.mirror.caught_up) == (6, True)
            await put(conn, "c2", 4)
            await put(conn, "c3", 1)
            await until(lambda: one.counter("c3") == 1)
            assert (one.counter("c2"), one.mirror.sequence) == (4, 8)
        assert len(one.told) == 4


@story
async def test_only_what_the_filters_name_is_mirrored(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        for cluster in ("c1", "c2", "c3"):
            await put(conn, cluster, 1)
        one = Mirrored(conn, [subjects.fleet_of("c1"), subjects.fleet_of("c3")])
        async with task(one.run()):
            await until(lambda: one.lists)
        assert sorted(one.facts) == [alive_subject("c1"), alive_subject("c3")]


@story
async def test_fact_with_older_stamp_is_dropped(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        one = Mirrored(conn)
        async with task(one.run()):
            await until(lambda: one.lists)
            for epoch, counter in ((5, 3), (5, 2), (4, 99), (5, 3), (6, 1), (5, 4)):
                await put(conn, "c1", counter, epoch=epoch)
            await put(conn, "end", 1)
            await until(lambda: one.counter("end"))
        stamps = [(seen.fact.stamp.epoch, seen.fact.stamp.counter) for seen in one.told[:-1]]
        assert stamps == [(5, 3), (5, 3), (6, 1)]
        assert one.mirror.dropped_old == 3


@story
async def test_undecodable_fact_becomes_one_dead_letter(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        await put(conn, "c1", 1)
        newer = b'{"type":"fleet.alive.v9","cluster":"c1"}'
        one = Mirrored(conn, relist_s=0.1)
        async with task(one.run()):
            await until(lambda: one.lists)
            await conn.request(alive_subject("c1"), newer, timeout_s=ANSWER_S)
            await until(lambda: one.mirror.undecodable)
            lists = one.lists
            await until(lambda: one.lists >= lists + 2)  # listed again, buried already
        assert (one.counter("c1"), one.mirror.undecodable, one.gone) == (1, 1, [])
        assert (await stream_info(conn, DEAD)).state.messages == 1
        kept = await last_message(conn, DEAD, subjects.dead("tester"))
        assert kept is not None
        letter = DEAD_LETTERS.decode(kept.data)
        assert (letter.subject, letter.body, letter.stream, letter.sequence) == (
            alive_subject("c1"),
            newer,
            FLEET,
            2,
        )
        assert "fleet.alive.v9" in letter.reason


@story
async def test_a_fact_that_is_gone_is_told_by_the_next_list(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        for cluster in ("c1", "c2", "c3"):
            await put(conn, cluster, 7)
        one = Mirrored(conn, relist_s=0.2)
        async with task(one.run()):
            await until(lambda: one.lists)
            await conn.api("STREAM.PURGE.FLEET", {"filter": alive_subject("c2")})
            await until(lambda: one.gone)
            assert one.gone == [alive_subject("c2")]
            assert sorted(one.facts) == [alive_subject("c1"), alive_subject("c3")]
            # A new life may begin lower than the one that is gone ended.
            await put(conn, "c2", 1)
            await until(lambda: one.counter("c2") == 1)
            lists = one.lists
            await until(lambda: one.lists >= lists + 2)
        assert one.gone == [alive_subject("c2")]
        assert len(one.told) == 4  # lists told nothing twice


@story
async def test_it_is_listed_anew_when_the_stream_was_replaced(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        for cluster in ("c1", "c2"):
            await put(conn, cluster, 1)
        one = Mirrored(conn)
        async with task(one.run()):
            await until(lambda: one.lists)
            for stream in ("FLEET_LOG", "FLEET"):  # without its log, numbers begin anew
                await conn.api(f"STREAM.DELETE.{stream}")
            await ensure_streams(conn)
            # c1 comes back under the very sequence that it had, with another value; c2 does not.
            await put(conn, "c1", 2)
            await until(lambda: one.counter("c1") == 2)
            await until(lambda: one.gone == [alive_subject("c2")])
            await put(conn, "c3", 1)
            await until(lambda: one.counter("c3") == 1)
            assert one.mirror.sequence == 2


@story
async def test_a_list_that_is_cut_short_forgets_nothing(server: Server) -> None:
    total = 2000
    async with (
        connected(server.url, "w", replicas=1) as writer,
        proxied(server.url) as proxy,
        connected(proxy.url) as conn,
    ):
        await asyncio.gather(*(put(writer, f"c{number}", 1) for number in range(total)))
        one = Mirrored(conn, relist_s=0.3)
        async with task(one.run()):
            await until(lambda: one.lists)
            assert len(one.facts) == total
            # From now on every list loses its last message, and then loses it no more.
            proxy.to_client = the_next(
                lambda message: (
                    b"Nats-Num-Pending: 0" in message.payload and b"Nats-Subject" in message.payload
                ),
                count=3,
            )
            await until(lambda: len(proxy.lost) == 3)
            lists = one.lists
            await until(lambda: one.lists > lists)
        assert (one.gone, len(one.facts), len(one.told)) == ([], total, total)


@story
async def test_it_stays_exact_over_kill_9_of_the_server(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn, connected(server.url, "w") as writer:
        one = Mirrored(conn)
        async with task(one.run()):
            for counter in range(1, 61):
                await put(writer, f"c{counter % 3}", counter)
                if counter % 20 == 0:
                    server.kill()
                    server.start()
            await until(lambda: one.counter("c0") == 60)
            assert {cluster: one.counter(cluster) for cluster in ("c0", "c1", "c2")} == {
                "c0": 60,
                "c1": 58,
                "c2": 59,
            }
        assert (one.gone, one.mirror.dropped_old) == ([], 0)


def fact_of(writer: FactWriter, cluster: str) -> ClusterAlive:
    return ClusterAlive(cluster=cluster, stamp=writer.stamp(), observed_at_s=0.0, interval_s=1.0)


@story
async def test_new_writer_life_gets_newer_epoch(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        future = int(conn.now() * 1000) + 86_400_000  # somebody's clock was a day ahead
        await put(conn, "c1", 5, epoch=future)
        one = Mirrored(conn)
        writer = FactWriter(conn)
        with pytest.raises(RuntimeError, match="before the writer's life began"):
            writer.stamp()
        async with task(one.run()):
            assert await writer.begin(subjects.fleet_of("c1")) == future + 1
            assert await writer.put(alive_subject("c1"), fact_of(writer, "c1")) == 2
            await until(lambda: one.counter("c1") == 1)
            await writer.put(alive_subject("c1"), fact_of(writer, "c1"))
            await until(lambda: one.counter("c1") == 2)
            second = FactWriter(conn)
            await second.begin(subjects.fleet_of("c1"))
            await second.put(alive_subject("c1"), fact_of(second, "c1"))
            with pytest.raises(Overtaken, match=alive_subject("c1")):  # it woke up late
                await writer.put(alive_subject("c1"), fact_of(writer, "c1"))
            third = FactWriter(conn)  # woke up late as well, and has told nothing before
            third.epoch = writer.epoch
            with pytest.raises(Overtaken):
                await third.put(alive_subject("c1"), fact_of(third, "c1"))
            await second.put(alive_subject("c1"), fact_of(second, "c1"))
            await until(lambda: one.counter("c1") == 2)
        assert one.facts[alive_subject("c1")].stamp == Stamp(epoch=second.epoch, counter=2)


@story
async def test_what_was_put_without_an_answer_is_no_reason_to_put_no_more(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        writer = FactWriter(conn)
        await writer.begin(subjects.fleet_of("c1"))
        await writer.put(alive_subject("c1"), fact_of(writer, "c1"))
        # It arrived, and nobody said so.
        await conn.store(alive_subject("c1"), encode(fact_of(writer, "c1")))
        assert await writer.put(alive_subject("c1"), fact_of(writer, "c1")) == 3
        assert await writer.put(alive_subject("c1"), fact_of(writer, "c1")) == 4
        await conn.api(f"STREAM.PURGE.{FLEET}", {"filter": alive_subject("c1")})
        assert await writer.put(alive_subject("c1"), fact_of(writer, "c1")) == 5


@story
async def test_an_epoch_is_the_servers_time_where_nothing_was_before(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        writer = FactWriter(conn)
        epoch = await writer.begin(subjects.fleet_of("c1"))
        assert abs(epoch / 1000 - conn.now()) < 5
        assert await writer.begin(subjects.fleet_of("c1")) > epoch
        await conn.request(alive_subject("c1"), b"not a fact", timeout_s=ANSWER_S)
        assert await writer.begin(subjects.fleet_of("c1")) > epoch
        assert msgspec.json.decode(encode(fact_of(writer, "c1")))["stamp"]["counter"] == 1


@story
async def test_a_fact_of_something_short_lived_is_forgotten_by_the_server(server: Server) -> None:
    subject = subjects.copy_report("c1", "team-a", "job-train")
    async with connected(server.url, replicas=1) as conn:
        writer = FactWriter(conn)
        await writer.begin(subjects.fleet_of("c1"))
        copy = CopyReport(
            cluster="c1",
            namespace="team-a",
            workload="job-train",
            stamp=writer.stamp(),
            observed_at_s=conn.now(),
            gone=True,
        )
        await writer.put(alive_subject("c1"), alive("c1", 1, epoch=writer.epoch))
        await writer.put(subject, copy, keep_s=1.0)
        one = Mirrored(conn, relist_s=1.0)
        async with task(one.run()):
            await until(lambda: subject in one.facts)
            assert one.facts[subject] == copy
            await until(lambda: one.gone == [subject])
            assert list(one.facts) == [alive_subject("c1")]


@story
async def test_a_cluster_has_room_for_so_many_facts_and_others_have_their_own(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "MAX_OF_CLUSTER", 3)
    log = Lines()
    async with connected(server.url, replicas=1, log=log) as conn:
        copies = [subjects.copy_report("c1", "ns", f"job-{number}") for number in range(5)]
        for copy in copies:
            await conn.store(copy, encode(alive("c1", 1)))
        await put(conn, "c2", 1)
        one = Mirrored(conn, relist_s=0.2)
        async with task(one.run()):
            await until(lambda: one.lists)
            assert list(one.facts) == [*copies[:3], alive_subject("c2")]
            assert one.mirror.ignored == 2
            await conn.store(copies[0], encode(alive("c1", 2)))  # what is known is kept up to date
            await conn.api(f"STREAM.PURGE.{FLEET}", {"filter": copies[1]})
            await until(lambda: copies[3] in one.facts and copies[1] not in one.facts)
            last = one.facts[copies[0]]
            assert last.stamp.counter == 2
    (line,) = log.fields("too many facts, new ignored")
    assert (line["cluster"], line["most"]) == ("c1", 3)
