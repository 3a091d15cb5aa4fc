"""Each process in turn is killed, stopped or away under a stream of jobs, and none notices.

After each: the audit is clean, every job is accounted for and ended once, nothing that runs was
ended by it, and every decision can be repeated. See chaos.py for what is looked at.
"""

import asyncio
from collections.abc import Iterator

import msgspec
import pytest

from berthmaster.client import Client
from berthmaster.lib.nats.streams import WORKLOADS
from tests.bus.tools import story
from tests.pipeline.chaos import Kept, Rig, so_far_so_good, stream

SERVICES = ("gateway", "resolver", "scorer", "archivist", "door", "emulator")
# Longer than what each has a limit for: a lease, a claim, a sign of life, an acknowledgement.
STOPPED_S = {"gateway": 3.0, "resolver": 3.0, "scorer": 3.0, "door": 3.0, "emulator": 5.0}
ARCHIVIST_STOPPED_S = 11.0
AWAY_S = 12.0  # longer than any of these


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    rigs = Kept(tmp_path_factory.mktemp("kept"))
    yield rigs
    rigs.end()


@pytest.fixture
def one(kept: Kept) -> Iterator[Rig]:
    """One of each service, and jobs that run all the time."""
    with kept.lent() as rig:
        yield rig


@pytest.fixture
def two(kept: Kept) -> Iterator[Rig]:
    with kept.lent("--resolvers", "2", "--scorers", "2") as rig:
        yield rig


@pytest.fixture
def three(kept: Kept) -> Iterator[Rig]:
    with kept.lent("--servers", "3") as rig:
        yield rig


@pytest.mark.timeout(1800)
@story
async def test_services_that_are_killed_lose_nothing(one: Rig) -> None:
    async with stream(one) as jobs:
        for service in SERVICES:
            await one.kill(service)
            await jobs.goes_on(30)
            await so_far_so_good(one, jobs.berth)


@pytest.mark.timeout(1800)
@story
async def test_services_that_wake_late_do_no_harm(one: Rig) -> None:
    loop = asyncio.get_running_loop()
    async with stream(one) as jobs:
        async with one.stopped("archivist"):  # which nobody waits for
            stopped_s = loop.time()
            for service, pause_s in STOPPED_S.items():
                async with one.stopped(service):
                    await asyncio.sleep(pause_s)
                await jobs.goes_on(30)
            await asyncio.sleep(stopped_s + ARCHIVIST_STOPPED_S - loop.time())
        await jobs.goes_on(30)


@pytest.mark.timeout(1800)
@story
async def test_a_killed_server_loses_nothing(one: Rig) -> None:
    async with stream(one) as jobs:
        await one.kill("nats-server")
        await jobs.goes_on(50)


@pytest.mark.timeout(1800)
@story
async def test_a_server_that_is_away_ends_no_job(one: Rig) -> None:
    async with stream(one) as jobs:
        async with one.away("nats-server"):
            await asyncio.sleep(AWAY_S)
        await jobs.goes_on(50)


@pytest.mark.timeout(1800)
@story
async def test_another_resolver_decides_for_one_that_is_dead_or_stands_still(two: Rig) -> None:
    async with stream(two) as jobs:
        killed = jobs.decisions[-1].decision.decider
        await two.kill(two.decider(killed))
        await jobs.taken_over_s(killed)
        await jobs.goes_on(50)

        # When it wakes it believes that it decides, and the chain knows better.
        stopped = jobs.decisions[-1].decision.decider
        async with two.stopped(two.decider(stopped)):
            await jobs.taken_over_s(stopped)
            await jobs.goes_on(100)
        await jobs.goes_on(50)


@pytest.mark.timeout(1800)
@story
async def test_two_resolvers_and_two_scorers_do_as_well_as_one(two: Rig) -> None:
    async with stream(two) as jobs:
        for name in two.names("scorer"):  # one of them is the one that scores
            await two.kill(name)
            await jobs.goes_on(20)
        both = [*two.names("resolver"), *two.names("scorer")]
        async with two.stopped(*both):
            await asyncio.sleep(STOPPED_S["resolver"])
        await jobs.goes_on(50)
        await so_far_so_good(two, jobs.berth)
        await two.kill(*both)
        await jobs.goes_on(50)


@pytest.mark.timeout(1800)
@story
async def test_one_of_three_servers_may_be_lost(three: Rig) -> None:
    async with stream(three) as jobs:
        lead = await leader(jobs.berth)
        async with three.away(lead):  # the one that writes the log, in mid-flight
            await jobs.goes_on(100)  # with two of three all goes on
        await jobs.goes_on(50)
        await so_far_so_good(three, jobs.berth)

        lead = await leader(jobs.berth)
        other = next(name for name in three.names("nats-server") if name != lead)
        await three.kill(other)
        await jobs.goes_on(50)


async def leader(berth: Client) -> str:
    """The process of the server that leads the log's stream."""
    info = msgspec.json.decode(await berth.connection.api(f"STREAM.INFO.{WORKLOADS}"))
    name: str = info["cluster"]["leader"]
    return "nats-server-" + name.rpartition("-")[2]
