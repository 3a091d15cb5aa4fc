"""The agents on nodes, on a real API server, controller manager and scheduler: admitted as they are
written, one on each node with GPUs, none elsewhere, and in no namespace of a lower level."""

import pytest

from berthmaster.lab.controlplane.api import ApiError
from berthmaster.lab.controlplane.nodes import cpu_node, gpu_node, make_nodes, wait_open
from berthmaster.lab.controlplane.planes import Planes
from tests.support.chart import render
from tests.support.patience import wait_until

PRESENT = "nvidia.com/gpu.present"
GKE = "cloud.google.com/gke-accelerator"
PODS = "/api/v1/namespaces/berth-telemetry/pods"


def test_an_agent_is_on_each_node_with_gpus_and_nowhere_else(
    planes: Planes, namespace: str
) -> None:
    worker = planes.workers[0]
    api = worker.api
    nodes = [
        gpu_node("discovered", labels={PRESENT: "true"}),
        gpu_node("gke", labels={GKE: "nvidia-tesla-t4"}),
        cpu_node("plain"),
        cpu_node("denied", labels={PRESENT: "false"}),
    ]
    wait_open(worker, make_nodes(worker, nodes))
    try:
        objects = render("worker", {"worker": {"telemetry": "nodes"}})
        ours = [one for one in objects if one["metadata"].get("namespace") == "berth-telemetry"]
        for document in (*(one for one in objects if one["kind"] == "Namespace"), *ours):
            api.apply(document)

        def there() -> set[str]:
            pods = api.get(PODS)["items"]
            return {one["spec"].get("nodeName", "") for one in pods}

        wait_until(lambda: there() == {"discovered", "gke"}, "an agent on each node with GPUs")
        # A namespace of level baseline would not take it: that is why it has its own.
        pod = api.get(PODS)["items"][0]
        spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
        level = {"pod-security.kubernetes.io/enforce": "baseline"}
        api.merge(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": level}})
        spec["serviceAccountName"] = spec["serviceAccount"] = "default"
        tried = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "try"}, "spec": spec}
        with pytest.raises(ApiError, match="host namespaces"):
            api.create(f"/api/v1/namespaces/{namespace}/pods", tried, dryRun="All")
    finally:
        api.delete("/apis/apps/v1/namespaces/berth-telemetry/daemonsets/berth-telemetry")
        api.delete("/api/v1/namespaces/berth-telemetry")
