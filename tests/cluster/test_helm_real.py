"""The chart by helm itself, on API servers of its own: installed, changed, rolled back, taken away.

The rights and the pods are looked at in test_deploy.py.
"""

import base64
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from berthmaster.lab.controlplane.nodes import cpu_node, make_nodes, wait_open
from berthmaster.lab.controlplane.plane import Plane
from berthmaster.lab.controlplane.planes import Planes
from scripts.images import write_values
from tests.cluster.deploying import merged
from tests.support.chart import CHART, helm
from tests.support.patience import hang_s, wait_until

OURS = "berth-system"
HUB = f"/apis/apps/v1/namespaces/{OURS}/statefulsets/berth-hub"
KEYS = f"/api/v1/namespaces/{OURS}/secrets/berth-hub-keys"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
JOBS = "/apis/batch/v1/namespaces/ml/jobs"


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planes]:
    """A hub and a worker in which nothing of ours is left of other tests."""
    with Planes(tmp_path_factory.mktemp("chart"), workers=1) as planes:
        yield planes


def run(plane: Plane, folder: Path, *argv: str) -> "subprocess.CompletedProcess[str]":
    """Run helm on a cluster as an operator does."""
    return subprocess.run(
        [helm(), *argv],
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "KUBECONFIG": str(plane.kubeconfig)},
        capture_output=True,
        text=True,
        check=False,
        timeout=hang_s(),
    )


def done(plane: Plane, folder: Path, *argv: str) -> str:
    """Run helm; it must succeed."""
    ended = run(plane, folder, *argv)
    assert ended.returncode == 0, (argv, ended.stderr)
    return ended.stdout


def install(name: str, *values: str, namespace: str = OURS) -> tuple[str, ...]:
    """The command of docs/operators/install.md."""
    sets = tuple(word for value in values for word in ("--set", value))
    options = ("--install", "--create-namespace", "--reset-then-reuse-values")
    return ("upgrade", *options, name, str(CHART), "-n", namespace, *sets)


def mode_of(plane: Plane) -> str:
    """What the hub's multikueue is told."""
    containers = plane.api.get(HUB)["spec"]["template"]["spec"]["containers"]
    [own] = [each for each in containers if each["name"] == "multikueue"]
    [mode] = [each for each in own["env"] if each["name"] == "BERTH_MULTIKUEUE_MODE"]
    return str(mode["value"])


def test_hub_is_installed_changed_rolled_back_and_uninstalled(
    fresh: Planes, tmp_path: Path
) -> None:
    hub = fresh.hub
    told = done(hub, tmp_path, *install("berth-hub", "bus.external.names={hub.example.com}"))
    assert "--url tls://hub.example.com:4222" in told
    assert mode_of(hub) == "observe"
    # What `keys` writes there outlives every change of the release.
    written = {"data": {"gateway.creds": base64.b64encode(b"x").decode()}}
    hub.api.merge(KEYS, written)

    hub.make_namespace("ml")
    done(hub, tmp_path, *install("berth-hub", "hub.mode=dispatch", "hub.namespaces={ml}"))
    assert mode_of(hub) == "dispatch"
    bindings = f"{RBAC}/namespaces/ml/rolebindings/berthmaster-multikueue-dispatching"
    assert hub.api.find(bindings) is not None
    assert hub.api.find(f"{RBAC}/clusterrolebindings/berthmaster-multikueue-observe") is None
    accounts = hub.api.get(HUB.replace("berth-hub", "berth-accounts"))
    assert "hub.example.com" in str(accounts["spec"]["template"])  # as it was installed
    assert hub.api.get(KEYS)["data"] == written["data"]

    done(hub, tmp_path, "rollback", "berth-hub", "1", "-n", OURS)
    assert mode_of(hub) == "observe"
    assert hub.api.find(bindings) is None
    assert hub.api.get(KEYS)["data"] == written["data"]

    done(hub, tmp_path, "uninstall", "berth-hub", "-n", OURS)
    assert hub.api.find(HUB) is None
    assert hub.api.find(f"{RBAC}/clusterroles/berthmaster-members") is None


def test_uninstalled_agent_leaves_jobs_running(fresh: Planes, tmp_path: Path) -> None:
    worker = fresh.workers[0]
    worker.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}})
    account = "/api/v1/namespaces/ml/serviceaccounts/default"
    wait_until(lambda: worker.api.find(account), "pods may be made")
    done(worker, tmp_path, *install("berth-agent", "role=worker", "worker.namespaces={ml}"))
    for role in ("berthmaster-executor", "berthmaster-figures"):
        assert worker.api.find(f"{RBAC}/namespaces/ml/rolebindings/{role}") is not None
    wait_open(worker, make_nodes(worker, [cpu_node("a")]))
    container = {"name": "main", "image": "busybox"}
    template = {
        "metadata": {"annotations": {"berth.test/run-s": "forever"}},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
    meta = {"name": "train", "labels": {"berthmaster.io/executor": "w1"}}
    worker.api.create(JOBS, {"metadata": meta, "spec": {"template": template}})

    def running() -> list[str]:
        pods = worker.api.items("/api/v1/namespaces/ml/pods")
        return [one["metadata"]["uid"] for one in pods if one["status"].get("phase") == "Running"]

    wait_until(lambda: len(running()) == 1, "the job runs")
    before = running()
    done(worker, tmp_path, "uninstall", "berth-agent", "-n", OURS)
    assert worker.api.find(f"{RBAC}/namespaces/ml/rolebindings/berthmaster-executor") is None
    assert "deletionTimestamp" not in worker.api.get(f"{JOBS}/train")["metadata"]
    assert running() == before


def test_second_release_in_a_cluster_is_refused_with_the_name_of_the_first(
    fresh: Planes, tmp_path: Path
) -> None:
    hub = fresh.hub
    done(hub, tmp_path, *install("mine", namespace="one"))
    try:
        second = run(hub, tmp_path, *install("yours", namespace="two"))
        assert second.returncode == 1
        assert (
            "release mine in namespace one is the hub of Berthmaster in this cluster already: "
            "upgrade that one (helm -n one upgrade mine), or uninstall it first"
        ) in second.stderr
        assert hub.api.items("/apis/apps/v1/namespaces/two/statefulsets") == []
        # A worker of the same cluster is no second hub.
        done(hub, tmp_path, *install("agent", "role=worker", namespace="two"))
        done(hub, tmp_path, "uninstall", "agent", "-n", "two")
        # The pipeline without Kueue has nothing of the cluster's scope.
        done(hub, tmp_path, *install("alone", "role=standalone", namespace="two"))
        done(hub, tmp_path, "uninstall", "alone", "-n", "two")
    finally:
        done(hub, tmp_path, "uninstall", "mine", "-n", "one")


def test_objects_that_helm_did_not_make_are_named(fresh: Planes, tmp_path: Path) -> None:
    worker = fresh.workers[0]
    role = f"{RBAC}/clusterroles/berthmaster-inventory"
    worker.api.create(
        f"{RBAC}/clusterroles", {"metadata": {"name": "berthmaster-inventory"}, "rules": []}
    )
    try:
        ended = run(worker, tmp_path, *install("berth-agent", "role=worker"))
        assert (
            "this cluster has an agent of Berthmaster that Helm did not install "
            "(ClusterRole berthmaster-inventory): remove it first"
        ) in ended.stderr
    finally:
        worker.api.delete(role)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl")
def test_commands_of_the_install_page_install_hub_and_worker(fresh: Planes, tmp_path: Path) -> None:
    """Those for helm and kubectl label, word for word; test_install_page.py runs all of them."""
    page = (CHART.parents[1] / "docs" / "operators" / "install.md").read_text()
    section = page.partition("## 2. Install the hub\n")[2].partition("## 4. Check\n")[0]
    blocks = re.findall(r"^```\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    typed = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    asked = [line for line in typed if line.startswith("helm ") or " label namespace " in line]
    assert len(asked) == 4
    (tmp_path / "deploy" / "run").mkdir(parents=True)
    (tmp_path / "deploy" / "chart").symlink_to(CHART)
    digests = {"gateway": f"sha256:{'a' * 64}"}
    write_values(tmp_path / "deploy/run/images.yaml", "registry.example/berth", "0.1.0", digests)
    contexts = {"HUB": fresh.hub, "W1": fresh.workers[0]}
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(merged(contexts)))
    meta = {"name": "ml"}  # maybe there of another test
    contexts["W1"].api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
    env = {
        "PATH": f"{Path(helm()).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "KUBECONFIG": str(kubeconfig),
    }
    for line in asked:
        ended = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            check=False,
            timeout=hang_s(),
        )
        assert ended.returncode == 0, (line, ended.stderr)
    hub = contexts["HUB"].api.get(HUB)["spec"]["template"]["spec"]
    images = {each["name"]: each["image"] for each in hub["containers"]}
    assert images["gateway"] == f"registry.example/berth/gateway:0.1.0@{digests['gateway']}"
    assert images["scorer"] == "registry.example/berth/scorer:0.1.0"
    for plane in contexts.values():
        labels = plane.api.get(f"/api/v1/namespaces/{OURS}")["metadata"]["labels"]
        assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    executor = f"{RBAC}/namespaces/ml/rolebindings/berthmaster-executor"
    assert contexts["W1"].api.find(executor) is not None
    for name, release in (("HUB", "berth-hub"), ("W1", "berth-agent")):
        done(contexts[name], tmp_path, "uninstall", release, "-n", OURS)


def test_namespace_that_is_not_there_is_named(fresh: Planes, tmp_path: Path) -> None:
    worker = fresh.workers[0]
    ended = run(
        worker, tmp_path, *install("berth-agent", "role=worker", "worker.namespaces={nowhere}")
    )
    assert (
        'worker.namespaces names "nowhere", which is no namespace of this cluster' in ended.stderr
    )
    assert worker.api.items("/apis/apps/v1/deployments") == []


def test_cluster_without_kueue_is_named(fresh: Planes, tmp_path: Path) -> None:
    """The last one: the kinds do not come back."""
    worker = fresh.workers[0]
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for each in worker.api.items(definitions):
        if each["spec"]["group"] == "kueue.x-k8s.io":
            worker.api.delete(f"{definitions}/{each['metadata']['name']}")

    group = "/apis/kueue.x-k8s.io"
    wait_until(lambda: worker.api.find(group) is None, "the API server has dropped the kinds")
    wanted = "this cluster serves no kueue.x-k8s.io/v1beta2, which role hub needs: install Kueue"
    assert wanted in run(worker, tmp_path, *install("berth-hub")).stderr
    done(worker, tmp_path, *install("alone", "role=standalone"))
    done(worker, tmp_path, "uninstall", "alone", "-n", OURS)
