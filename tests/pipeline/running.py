"""A `berth up` as a process of its own, and `berth` commands against it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import warm
from tests.support.patience import PATIENT, Patience, hang_s, wait_until

SMALL = ("--clusters", "8", "--nodes", "16", "--speed", "50", "--sync", "default")


def environment(home: Path) -> dict[str, str]:
    """Ours without anything that would lead to another `berth up`."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("BERTH_")}
    homes = dict.fromkeys(("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"), str(home))
    return env | homes | PATIENT | {"COLUMNS": "80"}


@dataclass
class Up:
    process: subprocess.Popen[str]
    folder: Path
    view: dict[str, Any]

    def pids(self) -> dict[str, int]:
        """Process ids as they were when it was up."""
        return {each["name"]: each["pid"] for each in self.view["processes"]}

    def change(self, name: str, condition: str) -> dict[str, Any]:
        """Read its lines until this process is in this condition."""
        assert self.process.stdout is not None
        while True:
            line = self.process.stdout.readline()
            assert line, "berth up ended"
            changed: dict[str, Any] = json.loads(line)["changed"]
            if (changed["name"], changed["condition"]) == (name, condition):
                return changed

    def berth(self, *argv: str, input: str | None = None) -> subprocess.CompletedProcess[str]:
        return run_berth(*argv, "--data", str(self.folder), home=self.folder.parent, input=input)

    def json(self, *argv: str) -> Any:
        """The answer of a command that must succeed."""
        done = self.berth(*argv, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def until(self, *argv: str, state: str) -> dict[str, Any]:
        """Ask for a workload until it is in this state."""
        patience = Patience(f"{argv} is {state}")
        while True:
            view: dict[str, Any] = self.json("job", *argv)["workload"]
            if view["state"] == state:
                return view
            patience.look(view)
            time.sleep(0.05)


def run_berth(*argv: str, home: Path, input: str | None = None) -> subprocess.CompletedProcess[str]:
    return warm.run_berth(*argv, env=environment(home), cwd=home, limit_s=hang_s(), input=input)


@contextmanager
def berth_up(folder: Path, *flags: str) -> Iterator[Up]:
    """Everything up; stopped, and killed if need be, at the end."""
    argv = [sys.executable, "-m", "berthmaster.cli.main", "up", "--json", "--data", str(folder)]
    process = subprocess.Popen(
        [*argv, *SMALL, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(folder.parent),
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        assert first, process.stderr.read()
        said = json.loads(first)
        assert "up" in said, said
        yield Up(process, folder, said["up"])
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(hang_s())
            except subprocess.TimeoutExpired:
                process.kill()
        process.communicate()


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def wait_until_gone(pids: list[int]) -> None:
    """Wait until all of them have ended."""
    wait_until(lambda: not any(alive(pid) for pid in pids), f"{pids} have ended")


def children_of(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(stat.parent.name))
    return found
