"""Attacks by whoever is in a worker cluster that has a nats-server of its own, a leaf of ours.

The leaf asks nobody for a key and lets everything through. It comes to us as the cluster's agent,
or with a JWT that permits all its account can give. What stops its clients is ours, then: the
account, and the agent's rights.
"""

import asyncio
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import nats
import pytest
from nats.aio.client import Client as NatsClient

from berthmaster.cli.audit.report import audit
from berthmaster.lib.access.keys import creds_file, make_keys, server_config
from berthmaster.lib.access.permissions import STREAMS, inbox_prefix
from berthmaster.lib.door_client.client import DoorClient, Heard
from berthmaster.lib.door_client.door_facts import DoorFacts
from berthmaster.lib.lifecycle.instructions import Stored
from berthmaster.lib.lifecycle.workload import request_digest
from berthmaster.lib.messages.families import encode
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import Claimed, Running, Succeeded
from berthmaster.lib.nats import jwts, subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import BusError
from berthmaster.lib.nats.message_subjects import event_subject
from berthmaster.lib.nats.streams import ensure_streams
from berthmaster.lib.runtime.ports import free_ports
from berthmaster.lib.supervisor.embedded import Server, ServerCluster, ServerConfig
from tests.bus.doors import door
from tests.bus.redteam.test_accounts import (
    API,
    HEADERS,
    LOG,
    REPLIES,
    SYSTEM,
    TRACE,
    USERS,
    Bus,
    answering,
    jwt_by,
    last,
    running,
    unchanged,
    unheard,
)
from tests.bus.shells import ask, gateway
from tests.bus.test_resolver import resolver
from tests.bus.tools import Lines, Settings, eventually, patiently, story, submitted, task
from tests.support.builders import alive, job, node, profile
from tests.support.patience import ANSWER_S, Hung, hang_s, until

RED = "berth.agent.red"
OTHERS = (
    "berth.api.acme.submit",
    "berth.operator.cordon",
    "berth.agent.blue.tell",
    "berth.agent.blue.take",
    "berth.event.acme.x",
    "berth.assign.blue.x",
    "berth.assign.red.x",
)
TENANT = "acme"


class Hub(NamedTuple):
    """Where the streams are, and where leaves come in."""

    bus: Bus
    leaves: int
    folder: Path


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("leaf")
    keys = folder / "keys"
    make_keys(keys, (*USERS, "agent.blue", "resolver"))
    [port] = free_ports(1)
    accounts = server_config(keys, folder / "jwt")
    config = ServerConfig(sync="default", extra=accounts + listening(port))
    with Server(folder / "hub", config) as server:
        made = Hub(Bus(server.url, keys), port, folder)

        async def streams() -> None:
            async with made.bus.user("setup") as conn:
                await ensure_streams(conn)

        asyncio.run(streams())
        yield made


def listening(port: int) -> str:
    return f'leafnodes {{ listen: "127.0.0.1:{port}" }}\n'


@contextmanager
def leaf(folder: Path, creds: Path, *ports: int) -> Iterator[Server]:
    """A cluster's own server, which stores nothing and comes to one of ours with these
    credentials."""
    urls = ", ".join(f'"nats-leaf://127.0.0.1:{port}"' for port in ports)
    remote = f'{{ urls: [{urls}], credentials: "{creds}" }}'
    extra = f"jetstream: disabled\nleafnodes {{ reconnect: 1, remotes: [{remote}] }}\n"
    with Server(folder / f"leaf-{creds.stem}", ServerConfig(name=creds.stem, extra=extra)) as one:
        yield one


def all_creds(keys: Path, folder: Path) -> Path:
    """Credentials of the cluster's account that forbid nothing."""
    file = folder / "all.creds"
    seed = (keys / "accounts" / "C_red.seed").read_text().strip()
    file.write_text(jwts.creds_text(jwt_by(seed)))
    return file


@pytest.fixture(scope="module")
def as_agent(hub: Hub) -> Iterator[Server]:
    """One with the rights of the cluster's agent."""
    with leaf(hub.folder, creds_file(hub.bus.keys, "agent.red"), hub.leaves) as server:
        yield server


@pytest.fixture(scope="module")
def may_all(hub: Hub) -> Iterator[Server]:
    with leaf(hub.folder, all_creds(hub.bus.keys, hub.folder), hub.leaves) as server:
        yield server


@asynccontextmanager
async def anybody(server: Server, **options: Any) -> AsyncIterator[NatsClient]:
    client = await nats.connect(server.url, allow_reconnect=False, error_cb=unheard, **options)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def agent(server: Server) -> AsyncIterator[Connection]:
    """The cluster's honest agent, behind the same leaf."""
    settings = Settings(server.url, None, inbox_prefix("agent.red"))
    async with await Connection.open(
        settings, "agent.red", Lines(), timeout_s=ANSWER_S, clock_subject=""
    ) as conn:
        yield conn


async def linked(conn: Connection) -> None:
    """Until the leaf and the hub know of each other's subscriptions."""

    async def answered() -> bool:
        return bool((await conn.request(f"{RED}.story", b"{}", timeout_s=1)).data)

    await eventually(answered)


@pytest.mark.parametrize("which", ["as_agent", "may_all"])
@story
async def test_what_comes_by_way_of_a_leaf_is_its_own_clusters_and_no_more(
    hub: Hub, which: str, request: pytest.FixtureRequest
) -> None:
    server: Server = request.getfixturevalue(which)
    async with (
        unchanged(hub.bus),
        answering(hub.bus) as (gateway, heard),
        agent(server) as honest,
        anybody(server) as evil,
    ):
        await linked(honest)
        heard.clear()
        for reply in REPLIES:
            for headers in (None, HEADERS, TRACE):
                await evil.publish(f"{RED}.tell", b"{}", reply=reply, headers=headers)
        for subject in (*LOG, *OTHERS):
            for headers in (None, HEADERS, TRACE):
                await evil.publish(subject, b"{}", headers=headers)
                await evil.publish(subject, b"{}", reply="berth.decision.all", headers=headers)
        await evil.flush()
        # Behind all of that on the same links: it is answered when the rest has come.
        behind = await honest.request(f"{RED}.story", b"{}", timeout_s=ANSWER_S)
        assert behind.data == b"refused"
        # That answer may overtake what the service has still to work on.
        await until(lambda: heard.count(f"{RED}.tell") > len(LOG))
        await gateway.flush()
        assert set(heard) == {f"{RED}.tell", f"{RED}.story"}
        assert gateway.violations == []
        with pytest.raises(BusError):
            await honest.request("berth.agent.blue.story", b"{}", timeout_s=0.2)


@pytest.mark.parametrize("which", ["as_agent", "may_all"])
@story
async def test_jetstream_and_the_system_do_not_answer_across_a_leaf(
    hub: Hub, which: str, request: pytest.FixtureRequest
) -> None:
    server: Server = request.getfixturevalue(which)
    said: list[bytes] = []

    async def hear(msg: Any) -> None:
        said.append(msg.data)

    async with (
        unchanged(hub.bus),
        answering(hub.bus),
        agent(server) as honest,
        anybody(server) as evil,
    ):
        await linked(honest)
        inbox = f"{inbox_prefix('agent.red')}.api"
        await evil.subscribe(inbox, cb=hear)
        every = (*(one.format(stream) for one in API for stream in STREAMS), *SYSTEM)
        for subject in every:
            for reply in (inbox, *LOG):
                await evil.publish(subject, b"{}", reply=reply)
        await evil.flush()
        await honest.request(f"{RED}.story", b"{}", timeout_s=ANSWER_S)
        await evil.flush()
        told = b"".join(said).decode()
        assert not any(stream in told.replace("$JS.API", "") for stream in STREAMS), told
        for seed in hub.bus.keys.glob("accounts/*.seed"):
            own = seed.stem == "C_red"
            assert own or jwts.public_key(seed.read_text().strip()) not in told, seed.stem


@pytest.mark.parametrize("which", ["as_agent", "may_all"])
@story
async def test_who_listens_behind_a_leaf_hears_its_own_clusters_assignments_only(
    hub: Hub, which: str, request: pytest.FixtureRequest
) -> None:
    server: Server = request.getfixturevalue(which)
    heard: set[str] = set()

    async def hear(msg: Any) -> None:
        heard.add(msg.subject)

    async with (
        answering(hub.bus) as (gateway, _),
        agent(server) as honest,
        anybody(server) as evil,
        hub.bus.user("door") as assigning,
        hub.bus.user("agent.blue") as blue,
        hub.bus.user("tenant.acme") as acme,
    ):
        own = ("berth.assign.red.now", "berth.assign.red.then")
        mine = asyncio.Event()

        async def assigned(_: Any) -> None:
            mine.set()

        await honest.subscribe_raw("berth.assign.red.>", assigned)
        everything = (">", "berth.>", "_INBOX.>", "_R_.>", "$SYS.>", "$JS.>", "berth.assign.*.>")
        for subject in (*everything, "berth.agent.*.*", "berth.event.>", "berth.workload.>"):
            await evil.subscribe(subject, cb=hear)
        await evil.flush()
        await linked(honest)
        heard.clear()
        await blue.request("berth.agent.blue.take", b"{}", timeout_s=ANSWER_S)
        await acme.request("berth.api.acme.get", b"{}", timeout_s=ANSWER_S)
        event = submitted(f"behind-{which.replace('_', '-')}")
        await gateway.store(event_subject(event), encode(event))
        for subject in ("berth.assign.blue.now", *own):
            await assigning.publish(subject, b"{}")
        await assigning.flush()
        await asyncio.wait_for(mine.wait(), hang_s())
        await honest.request(f"{RED}.story", b"{}", timeout_s=ANSWER_S)
        await evil.flush()
        # What the agent says and hears on its own leaf is that leaf's to keep.
        foreign = {one for one in heard if not one.startswith((RED, "_INBOX.agent.red."))}
        assert foreign <= set(own)


@asynccontextmanager
async def forged_leaf(hub: Hub, user: str, *lines: bytes) -> AsyncIterator[asyncio.StreamReader]:
    """Something that speaks as a leaf does and says these lines, whatever its rights are: a server
    of ours that is a leaf would not even send them. What it reads goes on after its PING."""
    creds = jwts.parse_creds(creds_file(hub.bus.keys, user).read_text())
    reader, writer = await asyncio.open_connection("127.0.0.1", hub.leaves)
    try:
        info = msgspec.json.decode((await reader.readline()).partition(b" ")[2])
        signed = jwts.answered(creds.seed, info["nonce"]).decode()
        said: dict[str, Any] = {"jwt": creds.jwt, "sig": signed, "name": "evil", "server_id": "X"}
        said |= {"version": "2.15.1", "protocol": 1}
        writer.write(b"CONNECT " + msgspec.json.encode(said | {"headers": True}) + b"\r\n")
        writer.write(b"".join(lines) + b"PING\r\n")
        await writer.drain()
        yield reader
    finally:
        writer.close()


async def read_to(reader: asyncio.StreamReader, *ends: bytes) -> bytes:
    """Up to the line that begins with one of these."""
    async with asyncio.timeout(hang_s()):
        while line := await reader.readline():
            if line.startswith(ends):
                return line
    return b""


@story
async def test_a_leaf_that_is_no_server_of_ours_is_held_by_ours_all_the_same(hub: Hub) -> None:
    blue = "berth.agent.blue"
    others = (*LOG, *SYSTEM, *(one.format("WORKLOADS") for one in API))
    async with (
        unchanged(hub.bus),
        answering(hub.bus) as (gateway, heard),
        hub.bus.user("door") as assigning,
    ):
        for subject in (*others, "berth.api.acme.submit", f"{RED}.tell", "berth.assign.red.x"):
            line = f"LMSG {subject} berth.decision.all 2\r\n{{}}\r\n".encode()
            async with forged_leaf(hub, "agent.blue", line) as reader:
                end = await read_to(reader, b"PONG", b"-ERR")
                # The server lets each acknowledgement pass; its account has no consumer.
                said = b"PONG" if subject.startswith("$JS.ACK.") else b"Permissions Violation"
                assert said in end, (subject, end)
        own = f"LMSG {blue}.tell berth.decision.all 2\r\n{{}}\r\n".encode()
        async with forged_leaf(hub, "agent.blue", own) as reader:
            assert await read_to(reader, b"PONG", b"-ERR") == b"PONG\r\n"
            await until(lambda: heard == [f"{blue}.tell"])
        everything = [b"LS+ %s\r\n" % one for one in (b">", b"berth.>", b"_INBOX.>")]
        async with forged_leaf(hub, "agent.blue", *everything) as reader:
            assert await read_to(reader, b"PONG", b"-ERR") == b"PONG\r\n"
            for subject in ("berth.assign.red.x", "berth.assign.blue.x"):
                await assigning.publish(subject, b"{}")
            await assigning.flush()
            # The server adds a header to what crosses an import: HMSG then, not LMSG.
            first = await read_to(reader, b"LMSG", b"HMSG")
            assert first.split()[1] == b"berth.assign.blue.x"
        await gateway.flush()
        assert heard == [f"{blue}.tell"]


# ---- honest work, on the services themselves


class Cluster:
    """One node behind a leaf, whose executor does what it is told by way of the door."""

    def __init__(self, conn: Connection) -> None:
        self.door = DoorClient(conn, "red")
        self.heard: list[Heard] = []

    async def report(self) -> None:
        facts = DoorFacts(self.door)
        await facts.begin()
        for subject, fact in (
            (subjects.profile("red"), profile("red")),
            (subjects.node("red", "n1"), node("red", "n1", gpus=8)),
            (subjects.alive("red"), alive("red")),
        ):
            await facts.put(subject, fact)

    async def does(self, name: str) -> None:
        """What is placed here is claimed, runs, and succeeds."""

        def hint() -> int:
            found = (each for one in self.heard for each in one.hints if each.event.id == name)
            return next((each.sequence for each in found), 0)

        await until(hint, f"{name} is placed")
        request = job(name, gpus=1)
        head: dict[str, Any] = {"tenant": TENANT, "id": name, "at_s": 0.0, "by": "executor/red"}
        head |= {"cluster": "red", "attempt": 1}
        pods = (PodBinding(pod="main-0", node="n1", gpus=(0,)),)
        ended = {"digest": request_digest(request), "submitted_at_s": 0.0}
        after = hint()
        steps: tuple[tuple[Callable[..., Any], dict[str, Any]], ...] = (
            (Claimed, {"executor": "executor/red"}),
            (Running, {"pods": pods}),
            (Succeeded, ended),
        )
        for kind, more in steps:
            told = await self.door.append(kind(**head, after=after, **more))
            assert isinstance(told, Stored), (kind, told)
            after = told.sequence


async def attacks(evil: NatsClient, rounds: list[float]) -> None:
    """All of it, again and again, slower than what the door would refuse as a flood."""
    loop = asyncio.get_running_loop()
    while True:
        for subject in (*LOG, *OTHERS, *SYSTEM, f"{RED}.tell", f"{RED}.story"):
            for reply in ("berth.decision.all", "berth.workload.acme.work-1.cancel_requested.red"):
                for headers in (None, HEADERS, TRACE):
                    await evil.publish(subject, b"{}", reply=reply, headers=headers)
            await evil.flush()
            await asyncio.sleep(0.01)
        rounds.append(loop.time())


@story
async def test_leaf_under_attack_completes_honest_work(hub: Hub, as_agent: Server) -> None:
    def user(name: str) -> dict[str, Any]:
        return {
            "nats_creds_file": creds_file(hub.bus.keys, name),
            "inbox_prefix": inbox_prefix(name),
        }

    url = hub.bus.url
    async with (
        gateway(url, **user("gateway")),
        resolver(url, **user("resolver")),
        door(url, **user("door")),
        hub.bus.user("operator") as operator,
        hub.bus.user("tenant.acme") as acme,
        agent(as_agent) as honest,
        anybody(as_agent) as evil,
    ):
        red = Cluster(honest)
        rounds: list[float] = []
        done = 0
        async with task(attacks(evil, rounds)), task(red.door.follow(red.heard.append)):
            await red.report()
            while len(rounds) < 2:
                name = f"work-{done}"
                reply = await ask(acme, "submit", job(name, gpus=1), tenant=TENANT)
                assert type(reply).__name__ == "SubmitReply", reply
                try:
                    await red.does(name)
                except Hung as hung:
                    asked = b'{"id": "%s"}' % name.encode()
                    hung.add_note(f"why: {await ask(acme, 'why', asked, tenant=TENANT)}")
                    hung.add_note(f"the agent's log: {honest.log}")
                    raise
                done += 1
        report = await audit(operator)
        assert (report.findings, report.accounted, report.succeeded) == ((), True, done), report
        assert done > 2


# ---- three servers


async def all_attacks(evil: NatsClient, own: str) -> None:
    for reply in REPLIES:
        for headers in (None, HEADERS, TRACE):
            await evil.publish(f"{own}.hello", b"{}", reply=reply, headers=headers)
    for subject in (*LOG, *OTHERS, *SYSTEM, *(one.format(of) for one in API for of in STREAMS)):
        for reply in ("", "berth.decision.all"):
            await evil.publish(subject, b"{}", reply=reply, headers=HEADERS)
    await evil.flush()


def linked_to(three: ServerCluster) -> Server | None:
    """Which of them a leaf has come to."""
    for server in three.servers:
        if server.running:
            with urllib.request.urlopen(f"{server.monitor_url}/leafz", timeout=hang_s()) as reply:
                if msgspec.json.decode(reply.read())["leafnodes"]:
                    return server
    return None


@story
async def test_on_three_servers_too_also_when_the_leafs_own_goes(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    make_keys(keys, USERS)
    ports = free_ports(3)
    three = ServerCluster(tmp_path / "nats", config=ServerConfig(sync="default"))
    with (
        running(three, keys, [listening(port) for port in ports]),
        leaf(tmp_path, all_creds(keys, tmp_path), *ports) as server,
    ):
        bus = Bus(three.url, keys)
        async with bus.user("setup") as conn:

            async def made() -> bool:
                await ensure_streams(conn, replicas=3)
                return True

            await eventually(made)
        async with (
            unchanged(bus) as operator,
            answering(bus) as (_, heard),
            agent(server) as honest,
            anybody(server) as evil,
        ):
            await linked(honest)
            for each in three.servers:
                for account, own in (("T_evil", "berth.api.evil"), ("C_red", RED)):
                    async with Bus(each.url, keys).may_all(account) as direct:
                        await all_attacks(direct, own)
            await all_attacks(evil, RED)
            await linked(honest)
            lost = linked_to(three)
            assert lost is not None
            lost.stop()
            await linked(honest)
            assert linked_to(three) not in (None, lost)
            await all_attacks(evil, RED)
            await linked(honest)
            assert set(heard) == {f"{RED}.hello", f"{RED}.story", "berth.api.evil.hello"}
            await patiently(lambda: last(operator))
