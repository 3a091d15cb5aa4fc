import asyncio
import time

import msgspec
import pytest

from berthmaster.lib.event_log import workload_log
from berthmaster.lib.event_log.workload_log import MAX_BATCH, EventLog, decode_story
from berthmaster.lib.lifecycle.instructions import Refused, Stored, Unknown
from berthmaster.lib.messages.api import RecordedEvent
from berthmaster.lib.messages.families import DECISIONS
from berthmaster.lib.messages.workload import JobRequest, RunSpec
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import TooLarge
from berthmaster.lib.nats.stream_reads import next_message
from berthmaster.lib.nats.streams import WORKLOADS, ensure_streams, stream_info
from berthmaster.lib.supervisor.embedded import Server
from tests.bus.proxy import acknowledgement, proxied, published_to, the_next
from tests.bus.tools import (
    cancelled,
    connected,
    decision,
    patiently,
    placed,
    remove,
    reprioritized,
    story,
    submitted,
    task,
)
from tests.support.patience import NEVER_S, until

SUBMITTED = "berth.workload.acme.job-1.submitted.-"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tested is what follows a time limit, not its length."""
    monkeypatch.setattr(workload_log, "TRY_TIMEOUT_S", 0.3)


async def stored(conn: Connection) -> int:
    """How many messages there are of workloads and decisions."""
    info = await patiently(lambda: stream_info(conn, WORKLOADS))
    return info.state.messages


@story
async def test_an_append_is_stored_and_read_back_as_it_was_written(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        log = EventLog(conn)
        first, second = submitted("job-1"), reprioritized("job-1", 1, 5)
        assert await log.append(first) == Stored(1)
        assert await log.append(second) == Stored(2)
        assert await log.append(submitted("job-1", tenant="other")) == Stored(3)
        messages = await log.story("acme", "job-1")
        assert decode_story(messages) == [
            RecordedEvent(sequence=1, stored_at_s=messages[0].stored_at_s, event=first),
            RecordedEvent(sequence=2, stored_at_s=messages[1].stored_at_s, event=second),
        ]
        assert [m.subject for m in messages] == [
            SUBMITTED,
            "berth.workload.acme.job-1.reprioritized.-",
        ]
        assert abs(messages[0].stored_at_s - time.time()) < 5
        assert await log.story("acme", "job-2") == []


@story
async def test_an_append_on_an_old_sequence_is_refused_and_told_the_last(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        log = EventLog(conn)
        await log.append(submitted("job-1"))
        await log.append(reprioritized("job-1", 1, 5))
        assert await log.append(submitted("job-1", by="gw-2")) == Refused(2)
        assert await log.append(placed("job-1", 1)) == Refused(2)
        assert await log.append(placed("job-2", 7)) == Refused(0)
        assert await stored(conn) == 2


@story
async def test_append_with_lost_acknowledgement_is_stored_once(server: Server) -> None:
    async with proxied(server.url) as proxy, connected(proxy.url, replicas=1) as conn:
        log = EventLog(conn)
        proxy.to_client = the_next(acknowledgement)
        assert await log.append(submitted("job-1")) == Stored(1)
        assert len(proxy.lost) == 1
        assert await stored(conn) == 1


@story
async def test_a_lost_write_is_written_again_and_stored_once(server: Server) -> None:
    async with proxied(server.url) as proxy, connected(proxy.url, replicas=1) as conn:
        proxy.to_server = the_next(published_to(SUBMITTED), count=2)
        assert await EventLog(conn).append(submitted("job-1")) == Stored(1)
        assert len(proxy.lost) == 2
        assert await stored(conn) == 1


@story
async def test_a_lost_refusal_is_settled_as_refused(server: Server) -> None:
    async with proxied(server.url) as proxy, connected(proxy.url, replicas=1) as conn:
        log = EventLog(conn)
        await log.append(submitted("job-1"))
        proxy.to_client = the_next(lambda one: b"wrong last sequence" in one.payload)
        assert await log.append(submitted("job-1", by="gw-2")) == Refused(1)
        assert len(proxy.lost) == 1
        assert await stored(conn) == 1


@story
async def test_append_overtaken_after_lost_acknowledgement_counts(server: Server) -> None:
    """The first event behind the guard is ours, whatever others wrote after it."""
    async with (
        proxied(server.url) as proxy,
        connected(proxy.url, replicas=1) as conn,
        connected(server.url) as other,
    ):
        proxy.to_client = the_next(acknowledgement)
        appending = asyncio.create_task(EventLog(conn).append(submitted("job-1")))
        await until(lambda: proxy.lost)
        assert await EventLog(other).append(reprioritized("job-1", 1, 5)) == Stored(2)
        assert await appending == Stored(1)
        assert await stored(conn) == 2


@story
async def test_an_append_in_flight_survives_kill_9_of_the_server(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        log = EventLog(conn)
        total = 60
        events = [submitted(f"job-{number}") for number in range(total)]
        outcomes: list[object] = []

        async def append_all() -> None:
            for event in events:
                outcomes.append(await log.append(event))  # noqa: PERF401 # watched as it grows

        async with task(append_all()) as appending:
            for part in (20, 40):
                await until(lambda part=part: len(outcomes) >= part)  # type: ignore[misc]
                server.kill()
                server.start()
            await appending
        assert outcomes == [Stored(number + 1) for number in range(total)]
        assert await stored(conn) == total


@story
async def test_an_append_to_a_stopped_server_is_settled_when_it_goes_on(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        server.pause()
        appending = asyncio.create_task(EventLog(conn).append(submitted("job-1")))
        await asyncio.sleep(0.5)  # past the time limit of one try: what is tested is the doubt
        assert not appending.done()
        server.resume()
        assert await appending == Stored(1)
        assert await stored(conn) == 1


@story
async def test_past_its_time_limit_an_outcome_is_unknown_and_says_why(server: Server) -> None:
    async with proxied(server.url) as proxy, connected(proxy.url, replicas=1) as conn:
        proxy.to_client = lambda one: b"INBOX" in one.line
        log = EventLog(conn, settle_limit_s=0.2)
        outcome = await log.append(submitted("job-1"))
        assert isinstance(outcome, Unknown)
        assert outcome.why.startswith("no answer on ")
        # It was stored after all, and who reloads and repeats what it wrote sees that.
        proxy.to_client = lambda _: False
        assert await stored(conn) == 1
        assert await log.append(submitted("job-1")) == Refused(1)


@story
async def test_what_is_too_large_is_refused_before_anything_is_sent(server: Server) -> None:
    async with proxied(server.url) as proxy, connected(proxy.url, replicas=1) as conn:
        sent: list[bytes] = []
        proxy.to_server = lambda one: sent.append(one.line) is not None  # type: ignore[func-returns-value]
        log = EventLog(conn)
        large = msgspec.structs.replace(
            submitted("job-1"),
            request=JobRequest(id="job-1", run=RunSpec(args=("x" * 1024 * 1024,))),
        )
        with pytest.raises(TooLarge, match="the server takes at most 1048576"):
            await log.append(large)
        with pytest.raises(TooLarge):
            await log.commit(decision(1, 0), [placed("job-0", 0), large])
        # Large only by what the guard adds: refused as well, instead of losing the connection.
        room = conn.nc.max_payload - len(msgspec.json.encode(submitted("job-1"))) - 40
        tight = msgspec.structs.replace(
            submitted("job-1"), request=JobRequest(id="job-1", run=RunSpec(args=("x" * room,)))
        )
        with pytest.raises(TooLarge):
            await log.append(tight)
        assert (sent, conn.reconnects) == ([], 0)


@story
async def test_a_commit_stores_the_decision_and_all_its_events_in_one_row(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        log = EventLog(conn)
        for number in range(3):
            await log.append(submitted(f"job-{number}"))
        made = decision(1, 0)
        events = [placed(f"job-{number}", number + 1) for number in range(3)]
        assert await log.commit(made, events) == Stored(7)
        chain = await next_message(conn, WORKLOADS, subjects.decision("all"), 1)
        assert chain is not None
        assert (chain.sequence, DECISIONS.decode(chain.data)) == (4, made)
        assert [(await log.story("acme", f"job-{number}"))[-1].sequence for number in range(3)] == [
            5,
            6,
            7,
        ]
        # The next one stands on it, and may be empty.
        assert await log.commit(decision(2, 4), []) == Stored(8)


@story
async def test_commit_behind_another_decision_is_refused(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        log = EventLog(conn)
        await log.append(submitted("job-1"))
        await log.append(submitted("job-2"))
        assert await log.commit(decision(1, 0), [placed("job-1", 1)]) == Stored(4)
        late = await log.commit(decision(1, 0, decider="r-2"), [placed("job-2", 2, by="r-2")])
        assert isinstance(late, Refused)
        assert await stored(conn) == 4


@story
async def test_a_commit_that_missed_one_cancel_among_many_is_refused_whole(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        log = EventLog(conn)
        for number in range(20):
            await log.append(submitted(f"job-{number}"))
        await log.append(cancelled("job-13", 14))
        events = [placed(f"job-{number}", number + 1) for number in range(20)]
        assert await log.commit(decision(1, 0), events) == Refused(21)
        assert await stored(conn) == 21
        del events[13]
        assert await log.commit(decision(1, 0), events) == Stored(41)


@story
async def test_a_lost_acknowledgement_of_a_commit_is_settled_as_stored(server: Server) -> None:
    async with proxied(server.url) as proxy, connected(proxy.url, replicas=1) as conn:
        log = EventLog(conn)
        for number in range(5):
            await log.append(submitted(f"job-{number}"))
        proxy.to_client = the_next(acknowledgement)
        events = [placed(f"job-{number}", number + 1) for number in range(5)]
        assert await log.commit(decision(1, 0), events) == Stored(11)
        assert len(proxy.lost) == 1
        assert await stored(conn) == 11


@story
async def test_a_commit_that_lost_a_part_on_its_way_is_sent_again_whole(server: Server) -> None:
    async with proxied(server.url) as proxy, connected(proxy.url, replicas=1) as conn:
        log = EventLog(conn)
        for number in range(5):
            await log.append(submitted(f"job-{number}"))
        proxy.to_server = the_next(published_to("berth.workload.acme.job-2.placed.c1"))
        events = [placed(f"job-{number}", number + 1) for number in range(5)]
        assert await log.commit(decision(1, 0), events) == Stored(11)
        assert len(proxy.lost) == 1
        assert await stored(conn) == 11


@story
async def test_commit_over_server_kill_is_atomic(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        log = EventLog(conn)
        names = [f"job-{number}" for number in range(40)]
        await asyncio.gather(*(log.append(submitted(name)) for name in names))
        last, after = len(names), 0
        tails = {m: (await log.story("acme", m))[-1].sequence for m in names}
        kills = 0
        for number in range(1, 7):
            events = [reprioritized(name, tails[name], number) for name in names]
            committing = asyncio.create_task(log.commit(decision(number, after), events))
            if number % 2:
                await asyncio.sleep(0.0004 * number)  # somewhere in its flight
                server.kill()
                server.start()
                kills += 1
            expected = last + 1 + len(names)
            assert await committing == Stored(expected)
            after, last = last + 1, expected
            tails = {name: after + 1 + index for index, name in enumerate(names)}
        assert kills == 3
        assert await stored(conn) == last


@story
async def test_three_hundred_placements_are_one_commit(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        log = EventLog(conn)
        names = [f"job-{number}" for number in range(300)]
        outcomes = await asyncio.gather(*(log.append(submitted(name)) for name in names))
        assert outcomes == [Stored(number + 1) for number in range(300)]
        events = [placed(name, number + 1) for number, name in enumerate(names)]
        assert await log.commit(decision(1, 0), events) == Stored(601)
        with pytest.raises(ValueError, match="1000 events; one commit holds at most 999"):
            await log.commit(decision(2, 301), [placed("x", 0)] * MAX_BATCH)


@story
async def test_full_stream_refuses_writes_and_serves_reads(server: Server) -> None:
    async with connected(server.url) as conn:
        await ensure_streams(conn, workloads_max_bytes=16 * 1024)
        log = EventLog(conn, settle_limit_s=NEVER_S)  # whoever tries again does not come back
        number = 0
        while isinstance(outcome := await log.append(submitted(f"job-{number}")), Stored):
            number += 1
            assert number < 1000
        assert outcome == Unknown("maximum bytes exceeded (JetStream error 10077)")
        full = await log.commit(decision(1, 0), [placed("job-0", 1)])
        assert isinstance(full, Unknown)
        assert "maximum bytes exceeded" in full.why
        assert len(await log.story("acme", "job-0")) == 1
        assert await stored(conn) == number
        await ensure_streams(conn, workloads_max_bytes=1024 * 1024)
        assert isinstance(await log.commit(decision(1, 0), [placed("job-0", 1)]), Stored)


@story
async def test_a_tombstone_keeps_the_id_used(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        log = EventLog(conn)
        await log.append(submitted("job-1"))
        await log.append(placed("job-1", 1))
        ending = cancelled("job-1", 2)
        await log.append(ending)
        await log.append(submitted("job-2"))
        await remove(conn, 1, 2)
        left = decode_story(await log.story("acme", "job-1"))
        assert [(one.sequence, one.event) for one in left] == [(3, ending)]
        assert await log.append(submitted("job-1")) == Refused(3)
        assert len(await log.story("acme", "job-2")) == 1
