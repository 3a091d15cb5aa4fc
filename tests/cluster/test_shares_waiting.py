"""Shares of GPUs on a node of a real API server, whose scheduler knows what the kubelet reports."""

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from berthmaster.lab.controlplane.planes import Planes
from tests.cluster.sharing import MILLI, Place, containers, env_of
from tests.controlplane import node as nodes
from tests.support.patience import wait_until

pytestmark = pytest.mark.skipif(bool(nodes.why_not()), reason=nodes.why_not())


def test_a_third_pod_waits_until_a_share_is_free(planes: Planes, namespace: str) -> None:
    worker = planes.workers[0]
    assert worker.parts.kwok is not None
    worker.parts.kwok.kill()  # it would play this node's kubelet
    pods = f"/api/v1/namespaces/{namespace}/pods"

    def phase(name: str) -> str:
        return str(worker.api.get(f"{pods}/{name}")["status"].get("phase"))

    def runs(name: str) -> bool:
        return phase(name) == "Running"

    with (
        TemporaryDirectory(prefix="node-", ignore_cleanup_errors=True) as folder,
        TemporaryDirectory(prefix="shares-") as own,
        nodes.running(Path(folder), "gpu-real", worker.kubeconfig) as node,
        Place(Path(own), node).plugin() as plugin,
    ):
        plugin.until_offered()

        def offered() -> Any:
            return worker.api.get("/api/v1/nodes/gpu-real")["status"]["allocatable"].get(MILLI)

        wait_until(lambda: offered() in ("1k", "1000"), "the API server knows the shares")
        for name, milli in (("first", 600), ("second", 400)):
            worker.api.create(pods, pod_of(name, milli))
            wait_until(partial(runs, name), f"{name} runs")
        worker.api.create(pods, pod_of("third", 300))

        def refusal() -> Any:
            conditions = worker.api.get(f"{pods}/third")["status"].get("conditions", ())
            found = [each for each in conditions if each["type"] == "PodScheduled"]
            return found[0].get("message", "") if found else ""

        wait_until(lambda: f"Insufficient {MILLI}" in refusal(), "the third pod waits")
        assert phase("third") == "Pending"
        worker.api.delete(f"{pods}/first")
        wait_until(partial(runs, "third"), "the third pod runs")
        held = {pod: env_of(spec) for pod, spec in containers(node).items()}
        assert {pod: env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] for pod, env in held.items()} == {
            "second": "40",
            "third": "30",
        }
        worker.api.delete(pods)
        wait_until(lambda: not node.pids(), "the pods have ended")
    worker.api.delete("/api/v1/nodes/gpu-real")


def pod_of(name: str, milli: int) -> dict[str, Any]:
    amounts = {MILLI: str(milli)}
    container = {
        "name": "main",
        "image": nodes.PAUSE,
        "imagePullPolicy": "Never",
        "resources": {"limits": amounts, "requests": amounts},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "containers": [container],
            "hostNetwork": True,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "tolerations": [{"operator": "Exists"}],  # a node without a network is not ready
        },
    }
