"""Jobs of ours under Volcano's own controllers, scheduler and admission: all that they say of them
is read rightly, and whatever is refused, evicted or killed ends or goes on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from berthmaster.lab.controlplane.nodes import gpu_node, make_nodes, wait_open
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.jobs.kinds.volcano_job import VOLCANO_JOB
from berthmaster.lib.kube.resources import JOBS, VOLCANO_JOBS, VOLCANO_POD_GROUPS, Resource
from berthmaster.lib.messages.workload import Evicted, Failed, PodSet, Running
from tests.bus.tools import eventually, story
from tests.cluster.executing import Site, job, site
from tests.cluster.real_volcano import WHY_NOT, Volcano, is_named, volcano
from tests.cluster.test_executor_rights import with_its_role

pytestmark = [
    pytest.mark.skipif(not is_named(), reason=WHY_NOT),
]
MADE = ("--jobs", "volcano")


@asynccontextmanager
async def under_volcano(
    planes: Planes, namespace: str, folder: Path, *flags: str, nodes: tuple[int, ...] = (4,)
) -> AsyncIterator[tuple[Site, Volcano]]:
    """An executor with its Role in a worker that runs Volcano, with so many GPUs on each node."""
    worker = planes.workers[0]
    made = [gpu_node(f"n{number}", gpus=gpus) for number, gpus in enumerate(nodes, 1)]
    wait_open(worker, make_nodes(worker, made))
    with volcano(worker) as running:
        token = await asyncio.to_thread(with_its_role, worker, namespace)
        kubeconfig = worker.kubeconfig_with_token(token)
        async with site(worker, namespace, folder, *flags, kubeconfig=kubeconfig) as berlin:
            yield berlin, running


async def pods_of(berlin: Site, name: str) -> dict[str, str]:
    """Its pods: names, and the nodes that they have."""
    found = await asyncio.to_thread(berlin.pods)
    mine = [
        one for one in found if one["metadata"]["labels"].get("berthmaster.io/workload") == name
    ]
    return {one["metadata"]["uid"]: one["spec"].get("nodeName", "") for one in mine}


async def group_of(berlin: Site, name: str) -> dict[str, Any]:
    """Its PodGroup, once the scheduler has said how it stands."""
    found: list[dict[str, Any]] = []

    async def there() -> bool:
        groups = await asyncio.to_thread(berlin.objects, VOLCANO_POD_GROUPS)
        found[:] = [
            one for one in groups if one["metadata"]["labels"]["berthmaster.io/workload"] == name
        ]
        return bool(found and found[0].get("status", {}).get("phase"))

    await eventually(there)
    return found[0]


async def evicted(berlin: Site, name: str) -> Evicted:
    event = await berlin.until(name, "Evicted")
    assert isinstance(event, Evicted)
    return event


def abort(berlin: Site, made: dict[str, Any]) -> None:
    """As `vcctl job suspend` does."""
    of = {key: made[key] for key in ("apiVersion", "kind")}
    of |= {key: made["metadata"][key] for key in ("name", "uid")}
    berlin.plane.api.create(
        f"/apis/bus.volcano.sh/v1alpha1/namespaces/{berlin.namespace}/commands",
        {
            "apiVersion": "bus.volcano.sh/v1alpha1",
            "kind": "Command",
            "metadata": {"name": "abort"},
            "action": "AbortJob",
            "target": of,
        },
    )


async def none_left(berlin: Site, *kinds: Resource) -> None:
    for kind in kinds:

        async def gone(kind: Resource = kind) -> bool:
            return not await asyncio.to_thread(berlin.objects, kind)

        await eventually(gone)
    await berlin.clean()


@story
async def test_pods_gangs_and_several_pod_sets_run_and_end_whatever_is_killed(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    async with under_volcano(planes, namespace, tmp_path, *MADE) as (berlin, _):
        sets = (PodSet(name="a", count=2, gpus=1), PodSet(name="b"))
        for request in (job("alone"), job("gang", count=4), job("sets", pod_sets=sets)):
            attempt = await berlin.place(request, "n1")
            await berlin.job_of(attempt, VOLCANO_JOB)
            running = await berlin.until(request.id, "Running")
            assert isinstance(running, Running)
            names = [f"{one.name}-{n}" for one in request.pod_sets for n in range(one.count)]
            assert [one.pod for one in running.pods] == names
            assert {one.node for one in running.pods} == {"n1"}
            await berlin.until(request.id, "Succeeded")
            assert await berlin.kinds(request.id) == ["Claimed", "Admitted", "Running", "Succeeded"]

        # A pod that fails ends all of it, and the one that Volcano keeps says why.
        await berlin.place(job("bad", count=2, run_s="1", exit_code=3), "n1")
        failed = await berlin.until("bad", "Failed")
        assert isinstance(failed, Failed)
        assert (failed.exit_code, failed.fault) == (3, "exit")
        await none_left(berlin, VOLCANO_JOBS, VOLCANO_POD_GROUPS)

        # Somebody aborts one: it may be resumed there, but is not ours to wait for.
        attempt = await berlin.place(job("aborted", count=2, run_s="forever"), "n1")
        made = await berlin.job_of(attempt, VOLCANO_JOB)
        await berlin.until("aborted", "Running")
        await asyncio.to_thread(abort, berlin, made)
        assert (await evicted(berlin, "aborted")).reason == "somebody suspended its job object"
        await none_left(berlin, VOLCANO_JOBS, VOLCANO_POD_GROUPS)

        # The executor is killed while it starts and while it runs: its pods are the same ones.
        attempt = await berlin.place(job("long", count=2, run_s="forever"), "n1")
        await berlin.job_of(attempt, VOLCANO_JOB)
        berlin.restart()
        await berlin.until("long", "Running")
        before = await pods_of(berlin, "long")
        berlin.restart()
        await berlin.cancel("long")
        await berlin.until("long", "Cancelled")
        assert len(before) == 2
        assert await berlin.kinds("long") == [
            *("Claimed", "Admitted", "Running", "CancelRequested", "Cancelled")
        ]
        await none_left(berlin, VOLCANO_JOBS, VOLCANO_POD_GROUPS)


@story
async def test_what_its_queue_has_no_room_for_waits_there_and_says_so(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    flags = (*MADE, "--volcano-queue", "small", "--queue-limit-s", "10", "--start-limit-s", "10")
    async with under_volcano(planes, namespace, tmp_path, *flags, nodes=(2, 2)) as (berlin, v):
        room = {"nvidia.com/gpu": "3", "cpu": "50", "memory": "500Gi"}
        await asyncio.to_thread(v.queue, "small", capability=room)
        await berlin.place(job("first", count=2, run_s="forever"), "n1")
        await berlin.until("first", "Running")

        # Not let in: it is given back in time, in words that lead to Volcano's own.
        await berlin.place(job("second", count=2, run_s="forever"), "n1")
        group = await group_of(berlin, "second")
        assert (group["status"], group["spec"]["queue"]) == ({"phase": "Pending"}, "small")
        given_back = await evicted(berlin, "second")
        name = group["metadata"]["name"]
        assert given_back.reason.endswith(
            "Volcano's queue small has not let it in: "
            f"`kubectl describe podgroup -n {namespace} {name}` says why"
        )
        assert await berlin.kinds("second") == ["Claimed", "Evicted"]

        # The next one waits while the executor is dead, and is let in once the first is gone.
        attempt = await berlin.place(job("third", count=2, run_s="forever"), "n1")
        await berlin.job_of(attempt, VOLCANO_JOB)
        berlin.restart()
        await berlin.cancel("first")
        await berlin.until("first", "Cancelled")
        await berlin.until("third", "Running")
        await berlin.cancel("third")
        await berlin.until("third", "Cancelled")

        # Let in, and no node has room: in the words of Volcano's scheduler.
        await berlin.place(job("big", gpus=3, run_s="forever"), "n1")
        given_back = await evicted(berlin, "big")
        assert "0/2 nodes are unavailable: 2 Insufficient nvidia.com/gpu" in given_back.reason
        assert given_back.fault == "late"


@story
async def test_what_volcano_takes_back_for_another_queue_is_given_back_in_its_words(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    flags = (*MADE, "--volcano-queue", "ours")
    async with under_volcano(planes, namespace, tmp_path, *flags) as (berlin, v):
        for queue in ("ours", "theirs"):
            await asyncio.to_thread(v.queue, queue)
        kept = job("kept", count=2, run_s="forever")
        lent = job("lent", count=2, run_s="forever")
        for request in (replace(kept, preemptible=False), lent):
            await berlin.place(request, "n1")
            await berlin.until(request.id, "Running")

        # Both hold what is theirs by weight. One of them may not be taken.
        claim = {"nvidia.com/gpu": "2", "cpu": "1"}
        pod = {"containers": [{"name": "x", "image": "x", "resources": {"limits": claim}}]}
        task = {"name": "x", "replicas": 1, "template": {"spec": pod}}
        spec = {"minAvailable": 1, "queue": "theirs", "schedulerName": "volcano", "tasks": [task]}
        made = {"apiVersion": VOLCANO_JOBS.group_version, "kind": "Job", "spec": spec}
        path = VOLCANO_JOBS.path(namespace=namespace)
        berlin.plane.api.create(path, made | {"metadata": {"name": "claim"}})
        taken = await evicted(berlin, "lent")
        assert "PreemptionByScheduler: volcano: preempting" in taken.reason
        assert (taken.fault, taken.blameless) == ("preempted", False)
        assert await berlin.kinds("kept") == ["Claimed", "Admitted", "Running"]
        assert sorted((await pods_of(berlin, "kept")).values()) == ["n1", "n1"]


@story
async def test_what_volcanos_admission_refuses_is_told_in_its_words(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    flags = ("--volcano-queue", "nowhere")
    async with under_volcano(planes, namespace, tmp_path, *MADE, *flags) as (berlin, _):
        await berlin.place(job("train", count=2), "n1")
        refused = await evicted(berlin, "train")
        assert 'unable to find job queue: queue.scheduling.volcano.sh "nowhere"' in refused.reason
        assert await berlin.kinds("train") == ["Claimed", "Evicted"]
        await none_left(berlin, VOLCANO_JOBS, VOLCANO_POD_GROUPS)
        berlin.kill()

        # Of a Job of Kubernetes' it refuses the PodGroup.
        (tmp_path / "plain").mkdir()
        async with site(berlin.plane, namespace, tmp_path / "plain", *flags) as plain:
            await plain.place(job("train", count=2), "n1")
            refused = await evicted(plain, "train")
            assert 'unable to find queue: queue.scheduling.volcano.sh "nowhere"' in refused.reason
            await none_left(plain, JOBS)


@story
async def test_jobs_of_kubernetes_start_in_a_pod_group_of_as_many_as_they_need(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    async with under_volcano(planes, namespace, tmp_path) as (berlin, _):
        for request in (job("alone", run_s="2"), job("gang", count=4, run_s="2")):
            attempt = await berlin.place(request, "n1")
            await berlin.job_of(attempt)
            await berlin.until(request.id, "Running")
            await berlin.until(request.id, "Succeeded")
        await none_left(berlin, VOLCANO_POD_GROUPS)

        # Of two gangs that half fit one runs; of the other no pod has a node.
        await berlin.place(job("one", count=3, run_s="forever"), "n1")
        await berlin.until("one", "Running")
        await berlin.place(job("two", count=2, run_s="forever"), "n1")
        group = await group_of(berlin, "two")
        assert group["spec"]["minMember"] == 2
        await eventually(lambda: _has(berlin, "two", ["", ""]))

        # One whose number varies starts with what it needs at least.
        await berlin.cancel("two")
        await berlin.until("two", "Cancelled")
        await berlin.place(job("elastic", count=3, min_count=1, run_s="forever"), "n1")
        assert (await group_of(berlin, "elastic"))["spec"]["minMember"] == 1
        await eventually(lambda: _has(berlin, "elastic", ["", "", "n1"]))


@story
async def test_what_a_dead_part_of_volcanos_leaves_undone_is_given_back_in_time_or_waited_for(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    flags = (*MADE, "--queue-limit-s", "6", "--start-limit-s", "6")
    async with under_volcano(planes, namespace, tmp_path, *flags) as (berlin, v):
        admission, controllers, scheduler = v.parts.values()
        gang: dict[str, Any] = {"count": 2, "run_s": "forever"}
        for part, name, why in (
            (
                admission,
                "refused",
                "its object cannot be made yet: Internal error occurred: failed",
            ),
            (scheduler, "waits", "Volcano's queue default has not let it in"),
            (controllers, "unseen", "its cluster's queue did not let it in within 6 s"),
        ):
            part.kill()
            await berlin.place(job(name, **gang), "n1")
            assert why in (await evicted(berlin, name)).reason
            part.launch()
        await none_left(berlin, VOLCANO_JOBS, VOLCANO_POD_GROUPS)

        # Its controllers die while pods run: how those end is known once they are back.
        await berlin.place(job("late", count=2, run_s="3", exit_code=4), "n1")
        await berlin.until("late", "Running")
        controllers.kill()
        await eventually(lambda: _all_failed(berlin, "late"))
        assert await berlin.kinds("late") == ["Claimed", "Admitted", "Running"]
        controllers.launch()
        failed = await berlin.until("late", "Failed")
        assert isinstance(failed, Failed)
        assert failed.exit_code == 4


async def _all_failed(berlin: Site, name: str) -> bool:
    found = await asyncio.to_thread(berlin.pods)
    mine = [one for one in found if one["metadata"]["labels"]["berthmaster.io/workload"] == name]
    return {one["status"]["phase"] for one in mine} == {"Failed"}


async def _has(berlin: Site, name: str, nodes: list[str]) -> bool:
    return sorted((await pods_of(berlin, name)).values()) == nodes
