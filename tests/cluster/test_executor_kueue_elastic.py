"""Jobs whose number of pods changes, in a worker whose own Kueue starts them: they grow by a second
Workload that replaces the first once it is let in, and shrink in place."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from berthmaster.lab.controlplane.api import documents
from berthmaster.lab.controlplane.kueue import builders
from berthmaster.lab.controlplane.kueue.managers import Options
from berthmaster.lab.controlplane.kueue.setup import API, ELASTIC_POLICY, Kueue, kueue
from berthmaster.lab.controlplane.nodes import gpu_node, make_nodes
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.messages.placement import PodBinding, Target
from berthmaster.lib.messages.workload import Admitted, Evicted, JobRequest, Resized
from berthmaster.worker.executor.core.executor import BACK_IN_QUEUE
from tests.bus.tools import eventually, story
from tests.cluster.executing import Site, job, site

GPUS: Final = 4  # what the worker's queue grants; its node has twice as many
ELASTIC: Final = "kueue.x-k8s.io/elastic-job"
PARTIAL: Final = "kueue.x-k8s.io/job-min-parallelism"
NOT_LET_IN: Final = "not all pods ran within {} s: pod main-{}: Kueue has not let in so many: "


@asynccontextmanager
async def queued(
    planes: Planes, namespace: str, folder: Path, *flags: str, **options: Any
) -> AsyncIterator[tuple[Site, Kueue]]:
    """An executor in a worker whose Kueue grants four GPUs, to the more important first."""
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("n1", gpus=2 * GPUS)])
    quota = {"default": {"cpu": "100", "memory": "1Ti", "nvidia.com/gpu": str(GPUS)}}
    quotas = {worker.name: quota}
    async with kueue(planes, namespace, worker_quotas=quotas, options=Options(**options)) as k:
        preempt = {"spec": {"preemption": {"withinClusterQueue": "LowerPriority"}}}
        worker.api.merge(f"{API}/clusterqueues/{k.cluster_queue}", preempt)
        async with site(worker, namespace, folder, *flags) as berlin:
            berlin.target = Target(via="worker", namespace=namespace, local_queue=k.queue)
            yield berlin, k


def elastic(count: int) -> JobRequest:
    return job(count=count, gpus=1, run_s="forever", min_count=1, max_count=8)


def pods(count: int) -> tuple[PodBinding, ...]:
    return tuple(PodBinding(pod=f"main-{n}", node="n1") for n in range(count))


async def begin(berlin: Site, count: int) -> bool:
    """It runs; whether its number may change."""
    await berlin.place(elastic(count), "n1", target=berlin.target)
    admitted = await berlin.until("train", "Admitted")
    await berlin.until("train", "Running")
    assert isinstance(admitted, Admitted)
    return admitted.resizable


async def resized(berlin: Site, times: int) -> tuple[int, str]:
    """How many pods it has after so many changes, and why not as many as were ordered."""
    told = await berlin.until("train", "Resized", times=times)
    assert isinstance(told, Resized)
    names = [each.pod for each in told.pods]
    assert names == [f"main-{n}" for n in range(len(names))]
    return len(names), told.reason


def used(berlin: Site, k: Kueue) -> int:
    """GPUs that the worker's Kueue counts as reserved."""
    queue = berlin.plane.api.get(f"{API}/clusterqueues/{k.cluster_queue}")
    [flavor] = queue["status"]["flavorsReservation"]
    return next(int(r["total"]) for r in flavor["resources"] if r["name"] == "nvidia.com/gpu")


def slices(berlin: Site) -> list[tuple[int, bool]]:
    """Workloads that are not over: pods, and whether they have quota."""
    found = []
    for each in berlin.plane.api.items(f"{API}/namespaces/{berlin.namespace}/workloads"):
        told = {c["type"]: c["status"] for c in each.get("status", {}).get("conditions", ())}
        if told.get("Finished") != "True":
            count: int = each["spec"]["podSets"][0]["count"]
            found.append((count, told.get("QuotaReserved") == "True"))
    return sorted(found)


def uids(berlin: Site) -> set[str]:
    return {pod["metadata"]["uid"] for pod in berlin.pods()}


async def until(ask: Any, *args: Any, is_: Any) -> None:
    async def so() -> bool:
        return bool(await asyncio.to_thread(ask, *args) == is_)

    try:
        await eventually(so)
    except AssertionError as error:
        raise AssertionError(f"{error}: {ask(*args)}, not {is_}") from error


def running(berlin: Site) -> list[str]:
    """Whose pods run."""
    return sorted(
        pod["metadata"]["labels"].get("berthmaster.io/workload", "theirs")
        for pod in berlin.pods()
        if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
    )


def theirs(berlin: Site, k: Kueue, gpus: int, **labels: str) -> None:
    """A Job that somebody makes with kubectl."""
    body = builders.job(
        berlin.namespace,
        "theirs",
        k.queue,
        requests={"cpu": "1", "nvidia.com/gpu": str(gpus)},
        on_hub=False,
        labels=labels,
    )
    berlin.plane.api.create(f"/apis/batch/v1/namespaces/{berlin.namespace}/jobs", body)


@story
async def test_it_grows_shrinks_for_another_and_lets_go_of_what_is_not_let_in(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    async with queued(planes, namespace, tmp_path) as (berlin, k):
        assert await begin(berlin, 2)
        [made] = berlin.objects()
        told = made["metadata"]["annotations"]
        assert (told[ELASTIC], PARTIAL in told) == ("true", False)
        first = uids(berlin)

        # Four, while its executor is killed. The first slice gives way to the second, and no pod of
        # it is touched. For a moment Kueue may count both.
        await berlin.resize("train", pods(4))
        berlin.restart()
        assert await resized(berlin, 1) == (4, "")
        await until(slices, berlin, is_=[(4, True)])
        assert first <= uids(berlin)
        await until(used, berlin, k, is_=4)

        # One, killed again: three are free for another, and nobody was ended for it.
        berlin.proxy.delay_s = 30.0
        await berlin.resize("train", pods(1))
        await asyncio.sleep(1.0)
        berlin.kill()
        berlin.proxy.delay_s = 0.0
        assert berlin.objects()[0]["spec"]["parallelism"] == 4
        berlin.start()
        assert await resized(berlin, 2) == (1, "")
        theirs(berlin, k, 3)
        await until(running, berlin, is_=["theirs", "train"])
        await until(used, berlin, k, is_=4)

        # Three, for which there is no quota: it stays as it was, and gives back what it was to get.
        berlin.flags = ("--start-limit-s", "10")
        berlin.restart()
        await berlin.resize("train", pods(3))
        await until(slices, berlin, is_=[(1, True), (1, True), (3, False)])
        count, why = await resized(berlin, 3)
        assert (count, why.startswith(NOT_LET_IN.format(10, 1))) == (1, True), why
        assert "insufficient" in why
        await until(slices, berlin, is_=[(1, True), (1, True)])
        assert (running(berlin), used(berlin, k)) == (["theirs", "train"], 4)

        # What Kueue evicts is given back as any other job is.
        k.stop_queue(berlin.plane.name, "HoldAndDrain")
        evicted = await berlin.until("train", "Evicted")
        assert isinstance(evicted, Evicted)
        assert evicted.reason == BACK_IN_QUEUE
        await until(running, berlin, is_=[])


@story
async def test_what_kueue_takes_back_while_it_grows_is_given_back_whole(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    async with queued(planes, namespace, tmp_path) as (berlin, k):
        berlin.plane.api.apply(builders.priority_class("urgent", 1000))
        assert await begin(berlin, 2)
        await berlin.resize("train", pods(6))  # more than is granted
        await until(slices, berlin, is_=[(2, True), (6, False)])
        theirs(berlin, k, 4, **{"kueue.x-k8s.io/priority-class": "urgent"})
        evicted = await berlin.until("train", "Evicted")
        assert isinstance(evicted, Evicted)
        assert evicted.reason == BACK_IN_QUEUE
        await until(running, berlin, is_=["theirs"])
        await until(slices, berlin, is_=[(1, True)])


def webhook(kind: str, path: str, folder: Path, *operations: str) -> dict[str, Any]:
    """One of the manager's own, as Kueue's installation registers it for Jobs."""
    port = yaml.safe_load((folder / "configuration.yaml").read_text())["webhook"]["port"]
    authority = (folder / "certificates" / "ca.crt").read_bytes()
    rule = {"apiGroups": ["batch"], "apiVersions": ["v1"], "resources": ["jobs"]}
    made = {
        "name": f"{path[1]}job.kb.io",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "clientConfig": {
            "url": f"https://127.0.0.1:{port}{path}",
            "caBundle": base64.b64encode(authority).decode(),
        },
        "rules": [rule | {"operations": list(operations)}],
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{kind}WebhookConfiguration",
        "metadata": {"name": f"kueue-{kind.lower()}-jobs"},
        "webhooks": [made],
    }


@story
async def test_kueues_own_webhooks_answer_a_dry_run_and_let_its_number_change(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    async with queued(planes, namespace, tmp_path) as (berlin, _):
        api, folder = berlin.plane.api, berlin.plane.folder / "kueue"
        for document in documents(ELASTIC_POLICY):  # it stands in for them otherwise
            api.delete(api.path_of(document))
        hooks = (
            webhook("Mutating", "/mutate-batch-v1-job", folder, "CREATE"),
            webhook("Validating", "/validate-batch-v1-job", folder, "CREATE", "UPDATE"),
        )
        try:
            for each in hooks:
                api.apply(each)
            await asyncio.sleep(2.0)  # the API server hears of them by a watch of its own
            assert await begin(berlin, 2)
            for times, count in enumerate((4, 1), 1):
                await berlin.resize("train", pods(count))
                assert await resized(berlin, times) == (count, "")
        finally:
            for each in hooks:
                api.delete(api.path_of(each))
        await berlin.cancel("train")
        await berlin.until("train", "Cancelled")


@story
async def test_a_kueue_that_has_no_elastic_jobs_lets_it_start_with_fewer(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    async with queued(planes, namespace, tmp_path, elastic_jobs=False) as (berlin, k):
        theirs(berlin, k, 3)
        await until(running, berlin, is_=["theirs"])
        assert not await begin(berlin, 2)
        [ours] = [one for one in berlin.objects() if one["metadata"]["name"] != "theirs"]
        told = ours["metadata"]["annotations"]
        assert (ELASTIC in told, told[PARTIAL]) == (False, "1")
        assert (ours["spec"]["parallelism"], slices(berlin)[0]) == (1, (1, True))
        await berlin.cancel("train")
        await berlin.until("train", "Cancelled")
