"""Programs beside a test: what ends with what, and what is said of those that fail."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from berthmaster.lab.controlplane.build import Programs
from berthmaster.lab.controlplane.compiling import HERE
from berthmaster.lab.controlplane.processes import Failed, Process
from berthmaster.lib.runtime.ports import free_ports
from tests.support.patience import wait_until

RUN = """
import pathlib, sys, time
from berthmaster.lab.controlplane.planes import Planes
with Planes(pathlib.Path(sys.argv[1]), hub=False, workers=1, crds=[]) as planes:
    parts = [planes.etcd.process, *planes.workers[0].parts.all()]
    print(*(part.pid for part in parts), flush=True)
    time.sleep(600)
"""


def alive(pid: int) -> bool:
    """Whether there is such a process, other than one that ended and was not buried."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def shell(tmp_path: Path, script: str) -> Process:
    return Process("script", ["/bin/sh", "-c", script], tmp_path / "logs" / "script.log")


def test_nothing_is_left_running_when_a_test_run_is_killed(
    programs: Programs, tmp_path: Path
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path)],
        cwd=HERE.parent.parent,
        stdout=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdout is not None
        pids = [int(pid) for pid in run.stdout.readline().split()]
        assert [alive(pid) for pid in pids] == [True] * 5
        run.send_signal(signal.SIGKILL)
    wait_until(lambda: not any(alive(pid) for pid in pids), "all gone")


def test_a_program_that_ends_by_itself_is_quoted(tmp_path: Path) -> None:
    process = shell(tmp_path, "echo first; echo no such thing >&2; exit 3")
    process.launch()
    with pytest.raises(Failed, match=r"script ended by itself: first \| no such thing"):
        process.wait_ready(lambda: False)


def test_a_program_that_is_not_ready_in_time_is_quoted(tmp_path: Path) -> None:
    process = shell(tmp_path, "echo thinking; exec sleep 60")
    process.launch()
    wait_until(lambda: "thinking" in process.said(), "it speaks")
    with pytest.raises(Failed, match=r"not within \d+ s: script ready: thinking"):
        process.wait_ready(lambda: False, hang_s=0.1)
    process.kill()
    assert not process.running


def test_a_program_that_does_not_exist_is_named(tmp_path: Path) -> None:
    process = Process("missing", ["/nowhere/missing"], tmp_path / "log")
    with pytest.raises(Failed, match=r"missing: .*No such file"):
        process.launch()


def test_a_program_keeps_its_log_over_its_lives_and_is_quoted_from_the_last(tmp_path: Path) -> None:
    process = shell(tmp_path, "echo I am $$; exec sleep 60")
    process.launch()
    first = process.pid
    with pytest.raises(Failed, match="running already"):
        process.launch()
    wait_until(lambda: f"I am {first}" in process.said(), "it speaks")
    process.kill()
    process.launch()
    wait_until(lambda: f"I am {process.pid}" in process.said(), "it speaks")
    assert process.last_words() == f"I am {process.pid}"
    assert process.log_path.read_text() == f"I am {first}\nI am {process.pid}\n"
    process.kill()


def test_ports_are_none_that_outgoing_connections_get() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = free_ports(50)
    assert len(set(ports)) == 50
    assert all(1024 < port < lowest for port in ports)
