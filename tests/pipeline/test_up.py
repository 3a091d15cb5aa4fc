"""`berth up` as people use it: everything comes up, stays up, and leaves nothing behind."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.pipeline.running import (
    alive,
    berth_up,
    children_of,
    environment,
    run_berth,
    wait_until_gone,
)
from tests.support.patience import hang_s, wait_until

NAMES = [
    "nats-server",
    "gateway",
    "resolver-1",
    "resolver-2",
    "scorer",
    "archivist",
    "usage",
    "door",
    "accounts",
    "dashboard",
    "emulator",
]


def test_all_comes_up_and_one_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    with berth_up(tmp_path / "berth", "--resolvers", "2") as up:
        assert [each["name"] for each in up.view["processes"]] == NAMES
        assert {each["condition"] for each in up.view["processes"]} == {"ready"}
        pids = [*up.pids().values()]
        assert all(alive(pid) for pid in pids)

        # Keys and data are for their owner alone, and no seed is in what anybody is told.
        assert up.berth("submit", "--id", "train").returncode == 0
        seeds = sorted((up.folder / "keys").rglob("*.seed"))
        assert len(seeds) == 16  # the operator and fifteen accounts
        made = [up.folder, *up.folder.rglob("*")]
        assert {"1.blk", "keys", "logs"} <= {path.name for path in made}
        modes = {}
        for path in made:
            with suppress(FileNotFoundError):  # the server's, which comes and goes
                modes[path] = stat.S_IMODE(path.lstat().st_mode)
        open_to_others = [path.name for path, mode in modes.items() if mode & 0o077]
        assert open_to_others == ["accounts.conf"]  # nothing secret
        told = (up.folder / "connection.json").read_text() + json.dumps(up.view)
        assert not any(seed.read_text().strip() in told for seed in seeds)

        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(hang_s()) == 0
        wait_until_gone(pids)
        assert not (up.folder / "connection.json").exists()


def test_a_second_up_on_the_same_folder_says_that_one_is_running(tmp_path: Path) -> None:
    folder = tmp_path / "berth"
    with berth_up(folder, "--services", "gateway") as up:
        second = run_berth("up", "--data", str(folder), home=tmp_path)
        assert second.returncode == 1
        assert f"a `berth up` is running on {folder} already (process {up.process.pid})" in (
            second.stderr
        )
        assert up.json("jobs") == {"type": "api.workloads.v1"}
    # And when it has ended the folder is free, with what was in it.
    with berth_up(folder, "--services", "gateway"):
        pass


def test_a_killed_service_and_a_killed_server_come_back_with_what_was_submitted(
    tmp_path: Path,
) -> None:
    with berth_up(tmp_path / "berth") as up:
        assert up.berth("submit", "--id", "before", "--gpus", "1").returncode == 0
        os.kill(up.pids()["gateway"], signal.SIGKILL)
        assert up.change("gateway", "restarting")["note"] == "ended with SIGKILL"
        back = up.change("gateway", "ready")
        assert (back["restarts"], back["pid"] != up.pids()["gateway"]) == (1, True)

        os.kill(up.pids()["nats-server"], signal.SIGKILL)
        assert up.change("nats-server", "ready")["url"] == up.view["url"]
        done = up.berth("submit", "--id", "after", "--gpus", "1", "--timeout", "120")
        assert done.returncode == 0, done.stderr
        assert up.until("before", state="running")["id"] == "before"
        assert up.until("after", state="running")["id"] == "after"


def test_ctrl_c_while_it_starts_leaves_nothing_behind_either(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "berthmaster.cli.main", "up", "--data", str(tmp_path / "b")]
    with subprocess.Popen(
        argv, stderr=subprocess.PIPE, text=True, env=environment(tmp_path), start_new_session=True
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("Starting in ")
        started = wait_until(lambda: children_of(process.pid), "its first child")
        process.send_signal(signal.SIGINT)
        assert process.wait(hang_s()) == 0
    wait_until_gone(started)


def test_children_die_with_an_up_that_was_killed(tmp_path: Path) -> None:
    with berth_up(tmp_path / "berth", "--services", "gateway,resolver") as up:
        pids = [*up.pids().values()]
        up.process.kill()
        up.process.wait(hang_s())
        wait_until_gone(pids)
        # Its connection file is still there: commands say that nobody answers.
        told = up.berth("jobs")
        assert told.returncode == 4
        assert "no NATS server at " in told.stderr


def test_a_service_that_cannot_start_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    told = run_berth(
        "up", "--data", str(tmp_path / "b"), "--fleet", "/no/such/list.csv", home=tmp_path
    )
    assert told.returncode == 1
    assert "berth: emulator cannot start (exit code 3)" in told.stderr
    assert "/no/such/list.csv" in told.stderr


def test_a_port_that_is_taken_is_told_at_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_berth("up", "--data", str(tmp_path / "x"), "--port", str(port), home=tmp_path)
    assert done.returncode == 1
    assert f"port {port} is in use; give another with --port" in done.stderr


def test_options_that_make_no_plan_are_usage_errors(tmp_path: Path) -> None:
    told = run_berth("up", "--services", "gateway,skorer", home=tmp_path)
    assert told.returncode == 2
    assert "no service 'skorer'; there are gateway, resolver, scorer" in told.stderr
    assert run_berth("up", "--services", "resolver=x", home=tmp_path).returncode == 2
    assert run_berth("up", "--nodes", "3", "--clusters", "8", home=tmp_path).returncode == 2
