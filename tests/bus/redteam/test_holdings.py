"""`berth recover` asks what clusters hold: each answers for itself, on a damaged log, too; nobody
else asks, hears an answer, or answers for another. Every user has its own key."""

import asyncio
import io
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from berthmaster.cli.recover.core import Held
from berthmaster.cli.recover.holdings import ask
from berthmaster.control.door.core.receipts import Receipts, key_of
from berthmaster.control.door.service import main as door_main
from berthmaster.control.door.settings import DoorSettings
from berthmaster.lab.emulator.cluster import EmulatedCluster
from berthmaster.lab.emulator.disturbance import Nature
from berthmaster.lab.emulator.fleets import ClusterSpec, NodeSpec
from berthmaster.lab.emulator.host import Host
from berthmaster.lab.emulator.journal import Journal, read_journal
from berthmaster.lib.access.keys import creds_file, make_keys, server_config
from berthmaster.lib.access.permissions import inbox_prefix
from berthmaster.lib.door_client.client import DoorClient
from berthmaster.lib.door_client.holdings import report
from berthmaster.lib.event_log import guard
from berthmaster.lib.event_log.workload_log import EventLog
from berthmaster.lib.lifecycle.instructions import Stored
from berthmaster.lib.lifecycle.workload import request_digest
from berthmaster.lib.messages.door import HeldAttempt, HeldPage, HoldingsRequest, Nudge
from berthmaster.lib.messages.door import PlacementReceipt as Receipt
from berthmaster.lib.messages.families import HELD_PAGES, encode
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import JobRequest, Placed, PodSet, RunSpec, Submitted
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connect_options import read_creds
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import BusError
from berthmaster.lib.nats.streams import WORKLOADS, ensure_streams
from berthmaster.lib.runtime.health import Health
from berthmaster.lib.runtime.log import Log
from berthmaster.lib.runtime.metrics import Metrics
from berthmaster.lib.runtime.service import Context
from berthmaster.lib.supervisor.embedded import Server, ServerConfig
from berthmaster.worker.executor.core.executor import Executor
from berthmaster.worker.executor.shell import Shell
from tests.bus.doors import door
from tests.bus.redteam.test_accounts import Bus
from tests.bus.tools import eventually, story, task
from tests.support.builders import job
from tests.support.patience import hang_s, patient, slowness, until

RED, BLUE, GREY = "red", "blue", "grey"  # no agent runs in grey
USERS: Final = (
    *("setup", "door", "resolver", "operator", "restorer", "watcher", "tenant.acme"),
    *("agent.red", "agent.blue", "agent.grey"),
)
JOBS: Final = 300
BRIEF_S: Final = 3.0  # for those who answer; a silent one is waited for so long


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    make_keys(tmp_path / "keys", USERS)
    config = ServerConfig(sync="default", extra=server_config(tmp_path / "keys", tmp_path / "jwt"))
    with Server(tmp_path / "nats", config) as server:
        made = Bus(server.url, tmp_path / "keys")
        asyncio.run(make_streams(made))
        yield made


async def make_streams(bus: Bus) -> None:
    async with bus.user("setup") as conn:
        await ensure_streams(conn)


def own(bus: Bus, name: str) -> dict[str, Any]:
    return {"nats_creds_file": creds_file(bus.keys, name), "inbox_prefix": inbox_prefix(name)}


@asynccontextmanager
async def unready_door(bus: Bus) -> AsyncIterator[Context[DoorSettings]]:
    """A replica that is started on a damaged log, and so never is ready."""
    settings = patient(DoorSettings, "door", nats_url=bus.url, http_port=-1, **own(bus, "door"))
    log = Log("door", level="error", stream=io.BytesIO())
    ctx = Context("door", settings, log=log, metrics=Metrics("door"), health=Health())
    running = asyncio.ensure_future(door_main(ctx))
    try:
        yield ctx
    finally:
        ctx.stopping.set()
        await asyncio.wait_for(running, hang_s())
        for left in ctx.tasks:
            left.cancel()
        await asyncio.gather(*ctx.tasks, return_exceptions=True)


@asynccontextmanager
async def executing(bus: Bus, cluster: str, journal: Path) -> AsyncIterator[Host]:
    """A cluster and its executor, by the agent's key; leaving is the end of both."""
    nodes = tuple(NodeSpec(f"n{i}", 64_000, 262_144, 8, "T4") for i in range(JOBS // 8 + 1))
    async with bus.user(f"agent.{cluster}") as conn:
        client = DoorClient(conn, cluster)

        async def is_open() -> bool:
            return bool((await client.hello()).now_s)

        await eventually(is_open)  # as at_the_door waits for it
        spec = ClusterSpec(cluster, "eu", nodes)
        records = read_journal(journal)
        emulated = EmulatedCluster(spec, Nature(), conn.now(), records)
        emulated.take_journal()
        file = Journal(journal)
        file.begin(emulated.world.snapshot())
        host = Host(emulated, file, conn.now)
        shell = Shell(client, Executor(cluster), host)
        async with task(shell.run(asyncio.Event())):
            try:
                yield host
            finally:
                host.stop()
                file.close()


async def place(log: EventLog, cluster: str, number: int) -> None:
    name = f"{cluster}-{number}"
    request = msgspec.structs.replace(
        job(name), pod_sets=(PodSet(gpus=1),), expected_duration_s=36_000.0
    )
    head: dict[str, Any] = {"tenant": "acme", "id": name, "at_s": 1.0, "by": "test"}
    digest = request_digest(request)
    outcome = await log.append(Submitted(**head, after=0, request=request, digest=digest))
    assert isinstance(outcome, Stored)
    pods = (PodBinding(pod="main-0", node=f"n{number // 8}", gpus=(number % 8,)),)
    placed = Placed(
        **head,
        after=outcome.sequence,
        cluster=cluster,
        attempt=1,
        pods=pods,
        request=request,
        decision=1,
        submitted_at_s=1.0,
    )
    assert isinstance(await log.append(placed), Stored)


def names(held: Any) -> dict[str, list[str]]:
    """By cluster, what is held and proven."""
    found: dict[str, list[str]] = {}
    for one in held:
        assert isinstance(one, Held)
        receipt = one.attempt.receipt
        assert receipt is not None, one
        assert (receipt.cluster, receipt.id) == (one.cluster, one.attempt.id)
        found.setdefault(one.cluster, []).append(one.attempt.id)
    return {cluster: sorted(ids) for cluster, ids in found.items()}


def all_of(*clusters: str) -> dict[str, list[str]]:
    return {each: sorted(f"{each}-{number}" for number in range(JOBS)) for each in clusters}


@story
async def test_clusters_say_what_they_hold_on_a_sound_and_on_a_damaged_log(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "SETTLE_S", 0.1)
    journals = {each: tmp_path / f"{each}.journal" for each in (RED, BLUE)}
    async with bus.user("restorer") as restorer:
        async with door(bus.url, **own(bus, "door")) as ctx, AsyncExitStack() as stack:
            hosts = [
                await stack.enter_async_context(executing(bus, cluster, journal))
                for cluster, journal in journals.items()
            ]
            async with bus.user("resolver") as resolver:
                log = EventLog(resolver)
                for number in range(JOBS):
                    await asyncio.gather(*(place(log, each, number) for each in (RED, BLUE)))

            def all_made() -> bool:
                return all(len(host.cluster.world.groups) == JOBS for host in hosts)

            await until(all_made, moves=lambda: sum(len(h.cluster.world.groups) for h in hosts))
            found = await ask(restorer, {RED, BLUE}, limit_s=hang_s())
            assert names(found.held) == all_of(RED, BLUE)
            assert found.answered == {RED, BLUE}
            # grey has no executor: all others are heard all the same, and those that are not asked
            # count where they answer.
            found = await ask(restorer, {RED, GREY}, limit_s=BRIEF_S * slowness())
            assert found.answered == {RED}
            assert names(found.held) == all_of(RED)
            # The stream is lost, and made anew by somebody.
            await restorer.api(f"STREAM.DELETE.{WORKLOADS}")
            await make_streams(bus)
            await until(lambda: "made anew" in str(ctx.health.readiness()))
            found = await ask(restorer, {RED, BLUE}, limit_s=hang_s())
            assert names(found.held) == all_of(RED, BLUE)
        # Everything is started on the damaged log, or without one.
        await restorer.api(f"STREAM.DELETE.{WORKLOADS}")
        async with unready_door(bus), AsyncExitStack() as stack:
            for cluster, journal in journals.items():
                await stack.enter_async_context(executing(bus, cluster, journal))
            found = await ask(restorer, {RED, BLUE}, limit_s=hang_s())
            assert names(found.held) == all_of(RED, BLUE)


@story
async def test_large_receipts_of_thousands_of_jobs_pass_in_seconds(bus: Bus) -> None:
    signer = Receipts(key_of(read_creds(creds_file(bus.keys, "door")).seed))
    request = msgspec.structs.replace(job("large"), run=RunSpec(args=("x" * 1500,)))
    kept = receipt_of(request, sequence=2)
    held = []
    for number in range(3000):
        mine = signer.signed(msgspec.structs.replace(kept, id=f"job-{number}"))
        held.append(HeldAttempt(tenant="acme", id=f"job-{number}", attempt=1, receipt=mine))
    assert sum(len(one.receipt) for one in held) > 6_000_000
    async with (
        door(bus.url, **own(bus, "door")),
        bus.user("agent.red") as agent,
        bus.user("restorer") as restorer,
    ):
        inquiries: list[str] = []
        asked = asyncio.Event()
        client = DoorClient(agent, RED)

        def inquired(inquiry: str) -> None:
            inquiries.append(inquiry)
            asked.set()

        async def answer() -> None:
            await asked.wait()
            await report(client, inquiries[0], held)

        began_s = asyncio.get_running_loop().time()
        async with task(client.follow(lambda _: None, inquired=inquired)), task(answer()):
            found = await ask(restorer, {RED}, limit_s=hang_s())
        assert found.answered == {RED}
        assert len(names(found.held)[RED]) == 3000
        assert asyncio.get_running_loop().time() - began_s < 10 * slowness()


class Rig:
    """A door, and who hears what it passes on of reports."""

    def __init__(self, conns: dict[str, Connection]) -> None:
        self.conns = conns
        self.heard: list[HeldPage] = []

    async def says(self, cluster: str, inquiry: str, *held: HeldAttempt) -> HeldPage:
        """The page that comes of an agent's report."""
        self.heard.clear()
        request = HoldingsRequest(inquiry=inquiry, listing="x", page=0, last=True, held=held)
        await DoorClient(self.conns[f"agent.{cluster}"], cluster).ask("holdings", request)
        await until(lambda: self.heard)
        [page] = self.heard
        return page


@asynccontextmanager
async def rig(bus: Bus) -> AsyncIterator[Rig]:
    async with door(bus.url, **own(bus, "door")), AsyncExitStack() as stack:
        conns = {
            name: await stack.enter_async_context(bus.user(name))
            for name in USERS
            if name not in ("setup", "door")
        }
        made = Rig(conns)

        def take(_: str, data: bytes) -> None:
            made.heard.append(HELD_PAGES.decode(data))

        await conns["restorer"].subscribe(subjects.held_of_all_clusters(), take)
        await conns["restorer"].flush()
        yield made


@story
async def test_agent_answers_for_its_own_cluster_and_proves_its_own_attempts_only(
    bus: Bus,
) -> None:
    async with rig(bus) as there:
        log = EventLog(there.conns["resolver"])
        await place(log, RED, 0)
        await place(log, BLUE, 0)

        async def receipts(cluster: str) -> dict[str, str]:
            raw = await DoorClient(there.conns[f"agent.{cluster}"], cluster).ask("take", b"{}")
            hints = msgspec.json.decode(raw)["hints"]
            return {hint["event"]["id"]: hint["receipt"] for hint in hints}

        async def are_told() -> bool:
            return bool(await receipts(RED) and await receipts(BLUE))

        await eventually(are_told)
        mine, theirs = (await receipts(RED))["red-0"], (await receipts(BLUE))["blue-0"]

        def said(name: str, receipt: str, attempt: int = 1) -> HeldAttempt:
            return HeldAttempt(tenant="acme", id=name, attempt=attempt, receipt=receipt)

        page = await there.says(RED, "a", said("red-0", mine))
        assert page.cluster == RED
        assert page.held[0].receipt is not None
        content, _, mac = mine.partition(".")
        lies = (
            said("blue-0", theirs),
            said("blue-0", mine),
            said("red-0", theirs),
            said("red-0", mine, attempt=2),
            said("red-0", f"{content[:-4]}AAAA.{mac}"),
            said("red-0", Receipts(b"guessed").signed(receipt_of(job("red-0"), sequence=1))),
            said("made-up", "x" * 1000),
            said("made-up", ""),
        )
        page = await there.says(RED, "b", *lies)
        assert (page.cluster, page.inquiry) == (RED, "b")
        assert [one.receipt for one in page.held] == [None] * len(lies)
        # As another cluster it is not heard at all, nor as the door.
        red = there.conns["agent.red"]
        there.heard.clear()
        request = HoldingsRequest(inquiry="c", listing="x", page=0, last=True)
        with pytest.raises(BusError):
            await DoorClient(red, BLUE).ask("holdings", request, timeout_s=1.0)
        forged = HeldPage(cluster=BLUE, inquiry="c", listing="x", page=0, last=True)
        for user in ("agent.red", "operator", "watcher", "tenant.acme", "resolver"):
            await there.conns[user].publish(subjects.held(BLUE), encode(forged))
            await there.conns[user].flush()
        assert (await there.says(RED, "d")).inquiry == "d"  # that is all that came


def receipt_of(request: JobRequest, sequence: int) -> Receipt:
    return Receipt(
        tenant="acme",
        id=request.id,
        cluster=RED,
        attempt=1,
        request=request,
        digest=request_digest(request),
        pods=(PodBinding(pod="main-0", node="n1"),),
        decision=1,
        sequence=sequence,
        submitted_sequence=1,
    )


@story
async def test_only_restorer_asks_and_tenants_watchers_and_agents_hear_no_answer(bus: Bus) -> None:
    async with rig(bus) as there:
        asked: list[str] = []
        elsewhere: list[str] = []
        agent = DoorClient(there.conns["agent.red"], RED)
        async with task(agent.follow(lambda _: None, inquired=asked.append)):
            others = ("tenant.acme", "watcher", "operator", "agent.blue", "resolver")
            for user in others[:2] + others[3:]:
                await there.conns[user].subscribe(
                    subjects.held_of_all_clusters(), lambda where, _: elsewhere.append(where)
                )
            for user in others:
                nudge = encode(Nudge(sequence=0, inquiry=f"of {user}"))
                for subject in (subjects.assign(RED), subjects.inquiry(RED)):
                    await there.conns[user].publish(subject, nudge)
                await there.conns[user].flush()
            nudge = encode(Nudge(sequence=0, inquiry="rightful"))

            async def is_asked() -> bool:
                await there.conns["restorer"].publish(subjects.inquiry(RED), nudge)
                await there.conns["restorer"].flush()
                return "rightful" in asked

            await eventually(is_asked)
            assert set(asked) == {"rightful"}
            await there.says(RED, "rightful", HeldAttempt(tenant="acme", id="x", attempt=1))
            for user in others:
                await there.conns[user].flush()
            assert elsewhere == []
