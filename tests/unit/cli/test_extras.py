"""A service needs what its extra brings and nothing else: its image holds no more."""

import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

from berthmaster.services import SERVICES
from tests.support.patience import hang_s

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
# Modules of the distributions that only some services have.
MODULES = {
    "aiohttp": "aiohttp",
    "cryptography": "cryptography",
    "cel-expr-python": "cel_expr_python",
    "numpy": "numpy",
    "nvidia-ml-py": "pynvml",
    "pyyaml": "yaml",
    "rich": "rich",
}
IMPORTS = """
import importlib, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[2].split(","):
            raise ModuleNotFoundError(f"no {name}", name=name)
sys.meta_path.insert(0, Absent())
importlib.import_module(sys.argv[1])
"""


def brought_by(extra: str) -> set[str]:
    """Distributions, by the names before their versions."""
    found: set[str] = set()
    for need in PROJECT["optional-dependencies"].get(extra, []):
        if need.startswith("berthmaster["):
            found |= brought_by(need.removeprefix("berthmaster[").removesuffix("]"))
        else:
            found.add(need.partition(">")[0].lower())
    return found


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_starts_with_its_own_extra(service: str) -> None:
    row = SERVICES[service]
    brought = set().union(*map(brought_by, row.extras))
    absent = [module for name, module in MODULES.items() if name not in brought]
    told = subprocess.run(
        [sys.executable, "-c", IMPORTS, row.module, ",".join(absent)],
        check=False,
        capture_output=True,
        text=True,
        timeout=hang_s(),
    )
    assert told.returncode == 0, told.stderr


CLIENT = """
from berthmaster.client import Client, SyncClient, UnavailableError
from berthmaster.lib.messages.workload import JobRequest, PodSet
Client.connect("nats://127.0.0.1:1", tenant="a")
try:
    with SyncClient.connect("nats://127.0.0.1:1", tenant="a", connect_timeout_s=0.2) as berth:
        berth.submit(JobRequest(id="a", pod_sets=(PodSet(gpus=1),)))
except UnavailableError:
    raise SystemExit(0)
raise SystemExit("somebody answered")
"""


def test_the_wheel_alone_in_a_clean_environment_brings_the_client(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    root = Path(__file__).parents[3]
    source = tmp_path / "source"  # a build writes beside what it builds
    kept = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(root / "services", source / "services", ignore=kept)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(root / name, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(wheels), str(source)]
    made = _said(build, CC="false")
    if made.returncode and "No module named 'setuptools'" in made.stderr:
        pytest.skip("no setuptools here, and none is fetched for a test")
    assert made.returncode == 0, made.stderr
    (wheel,) = wheels.glob("*.whl")
    clean = tmp_path / "clean"
    venv.create(clean, with_pip=False)
    python = str(clean / "bin" / "python")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    wanted = tmp_path / "wanted.txt"
    wanted.write_text(f"{wheel} --hash=sha256:{digest}\n")
    pins = tmp_path / "pins.txt"
    export = ["uv", "export", "--quiet", "--locked", "--no-default-groups", "--no-emit-project"]
    exported = _said([*export, "--project", str(root), "--output-file", str(pins)])
    assert exported.returncode == 0, exported.stderr
    locked = ["--retries", "2", "-r", str(wanted), "-c", str(pins)]
    done = _said([*pip, "--python", python, "install", *locked])
    if done.returncode and any(word in done.stderr for word in ("onnection", "No matching")):
        pytest.skip(f"no answer of the registry: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    told = _said([python, "-c", CLIENT])
    assert (told.returncode, told.stderr) == (0, "")


def _said(argv: list[str], **own: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | own
    return subprocess.run(
        argv, env=env, capture_output=True, text=True, timeout=hang_s(), check=False
    )
