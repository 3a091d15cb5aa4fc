"""The three servers of the chart, as its ConfigMap and Secret say, on ports of this machine."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from berthmaster.lib.access.keys import creds_file
from berthmaster.lib.access.permissions import inbox_prefix
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.stream_names import WORKLOADS
from berthmaster.lib.nats.streams import ensure_streams
from berthmaster.lib.runtime.ports import free_ports
from berthmaster.lib.supervisor.embedded import find_program
from berthmaster.lib.supervisor.hub_folder import BUS_SECRET, parts, prepare
from tests.bus.tools import Lines, Settings, story
from tests.support.chart import one, render
from tests.support.containers import write_files
from tests.support.patience import hang_s, wait_until

SERVERS = 3
PEERS = "berth-nats-peers.berth-system.svc"


class Bundle(NamedTuple):
    """Servers that run."""

    url: str
    folder: Path
    processes: "list[subprocess.Popen[bytes]]"
    logs: list[Path]


@contextmanager
def bundle(folder: Path) -> Iterator[Bundle]:
    """All three. Their names in the cluster are ports here, on an address of the certificate."""
    ports = free_ports(3 * SERVERS)
    clients, routes, monitors = (ports[at::3] for at in range(3))
    prepare(folder / "data", url=f"tls://127.0.0.1:{clients[0]}", names=["berth-nats.x.svc"])
    text = one(render("hub"), "ConfigMap", "berth-nats")["data"]["nats-server.conf"]
    for number in range(SERVERS):
        before = f"berth-nats-{number}.{PEERS}:6222"
        assert before in text
        text = text.replace(before, f"127.0.0.1:{routes[number]}")
    processes, logs = [], []
    with ExitStack() as owned:
        for number in range(SERVERS):
            own = folder / f"server-{number}"
            secret = write_files(own / "bus", parts(folder / "data", "own")[BUS_SECRET])
            config = text.replace("/etc/berth-bus", str(secret)).replace("/data", str(own))
            for port, here in ((4222, clients), (6222, routes), (8222, monitors)):
                config = config.replace(f"0.0.0.0:{port}", f"127.0.0.1:{here[number]}")
            (secret / "nats-server.conf").write_text(config)
            logs.append(own / "log")
            with logs[-1].open("wb") as log:
                process = subprocess.Popen(
                    [find_program(), "--config", str(secret / "nats-server.conf")],
                    env={**os.environ, "POD_NAME": f"berth-nats-{number}"},
                    stdout=log,
                    stderr=log,
                )
            processes.append(process)
            owned.callback(process.wait, hang_s())
            owned.callback(process.kill)
        url = ",".join(f"tls://127.0.0.1:{port}" for port in clients)
        yield Bundle(url, folder / "data", processes, logs)


@story
async def test_three_servers_of_the_chart_hold_streams_together_and_outlive_one(
    tmp_path: Path,
) -> None:
    with bundle(tmp_path) as servers:
        wait_until(
            lambda: any(
                "JetStream cluster new metadata leader" in log.read_text() for log in servers.logs
            ),
            "the servers have found each other",
        )
        settings = Settings(
            servers.url,
            creds_file(servers.folder / "keys", "setup"),
            inbox_prefix("setup"),
            servers.folder / "tls" / "ca.crt",
        )
        async with await Connection.open(settings, "setup", Lines(), timeout_s=hang_s()) as conn:
            await ensure_streams(conn, replicas=SERVERS)
            info = json.loads(await conn.api(f"STREAM.INFO.{WORKLOADS}", timeout_s=hang_s()))
            assert info["config"]["num_replicas"] == SERVERS
            assert len(info["cluster"]["replicas"]) == SERVERS - 1
            servers.processes[0].kill()
            await ensure_streams(conn, replicas=SERVERS)  # a majority still answers
