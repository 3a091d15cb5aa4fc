"""A disk that is full, and then is not: nothing hangs meanwhile, and all goes on by itself.

The disk is a small tmpfs. nats-server answers no write to a stream any more once one has failed,
also when there is room again; only a new start cures that.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from berthmaster.client.client import TRY_TIMEOUT_S
from berthmaster.control.gateway.effects import UNKNOWN_PAUSE_S
from berthmaster.control.gateway.settings import GatewaySettings
from berthmaster.lib.messages.api import Refusal, SubmitReply
from berthmaster.lib.messages.workload import JobRequest
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import BusError, NoAnswer
from berthmaster.lib.nats.requests import GRACE_S
from berthmaster.lib.nats.stream_reads import last_message
from berthmaster.lib.nats.streams import LEASES, ensure_streams
from berthmaster.lib.runtime.health import Health
from berthmaster.lib.supervisor.embedded import Server, ServerCluster, ServerConfig
from berthmaster.lib.supervisor.folder import LOCK_FILE, FolderLock, FolderUnusable
from berthmaster.lib.supervisor.processes import ServerChild, Supervised, Supervisor
from tests.bus.disks import Disk, own_disk
from tests.bus.shells import ask, client, gateway, in_loop
from tests.bus.tools import eventually, patiently
from tests.support.patience import ANSWER_S, hang_s, until

HEALTHY = Path(__file__).parents[2] / "deploy" / "nats" / "healthy.py"
DISK_BYTES = 160 * 1024 * 1024


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with own_disk(tmp_path / "disk", DISK_BYTES) as found:
        yield found


@pytest.fixture
def server(tmp_path: Path, disk: Disk) -> Iterator[Server]:
    """Its data on that disk; not started."""
    server = Server(tmp_path / "nats", ServerConfig(sync="default", store_dir=disk.folder / "js"))
    yield server
    server.stop()


async def submit(conn: Connection, name: str) -> SubmitReply | Refusal:
    reply = await ask(conn, "submit", JobRequest(id=name))
    assert isinstance(reply, SubmitReply | Refusal)
    return reply


def trouble(health: Health) -> str:
    parts = health.readiness()[1]["parts"]
    assert isinstance(parts, dict)
    part = parts["storing"]
    return "" if part["ok"] else part["why"]


@in_loop
async def test_submit_on_full_disk_is_refused(server: Server, disk: Disk) -> None:
    told: list[tuple[str, str]] = []

    def change(watched: Supervised) -> None:
        told.append((watched.condition, watched.note))

    supervisor = Supervisor(change)
    await supervisor.start([ServerChild(server=server)], timeout_s=ANSWER_S)
    try:
        own = {"settle_limit_s": GatewaySettings().settle_limit_s}
        async with client(server.url) as conn, gateway(server.url, **own) as ctx:
            reply = await submit(conn, "before")
            assert isinstance(reply, SubmitReply)

            # It is full: some last bytes may fit, then every submit is answered, before its client
            # asks again; and at once when it is clear what is going on.
            disk.fill()
            why = "the bus stores nothing in WORKLOADS, its disk may be full: no answer"
            longest_s = ctx.settings.settle_limit_s + GRACE_S + UNKNOWN_PAUSE_S
            assert longest_s < TRY_TIMEOUT_S
            at_once = 0
            for number in range(40):
                reply = await submit(conn, f"during-{number}")
                if not isinstance(reply, Refusal):
                    continue
                assert (reply.code, reply.retry) == ("unavailable", True)
                if reply.expected.startswith(why):
                    at_once += 1
                if at_once == 3:
                    break
            assert at_once == 3
            await until(lambda: trouble(ctx.health).startswith(why))
            figure = ctx.metrics.registry.get_sample_value
            assert figure("berth_gateway_bus_not_storing") == 1
            assert (figure("berth_gateway_bus_write_failures_total") or 0) > 1
            again = await submit(conn, "before")
            assert isinstance(again, SubmitReply)
            assert again.existing  # what is stored can be read

            # The server says so, and is left alone while a new start would be in vain.
            await until(lambda: supervisor.watched[0].condition == "unready")
            assert "write error" in supervisor.watched[0].note
            pid = server.pid

            # There is room: it is started anew, and all goes on.
            disk.free()
            await until(lambda: ctx.health.readiness()[0] and server.pid != pid)
            reply = await submit(conn, "after")
            assert isinstance(reply, SubmitReply), reply
            assert trouble(ctx.health) == ""
            await until(lambda: figure("berth_gateway_bus_not_storing") == 0)
        await until(lambda: supervisor.watched[0].condition == "ready")
        assert [condition for condition, _ in told] == [
            "starting",
            "ready",
            "unready",
            "restarting",
            "starting",
            "ready",
        ]
        assert told[3][1].startswith("told to: ")
        assert "no space left on device" in told[3][1]
    finally:
        await supervisor.stop()


@in_loop
async def test_replicated_servers_on_full_disk_restart(disk: Disk) -> None:
    cluster = ServerCluster(disk.folder, config=ServerConfig(sync="default"))
    cluster.make()
    names = ["one", "two", "three"]
    children = [
        ServerChild(server=server, name=name)
        for server, name in zip(cluster.servers, names, strict=True)
    ]
    supervisor = Supervisor()
    await supervisor.start(children, timeout_s=ANSWER_S)
    try:
        async with client(cluster.url, streams=False) as conn:
            await patiently(lambda: ensure_streams(conn, replicas=3))
            await patiently(lambda: conn.store("berth.lease.before", b"{}"))
            disk.fill()

            async def none_writes() -> bool:
                with suppress(BusError):
                    await conn.store("berth.lease.during", bytes(2000), timeout_s=0.3)
                return all("JetStream not enabled" in each.note for each in supervisor.watched)

            await eventually(none_writes)
            disk.free()
            await until(lambda: [each.starts for each in supervisor.watched] == [2, 2, 2])
            await patiently(lambda: conn.store("berth.lease.after", b"{}"))
            last = await patiently(lambda: last_message(conn, LEASES, "berth.lease.before"))
            assert last is not None
    finally:
        await supervisor.stop()


@in_loop
async def test_health_check_ends_stuck_server(server: Server, disk: Disk) -> None:
    server.start()

    def check() -> str:
        words = [str(HEALTHY), server.monitor_url, str(disk.folder), str(server.pid)]
        done = subprocess.run(
            [sys.executable, *words], capture_output=True, text=True, timeout=hang_s(), check=False
        )
        assert bool(done.returncode) == bool(done.stderr)
        return done.stderr

    assert check() == ""
    async with client(server.url) as conn:
        disk.fill()
        for number in range(40):
            try:
                await conn.store(f"berth.lease.n{number}", bytes(2000), timeout_s=0.2)
            except NoAnswer:
                break
    assert "write error" in check()
    assert server.running  # in vain as long as there is no room
    disk.free()
    assert "write error" in check()
    await until(lambda: not server.running)


def test_a_folder_on_a_full_disk_is_named(disk: Disk) -> None:
    folder = disk.folder / "berth"
    folder.mkdir()
    (folder / LOCK_FILE).touch()  # of an earlier life
    disk.fill()
    with pytest.raises(FolderUnusable) as told, FolderLock(folder):
        pass
    assert str(told.value) == (
        f"--data {folder} cannot be used as a folder: no space left on device"
    )
    disk.free()
    with FolderLock(folder):
        assert (folder / LOCK_FILE).read_text()


def test_a_server_knows_whether_its_disk_has_room(server: Server, disk: Disk) -> None:
    server.start()
    assert server.has_room()
    disk.fill()
    assert not server.has_room()
    disk.free()
    assert server.has_room()
    assert [each.name for each in disk.folder.iterdir()] == ["js"]
