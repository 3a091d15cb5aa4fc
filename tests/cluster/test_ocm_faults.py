"""What can go wrong around scores on a real hub: nothing is hammered, runs out or goes unsaid."""

import asyncio
import json
import secrets
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from berthmaster.lab.controlplane.api import ApiError, Object, documents
from berthmaster.lab.controlplane.plane import Plane
from berthmaster.lab.controlplane.planes import CRDS, Planes
from berthmaster.lib.nats.errors import BusError
from berthmaster.lib.runtime.errors import SettingsError
from tests.bus.shells import in_loop
from tests.cluster.ocming import (
    CLAIMS,
    CLUSTERS,
    NAME,
    Teller,
    bus,
    calling,
    claims,
    events,
    managed,
    ocm,
    profile_path,
    properties,
    reason,
    scores_path,
    troubles,
    until,
    user,
    values,
    with_rights,
    written,
)
from tests.support.chart import DEPLOY
from tests.support.patience import hang_s

OCM = "cluster.open-cluster-management.io"


@pytest.fixture
def east(planes: Planes) -> Iterator[str]:
    """A managed cluster; its namespace is not there yet."""
    name = f"east-{secrets.token_hex(4)}"
    planes.hub.api.apply(managed(name))
    yield name
    planes.mend()
    api = planes.hub.api
    if api.find(f"{CLUSTERS}/{name}"):
        api.delete(f"{CLUSTERS}/{name}")
    if api.find(f"/api/v1/namespaces/{name}"):
        api.delete(f"/api/v1/namespaces/{name}")


def make_namespace(plane: Plane, name: str) -> None:
    plane.api.create("/api/v1/namespaces", {"metadata": {"name": name}})


def until_s(thing: Object) -> float:
    return datetime.fromisoformat(thing["status"]["validUntil"]).timestamp()


async def told(scorer: Teller, cluster: str, **rest: Any) -> bool:
    """Whether the bus took it."""
    try:
        await scorer.tell(cluster, **rest)
    except BusError:
        return False
    return True


@in_loop
async def test_a_cluster_that_is_not_imported_yet_is_waited_for_without_hammering(
    planes: Planes, namespace: str, east: str, tmp_path: Path
) -> None:
    hub = planes.hub
    kubeconfig = await calling(with_rights, hub, namespace, "hub", "berthmaster-ocm-hub")
    async with bus(tmp_path) as scorer, ocm(scorer.url, kubeconfig):
        mark = hub.audit.mark()
        for _ in range(60):
            await scorer.tell(east)
            await asyncio.sleep(0.1)
        counts = written(hub.audit.count(since=mark, user=user(namespace)))
        # After 1, 2, 4 s …: a fact ten times a second changes nothing in that.
        assert 1 <= counts["create", f"addonplacementscores.{OCM}"] <= 6, counts
        async with asyncio.timeout(hang_s()):
            while "NamespaceMissing" not in await calling(events, hub, "default", east):
                await asyncio.sleep(0.2)
        await calling(make_namespace, hub, east)
        await until(hub, scores_path(east), lambda one: reason(one) == "Live")


@in_loop
async def test_an_object_of_somebody_else_is_left_alone_until_a_person_hands_it_over(
    planes: Planes, namespace: str, east: str, tmp_path: Path
) -> None:
    hub = planes.hub
    await calling(make_namespace, hub, east)
    theirs = {
        "apiVersion": f"{OCM}/v1alpha1",
        "kind": "AddOnPlacementScore",
        "metadata": {"name": NAME, "namespace": east},
    }
    await calling(hub.api.apply, theirs)
    status = {"scores": [{"name": "gpuClusterAvailable", "value": 7}], "validUntil": None}
    await calling(hub.api.merge, f"{scores_path(east)}/status", {"status": status})
    kubeconfig = await calling(with_rights, hub, namespace, "hub", "berthmaster-ocm-hub")
    async with bus(tmp_path) as scorer, ocm(scorer.url, kubeconfig) as ctx:
        await scorer.tell(east)
        async with asyncio.timeout(hang_s()):
            while await calling(events, hub, east, NAME) != ["NotOurs"]:
                await asyncio.sleep(0.2)
        mark = hub.audit.mark()
        for free in range(10):
            await scorer.tell(east, free=free)
            await asyncio.sleep(0.2)
        assert not written(hub.audit.count(since=mark, user=user(namespace)))
        assert values(await calling(hub.api.get, scores_path(east))) == {"gpuClusterAvailable": 7}
        parts: Any = ctx.health.readiness()[1]["parts"]
        assert "its label app.kubernetes.io/managed-by is ''" in parts["objects"]["why"]
        ours = {"metadata": {"labels": {"app.kubernetes.io/managed-by": "berthmaster"}}}
        await calling(hub.api.merge, scores_path(east), ours)
        await until(hub, scores_path(east), lambda one: values(one)["gpuClusterAvailable"] == -10)


@in_loop
async def test_scores_never_run_out_while_we_live_not_even_without_the_bus(
    planes: Planes, namespace: str, east: str, tmp_path: Path
) -> None:
    hub = planes.hub
    await calling(make_namespace, hub, east)
    kubeconfig = await calling(with_rights, hub, namespace, "hub", "berthmaster-ocm-hub")
    async with bus(tmp_path) as scorer:
        await scorer.tell(east)
        async with ocm(scorer.url, kubeconfig, validity_s=20.0, silent_after_s=20.0):
            first = await until(hub, scores_path(east), lambda one: reason(one) == "Live")
            loop = asyncio.get_running_loop()
            ends_s = loop.time() + 12
            while loop.time() < ends_s:
                await scorer.tell(east)
                await asyncio.sleep(1)
            # Renewed at half its time, and nothing else about it is new.
            later = await until(hub, scores_path(east), lambda one: until_s(one) > until_s(first))
            assert later["status"]["conditions"] == first["status"]["conditions"]
            # The bus goes: what was told last stays, says so, and is kept up too.
            scorer.server.stop()
            lost = await until(hub, scores_path(east), lambda one: reason(one) == "NotTold")
            assert values(lost) == values(first)
            kept = await until(hub, scores_path(east), lambda one: until_s(one) > until_s(lost))
            assert values(kept) == values(first)
            # It is back, and the scorer has not heard the cluster yet: its silence is not its own.
            scorer.server.start()
            await scorer.tell(east, freshness="withdrawn", age_s=60.0)
            back = await until(
                hub,
                scores_path(east),
                lambda one: "not heard yet" in one["status"]["conditions"][0]["message"],
            )
            assert values(back) == values(first)
            silent = await until(hub, scores_path(east), lambda one: reason(one) == "Withdrawn")
            assert set(values(silent).values()) == {-100}


@in_loop
async def test_while_the_api_server_is_away_nothing_is_lost_and_one_of_two_writes(
    planes: Planes, namespace: str, east: str, tmp_path: Path
) -> None:
    hub = planes.hub
    await calling(make_namespace, hub, east)
    kubeconfig = await calling(with_rights, hub, namespace, "hub", "berthmaster-ocm-hub")
    async with bus(tmp_path) as scorer:
        await scorer.tell(east, free=12)
        async with ocm(scorer.url, kubeconfig):
            async with ocm(scorer.url, kubeconfig):
                await until(hub, scores_path(east), lambda one: reason(one) == "Live")
                mark = hub.audit.mark()
                await scorer.tell(east, free=6)
                await until(
                    hub, scores_path(east), lambda one: values(one)["gpuClusterAvailable"] == -40
                )
                await asyncio.sleep(3)
                counts = written(hub.audit.count(since=mark, user=user(namespace)))
                assert counts == {("patch", f"addonplacementscores.{OCM}/status"): 1}
                await calling(hub.crash_api_server)
                await scorer.tell(east, free=2)
                await asyncio.sleep(2)
                await calling(hub.start_api_server)
                await until(
                    hub, scores_path(east), lambda one: values(one)["gpuClusterAvailable"] == -80
                )
            # One of the two is gone, whichever it was.
            await scorer.tell(east, free=12)
            await until(
                hub, scores_path(east), lambda one: values(one)["gpuClusterAvailable"] == 20
            )


@in_loop
async def test_a_hub_without_open_cluster_management_is_quiet_until_it_comes(
    tmp_path: Path, programs: Any
) -> None:
    with Planes(tmp_path / "plain", workers=0, crds=[], programs=programs) as planes:
        hub = planes.hub
        async with bus(tmp_path) as scorer, ocm(scorer.url, hub.kubeconfig) as ctx:
            await scorer.tell("east")
            await asyncio.sleep(8)
            assert troubles(ctx) == {}
            agent = {"user_agent": "berthmaster-ocm"}
            mark = hub.audit.mark()
            await asyncio.sleep(5)
            looks = hub.audit.count(since=mark, **agent)
            assert not written(looks)
            assert sum(looks.values()) <= 3 * 12  # three kinds, looked for once a second
            await calling(hub.apply, documents(CRDS))
            await calling(make_namespace, hub, "east")
            await calling(hub.api.apply, managed("east"))
            await until(hub, scores_path("east"), lambda one: reason(one) == "Live")
            # Without the kind again: quiet again.
            crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
            crd = f"{crds}/addonplacementscores.{OCM}"
            await calling(hub.api.delete, crd)
            await scorer.tell("east", free=1)
            await asyncio.sleep(8)
            mark = hub.audit.mark()
            for _ in range(20):
                await scorer.tell("east", free=1)
                await asyncio.sleep(0.2)
            assert not written(hub.audit.count(since=mark, **agent))


# ---- ClusterProfiles


def make_profile(
    plane: Plane, namespace: str, name: str, manager: str, label: str, *listed: tuple[str, str]
) -> None:
    made = {
        "apiVersion": "multicluster.x-k8s.io/v1alpha1",
        "kind": "ClusterProfile",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"x-k8s.io/cluster-manager": label},
        },
        "spec": {"clusterManager": {"name": manager}},
    }
    plane.api.apply(made)
    told = [
        {"name": key, "value": value, "lastObservedTime": "2026-01-01T00:00:00Z"}
        for key, value in listed
    ]
    if told:
        path = profile_path(namespace, name)
        plane.api.merge(f"{path}/status", {"status": {"properties": told}})


@in_loop
async def test_profiles_that_we_manage_get_properties_and_those_of_others_nothing(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    hub = planes.hub
    us, them = "berthmaster", "open-cluster-management"
    many = [(f"p{n:05}", "x" * 24) for n in range(10_000)]
    for name, spec, label, listed in (
        ("mine", us, us, [("zone", "b")]),
        ("theirs", them, them, [("zone", "b")]),
        ("mixed", us, them, []),
        ("absurd", us, us, many),
    ):
        await calling(make_profile, hub, namespace, name, spec, label, *listed)
    kubeconfig = await calling(
        with_rights,
        hub,
        namespace,
        "hub",
        "berthmaster-ocm-hub",
        "berthmaster-ocm-profiles",
    )
    options: dict[str, Any] = {"profile_namespace": namespace, "create_profiles_in": namespace}
    async with bus(tmp_path) as scorer:
        for name in ("mine", "theirs", "mixed", "absurd", "newcomer", "Not.A.Name"):
            await scorer.tell(name, free=5)
        async with ocm(scorer.url, kubeconfig, **options):
            mine = await until(
                hub,
                profile_path(namespace, "mine"),
                lambda one: properties(one).get("berthmaster.io/gpu-free") == "5",
            )
            assert properties(mine)["zone"] == "b"
            assert properties(mine)["berthmaster.io/score.gpuClusterAvailable"] == "-50"
            assert all(each["lastObservedTime"] for each in mine["status"]["properties"])
            # Somebody adds one of their own: it stays, whatever we write.
            added = {"name": "a", "value": "1", "lastObservedTime": "2026-01-01T00:00:00Z"}
            both = [*mine["status"]["properties"], added]
            path = f"{profile_path(namespace, 'mine')}/status"
            await calling(hub.api.merge, path, {"status": {"properties": both}})
            await scorer.tell("mine", free=9)
            mine = await until(
                hub,
                profile_path(namespace, "mine"),
                lambda one: properties(one).get("berthmaster.io/gpu-free") == "9",
            )
            assert {"a": "1", "zone": "b"}.items() <= properties(mine).items()
            made = await until(
                hub,
                profile_path(namespace, "newcomer"),
                lambda one: properties(one).get("berthmaster.io/gpu-free") == "5",
            )
            assert made["spec"] == {"clusterManager": {"name": us}, "displayName": "newcomer"}
            assert made["metadata"]["labels"]["x-k8s.io/cluster-manager"] == us
            # Those that are not ours, and the one that is absurd.
            for name, why in (("mixed", "ManagerMismatch"), ("absurd", "TooManyProperties")):
                async with asyncio.timeout(hang_s()):
                    while why not in await calling(events, hub, namespace, name):
                        await asyncio.sleep(0.2)
            theirs = await calling(hub.api.get, profile_path(namespace, "theirs"))
            assert properties(theirs) == {"zone": "b"}
            absurd = await calling(hub.api.get, profile_path(namespace, "absurd"))
            assert properties(absurd) == dict(many)


@in_loop
async def test_profiles_that_we_have_made_go_where_ocm_makes_its_own(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    hub = planes.hub
    learned, other = (f"{side}-{secrets.token_hex(4)}" for side in ("learned", "other"))
    kubeconfig = await calling(
        with_rights,
        hub,
        namespace,
        "hub",
        "berthmaster-ocm-hub",
        "berthmaster-ocm-profiles",
    )
    options: dict[str, Any] = {"profile_namespace": namespace, "create_profiles_in": namespace}
    binding = {
        "apiVersion": f"{OCM}/v1beta2",
        "kind": "ManagedClusterSetBinding",
        "metadata": {"name": "global", "namespace": namespace},
        "spec": {"clusterSet": "global"},
    }

    async def gone(name: str) -> None:
        async with asyncio.timeout(hang_s()):
            while await calling(hub.api.find, profile_path(namespace, name)):
                await asyncio.sleep(0.1)

    async with bus(tmp_path) as scorer:
        for name in (learned, other):
            await scorer.tell(name)
        try:
            async with ocm(scorer.url, kubeconfig, **options) as ctx:
                for name in (learned, other):
                    await until(hub, profile_path(namespace, name), properties)
                await calling(hub.api.apply, managed(learned))
                await gone(learned)
                assert await calling(hub.api.find, profile_path(namespace, other))
                await calling(hub.api.apply, binding)
                await gone(other)
                for _ in range(10):
                    await scorer.tell(other)
                    await asyncio.sleep(0.1)
                assert not await calling(hub.api.find, profile_path(namespace, other))
                assert troubles(ctx) == {}
        finally:
            await calling(hub.api.delete, f"{CLUSTERS}/{learned}")
        with pytest.raises(SettingsError, match=r"has ManagedClusterSetBindings \(global\)"):
            async with ocm(scorer.url, kubeconfig, **options):
                pass


# ---- ClusterClaims


@in_loop
async def test_a_managed_cluster_claims_what_it_has_with_the_rights_for_its_own_claims_only(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    free = f"{CLAIMS}/gpu-free.berthmaster.io"
    theirs = {
        "apiVersion": f"{OCM}/v1alpha1",
        "kind": "ClusterClaim",
        "metadata": {"name": "gpu-largest-gang.berthmaster.io"},
        "spec": {"value": "theirs"},
    }
    await calling(worker.api.apply, theirs)
    kubeconfig = await calling(with_rights, worker, namespace, "worker", "berthmaster-claims")
    try:
        async with bus(tmp_path) as scorer, claims(scorer.url, kubeconfig, cluster="east") as ctx:
            await scorer.tell("east", free=12)
            await scorer.tell("west", free=1)
            await until(worker, free, lambda one: one["spec"]["value"] == "12")
            fresh = f"{CLAIMS}/score-freshness.berthmaster.io"
            await until(worker, fresh, lambda one: one["spec"]["value"] == "fresh")
            await scorer.tell("east", free=0)
            await until(worker, free, lambda one: one["spec"]["value"] == "0")
            await scorer.tell("east", free=3)
            await until(worker, free, lambda one: one["spec"]["value"] == "3")
            left = await calling(worker.api.get, f"{CLAIMS}/gpu-largest-gang.berthmaster.io")
            assert left["spec"]["value"] == "theirs"
            assert troubles(ctx) == {}
            token = await calling(worker.token_for, namespace, "ocm")
            api = worker.api_for(token=token)
            patch = {"spec": {"value": "x"}}
            for call, path, body in (
                ("PATCH", f"{CLAIMS}/id.k8s.io", patch),
                ("DELETE", free, None),
                ("GET", "/api/v1/nodes", None),
                ("GET", "/api/v1/secrets", None),
            ):
                form = "application/merge-patch+json" if body else "application/json"
                with pytest.raises(ApiError) as refused:
                    await calling(api.call, call, path, body, content_type=form)
                assert refused.value.status == 403, (call, path)
    finally:
        for each in await calling(worker.api.items, CLAIMS):
            await calling(worker.api.delete, f"{CLAIMS}/{each['metadata']['name']}")


# ---- the addon


def test_the_addons_objects_are_what_the_api_takes(planes: Planes, namespace: str) -> None:
    api = planes.hub.api
    files = ("addon.yaml", "addon-example.yaml", "addon-config-example.yaml")
    made = documents(*(DEPLOY / "ocm" / file for file in files))
    for each in made[-2:]:
        each["metadata"]["namespace"] = namespace
    assert [each["kind"] for each in made] == [
        "AddOnTemplate",
        "ClusterManagementAddOn",
        "ManagedClusterAddOn",
        "AddOnDeploymentConfig",
    ]
    # Without OCM's conversion webhook an API server drops what v1beta1 alone has.
    try:
        for each in made:
            shown = api.apply(each)
            assert json.dumps(each.get("spec", {}), sort_keys=True) == json.dumps(
                shown.get("spec", {}), sort_keys=True
            )
    finally:
        for each in made:
            api.delete(api.path_of(each))
