"""Scores and properties on a real hub, written by a token that has only the Role of deploy/ocm."""

import asyncio
import secrets
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from berthmaster.ocm.scores import FIXED_NAMES
from tests.bus.shells import in_loop
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
from tests.controlplane.api import ApiError
from tests.controlplane.planes import Planes

# An API server's crash and return alone may take half a minute on a busy machine.
pytestmark = pytest.mark.timeout(300)

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
    return with_rights(planes.hub, namespace, "hub-rbac.yaml", "berthmaster-ocm-hub", *more)


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
            assert 200 < left_s - scorer.conn.now() <= 300
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
            async with asyncio.timeout(30):
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
