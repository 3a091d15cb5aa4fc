"""Jobs to try a cluster with, and waiting for their ends."""

from collections.abc import Mapping
from typing import Any, Final

from berthmaster.lab.controlplane.api import Object
from berthmaster.lab.controlplane.nodes import GPU
from berthmaster.lab.controlplane.plane import Plane
from tests.support.patience import wait_until

RUN: Final = "berth.test/run-s"  # stages/pods.yaml
EXIT_CODE: Final = "berth.test/exit-code"
START: Final = "berth.test/start-s"


def gpu_job(
    name: str,
    *,
    pods: int = 1,
    gpus: int = 1,
    resource: str = GPU,
    run_s: float | str | None = None,
    exit_code: int = 0,
    labels: Mapping[str, str] | None = None,
    **spec: Any,
) -> Object:
    """A Job of equal pods side by side; `spec` adds to the Job's own (suspend, managedBy)."""
    annotations = {EXIT_CODE: str(exit_code)} | ({} if run_s is None else {RUN: str(run_s)})
    limits = {"cpu": "1"} | ({resource: str(gpus)} if gpus else {})
    container = {"name": "main", "image": "none", "resources": {"limits": limits}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "backoffLimit": 0,
            "template": {
                "metadata": {"annotations": annotations},
                "spec": {"restartPolicy": "Never", "containers": [container]},
            },
        }
        | spec,
    }


def jobs_path(namespace: str, name: str = "") -> str:
    """Where Jobs are."""
    return f"/apis/batch/v1/namespaces/{namespace}/jobs" + (f"/{name}" if name else "")


def pods_path(namespace: str) -> str:
    """Where pods are."""
    return f"/api/v1/namespaces/{namespace}/pods"


def wait_condition(plane: Plane, path: str, condition: str) -> Mapping[str, Any]:
    """Until an object has this condition with status True; the condition. Raises Hung."""

    def found() -> Mapping[str, Any] | None:
        conditions = plane.api.get(path).get("status", {}).get("conditions", [])
        for each in conditions:
            if each["type"] == condition and each["status"] == "True":
                return dict(each)
        return None

    return wait_until(found, f"{plane.name}: {path} with {condition}")
