"""Processes that are forked from a warm one behave as those that are started from nothing."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support import warm
from tests.support.patience import hang_s

CODE = "tests.unit.support.program"


def start(tmp_path: Path, *argv: str, **env: str) -> tuple[warm.Child, Path]:
    log = tmp_path / f"log-{'-'.join(argv)}"
    with log.open("ab") as output:
        return warm.start(CODE, argv, output=output, env=env, cwd=tmp_path), log


def test_it_has_the_arguments_environment_folder_and_output_that_it_was_given(
    tmp_path: Path,
) -> None:
    child, log = start(tmp_path, "tell", "x y", OWN="1")
    assert child.wait(30) == 3
    told = json.loads(log.read_text())
    assert told.pop("pid") == child.pid
    assert told == {"argv": ["tell", "x y"], "env": {"OWN": "1"}, "cwd": str(tmp_path)}
    assert (child.poll(), child.returncode) == (3, 3)
    child.kill()  # it is gone: nobody else with its number is hit


def test_two_share_nothing_not_even_their_random_numbers(tmp_path: Path) -> None:
    children = [start(tmp_path, "random", str(n)) for n in range(2)]
    assert [child.wait(30) for child, _ in children] == [0, 0]
    one, other = (log.read_text() for _, log in children)
    assert one != other


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, -15), (signal.SIGINT, -2)]
)
def test_signals_reach_it(tmp_path: Path, number: signal.Signals, code: int) -> None:
    child, log = start(tmp_path, "wait", number.name)
    while "here" not in log.read_text():
        assert child.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.01)
    threads = [threading.Thread(target=child.wait, args=(30,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    child.send_signal(number)
    assert child.wait(30) == code
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)


def test_an_error_is_told_as_python_tells_it(tmp_path: Path) -> None:
    child, log = start(tmp_path, "fail")
    assert child.wait(30) == 1
    assert log.read_text().splitlines()[-1] == "ValueError: as asked"


def test_nothing_outlives_the_process_that_tests(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from tests.support import warm\n"
        f"with Path({str(tmp_path / 'log')!r}).open('ab') as output:\n"
        f"    child = warm.start({CODE!r}, ['wait'], output=output, env={{}})\n"
        "print(child.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    env = {**os.environ, "PYTHONPATH": f"{warm.SERVICES}:{warm.ROOT}"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=env, check=False)
    stat = Path(f"/proc/{int(done.stdout)}/stat")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while ") Z" not in stat.read_text():  # a zombie is gone as well; pytest ends a hang
            continue


def test_a_command_is_run_with_an_input_and_both_its_outputs_apart(tmp_path: Path) -> None:
    done = warm.run_berth("--version", env={}, cwd=tmp_path, limit_s=hang_s())
    assert (done.returncode, done.stderr) == (0, "")
    assert "berth" in done.stdout
    wrong = warm.run_berth("no-such-command", env={}, cwd=tmp_path, limit_s=hang_s())
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "no-such-command" in wrong.stderr
    with pytest.raises(subprocess.TimeoutExpired):
        warm.run_berth("--version", env={}, cwd=tmp_path, limit_s=0)
