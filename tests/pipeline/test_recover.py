"""A log that loses its end while everything runs, and `berth recover` with an operator's keys."""

import os
import signal
from pathlib import Path

from tests.pipeline.running import Up, berth_up
from tests.support.patience import wait_until

JOBS = [f"job-{number}" for number in range(4)]


def test_recover_builds_a_log_in_which_everything_runs_on(tmp_path: Path) -> None:
    with berth_up(tmp_path / "berth") as up:
        for name in JOBS:
            up.json("submit", "--id", name, "--gpus", "1", "--duration", "36000")
            up.until(name, state="running")
        places = {name: up.until(name, state="running")["cluster"] for name in JOBS}
        lose_the_end(up)
        wait_until(lambda: up.berth("problems").returncode == 1, "the damage is told")
        assert up.berth("submit", "--gpus", "1").returncode != 0
        shown = up.json("recover")
        assert not shown["built"]
        assert {one["outcome"] for one in shown["lines"]} == {"claimed"}
        built = up.json("recover", "--yes", "--reason", "a test")
        assert built["built"]
        assert built["carried"] == len(JOBS)
        wait_until(lambda: up.berth("problems").returncode == 0, "nothing is broken")
        for name, cluster in places.items():
            assert up.until(name, state="running")["cluster"] == cluster
        more = ("submit", "--id", "more", "--gpus", "1", "--duration", "36000")
        wait_until(lambda: up.berth(*more).returncode == 0, "a gateway is there again")
        up.until("more", state="running")
        assert up.berth("audit").returncode == 0


def lose_the_end(up: Up) -> None:
    """A third of the log, as after a disk's fault."""
    os.kill(up.pids()["nats-server"], signal.SIGKILL)
    block = next(up.folder.rglob("WORKLOADS/msgs/*.blk"))
    data = block.read_bytes()
    block.write_bytes(data[: len(data) * 2 // 3])
