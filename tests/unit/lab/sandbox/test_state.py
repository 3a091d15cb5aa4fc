"""The lab's folder: held by one supervisor, and cleared of what a killed one has left."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from berthmaster.lab.sandbox.state import (
    LabRuns,
    LabState,
    clear,
    hold,
    is_held,
    lab_folder,
    running,
    write_state,
)

STATE = LabState(
    pid=1,
    folder="/lab",
    kubeconfig="/lab/kubeconfig",
    hub="hub",
    workers=["worker-1"],
    namespace="team",
    local_queue="main",
    annotations=["a=b"],
    data="/lab/berth",
    page="",
    took_s=1.0,
)
HOLDER = """
import sys, time
from pathlib import Path
from berthmaster.lab.sandbox.state import hold
with hold(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_state_is_found_only_while_its_supervisor_runs(tmp_path: Path) -> None:
    assert running(tmp_path) is None
    with hold(tmp_path):
        assert running(tmp_path) is None  # the lab still starts
        write_state(tmp_path, STATE)
        assert running(tmp_path) == STATE
    assert running(tmp_path) is None


def test_second_holder_is_refused_and_removes_nothing(tmp_path: Path) -> None:
    with hold(tmp_path):
        write_state(tmp_path, STATE)
        with pytest.raises(LabRuns, match="a lab runs in"):
            clear(tmp_path)
        assert running(tmp_path) == STATE


def test_folder_of_a_killed_supervisor_is_free_and_is_cleared(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert is_held(tmp_path)
        holder.send_signal(signal.SIGKILL)
    (tmp_path / "clusters" / "hub").mkdir(parents=True)
    (tmp_path / "kubeconfig").touch()
    assert not is_held(tmp_path)
    assert clear(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
    assert not clear(tmp_path)


def test_lab_folder_follows_the_state_folder(tmp_path: Path) -> None:
    assert lab_folder({"XDG_STATE_HOME": "/s", "HOME": "/h"}) == Path("/s/berth/lab")
    assert lab_folder({"HOME": "/h"}) == Path("/h/.local/state/berth/lab")
    assert lab_folder({}) == Path(f"/tmp/berth-{os.getuid()}/lab")
