"""With nothing but its Role in one namespace: what the executor can do, and what it cannot."""

import asyncio
from pathlib import Path
from typing import Any, Final

import aiohttp

from berthmaster.lab.controlplane.api import Api, ApiError
from berthmaster.lab.controlplane.nodes import gpu_node, make_nodes
from berthmaster.lab.controlplane.plane import Plane
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.messages.placement import Target
from berthmaster.lib.messages.workload import Evicted
from berthmaster.lib.runtime.ports import free_ports
from tests.bus.tools import eventually, story
from tests.cluster.executing import job, site
from tests.support.chart import render, rights
from tests.support.patience import hang_s, until, wait_until

ACCOUNT: Final = "berth-agent"
RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"

# (method, path); {ns} is its own namespace.
DENIED: Final = (
    ("GET", "/api/v1/nodes"),
    ("GET", "/api/v1/namespaces"),
    ("GET", "/api/v1/namespaces/default"),
    ("PATCH", "/api/v1/namespaces/{ns}"),
    ("PATCH", "/apis/batch/v1/namespaces/default/jobs/x"),
    ("GET", "/api/v1/pods"),
    ("GET", "/apis/batch/v1/jobs"),
    ("GET", "/api/v1/namespaces/{ns}/secrets"),
    ("GET", "/api/v1/namespaces/{ns}/configmaps"),
    ("GET", "/api/v1/namespaces/{ns}/serviceaccounts"),
    ("GET", "/api/v1/namespaces/{ns}/events"),
    ("GET", "/api/v1/namespaces/default/pods"),
    ("GET", "/apis/batch/v1/namespaces/default/jobs"),
    ("GET", "/apis/apps/v1/namespaces/{ns}/deployments"),
    ("GET", "/apis/kueue.x-k8s.io/v1beta2/workloads"),
    ("PATCH", "/apis/kueue.x-k8s.io/v1beta2/namespaces/{ns}/workloads/x"),
    ("DELETE", "/apis/kueue.x-k8s.io/v1beta2/namespaces/{ns}/workloads/x"),
    ("GET", "/apis/kueue.x-k8s.io/v1beta2/clusterqueues"),
    ("GET", "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/{ns}/podgroups"),
    ("DELETE", "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/{ns}/podgroups/x"),
    ("POST", "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups"),
    ("GET", "/apis/scheduling.k8s.io/v1/priorityclasses"),
    ("POST", "/apis/scheduling.k8s.io/v1/priorityclasses"),
    ("GET", "/apis/resource.k8s.io/v1/resourceslices"),
    ("GET", "/apis/resource.k8s.io/v1/deviceclasses"),
    ("GET", "/apis/resource.k8s.io/v1/namespaces/{ns}/resourceclaims"),
    ("GET", "/apis/resource.k8s.io/v1/namespaces/{ns}/resourceclaimtemplates"),
    ("GET", "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates/x"),
    ("POST", "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates"),
    ("POST", "/apis/resource.k8s.io/v1/namespaces/{ns}/resourceclaims"),
    ("DELETE", "/apis/resource.k8s.io/v1/namespaces/{ns}/resourceclaimtemplates/x"),
    ("DELETE", "/apis/resource.k8s.io/v1/namespaces/{ns}/resourceclaims/x"),
    ("PATCH", "/apis/resource.k8s.io/v1/namespaces/{ns}/resourceclaimtemplates/x"),
    ("GET", "/apis/rbac.authorization.k8s.io/v1/namespaces/{ns}/rolebindings"),
    ("POST", "/api/v1/namespaces/{ns}/pods"),
    ("POST", "/api/v1/namespaces/{ns}/pods/x/exec"),
    ("POST", "/api/v1/namespaces/{ns}/pods/x/eviction"),
    ("POST", "/api/v1/namespaces/{ns}/secrets"),
    ("POST", "/api/v1/namespaces/{ns}/serviceaccounts/default/token"),
    ("POST", "/apis/batch/v1/namespaces/default/jobs"),
    ("POST", "/apis/batch/v1/namespaces/{ns}/cronjobs"),
    ("DELETE", "/api/v1/namespaces/{ns}/pods/x"),
    ("DELETE", "/apis/batch/v1/namespaces/{ns}/jobs"),
    ("PUT", "/apis/batch/v1/namespaces/{ns}/jobs/x"),
    ("PUT", "/apis/batch/v1/namespaces/{ns}/jobs/x/status"),
)


def with_its_role(plane: Plane, namespace: str) -> str:
    """A token of an account that has the Role there, and nothing else."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    plane.api.create(path, {"metadata": {"name": ACCOUNT}})
    name = "berthmaster-executor-services"
    policy = [one for one in render("worker") if one["metadata"]["name"] == name]
    assert len(policy) == 2  # with its binding
    plane.apply([*rights("berthmaster-executor", role="worker"), *policy])
    plane.api.create(
        f"{RBAC}/namespaces/{namespace}/rolebindings",
        {
            "metadata": {"name": "berthmaster-executor"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "berthmaster-executor",
            },
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}],
        },
    )
    return plane.token_for(namespace, ACCOUNT)


def answer(api: Api, method: str, path: str) -> int:
    body = {"metadata": {"name": "x"}} if method in ("POST", "PUT", "PATCH") else None
    form = "application/merge-patch+json" if method == "PATCH" else "application/json"
    try:
        api.call(method, path, body, content_type=form)
    except ApiError as error:
        return error.status
    return 200


@story
async def test_its_role_is_enough_for_all_that_it_does(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("n1")])
    token = await asyncio.to_thread(with_its_role, worker, namespace)
    kubeconfig = worker.kubeconfig_with_token(token)
    async with site(worker, namespace, tmp_path, kubeconfig=kubeconfig) as berlin:
        await berlin.place(job("ends", count=2), "n1")  # a gang has a Service
        await berlin.place(job("fails", exit_code=1), "n1")
        await berlin.place(job("stopped", run_s="forever"), "n1")
        await berlin.until("stopped", "Running")
        await berlin.cancel("stopped")
        await berlin.until("ends", "Succeeded")
        await berlin.until("fails", "Failed")
        await berlin.until("stopped", "Cancelled")
        await berlin.clean()
        assert "Forbidden" not in berlin.words()


def test_its_role_allows_nothing_else(planes: Planes, namespace: str) -> None:
    worker = planes.workers[0]
    api = worker.api_for(token=with_its_role(worker, namespace))
    answers = {
        (method, path): answer(api, method, path.format(ns=namespace)) for method, path in DENIED
    }
    assert answers == dict.fromkeys(DENIED, 403)
    assert answer(api, "GET", f"/apis/batch/v1/namespaces/{namespace}/jobs") == 200
    assert answer(api, "GET", f"/api/v1/namespaces/{namespace}/pods") == 200
    assert answer(api, "GET", f"/api/v1/namespaces/{namespace}") == 200


def headless(name: str, **spec: object) -> dict[str, Any]:
    """A Service as the executor makes it, with other members of its spec."""
    selector = {"berthmaster.io/tenant": "acme", "berthmaster.io/workload": "train"}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "ownerReferences": [owner]},
        "spec": {"clusterIP": "None", "selector": selector} | spec,
    }


def test_its_services_take_no_traffic_of_the_cluster(planes: Planes, namespace: str) -> None:
    worker = planes.workers[0]
    api = worker.api_for(token=with_its_role(worker, namespace))
    path = f"/api/v1/namespaces/{namespace}/services"

    def refused(service: dict[str, Any]) -> str:
        try:
            api.create(path, service, dryRun="All")
        except ApiError as error:
            return str(error)
        return ""

    ports = [{"port": 443}]
    ownerless = headless("g-train")
    ownerless["metadata"]["ownerReferences"] = []
    # A policy counts some moments after it was made.
    wait_until(
        lambda: "no address" in refused(headless("g-x", externalIPs=["1.1.1.1"])), "it counts"
    )
    assert refused(headless("g-train")) == ""
    for service, words in (
        (headless("g-train", clusterIP="", ports=ports), "no address of any kind"),
        (headless("g-train", ports=ports), "no address of any kind"),
        (headless("g-train", clusterIP="", type="NodePort", ports=ports), "no address of any kind"),
        (
            headless("g-train", clusterIP="", type="LoadBalancer", ports=ports),
            "no address of any kind",
        ),
        (
            headless("g-train", clusterIP="", type="ExternalName", externalName="evil.example"),
            "no address of any kind",
        ),
        (headless("kubernetes"), "is called g-JOB"),
        (ownerless, "is called g-JOB"),
        (headless("g-train", selector={"app": "database"}), "selects the pods of one workload"),
        (headless("g-train", selector=None), "selects the pods of one workload"),
    ):
        assert words in refused(service), service
    # Others make Services as before.
    other = headless("db", clusterIP="", ports=ports, selector={"app": "db"})
    worker.api.create(path, other, dryRun="All")


@story
async def test_namespace_with_running_jobs_can_be_deleted(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    """Its RoleBinding goes with it: the finalizers have to go before."""
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("n1")])
    token = await asyncio.to_thread(with_its_role, worker, namespace)
    kubeconfig = worker.kubeconfig_with_token(token)
    async with site(worker, namespace, tmp_path, kubeconfig=kubeconfig) as berlin:
        await berlin.place(job(run_s="forever"), "n1")
        await berlin.until("train", "Running")
        path = f"/api/v1/namespaces/{namespace}"
        worker.api.delete(path)
        worker.api.delete(f"{path}/pods", gracePeriodSeconds=0)
        await eventually(lambda: asyncio.to_thread(lambda: worker.api.find(path) is None))


@story
async def test_rights_that_are_taken_away_delay_and_lose_nothing(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("n1")])
    token = await asyncio.to_thread(with_its_role, worker, namespace)
    kubeconfig = worker.kubeconfig_with_token(token)
    async with site(worker, namespace, tmp_path, kubeconfig=kubeconfig) as berlin:
        await berlin.place(job(run_s="forever"), "n1")
        await berlin.until("train", "Running")
        binding = f"{RBAC}/namespaces/{namespace}/rolebindings/berthmaster-executor"
        kept = worker.api.get(binding)
        worker.api.delete(binding)
        await asyncio.sleep(1.0)
        await berlin.cancel("train")
        await until(lambda: "cannot stop yet" in berlin.words(), "it says why it does not stop")
        assert await berlin.kinds("train") == ["Claimed", "Running", "CancelRequested"]
        made = {key: kept[key] for key in ("roleRef", "subjects")}
        worker.api.create(
            binding.rpartition("/")[0], {"metadata": {"name": "berthmaster-executor"}} | made
        )
        await berlin.until("train", "Cancelled")
        await berlin.clean()


@story
async def test_a_namespace_without_the_role_is_named_and_gives_back_and_the_others_are_served(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("n1")])
    other, (port,) = f"{namespace}-other", free_ports(1)
    worker.api.create("/api/v1/namespaces", {"metadata": {"name": other}})
    token = await asyncio.to_thread(with_its_role, worker, namespace)
    flags = ("--namespaces", f"{other},{namespace}", "--http-port", str(port))
    kubeconfig = worker.kubeconfig_with_token(token)
    async with site(worker, namespace, tmp_path, *flags, kubeconfig=kubeconfig) as berlin:
        await berlin.place(job("served"), "n1")
        await berlin.until("served", "Succeeded")
        await berlin.place(job("elsewhere"), "n1", target=Target(namespace=other))
        evicted = await berlin.until("elsewhere", "Evicted")
        assert isinstance(evicted, Evicted)
        assert evicted.reason.startswith(f"namespace {other} is closed to its executor: not allow")

        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
            async with http.get("/readyz") as answer:
                assert answer.status == 200
                rights = (await answer.json())["parts"]["rights"]
            async with http.get("/metrics") as answer:
                metrics = await answer.text()
        assert rights["ok"]
        assert f"namespace {other}: not allowed" in rights["why"]
        assert f'namespace_closed{{namespace="{other}"}} 1.0' in metrics
        assert f'namespace_closed{{namespace="{namespace}"}} 0.0' in metrics
        assert "namespace not served" in berlin.words()

        # Its Role comes, and it is served without a restart.
        subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}
        worker.api.create(
            f"{RBAC}/namespaces/{other}/rolebindings",
            {
                "metadata": {"name": "berthmaster-executor"},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "ClusterRole",
                    "name": "berthmaster-executor",
                },
                "subjects": [subject],
            },
        )
        async with asyncio.timeout(hang_s()):
            while "namespace served again" not in berlin.words():
                await asyncio.sleep(0.2)
        await berlin.place(job("later"), "n1", target=Target(namespace=other))
        await berlin.until("later", "Succeeded")
