"""The definitions of the kinds of jobs that MultiKueue copies, compact, from their projects.

They are part of the projects' Go modules, which Go's own proxy serves and its cache keeps: nothing
of them is kept here. The versions are those that Kueue 0.19.2 is built with.
"""

import json
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from berthmaster.lab.controlplane.api import Object, documents
from berthmaster.lab.controlplane.compiling import Unavailable
from berthmaster.lab.controlplane.planes import compact
from tests.support.patience import hang_s


class Source(NamedTuple):
    """Where the definitions of one framework are."""

    module: str
    files: tuple[str, ...]


_RAY: Final = "github.com/ray-project/kuberay/ray-operator@v1.6.2"
_TRAINER: Final = "github.com/kubeflow/trainer/v2@v2.2.1"
SOURCES: Final[dict[str, Source]] = {  # by Kueue's name of the integration
    "jobset.x-k8s.io/jobset": Source(
        "sigs.k8s.io/jobset@v0.12.0",
        ("config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml",),
    ),
    "ray.io/rayjob": Source(
        _RAY,
        tuple(f"config/crd/bases/ray.io_{each}.yaml" for each in ("rayclusters", "rayjobs")),
    ),
    "kubeflow.org/pytorchjob": Source(
        "github.com/kubeflow/training-operator@v1.9.3",
        ("manifests/base/crds/kubeflow.org_pytorchjobs.yaml",),
    ),
    "kubeflow.org/mpijob": Source(
        "github.com/kubeflow/mpi-operator@v0.8.2", ("manifests/base/kubeflow.org_mpijobs.yaml",)
    ),
    "trainer.kubeflow.org/trainjob": Source(
        _TRAINER,
        tuple(
            f"manifests/base/crds/trainer.kubeflow.org_{each}.yaml"
            for each in ("trainjobs", "trainingruntimes", "clustertrainingruntimes")
        ),
    ),
}


KARMADA: Final = Source(  # no framework of Kueue's: its own control plane
    "github.com/karmada-io/karmada@v1.18.2",
    tuple(
        f"charts/karmada/_crds/bases/{each}.yaml"
        for each in (
            "work/work.karmada.io_resourcebindings",
            "policy/policy.karmada.io_propagationpolicies",
            "policy/policy.karmada.io_clusterpropagationpolicies",
            "policy/policy.karmada.io_overridepolicies",
        )
    ),
)


def definitions(names: Iterable[str]) -> list[Object]:
    """Those of some frameworks. Raises Unavailable."""
    return [document for name in names for document in definitions_of(SOURCES[name])]


def definitions_of(source: Source) -> list[Object]:
    """Raises Unavailable."""
    folder = _module(source.module)
    return [compact(one) for file in source.files for one in documents(folder / file)]


def _module(module: str) -> Path:
    """Where Go keeps a module."""
    go = shutil.which("go")
    if go is None:
        raise Unavailable("the definitions of frameworks come as Go modules, and there is no go")
    try:
        done = subprocess.run(
            [go, "mod", "download", "-json", module],
            capture_output=True,
            timeout=hang_s(),
            cwd="/",
            check=False,
        )
        told = json.loads(done.stdout or b"{}")
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise Unavailable(f"{module} cannot be had: {error}") from error
    if not told.get("Dir"):
        why = told.get("Error") or done.stderr.decode(errors="replace")[-300:]
        raise Unavailable(f"{module} cannot be had: {why}")
    return Path(told["Dir"])
