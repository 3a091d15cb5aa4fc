"""A service needs what its extra brings and nothing else: its image holds no more."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from berthmaster.cli.serve import EXTRAS, PODS, SERVICES

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
# Modules of the distributions that only some services have.
MODULES = {
    "aiohttp": "aiohttp",
    "click": "click",
    "cryptography": "cryptography",
    "google-re2": "re2",
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
importlib.import_module(f"berthmaster.{sys.argv[1]}.service")
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


@pytest.mark.parametrize("service", [name for name in SERVICES if name not in PODS])
def test_a_service_starts_with_its_own_extra(service: str) -> None:
    extra = service if service in PROJECT["optional-dependencies"] else EXTRAS[service]
    absent = [module for name, module in MODULES.items() if name not in brought_by(extra)]
    told = subprocess.run(
        [sys.executable, "-c", IMPORTS, service, ",".join(absent)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert told.returncode == 0, told.stderr
