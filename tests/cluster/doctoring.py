"""Carries out what `berth doctor` says is to be done, as a person types it."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.patience import hang_s

ROOT = Path(__file__).parents[2]
EDITOR = r"""
import re, sys, yaml
path, steps = sys.argv[-1], open(sys.argv[1]).read()
told = yaml.safe_load("\n".join(line[4:] for line in steps.splitlines() if line[:4] == "#   "))
file = yaml.safe_load(open(path))
config = yaml.safe_load(file["data"]["controller_manager_config.yaml"])
for section, values in told.items():
    for name, value in values.items():
        config.setdefault(section, {})[name] = value
        if value == "(remove this line)":
            del config[section][name]
file["data"]["controller_manager_config.yaml"] = yaml.safe_dump(config)
yaml.safe_dump(file, open(path, "w"))
"""


def type_in(steps: str) -> None:
    """As a person does, from the root of the repository; every command must succeed."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "editor.py").write_text(EDITOR)
        (Path(folder) / "steps").write_text(steps)
        editor = f"{sys.executable} {folder}/editor.py {folder}/steps"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", steps],
            cwd=ROOT,
            env={"PATH": os.environ["PATH"], "HOME": folder, "KUBE_EDITOR": editor},
            capture_output=True,
            text=True,
            timeout=hang_s(),
            check=False,
        )
    assert done.returncode == 0, f"{steps}\n{done.stdout}{done.stderr}"
