"""Logs over the bus: tenant, gateway, agent, door and back, each bounded; over a real server."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from unittest import mock

import msgspec
import pytest

from berthmaster.client import Client, LogLine, RefusedError, lines_of
from berthmaster.lib.door_client.client import DoorClient
from berthmaster.lib.messages.api import LogsReply, LogsRequest, Refusal
from berthmaster.lib.messages.door import LogAsk, LogChunk
from berthmaster.lib.messages.families import LOG_ASKS, encode
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import Claimed, Running, Succeeded
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.supervisor.embedded import Server
from berthmaster.worker.executor.core.cluster_protocol import Attempt
from berthmaster.worker.executor.logs import LogDesk, LogStream, NoLog
from tests.bus.doors import door
from tests.bus.shells import ask, gateway, in_loop, store
from tests.bus.tools import connected, eventually, placed, submitted
from tests.support.patience import ANSWER_S

ATTEMPT = Attempt("acme", "train", 1)


class Pod:
    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.over = False
        self.opened = 0
        self._number = itertools.count()

    def write(self, *texts: bytes) -> None:
        for text in texts:
            number = next(self._number)
            minute, second = number // 60_000, number // 1000 % 60
            at = b"2026-11-24T10:%02d:%02d.%03dZ" % (minute, second, number % 1000)
            self.lines.append(at + b" " + text + b"\n")


class _Stream:
    def __init__(self, pod: Pod, at: int, follow: bool) -> None:
        self._pod, self._at, self._follow = pod, at, follow

    async def read(self) -> bytes:
        while self._at >= len(self._pod.lines):
            if self._pod.over or not self._follow:
                return b""
            await asyncio.sleep(0.005)
        data = b"".join(self._pod.lines[self._at : self._at + 200])
        self._at = min(len(self._pod.lines), self._at + 200)
        return data

    def close(self) -> None:
        pass


class Pods:
    """A cluster of one job with one pod."""

    def __init__(self) -> None:
        self.pod = Pod()

    async def pods(self, attempt: Attempt) -> Sequence[str]:
        return ["train-1-main-0"] if attempt == ATTEMPT else []

    async def open(
        self, attempt: Attempt, pod: str, *, since_s: float | None, tail: int | None, follow: bool
    ) -> LogStream:
        if attempt != ATTEMPT:
            raise NoLog("gone")
        self.pod.opened += 1
        begin = 0 if tail is None else max(0, len(self.pod.lines) - tail)
        return _Stream(self.pod, begin, follow)


class Bench:
    def __init__(self, conn: Connection, url: str, pods: Pods, desk: LogDesk) -> None:
        self.conn, self.url, self.pods, self.desk = conn, url, pods, desk
        self.pod = pods.pod

    def client(self, tenant: str = "acme") -> Client:
        return Client.connect(self.url, tenant=tenant, timeout_s=ANSWER_S)


@asynccontextmanager
async def bench(url: str, *, bytes_per_s: float = 1e9, **settings: object) -> AsyncIterator[Bench]:
    """Gateway, door, and the agent of cluster c1, where the job `train` runs."""
    async with connected(url, replicas=1) as conn, door(url), gateway(url, **settings):
        last = await store(conn, submitted("train"))
        last = await store(conn, placed("train", last))
        common = {"tenant": "acme", "id": "train", "at_s": 3.0, "by": "e", "cluster": "c1"}
        last = await store(conn, Claimed(**common, after=last, attempt=1, executor="e"))  # type: ignore[arg-type]
        pods = (PodBinding(pod="main-0", node="n1", gpus=(0,)),)
        await store(conn, Running(**common, after=last, attempt=1, pods=pods))  # type: ignore[arg-type]
        cluster = Pods()
        desk = LogDesk(DoorClient(conn, "c1"), cluster, bytes_per_s=bytes_per_s)
        stopping = asyncio.Event()
        task = asyncio.create_task(desk.run(stopping))
        try:
            yield Bench(conn, url, cluster, desk)
        finally:
            stopping.set()
            await task


async def read(berth: Client, most: int) -> list[bytes]:
    got: list[bytes] = []
    async for piece in berth.logs("train", follow=True):
        got += [line.text for line in lines_of(piece)]
        if len(got) >= most:
            return got
    return got


@in_loop
async def test_a_hundred_follow_by_one_reading_and_each_gets_every_line(server: Server) -> None:
    async with bench(server.url) as there, there.client() as berth:
        there.pod.write(b"begins", b"\xff\xfe not UTF-8", b"x" * 100_000)
        followers = [asyncio.create_task(read(berth, 23)) for _ in range(100)]
        await eventually(lambda: asyncio.sleep(0, there.desk.opened > 0))
        for number in range(20):
            there.pod.write(b"step %d" % number)
            await asyncio.sleep(0.01)
        got = await asyncio.gather(*followers)
        assert {len(each) for each in got} == {23}
        assert all(each[:2] == [b"begins", b"\xff\xfe not UTF-8"] for each in got)
        assert all(each[3:] == [b"step %d" % at for at in range(20)] for each in got)
        assert b"more bytes of this line are left out" in got[0][2]
        # One reading that all began with (some came a second later), and one that goes on.
        assert there.pod.opened <= 4, there.pod.opened


@mock.patch("berthmaster.control.gateway.service.LOG_FEED_BYTES", 128 * 1024)
@in_loop
async def test_who_reads_slowly_is_told_and_costs_the_others_nothing(server: Server) -> None:
    async with (
        bench(server.url) as there,
        there.client() as berth,
        there.client() as slow,
    ):
        there.pod.write(b"begins")
        sleepy = slow.logs("train", follow=True)
        assert [line.text for line in lines_of(await anext(sleepy))] == [b"begins"]
        fast = asyncio.create_task(read(berth, 1001))
        for _ in range(1000):
            there.pod.write(b"y" * 1000)
        assert len(await fast) == 1001  # a megabyte, while the other slept
        piece = await anext(sleepy)
        assert piece.cut
        assert piece.data
        await sleepy.aclose()


@in_loop
async def test_a_job_that_writes_much_is_read_at_the_rate_that_is_set(server: Server) -> None:
    rate = 200_000.0
    async with bench(server.url, bytes_per_s=rate) as there, there.client() as berth:
        for _ in range(10_000):  # 10 MB within the second
            there.pod.write(b"z" * 1000)
        began_s = asyncio.get_running_loop().time()
        got = await read(berth, 600)
        took_s = asyncio.get_running_loop().time() - began_s
        # So much is read within the first second, which is let pass; the rest by the rate.
        assert len(got) * 1000 <= rate * (took_s + 2.5)
        assert took_s > 0.5


@in_loop
async def test_a_log_is_its_tenants_and_only_the_jobs_cluster_is_believed(server: Server) -> None:
    async with bench(server.url) as there, there.client() as berth, there.client("evil") as evil:
        there.pod.write(b"secret")
        heard: list[LogAsk] = []
        others: list[bytes] = []
        await there.conn.subscribe(
            subjects.assign_logs("c1"), lambda _, data: heard.append(LOG_ASKS.decode(data))
        )
        await there.conn.subscribe(subjects.assign_logs("c2"), lambda _, data: others.append(data))
        with pytest.raises(RefusedError, match="of a workload of this tenant"):
            await anext(evil.logs("train"))
        assert heard == []

        # Another cluster answers before it was asked, and with what it cannot know.
        lie = LogChunk(ask="0" * 32, reader="gateway-0", data=b"lie\n", cursor="1.1")
        await there.conn.publish(subjects.agent("c2", "logs"), encode(lie))
        await there.conn.publish(subjects.agent("c2", "logs"), b"{}")
        await there.conn.publish(subjects.agent("c2", "logs"), b"\xff")
        assert texts(await pieces(berth)) == [b"secret"]
        assert others == []
        # What it has heard of an ask, it may not answer for the other.
        told = msgspec.structs.replace(lie, ask=heard[-1].ask, reader=heard[-1].reader)
        await there.conn.publish(subjects.agent("c2", "logs"), encode(told))
        assert texts(await pieces(berth)) == [b"secret"]


def texts(found: list[LogsReply]) -> list[bytes]:
    return [line.text for piece in found for line in lines_of(piece)]


async def pieces(berth: Client, **how: object) -> list[LogsReply]:
    return [piece async for piece in berth.logs("train", **how)]  # type: ignore[arg-type]


@in_loop
async def test_log_end_outlives_its_pod(server: Server) -> None:
    async with bench(server.url) as there, there.client() as berth:
        there.pod.write(b"begins")
        following = berth.logs("train", follow=True)
        assert [line.text for line in lines_of(await anext(following))] == [b"begins"]
        there.pod.write(b"last words")
        there.pod.over = True
        read = asyncio.Event()
        there.desk.keep_ends(ATTEMPT, then=read.set)
        await read.wait()
        found = await berth.get("train")
        ending = Succeeded(
            tenant="acme",
            id="train",
            after=found.workload.sequence,
            at_s=4.0,
            by="e",
            attempt=1,
            cluster="c1",
            digest="d1",
            submitted_at_s=1.0,
        )
        await store(there.conn, ending)
        rest = [line.text async for piece in following for line in lines_of(piece)]
        assert rest == [b"last words"]

        (kept,) = await pieces(berth, tail=1)
        assert (kept.kept, kept.ended, kept.state) == (True, True, "succeeded")
        assert list(lines_of(kept)) == [LogLine("2026-11-24T10:00:00.001Z", b"last words")]
        (none,) = await pieces(berth, pod=7)
        assert (none.note, none.data) == ("pod 7: it had pods 0 to 0", b"")


@in_loop
async def test_a_wrong_request_for_a_log_is_told_what_would_be_right(server: Server) -> None:
    async with bench(server.url) as there:
        for body, field in (
            ({"id": "train", "after": "x"}, "after"),
            ({"id": "train", "after": "1/1.x"}, "after"),
            ({"id": "train", "pod": -1}, "pod"),
            ({"id": "train", "wait_s": 99}, "wait_s"),
            ({"id": "train", "previous": True}, "previous"),
            ({"id": "none"}, "id"),
        ):
            reply = await ask(there.conn, "logs", msgspec.json.encode(body), tenant="acme")
            assert isinstance(reply, Refusal), reply
            assert reply.field == field, reply
        reply = await ask(there.conn, "logs", LogsRequest(id="train", pod=7), tenant="acme")
        assert isinstance(reply, LogsReply)
        assert reply.note == "pod 7: it has pods 0 to 0"
