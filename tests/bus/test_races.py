"""Whatever races, one wins: on one server, and on three replicas whose leader is killed meanwhile.

Names are drawn anew for each test, since the three servers keep what earlier tests wrote.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from berthmaster.lib.event_log.workload_log import EventLog, decode_story
from berthmaster.lib.lifecycle.fold import Verdict, offer
from berthmaster.lib.lifecycle.instructions import Outcome, Refused, Stored, Unknown
from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.families import DECISIONS, EVENTS
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.follower import Follower
from berthmaster.lib.nats.stream_messages import Recorded
from berthmaster.lib.nats.stream_reads import last_message
from berthmaster.lib.nats.streams import WORKLOADS
from berthmaster.lib.supervisor.embedded import Server, ServerCluster
from tests.bus.tools import (
    cancelled,
    connected,
    decision,
    eventually,
    leader,
    patiently,
    placed,
    reprioritized,
    story,
    submitted,
    task,
)
from tests.support.patience import ANSWER_S, hang_s, until

ELECTIONS_S = 300  # servers of a busy machine are slow to start and to elect


def fresh(count: int) -> list[str]:
    tag = secrets.token_hex(4)
    return [f"race-{tag}-{number}" for number in range(count)]


async def submit(conn: Connection, name: str) -> int:
    outcome = await EventLog(conn, settle_limit_s=30).append(submitted(name))
    assert isinstance(outcome, Stored)
    return outcome.sequence


async def chain_tail(conn: Connection, cell: str) -> tuple[int, int]:
    last = await patiently(lambda: last_message(conn, WORKLOADS, subjects.decision(cell)))
    return (0, 0) if last is None else (DECISIONS.decode(last.data).number, last.sequence)


async def race(conns: Sequence[Connection], name: str, cell: str) -> dict[str, Outcome]:
    """Two deciders and a cancel for one workload: the outcome of each."""
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
    return dict(zip(("r-1", "r-2", "gw-1"), outcomes, strict=True))


async def behind(conn: Connection, name: str) -> list[tuple[str, Outcome]]:
    """Who stands in a workload's story behind its submission, and where."""
    events = decode_story(await patiently(lambda: EventLog(conn).story("acme", name)))
    return [(event.event.by, Stored(event.sequence)) for event in events[1:]]


def won(contests: dict[str, dict[str, Outcome]]) -> int:
    """How many races have a winner who knows it."""
    return sum(any(isinstance(o, Stored) for o in told.values()) for told in contests.values())


async def each_was_won_once_at_most(
    conn: Connection, contests: dict[str, dict[str, Outcome]], cell: str
) -> bool:
    """What is in the log is one write a race, none of it refused. True once every write that was
    told to be stored is there, and no decision without its placement."""
    placements, as_told = 0, True
    for name, told in contests.items():
        stored = await behind(conn, name)
        assert len(stored) <= 1, (name, stored, told)
        placements += sum(who != "gw-1" for who, _ in stored)
        assert not any(isinstance(told[who], Refused) for who, _ in stored), (name, stored, told)
        as_told &= all(each in stored for each in told.items() if isinstance(each[1], Stored))
    number, _ = await chain_tail(conn, cell)
    return as_told and number == placements


@story
async def test_two_deciders_and_a_cancel_have_one_winner_on_one_server(server: Server) -> None:
    async with (
        connected(server.url, "a", replicas=1) as a,
        connected(server.url, "b") as b,
        connected(server.url, "c") as c,
    ):
        contests = {name: await race((a, b, c), name, "all") for name in fresh(100)}
        assert await each_was_won_once_at_most(a, contests, "all")
        kinds = Counter(type(one).__name__ for told in contests.values() for one in told.values())
        assert kinds == {"Stored": 100, "Refused": 200}  # one server: nothing stays unknown


@story
async def test_race_on_three_replicas_has_one_winner(cluster: ServerCluster) -> None:
    one, two, three = cluster.urls
    async with (
        connected(one, "a", replicas=3) as a,
        connected(two, "b") as b,
        connected(three, "c") as c,
    ):
        cell = fresh(1)[0]
        contests: dict[str, dict[str, Outcome]] = {}
        while won(contests) < 100:  # a busy machine may hold an election in between
            (name,) = fresh(1)
            contests[name] = await race((a, b, c), name, cell)
        await eventually(lambda: each_was_won_once_at_most(a, contests, cell))


@story
async def test_race_over_leader_kill_has_one_winner(cluster: ServerCluster) -> None:
    """In the election a race may end without a winner: nobody is told that theirs is stored, and
    what nobody knows may be stored now, later or never. So each is judged when all is over."""
    url = cluster.url
    cell = fresh(1)[0]
    plain = fresh(400)
    contests: dict[str, dict[str, Outcome]] = {}
    outcomes: dict[str, Outcome] = {}
    async with (
        connected(url, "a", replicas=3) as a,
        connected(url, "b") as b,
        connected(url, "c") as c,
    ):

        async def races() -> None:
            while won(contests) < 60:
                (name,) = fresh(1)
                contests[name] = await race((a, b, c), name, cell)

        log, width = EventLog(c), asyncio.Semaphore(8)

        async def append(name: str) -> None:
            async with width:
                outcomes[name] = await log.append(submitted(name))
                await asyncio.sleep(0.01)

        async with (
            task(races()) as racing,
            task(asyncio.wait_for(all_of(append, plain), hang_s())) as t,
        ):
            await until(lambda: won(contests) >= 15 and len(outcomes) >= 50)
            victim = await patiently(lambda: leader(a, cluster, WORKLOADS))
            victim.kill()
            await until(lambda: won(contests) >= 30 and len(outcomes) >= 150)
            victim.start()
            await asyncio.wait_for(racing, hang_s())
            await t

        await eventually(lambda: each_was_won_once_at_most(a, contests, cell))

        assert not [name for name, outcome in outcomes.items() if isinstance(outcome, Refused)]
        unknown = {name for name, outcome in outcomes.items() if isinstance(outcome, Unknown)}
        assert len(unknown) < len(plain) / 2  # some time limits pass in an election, not most

        async def each_is_where_its_outcome_says() -> bool:
            stories = await asyncio.gather(*(log.story("acme", name) for name in plain))
            assert all(len(events) <= 1 for events in stories)
            return all(
                [Stored(event.sequence) for event in events] == [outcomes[name]]
                for name, events in zip(plain, stories, strict=True)
                if name not in unknown
            )

        await eventually(each_is_where_its_outcome_says)


async def all_of(work: Callable[[str], Awaitable[None]], names: Sequence[str]) -> None:
    await asyncio.gather(*map(work, names))


@story
async def test_guard_lets_one_of_many_writers_win(cluster: ServerCluster) -> None:
    one, two, three = cluster.urls
    async with (
        connected(one, "a", replicas=3) as a,
        connected(two, "b") as b,
        connected(three, "c") as c,
    ):
        logs = [EventLog(conn, settle_limit_s=30) for conn in (a, b, c)]
        names = fresh(120)

        async def one_race(name: str) -> None:
            outcomes = await asyncio.gather(
                *(log.append(submitted(name, by=f"w-{i}")) for i, log in enumerate(logs))
            )
            stored = [i for i, outcome in enumerate(outcomes) if isinstance(outcome, Stored)]
            events = decode_story(await patiently(lambda: logs[0].story("acme", name)))
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
        await a.request(subject, msgspec.json.encode(stale), timeout_s=ANSWER_S)
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
