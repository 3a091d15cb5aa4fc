"""The script of the `ray` runtime with a stand-in for Ray's programs: who starts what, and how the
pods of a gang end."""

import os
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from berthmaster.lib.messages.runtimes import Runtime
from berthmaster.lib.messages.workload import JobRequest, RunSpec
from berthmaster.lib.requests.builtin_runtimes import BUILT_IN
from berthmaster.lib.requests.runtimes import filled_in
from tests.support.patience import hang_s

LIMIT_S = 60.0
RAY = """#!/bin/sh
echo "$RANK: ray $*" >> "$CALLS"
"""
MODULE = """
def init(**how): pass
def nodes(): return [{"Alive": True}, {"Alive": True}, {"Alive": False}]
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ray").write_text(RAY)
    (tmp_path / "bin" / "ray").chmod(0o755)
    (tmp_path / "ray.py").write_text(MODULE)
    return {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(tmp_path),
        "CALLS": str(tmp_path / "calls"),
        "MASTER_ADDR": "127.0.0.1",
        "WORLD_SIZE": "2",
        "BERTH_POLL_S": "0.05",
    }


def pod(env: Mapping[str, str], rank: int, port: int, *command: str) -> subprocess.Popen[str]:
    request = JobRequest(
        id="train",
        run=RunSpec(image="ray:2", command=command),
        runtime=Runtime(name="ray", parameters={"port": port, "wait_s": 30}),
    )
    full = filled_in(request, "acme", BUILT_IN)
    assert isinstance(full, JobRequest), full
    assert full.runtime_used is not None
    argv = [*full.runtime_used.template.command, *command]
    return subprocess.Popen(
        argv, env={**env, "RANK": str(rank)}, text=True, stdout=-1, stderr=subprocess.STDOUT
    )


def calls(env: Mapping[str, str]) -> list[str]:
    path = Path(env["CALLS"])
    return path.read_text().splitlines() if path.exists() else []


def test_ray_head_exit_ends_job(env: dict[str, str]) -> None:
    head = pod(env, 0, 6400, "/bin/sh", "-c", "echo $RAY_ADDRESS; exit 7")
    said, _ = head.communicate(timeout=hang_s())
    assert head.returncode == 7, said
    assert said.strip().endswith(":6400")
    started, stopped = calls(env)
    assert started.startswith("0: ray start --head --port=6400 ")
    assert stopped == "0: ray stop"


def listening() -> socket.socket:
    for port in range(6400, 10_000):
        try:
            return socket.create_server(("127.0.0.1", port))
        except OSError:
            continue
    raise AssertionError("no port below 10000 is free")


def test_ray_workers_join_head(env: dict[str, str]) -> None:
    with listening() as server:
        port = server.getsockname()[1]
        other = pod(env, 1, port, "true")
        for _ in range(2):  # it asks whether the head answers, joins, and asks again
            server.settimeout(LIMIT_S)
            server.accept()[0].close()
        assert calls(env) == [f"1: ray start --address=127.0.0.1:{port} --disable-usage-stats"]
    said, _ = other.communicate(timeout=hang_s())
    assert other.returncode == 0, said
    assert calls(env)[1:] == ["1: ray stop"]
