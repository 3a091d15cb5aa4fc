"""The page at 10,000 GPUs and 1 Hz: bus to pixel, frames, and the service with 50 viewers.

scripts/chromium.sh scripts/bench dashboard
"""

import asyncio
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
from playwright.async_api import Page, async_playwright

from berthmaster.control.dashboard.static_files import read_all
from berthmaster.lib.messages.families import encode
from berthmaster.lib.messages.fleet import (
    Amounts,
    ClusterAlive,
    ClusterProfile,
    GpuDevice,
    NodeReport,
    Stamp,
)
from berthmaster.lib.messages.telemetry import GpuReading, NodeTelemetry
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.streams import ensure_streams
from berthmaster.lib.nats.subjects import alive, node, profile, telemetry
from berthmaster.lib.runtime.log import Log
from berthmaster.lib.runtime.ports import free_ports
from berthmaster.lib.supervisor.embedded import Server, ServerConfig

CLUSTERS: Final = 10
NODES: Final = 125  # in each
GPUS: Final = 8
VIEWERS: Final = 50  # one of them is a browser
WARM_S: Final = 10.0
MEASURED_S: Final = 40.0
SLICES: Final = 50  # of a second, in which the nodes' readings come
BUDGETS = {"page_weight_kib": ("<=", 150.0), "frames_per_s": (">=", 30.0)}
NOTES: list[str] = []
# Notes when the first cell of the first tile is another colour; and counts frames.
WATCH: Final = """() => {
  const canvas = document.querySelector('[data-cluster="c0"] canvas'), seen = [];
  window.bench = { seen, frames: 0, began: performance.now() };
  let before = '';
  const look = () => {
    window.bench.frames++;
    const [r, g, b] = canvas.getContext('2d').getImageData(3, 3, 1, 1).data, now = `${r},${g},${b}`;
    if (before && now !== before) seen.push(Date.now() / 1000);
    before = now;
    requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
}"""


class _Settings:
    nats_creds_file = None
    inbox_prefix = "_INBOX"
    nats_ca_file = None
    nats_plaintext = False

    def __init__(self, url: str) -> None:
        self.nats_url = url


async def _facts(conn: Connection) -> None:
    for c in range(CLUSTERS):
        cluster, stamp = f"c{c}", Stamp(epoch=1, counter=1)
        told = ClusterProfile(
            cluster=cluster, stamp=stamp, observed_at_s=0.0, nodes=NODES, gpus={"G": NODES * GPUS}
        )
        await conn.publish(profile(cluster), encode(told))
        for n in range(NODES):
            name = f"n{n}"
            gpus = tuple(
                GpuDevice(index=i, uuid=f"{cluster}-{n}-{i}", model="G", memory_mib=81_920)
                for i in range(GPUS)
            )
            report = NodeReport(
                cluster=cluster,
                node=name,
                stamp=stamp,
                observed_at_s=0.0,
                allocatable=Amounts(gpu_milli=1000 * GPUS),
                gpus=gpus,
            )
            await conn.publish(node(cluster, name), encode(report))
    await conn.flush(timeout_s=30)


def _reading(c: int, n: int, counter: int) -> bytes:
    gpus = tuple(
        GpuReading(
            index=i,
            uuid=f"c{c}-{n}-{i}",
            model="G",
            memory_total_mib=81_920,
            memory_used_mib=(counter * 997 + i * 7_000 + n * 31) % 81_920,
            # The first one of all goes from nothing to everything and back.
            utilization_percent=100.0 * (counter % 2)
            if (c, n, i) == (0, 0, 0)
            else float((counter * 13 + n * 7 + i * 11) % 101),
            temperature_c=40.0 + (counter + n + i) % 40,
        )
        for i in range(GPUS)
    )
    reading = NodeTelemetry(
        cluster=f"c{c}",
        node=f"n{n}",
        epoch=1,
        counter=counter,
        observed_at_s=0.0,
        interval_s=1.0,
        source="emulated",
        gpus=gpus,
    )
    return encode(reading)


async def _publish(conn: Connection, sent: list[float]) -> None:
    """Every node once a second, spread over it."""
    every = [(c, n) for n in range(NODES) for c in range(CLUSTERS)]
    counter, due_s = 0, time.monotonic()
    while True:
        counter += 1
        for c in range(CLUSTERS):
            stamp = Stamp(epoch=1, counter=counter)
            sign = ClusterAlive(cluster=f"c{c}", stamp=stamp, observed_at_s=0.0, interval_s=1.0)
            await conn.publish(alive(f"c{c}"), encode(sign))
        for part in range(SLICES):
            for c, n in every[part::SLICES]:
                await conn.publish(telemetry(f"c{c}", f"n{n}"), _reading(c, n, counter))
                if (c, n) == (0, 0):
                    await conn.flush()
                    sent.append(time.time())
            due_s += 1 / SLICES
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))


async def _view(url: str) -> None:
    async with aiohttp.ClientSession() as session, session.get(f"{url}api/stream") as reply:
        async for _ in reply.content.iter_any():
            pass


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss_mib(pid: int) -> float:
    return (
        int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    )


def _lags_ms(sent: Sequence[float], seen: Sequence[float]) -> list[float]:
    """From each reading of the first GPU to the next change of its pixel."""
    lags = []
    for number, at in enumerate(sent):
        end = sent[number + 1] + 0.9 if number + 1 < len(sent) else at + 5
        later = [each for each in seen if at <= each < end]
        if later:
            lags.append(1000 * (later[0] - at))
    return lags


async def _in_browser(page: Page, url: str, pid: int, sent: list[float]) -> dict[str, float]:
    await page.goto(url)
    await page.wait_for_function("() => document.querySelectorAll('.tile canvas').length === 10")
    await asyncio.sleep(WARM_S)
    await page.evaluate(WATCH)
    sent.clear()
    began_s, cpu_s = time.monotonic(), _cpu_s(pid)
    await asyncio.sleep(MEASURED_S)
    took_s = time.monotonic() - began_s
    cpu = 100 * (_cpu_s(pid) - cpu_s) / took_s
    told: dict[str, Any] = await page.evaluate(
        "() => ({ ...window.bench, took: performance.now() - window.bench.began })"
    )
    lags = _lags_ms(sent[:-2], told["seen"])
    return {
        "bus_to_pixel_p50_ms": statistics.median(lags),
        "bus_to_pixel_p99_ms": sorted(lags)[min(len(lags) - 1, int(0.99 * len(lags)))],
        "samples": float(len(lags)),
        "frames_per_s": 1000 * told["frames"] / told["took"],
        "service_cpu_percent_50_viewers": cpu,
        "service_rss_mib_50_viewers": _rss_mib(pid),
    }


async def _measure(folder: Path) -> dict[str, float]:
    [port] = free_ports(1)
    url = f"http://127.0.0.1:{port}/"
    with Server(folder, ServerConfig(sync="default")) as server:
        log = Log("bench", level="error", format="text")
        async with await Connection.open(_Settings(server.url), "bench", log) as conn:
            await ensure_streams(conn)
            await _facts(conn)
            service = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "berthmaster.cli.main", "serve", "dashboard"),
                *("--nats-url", server.url, "--page-port", str(port), "--log-level", "error"),
            )
            sent: list[float] = []
            tasks = [asyncio.create_task(_publish(conn, sent))]
            try:
                await _answered(url)
                tasks += [asyncio.create_task(_view(url)) for _ in range(VIEWERS - 1)]
                program = os.environ.get("BERTH_CHROMIUM") or shutil.which("chromium")
                if program is None:
                    raise RuntimeError("no chromium: scripts/chromium.sh scripts/bench dashboard")
                async with async_playwright() as driver:
                    browser = await driver.chromium.launch(
                        executable_path=program, args=["--no-sandbox"]
                    )
                    page = await browser.new_page(viewport={"width": 1920, "height": 1080})
                    return await _in_browser(page, url, service.pid, sent)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                service.terminate()
                await service.wait()


async def _answered(url: str) -> None:
    async with aiohttp.ClientSession() as session, asyncio.timeout(60):
        while True:
            try:
                async with session.get(f"{url}api/me") as reply:
                    if reply.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)


def measure() -> dict[str, float]:
    """All of it."""
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(_measure(Path(folder)))
    packed = sum(len(each.packed) for each in read_all().values())
    return {**found, "page_weight_kib": packed / 1024}
