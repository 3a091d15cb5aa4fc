"""The agent as it is shipped, over pynvml and a driver's library that is a fake (fake_nvml.c)."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from berthmaster.lib.messages.telemetry import GpuHealth, NodeTelemetry
from berthmaster.lib.supervisor.embedded import Server, ServerConfig
from tests.pipeline.telemetry.tools import Agent, Listener
from tests.support.patience import hang_s, wait_until

COMPILER = shutil.which("cc")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler to build a fake driver")

SOURCE = Path(__file__).with_name("fake_nvml.c")
GPU_IS_LOST, DRIVER_NOT_LOADED = 15, 9


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driver")
    target = folder / "libnvidia-ml.so.1"
    subprocess.run(
        [str(COMPILER), "-O2", "-shared", "-fPIC", "-o", str(target), str(SOURCE)],
        check=True,
        timeout=hang_s(),
    )
    return folder


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "nats", ServerConfig(sync="default")) as running:
        yield running


def agent(server: Server, library: Path, faults: Path, *flags: str) -> Agent:
    return Agent(
        *("--nats-url", server.url, "--source", "nvml", *flags),
        env={"LD_LIBRARY_PATH": str(library), "FAKE_NVML_FAULTS": str(faults)},
    )


def test_eight_gpus_are_published_and_one_that_falls_off_the_bus_is_reported_as_lost(
    server: Server, library: Path, tmp_path: Path
) -> None:
    faults = tmp_path / "faults"
    with (
        Listener(server.url) as listener,
        agent(server, library, faults, "--interval-s", "0.1") as one,
    ):
        (first,) = listener.wait(1)
        assert [(gpu.index, gpu.health) for gpu in first.gpus] == [(n, "ok") for n in range(8)]
        assert first.gpus[7].memory_total_mib == 81_920
        assert first.gpus[7].processes[0].sm_percent == 35.0

        faults.write_text(f"3 {GPU_IS_LOST}\n")
        assert one.until("gpu_lost")["index"] == 3
        last = wait_until(lambda: with_health(listener, 7, "ok"), "a message with a lost GPU")
        assert last.gpus[3].uuid == first.gpus[3].uuid
        assert "NVML error 15" in last.gpus[3].health_reason
        assert one.get("/readyz")[0] == 200

        faults.write_text("")
        one.until("gpu_ok")
        assert one.stop() == 0


def test_a_driver_that_is_unloaded_under_the_agent_is_reported_and_found_again(
    server: Server, library: Path, tmp_path: Path
) -> None:
    faults = tmp_path / "faults"
    with (
        Listener(server.url) as listener,
        agent(server, library, faults, "--interval-s", "0.1") as one,
    ):
        listener.wait(1)
        faults.write_text(f"-1 {DRIVER_NOT_LOADED}\n")
        wait_until(lambda: len(one.events("gpu_lost")) == 8 or None, "eight lost GPUs")
        wait_until(lambda: with_health(listener, 8, "lost"), "a message in which all are lost")
        faults.write_text("")
        wait_until(lambda: len(one.events("gpu_ok")) == 8 or None, "eight GPUs again")
        wait_until(lambda: with_health(listener, 8, "ok"), "a message in which all are well")
        assert one.stop() == 0


def test_a_driver_that_is_not_loaded_at_the_start_is_exit_code_3(
    server: Server, library: Path, tmp_path: Path
) -> None:
    faults = tmp_path / "faults"
    faults.write_text(f"-1 {DRIVER_NOT_LOADED}\n")
    with agent(server, library, faults) as one:
        assert one.end() == 3
        assert "Driver Not Loaded (NVML error 9)" in one.events("cannot_start")[0]["why"]


def test_eight_gpus_once_a_second_cost_little(
    server: Server, library: Path, tmp_path: Path
) -> None:
    """The budget is 0.5 % of a core and 60 MiB; a busy machine is allowed four times the time."""
    with Listener(server.url) as listener, agent(server, library, tmp_path / "none") as one:
        listener.wait(2)
        before_s, began_s = processor_s(one.process.pid), time.monotonic()
        listener.wait(6)
        share = (processor_s(one.process.pid) - before_s) / (time.monotonic() - began_s)
        resident_mib = resident_kib(one.process.pid) / 1024
        assert one.stop() == 0
    assert share < 4 * 0.005
    assert resident_mib < 60


def with_health(listener: Listener, count: int, health: GpuHealth) -> NodeTelemetry | None:
    """The newest message, if so many of its GPUs are in this health."""
    newest = listener.messages()[-1]
    return newest if [gpu.health for gpu in newest.gpus].count(health) == count else None


def processor_s(pid: int) -> float:
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9


def resident_kib(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024
