"""Grouped appends come to the same as single ones, whatever company they are sent in."""

import asyncio

import pytest

from berthmaster.lib.event_log import workload_log
from berthmaster.lib.event_log.group_commit import (
    SINGLES_IN_FLIGHT,
    GroupCommit,
    shared_group_commit,
)
from berthmaster.lib.event_log.workload_log import EventLog
from berthmaster.lib.lifecycle.instructions import Outcome, Refused, Stored
from berthmaster.lib.messages.workload import JobRequest, RunSpec, WorkloadEvent
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import TooLarge
from berthmaster.lib.nats.streams import WORKLOADS, stream_info
from berthmaster.lib.supervisor.embedded import Server, ServerCluster
from tests.bus.proxy import acknowledgement, proxied, the_next
from tests.bus.tools import connected, patiently, reprioritized, story, submitted

MANY = 300


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tested is what follows a time limit, not its length."""
    monkeypatch.setattr(workload_log, "TRY_TIMEOUT_S", 0.5)


class Counting(EventLog):
    """An event log that counts how often it was asked."""

    def __init__(self, conn: Connection) -> None:
        super().__init__(conn)
        self.alone = 0
        self.batches: list[int] = []

    async def append(self, event: WorkloadEvent, *, in_doubt: bool = False) -> Outcome:
        self.alone += 1
        return await super().append(event, in_doubt=in_doubt)

    async def append_together(self, events: list[WorkloadEvent]) -> list[Outcome] | None:  # type: ignore[override]
        self.batches.append(len(events))
        return await super().append_together(events)


async def held(conn: Connection) -> dict[str, int]:
    raw = await patiently(
        lambda: conn.api(f"STREAM.INFO.{WORKLOADS}", {"subjects_filter": "berth.workload.>"})
    )
    return workload_log._SUBJECTS.decode(raw).state.subjects or {}


@story
async def test_few_go_alone_and_many_go_together_each_with_its_own_sequence(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        log = Counting(conn)
        group = GroupCommit(log)
        assert await group.append(submitted("first")) == Stored(1)
        assert (log.alone, log.batches) == (1, [])
        events = [submitted(f"job-{number}") for number in range(MANY)]
        outcomes = await asyncio.gather(*(group.append(event) for event in events))
        assert sum(log.batches) >= MANY - SINGLES_IN_FLIGHT
        assert log.alone == 1 + MANY - sum(log.batches)
        for event, outcome in zip(events, outcomes, strict=True):
            assert isinstance(outcome, Stored)
            [message] = await log.story("acme", event.id)
            assert message.sequence == outcome.sequence


@story
async def test_one_that_lost_its_race_does_not_take_its_company_along(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        log = EventLog(conn)
        for number in range(0, MANY, 50):
            await log.append(submitted(f"job-{number}", by="somebody else"))
        group = GroupCommit(log)
        events = [submitted(f"job-{number}") for number in range(MANY)]
        outcomes = await asyncio.gather(*(group.append(event) for event in events))
        for number, outcome in enumerate(outcomes):
            assert isinstance(outcome, Stored if number % 50 else Refused), (number, outcome)
        assert set((await held(conn)).values()) == {1}


@story
async def test_two_events_of_one_workload_never_go_in_one_batch(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        group = GroupCommit(EventLog(conn))
        first = [submitted(f"job-{number}") for number in range(40)]
        again: list[WorkloadEvent] = [submitted("job-0", by="late"), reprioritized("job-1", 999, 5)]
        events: list[WorkloadEvent] = list(first)
        events += again
        outcomes = await asyncio.gather(*(group.append(event) for event in events))
        assert all(isinstance(outcome, Stored) for outcome in outcomes[:40])
        assert all(isinstance(outcome, Refused) for outcome in outcomes[40:])


@story
async def test_batch_with_lost_acknowledgements_is_stored_once(server: Server) -> None:
    async with proxied(server.url) as proxy, connected(proxy.url, replicas=1) as conn:
        group = GroupCommit(EventLog(conn))
        proxy.to_client = the_next(acknowledgement, 5)
        events = [submitted(f"job-{number}") for number in range(MANY)]
        outcomes = await asyncio.gather(*(group.append(event) for event in events))
        assert len(proxy.lost) == 5
        assert all(isinstance(outcome, Stored) for outcome in outcomes)
        counts = await held(conn)
        assert len(counts) == MANY
        assert set(counts.values()) == {1}


@story
async def test_one_that_is_too_large_is_told_and_the_others_are_stored(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        group = GroupCommit(EventLog(conn))
        heavy = JobRequest(id="heavy", run=RunSpec(args=("x" * 1_100_000,)))
        events = [submitted(f"job-{number}") for number in range(50)]
        events[30] = submitted("heavy").__class__(
            tenant="acme", id="heavy", after=0, at_s=0.0, by="gw", request=heavy, digest=""
        )
        outcomes = await asyncio.gather(
            *(group.append(event) for event in events), return_exceptions=True
        )
        assert isinstance(outcomes.pop(30), TooLarge)
        assert all(isinstance(outcome, Stored) for outcome in outcomes)


@story
async def test_a_server_killed_in_mid_flight_stores_each_once(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        group = GroupCommit(EventLog(conn))
        events = [submitted(f"job-{number}") for number in range(MANY)]
        work = asyncio.gather(*(group.append(event) for event in events))
        await asyncio.sleep(0.005)
        server.kill()
        server.start()
        outcomes = await work
        assert all(isinstance(outcome, Stored) for outcome in outcomes)
        counts = await held(conn)
        assert len(counts) == MANY
        assert set(counts.values()) == {1}


@story
async def test_on_three_replicas_too(cluster: ServerCluster) -> None:
    async with connected(cluster.urls[0], replicas=3) as conn:
        before = (await patiently(lambda: stream_info(conn, WORKLOADS))).state.messages
        group = shared_group_commit(conn)
        assert shared_group_commit(conn) is group
        events = [submitted(f"grouped-{number}") for number in range(MANY)]
        outcomes = await asyncio.gather(*(group.append(event) for event in events))
        assert all(isinstance(outcome, Stored) for outcome in outcomes)
        assert (await stream_info(conn, WORKLOADS)).state.messages == before + MANY
