"""Whatever races, one wins: on one server, and on three replicas whose leader is killed meanwhile.

Names are drawn anew for each test, since the three servers keep what earlier tests wrote.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Sequence

import msgspec

from berthmaster.bus import subjects
from berthmaster.bus.connection import Connection
from berthmaster.bus.embedded import Server, ServerCluster
from berthmaster.bus.follow import Follower, Recorded
from berthmaster.bus.log import EventLog, decode_story, last_message
from berthmaster.bus.streams import WORKLOADS
from berthmaster.lifecycle.fold import Verdict, Workload, offer
from berthmaster.lifecycle.instructions import Outcome, Refused, Stored, Unknown
from berthmaster.messages.families import DECISIONS, EVENTS
from tests.bus.tools import (
    cancelled,
    connected,
    decision,
    eventually,
    patiently,
    placed,
    reprioritized,
    story,
    submitted,
    task,
    until,
)


def fresh(count: int) -> list[str]:
    tag = secrets.token_hex(4)
    return [f"race-{tag}-{number}" for number in range(count)]


async def submit(conn: Connection, name: str) -> int:
    outcome = await EventLog(conn, settle_limit_s=30).append(submitted(name))
    assert isinstance(outcome, Stored)
    return outcome.sequence


async def chain_tail(conn: Connection, cell: str) -> tuple[int, int]:
    """(number, sequence) of the last decision."""
    last = await patiently(lambda: last_message(conn, WORKLOADS, subjects.decision(cell)))
    return (0, 0) if last is None else (DECISIONS.decode(last.data).number, last.sequence)


async def race(conns: Sequence[Connection], name: str, cell: str) -> tuple[list[Outcome], str]:
    """Two deciders and a cancel for one workload: their outcomes, and who is in the log."""
    first, second, third = conns
    after = await submit(first, name)
    number, tail = await chain_tail(first, cell)

    def commit(conn: Connection, who: str) -> "asyncio.Task[Outcome]":
        made = decision(number + 1, tail, decider=who, cell=cell)
        event = msgspec.structs.replace(placed(name, after, by=who), cell=cell)
        return asyncio.ensure_future(EventLog(conn).commit(made, [event]))

    outcomes = await asyncio.gather(
        commit(first, "r-1"),
        commit(second, "r-2"),
        asyncio.ensure_future(EventLog(third).append(cancelled(name, after))),
    )
    events = decode_story(await patiently(lambda: EventLog(first).story("acme", name)))
    assert len(events) == 2, events
    return list(outcomes), events[1].event.by


def check_race(outcomes: Sequence[Outcome], winner: str) -> None:
    who = dict(zip(("r-1", "r-2", "gw-1"), outcomes, strict=True))
    assert [name for name, outcome in who.items() if isinstance(outcome, Stored)] == [winner]
    assert all(isinstance(who[name], Refused) for name in who if name != winner), who


@story
async def test_two_deciders_and_a_cancel_have_one_winner_on_one_server(server: Server) -> None:
    async with (
        connected(server.url, "a", replicas=1) as a,
        connected(server.url, "b") as b,
        connected(server.url, "c") as c,
    ):
        winners: Counter[str] = Counter()
        for name in fresh(100):
            outcomes, winner = await race((a, b, c), name, "all")
            check_race(outcomes, winner)
            winners[winner] += 1
        number, _ = await chain_tail(a, "all")
        assert number == winners["r-1"] + winners["r-2"]  # no decision without its placement


@story
async def test_two_deciders_and_a_cancel_have_one_winner_on_three_replicas(
    cluster: ServerCluster,
) -> None:
    one, two, three = cluster.urls
    async with (
        connected(one, "a", replicas=3) as a,
        connected(two, "b") as b,
        connected(three, "c") as c,
    ):
        cell = fresh(1)[0]
        winners: Counter[str] = Counter()
        for name in fresh(100):
            outcomes, winner = await race((a, b, c), name, cell)
            check_race(outcomes, winner)
            winners[winner] += 1
        number, _ = await chain_tail(a, cell)
        assert number == winners["r-1"] + winners["r-2"]


async def leader(conn: Connection, cluster: ServerCluster) -> Server:
    raw = await conn.api(f"STREAM.INFO.{WORKLOADS}")
    name = msgspec.json.decode(raw)["cluster"]["leader"]
    return next(server for server in cluster.servers if server.config.name == name)


@story
async def test_races_go_on_with_one_winner_each_while_the_leader_is_killed(
    cluster: ServerCluster,
) -> None:
    url = cluster.url
    cell = fresh(1)[0]
    names = fresh(60)
    winners: Counter[str] = Counter()
    async with (
        connected(url, "a", replicas=3) as a,
        connected(url, "b") as b,
        connected(url, "c") as c,
    ):

        async def races() -> None:
            for name in names:
                outcomes, winner = await race((a, b, c), name, cell)
                # In the election an outcome may stay unknown, but never is there a second winner.
                who = dict(zip(("r-1", "r-2", "gw-1"), outcomes, strict=True))
                assert isinstance(who[winner], Stored | Unknown)
                assert all(not isinstance(who[other], Stored) for other in who if other != winner)
                winners[winner] += 1

        async with task(races()) as racing:
            await until(lambda: winners.total() >= 15 or racing.done(), limit_s=40)
            victim = await patiently(lambda: leader(a, cluster))
            victim.kill()
            await until(lambda: winners.total() >= 30 or racing.done(), limit_s=40)
            victim.start()
            await racing
        assert winners.total() == len(names)
        number, _ = await chain_tail(a, cell)
        assert number == winners["r-1"] + winners["r-2"]


@story
async def test_one_guard_string_an_aggregate_lets_one_of_many_writers_win(
    cluster: ServerCluster,
) -> None:
    one, two, three = cluster.urls
    async with (
        connected(one, "a", replicas=3) as a,
        connected(two, "b") as b,
        connected(three, "c") as c,
    ):
        logs = [EventLog(conn) for conn in (a, b, c)]
        names = fresh(120)

        async def one_race(name: str) -> None:
            outcomes = await asyncio.gather(
                *(log.append(submitted(name, by=f"w-{i}")) for i, log in enumerate(logs))
            )
            stored = [i for i, outcome in enumerate(outcomes) if isinstance(outcome, Stored)]
            events = decode_story(await logs[0].story("acme", name))
            assert [event.event.by for event in events] == [f"w-{i}" for i in stored]
            assert len(events) == 1
            assert all(isinstance(o, Stored | Refused) for o in outcomes)

        for start in range(0, len(names), 20):
            await asyncio.gather(*(one_race(name) for name in names[start : start + 20]))


@story
async def test_a_void_event_is_dropped_equally_by_every_reader(cluster: ServerCluster) -> None:
    """A stale writer whose guard failed to hold it back: whoever folds the story drops it."""
    one, two, _ = cluster.urls
    name = fresh(1)[0]
    async with connected(one, "a", replicas=3) as a, connected(two, "b") as b:
        first = await submit(a, name)
        second = await EventLog(a).append(reprioritized(name, first, 5))
        assert isinstance(second, Stored)
        # What replicas may do to differing guards, done on purpose: stored without any guard.
        stale = placed(name, first, by="stale")
        subject = subjects.workload_event("acme", name, "placed", "c1")
        await a.request(subject, msgspec.json.encode(stale))
        tail = (await EventLog(a).story("acme", name))[-1].sequence
        # The next writer guards with the void event's sequence: it blocks nobody.
        third = await EventLog(b).append(placed(name, tail, by="fresh"))
        assert isinstance(third, Stored)

        verdicts: list[list[tuple[Verdict, str]]] = []
        workloads: list[Workload] = []
        for conn in (a, b):
            seen: list[tuple[Verdict, str]] = []
            workload = Workload(tenant="acme", id=name)

            def fold(
                recorded: Recorded,
                workload: Workload = workload,
                seen: list[tuple[Verdict, str]] = seen,
            ) -> None:
                event = EVENTS.decode(recorded.data)
                verdict = offer(workload, event, recorded.sequence, recorded.stored_at_s)
                seen.append((verdict, event.by))

            follower = Follower(conn, WORKLOADS, [subjects.aggregate("acme", name)])
            async with task(follower.run(fold)):
                await until(lambda seen=seen: len(seen) == 4)  # type: ignore[misc]
            verdicts.append(seen)
            workloads.append(workload)
        by_story = Workload(tenant="acme", id=name)
        for event in decode_story(await EventLog(b).story("acme", name)):
            offer(by_story, event.event, event.sequence, event.stored_at_s)
        assert (
            verdicts
            == [
                [
                    (Verdict.COUNTED, "gw-1"),
                    (Verdict.COUNTED, "gw-1"),
                    (Verdict.VOID, "stale"),
                    (Verdict.COUNTED, "fresh"),
                ]
            ]
            * 2
        )
        assert workloads == [by_story, by_story]
        assert (by_story.state.value, by_story.sequence) == ("placed", third.sequence)


@story
async def test_appends_and_a_killed_replica_store_each_event_once(cluster: ServerCluster) -> None:
    names = fresh(400)
    outcomes: dict[str, Outcome] = {}
    async with connected(cluster.url, "a", replicas=3) as conn:
        log = EventLog(conn)
        width = asyncio.Semaphore(16)

        async def append(name: str) -> None:
            async with width:
                outcomes[name] = await log.append(submitted(name))

        async with task(asyncio.wait_for(asyncio.gather(*map(append, names)), 50)) as appending:
            await until(lambda: len(outcomes) >= 100)
            victim = await patiently(lambda: leader(conn, cluster))
            victim.kill()
            await until(lambda: len(outcomes) >= 200, limit_s=40)
            victim.start()
            await appending
        unknown = [name for name, outcome in outcomes.items() if isinstance(outcome, Unknown)]
        assert not [name for name, outcome in outcomes.items() if isinstance(outcome, Refused)]
        assert len(unknown) < 40

        async def once() -> bool:
            stories = await asyncio.gather(*(log.story("acme", name) for name in names))
            assert all(len(one) <= 1 for one in stories)
            return all(
                one and one[0].sequence == outcomes[name].sequence  # type: ignore[union-attr]
                for name, one in zip(names, stories, strict=True)
                if name not in unknown
            )

        await eventually(once)
