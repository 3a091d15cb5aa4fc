"""The runtime `ray` where KubeRay is served: RayJobs by KubeRay's own definition, on real servers.

KubeRay's controller does not run here: the test makes the pods from the groups of the RayJob, says
what Ray says, and removes the pods when the RayJob is over or suspended, as KubeRay does.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from berthmaster.lab.controlplane.compiling import Unavailable
from berthmaster.lab.controlplane.nodes import gpu_node, make_nodes
from berthmaster.lab.controlplane.plane import Plane
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.jobs.kinds.job import JOB
from berthmaster.lib.jobs.kinds.ray_job import RAY_JOB
from berthmaster.lib.messages.runtimes import Runtime
from berthmaster.lib.messages.workload import Cancelled, JobRequest, Running, RunSpec
from berthmaster.lib.requests.builtin_runtimes import BUILT_IN
from berthmaster.lib.requests.runtimes import filled_in
from berthmaster.worker.executor.core.affinity import Offers
from berthmaster.worker.executor.core.manifest import Style, document
from tests.bus.tools import eventually, story
from tests.cluster.executing import Site, job, site
from tests.controlplane.frameworks import definitions
from tests.support.patience import wait_until
from tests.unit.worker.executor.test_ray import groups_of, order


@pytest.fixture
def served(planes: Planes) -> Iterator[Plane]:
    """A worker that serves KubeRay, which the other tests do not know."""
    try:
        crds = definitions(["ray.io/rayjob"])
    except Unavailable as error:
        pytest.skip(str(error))
    worker = planes.workers[0]
    worker.apply(crds)
    try:
        # Objects can be made before the kind is listed, and the executor goes by the list.
        wait_until(lambda: RAY_JOB.resource.plural in listed(worker), "RayJobs are among the kinds")
        yield worker
    finally:
        worker.withdraw(crds)


def listed(worker: Plane) -> set[str]:
    found = worker.api.find(f"/apis/{RAY_JOB.resource.group_version}")
    return {each["name"] for each in found["resources"]} if found else set()


def ray_job() -> JobRequest:
    run = RunSpec(
        image="example.org/ray:1", args=("train.py",), env={"BERTH_TEST_RUN_S": "forever"}
    )
    asked = replace(job(count=2), runtime=Runtime(name="ray"), run=run)
    full = filled_in(asked, "acme", BUILT_IN)
    assert isinstance(full, JobRequest)
    return full


class KubeRay:
    """What its controller would do about one RayJob."""

    def __init__(self, berlin: Site, made: dict[str, Any]) -> None:
        self._api = berlin.plane.api
        self._made = made
        self._name = made["metadata"]["name"]
        self._pods = f"/api/v1/namespaces/{berlin.namespace}/pods"
        self._job = RAY_JOB.resource.path(namespace=berlin.namespace, name=self._name)

    def make_pods(self) -> None:
        owner = {"apiVersion": "ray.io/v1", "kind": "RayJob", "name": self._name}
        owner["uid"] = self._made["metadata"]["uid"]
        for number, group in enumerate(groups_of(self._made)):
            named = {"name": f"{self._name}-{number}", "ownerReferences": [owner]}
            template = group["template"]
            metadata = {**template["metadata"], **named}
            self._api.create(self._pods, {"metadata": metadata, "spec": template["spec"]})

    def remove_pods(self) -> None:
        for number in range(len(groups_of(self._made))):
            self._api.delete(f"{self._pods}/{self._name}-{number}")

    def says(self, **status: str) -> None:
        self._api.merge(f"{self._job}/status", {"status": status})

    async def asked_to_suspend(self) -> None:
        async def so() -> bool:
            found = await asyncio.to_thread(self._api.get, self._job)
            return bool(found["spec"].get("suspend"))

        await eventually(so)


async def gone(berlin: Site) -> None:
    async def nothing() -> bool:
        return not await asyncio.to_thread(berlin.objects, RAY_JOB.resource)

    await eventually(nothing)
    await berlin.clean()


@story
async def test_a_rayjob_is_made_told_of_and_removed_and_one_that_is_cancelled_is_suspended(
    served: Plane, namespace: str, tmp_path: Path
) -> None:
    make_nodes(served, [gpu_node("n0"), gpu_node("n1")])
    async with site(served, namespace, tmp_path) as berlin:
        request = ray_job()
        attempt = await berlin.place(request, "n0", "n1")
        made = await berlin.job_of(attempt, RAY_JOB)
        assert berlin.objects() == []  # no Job of ours
        # KubeRay's definition has a field for all that we say: nothing was left out.
        told = document(order(request), None, Offers(), Style(kinds=(JOB, RAY_JOB)))["spec"]
        assert holds(made["spec"], told) == []

        kuberay = KubeRay(berlin, made)
        kuberay.says(jobDeploymentStatus="Initializing")
        kuberay.make_pods()
        running = await berlin.until("train", "Running")
        assert isinstance(running, Running)
        assert [each.pod for each in running.pods] == ["main-0", "main-1"]
        kuberay.says(jobDeploymentStatus="Complete", jobStatus="SUCCEEDED")
        kuberay.remove_pods()
        await berlin.until("train", "Succeeded")
        assert await berlin.kinds("train") == ["Claimed", "Running", "Succeeded"]
        await gone(berlin)

        other = replace(request, id="other")
        attempt = await berlin.place(other, "n0", "n1")
        kuberay = KubeRay(berlin, await berlin.job_of(attempt, RAY_JOB))
        kuberay.says(jobDeploymentStatus="Initializing")
        kuberay.make_pods()
        await berlin.until("other", "Running")
        await berlin.cancel("other", "typo")
        await kuberay.asked_to_suspend()
        kuberay.says(jobDeploymentStatus="Suspending")
        kuberay.remove_pods()
        kuberay.says(jobDeploymentStatus="Suspended")
        ending = await berlin.until("other", "Cancelled")
        assert isinstance(ending, Cancelled)
        await gone(berlin)


def holds(has: Any, wanted: Any, where: str = "spec") -> list[str]:
    """What of this is missing in what the API server keeps, but for names and places."""
    if isinstance(wanted, dict):
        found = [] if isinstance(has, dict) else [where]
        for key, value in wanted.items():
            if key not in ("affinity", "annotations", "labels"):
                inner = f"{where}.{key}"
                found += holds(has[key], value, inner) if key in has else [inner]
        return found
    if isinstance(wanted, list):
        if len(has) != len(wanted):
            return [where]
        pairs = zip(has, wanted, strict=True)
        return [one for n, (a, b) in enumerate(pairs) for one in holds(a, b, f"{where}[{n}]")]
    return [] if has == wanted else [f"{where}: {has!r} is not {wanted!r}"]
