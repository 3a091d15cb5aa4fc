"""Followers without a consumer, as a dashboard reads streams."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from berthmaster.lib.access.keys import creds_file
from berthmaster.lib.access.permissions import inbox_prefix
from berthmaster.lib.messages.families import encode
from berthmaster.lib.messages.fleet import ClusterAlive, Stamp
from berthmaster.lib.nats import stream_reads
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.fact_stamps import Seen
from berthmaster.lib.nats.facts import FactMirror
from berthmaster.lib.nats.follower import Follower
from berthmaster.lib.nats.stream_messages import Recorded
from berthmaster.lib.nats.streams import CONTROL, WORKLOADS, ensure_streams
from berthmaster.lib.supervisor.embedded import Server, ServerConfig
from tests.bus.tools import Lines, Settings, accounts_of, story, task
from tests.support.patience import until


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[tuple[Server, Path]]:
    keys = tmp_path / "keys"
    users = ("setup", "door", "gateway", "dashboard", "archivist")
    config = ServerConfig(sync="default", extra=accounts_of(keys, users))
    with Server(tmp_path / "nats", config) as server:
        yield server, keys


@asynccontextmanager
async def user(bus: tuple[Server, Path], name: str) -> AsyncIterator[Connection]:
    server, keys = bus
    settings = Settings(server.url, creds_file(keys, name), inbox_prefix(name))
    async with await Connection.open(settings, name, Lines(), timeout_s=10) as conn:
        if name == "setup":
            await ensure_streams(conn)
        yield conn


def alive(cluster: str, counter: int) -> bytes:
    stamp = Stamp(epoch=1, counter=counter)
    return encode(ClusterAlive(cluster=cluster, stamp=stamp, interval_s=1.0, observed_at_s=1.0))


@story
async def test_dashboard_reads_every_message_in_order(
    bus: tuple[Server, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_reads, "BATCH", 3)
    async with (
        user(bus, "setup"),
        user(bus, "door") as door,
        user(bus, "archivist") as archivist,
        user(bus, "dashboard") as dashboard,
    ):
        for number in range(10):
            await door.store(f"berth.workload.acme.v{number}.claimed.red", b"%d" % number)
        await archivist.api("STREAM.MSG.DELETE.WORKLOADS", {"seq": 4})
        seen: list[Recorded] = []
        told: list[int] = []
        follower = Follower(dashboard, WORKLOADS, ["berth.workload.>"])
        async with task(follower.run(seen.append, caught_up=lambda: told.append(len(seen)))):
            await until(lambda: told)
            await door.store("berth.workload.acme.late.claimed.red", b"10")
            await until(lambda: len(seen) == 10)
        assert told == [9]
        assert [one.sequence for one in seen] == [1, 2, 3, *range(5, 12)]
        assert [one.data for one in seen] == [b"%d" % n for n in range(11) if n != 3]
        assert seen[0].subject == "berth.workload.acme.v0.claimed.red"
        assert abs(seen[0].stored_at_s - dashboard.now()) < 60


@story
async def test_mirror_lists_last_values_and_notices_what_is_gone(
    bus: tuple[Server, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_reads, "BATCH", 3)
    async with user(bus, "setup"), user(bus, "door") as door, user(bus, "dashboard") as dashboard:
        for counter in (1, 2):
            for cluster in ("a", "b", "c", "d", "e"):
                await door.store(f"berth.fleet.{cluster}.alive", alive(cluster, counter))
        ends = {"Nats-TTL": "2s"}
        await door.store("berth.fleet.f.alive", alive("f", 1), headers=ends)
        seen: list[Seen] = []
        gone: list[str] = []
        mirror = FactMirror(
            dashboard,
            "dashboard",
            ["berth.fleet.>"],
            on_fact=seen.append,
            on_gone=gone.append,
            relist_s=0.5,
        )
        async with task(mirror.run()):
            await until(lambda: mirror.caught_up)
            assert [one.sequence for one in seen] == [6, 7, 8, 9, 10, 11]
            await door.store("berth.fleet.a.alive", alive("a", 3))
            await until(lambda: len(seen) == 7)
            await until(lambda: gone)
            assert gone == ["berth.fleet.f.alive"]


@story
async def test_mirror_of_an_empty_stream_catches_up(bus: tuple[Server, Path]) -> None:
    async with user(bus, "setup"), user(bus, "gateway") as gateway, user(bus, "dashboard") as conn:
        seen: list[Recorded] = []
        told: list[int] = []
        follower = Follower(conn, CONTROL, ["berth.control.>"], start="last-per-subject")
        async with task(follower.run(seen.append, caught_up=lambda: told.append(len(seen)))):
            await until(lambda: told)
            await gateway.store("berth.control.queue.q", b"{}")
            await until(lambda: seen)
        assert (told, [one.subject for one in seen]) == ([0], ["berth.control.queue.q"])
