"""`berth lab` as a user types it: up, both tours, killed, up again, and nothing left."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from berthmaster.lab.controlplane.build import Programs
from berthmaster.lab.sandbox.layout import WORKERS
from berthmaster.lab.sandbox.state import LOCK_FILE, is_held
from tests.support.patience import hang_s, wait_until

SOME_S = 600.0  # of a start on a busy machine; the test names no time that it must take


class Lab:
    """A user with a state folder of his own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "berth" / "lab"
        kept = {name: text for name, text in os.environ.items() if not name.startswith("BERTH_N")}
        self._env = kept | {"XDG_STATE_HOME": str(folder)}
        self._cwd = folder

    def popen(self, *argv: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "berthmaster.cli.main", *argv],
            cwd=self._cwd,
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *argv: str) -> Any:
        """What a command prints as JSON; it must succeed."""
        with self.popen(*argv, "--json") as process:
            out, err = process.communicate(timeout=max(SOME_S, hang_s()))
        assert process.returncode == 0, f"{argv}: {out}\n{err}"
        return json.loads(out)

    def processes(self) -> set[int]:
        """The processes whose command line names the lab's folder."""
        found = set()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                text = path.read_bytes()
            except OSError:
                continue  # it has ended
            if str(self.folder).encode() in text:
                found.add(int(path.parent.name))
        return found

    def left(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())


@pytest.fixture
def lab(tmp_path: Path, programs: Programs) -> Iterator[Lab]:
    found = Lab(tmp_path)
    yield found
    found.run("lab", "stop")
    wait_until(lambda: not found.processes(), "all processes have ended")


@pytest.mark.timeout(3600)
def test_lab_runs_both_tours_and_leaves_nothing_behind(lab: Lab) -> None:
    state = lab.run("lab")
    assert state["workers"] == [worker.name for worker in WORKERS]
    contexts = json.loads(Path(state["kubeconfig"]).read_text())["contexts"]
    assert [one["name"] for one in contexts] == ["hub", *state["workers"]]
    assert lab.run("lab") == lab.run("lab", "show") == state  # it runs already

    gpus = lab.run("tour", "gpus")
    assert gpus["right"], gpus
    assert len({one["cluster"] for one in gpus["jobs"]}) > 1  # the jobs before took GPUs
    labels = lab.run("tour", "labels")
    assert labels["right"], labels
    assert {one["cluster"] for one in labels["jobs"]} <= {"worker-1", "worker-3"}

    assert len(lab.processes()) > 10
    os.kill(state["pid"], signal.SIGKILL)
    wait_until(lambda: not lab.processes(), "the kernel ends all of it")
    wait_until(lambda: not is_held(lab.folder), "the lock is free after SIGKILL")
    again = lab.run("lab")
    assert again["pid"] != state["pid"]
    assert lab.run("lab", "stop") == {"ended": True}
    wait_until(lambda: not lab.processes(), "stop ends all of it")
    assert lab.left() == [LOCK_FILE]


@pytest.mark.timeout(3600)
def test_lab_interrupted_while_starting_leaves_nothing_behind(lab: Lab) -> None:
    for number in (signal.SIGINT, signal.SIGKILL):
        with lab.popen("lab") as process:
            wait_until(lambda: len(lab.processes()) > 4, "API servers start")
            process.send_signal(number)
            process.communicate(timeout=hang_s())
        assert process.returncode == (130 if number is signal.SIGINT else -number)
        wait_until(lambda: not lab.processes(), f"all have ended after {number.name}")
        wait_until(lambda: not is_held(lab.folder), f"the lock is free after {number.name}")
    assert lab.run("lab", "stop") == {"ended": False}
    assert lab.left() == [LOCK_FILE]
