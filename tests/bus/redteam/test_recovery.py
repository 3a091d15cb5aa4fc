"""A log has lost jobs, a person has accepted it, and an agent makes the most of it: no job is
invented, ended ones stay ended, nobody's id, attempt or cluster is taken over."""

import shutil
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import msgspec
import pytest

from berthmaster.bus.connection import Connection
from berthmaster.bus.door_client import DoorClient, DoorRefused
from berthmaster.bus.embedded import Server
from berthmaster.bus.streams import WORKLOADS, stream_info
from berthmaster.door.receipts import Receipt, Receipts
from berthmaster.lifecycle.digest import request_digest
from berthmaster.logcheck import guard
from berthmaster.messages.door import StoryReply, StoryRequest
from berthmaster.messages.families import DOOR_REPLIES, encode
from berthmaster.messages.workload import Placed, Recovered, Submitted, Succeeded
from tests.bus.doors import door
from tests.bus.shells import client, in_loop, store
from tests.bus.tools import accept_log, eventually
from tests.support.builders import job
from tests.support.lives import PODS

HOME, EVIL = "c1", "c2"
PLACED = {"victim": HOME, "mine": EVIL, "over": EVIL, "again": EVIL}
BY: dict[str, Any] = {"tenant": "team", "at_s": 0.0, "by": "test"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "SETTLE_S", 0.3)
    monkeypatch.setattr(guard, "LOOK_S", 0.2)


async def place(conn: Connection, name: str, cluster: str) -> Placed:
    request = job(name)
    digest = request_digest(request)
    submitted = Submitted(**BY, id=name, after=0, request=request, digest=digest)
    placed = Placed(
        **BY,
        id=name,
        after=await store(conn, submitted),
        cluster=cluster,
        attempt=1,
        pods=PODS,
        request=request,
        decision=1,
        submitted_at_s=1.0,
    )
    await store(conn, placed)
    return placed


async def receipts_of(conn: Connection, cluster: str) -> dict[str, str]:
    """What its executor is given for each job."""
    raw = await DoorClient(conn, cluster).ask("take", b"{}")
    hints = msgspec.json.decode(raw)["hints"]
    return {hint["event"]["id"]: hint["receipt"] for hint in hints}


async def claims(
    conn: Connection, cluster: str, name: str, receipt: str, tenant: str = "team"
) -> StoryReply:
    """An agent says what it holds; until the door knows."""
    request = StoryRequest(tenant=tenant, id=name, receipt=receipt, executor=f"executor/{cluster}")
    told: list[StoryReply] = []

    async def answered() -> bool:
        try:
            reply = DOOR_REPLIES.decode(await DoorClient(conn, cluster).ask("story", request))
        except DoorRefused as error:
            if not error.refusal.retry:
                raise
            return False
        assert isinstance(reply, StoryReply), reply
        told.append(reply)
        return True

    await eventually(answered)
    return told[-1]


def altered(receipt: str, **changes: object) -> str:
    content, _, mac = receipt.partition(".")
    said = msgspec.json.decode(urlsafe_b64decode(content)) | changes
    return f"{urlsafe_b64encode(msgspec.json.encode(said)).decode()}.{mac}"


async def events(conn: Connection) -> int:
    return (await stream_info(conn, WORKLOADS)).state.messages


def lie() -> Receipt:
    """Of a job that never was."""
    request = job("invented")
    return Receipt(
        tenant="team",
        id="invented",
        cluster=EVIL,
        attempt=1,
        request=request,
        digest=request_digest(request),
        pods=PODS,
        decision=1,
        sequence=1,
        submitted_sequence=1,
    )


async def lose(server: Server) -> None:
    """The log goes, and a person accepts that."""
    server.stop()
    (folder,) = server.folder.rglob(f"streams/{WORKLOADS}")
    shutil.rmtree(folder)
    server.start()
    async with client(server.url) as conn:
        await accept_log(conn)


@in_loop
async def test_agent_recovers_only_its_own_lost_jobs(server: Server) -> None:
    async with client(server.url) as conn, door(server.url):
        for name, cluster in PLACED.items():
            await place(conn, name, cluster)

        async def all_told() -> bool:
            return len(await receipts_of(conn, HOME) | await receipts_of(conn, EVIL)) == len(PLACED)

        await eventually(all_told)
        home, evil = await receipts_of(conn, HOME), await receipts_of(conn, EVIL)
        # While nothing is lost a receipt brings nothing back.
        before = await events(conn)
        assert (await claims(conn, EVIL, "victim", home["victim"])).workload is None
        assert await events(conn) == before
    await lose(server)
    async with client(server.url) as conn, door(server.url):
        # Somebody has submitted one of the ids again, with other content.
        other = job("again", gpus=7)
        digest = request_digest(other)
        await store(conn, Submitted(**BY, id="again", after=0, request=other, digest=digest))
        await in_vain(conn, home, evil)
        await its_own(conn, evil)
        # The honest executor was not kept from its own meanwhile.
        victim = (await claims(conn, HOME, "victim", home["victim"])).workload
        assert victim is not None
        assert victim.cluster == HOME


async def in_vain(conn: Connection, home: dict[str, str], evil: dict[str, str]) -> None:
    """Whatever it says of what is not its own."""
    before = await events(conn)
    attacks = {
        "another cluster's receipt": ("victim", home["victim"]),
        "another cluster's, renamed": ("victim", altered(home["victim"], cluster=EVIL)),
        "its own for another id": ("victim", evil["mine"]),
        "a later attempt": ("mine", altered(evil["mine"], attempt=9)),
        "another tenant's": ("mine", altered(evil["mine"], tenant="other")),
        "an id that never was": ("invented", Receipts(b"guessed").signed(lie())),
        "no receipt at all": ("invented", ""),
        "garbage": ("invented", "x" * 1000),
        "an id that is another's now": ("again", evil["again"]),
    }
    for what, (name, receipt) in attacks.items():
        found = await claims(conn, EVIL, name, receipt)
        assert found.workload is None, what
        assert await events(conn) == before, what
    said = {each: getattr(lie(), each) for each in ("id", "request", "digest", "pods", "decision")}
    event = Recovered(**BY, **said, after=0, cluster=EVIL, attempt=1, executor="me")
    with pytest.raises(DoorRefused):
        await DoorClient(conn, EVIL).ask("tell", b'{"events":[' + encode(event) + b"]}")
    assert await events(conn) == before


async def its_own(conn: Connection, evil: dict[str, str]) -> None:
    """That comes back, once; and once it has ended it stays so."""
    before = await events(conn)
    for name in ("mine", "over"):
        for _ in range(2):
            found = (await claims(conn, EVIL, name, evil[name])).workload
            assert found is not None
            assert (found.state, found.cluster, found.attempt) == ("claimed", EVIL, 1)
    assert await events(conn) == before + 2
    held = (await claims(conn, EVIL, "over", evil["over"])).workload
    assert held is not None
    ending = Succeeded(
        **BY,
        id="over",
        after=held.sequence,
        cluster=EVIL,
        attempt=1,
        digest=held.digest,
        submitted_at_s=held.submitted_at_s,
    )
    await store(conn, ending)

    async def is_over() -> bool:
        return (await claims(conn, EVIL, "over", evil["over"])).workload is None

    await eventually(is_over)
    assert await events(conn) == before + 3
