"""Scores and properties on a real hub, written by a token that has only the Role of deploy/ocm."""

import asyncio
import secrets
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from berthmaster.control.scorer.service import main as scorer_main
from berthmaster.control.scorer.settings import ScorerSettings
from berthmaster.hub.ocm.core.scores import FIXED_NAMES
from berthmaster.lab.controlplane.api import ApiError
from berthmaster.lab.controlplane.nodes import gpu_node, make_nodes
from berthmaster.lab.controlplane.planes import Planes
from tests.bus.shells import in_loop, running
from tests.cluster.inventorying import inventory
from tests.cluster.ocming import (
    CLUSTERS,
    NAME,
    bus,
    calling,
    events,
    managed,
    ocm,
    reason,
    scores_path,
    troubles,
    until,
    user,
    values,
    with_rights,
    written,
)
from tests.support.patience import hang_s

# An API server's crash and return alone may take half a minute on a busy machine.

GANG = "gpuGang-Tesla-T4"


@pytest.fixture
def clusters(planes: Planes) -> Iterator[list[str]]:
    """Three managed clusters, imported: each has its namespace on the hub."""
    api = planes.hub.api
    names = [f"{side}-{secrets.token_hex(4)}" for side in ("east", "west", "mute")]
    for name in names:
        api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        api.apply(managed(name))
    yield names
    planes.mend()
    for name in names:
        if api.find(f"{CLUSTERS}/{name}"):
            api.delete(f"{CLUSTERS}/{name}")
        api.delete(f"/api/v1/namespaces/{name}")


def hub_rights(planes: Planes, namespace: str, *more: str) -> Path:
    return with_rights(planes.hub, namespace, "hub", "berthmaster-ocm-hub", *more)


@in_loop
async def test_each_managed_cluster_gets_its_scores_and_only_changes_are_written(
    planes: Planes, namespace: str, clusters: list[str], tmp_path: Path
) -> None:
    hub, (east, west, mute) = planes.hub, clusters
    kubeconfig = await calling(hub_rights, planes, namespace)
    async with bus(tmp_path) as scorer:
        await scorer.tell(east, free=12)
        await scorer.tell(west, free=3, gangs={"NVIDIA A100": 3})
        # The one without an agent has had its time to report.
        async with ocm(scorer.url, kubeconfig, silent_after_s=15.0) as ctx:
            first = await until(hub, scores_path(east), values)
            assert set(values(first)) == {*FIXED_NAMES, GANG, "gpuGang-NVIDIA-A100"}
            assert (values(first)["gpuClusterAvailable"], values(first)[GANG]) == (20, 20)
            assert values(first)["gpuGang-NVIDIA-A100"] == -100
            assert reason(first) == "Live"
            left_s = datetime.fromisoformat(first["status"]["validUntil"]).timestamp()
            assert 86_000 < left_s - scorer.conn.now() <= 86_400
            other = await until(hub, scores_path(west), values)
            assert values(other)["gpuClusterAvailable"] == -70

            # A large change is written; the same again, and many times, is not.
            await scorer.tell(east, free=4)
            now = await until(hub, scores_path(east), lambda one: values(one)[GANG] == -60)
            mark = hub.audit.mark()
            for _ in range(20):
                await scorer.tell(east, free=4)
                await scorer.tell(west, free=3, gangs={"NVIDIA A100": 3})
                await asyncio.sleep(0.1)
            assert not written(hub.audit.count(since=mark, user=user(namespace)))
            still = await calling(hub.api.get, scores_path(east))
            assert still["metadata"]["resourceVersion"] == now["metadata"]["resourceVersion"]
            # A small one takes its time.
            await scorer.tell(east, free=4, idle=54)
            await until(hub, scores_path(east), lambda one: values(one)["gpuIdle"] == 8)

            # What never reported is the worst, as it would count as 0 without.
            silent = await until(hub, scores_path(mute), values)
            assert set(values(silent).values()) == {-100}
            assert reason(silent) == "NoReport"

            # Inputs that are old: the worst at once, said on the object; and back.
            await scorer.tell(east, free=4, freshness="stale", note="no sign of life for 15 s")
            stale = await until(hub, scores_path(east), lambda one: reason(one) == "Stale")
            assert set(values(stale).values()) == {-100}
            await scorer.tell(east, free=4)
            await until(hub, scores_path(east), lambda one: values(one)[GANG] == -60)
            async with asyncio.timeout(hang_s()):
                while await calling(events, hub, east, NAME) != ["Live", "Stale"]:
                    await asyncio.sleep(0.1)

            # Somebody deletes it: it is made anew.
            await calling(hub.api.delete, scores_path(east))
            await until(hub, scores_path(east), lambda one: values(one).get(GANG) == -60)
            assert troubles(ctx) == {}
    for path, verb in (
        (scores_path(east), "DELETE"),
        (scores_path(east, "another"), "GET"),
        (f"{CLUSTERS}/{east}", "DELETE"),
        ("/api/v1/secrets", "GET"),
        (f"/api/v1/namespaces/{east}/configmaps", "GET"),
        (f"/api/v1/namespaces/{east}/pods", "GET"),
        ("/apis/cluster.open-cluster-management.io/v1beta1/placements", "GET"),
    ):
        token = await calling(hub.token_for, namespace, "ocm")
        with pytest.raises(ApiError) as refused:
            await calling(hub.api_for(token=token).call, verb, path)
        assert refused.value.status == 403, (verb, path)


def holder(name: str, gpus: int, node: str) -> dict[str, Any]:
    """A pod that holds GPUs of one node for as long as it is there."""
    limits = {"cpu": "1", "nvidia.com/gpu": str(gpus)}
    container = {"name": "main", "image": "nowhere/image", "resources": {"limits": limits}}
    return {
        "metadata": {"name": name},
        "spec": {
            "containers": [container],
            "nodeSelector": {"kubernetes.io/hostname": node},
            "tolerations": [{"operator": "Exists"}],
        },
    }


@in_loop
async def test_ocms_vector_of_nodes_6_and_8_from_real_nodes_to_the_score_on_the_hub(
    planes: Planes, namespace: str, clusters: list[str], tmp_path: Path
) -> None:
    hub, worker, east = planes.hub, planes.workers[0], clusters[0]
    labels = [{"kubernetes.io/hostname": name} for name in ("n6", "n8")]
    nodes = [
        gpu_node("n6", gpus=6, model="Tesla-T4", labels=labels[0]),
        gpu_node("n8", gpus=8, model="Tesla-T4", labels=labels[1]),
    ]
    await calling(make_nodes, worker, nodes)
    kubeconfig = await calling(hub_rights, planes, namespace)
    scale = (100.0, 1024.0, 20.0, 20.0)  # Open Cluster Management's own, memory apart
    pods = f"/api/v1/namespaces/{namespace}/pods"
    async with bus(tmp_path) as told:
        scorer = ScorerSettings(
            nats_url=told.url, http_port=-1, cluster_full_scale=scale, node_full_scale=scale
        )
        async with (
            inventory(told.url, worker.kubeconfig, cluster=east),
            running("scorer", scorer, scorer_main),
            ocm(told.url, kubeconfig),
        ):

            def gpus(one: Any) -> tuple[int | None, int | None]:
                found = values(one)
                return found.get("gpuClusterAvailable"), found.get("gpuNodeAvailable")

            await until(hub, scores_path(east), lambda one: gpus(one) == (40, -20))
            await calling(worker.api.create, pods, holder("two", 2, "n8"))
            await until(hub, scores_path(east), lambda one: gpus(one) == (20, -40))
            await calling(worker.api.create, pods, holder("six", 6, "n6"))
            await until(hub, scores_path(east), lambda one: gpus(one) == (-40, -40))
            await calling(worker.api.delete, f"{pods}/two", gracePeriodSeconds=0)
            # No telemetry here: idleness is not measured, and so is the worst.
            last = await until(hub, scores_path(east), lambda one: gpus(one) == (-20, -20))
            assert values(last)["gpuIdle"] == -100
            assert values(last)[GANG] == -20
