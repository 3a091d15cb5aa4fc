"""No user leads an answer anywhere but to an inbox, whatever it asks and wherever it says.

JetStream and the services answer to the reply subject of a request. Every user of the table of
permissions asks under every subject that it may publish to, with replies in the log, the chain,
settings, leases, facts, assignments and JetStream's own requests. A new user is covered by being in
the table.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import nats
import pytest

from berthmaster.lib.access.claims import CORE
from berthmaster.lib.access.keys import creds_file, make_keys, server_config
from berthmaster.lib.access.permissions import (
    PART_ROLES,
    STREAMS,
    WHOLE_ROLES,
    account_of,
    grants,
    inbox_prefix,
)
from berthmaster.lib.messages.api import GATEWAY_VERBS, USAGE_VERBS
from berthmaster.lib.messages.door import DOOR_VERBS
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.durables import ENDINGS
from berthmaster.lib.nats.endpoints import Endpoint, serve
from berthmaster.lib.nats.follower import Follower
from berthmaster.lib.nats.stream_messages import Recorded
from berthmaster.lib.nats.streams import FOLLOWED, SNAPSHOTS, WORKLOADS, ensure_streams
from berthmaster.lib.nats.subjects import LANES, covers
from berthmaster.lib.supervisor.embedded import Server, ServerConfig
from tests.bus.tools import Lines, Settings, eventually, story
from tests.support.patience import ANSWER_S

USERS: Final = (*WHOLE_ROLES, *(f"{role}.red" for role in PART_ROLES))
SEEDS: Final = {  # what each stream holds, and no request of the test changes
    "WORKLOADS": "berth.workload.acme.v1.claimed.red",
    "FLEET": "berth.fleet.red.alive",
    "LEASES": "berth.lease.executor.red",
    "DEAD": "berth.dead.executor",
    "CONTROL": "berth.control.cordon.t4.-",
}
# Each is a subject that no request of the test is sent under.
STORED: Final = (
    "berth.decision.elsewhere",
    "berth.workload.acme.elsewhere.cancel_requested.-",
    "berth.workload.acme.elsewhere.submitted.-",
    "berth.control.cordon.elsewhere.-",
    "berth.control.queue.elsewhere",
    "berth.lease.elsewhere.all",
    "berth.fleet.elsewhere.alive",
    "berth.archive.workload.elsewhere.1",
    "berth.dead.elsewhere",
    "berth.log_end.elsewhere.v1.1.red.0",
    "$O.SNAPSHOTS.C.elsewhere",
)
HEARD: Final = ("berth.assign.blue.elsewhere", "berth.event.acme.elsewhere.submitted.-")
ASKED: Final = ("berth.api.acme.submit", "berth.operator.cordon", "berth.agent.red.tell")
JETSTREAM: Final = tuple(
    f"{prefix}.API.STREAM.{verb}.{stream}"
    for prefix in ("$JS", "JS")
    for verb in ("PURGE", "DELETE", "UPDATE")
    for stream in ("WORKLOADS", "CONTROL", "FLEET", "LEASES", SNAPSHOTS)
)
REPLIES: Final = (*STORED, *HEARD, *ASKED, *JETSTREAM)


class Rig:
    """A bus with every user, and what listens there."""

    def __init__(self, server: Server, keys: Path) -> None:
        self.server = server
        self.keys = keys

    @asynccontextmanager
    async def user(self, name: str) -> AsyncIterator[Connection]:
        settings = Settings(self.server.url, creds_file(self.keys, name), inbox_prefix(name))
        async with await Connection.open(
            settings, name, Lines(), timeout_s=10, clock_subject=""
        ) as conn:
            yield conn

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[list[str]]:
        """What services were asked, and what a tenant and a cluster's agent heard."""
        heard: list[str] = []

        async def answer(subject: str, _: bytes) -> bytes:
            heard.append(subject)
            return b"{}"

        async def hear(msg: Any) -> None:
            heard.append(msg.subject)

        def said(*_: object) -> bytes:
            return b"{}"

        asked = {
            "gateway": {
                **{verb: f"berth.api.*.{verb}" for verb in GATEWAY_VERBS},
                "operator": "berth.operator.*",
            },
            "door": {verb: f"berth.agent.*.{verb}" for verb in DOOR_VERBS},
            "resolver": {"why": "berth.api.*.why", "cordons": "berth.operator.cordons"},
            "usage": {verb: f"berth.api.*.{verb}" for verb in USAGE_VERBS},
            "login": {"token": "login.token"},
        }
        async with (
            self.user("gateway") as gateway,
            self.user("door") as door,
            self.user("resolver") as resolver,
            self.user("usage") as usage,
            self.user("login") as login,
            self.user("tenant.acme") as tenant,
            self.user("agent.blue") as agent,
        ):
            for conn, (name, verbs) in zip(
                (gateway, door, resolver, usage, login), asked.items(), strict=True
            ):
                await serve(
                    conn,
                    f"berth-{name}",
                    {verb: Endpoint(subject, answer) for verb, subject in verbs.items()},
                    version="1.0.0",
                    description="test",
                    overloaded=said,
                    failed=said,
                    lanes=[conn] * LANES if name in ("gateway", "door") else (),
                )
            for conn, subject in ((tenant, "berth.event.acme.>"), (agent, "berth.assign.blue.>")):
                await conn.subscribe_raw(subject, hear)
            for conn in (gateway, door, resolver, usage, login, tenant, agent):
                await conn.flush()
            yield heard


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("replies")
    make_keys(folder / "keys", (*USERS, "tenant.acme", "agent.blue"))
    config = ServerConfig(sync="default", extra=server_config(folder / "keys", folder / "jwt"))
    with Server(folder / "nats", config) as server:
        made = Rig(server, folder / "keys")
        asyncio.run(filled(made))
        yield made


async def filled(rig: Rig) -> None:
    """Each stream holds something that an answer can bring, and something to lose."""
    async with rig.user("setup") as setup, rig.user("door") as door, rig.user("gateway") as gateway:
        await ensure_streams(setup)
        for stream, subject in SEEDS.items():
            await (gateway if stream == "CONTROL" else door).store(subject, b"{}")
        for _ in range(len(REPLIES)):  # one for each reply, of each durable
            for kind in (*ENDINGS, "evicted"):
                await door.store(f"berth.workload.acme.v1.{kind}.red", b"{}")
    async with rig.user("archivist") as archivist, rig.user("resolver") as resolver:
        await archivist.store("berth.archive.workload.acme.1", b"{}")
        for _ in range(len(REPLIES)):
            await resolver.store("berth.decision.all", b"{}")


def literal(pattern: str) -> str:
    """One subject of a pattern; none that a reply is aimed at."""
    return ".".join("own" if each in ("*", ">") else each for each in pattern.split("."))


def requests(user: str) -> Iterator[tuple[str, bytes]]:
    """What a user may ask, with bodies that are answered, as far as that removes nothing itself."""
    for pattern in grants(user).publish:
        for subject in subjects(pattern):
            for body in bodies(subject):
                yield subject, body


def subjects(pattern: str) -> Iterator[str]:
    head, dot, last = pattern.rpartition(".")
    reads = ("STREAM.INFO", "LIST", "NAMES", "MSG.GET", "DIRECT.GET")
    if dot and last in ("*", ">") and head.endswith(reads):
        yield f"{head}.{WORKLOADS}"
    yield literal(pattern)


def bodies(subject: str) -> tuple[bytes, ...]:
    if "DIRECT.GET" in subject:
        asked: list[dict[str, Any]] = [
            {"seq": 1},
            {"seq": 1, "batch": 10},
            {"seq": 999, "batch": 10},
            {"multi_last": [">"], "batch": 10},
        ]
        return tuple(json.dumps(each).encode() for each in asked)
    if "STREAM.PURGE" in subject:
        return (b'{"filter":"$O.SNAPSHOTS.C.nothing"}',)
    if "STREAM.DELETE" in subject:
        return ()  # a restorer's own right
    if "MSG.GET" in subject:
        return (b'{"seq":1}', b'{"seq":999}')
    if "MSG.NEXT" in subject:
        return (b'{"batch":1,"no_wait":true}',)
    if "CONSUMER.CREATE" in subject:
        return (b"{}",)
    if subject.startswith(("$JS.API.STREAM", "JS.API.STREAM")) and "INFO" not in subject:
        # Of what the user may change by itself: a request that is refused.
        return (b'{"seq":999999999}',)
    return (b"", b"{}")


async def state(conn: Connection) -> dict[str, Any]:
    """What of each stream must not change: its configuration, its first message, and that nothing
    is stored where replies were aimed."""
    found: dict[str, Any] = {}
    for stream in STREAMS:
        raw = await conn.api(f"STREAM.INFO.{stream}", {"subjects_filter": ">"})
        info = msgspec.json.decode(raw)
        held = info["state"].get("subjects") or {}
        found[stream] = (
            info["created"],
            info["config"],
            held.get(SEEDS.get(stream, "")),
            sorted(each for each in held if "elsewhere" in each),
        )
    return found


def test_every_role_of_the_table_is_tried() -> None:
    assert {user.split(".")[0] for user in USERS} == {*WHOLE_ROLES, *PART_ROLES}


@pytest.mark.parametrize("user", USERS)
@story
async def test_answer_reaches_nothing_but_an_inbox(rig: Rig, user: str) -> None:
    async with rig.user("operator") as operator, rig.listening() as heard:
        before = await state(operator)
        assert not [each for _, _, _, aimed in before.values() for each in aimed]

        async def unheard(_: Exception) -> None:
            """A user may be refused an answer's subject; what comes of it is looked at below."""

        client = await nats.connect(
            rig.server.url,
            user_credentials=creds_file(rig.keys, user),
            inbox_prefix=inbox_prefix(user),
            error_cb=unheard,
            allow_reconnect=False,
        )
        sent = 0
        for subject, body in requests(user):
            for reply in REPLIES:
                await client.publish(subject, body, reply=reply)
                sent += 1
            await client.flush()
        assert sent or not grants(user).publish
        await client.close()
        await asyncio.sleep(0.2)
        own = {literal(each) for each in grants(user).publish}
        assert not [each for each in heard if each in {*HEARD, *ASKED} - own]
        assert await state(operator) == before


@story
async def test_service_apart_answers_what_is_asked_of_core_and_is_found_there(rig: Rig) -> None:
    async with rig.listening() as heard, rig.user("dashboard") as dashboard:
        for user, subject in (
            ("tenant.acme", "berth.api.acme.report"),
            ("tenant.acme", "berth.api.acme.why"),  # beside the account of multikueue
            ("operator", "berth.operator.cordons"),
            ("operator", "berth.api.acme.trends"),
            ("dashboard", "berth.api.acme.report"),
            ("sentinel", "login.token"),
        ):
            async with rig.user(user) as asker:
                answer = await asker.request(subject, b"{}", timeout_s=ANSWER_S)
                assert (answer.data, heard.pop()) == (b"{}", subject)
        found: set[str] = set()

        async def hear(msg: Any) -> None:
            found.add(json.loads(msg.data)["name"])

        inbox = dashboard.nc.new_inbox()
        await dashboard.subscribe_raw(inbox, hear)
        await dashboard.publish("$SRV.PING", b"", reply=inbox)
        names = {f"berth-{each}" for each in ("gateway", "door", "resolver", "usage", "login")}

        async def all_answer() -> bool:
            return found == names

        await eventually(all_answer)


@story
async def test_verb_of_a_service_apart_that_is_away_is_refused_at_once(rig: Rig) -> None:
    """The chain of imports says that nobody listens, as one import does."""
    async with rig.user("tenant.acme") as tenant:
        for verb in ("why", "report", "list"):
            with pytest.raises(nats.errors.NoRespondersError):
                await tenant.nc.request(f"berth.api.acme.{verb}", b"{}", timeout=ANSWER_S)


@story
async def test_answers_arrive_where_they_are_awaited(rig: Rig) -> None:
    """The requests of the test above are ones that JetStream answers."""
    for user in ("watcher", "dashboard", "gateway"):
        async with rig.user(user) as conn:
            assert msgspec.json.decode(await conn.api("STREAM.INFO.FLEET"))["state"]["messages"]
    async with rig.user("watcher") as conn:
        ends: list[dict[str, str]] = []
        inbox = conn.nc.new_inbox()

        async def each(msg: Any) -> None:
            ends.append(dict(msg.headers or {}))

        await conn.subscribe_raw(inbox, each)
        asked = b'{"multi_last":["berth.fleet.>"],"batch":10}'
        await conn.publish("$JS.API.DIRECT.GET.FLEET", asked, reply=inbox)

        async def ended() -> bool:
            return any(headers.get("Status") == "204" for headers in ends)

        await eventually(ended)
        assert ends[0]["Nats-Subject"] == "berth.fleet.red.alive"


LISTENERS: Final = {  # of what services tell each other without a stream: pattern, one subject
    "gateway": ("berth.figures.*.*.*", "berth.figures.acme.blue.v1"),
    "resolver": ("berth.figures.*.*.*", "berth.figures.acme.blue.v1"),
    "scorer": ("berth.telemetry.*.*", "berth.telemetry.blue.n1"),
    "usage": ("berth.quality.*", "berth.quality.all"),
    "door": ("berth.inquiry.*", "berth.inquiry.blue"),
}
READERS: Final = tuple(
    user for user in USERS if any("DIRECT.GET" in each for each in grants(user).publish)
)


def follower_beside(user: str) -> str:
    """A follower of the log that an answer to this user could reach: a replica of its own, or a
    service of CORE."""
    follows = any(covers(each, "berth.stored.workload.>") for each in grants(user).subscribe)
    return user if follows and account_of(user) != CORE else "door"


async def lead(rig: Rig, user: str, replies: Iterable[str], first: int = 1) -> None:
    """Ask for messages that a user may read, from a sequence on, with these replies."""
    async with rig.user(user) as conn:
        for pattern in grants(user).publish:
            if "DIRECT.GET" in pattern:
                for reply in replies:
                    for asked in [{"seq": first}, {"seq": first + 1}, {"seq": 1, "batch": 99}]:
                        body = json.dumps(asked).encode()
                        await conn.publish(literal(pattern), body, reply=reply)
        await conn.flush()


@pytest.mark.parametrize("user", READERS)
@story
async def test_answer_is_not_taken_for_what_a_stream_stored(rig: Rig, user: str) -> None:
    """A follower believes sequences that it hears: one of another stream would hide an event."""
    event = f"berth.workload.acme.led-{user}.claimed.red"
    async with rig.user(follower_beside(user)) as reader, rig.user("door") as door:
        taken: list[Recorded] = []
        ready = asyncio.Event()
        follower = Follower(reader, WORKLOADS, FOLLOWED[WORKLOADS])
        following = asyncio.create_task(follower.run(taken.append, caught_up=ready.set))
        await ready.wait()
        known = follower.sequence
        while await door.store("berth.fleet.blue.alive", b"{}") < known + 3:
            pass  # until FLEET has the log's next sequences, too
        await lead(rig, user, [f"berth.stored.{event.removeprefix('berth.')}"], known + 1)
        for headers in (None, {"Nats-Stream": "FLEET"}):
            await door.store(event, b"{}", headers=headers)
        last = await door.store(event, b"{}")

        async def read() -> bool:
            return follower.sequence == last

        await eventually(read)
        following.cancel()
        new = [(each.sequence, each.subject) for each in taken if each.sequence > known]
        assert new == [(sequence, event) for sequence in range(known + 1, last + 1)]
        assert len(taken) == len({each.sequence for each in taken})


@pytest.mark.parametrize("user", READERS)
@story
async def test_answer_is_not_taken_for_an_observation(rig: Rig, user: str) -> None:
    async with AsyncExitStack() as stack:
        heard: list[str] = []

        def hear(subject: str, data: bytes) -> None:
            if data:  # the message that ends a batch says nothing
                heard.append(subject)

        for name, (pattern, _) in LISTENERS.items():
            conn = await stack.enter_async_context(rig.user(name))
            for listen in (conn.observe, conn.subscribe):
                await listen(pattern, hear)
            await conn.flush()
        await lead(rig, user, {subject for _, subject in LISTENERS.values()})
        door = await stack.enter_async_context(rig.user("door"))
        await door.publish("berth.figures.acme.blue.true", b"{}")

        async def true_ones() -> bool:
            return heard.count("berth.figures.acme.blue.true") == 4

        await eventually(true_ones)
        assert set(heard) == {"berth.figures.acme.blue.true"}


def test_consumers_are_made_with_the_streams_only() -> None:
    """A consumer delivers wherever its maker says."""
    makers = {
        user
        for user in USERS
        if any("CONSUMER.CREATE" in subject for subject in grants(user).publish)
    }
    assert makers == {"setup", "restorer"}
