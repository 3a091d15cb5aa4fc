"""The clearing webhook before a real API server: what it changes, and what waits without it."""

from pathlib import Path
from typing import Any

import pytest

from berthmaster.lab.controlplane.api import Api, ApiError, documents
from berthmaster.lab.controlplane.kueue.clearing import Clearing
from berthmaster.lab.controlplane.planes import Planes
from tests.support.chart import CHART
from tests.support.patience import wait_until

WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/namespaces/{}/workloads"
EVICTED = {
    "type": "Evicted",
    "status": "True",
    "reason": "Preempted",
    "message": "",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}


def make(api: Api, namespace: str, name: str) -> str:
    """A Workload that is nominated for two clusters. The path of its status."""
    template = {"spec": {"containers": [{"name": "main", "image": "busybox"}]}}
    spec = {"podSets": [{"name": "main", "count": 1, "template": template}], "queueName": "main"}
    folder = WORKLOADS.format(namespace)
    kind = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload"}
    api.create(folder, {**kind, "metadata": {"name": name}, "spec": spec})
    status = f"{folder}/{name}/status"
    api.merge(status, {"status": {"nominatedClusterNames": ["east", "west"]}})
    return status


def nominated(api: Api, status: str) -> Any:
    return api.get(status.removesuffix("/status"))["status"].get("nominatedClusterNames")


def test_webhook_clears_what_is_over_and_its_absence_stops_only_these_writes(
    planes: Planes, namespace: str
) -> None:
    api = planes.hub.api
    clearing = Clearing(planes.hub, documents(Path(CHART / "nominations.yaml"))[0]["spec"])
    clearing.start()
    try:
        first = make(api, namespace, "probe")

        def cleared() -> bool:
            """A new webhook is asked some time after it was configured."""
            api.merge(first, {"status": {"conditions": [EVICTED]}})
            if not nominated(api, first):
                return True
            api.merge(first, {"status": {"conditions": []}})
            return False

        wait_until(cleared, "the webhook is asked")

        chosen, evicted = (make(api, namespace, name) for name in ("chosen", "evicted"))
        assert nominated(api, chosen) == ["east", "west"]
        api.merge(chosen, {"status": {"clusterName": "east"}})
        assert not nominated(api, chosen)

        clearing.kill()
        with pytest.raises(ApiError, match=r'failed calling webhook "clearing\.berthmaster\.io"'):
            api.merge(evicted, {"status": {"conditions": [EVICTED]}})
        kept = {**EVICTED, "type": "PodsReady"}
        api.merge(evicted, {"status": {"conditions": [kept]}})  # ends no nomination
        assert nominated(api, evicted) == ["east", "west"]
        clearing.start()
        api.merge(evicted, {"status": {"conditions": [kept, EVICTED]}})
        assert not nominated(api, evicted)
    finally:
        clearing.remove()
