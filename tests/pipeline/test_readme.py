"""Every command of the README does what the README says: run as it stands there, in order."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.patience import hang_s

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
GUIDE = (ROOT / "docs" / "users" / "python.md").read_text()
BLOCKS = re.findall(r"^```(sh|python)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
BY_HAND = {"scripts/demo", "scripts/test", ". .venv/bin/activate"}  # see the tests that name them
UP = "berth up --port 4222"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A folder and an environment in which `berth up` of the README runs."""
    folder = tmp_path_factory.mktemp("readme")
    bin_folder = Path(sys.executable).parent
    env = os.environ | {"PATH": f"{bin_folder}:{os.environ['PATH']}", "PWD": str(folder)}
    env = {name: value for name, value in env.items() if not name.startswith("BERTH_")}
    log = folder / "up.log"
    with log.open("wb") as output:
        up = subprocess.Popen(
            UP.split(), cwd=folder, env=env, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            subprocess.run(
                ["sh", "-c", f"until grep -q 'Up after' {log}; do sleep 0.1; done"],
                timeout=hang_s(),
                check=True,
            )
            yield env | {"README_FOLDER": str(folder)}
        finally:
            up.send_signal(signal.SIGINT)
            code = up.wait(timeout=hang_s())
    assert code == 0, log.read_text()


def test_the_readme_begins_with_the_two_commands() -> None:
    commands = [text.strip() for kind, text in BLOCKS if kind == "sh"]
    assert commands[:2] == ["scripts/demo", "scripts/test"]
    assert UP in commands


def test_every_script_that_the_readme_names_exists_and_can_be_run() -> None:
    for name in set(re.findall(r"\bscripts/[a-z]+\b|\bdeploy/keys\b", README)):
        path = ROOT / name
        assert path.is_file(), name
        assert os.access(path, os.X_OK), name


@pytest.mark.timeout(1800)
@pytest.mark.skipif(shutil.which("sh") is None, reason="no sh")
def test_the_five_minutes_work_as_they_stand(place: dict[str, str]) -> None:
    said: dict[str, str] = {}
    for kind, text in BLOCKS:
        lines = [text] if kind == "python" else text.strip().splitlines()
        for line in lines:
            if line in BY_HAND or line == UP:
                continue
            argv = [sys.executable, "-c", line] if kind == "python" else ["sh", "-c", line]
            done = subprocess.run(
                argv,
                cwd=place["README_FOLDER"],
                env=place,
                capture_output=True,
                text=True,
                timeout=hang_s(),
                check=False,
            )
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
            said[line] = done.stdout
    assert "train-1" in said["berth why train-1"]
    [answer] = [output for line, output in said.items() if "import asyncio" in line]
    assert '"api.submitted.v1"' in answer
    assert "no such GPU model" in said["berth why wants-h100"]
    assert "cordoned: new firmware" in said["berth why elsewhere"]
    assert (
        "Every workload is accounted for."
        in said["berth demo replay generated --limit 200 --speed 0 --settle 2 --at-most 20"]
    )
    assert "cordon t4: " in said["berth whatif cordon t4"]
    added = said["berth whatif add-cluster more --model H100 --nodes 4"]
    assert added.startswith("add more, usual machines (4 nodes, 32 GPUs): ")
    assert "GPUs" in said["berth top --queues --once"]
    assert "decisions: " in said["berth replay-decisions --set fit=0 --first 5"]
    assert "Clean." in said["berth audit"]
    assert "0 otherwise, 0 cannot be repeated" in said["berth replay-decisions"]


def test_the_client_guide_works_as_it_stands(place: dict[str, str]) -> None:
    told = []
    for program in re.findall(r"^```python\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE):
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=place["README_FOLDER"],
            env=place,
            capture_output=True,
            text=True,
            timeout=hang_s(),
            check=False,
        )
        assert done.returncode == 0, done.stderr
        told.append(done.stdout)
    follows, waited, log = told
    assert follows.split() == ["Submitted", "Placed", "Claimed", "Running", "Succeeded"]
    state, *models = waited.splitlines()
    assert state == "succeeded"
    assert models
    assert log
