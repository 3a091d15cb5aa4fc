"""Gangs on the nodes: all pods at once where the cluster can, and one gives way where it cannot."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from berthmaster.lab.controlplane.api import documents
from berthmaster.lab.controlplane.nodes import gpu_node, make_nodes
from berthmaster.lab.controlplane.plane import DEFINITIONS, Plane
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.jobs.kinds.volcano_job import VOLCANO_JOB
from berthmaster.lib.kube.resources import (
    COSCHEDULING_POD_GROUPS,
    POD_GROUPS,
    VOLCANO_POD_GROUPS,
)
from berthmaster.lib.messages.workload import Admitted, Evicted, Running
from tests.bus.tools import eventually, story
from tests.cluster.executing import Site, job, site
from tests.cluster.test_executor_rights import with_its_role
from tests.support.patience import hang_s, wait_until

CRD: Final = Path(__file__).parent / "crds" / "coscheduling.yaml"
VOLCANO: Final = CRD.parent / "volcano.yaml"
VOLCANO_DEFINITIONS: Final = ("podgroups.scheduling.volcano.sh", "jobs.batch.volcano.sh")
GATES: Final = "--feature-gates=GenericWorkload=true,GangScheduling=true"


@contextmanager
def alpha(plane: Plane) -> Iterator[None]:
    """A control plane with Kubernetes' own gang scheduling, until the end."""
    parts = plane.parts
    server, scheduler, manager = parts.api_server, parts.scheduler, parts.controller_manager
    assert scheduler is not None
    usual = server.argv, scheduler.argv, manager.argv
    server.argv += (GATES, f"--runtime-config={POD_GROUPS.group_version}=true")
    scheduler.argv += (GATES,)
    manager.argv += (GATES, "--controllers=podgroup-protection-controller")
    try:
        plane.crash_api_server()
        plane.start_api_server()
        yield
    finally:
        server.argv, scheduler.argv, manager.argv = usual
        plane.crash_api_server()
        plane.start_api_server()


async def nodes_of(berlin: Site, name: str) -> list[str]:
    """Where its pods are, "" for those that have none yet."""
    pods = await asyncio.to_thread(berlin.pods)
    label = "berthmaster.io/workload"
    mine = [pod for pod in pods if pod["metadata"].get("labels", {}).get(label) == name]
    return sorted(pod["spec"].get("nodeName", "") for pod in mine)


def fill(plane: Plane, namespace: str, name: str, gpus: int) -> None:
    """Somebody else's pod, on its node: a scheduler that is busy, or that has just been started,
    would else take whichever pods it finds waiting in an order of its own."""
    limits = {"limits": {"nvidia.com/gpu": str(gpus)}}
    container = {"name": "x", "image": "x", "resources": limits}
    pods = f"/api/v1/namespaces/{namespace}/pods"
    plane.api.create(pods, {"metadata": {"name": name}, "spec": {"containers": [container]}})
    wait_until(
        lambda: plane.api.get(f"{pods}/{name}")["spec"].get("nodeName"),
        f"{name} on a node",
    )


def let_go(plane: Plane, namespace: str, name: str) -> None:
    plane.api.delete(f"/api/v1/namespaces/{namespace}/pods/{name}", gracePeriodSeconds=0)


@story
async def test_of_two_gangs_that_half_fit_the_younger_gives_way_and_the_older_runs(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("n1", gpus=2), gpu_node("n2", gpus=2)])
    flags = ("--gang-limit-s", "3", "--start-limit-s", "120")
    async with site(worker, namespace, tmp_path, *flags) as berlin:
        # One pod of each finds room; the other waits for what the other gang and they hold.
        await asyncio.to_thread(fill, worker, namespace, "theirs", 1)
        older = job("older", count=2, gpus=2, run_s="forever")
        await berlin.place(older, "n1")
        await eventually(lambda: _has(berlin, "older", 1))
        await berlin.place(job("younger", count=2, gpus=1, run_s="forever"), "n2")
        evicted = await berlin.until("younger", "Evicted")
        assert isinstance(evicted, Evicted)
        assert evicted.reason.startswith("half started for 3 s, as another gang is: it gives way")
        assert "Insufficient nvidia.com/gpu" in evicted.reason
        assert evicted.blameless
        assert await berlin.kinds("older") == ["Claimed"]
        let_go(worker, namespace, "theirs")
        running = await berlin.until("older", "Running")
        assert isinstance(running, Running)
        assert sorted(pod.node for pod in running.pods) == ["n1", "n2"]


async def _has(berlin: Site, name: str, pods: int) -> bool:
    found = await nodes_of(berlin, name)
    return sum(bool(node) for node in found) == pods


@story
async def test_kubernetes_own_gangs_start_whole_or_not_at_all(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[2]
    make_nodes(worker, [gpu_node("n1", gpus=4)])
    with alpha(worker):
        token = await asyncio.to_thread(with_its_role, worker, namespace)
        kubeconfig = worker.kubeconfig_with_token(token)
        async with site(worker, namespace, tmp_path, kubeconfig=kubeconfig) as berlin:
            await asyncio.to_thread(fill, worker, namespace, "theirs", 2)
            gang: dict[str, Any] = {"count": 4, "gpus": 1, "run_s": "forever"}
            attempt = await berlin.place(job(**gang), "n1")
            made = await berlin.job_of(attempt)
            await eventually(lambda: _waits(berlin, "train", 4))
            [group] = berlin.objects(POD_GROUPS)
            assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 4}}
            [owner] = group["metadata"]["ownerReferences"]
            assert owner["uid"] == made["metadata"]["uid"]
            await asyncio.sleep(1.0)
            assert await nodes_of(berlin, "train") == [""] * 4  # two would have found room
            let_go(worker, namespace, "theirs")
            await berlin.until("train", "Running")
            await berlin.cancel("train")
            await berlin.until("train", "Cancelled")
            await berlin.clean()
            await eventually(lambda: _none(berlin, POD_GROUPS))


async def _waits(berlin: Site, name: str, pods: int) -> bool:
    return await nodes_of(berlin, name) == [""] * pods


async def _none(berlin: Site, kind: Any) -> bool:
    return not await asyncio.to_thread(berlin.objects, kind)


@story
async def test_pod_groups_of_scheduler_plugins_are_made_where_they_may_be(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("n1", gpus=4)])
    worker.apply(documents(CRD))
    try:
        token = await asyncio.to_thread(with_its_role, worker, namespace)
        kubeconfig = worker.kubeconfig_with_token(token)
        gang: dict[str, Any] = {"count": 2, "gpus": 1}
        async with site(worker, namespace, tmp_path, kubeconfig=kubeconfig) as berlin:
            attempt = await berlin.place(job(run_s="8", **gang), "n1")
            made = await berlin.job_of(attempt)
            name = made["metadata"]["name"]
            labels = made["spec"]["template"]["metadata"]["labels"]
            assert labels["scheduling.x-k8s.io/pod-group"] == name
            await berlin.until("train", "Running")  # no scheduler waits for the group here
            async with asyncio.timeout(hang_s()):
                while not (groups := berlin.objects(COSCHEDULING_POD_GROUPS)):
                    await asyncio.sleep(0.05)
            [group] = groups
            assert (group["metadata"]["name"], group["spec"]) == (name, {"minMember": 2})
            [owner] = group["metadata"]["ownerReferences"]
            assert owner["uid"] == made["metadata"]["uid"]
            await berlin.until("train", "Succeeded")
            await berlin.clean()

            # In a life without that right none is made, and none is waited for.
            berlin.kill()
            role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/berthmaster-executor"
            rules = worker.api.get(role)["rules"]
            less = [rule for rule in rules if "scheduling.x-k8s.io" not in rule["apiGroups"]]
            worker.api.merge(role, {"rules": less})
            berlin.start()
            attempt = await berlin.place(job("plain", **gang), "n1")
            made = await berlin.job_of(attempt)
            assert "berthmaster.io/pod-group" not in made["metadata"]["annotations"]
            await berlin.until("plain", "Succeeded")
            assert "gang scheduling lacks rights" in berlin.words()
    finally:
        worker.api.delete(f"{DEFINITIONS}/podgroups.scheduling.x-k8s.io")


@story
async def test_where_volcano_is_served_a_gang_has_its_pod_group_in_a_queue_and_goes_with_it(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("n1", gpus=4)])
    worker.apply(documents(VOLCANO))
    try:
        token = await asyncio.to_thread(with_its_role, worker, namespace)
        kubeconfig = worker.kubeconfig_with_token(token)
        # No Volcano runs here: the usual scheduler starts its pods, and waits for no group.
        flags = ("--volcano-queue", "research", "--volcano-scheduler", "default-scheduler")
        async with site(worker, namespace, tmp_path, *flags, kubeconfig=kubeconfig) as berlin:
            attempt = await berlin.place(job(run_s="8", count=2, gpus=1), "n1")
            made = await berlin.job_of(attempt)
            name, template = made["metadata"]["name"], made["spec"]["template"]
            assert template["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == name
            await berlin.until("train", "Running")
            async with asyncio.timeout(hang_s()):
                while not (groups := berlin.objects(VOLCANO_POD_GROUPS)):
                    await asyncio.sleep(0.05)
            [group] = groups
            assert group["metadata"]["name"] == name
            assert group["spec"] == {"minMember": 2, "queue": "research"}
            await berlin.until("train", "Succeeded")
            await berlin.clean()
            await eventually(lambda: _none(berlin, VOLCANO_POD_GROUPS))
    finally:
        for one in VOLCANO_DEFINITIONS:
            worker.api.delete(f"{DEFINITIONS}/{one}")


class Volcano:
    """What Volcano's controller does of a Job, by hand and one step at a time: none runs here."""

    def __init__(self, berlin: Site, made: dict[str, Any]) -> None:
        self._api, self._job = berlin.plane.api, made
        metadata = made["metadata"]
        self._name, self._namespace = metadata["name"], metadata["namespace"]
        self.path = VOLCANO_JOB.resource.path(namespace=self._namespace, name=self._name)
        owner = {"kind": "Job", "name": self._name, "uid": metadata["uid"], "controller": True}
        self._owner = {**owner, "apiVersion": made["apiVersion"], "blockOwnerDeletion": True}

    def queue(self, phase: str, why: str = "") -> None:
        """Its PodGroup is there, and stands so."""
        groups = VOLCANO_POD_GROUPS.path(namespace=self._namespace)
        path = f"{groups}/{self._name}-{self._job['metadata']['uid']}"
        metadata = {
            "name": path.rpartition("/")[2],
            "labels": self._job["metadata"]["labels"],
            "annotations": self._job["metadata"].get("annotations", {}),
            "ownerReferences": [self._owner],
        }
        if self._api.find(path) is None:
            body = {"metadata": metadata, "spec": {"minMember": 2}}
            self._api.create(
                groups, {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", **body}
            )
        told = {"type": "Unschedulable", "status": "True", "reason": "NotEnough", "message": why}
        status = {"phase": phase, "conditions": [told] if why else []}
        self._api.merge(f"{path}/status", {"status": status})

    def make_pods(self) -> None:
        for task in self._job["spec"]["tasks"]:
            for index in range(task["replicas"]):
                metadata = dict(task["template"]["metadata"])
                numbered = {"volcano.sh/task-index": str(index)}
                metadata["annotations"] = metadata.get("annotations", {}) | numbered
                metadata["name"] = f"{self._name}-{task['name']}-{index}"
                metadata["ownerReferences"] = [self._owner]
                pod = {"metadata": metadata, "spec": task["template"]["spec"]}
                self._api.create(f"/api/v1/namespaces/{self._namespace}/pods", pod)

    def stands(self, phase: str, message: str = "") -> None:
        state = {"phase": phase, "message": message}
        self._api.merge(f"{self.path}/status", {"status": {"state": state}})


async def volcano_of(berlin: Site, name: str) -> Volcano:
    attempt = await berlin.place(job(name, count=2, gpus=1, run_s="forever"), "n1")
    return Volcano(berlin, await berlin.job_of(attempt, VOLCANO_JOB))


@story
async def test_jobs_of_volcano_s_are_made_and_what_becomes_of_them_is_told(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("n1", gpus=4)])
    worker.apply(documents(VOLCANO))
    try:
        token = await asyncio.to_thread(with_its_role, worker, namespace)
        kubeconfig = worker.kubeconfig_with_token(token)
        flags = ("--jobs", "volcano", "--volcano-scheduler", "default-scheduler")
        async with site(worker, namespace, tmp_path, *flags, kubeconfig=kubeconfig) as berlin:
            # In its queue, and let in while the executor is dead.
            train = await volcano_of(berlin, "train")
            train.queue("Pending", "queue default is full")
            berlin.kill()
            train.queue("Inqueue")
            train.make_pods()
            train.stands("Running")
            berlin.start()
            admitted = await berlin.until("train", "Admitted")
            running = await berlin.until("train", "Running")
            assert isinstance(admitted, Admitted)
            assert isinstance(running, Running)
            assert [each.pod for each in running.pods] == ["main-0", "main-1"]
            # Cancelled: object and pods go, and nobody makes them again.
            await berlin.cancel("train")
            await berlin.until("train", "Cancelled")
            await eventually(lambda: _none(berlin, VOLCANO_JOB.resource))
            await berlin.clean()

            # Volcano takes a pod away for another, terminates the rest, and says so.
            taken = await volcano_of(berlin, "taken")
            taken.make_pods()
            taken.stands("Running")
            await berlin.until("taken", "Running")
            for index in range(2):
                path = f"/api/v1/namespaces/{namespace}/pods/{taken.path.rpartition('/')[2]}"
                worker.api.delete(f"{path}-s0-{index}", gracePeriodSeconds=0)
            taken.stands("Terminated", "preempted")
            evicted = await berlin.until("taken", "Evicted")
            assert isinstance(evicted, Evicted)
            assert (evicted.fault, evicted.blameless) == ("evicted", False)
            await eventually(lambda: _none(berlin, VOLCANO_JOB.resource))
    finally:
        for one in VOLCANO_DEFINITIONS:
            worker.api.delete(f"{DEFINITIONS}/{one}")
