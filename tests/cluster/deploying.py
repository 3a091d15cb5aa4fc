"""deploy/kubernetes applied and taken away again, as kubectl would."""

from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Final

from berthmaster.cli.secret import EXECUTOR_ROLE, FIGURES_ROLE
from berthmaster.doctor.rights import AGENT_ACCOUNT, DISPATCHING_ROLE, HUB_ACCOUNT
from tests.controlplane.api import ApiError
from tests.controlplane.plane import Plane
from tests.support.kustomize import Manifest, render
from tests.support.patience import wait_until

DEPLOY: Final = Path(__file__).parents[2] / "deploy" / "kubernetes"
OURS: Final = "berth-system"


def apply(plane: Plane, folder: str) -> Iterator[Manifest]:
    """Server-side apply of everything, as `kubectl apply --server-side -k` does it."""
    for document in render(DEPLOY / folder):
        yield plane.api.apply(document)


def remove(plane: Plane, folder: str) -> None:
    """Everything again, and our namespace."""
    for document in reversed(render(DEPLOY / folder)):
        try:
            plane.api.delete(plane.api.path_of(document))
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
    if plane.api.find(f"/api/v1/namespaces/{OURS}") is not None:
        plane.api.delete(f"/api/v1/namespaces/{OURS}")
        plane.api.delete(f"/api/v1/namespaces/{OURS}/pods", gracePeriodSeconds=0)
    gone = f"/api/v1/namespaces/{OURS}"
    wait_until(lambda: plane.api.find(gone) is None, f"namespace {OURS} is gone")


def bind_executor(plane: Plane, namespace: str) -> None:
    """Let the agent make jobs in a namespace."""
    account = {"kind": "ServiceAccount", "name": AGENT_ACCOUNT, "namespace": OURS}
    bind_in(plane, namespace, EXECUTOR_ROLE, account)
    bind_in(plane, namespace, FIGURES_ROLE, account)


def bind_dispatching(plane: Plane, namespace: str) -> None:
    """Let the hub nominate clusters for the Workloads of a namespace."""
    account = {"kind": "ServiceAccount", "name": HUB_ACCOUNT, "namespace": OURS}
    bind_in(plane, namespace, DISPATCHING_ROLE, account)


def bind_in(plane: Plane, namespace: str, role: str, subject: Manifest) -> None:
    """A ClusterRole's rights in one namespace."""
    group = "rbac.authorization.k8s.io"
    plane.api.apply(
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": role, "namespace": namespace},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
            "subjects": [subject],
        }
    )
