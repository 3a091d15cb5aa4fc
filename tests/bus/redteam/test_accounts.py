"""Attacks by a tenant or a cluster whose user may all that its account can give.

Its JWT permits everything, so that what holds it is the account alone; a tenant of ours has rights
narrower than that. What is proved each time: no stream has one message more, no service heard
itself, and nobody else was disturbed.
"""

import asyncio
import base64
import json
import os
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import nats
import pytest
from nats.aio.client import Client as NatsClient

from berthmaster.lib.access import account_push, claims
from berthmaster.lib.access.keys import (
    account_jwts,
    account_key,
    creds_file,
    make_keys,
    remove_user,
    server_config,
    sign_user,
)
from berthmaster.lib.access.permissions import STREAMS, inbox_prefix
from berthmaster.lib.messages.api import GATEWAY_VERBS
from berthmaster.lib.messages.door import DOOR_VERBS
from berthmaster.lib.messages.families import encode
from berthmaster.lib.nats import jwts
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.endpoints import Endpoint, serve
from berthmaster.lib.nats.errors import BusError
from berthmaster.lib.nats.message_subjects import event_subject
from berthmaster.lib.nats.streams import ensure_streams
from berthmaster.lib.nats.subjects import LANES
from berthmaster.lib.supervisor.embedded import Server, ServerCluster, ServerConfig
from tests.bus.tools import Lines, Settings, eventually, story, submitted
from tests.support.patience import ANSWER_S, until

USERS = (
    "setup",
    "gateway",
    "door",
    "operator",
    "accounts",
    "agent.red",
    *(f"tenant.{name}" for name in ("acme", "evil")),
)
LOG = (
    "berth.decision.all",
    "berth.workload.acme.v1.cancel_requested.-",
    "berth.workload.evil.v1.submitted.-",
    "berth.control.queue.x",
    "berth.fleet.red.alive",
    "berth.lease.resolver.all",
    "berth.dead.gateway",
    "berth.archive.acme.v1",
    "$O.SNAPSHOTS.M.x",
)
REPLIES = (
    *LOG,
    "berth.api.acme.submit",
    "berth.operator.cordon",
    "berth.agent.red.tell",
    "$JS.API.STREAM.DELETE.WORKLOADS",
    "_R_.guessed",
    "_INBOX.tenant.acme.x",
)
API = (
    *(f"$JS.API.STREAM.{verb}.{{0}}" for verb in ("INFO", "PURGE", "DELETE", "MSG.GET")),
    "$JS.API.CONSUMER.CREATE.{0}",
    "$JS.API.CONSUMER.MSG.NEXT.{0}.archivist-decisions",
    "$JS.ACK.{0}.archivist-decisions.1.1.1.1.1",
    "$JS.FC.{0}.x",
)
SYSTEM = (
    "$SYS.REQ.CLAIMS.UPDATE",
    "$SYS.REQ.CLAIMS.LIST",
    "$SYS.REQ.USER.INFO",
    "$SYS.REQ.SERVER.PING.CONNZ",
    "$JS.API.INFO",
    "$SRV.PING",
)
TRACE = {"Nats-Trace-Dest": "berth.decision.all"}  # where the server itself would tell of it
HEADERS = {
    "Nats-Expected-Last-Subject-Sequence": "0",
    "Nats-Batch-Id": "b",
    "Nats-Batch-Sequence": "1",
    "Nats-TTL": "1s",
    "Nats-Rollup": "all",
    "Nats-Request-Info": '{"acc":"T_acme"}',
}


OWN = (("T_evil", "berth.api.evil"), ("C_red", "berth.agent.red"))


class Bus(NamedTuple):
    url: str
    keys: Path

    @asynccontextmanager
    async def user(self, name: str, url: str = "") -> AsyncIterator[Connection]:
        settings = Settings(url or self.url, creds_file(self.keys, name), inbox_prefix(name))
        async with await Connection.open(
            settings, name, Lines(), timeout_s=ANSWER_S, clock_subject=""
        ) as conn:
            yield conn

    @asynccontextmanager
    async def may_all(self, account: str) -> AsyncIterator[NatsClient]:
        """A user of an account whose JWT forbids nothing."""
        seed = (self.keys / "accounts" / f"{account}.seed").read_text().strip()
        client = await nats.connect(
            self.url.split(","), **signing(jwt_by(seed)), allow_reconnect=False, error_cb=unheard
        )
        try:
            yield client
        finally:
            await client.close()


def jwt_by(signer: str, *, ends_s: float | None = None, **also: Any) -> jwts.Creds:
    """Credentials that permit everything, signed with a seed."""
    seed = jwts.new_seed("user", os.urandom(32))
    body = claims.user(jwts.public_key(seed), "x", publish=(">",), subscribe=(">",))
    body["nats"] |= also
    return jwts.Creds(jwts.signed(body, signer, now_s=time.time(), ends_s=ends_s), seed)


def signing(creds: jwts.Creds) -> dict[str, Any]:
    return {
        "user_jwt_cb": lambda: bytearray(creds.jwt.encode()),
        "signature_cb": lambda nonce: jwts.answered(creds.seed, nonce),
    }


async def unheard(error: Exception) -> None:
    """What the library says of errors is not what is looked at."""


async def refused(bus: Bus, creds: jwts.Creds) -> None:
    file = bus.keys / "stolen"
    file.write_text(jwts.creds_text(creds))
    with pytest.raises(BusError, match="refuses this user"):
        await Connection.open(Settings(bus.url, file), "x", Lines(), timeout_s=5, clock_subject="")


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    folder = tmp_path_factory.mktemp("accounts")
    make_keys(folder / "keys", USERS)
    config = ServerConfig(sync="default", extra=server_config(folder / "keys", folder / "jwt"))
    with Server(folder / "nats", config) as server:
        made = Bus(server.url, folder / "keys")

        async def streams() -> None:
            async with made.user("setup") as conn:
                await ensure_streams(conn)

        asyncio.run(streams())
        yield made


async def last(conn: Connection) -> dict[str, tuple[int, int]]:
    """Last sequence and number of messages of every stream."""
    found = {}
    for stream in STREAMS:
        state = msgspec.json.decode(await conn.api(f"STREAM.INFO.{stream}"))["state"]
        found[stream] = (state["last_seq"], state["messages"])
    return found


@asynccontextmanager
async def unchanged(bus: Bus) -> AsyncIterator[Connection]:
    async with bus.user("operator") as operator:
        before = await last(operator)
        yield operator
        assert await last(operator) == before


@asynccontextmanager
async def answering(bus: Bus) -> AsyncIterator[tuple[Connection, list[str]]]:
    """Services with the gateway's and the door's rights that answer everything, and what they
    heard."""
    heard: list[str] = []

    async def answer(subject: str, data: bytes) -> bytes:
        heard.append(subject)
        return b"refused"

    def said(*_: object) -> bytes:
        return b"failed"

    api = {
        **{verb: Endpoint(f"berth.api.*.{verb}", answer) for verb in GATEWAY_VERBS},
        "operator": Endpoint("berth.operator.*", answer),
    }
    agents = {verb: Endpoint(f"berth.agent.*.{verb}", answer) for verb in DOOR_VERBS}
    about: dict[str, Any] = {"version": "1.0.0", "description": "test"}
    async with bus.user("gateway") as gateway, bus.user("door") as door:
        running = [
            await serve(
                conn,
                name,
                endpoints,
                **about,
                overloaded=said,
                failed=said,
                lanes=[conn] * LANES,  # all of them by the one
            )
            for conn, name, endpoints in (
                (gateway, "berth-gateway", api),
                (door, "berth-door", agents),
            )
        ]
        yield gateway, heard
        await door.flush()
        assert door.violations == []
        for each in running:
            await each.stop()


@pytest.mark.parametrize(("account", "own"), OWN)
@story
async def test_reply_with_foreign_subject_reaches_asker(bus: Bus, account: str, own: str) -> None:
    async with unchanged(bus), answering(bus) as (gateway, heard), bus.may_all(account) as evil:
        for reply in REPLIES:
            for headers in (None, HEADERS, TRACE):
                await evil.publish(f"{own}.hello", b"{}", reply=reply, headers=headers)
        answer = await evil.request(f"{own}.hello", b"{}", timeout=5)
        assert answer.data == b"refused"
        await gateway.flush()
        # Each came as its own account's, and nothing else was heard. (The server itself refuses a
        # reply that begins as its own do.)
        asked = 3 * sum(not reply.startswith("_R_.") for reply in REPLIES)
        assert heard == [f"{own}.hello"] * asked + [f"{own}.hello"]
        assert gateway.violations == []


@story
async def test_operators_reply_with_foreign_subject_reaches_the_operator(bus: Bus) -> None:
    async with unchanged(bus), answering(bus) as (gateway, heard), bus.user("operator") as operator:
        for reply in (*LOG, "berth.operator.cordon"):
            await operator.publish("berth.operator.cordon", b"{}", reply=reply)
        await operator.request("berth.operator.list", b"{}", timeout_s=ANSWER_S)
        await gateway.flush()
        asked = len((*LOG, "berth.operator.cordon"))
        assert heard == ["berth.operator.cordon"] * asked + ["berth.operator.list"]
        assert gateway.violations == []


@pytest.mark.parametrize("account", ["T_evil", "C_red"])
@story
async def test_jetstream_and_the_system_do_not_answer_them(bus: Bus, account: str) -> None:
    async with unchanged(bus), bus.may_all(account) as evil:
        said: list[bytes] = []

        async def hear(msg: Any) -> None:
            said.append(msg.data)

        await evil.subscribe("answers", cb=hear)
        for subject in (*(one.format(stream) for one in API for stream in STREAMS), *SYSTEM):
            for reply in ("answers", *LOG):
                await evil.publish(subject, b"{}", reply=reply)
        await evil.flush()
        told = b"".join(said).decode()
        assert "WORKLOADS" not in told.replace("$JS.API", "")
        assert account_key(bus.keys, "T_acme") not in told
        errors = [text for text in said if b'"error"' in text]
        assert all(b"JetStream not enabled" in text for text in errors), errors


@pytest.mark.parametrize("account", ["T_evil", "C_red"])
@story
async def test_what_they_publish_stays_with_them(bus: Bus, account: str) -> None:
    async with unchanged(bus), answering(bus) as (gateway, heard), bus.may_all(account) as evil:
        others = ("berth.api.acme.submit", "berth.operator.cordon", "berth.agent.blue.tell")
        subjects = (*LOG, *others, "berth.event.acme.x", "berth.assign.red.x")
        for subject in subjects:
            for headers in (None, HEADERS, TRACE):
                await evil.publish(subject, b"{}", headers=headers)
        await evil.flush()
        await gateway.flush()
        assert heard == []
        with pytest.raises(nats.errors.NoRespondersError):
            await evil.request("berth.api.acme.get", b"{}", timeout=5)


@story
async def test_who_listens_to_everything_hears_its_own_and_only_what_is_stored(bus: Bus) -> None:
    heard: list[str] = []

    async def hear(msg: Any) -> None:
        heard.append(msg.subject)

    async with (
        answering(bus) as (gateway, _),
        bus.may_all("T_evil") as evil,
        bus.user("tenant.acme") as acme,
    ):
        for everything in (">", "_INBOX.>", "_R_.>", "$SYS.>", "berth.event.acme.>"):
            await evil.subscribe(everything, cb=hear)
        await evil.flush()
        await acme.request("berth.api.acme.get", b"{}", timeout_s=ANSWER_S)
        mine, others = submitted("spy", tenant="evil"), submitted("spy", tenant="acme")
        for event in (mine, others):
            await gateway.store(event_subject(event), encode(event))
        with pytest.raises(BusError):  # the stream refuses it: nobody shall see it
            await gateway.store(
                event_subject(mine),
                encode(mine),
                headers={"Nats-Expected-Last-Subject-Sequence": "999"},
            )
        await gateway.flush()
        await until(lambda: heard, "its own event")
        await evil.flush()
        assert set(heard) == {"berth.event.evil.spy.submitted.-"}
        assert heard.count("berth.event.evil.spy.submitted.-") == 1


@story
async def test_who_asked_is_what_the_server_says_and_not_the_asker(bus: Bus) -> None:
    async with bus.user("gateway") as gateway, bus.may_all("T_evil") as evil:
        asked: list[dict[str, str]] = []

        async def hear(msg: Any) -> None:
            asked.append(dict(msg.headers or {}))

        await gateway.subscribe_raw("berth.lane.*.api.*.*", hear)
        await gateway.flush()
        await evil.publish("berth.api.evil.get", b"{}", reply="x", headers=HEADERS)
        await until(lambda: asked)
        said = msgspec.json.decode(asked[0]["Nats-Request-Info"])
        assert said["acc"] == account_key(bus.keys, "T_evil")


# ---- JWTs


@story
async def test_only_what_the_right_key_signed_and_has_not_ended_is_taken(bus: Bus) -> None:
    def seed(name: str) -> str:
        return (bus.keys / "accounts" / f"{name}.seed").read_text().strip()

    acme = account_key(bus.keys, "T_acme")
    await refused(bus, jwt_by(seed("T_evil"), issuer_account=acme))
    await refused(bus, jwt_by(jwts.new_seed("account", os.urandom(32))))
    await refused(bus, jwt_by(seed("T_acme"), ends_s=time.time() - 1))
    # A JWT of which another right was made afterwards.
    good = jwt_by(seed("T_acme"))
    head, _, signature = good.jwt.split(".")
    _, wide, _ = jwt_by(seed("T_acme"), allowed_connection_types=["STANDARD"]).jwt.split(".")
    said = jwts.decoded(f"{head}.{wide}.{signature}") | {"sub": jwts.public_key(good.seed)}
    body = base64.urlsafe_b64encode(json.dumps(said).encode()).decode().rstrip("=")
    await refused(bus, good._replace(jwt=f"{head}.{body}.{signature}"))


@story
async def test_claims_that_the_operator_did_not_sign_take_no_effect(bus: Bus) -> None:
    stranger = jwts.new_seed("operator", os.urandom(32))
    body = claims.tenant(
        account_key(bus.keys, "T_evil"),
        "acme",
        core=account_key(bus.keys, "CORE"),
        streams=account_key(bus.keys, "STREAMS"),
    )
    forged = jwts.signed(body, stranger, now_s=time.time())
    async with bus.user("accounts") as pusher, bus.may_all("T_evil") as evil:
        try:
            await account_push.push(pusher, forged)
        except BusError:
            pass
        with pytest.raises(nats.errors.NoRespondersError):
            await evil.request("berth.api.acme.get", b"{}", timeout=5)
        # What a server was made to keep of it is put right by the next comparison.
        assert "T_evil" in (await account_push.reconcile(pusher, bus.keys)).pushed
        assert not await account_push.reconcile(pusher, bus.keys)
    async with bus.may_all("T_evil"):
        pass  # it may come in as itself, as before


# ---- tenants that come and go while all runs


@story
async def test_tenant_added_is_served_and_removed_disconnected(bus: Bus) -> None:
    async with (
        answering(bus),
        bus.user("accounts") as pusher,
        bus.user("tenant.acme") as acme,
        bus.user("operator") as operator,
    ):
        old = sign_user(bus.keys, "tenant.late", days=1)
        await account_push.push(pusher, account_jwts(bus.keys)["T_late"])
        async with bus.user("tenant.late") as late:
            assert (
                await late.request("berth.api.late.get", b"{}", timeout_s=ANSWER_S)
            ).data == b"refused"

            assert remove_user(bus.keys, "tenant.late")
            await account_push.delete(pusher, bus.keys, "T_late")
            await until(lambda: not late.connected, "it is cut off")
        await refused(bus, old)
        # It comes back with new credentials, and the old ones stay worthless.
        sign_user(bus.keys, "tenant.late", days=1, again=True)
        await account_push.push(pusher, account_jwts(bus.keys)["T_late"])
        async with bus.user("tenant.late") as late:
            assert (
                await late.request("berth.api.late.get", b"{}", timeout_s=ANSWER_S)
            ).data == b"refused"
        await refused(bus, old)
        assert [each.reconnects for each in (acme, operator, pusher)] == [0, 0, 0]


@story
async def test_one_user_of_several_is_cut_off_alone(bus: Bus) -> None:
    make_keys(bus.keys, ["executor.red"])
    async with (
        bus.user("accounts") as pusher,
        bus.user("operator") as operator,
        bus.user("agent.red") as stays,
    ):
        for user, account in (("executor.red", "C_red"), ("resolver", "RESOLVER")):
            make_keys(bus.keys, [user])
            await account_push.push(pusher, account_jwts(bus.keys)[account])
            async with bus.user(user) as goes:
                assert remove_user(bus.keys, user)
                await account_push.push(pusher, account_jwts(bus.keys)[account])
                await until(lambda goes=goes: not goes.connected, "it is cut off")  # type: ignore[misc]
        for one in (operator, stays):
            await one.flush()
            assert (one.connected, one.reconnects) == (True, 0)


@story
async def test_a_jwt_that_ends_cuts_off_and_a_renewed_file_is_taken_by_itself(bus: Bus) -> None:
    async with answering(bus), bus.user("accounts") as pusher:
        sign_user(bus.keys, "tenant.brief", days=2 / 86_400)
        await account_push.push(pusher, account_jwts(bus.keys)["T_brief"])
        file, log = creds_file(bus.keys, "tenant.brief"), Lines()
        settings = Settings(bus.url, file, inbox_prefix("tenant.brief"))
        opening = Connection.open(settings, "brief", log, timeout_s=ANSWER_S, clock_subject="")
        async with await opening as conn:
            await until(lambda: log.count("NATS refuses this user") and not conn.connected)
            whys = {str(fields["why"]) for fields in log.fields("NATS refuses this user")}
            assert all(f"; the JWT in {file} ended at " in why for why in whys), whys
            with pytest.raises(BusError, match=r"refuses this user: .*; the JWT in .* ended at"):
                await Connection.open(settings, "again", Lines(), timeout_s=5, clock_subject="")
            sign_user(bus.keys, "tenant.brief", days=1)
            await until(lambda: conn.connected, "the renewed file is taken")
            assert (
                await conn.request("berth.api.brief.get", b"{}", timeout_s=ANSWER_S)
            ).data == b"refused"


@story
async def test_servers_are_told_what_they_do_not_know_and_no_more(bus: Bus) -> None:
    async with bus.user("accounts") as pusher:
        await account_push.reconcile(pusher, bus.keys)
        assert not await account_push.reconcile(pusher, bus.keys)
        sign_user(bus.keys, "tenant.lost", days=1)
        assert await account_push.reconcile(pusher, bus.keys) == (("T_lost",), ())
        remove_user(bus.keys, "tenant.lost")
        assert await account_push.reconcile(pusher, bus.keys) == ((), ("T_lost",))
        assert not await account_push.reconcile(pusher, bus.keys)


@story
async def test_a_tenant_that_is_added_is_heard_by_each_of_three_servers(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    make_keys(keys, ("setup", "gateway", "door", "accounts", "operator", "tenant.evil"))
    three = ServerCluster(tmp_path / "nats", config=ServerConfig(sync="default"))
    with running(three, keys):
        bus = Bus(three.url, keys)
        async with bus.user("setup") as conn:

            async def made() -> bool:
                await ensure_streams(conn, replicas=3)
                return True

            await eventually(made)
        async with (
            answering(bus) as (gateway, heard),
            bus.user("accounts", three.servers[0].url) as pusher,
        ):
            sign_user(keys, "tenant.late", days=1)
            await account_push.push(pusher, account_jwts(keys)["T_late"])
            for server in three.servers:
                async with bus.user("tenant.late", server.url) as late:
                    assert (
                        await late.request("berth.api.late.get", b"{}", timeout_s=ANSWER_S)
                    ).data == b"refused"
            async with unchanged(bus), bus.may_all("T_evil") as evil:
                for reply in REPLIES:
                    await evil.publish("berth.api.evil.submit", b"{}", reply=reply)
                await evil.request("berth.api.evil.get", b"{}", timeout=5)
                await gateway.flush()
            asked = ("late.get", "evil.submit", "evil.get")
            assert set(heard) == {f"berth.api.{one}" for one in asked}


@contextmanager
def running(three: ServerCluster, keys: Path, extra: Sequence[str] = ("",) * 3) -> Iterator[None]:
    """Three servers that know the same accounts, each by its own folder; ``extra``: what else each
    is told."""
    three.make()
    for server, more in zip(three.servers, extra, strict=True):
        accounts = server_config(keys, server.folder / "accounts")
        server.config = replace(server.config, extra=accounts + more)
    try:
        for server in three.servers:
            server.launch()
        for server in three.servers:
            server.wait_healthy(20)
        yield
    finally:
        three.stop()
