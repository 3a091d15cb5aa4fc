"""Attacks by what a cluster's agent reports, each with the agent's own key.

Telemetry, figures, pieces and ends of logs, and facts: about another cluster's job, about jobs that
nobody submitted, beyond what any machine has, and faster than anybody reads. An attack changes
nothing that others see, and costs them little time.
"""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec
import pytest

from berthmaster.cli.audit.report import audit
from berthmaster.lib.access.keys import creds_file, make_keys, server_config
from berthmaster.lib.access.permissions import inbox_prefix
from berthmaster.lib.door_client.client import DoorClient
from berthmaster.lib.event_log.workload_log import EventLog
from berthmaster.lib.lifecycle.instructions import Stored
from berthmaster.lib.messages.api import GetReply
from berthmaster.lib.messages.door import (
    DoorReply,
    ExecutorEvent,
    LogEndReply,
    LogEndRequest,
    PodLogEnd,
    ReportReply,
)
from berthmaster.lib.messages.families import API_REPLIES, DOOR_REPLIES, encode
from berthmaster.lib.messages.fleet import ClusterAlive, Stamp
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.telemetry import GpuUse, JobFigures
from berthmaster.lib.messages.workload import Evicted, Placed
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.streams import FLEET, LOG_ENDS, ensure_streams, stream_info
from berthmaster.lib.runtime.service import Context
from berthmaster.lib.supervisor.embedded import Server, ServerConfig
from tests.bus.doors import door
from tests.bus.redteam.test_accounts import Bus
from tests.bus.shells import gateway
from tests.bus.test_door import claimed, succeeded
from tests.bus.tools import eventually, placed, story, submitted
from tests.support.patience import ANSWER_S, slowness, until

USERS: Final = (
    *("setup", "gateway", "door", "resolver", "operator", "watcher"),
    *("agent.red", "agent.blue", "tenant.acme"),
)
RED, BLUE = "red", "blue"
HUGE: Final = 1 << 70


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    folder = tmp_path_factory.mktemp("reports")
    make_keys(folder / "keys", USERS)
    config = ServerConfig(sync="default", extra=server_config(folder / "keys", folder / "jwt"))
    with Server(folder / "nats", config) as server:
        made = Bus(server.url, folder / "keys")

        async def streams() -> None:
            async with made.user("setup") as conn:
                await ensure_streams(conn)

        asyncio.run(streams())
        yield made


class Site:
    def __init__(self, bus: Bus, door: Context[Any], users: dict[str, Connection]) -> None:
        self.bus = bus
        self.door = door
        self.log = EventLog(users["resolver"])
        self.operator = users["operator"]
        self.tenant = users["tenant.acme"]
        self.red, self.blue = users["agent.red"], users["agent.blue"]
        self.heard: list[tuple[str, bytes]] = []  # by a watcher

    async def place(self, name: str, cluster: str) -> int:
        """Submit and place a job, as the door has read it."""
        first = await self.stored(submitted(name))
        last = await self.stored(placed_on(cluster, name, first))
        await self.seen(last)
        return await self.stored(claimed(name, last, cluster))

    async def stored(self, event: Any) -> int:
        """Store it as who may: the resolver, or the agent of its cluster."""
        if isinstance(event, ExecutorEvent):
            agent = self.red if event.cluster == RED else self.blue
            outcome = await DoorClient(agent, event.cluster).append(event)
        else:
            outcome = await self.log.append(event)
        assert isinstance(outcome, Stored), outcome
        return outcome.sequence

    async def seen(self, sequence: int) -> None:
        """Until the door has read the log so far."""
        asked = {"asked": [], "after": sequence}
        await self.blue.request(
            subjects.agent(BLUE, "hub_work"), msgspec.json.encode(asked), timeout_s=ANSWER_S
        )

    async def reported(self, conn: Connection, cluster: str, verb: str, body: bytes) -> DoorReply:
        reply = await conn.request(subjects.agent(cluster, verb), body, timeout_s=ANSWER_S)
        answer: DoorReply = DOOR_REPLIES.decode(reply.data)
        return answer

    async def passed(self, verb: str, *bodies: bytes) -> list[bytes]:
        """What of red's messages was passed on. A marker that passes tells that all were read."""
        self.heard.clear()
        for body in bodies:
            await self.red.publish(subjects.agent(RED, verb), body)
        marker = figures(RED, "", namespace="ml", name="marker")
        told = subjects.agent(RED, "figures")
        await self.red.publish(told, marker)
        await until(lambda: any(data == marker for _, data in self.heard))
        return [data for _, data in self.heard if data != marker]

    async def figures_of(self, name: str) -> tuple[JobFigures, ...]:
        reply = await self.tenant.request(
            subjects.api("acme", "get"), msgspec.json.encode({"id": name}), timeout_s=ANSWER_S
        )
        answer = API_REPLIES.decode(reply.data)
        assert isinstance(answer, GetReply), answer
        return answer.figures

    async def stored_in(self, stream: str) -> int:
        return (await stream_info(self.operator, stream)).state.last_seq


@asynccontextmanager
async def site(bus: Bus) -> AsyncIterator[Site]:
    users = ("resolver", "operator", "watcher", "agent.red", "agent.blue", "tenant.acme")

    def own(name: str) -> dict[str, Any]:
        return {"nats_creds_file": creds_file(bus.keys, name), "inbox_prefix": inbox_prefix(name)}

    async with (
        door(bus.url, **own("door")) as of_door,
        gateway(bus.url, **own("gateway")),
        bus.user("resolver") as resolver,
        bus.user("operator") as operator,
        bus.user("watcher") as watcher,
        bus.user("agent.red") as red,
        bus.user("agent.blue") as blue,
        bus.user("tenant.acme") as tenant,
    ):
        conns = (resolver, operator, watcher, red, blue, tenant)
        made = Site(bus, of_door, dict(zip(users, conns, strict=True)))
        for subject in ("berth.telemetry.*.*", "berth.figures.*.*.*"):
            await watcher.subscribe(subject, lambda *told: made.heard.append(told))
        await watcher.flush()
        yield made


def placed_on(cluster: str, name: str, after: int, attempt: int = 1) -> Placed:
    pods = (PodBinding(pod="main-0", node="n1"),)
    usual = placed(name, after, cluster=cluster)
    return msgspec.structs.replace(usual, attempt=attempt, pods=pods)


def figures(cluster: str, job: str, *, attempt: int = 1, ended: bool = False, **more: Any) -> bytes:
    whose: dict[str, Any] = {"tenant": "acme", "id": job, "attempt": attempt} if job else {}
    use = GpuUse(gpus=8, measured=8, utilization_percent=1.0)
    told = JobFigures(
        cluster=cluster,
        epoch=1,
        counter=1,
        observed_at_s=1.0,
        use=use,
        ended=ended,
        **whose,
        **more,
    )
    return encode(told)


@story
async def test_agent_writes_figures_of_its_own_attempts_only(bus: Bus) -> None:
    async with site(bus) as there:
        await there.place("mine", RED)
        await there.place("theirs", BLUE)
        own = figures(RED, "mine")
        assert await there.passed("figures", own) == [own]
        lies = [
            figures(cluster, name, attempt=attempt, ended=ended)
            for cluster in (RED, BLUE)
            for name in ("theirs", "made-up")
            for attempt in (0, 1, 2)
            for ended in (False, True)
        ]
        lies += [figures(RED, "mine", attempt=attempt) for attempt in (0, 2, 1 << 31)]
        lies += [
            figures(RED, "mine").replace(b"acme", b"rival"),
            figures(RED, "mine", ended=True).replace(b"acme", b"rival"),
            figures(RED, "mine").replace(b'"mine"', b'"mine","id":"theirs"'),
        ]
        assert await there.passed("figures", *lies) == []
        await there.blue.publish(subjects.agent(BLUE, "figures"), figures(BLUE, "theirs"))
        await eventually(lambda: there.figures_of("theirs"))
        assert [one.cluster for one in await there.figures_of("theirs")] == [BLUE]


@story
async def test_agent_that_had_a_job_sends_its_last_figures_only(bus: Bus) -> None:
    async with site(bus) as there:
        last = await there.place("moved", RED)
        about: dict[str, Any] = {"tenant": "acme", "id": "moved", "at_s": 1.0}
        by = f"executor/{RED}"
        evicted = Evicted(**about, by=by, after=last, cluster=RED, attempt=1, reason="node lost")
        last = await there.stored(evicted)
        last = await there.stored(placed_on(BLUE, "moved", last, attempt=2))
        await there.seen(last)
        lies = [
            figures(RED, "moved"),
            figures(RED, "moved", attempt=2),
            figures(RED, "moved", attempt=2, ended=True),
        ]
        assert await there.passed("figures", *lies) == []
        word = figures(RED, "moved", ended=True)
        assert await there.passed("figures", word) == [word]


@story
async def test_made_up_jobs_push_no_figures_out(bus: Bus) -> None:
    async with site(bus) as there:
        await there.place("kept", BLUE)
        await there.blue.publish(subjects.agent(BLUE, "figures"), figures(BLUE, "kept"))
        await eventually(lambda: there.figures_of("kept"))
        await until(lambda: there.heard)
        there.heard.clear()
        for number in range(56_000):
            lie = figures(RED, f"made-up-{number}", ended=True)
            await there.red.publish(subjects.agent(RED, "figures"), lie)
            if number % 1000 == 0:
                await there.red.flush(timeout_s=ANSWER_S)
        await there.red.flush(timeout_s=ANSWER_S)
        assert [one.cluster for one in await there.figures_of("kept")] == [BLUE]
        assert there.heard == []


@story
async def test_agent_stores_ends_of_its_own_attempts_logs_only(bus: Bus) -> None:
    async with site(bus) as there:
        last = await there.place("said", RED)
        await there.place("unsaid", BLUE)
        before = await there.stored_in(LOG_ENDS)

        async def keeps(*ends: PodLogEnd) -> DoorReply:
            body = encode(LogEndRequest(ends=ends, after=last))
            return await there.reported(there.red, RED, "log_end", body)

        def end(name: str, *, tenant: str = "acme", attempt: int = 1) -> PodLogEnd:
            return PodLogEnd(tenant=tenant, id=name, attempt=attempt, data=b"lie\n")

        for lie in (
            end("unsaid"),
            end("made-up"),
            end("said", tenant="rival"),
            end("said", attempt=2),
        ):
            assert await keeps(lie) == LogEndReply(kept=False), lie
        assert await keeps(*(end(f"made-up-{number}") for number in range(64))) == LogEndReply(
            kept=False
        )
        for wrong in (b'"pod":8', b'"pods":%d' % HUGE, b'"attempt":%d' % HUGE):
            body = encode(LogEndRequest(ends=(end("said"),)))
            body = body.replace(b'"attempt":1', b'"attempt":1,' + wrong)
            answer = await there.reported(there.red, RED, "log_end", body)
            assert type(answer).__name__ == "Refusal", answer
        assert await there.stored_in(LOG_ENDS) == before
        assert await keeps(end("said"), end("unsaid")) == LogEndReply(kept=False)
        assert await there.stored_in(LOG_ENDS) == before + 1
        # Its executor sends it also when the job has ended.
        last = await there.stored(succeeded("said", last, RED))
        assert await keeps(end("said")) == LogEndReply(kept=True)
        assert await there.stored_in(LOG_ENDS) == before + 2


@story
async def test_what_no_machine_has_is_neither_stored_nor_passed_on(bus: Bus) -> None:
    async with site(bus) as there:
        await there.place("odd", RED)
        fine = encode(
            ClusterAlive(
                cluster=RED, stamp=Stamp(epoch=5, counter=1), observed_at_s=1.0, interval_s=1.0
            )
        )
        node = (
            b'{"type":"fleet.node.v1","cluster":"red","node":"n1","stamp":{"epoch":5,"counter":1},'
            b'"observed_at_s":1.0,"allocatable":{"cpu_milli":1000},"gpus":[{"index":0,"uuid":"",'
            b'"model":"H100","memory_mib":80}]}'
        )
        facts = [
            fine.replace(b'"epoch":5', b'"epoch":%d' % HUGE),
            fine.replace(b'"counter":1', b'"counter":-1'),
            fine.replace(b'"interval_s":1.0', b'"interval_s":1e300'),
            fine.replace(b'"observed_at_s":1.0', b'"observed_at_s":-1e300'),
            node.replace(b'"H100"', b'"%s"' % (b"H" * 500)),
            node.replace(b'"H100"', b'"<img src=x onerror=alert(1)>"'),
            node.replace(b'"cpu_milli":1000', b'"cpu_milli":%d' % HUGE),
            node.replace(b'"index":0', b'"index":%d' % HUGE),
            node.replace(b'"gpus"', b'"labels":{"%s":""},"gpus"' % (b"x" * 5000)),
        ]
        before = await there.stored_in(FLEET)
        body = b'{"facts":[' + b",".join(b'{"fact":%b}' % fact for fact in facts) + b"]}"
        answer = await there.reported(there.red, RED, "report", body)
        assert isinstance(answer, ReportReply)
        assert {one.result for one in answer.outcomes} == {"forbidden"}, answer
        assert await there.stored_in(FLEET) == before
        answer = await there.reported(there.red, RED, "report", b'{"facts":[{"fact":%b}]}' % fine)
        assert isinstance(answer, ReportReply)
        assert [one.result for one in answer.outcomes] == ["stored"]

        reading = (
            b'{"type":"telemetry.node.v1","cluster":"red","node":"n1","epoch":1,"counter":1,'
            b'"observed_at_s":1.0,"interval_s":1.0,"source":"dcgm","gpus":[]}'
        )
        assert await there.passed("telemetry", reading) == [reading]
        readings = (
            reading.replace(b'"epoch":1', b'"epoch":%d' % HUGE),
            reading.replace(b'"interval_s":1.0', b'"interval_s":1e300'),
            reading.replace(b'"observed_at_s":1.0', b'"observed_at_s":1e300'),
            reading.replace(b'"n1"', b'"%s"' % (b"n" * 5000)),
        )
        assert await there.passed("telemetry", *readings) == []
        own = figures(RED, "odd")
        told = (
            own.replace(b'"epoch":1', b'"epoch":%d' % HUGE),
            own.replace(b'"epoch":1', b'"window_s":1e300,"epoch":1'),
            own.replace(b'"epoch":1', b'"window_s":-1,"epoch":1'),
            own.replace(b'"measured":8', b'"measured":%d' % HUGE),
            own.replace(b'"measured":8', b'"measured":8,"memory_used_mib":%d' % HUGE),
            own.replace(b'"measured":8', b'"measured":8,"power_w":1e300'),
            own.replace(b'"epoch":1', b'"nodes":["%s"],"epoch":1' % (b"n" * 5000)),
            own.replace(b'"epoch":1', b'"disagreements":["%s"],"epoch":1' % (b"n" * 5000)),
            own + b" " * 60_000,
        )
        assert await there.passed("figures", *told) == []


FLOOD: Final = """
import asyncio, sys
import nats
from berthmaster.lib.nats import jwts
url, file, subject, size, lasts_s = sys.argv[1:]
head = sys.stdin.buffer.read()

async def main():
    creds = jwts.parse_creds(open(file).read())
    nc = await nats.connect(
        url,
        user_jwt_cb=lambda: bytearray(creds.jwt.encode()),
        signature_cb=lambda nonce: jwts.answered(creds.seed, nonce),
        inbox_prefix="_INBOX.agent.red",
    )
    body = head + b" " * (int(size) - len(head))
    ends_s = asyncio.get_running_loop().time() + float(lasts_s)
    print("begins", flush=True)
    while asyncio.get_running_loop().time() < ends_s:
        for _ in range(16):
            await nc.publish(subject, body)
        await nc.flush(timeout=60)

asyncio.run(main())
"""


@contextmanager
def flood(bus: Bus, verb: str, head: bytes, size: int) -> Iterator[None]:
    """Red's agent sends as much as it can from two connections."""
    creds = str(creds_file(bus.keys, "agent.red"))
    # As from another machine: the flood takes no core from the server or the door.
    command = [
        "nice",
        "-n",
        "15",
        sys.executable,
        "-c",
        FLOOD,
        bus.url,
        creds,
        f"berth.agent.red.{verb}",
        str(size),
    ]
    running = []
    try:
        for _ in range(2):
            one = subprocess.Popen(
                [*command, "60"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path.cwd()
            )
            running.append(one)
            assert one.stdin is not None
            assert one.stdout is not None
            one.stdin.write(head)
            one.stdin.close()
            assert one.stdout.readline() == b"begins\n"
        yield
        assert [one.poll() for one in running] == [None, None], "the flood ended too early"
    finally:
        for one in running:
            one.kill()
            one.wait()
            assert one.stdout is not None
            one.stdout.close()


async def waits_s(there: Site, verb: str, head: bytes, size: int) -> float:
    """How long blue's agent waits for an answer of the door, while red's floods one verb."""
    client, loop = DoorClient(there.blue, BLUE), asyncio.get_running_loop()
    took_s = []
    with flood(there.bus, verb, head, size):
        await asyncio.sleep(1.0)
        for _ in range(15):
            began_s = loop.time()
            await client.hello()
            took_s.append(loop.time() - began_s)
            await asyncio.sleep(0.05)
        await until_passed(there, f"{verb}-{size}")
    return median(took_s)


async def until_passed(there: Site, name: str) -> None:
    """Figures of blue are passed on. Any may be lost, so blue sends them again."""
    there.heard.clear()
    told = figures(BLUE, "", namespace="ml", name=name)

    async def heard() -> bool:
        await there.blue.publish(subjects.agent(BLUE, "figures"), told)
        await asyncio.sleep(0.1)
        return any(data == told for _, data in there.heard)

    await eventually(heard)


@pytest.mark.parametrize(
    ("verb", "head", "size"),
    [
        ("figures", figures(RED, "flooded"), 60_000),
        ("figures", figures(RED, "flooded"), 20_000),
        ("telemetry", b'{"cluster":"red","node":"n1"}', 60_000),
        ("logs", b'{"reader":"gateway-0","ask":"0"}', 120_000),
        ("log_end", b'{"ends":[]}', 400_000),
        ("report", b'{"facts":[]}', 400_000),
    ],
    ids=["figures", "small figures", "telemetry", "logs", "log_end", "report"],
)
@story
async def test_flood_of_reports_keeps_nobody_waiting(
    bus: Bus, verb: str, head: bytes, size: int
) -> None:
    async with site(bus) as there:
        if not await known(there, "flooded"):
            await there.place("flooded", RED)
        assert await waits_s(there, verb, head, size) < 0.25 * slowness()


async def known(there: Site, name: str) -> bool:
    reply = await there.tenant.request(
        subjects.api("acme", "get"), msgspec.json.encode({"id": name}), timeout_s=ANSWER_S
    )
    return isinstance(API_REPLIES.decode(reply.data), GetReply)


@story
async def test_audit_finds_nothing_after_it(bus: Bus) -> None:
    async with bus.user("operator") as conn:
        report = await audit(conn)
        assert not report.findings, report
