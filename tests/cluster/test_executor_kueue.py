"""The executor beside its worker's own Kueue: what is preempted or evicted there is told and given
back, as is what is not let in in time, and each is placed anew."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from berthmaster.lab.controlplane.kueue import builders
from berthmaster.lab.controlplane.kueue.setup import API, Kueue, kueue
from berthmaster.lab.controlplane.nodes import gpu_node, make_nodes
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.messages.placement import PodBinding, Target
from berthmaster.lib.messages.workload import Evicted, JobRequest, Placed
from berthmaster.worker.executor.core.executor import BACK_IN_QUEUE
from tests.bus.tools import eventually, story
from tests.cluster.executing import CLUSTER, TENANT, Site, job, site

QUIET_S = 2.5  # long enough for what must not happen
GPUS = 4  # what the worker's queue grants; its node has twice as many


@asynccontextmanager
async def queued(
    planes: Planes, namespace: str, folder: Path, *flags: str
) -> AsyncIterator[tuple[Site, Kueue]]:
    """An executor in a worker whose Kueue grants four GPUs, to the more important first."""
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("n1", gpus=2 * GPUS)])
    quota = {"default": {"cpu": "100", "memory": "1Ti", "nvidia.com/gpu": str(GPUS)}}
    async with kueue(planes, namespace, worker_quotas={worker.name: quota}) as k:
        preempt = {"spec": {"preemption": {"withinClusterQueue": "LowerPriority"}}}
        worker.api.merge(f"{API}/clusterqueues/{k.cluster_queue}", preempt)
        async with site(worker, namespace, folder, *flags) as berlin:
            berlin.target = Target(via="worker", namespace=namespace, local_queue=k.queue)
            yield berlin, k


async def place_again(berlin: Site, request: JobRequest, attempt: int) -> None:
    """As the resolver places what was given back."""
    await berlin.append(
        Placed(
            tenant=TENANT,
            id=request.id,
            after=(await berlin.read(request.id)).sequence,
            at_s=3.0,
            by="resolver",
            cluster=CLUSTER,
            attempt=attempt,
            pods=(PodBinding(pod="main-0", node="n1"),),
            request=request,
            decision=attempt,
            submitted_at_s=1.5,
            target=berlin.target,
        )
    )


async def until_told(berlin: Site, *tail: str) -> None:
    """Until its story ends like this, wherever its pods were seen."""

    async def so() -> bool:
        kinds = [kind for kind in await berlin.kinds("train") if kind != "Running"]
        return kinds[-len(tail) :] == list(tail)

    try:
        await eventually(so)
    except AssertionError as error:
        told = await berlin.events("train")
        raise AssertionError(f"{error}\n{told}\n{berlin.words()}") from error


async def reasons(berlin: Site) -> list[str]:
    """Why it was given back, each time."""
    return [e.reason for e in await berlin.events("train") if isinstance(e, Evicted)]


def jobs_made(berlin: Site, mark: int) -> int:
    """How many Jobs the executor has made since."""
    calls = berlin.plane.audit.calls(since=mark, user_agent="berthmaster-executor")
    return sum((c.verb, c.resource, c.status) == ("create", "jobs.batch", 201) for c in calls)


def running(berlin: Site) -> list[str]:
    """Whose pods run."""
    return [
        pod["metadata"]["labels"].get("berthmaster.io/workload", "theirs")
        for pod in berlin.pods()
        if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
    ]


async def until_running(berlin: Site, *names: str) -> None:
    async def so() -> bool:
        return await asyncio.to_thread(running, berlin) == list(names)

    await eventually(so)


def urgent(namespace: str, k: Kueue) -> dict[str, Any]:
    """A Job that somebody makes with kubectl, more important than ours."""
    return builders.job(
        namespace,
        "urgent",
        k.queue,
        requests={"cpu": "1", "nvidia.com/gpu": str(GPUS)},
        on_hub=False,
        labels={"kueue.x-k8s.io/priority-class": "urgent"},
    )


@story
async def test_what_kueue_preempts_is_given_back_and_runs_when_there_is_room_for_it_again(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    async with queued(planes, namespace, tmp_path, "--queue-limit-s", "5") as (berlin, k):
        api = berlin.plane.api
        mark = berlin.plane.audit.mark()
        request = job(gpus=GPUS, run_s="forever")
        await berlin.place(request, "n1", target=berlin.target)
        await berlin.until("train", "Running")
        api.apply(builders.priority_class("urgent", 1000))
        jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        api.create(jobs, urgent(namespace, k))
        await until_told(berlin, "Claimed", "Admitted", "Evicted")
        await until_running(berlin, "theirs")

        # Placed here again it is not let in, and goes back once more.
        await place_again(berlin, request, 2)
        await until_told(berlin, "Placed", "Claimed", "Evicted")
        assert running(berlin) == ["theirs"]
        late = "its cluster's queue did not let it in within 5 s"
        assert await reasons(berlin) == [BACK_IN_QUEUE, late]

        api.delete(f"{jobs}/urgent")
        await until_running(berlin)
        await place_again(berlin, request, 3)
        await until_running(berlin, "train")
        await until_told(berlin, "Claimed", "Admitted")  # its pods may run before that is told
        await berlin.cancel("train")
        await until_told(berlin, "Admitted", "CancelRequested", "Cancelled")
        assert jobs_made(berlin, mark) == 3  # one an attempt
        await berlin.clean()


@story
async def test_what_kueue_evicts_is_given_back_and_does_not_come_back_by_itself(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    async with queued(planes, namespace, tmp_path) as (berlin, k):
        mark = berlin.plane.audit.mark()
        request = job(gpus=GPUS, run_s="forever")
        await berlin.place(request, "n1", target=berlin.target)
        await berlin.until("train", "Running")
        k.stop_queue(berlin.plane.name, "HoldAndDrain")
        await until_told(berlin, "Claimed", "Admitted", "Evicted")
        assert await reasons(berlin) == [BACK_IN_QUEUE]
        k.stop_queue(berlin.plane.name, "None")
        await berlin.clean()
        await asyncio.sleep(QUIET_S)
        assert berlin.objects() == []

        await place_again(berlin, request, 2)
        await until_running(berlin, "train")
        await until_told(berlin, "Claimed", "Admitted")
        await berlin.cancel("train")
        await until_told(berlin, "Claimed", "Admitted", "CancelRequested", "Cancelled")
        assert jobs_made(berlin, mark) == 2
        await berlin.clean()
