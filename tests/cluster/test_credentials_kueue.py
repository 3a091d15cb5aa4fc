"""MultiKueue with nothing but the access that credentials made: the real Kueue where there is one.

A job is dispatched, runs and ends in a worker while the token that its hub came with is renewed,
and another after it.
"""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from berthmaster.lab.controlplane.kueue.setup import SYSTEM, Kueue, Options
from berthmaster.lab.controlplane.nodes import gpu_node, make_nodes
from berthmaster.lab.controlplane.plane import Plane
from berthmaster.lab.controlplane.planes import Planes
from tests.cluster.credentialing import MULTIKUEUE_CLUSTERS, Rig, calling, works

ONE = "worker-1"


@pytest.fixture
def k(planes: Planes, namespace: str) -> Iterator[Kueue]:
    make_nodes(planes.workers[0], [gpu_node("a", gpus=8)])
    with Kueue(planes, namespace, clusters=[ONE]) as found:
        yield found


def test_jobs_run_through_renewals_by_the_access_that_was_made(k: Kueue, tmp_path: Path) -> None:
    rig = Rig(k.planes, k.namespace, tmp_path, kueue=SYSTEM)
    try:
        # What Kueue came with goes; the configuration still lists the name.
        rig.hub.api.delete(f"{MULTIKUEUE_CLUSTERS}/{ONE}")
        rig.named(ONE)
        rig.profile(ONE, manager="berthmaster")
        rig.bootstrap(ONE, k.planes.workers[0])
        rig.start("--renew-after-s", "8", "--grace-s", "5")
        rig.until(lambda: rig.held(ONE), "access is there")
        k.wait_active()
        [entry] = rig.until(lambda: rig.providers(ONE), "the profile says how to reach it")
        told = {"name": f"multikueue-{ONE}", "key": "kubeconfig", "namespace": SYSTEM}
        assert entry["name"] == "kubeconfig-secretreader"
        assert entry["cluster"]["server"] == k.planes.workers[0].url
        assert entry["cluster"]["extensions"][0]["extension"] == told

        first = rig.serial(ONE)
        k.submit("train", run_s="20")
        k.until(lambda: k.cluster_of("train") == ONE, "it is dispatched")
        rig.until(lambda: rig.serial(ONE) not in ("", first), "renewed while it runs")
        k.until(lambda: k.has("train", "Finished"), "it ends, and the hub hears of it")
        k.submit("next", run_s="0.5")
        k.until(lambda: k.has("next", "Finished"), "so does the next")
        rig.until(lambda: len(rig.bound(k.planes.workers[0])) <= 2, "what was replaced goes")
    finally:
        rig.clean()


def plugin_in(folder: Path, token: str) -> tuple[Path, Path]:
    """The file with the token, and a plugin that prints the token, as secretreader does."""
    kept, plugin = folder / "token", folder / "plugin"
    kept.write_text(token)
    version = "client.authentication.k8s.io/v1"
    answer = json.dumps(
        {"apiVersion": version, "kind": "ExecCredential", "status": {"token": "@"}}
    ).replace("@", f"'$(cat {kept})'")
    plugin.write_text(f"#!/bin/sh\necho '{answer}'\n")
    plugin.chmod(0o755)
    return kept, plugin


def provider_of(worker: Plane) -> dict[str, Any]:
    told = {"name": "client.authentication.k8s.io/exec", "extension": {"clusterName": ONE}}
    cluster = {
        "server": worker.url,
        "certificate-authority-data": base64.b64encode(worker.ca_pem).decode(),
        "extensions": [told],
    }
    return {"name": "secretreader", "cluster": cluster}


def test_kueue_runs_the_plugin_of_the_profile_that_it_refers_to(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("a", gpus=8)])
    kept, plugin = plugin_in(tmp_path, "not yet")
    options = Options(plugins={"secretreader": str(plugin)})
    with Kueue(planes, namespace, clusters=[ONE], options=options) as k:
        rig = Rig(planes, namespace, tmp_path, kueue=SYSTEM)
        kept.write_text(rig.account(worker, "first"))
        listed = tmp_path / "providers.yaml"
        listed.write_text("providers: [{name: secretreader}]")
        try:
            rig.hub.api.delete(f"{MULTIKUEUE_CLUSTERS}/{ONE}")
            rig.named(ONE)
            rig.profile(ONE, namespace=SYSTEM, accessProviders=[provider_of(worker)])
            rig.start("--access-providers", str(listed))
            found = rig.until(lambda: rig.registered(ONE), "it is registered")
            assert found["spec"]["clusterSource"] == {"clusterProfileRef": {"name": ONE}}
            k.wait_active()
            k.submit("train", run_s="0.5")
            k.until(lambda: k.has("train", "Finished"), "it ends, and the hub hears of it")
            assert rig.secret(ONE) is None
            rig.until(lambda: rig.status(ONE).get("by") == "kueue", "the status says who")
        finally:
            rig.clean()
            rig.forget(ONE, namespace=SYSTEM)


def test_job_runs_by_a_profile_alone_while_its_token_turns(k: Kueue, tmp_path: Path) -> None:
    rig = Rig(k.planes, k.namespace, tmp_path, kueue=SYSTEM)
    worker = k.planes.workers[0]
    tokens = {name: rig.account(worker, name) for name in ("first", "second")}
    kept, plugin = plugin_in(tmp_path, tokens["first"])
    version = "client.authentication.k8s.io/v1"
    exec_config = {"apiVersion": version, "command": str(plugin), "provideClusterInfo": True}
    listed = tmp_path / "providers.json"
    listed.write_text(
        json.dumps({"providers": [{"name": "secretreader", "execConfig": exec_config}]})
    )
    try:
        rig.hub.api.delete(f"{MULTIKUEUE_CLUSTERS}/{ONE}")
        rig.named(ONE)
        rig.profile(ONE, namespace=SYSTEM, accessProviders=[provider_of(worker)])
        rig.start("--access-providers", str(listed), "--renew-after-s", "3")
        rig.until(lambda: rig.held(ONE), "access is there")
        assert rig.token(ONE) == tokens["first"]
        k.wait_active()
        k.submit("train", run_s="8")
        k.until(lambda: k.cluster_of("train") == ONE, "it is dispatched")

        # The issuer makes another token, and revokes the first once the other is used.
        with calling(rig, ONE, worker) as caller:
            kept.write_text(tokens["second"])
            rig.until(lambda: rig.token(ONE) == tokens["second"], "the token has turned")
            worker.api.delete(f"/api/v1/namespaces/{rig.namespace}/serviceaccounts/first")
            rig.until(lambda: not works(worker, tokens["first"]), "the first is no more")
            k.until(lambda: k.has("train", "Finished"), "it ends, and the hub hears of it")
        assert caller.failures == []
        assert rig.status(ONE)["by"] == "provider"
    finally:
        rig.clean()
        rig.forget(ONE, namespace=SYSTEM)
