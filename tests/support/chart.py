"""What the chart comes to, by `helm template`: as an operator gets it."""

import functools
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from berthmaster.lab.controlplane.compiling import KUBERNETES_VERSION, Unavailable
from berthmaster.lab.controlplane.projects import HELM, find_project
from tests.support.patience import hang_s

Manifest = dict[str, Any]
Values = Mapping[str, Any]
DEPLOY: Final = Path(__file__).resolve().parents[2] / "deploy"
CHART: Final = DEPLOY / "chart"
RELEASE: Final = "berth"
NAMESPACE: Final = "berth-system"
WITHOUT: Final[Values] = {}
NEWEST: Final = KUBERNETES_VERSION


def helm() -> str:
    """Return the program; skips the test where it is not built."""
    try:
        return str(find_project(HELM).program("helm"))
    except Unavailable as reason:
        pytest.skip(str(reason), allow_module_level=True)


def run_helm(*argv: str, values: Values = WITHOUT) -> "subprocess.CompletedProcess[str]":
    """Run it; ``values`` are over those of the files in ``argv``."""
    return subprocess.run(
        [helm(), *argv, *(("--values", "-") if values else ())],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        check=False,
        timeout=hang_s(),
    )


def render(
    role: str = "hub", values: Values = WITHOUT, *, kubernetes: str = NEWEST
) -> list[Manifest]:
    """Return all objects of a release, in an order of no meaning."""
    text = _text(json.dumps({**values, "role": role}), kubernetes)
    return [each for each in yaml.safe_load_all(text) if each]


@functools.cache
def _text(values: str, kubernetes: str) -> str:
    argv = ("template", RELEASE, str(CHART), "--namespace", NAMESPACE)
    done = run_helm(*argv, "--kube-version", kubernetes, values=json.loads(values))
    assert done.returncode == 0, done.stderr
    return done.stdout


def rights(*names: str, role: str = "hub", values: Values = WITHOUT) -> list[Manifest]:
    """Return the Roles and ClusterRoles of these names."""
    kinds = ("ClusterRole", "Role")
    found = [each for each in render(role, values) if each["kind"] in kinds]
    wanted = [each for each in found if each["metadata"]["name"] in names]
    assert {each["metadata"]["name"] for each in wanted} == set(names)
    return wanted


def pod_of(objects: list[Manifest], owner: str) -> Manifest:
    """Return the pod's template of the workload with this name."""
    kinds = ("Deployment", "StatefulSet", "DaemonSet")
    [found] = [
        each for each in objects if each["kind"] in kinds and each["metadata"]["name"] == owner
    ]
    template: Manifest = found["spec"]["template"]
    return template


def one(objects: list[Manifest], kind: str, name: str = "") -> Manifest:
    """Return the one object of a kind, or of that name."""
    found = [each for each in objects if each["kind"] == kind]
    [match] = [each for each in found if not name or each["metadata"]["name"] == name]
    return match
