"""Openb's whole default list while everything is killed, stopped and away in turn.

What tests/pipeline/test_chaos.py does with a reduced stream, here with every pod of the published
list on a fleet of the published list's size, two resolvers and two scorers, and with an absence of
the server of a minute and a half. What must hold is asserted: a figure is printed only if it held.
"""

import asyncio
import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from berthmaster.audit.core import AuditReport
from berthmaster.emulator import workloads
from berthmaster.messages.workload import JobRequest
from tests.pipeline.chaos import Rig, openb_pods, rig, so_far_so_good, stream

RATE = 60.0
AWAY_S = 90.0
SPEED = 40_000.0  # the lasting jobs then outlast all of it
LONGEST_S = 20.0 * SPEED  # openb has a few pods that live for months
# Longer than each has a limit for; the emulator's placements are withdrawn after 10 s.
STOPPED_S = {
    "gateway": 3.0,
    "resolver": 3.0,
    "scorer": 3.0,
    "archivist": 11.0,
    "door": 3.0,
    "emulator": 12.0,
}
NODES = "openb_node_list_gpu_node.csv"
REQUEST_LIMIT_S = AWAY_S + 60.0

PARTS = ("openb",)

BUDGETS = {
    "chaos_findings_count": ("<=", 0.0),
    "chaos_ended_otherwise_count": ("<=", 0.0),
}


def pods(path: Path) -> Iterator[JobRequest]:
    """Every pod of the list."""
    for _, request in workloads.parse_workloads(path.read_text(), prefix="openb"):
        expected_s = min(request.expected_duration_s or 1.0, LONGEST_S)
        yield msgspec.structs.replace(request, expected_duration_s=expected_s)


async def suffer(up: Rig, path: Path) -> tuple[AuditReport, dict[str, float]]:
    """All of the list through the services while these suffer; what the auditor says then."""
    await up.start_lasting()
    total = sum(1 for _ in pods(path))
    kills = stops = rounds = 0
    began_s = time.monotonic()
    listed = stream(up, RATE, pods(path), most_open=math.inf, timeout_s=REQUEST_LIMIT_S)
    async with listed as jobs:
        while jobs.offered < total:
            rounds += 1
            for service, pause_s in STOPPED_S.items():
                names = up.names(service)
                await up.kill(*names)
                kills += len(names)
                async with up.stopped(*names):
                    stops += len(names)
                    await asyncio.sleep(pause_s)
            await up.kill("nats-server")
            kills += 1
            if rounds == 2:
                async with up.away("nats-server"):
                    await asyncio.sleep(AWAY_S)
            if jobs.offered < total:  # else there may be nothing left that could end
                await jobs.goes_on(20)
    took_s = time.monotonic() - began_s
    async with up.client() as berth:
        report = await so_far_so_good(up, berth)
    return report, {"kills": float(kills), "stops": float(stops), "took_s": took_s}


def measure(_part: str = "") -> dict[str, float]:
    """The figures, or none where the traces are not there."""
    path = openb_pods()
    if path is None:
        return {}
    flags = ["--fleet", str(path.with_name(NODES)), "--nodes", "1213", "--speed", f"{SPEED:g}"]
    flags += ["--resolvers", "2", "--scorers", "2"]
    env = {"BERTH_EMULATOR_TELEMETRY_INTERVAL_S": "5", "BERTH_ARCHIVIST_STORY_AFTER_S": "30"}
    with (
        tempfile.TemporaryDirectory(prefix="berth-chaos-") as folder,
        rig(Path(folder), *flags, env=env) as up,
    ):
        report, figures = asyncio.run(suffer(up, path))
    return {
        "chaos_jobs_count": float(report.submitted),
        "chaos_succeeded_count": float(report.succeeded),
        "chaos_running_count": float(report.running),
        "chaos_ended_otherwise_count": float(report.failed + report.cancelled + report.evictions),
        "chaos_findings_count": float(len(report.findings)),
        "chaos_events_count": float(report.events),
        "chaos_void_events_count": float(report.void),
        "chaos_withdrawals_count": float(report.withdrawals),
        "chaos_kills_count": figures["kills"],
        "chaos_stops_count": figures["stops"],
        "chaos_server_away_s": AWAY_S,
        "chaos_took_s": figures["took_s"],
    }
