"""The inventory on real API servers: what changes is told, whatever the server does."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

from berthmaster.cli.doctor.reader import ClusterAccess, survey
from berthmaster.lab.controlplane.api import ApiError, documents
from berthmaster.lab.controlplane.nodes import Node, cpu_node, gpu_node, make_nodes, remove_nodes
from berthmaster.lab.controlplane.plane import DEFINITIONS, Plane
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.config import Access, from_kubeconfig
from berthmaster.lib.kube.resources import (
    CLUSTER_QUEUES,
    CONFIG_MAPS,
    JOBS,
    KUEUE_WORKLOADS,
    MEMBER_CLUSTERS,
    NAMESPACES,
    NODES,
    PODS,
    ROLE_BINDINGS,
    SECRETS,
    SERVICE_ACCOUNTS,
    Resource,
)
from berthmaster.lib.messages.fleet import (
    Amounts,
    ClusterAlive,
    ClusterProfile,
    CopyReport,
    DeviceClaim,
    HubRoom,
    Membership,
    NodeGone,
    NodeReport,
    QueueReport,
    Share,
)
from berthmaster.lib.nats import subjects
from tests.bus.shells import in_loop
from tests.cluster.claiming import A100, API, DRIVER, gpu, offered
from tests.cluster.inventorying import CLUSTER, Told, bus, inventory, members
from tests.support.chart import rights
from tests.support.patience import wait_until
from tests.unit.lib.kube.stage import Lines

# An API server's crash and return alone may take half a minute on a busy machine.

VOLCANO = Path(__file__).parent / "crds" / "volcano.yaml"
ROLE = "berthmaster-inventory"
KUBEFLEET = Path(__file__).parent / "crds" / "kubefleet.yaml"
PROFILE = subjects.profile(CLUSTER)
GPU = "nvidia.com/gpu"
QUEUES = "/apis/kueue.x-k8s.io/v1beta2"


def node_of(name: str) -> str:
    return subjects.node(CLUSTER, name)


def pod(name: str, requests: Mapping[str, str], **labels: str) -> dict[str, Any]:
    limits = {key: value for key, value in requests.items() if "/" in key}
    container = {
        "name": "main",
        "image": "nowhere/image",
        "resources": {"requests": dict(requests), "limits": limits},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "containers": [container],
            "restartPolicy": "Never",
            "tolerations": [{"operator": "Exists"}],
        },
    }


async def add(plane: Plane, *nodes: Node) -> None:
    await asyncio.to_thread(make_nodes, plane, nodes)


async def free(told: Told, node: str, foreign: int) -> NodeReport:
    """The node's report once so much of its GPUs is foreign."""
    return await told.until(
        node_of(node), NodeReport, lambda fact: fact.foreign.gpu_milli == foreign
    )


@in_loop
async def test_nodes_and_pods_become_facts_as_they_change(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    plane = planes.workers[0]
    await add(plane, gpu_node("a", gpus=4, model="Tesla-T4"), cpu_node("c"))
    async with bus(tmp_path) as told, inventory(told.url, plane.kubeconfig):
        await told.lives()
        first = await told.until(node_of("a"), NodeReport, lambda fact: fact.ready)
        assert [gpu.model for gpu in first.gpus] == ["Tesla-T4"] * 4
        assert (first.foreign.gpu_milli, first.fractions) == (0, False)
        profile = await told.until(PROFILE, ClusterProfile, lambda fact: fact.nodes == 2)
        assert (profile.gpus, profile.job_kinds) == ({"Tesla-T4": 4}, ("Job", "JobSet"))

        # A pod of a stranger is bound by the real scheduler, one of ours beside it.
        pods = f"/api/v1/namespaces/{namespace}/pods"
        ours = {
            "berthmaster.io/tenant": "acme",
            "berthmaster.io/workload": "train",
            "berthmaster.io/attempt": "1",
            "berthmaster.io/pod": "main-0",
        }
        asked = {"cpu": "2", "memory": "1Gi", GPU: "1"}
        await asyncio.to_thread(plane.api.create, pods, pod("theirs", asked))
        report = await free(told, "a", 1000)
        assert (report.foreign.cpu_milli, report.foreign.memory_mib) == (2000, 1024)
        assert [gpu.foreign_milli for gpu in report.gpus] == [0, 0, 0, 1000]
        await asyncio.to_thread(plane.api.create, pods, pod("mine", asked | {GPU: "2"}, **ours))
        report = await told.until(node_of("a"), NodeReport, lambda fact: fact.pods)
        assert report.foreign.gpu_milli == 1000
        assert [(use.workload, use.pod, use.gpus) for use in report.pods] == [
            ("train", "main-0", (0, 1))
        ]
        await asyncio.to_thread(plane.api.delete, f"{pods}/theirs", gracePeriodSeconds=0)
        await free(told, "a", 0)
        # What has run to its end holds nothing, though its pod is still there.
        brief = pod("brief", asked)
        brief["metadata"]["annotations"] = {"berth.test/run-s": "1"}
        await asyncio.to_thread(plane.api.create, pods, brief)
        await free(told, "a", 1000)
        await free(told, "a", 0)
        assert await asyncio.to_thread(plane.api.find, f"{pods}/brief") is not None

        # Cordoned, then removed.
        cordon = {"spec": {"unschedulable": True}}
        await asyncio.to_thread(plane.api.merge, "/api/v1/nodes/c", cordon)
        await told.until(node_of("c"), NodeReport, lambda fact: not fact.schedulable)
        await asyncio.to_thread(remove_nodes, plane, ["c"])
        await told.until(node_of("c"), NodeGone, lambda _: True)
        await told.until(PROFILE, ClusterProfile, lambda fact: fact.nodes == 1)


@in_loop
async def test_a_node_that_went_while_nobody_looked_is_told_at_the_next_start(
    planes: Planes, tmp_path: Path
) -> None:
    plane = planes.workers[0]
    await add(plane, cpu_node("stays"), cpu_node("goes.with.dots"))
    gone = node_of("goes.with.dots")
    async with bus(tmp_path) as told:
        async with inventory(told.url, plane.kubeconfig):
            await told.until(gone, NodeReport, lambda _: True)
        before = told.now[node_of("stays")].stamp
        await asyncio.to_thread(remove_nodes, plane, ["goes.with.dots"])
        async with inventory(told.url, plane.kubeconfig):
            await told.until(gone, NodeGone, lambda _: True)
            stays = await told.until(node_of("stays"), NodeReport, lambda fact: fact.stamp > before)
            assert stays.stamp.epoch > before.epoch


@in_loop
async def test_of_two_replicas_one_tells_and_the_other_goes_on(
    planes: Planes, tmp_path: Path
) -> None:
    plane = planes.workers[0]
    await add(plane, cpu_node("n"))
    async with bus(tmp_path) as told, inventory(told.url, plane.kubeconfig) as first:
        await told.lives()
        async with inventory(told.url, plane.kubeconfig) as second:
            epoch = told.now[node_of("n")].stamp.epoch
            await asyncio.sleep(2)
            assert {fact.stamp.epoch for _, fact in told.story} == {epoch}
            first.stopping.set()
            await told.until(node_of("n"), NodeReport, lambda fact: fact.stamp.epoch > epoch)
            await told.lives()
            label = {"metadata": {"labels": {"after": "takeover"}}}
            await asyncio.to_thread(plane.api.merge, "/api/v1/nodes/n", label)
            await told.until(node_of("n"), NodeReport, lambda fact: "after" in fact.labels)
            assert second.died is None


@in_loop
async def test_queues_and_copies_with_why_they_wait(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    plane = planes.workers[0]
    name = f"gpus-{namespace}"
    subject = subjects.queue_report(CLUSTER, name)
    flavor = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ResourceFlavor",
        "metadata": {"name": name},
        "spec": {"nodeLabels": {"accelerator": "t4"}},
    }
    quota = {"name": GPU, "nominalQuota": 8}
    queue = flavor | {
        "kind": "ClusterQueue",
        "spec": {
            "resourceGroups": [
                {"coveredResources": [GPU], "flavors": [{"name": name, "resources": [quota]}]}
            ]
        },
    }
    local = flavor | {
        "kind": "LocalQueue",
        "metadata": {"name": "vision", "namespace": namespace},
        "spec": {"clusterQueue": name},
    }
    api = plane.api
    try:
        async with bus(tmp_path) as told, inventory(told.url, plane.kubeconfig):
            await asyncio.to_thread(api.create, f"{QUEUES}/resourceflavors", flavor)
            await asyncio.to_thread(api.create, f"{QUEUES}/clusterqueues", queue)
            await asyncio.to_thread(
                api.create, f"{QUEUES}/namespaces/{namespace}/localqueues", local
            )
            report = await told.until(subject, QueueReport, lambda fact: fact.local_queues)
            assert report.flavors[0].node_labels == {"accelerator": "t4"}
            assert report.flavors[0].resources[GPU].nominal == 8
            assert (report.active, report.reason) == (False, "Kueue has not looked at it yet")
            active = condition("Active", "True", "Ready", "Can admit new workloads")
            status = {
                "status": {
                    "conditions": [active],
                    "pendingWorkloads": 3,
                    "flavorsReservation": [
                        {"name": name, "resources": [{"name": GPU, "total": "5"}]}
                    ],
                }
            }
            await asyncio.to_thread(api.merge, f"{QUEUES}/clusterqueues/{name}/status", status)
            report = await told.until(subject, QueueReport, lambda fact: fact.active)
            assert (report.pending, report.flavors[0].resources[GPU].used) == (3, 5)

            stop = {"spec": {"stopPolicy": "Hold"}}
            await asyncio.to_thread(api.merge, f"{QUEUES}/clusterqueues/{name}", stop)
            report = await told.until(subject, QueueReport, lambda fact: fact.stopped)
            assert (report.active, report.reason) == (False, "stopped: Hold")

            await see_a_copy(plane, namespace, told)
            await asyncio.to_thread(api.delete, f"{QUEUES}/clusterqueues/{name}")
            await told.until(subject, QueueReport, lambda fact: fact.gone)
    finally:
        await forget(plane, f"{QUEUES}/resourceflavors/{name}")
        await forget(plane, f"{QUEUES}/clusterqueues/{name}")


async def forget(plane: Plane, path: str) -> None:
    """Take it away if it is there."""
    if await asyncio.to_thread(plane.api.find, path) is not None:
        await asyncio.to_thread(plane.api.delete, path)


def condition(kind: str, status: str, reason: str, message: str) -> dict[str, str]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


async def see_a_copy(plane: Plane, namespace: str, told: Told) -> None:
    """A Workload that MultiKueue made is told, one that a person made is not."""
    path = f"{QUEUES}/namespaces/{namespace}/workloads"
    container = {"name": "main", "image": "nowhere/image"}
    template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    body: dict[str, Any] = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": "own"},
        "spec": {
            "queueName": "vision",
            "podSets": [{"name": "main", "count": 1, "template": template}],
        },
    }
    await asyncio.to_thread(plane.api.create, path, body)
    body["metadata"] = {"name": "copy", "labels": {"kueue.x-k8s.io/multikueue-origin": "mk"}}
    await asyncio.to_thread(plane.api.create, path, body)
    subject = subjects.copy_report(CLUSTER, namespace, "copy")
    await told.until(subject, CopyReport, lambda fact: fact.origin == "mk")
    why = "couldn't assign flavors to pod set main: insufficient unused quota"
    status = {"status": {"conditions": [condition("QuotaReserved", "False", "Pending", why)]}}
    await asyncio.to_thread(plane.api.merge, f"{path}/copy/status", status)
    await told.until(subject, CopyReport, lambda fact: fact.message == why)
    await asyncio.to_thread(plane.api.delete, f"{path}/copy")
    await told.until(subject, CopyReport, lambda fact: fact.gone)
    assert {fact.workload for fact in told.of(CopyReport)} == {"copy"}


@in_loop
async def test_while_the_api_server_is_away_there_is_no_sign_of_life_and_nothing_changes(
    planes: Planes, tmp_path: Path
) -> None:
    plane = planes.workers[0]
    await add(plane, gpu_node("a", gpus=2))
    async with bus(tmp_path) as told, inventory(told.url, plane.kubeconfig) as ctx:
        await told.lives()
        await asyncio.to_thread(plane.crash_api_server)
        await told.eventually(lambda: not ctx.health.readiness()[0], "it has noticed")
        await asyncio.sleep(1.5)  # what it had seen before is still on its way
        signs, facts = told.signs(), len(told.story)
        await asyncio.sleep(2.5)
        assert (told.signs(), len(told.story)) == (signs, facts)
        ready, answer = ctx.health.readiness()
        assert not ready
        assert "mirror of nodes" in str(answer["why"])

        await asyncio.to_thread(plane.start_api_server)
        await told.lives()
        label = {"metadata": {"labels": {"after": "crash"}}}
        await asyncio.to_thread(plane.api.merge, "/api/v1/nodes/a", label)
        await told.until(node_of("a"), NodeReport, lambda fact: "after" in fact.labels)
        # Whoever was slow in serving its kinds again was not taken for one without them.
        assert not [fact for fact in told.of(QueueReport) if fact.gone]
        assert told.of(NodeGone) == []


@in_loop
async def test_after_an_expired_history_what_was_missed_is_told(
    planes: Planes, tmp_path: Path
) -> None:
    plane = planes.workers[0]
    await add(plane, cpu_node("stays"), cpu_node("goes"))
    proxy = await asyncio.to_thread(plane.proxy)
    kubeconfig = plane.kubeconfig_for("admin", ("system:masters",), via=proxy)
    async with bus(tmp_path) as told, inventory(told.url, kubeconfig):
        await told.lives()
        await asyncio.to_thread(proxy.close)
        await asyncio.to_thread(remove_nodes, plane, ["goes"])
        await add(plane, cpu_node("comes"))
        await asyncio.to_thread(plane.forget_history)
        await asyncio.to_thread(proxy.open)
        await told.until(node_of("goes"), NodeGone, lambda _: True)
        await told.until(node_of("comes"), NodeReport, lambda _: True)
        await told.lives()


@in_loop
async def test_a_slow_server_is_slow_and_nothing_else(planes: Planes, tmp_path: Path) -> None:
    plane = planes.workers[0]
    await add(plane, gpu_node("a", gpus=2))
    proxy = await asyncio.to_thread(plane.proxy, 2.0)
    kubeconfig = plane.kubeconfig_for("admin", ("system:masters",), via=proxy)
    async with bus(tmp_path) as told, inventory(told.url, kubeconfig) as ctx:
        await told.lives()
        label = {"metadata": {"labels": {"after": "a-while"}}}
        await asyncio.to_thread(plane.api.merge, "/api/v1/nodes/a", label)
        await told.until(node_of("a"), NodeReport, lambda fact: "after" in fact.labels)
        assert ctx.health.readiness()[0]


@mock.patch("berthmaster.lib.kube.controller.fact_watch.SILENT_LIMIT_S", 2.0)
@in_loop
async def test_a_server_that_goes_deaf_gets_no_sign_of_life_for_long(
    planes: Planes, tmp_path: Path
) -> None:
    plane = planes.workers[0]
    proxy = await asyncio.to_thread(plane.proxy)
    kubeconfig = plane.kubeconfig_for("admin", ("system:masters",), via=proxy)
    async with (
        bus(tmp_path) as told,
        inventory(told.url, kubeconfig) as ctx,
    ):
        await told.lives()
        await asyncio.to_thread(proxy.go_deaf)
        await told.eventually(lambda: not ctx.health.readiness()[0], "it has noticed")
        signs = told.signs()
        await asyncio.sleep(1.5)
        assert told.signs() == signs
        assert "sign of life" in str(ctx.health.readiness()[1]["why"])


@contextmanager
def removed(plane: Plane, name: str, documents_: list[dict[str, Any]]) -> Iterator[None]:
    """Delete a definition, and afterwards what the test put in its place."""
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
    plane.api.delete(path)
    wait_until(lambda: plane.api.find(path) is None, f"{name} to go")
    try:
        yield
    finally:
        with suppress(ApiError):  # it is gone, or goes at this moment
            # A dead webhook would keep the API server from deleting the objects of the kind.
            plane.api.merge(path, {"spec": {"conversion": {"strategy": "None", "webhook": None}}})
            plane.api.delete(path)
        wait_until(lambda: plane.api.find(path) is None, f"{name} to go")
        plane.apply([one for one in documents_ if one["metadata"]["name"] == name])


@in_loop
async def test_kinds_that_are_served_later(planes: Planes, tmp_path: Path) -> None:
    plane = planes.workers[0]
    queues = "clusterqueues.kueue.x-k8s.io"
    definition = [one for one in planes.crds if one["metadata"]["name"] == queues]
    with removed(plane, queues, definition):
        async with bus(tmp_path) as told, inventory(told.url, plane.kubeconfig) as ctx:
            await told.lives()  # a kind that is not there holds nothing up
            await told.until(
                PROFILE, ClusterProfile, lambda fact: fact.properties["berth/kueue"] == "absent"
            )
            assert ctx.health.readiness()[0]
            await asyncio.to_thread(plane.apply, definition)
            await told.until(
                PROFILE, ClusterProfile, lambda fact: fact.properties["berth/kueue"] == "served"
            )
            body = {
                "apiVersion": "kueue.x-k8s.io/v1beta2",
                "kind": "ClusterQueue",
                "metadata": {"name": "late"},
                "spec": {},
            }
            await asyncio.to_thread(plane.api.create, f"{QUEUES}/clusterqueues", body)
            late = subjects.queue_report(CLUSTER, "late")
            await told.until(late, QueueReport, lambda fact: not fact.gone)
            # With the definition goes everything in it.
            await asyncio.to_thread(
                plane.api.delete,
                f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{queues}",
            )
            await told.until(late, QueueReport, lambda fact: fact.gone)


def with_dead_webhook(definition: Mapping[str, Any]) -> dict[str, Any]:
    """The same kind, stored in another version than we read, with nobody to convert it."""
    spec = definition["spec"]
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"served": True, "schema": {"openAPIV3Schema": schema}}
    hook = {
        "conversionReviewVersions": ["v1"],
        "clientConfig": {"url": "https://127.0.0.1:9/convert"},
    }
    return {
        "apiVersion": definition["apiVersion"],
        "kind": definition["kind"],
        "metadata": {"name": definition["metadata"]["name"]},
        "spec": {
            "group": spec["group"],
            "names": spec["names"],
            "scope": spec["scope"],
            "versions": [
                version | {"name": "v1beta1", "storage": True},
                version | {"name": "v1beta2", "storage": False},
            ],
            "conversion": {"strategy": "Webhook", "webhook": hook},
        },
    }


@in_loop
async def test_kind_with_a_dead_conversion_webhook_is_reported_and_the_rest_goes_on(
    planes: Planes, tmp_path: Path
) -> None:
    plane = planes.workers[0]
    cohorts = "cohorts.kueue.x-k8s.io"
    [definition] = [one for one in planes.crds if one["metadata"]["name"] == cohorts]
    with removed(plane, cohorts, [definition]):
        await asyncio.to_thread(plane.apply, [with_dead_webhook(definition)])
        body = {
            "apiVersion": "kueue.x-k8s.io/v1beta1",
            "kind": "Cohort",
            "metadata": {"name": "old"},
            "spec": {},
        }
        path = "/apis/kueue.x-k8s.io/v1beta1/cohorts"
        await asyncio.to_thread(plane.api.create, path, body)
        await add(plane, gpu_node("a"))
        async with bus(tmp_path) as told, inventory(told.url, plane.kubeconfig):
            profile = await told.until(PROFILE, ClusterProfile, lambda fact: fact.unlisted)
            [one] = profile.unlisted
            assert one.kind == cohorts
            assert "conversion webhook for kueue.x-k8s.io/v1beta1" in one.why
            await told.until(node_of("a"), NodeReport, lambda fact: fact.gpus)
            await told.lives()
            found = await survey(
                None,
                [ClusterAccess(name="east", kubeconfig=plane.kubeconfig)],
                mode="observe",
                namespace="berth-system",
                now_s=time.time(),
            )
            assert found.workers[0].unreachable == ""
            # Its webhook is mended: here, by doing without it.
            mended = with_dead_webhook(definition)
            mended["spec"]["conversion"] = {"strategy": "None"}
            await asyncio.to_thread(plane.apply, [mended])
            await told.until(PROFILE, ClusterProfile, lambda fact: not fact.unlisted)


@in_loop
async def test_profile_has_the_uid_of_kube_system(planes: Planes, tmp_path: Path) -> None:
    plane = planes.workers[0]
    uid = plane.api.get("/api/v1/namespaces/kube-system")["metadata"]["uid"]
    async with bus(tmp_path) as told, inventory(told.url, plane.kubeconfig):
        await told.until(PROFILE, ClusterProfile, lambda fact: fact.uid == uid)


@in_loop
async def test_devices_are_told_with_the_class_that_they_are_claimed_by(
    planes: Planes, tmp_path: Path
) -> None:
    plane = planes.workers[0]
    await add(plane, cpu_node("n1"))
    async with bus(tmp_path) as told, inventory(told.url, plane.kubeconfig):
        with offered(plane, {"n1": [gpu("0", shared=True)]}):
            found = await told.until(
                node_of("n1"), NodeReport, lambda fact: fact.gpus and fact.gpus[0].claim
            )
            claim = DeviceClaim(driver=DRIVER, device_class=DRIVER, product=A100, divisible=True)
            assert [(each.claim, each.healthy) for each in found.gpus] == [(claim, True)]
            assert found.shares == (Share(resource=DRIVER, milli=0, count=1, claim=claim),)
            plane.api.delete(f"{API}/deviceclasses/{DRIVER}")
            await told.until(node_of("n1"), NodeReport, lambda fact: not fact.gpus[0].healthy)
        await told.until(node_of("n1"), NodeReport, lambda fact: not fact.gpus)


@in_loop
async def test_nodes_that_cannot_be_right_are_not_usable_and_the_rest_goes_on(
    planes: Planes, tmp_path: Path
) -> None:
    plane = planes.workers[0]
    absurd = gpu_node("absurd", gpus=1_000_000)
    missing = gpu_node("missing")
    missing = Node(
        name="missing", labels=missing.labels, capacity={"cpu": "8", "memory": "1Gi", "pods": "9"}
    )
    labels = {f"many/{n}": "z" * 63 for n in range(90)} | {"kubernetes.io/hostname": "long"}
    long = cpu_node(".".join(["x" * 62] * 4), labels=labels)
    await add(plane, absurd, missing, long, gpu_node("good", gpus=2))
    async with bus(tmp_path) as told, inventory(told.url, plane.kubeconfig) as ctx:
        good = await told.until(node_of("good"), NodeReport, lambda _: True)
        assert (len(good.gpus), good.taints) == (2, ())
        bad = await told.until(node_of("absurd"), NodeReport, lambda _: True)
        assert (bad.gpus, bad.taints[0].key) == ((), "berthmaster.io/unusable")
        assert "is more than any node has" in bad.taints[0].value
        bad = await told.until(node_of("missing"), NodeReport, lambda _: True)
        assert (bad.gpus, bad.taints[0].value) == (
            (),
            "labels tell of 8 GPUs and allocatable of none: no device plugin runs",
        )
        named = await told.until(node_of(long.name), NodeReport, lambda _: True)
        assert len(named.labels) == 64
        await told.lives()
        problems = ctx.metrics.gauge("problems", "", ["kind"]).labels("nodes")
        assert problems._value.get() == 3


@in_loop
async def test_it_needs_no_more_than_its_role_and_calls_nothing_while_nothing_changes(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    plane = planes.workers[0]
    role = rights(ROLE, role="worker")
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"inventory-{namespace}"},
        "subjects": [{"kind": "User", "name": "inv", "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {
            "kind": "ClusterRole",
            "name": "berthmaster-inventory",
            "apiGroup": "rbac.authorization.k8s.io",
        },
    }
    await asyncio.to_thread(plane.apply, [*role, binding])
    await add(plane, gpu_node("a"))
    kubeconfig = plane.kubeconfig_for("inv")
    async with bus(tmp_path) as told, inventory(told.url, kubeconfig, jobs="volcano") as ctx:
        await told.lives()
        assert ctx.health.readiness() == (True, ctx.health.readiness()[1])
        await asyncio.sleep(1)
        mark = plane.audit.mark()
        await asyncio.sleep(6)
        assert plane.audit.count(since=mark, user="inv") == {}
        # It sees which kinds of jobs are served, and Volcano's as the executor makes those.
        served = documents(VOLCANO)
        await asyncio.to_thread(plane.apply, served)
        try:
            await told.until(
                PROFILE, ClusterProfile, lambda fact: "VolcanoJob" in (fact.job_kinds or ())
            )
        finally:
            await asyncio.to_thread(plane.withdraw, served)
    await deny_the_rest(await from_kubeconfig(kubeconfig), namespace)


@in_loop
async def test_what_kueue_counts_claimed_devices_as_is_read_from_its_configuration(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    plane = planes.workers[0]
    api, place = plane.api, "/api/v1/namespaces/kueue-system/configmaps"
    name = f"config-{namespace}"  # the real one is others'
    rows = f"[{{name: example.com/gpus, deviceClassNames: [{DRIVER}]}}]"
    text = f"resources: {{deviceClassMappings: {rows}}}"
    body = {"metadata": {"name": name}, "data": {"controller_manager_config.yaml": text}}
    system = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kueue-system"}}
    await asyncio.to_thread(api.apply, system)
    denied = plane.kubeconfig_for(f"narrow-{namespace}")
    [role] = rights(ROLE, role="worker")
    role["metadata"]["name"] = binding = f"narrow-{namespace}"
    role["rules"] = [rule for rule in role["rules"] if rule["resources"] != ["configmaps"]]
    subject = {"kind": "User", "name": binding, "apiGroup": "rbac.authorization.k8s.io"}
    ref = {"kind": "ClusterRole", "name": binding, "apiGroup": "rbac.authorization.k8s.io"}
    bound = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": binding},
        "subjects": [subject],
        "roleRef": ref,
    }
    await asyncio.to_thread(plane.apply, [role, bound])
    claimed = f"deviceclass.resource.kubernetes.io/{DRIVER}"
    settings: dict[str, Any] = {"kueue_config": f"kueue-system/{name}"}
    with offered(plane, {}, resource="nvidia.com/gpu"):
        async with bus(tmp_path) as told:
            async with inventory(told.url, plane.kubeconfig, **settings):
                await told.until(PROFILE, ClusterProfile, lambda p: not p.counted_as)
                await asyncio.to_thread(api.create, place, body)
                both = {claimed: "example.com/gpus", "nvidia.com/gpu": "example.com/gpus"}
                await told.until(PROFILE, ClusterProfile, lambda p: p.counted_as == both)
                await asyncio.to_thread(api.delete, f"{place}/{name}")
                await told.until(PROFILE, ClusterProfile, lambda p: not p.counted_as)
            # Who may not look at it is told by its operator, and is ready all the same.
            settings["device_class_mapping"] = (f"{DRIVER}=example.com/said",)
            async with inventory(told.url, denied, **settings) as ctx:
                said = {claimed: "example.com/said", "nvidia.com/gpu": "example.com/said"}
                await told.until(PROFILE, ClusterProfile, lambda p: p.counted_as == said)
                health = ctx.health.readiness
                await told.eventually(
                    lambda: "not allowed" in str(health()[1]["parts"]), "mirror of configmaps"
                )
                assert health()[0], health()


async def deny_the_rest(access: Access, namespace: str) -> None:
    denied: list[tuple[str, Resource, str]] = [
        ("patch", NODES, ""),
        ("update", NODES, "status"),
        ("delete", NODES, ""),
        ("create", PODS, ""),
        ("delete", PODS, ""),
        ("create", PODS, "exec"),
        ("get", PODS, "log"),
        ("create", PODS, "binding"),
        ("get", SECRETS, ""),
        ("list", SECRETS, ""),
        ("get", CONFIG_MAPS, ""),
        ("list", CONFIG_MAPS, ""),
        ("list", NAMESPACES, ""),
        ("create", JOBS, ""),
        ("patch", JOBS, ""),
        ("delete", JOBS, ""),
        ("patch", CLUSTER_QUEUES, ""),
        ("patch", KUEUE_WORKLOADS, "status"),
        ("delete", KUEUE_WORKLOADS, ""),
        ("create", SERVICE_ACCOUNTS, "token"),
        ("create", ROLE_BINDINGS, ""),
    ]
    async with await Client.open(access, user_agent="test", log=Lines()) as client:
        allowed = [
            f"{verb} {resource.plural}/{part}"
            for verb, resource, part in denied
            if await client.can(
                verb, resource, namespace if resource.namespaced else "", subresource=part
            )
        ]
    assert allowed == []


@in_loop
async def test_what_a_hub_knows_of_its_clusters(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    hub = planes.hub
    name = f"east-{namespace}"
    subject = subjects.membership(name)
    profiles = f"/apis/multicluster.x-k8s.io/v1alpha1/namespaces/{namespace}/clusterprofiles"
    managed = "/apis/cluster.open-cluster-management.io/v1/managedclusters"
    profile = {
        "apiVersion": "multicluster.x-k8s.io/v1alpha1",
        "kind": "ClusterProfile",
        "metadata": {"name": name, "labels": {"region": "eu"}},
        "spec": {"clusterManager": {"name": "test"}},
    }
    cluster = {
        "apiVersion": "cluster.open-cluster-management.io/v1",
        "kind": "ManagedCluster",
        "metadata": {"name": name, "labels": {"gpu": "t4"}},
        "spec": {
            "hubAcceptsClient": True,
            "taints": [{"key": "drain", "value": "now", "effect": "NoSelect"}],
        },
    }
    api = hub.api
    await asyncio.to_thread(hub.apply, documents(KUBEFLEET))
    try:
        async with (
            bus(tmp_path) as told,
            members(told.url, hub.kubeconfig) as ctx,
        ):
            assert ctx.health.readiness()[0]
            await asyncio.to_thread(api.create, profiles, profile)
            await told.until(subject, Membership, lambda fact: fact.labels == {"region": "eu"})
            await asyncio.to_thread(api.create, managed, cluster)
            both = await told.until(subject, Membership, lambda fact: len(fact.sources) == 2)
            assert both.labels == {"region": "eu", "gpu": "t4"}
            assert [(taint.key, taint.effect) for taint in both.taints] == [("drain", "NoSchedule")]
            assert both.healthy is None

            down = condition("ManagedClusterConditionAvailable", "False", "Down", "API is down")
            claims = [{"name": "zone.example", "value": "a"}]
            status = {"status": {"conditions": [down], "clusterClaims": claims}}
            await asyncio.to_thread(api.merge, f"{managed}/{name}/status", status)
            sick = await told.until(subject, Membership, lambda fact: fact.healthy is False)
            assert sick.reason == "ManagedClusterConditionAvailable: API is down"
            assert sick.properties == {"zone.example": "a"}

            # As absurd as the API server lets it be.
            many = [{"name": f"p{n:04}", "value": "v" * 1024} for n in range(1000)]
            await asyncio.to_thread(
                api.merge, f"{profiles}/{name}/status", {"status": {"properties": many}}
            )
            cut = await told.until(
                subject, Membership, lambda fact: "berthmaster.io/cut" in fact.properties
            )
            assert "of 1001 properties left out" in cut.properties["berthmaster.io/cut"]

            await asyncio.to_thread(api.delete, f"{managed}/{name}")
            await asyncio.to_thread(api.delete, f"{profiles}/{name}")
            await told.until(subject, Membership, lambda fact: fact.gone)

            await _as_a_member(hub, told, name)
            assert told.of(ClusterAlive) == []
    finally:
        await forget(hub, f"{managed}/{name}")
        await forget(hub, f"{DEFINITIONS}/memberclusters.cluster.kubernetes-fleet.io")


async def _as_a_member(hub: Plane, told: Told, name: str) -> None:
    """By KubeFleet alone, with what it has measured."""
    api, members, subject = hub.api, MEMBER_CLUSTERS.path(), subjects.membership(name)
    member = {"metadata": {"name": name}, "spec": {"heartbeatPeriodSeconds": 15}}
    kind = {"apiVersion": MEMBER_CLUSTERS.group_version, "kind": MEMBER_CLUSTERS.kind}
    await asyncio.to_thread(api.create, members, kind | member)
    observed = "2026-11-25T00:10:00Z"
    nodes = {"kubernetes-fleet.io/node-count": {"value": "2", "observationTime": observed}}
    amounts = {"cpu": "64", "nvidia.com/gpu": "8"}
    left = {"cpu": "3500m", "nvidia.com/gpu": 2}
    usage = {"allocatable": amounts, "available": left, "observationTime": observed}
    status: dict[str, Any] = {"status": {"properties": nodes, "resourceUsage": usage}}
    await asyncio.to_thread(api.merge, f"{members}/{name}/status", status)
    found = await told.until(subject, Membership, lambda fact: fact.room is not None)
    assert found.properties == {"kubernetes-fleet.io/node-count": "2"}
    assert found.room == HubRoom(
        allocatable=Amounts(cpu_milli=64_000, gpu_milli=8000),
        available=Amounts(cpu_milli=3500, gpu_milli=2000),
        observed_at_s=1_795_565_400.0,
        interval_s=15.0,
    )
    await asyncio.to_thread(api.delete, f"{members}/{name}")
    await told.until(subject, Membership, lambda fact: fact.gone)
