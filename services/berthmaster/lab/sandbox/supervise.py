"""The parent process of the lab's clusters: `python -m berthmaster.lab.sandbox.supervise`.

Each step of the start is a line of JSON on standard output: `{"step": "Kueue", "done": 3}`. The
last line is `{"ready": {…}}` or `{"error": "…"}`. When this process ends, the kernel sends SIGKILL
to every program that it started. So a signal is enough to stop the lab.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import msgspec

from berthmaster.client import BerthError, Client
from berthmaster.lab.controlplane.build import find
from berthmaster.lab.controlplane.kueue.managers import Options
from berthmaster.lab.controlplane.kueue.setup import Kueue
from berthmaster.lab.controlplane.nodes import make_nodes, wait_open
from berthmaster.lab.controlplane.patience import wait_until
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lab.controlplane.processes import Process
from berthmaster.lab.sandbox import layout
from berthmaster.lab.sandbox.state import LabState, hold, write_state
from berthmaster.lib.engine.fleetview.rows import FleetView
from berthmaster.lib.kueue.names import DISPATCHER
from berthmaster.lib.runtime.process_setup import live_on_alone
from berthmaster.lib.supervisor.folder import CONNECTION_FILE, ConnectionFile

STEPS: Final = ("API servers", "nodes", "Kueue", "Berthmaster", "scores of all workers")
_POLL_S: Final = 0.2


def _report(**line: Any) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()


def start(folder: Path) -> LabState:
    """Start everything. Raises Unavailable, Failed, Hung and ApiError."""
    began_s = time.monotonic()
    planes = Planes(
        folder / "clusters", workers=[worker.name for worker in layout.WORKERS], programs=find()
    )
    _step(0)
    planes.start()
    kubeconfig = folder / "kubeconfig"
    kubeconfig.touch(mode=0o600)
    texts = {plane.name: plane.kubeconfig.read_text() for plane in planes}
    kubeconfig.write_text(layout.merge_kubeconfigs(texts))
    _step(1)
    with ThreadPoolExecutor(len(layout.WORKERS)) as threads:
        list(threads.map(lambda worker: _fill(planes, worker), layout.WORKERS))
    _step(2)
    kueue = Kueue(
        planes,
        layout.NAMESPACE,
        options=Options(dispatcher=DISPATCHER),
        quotas=layout.hub_quota(layout.WORKERS),
        worker_quotas={worker.name: worker.quota for worker in layout.WORKERS},
        queue=layout.LOCAL_QUEUE,
    )
    kueue.start()
    _step(3)
    data = folder / "berth"
    up = Process(
        "berth up",
        layout.up_command(sys.executable, kubeconfig, data, layout.WORKERS),
        folder / "up.log",
        dict(os.environ),
    )
    up.launch()
    up.wait_ready(lambda: _view_of(up) is not None)
    _step(4)
    connection = msgspec.json.decode((data / CONNECTION_FILE).read_bytes(), type=ConnectionFile)
    wait_until(lambda: asyncio.run(_is_scored(connection)), "scores of all workers", poll_s=_POLL_S)
    view = _view_of(up) or {}
    return LabState(
        pid=os.getpid(),
        folder=str(folder),
        kubeconfig=str(kubeconfig),
        hub=layout.HUB,
        workers=[worker.name for worker in layout.WORKERS],
        namespace=layout.NAMESPACE,
        local_queue=layout.LOCAL_QUEUE,
        annotations=[layout.RUN_FOREVER],
        data=str(data),
        page=str(view.get("page", "")),
        took_s=round(time.monotonic() - began_s, 1),
    )


def _step(number: int) -> None:
    _report(step=STEPS[number], done=number, of=len(STEPS))


def _fill(planes: Planes, worker: layout.WorkerLayout) -> None:
    plane = planes[worker.name]
    wait_open(plane, make_nodes(plane, worker.make_nodes()))


def _view_of(up: Process) -> dict[str, Any] | None:
    """Return the view that `berth up` wrote on completion; None before."""
    for line in up.said().splitlines():
        if line.startswith('{"up"'):
            view: dict[str, Any] = json.loads(line)["up"]
            return view
    return None


async def _is_scored(connection: ConnectionFile) -> bool:
    """Return whether every worker has a fresh score and reports all its GPUs as free."""
    client = Client.connect(
        connection.url,
        tenant=connection.tenant,
        creds_file=connection.creds_file,
        inbox_prefix=connection.inbox_prefix,
        ca_file=connection.ca_file or None,
    )
    view = FleetView()
    try:
        async with client as berth:
            for seen in await berth.fleet():
                view.take(seen)
            rows = {row.cluster: row for row in view.rows(berth.now())}
    except BerthError:
        return False
    return all(
        (row := rows.get(worker.name)) is not None
        and row.freshness == "fresh"
        and row.free_gpus == worker.gpus
        for worker in layout.WORKERS
    )


def main(argv: list[str]) -> int:
    """Start the lab, and keep it until a signal."""
    parser = argparse.ArgumentParser(prog="supervise")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--foreground", action="store_true", help="End with the parent process.")
    given = parser.parse_args(argv)
    folder: Path = given.folder
    try:
        with hold(folder):
            state = start(folder)
            write_state(folder, state)
            if not given.foreground:
                live_on_alone()
            _report(ready=state)
            sys.stdout.close()
            while True:
                time.sleep(3600.0)
    except Exception as error:  # noqa: BLE001 # whatever it is, the command prints it
        _report(error=str(error) or type(error).__name__)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
