"""kill -9 of the executor at every step of an attempt, and an API server that is away."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from berthmaster.lab.controlplane.nodes import gpu_node, make_nodes
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.jobs.kinds.job import JOB
from berthmaster.lib.jobs.kinds.job_set import JOB_SET
from berthmaster.lib.kube import labels
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import Evicted, PodSet, Resized, Running
from berthmaster.worker.executor.core.cluster_protocol import Attempt
from berthmaster.worker.executor.core.manifest import object_name
from tests.bus.tools import eventually, story
from tests.cluster.executing import Site, job, site


async def made_once(berlin: Site, attempt: Attempt, since: object) -> None:
    """Exactly one Job was ever made of it, and it ended once."""
    calls = berlin.plane.audit.calls(since=since)  # type: ignore[arg-type]
    made = [
        c for c in calls if (c.verb, c.resource) == ("create", "jobs.batch") and c.status == 201
    ]
    assert len(made) == 1, made
    kinds = await berlin.kinds(attempt.id)
    assert kinds.count("Claimed") == 1
    assert kinds[-1] == "Succeeded", kinds


@story
async def test_killed_between_claim_and_create_it_makes_the_job_in_its_next_life(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("n1")])
    async with site(worker, namespace, tmp_path) as berlin:
        await berlin.place(job("warm"), "n1")
        await berlin.until("warm", "Succeeded")
        await berlin.clean()
        mark = worker.audit.mark()
        berlin.proxy.delay_s = 30.0  # it can claim, and what it asks for waits at the door
        attempt = await berlin.place(job(), "n1")
        await berlin.until("train", "Claimed")
        await asyncio.sleep(1.0)  # its hint is acknowledged: nobody will tell it again
        berlin.kill()
        assert berlin.objects() == []
        berlin.proxy.delay_s = 0.0
        berlin.start()
        await berlin.until("train", "Succeeded")
        await berlin.clean()
        await made_once(berlin, attempt, mark)


@story
async def test_killed_when_the_job_is_made_and_while_it_runs_it_goes_on_with_that_job(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("n1")])
    async with site(worker, namespace, tmp_path) as berlin:
        mark = worker.audit.mark()
        attempt = await berlin.place(job(count=2, run_s="60"), "n1")
        await berlin.job_of(attempt)
        berlin.restart()  # made, and perhaps not told to run yet
        await berlin.until("train", "Running")
        berlin.restart()  # runs
        await berlin.until("train", "Succeeded")
        await berlin.clean()
        await made_once(berlin, attempt, mark)


@story
async def test_killed_between_the_end_and_the_deletion_it_deletes_in_its_next_life(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("n1")])
    async with site(worker, namespace, tmp_path) as berlin:
        mark = worker.audit.mark()
        attempt = await berlin.place(job(run_s="3"), "n1")
        await berlin.until("train", "Running")
        berlin.proxy.delay_s = 30.0  # watches tell at once; what is asked waits at the door
        await berlin.until("train", "Succeeded")
        berlin.kill()
        assert len(berlin.objects()) == 1
        berlin.proxy.delay_s = 0.0
        berlin.start()
        await berlin.clean()
        await made_once(berlin, attempt, mark)


@story
async def test_killed_while_it_stops_a_job_it_says_why_in_its_next_life(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("n1")])
    async with site(worker, namespace, tmp_path) as berlin:
        await berlin.place(job(run_s="forever"), "n1")
        await berlin.until("train", "Running")
        berlin.proxy.delay_s = 30.0
        await berlin.cancel("train", "typo")
        await asyncio.sleep(1.0)
        berlin.kill()
        berlin.proxy.delay_s = 0.0
        berlin.start()
        await berlin.until("train", "Cancelled")
        await berlin.clean()
        assert await berlin.kinds("train") == ["Claimed", "Running", "CancelRequested", "Cancelled"]


@story
async def test_what_makes_room_is_told_when_its_pod_has_gone_whoever_is_away_meanwhile(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("n1")])
    async with site(worker, namespace, tmp_path) as berlin:
        await berlin.place(replace(job(run_s="forever"), grace_s=1.0), "n1")
        await berlin.until("train", "Running")
        [pod] = berlin.pods()
        path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}"
        stays = [*pod["metadata"].get("finalizers", ()), "berth.test/ignores-sigterm"]
        worker.api.merge(path, {"metadata": {"finalizers": stays}})
        # The API server is away when it is told to go, and the executor dies of that.
        berlin.proxy.close()
        await berlin.make_room("train")
        berlin.restart()
        berlin.proxy.open()

        async def asked() -> bool:
            found = await asyncio.to_thread(worker.api.get, path)
            return "deletionTimestamp" in found["metadata"]

        await eventually(asked)
        assert worker.api.get(path)["metadata"]["deletionGracePeriodSeconds"] == 1
        # Its process stays all the same: while it does, nobody is given its room.
        mark = worker.audit.mark()
        berlin.restart()

        async def looked() -> bool:
            return bool(worker.audit.calls(since=mark, user_agent="berthmaster-executor"))

        await eventually(looked)
        told = ["Claimed", "Running", "EvictionRequested"]
        assert await berlin.kinds("train") == told
        worker.api.merge(path, {"metadata": {"finalizers": []}})
        evicted = await berlin.until("train", "Evicted")
        assert isinstance(evicted, Evicted)
        assert (evicted.blameless, evicted.reason) == (True, "room for another")
        await berlin.clean()
        assert await berlin.kinds("train") == [*told, "Evicted"]


@story
async def test_the_jobs_of_a_job_set_shrink_alone_where_their_number_varies(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("n1", gpus=8)])
    async with site(worker, namespace, tmp_path) as berlin:
        sets = PodSet(name="driver", cpu_milli=100), PodSet(gpus=1, count=3, min_count=1)
        attempt = await berlin.place(job(pod_sets=sets, run_s="forever"), "n1")
        made = await berlin.job_of(attempt, JOB_SET)
        name = made["metadata"]["name"]
        owner = {"apiVersion": made["apiVersion"], "kind": "JobSet", "name": name}
        owner |= {"uid": made["metadata"]["uid"], "controller": True}
        for each in made["spec"]["replicatedJobs"]:  # as its controller does, which is not here
            worker.api.create(
                f"/apis/batch/v1/namespaces/{namespace}/jobs",
                {
                    "metadata": {
                        "name": f"{name}-{each['name']}-0",
                        "labels": {"jobset": name},
                        "ownerReferences": [owner],
                    },
                    "spec": each["template"]["spec"],
                },
            )
        running = await berlin.until("train", "Running")
        assert isinstance(running, Running)
        await berlin.resize("train", running.pods[:2])
        shrunk = await berlin.until("train", "Resized")
        assert isinstance(shrunk, Resized)
        assert [each.pod for each in shrunk.pods] == ["driver-0", "main-0"]
        jobs = worker.api.get(f"/apis/batch/v1/namespaces/{namespace}/jobs")["items"]
        sizes = {each["metadata"]["name"]: each["spec"]["parallelism"] for each in jobs}
        assert sizes == {f"{name}-s0-0": 1, f"{name}-s1-0": 1}
        assert len(berlin.pods()) == 2
        await berlin.cancel("train")
        await berlin.until("train", "Cancelled")
        await berlin.clean()


@story
async def test_an_api_server_that_is_away_delays_and_loses_nothing(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("n1")])
    async with site(worker, namespace, tmp_path) as berlin:
        mark = worker.audit.mark()
        await berlin.place(job("runs", run_s="2"), "n1")
        await berlin.until("runs", "Running")
        berlin.proxy.close()
        await asyncio.sleep(1.0)  # it has noticed
        await berlin.place(job("waits"), "n1")
        await berlin.place(job("leaves"), "n1")
        await asyncio.sleep(10.0)
        assert await berlin.kinds("runs") == ["Claimed", "Running"]  # it ended; nobody can know
        assert await berlin.kinds("waits") == []
        # Nobody has claimed it, so it may go elsewhere.
        await berlin.withdraw("leaves")
        await asyncio.sleep(10.0)
        assert await berlin.kinds("leaves") == ["Withdrawn"]
        berlin.proxy.open()
        for name in ("runs", "waits"):
            await berlin.until(name, "Succeeded")
        assert await berlin.kinds("leaves") == ["Withdrawn"]
        await berlin.clean()
        calls = worker.audit.calls(since=mark)
        made = [c for c in calls if (c.verb, c.resource, c.status) == ("create", "jobs.batch", 201)]
        assert len(made) == 2


@story
async def test_an_object_that_vanished_while_nobody_looked_is_given_back_not_made_again(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("n1")])
    async with site(worker, namespace, tmp_path) as berlin:
        mark = worker.audit.mark()
        attempt = await berlin.place(job(run_s="forever"), "n1")
        await berlin.until("train", "Running")
        berlin.kill()
        name = (await berlin.job_of(attempt))["metadata"]["name"]
        berlin.release()
        worker.api.delete(f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}")
        await berlin.clean()
        berlin.start()
        await berlin.until("train", "Evicted")
        calls = worker.audit.calls(since=mark)
        made = [c for c in calls if (c.verb, c.resource, c.status) == ("create", "jobs.batch", 201)]
        assert len(made) == 1


@pytest.mark.parametrize(("exit_code", "ending"), [(0, "Succeeded"), (1, "Failed")])
@story
async def test_job_that_ended_and_was_cleaned_up_while_nobody_looked_is_not_run_again(
    planes: Planes, namespace: str, tmp_path: Path, exit_code: int, ending: str
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("n1")])
    async with site(worker, namespace, tmp_path) as berlin:
        mark = worker.audit.mark()
        attempt = await berlin.place(job(run_s="3", exit_code=exit_code), "n1")
        await berlin.until("train", "Running")
        berlin.kill()
        path = JOB.resource.path(namespace=namespace, name=object_name(attempt, JOB))

        async def over() -> bool:
            status = (await asyncio.to_thread(worker.api.get, path)).get("status", {})
            kinds = {c["type"] for c in status.get("conditions", ()) if c["status"] == "True"}
            return bool(kinds & {"Complete", "Failed"})

        await eventually(over)
        worker.api.delete(path, propagationPolicy="Foreground")  # as the TTL controller does

        async def without_pods() -> bool:
            return not await asyncio.to_thread(berlin.pods)

        await eventually(without_pods)
        # The garbage collector's own may still be there, too.
        assert labels.FINALIZER in worker.api.get(path)["metadata"]["finalizers"]
        berlin.start()
        await berlin.until("train", ending)
        await berlin.clean()
        calls = worker.audit.calls(since=mark)
        made = [c for c in calls if (c.verb, c.resource, c.status) == ("create", "jobs.batch", 201)]
        assert len(made) == 1
        assert await berlin.kinds("train") == ["Claimed", "Running", ending]


@pytest.mark.parametrize("propagation", ["Background", "Foreground"])
@story
async def test_running_job_that_is_deleted_while_nobody_looks_is_given_back_and_goes(
    planes: Planes, namespace: str, tmp_path: Path, propagation: str
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("n1")])
    async with site(worker, namespace, tmp_path) as berlin:
        attempt = await berlin.place(job(run_s="forever"), "n1")
        await berlin.until("train", "Running")
        berlin.kill()
        path = JOB.resource.path(namespace=namespace, name=object_name(attempt, JOB))
        worker.api.delete(path, propagationPolicy=propagation)
        berlin.start()
        await berlin.until("train", "Evicted")
        await berlin.clean()


@story
async def test_attempt_that_was_given_up_meanwhile_leaves_nothing_undeletable(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("n1")])
    async with site(worker, namespace, tmp_path) as berlin:
        attempt = await berlin.place(job(run_s="forever"), "n1")
        await berlin.until("train", "Running")
        berlin.kill()
        work = await berlin.read("train")
        await berlin.append(
            Evicted(
                tenant=attempt.tenant,
                id=attempt.id,
                after=work.sequence,
                at_s=5.0,
                by="gateway",
                cluster="berlin",
                attempt=1,
                reason="its cluster was declared lost",
            )
        )
        berlin.start()
        await berlin.clean()


@story
async def test_killed_while_it_shrinks_a_job_it_says_what_stands_in_its_next_life_and_grows_it(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("n1")])
    async with site(worker, namespace, tmp_path) as berlin:
        request = job(count=4, run_s="forever", min_count=2, max_count=5)
        attempt = await berlin.place(request, "n1")
        running = await berlin.until("train", "Running")
        assert isinstance(running, Running)
        [made] = berlin.objects()
        uids = {pod["metadata"]["uid"] for pod in berlin.pods()}
        berlin.proxy.delay_s = 30.0  # it hears, and what it asks for waits at the door
        await berlin.resize("train", running.pods[:2])
        await asyncio.sleep(1.0)
        berlin.kill()
        [still] = berlin.objects()
        assert still["spec"]["parallelism"] == 4
        berlin.proxy.delay_s = 0.0
        berlin.start()
        shrunk = await berlin.until("train", "Resized")
        assert isinstance(shrunk, Resized)
        assert ([each.pod for each in shrunk.pods], shrunk.reason) == (["main-0", "main-1"], "")
        # Those of the highest indices went; the Job and the others are what they were.
        [job_now] = berlin.objects()
        assert job_now["metadata"]["uid"] == made["metadata"]["uid"]
        assert (job_now["spec"]["parallelism"], job_now["spec"]["completions"]) == (2, 2)
        left = {pod["metadata"]["uid"] for pod in berlin.pods()}
        assert (len(left), left - uids) == (2, set())

        more = (*shrunk.pods, PodBinding(pod="main-2", node="n1"))
        await berlin.resize("train", more)
        berlin.restart()
        grown = await berlin.until("train", "Resized", times=2)
        assert isinstance(grown, Resized)
        assert [each.pod for each in grown.pods] == ["main-0", "main-1", "main-2"]
        assert len(berlin.pods()) == 3
        await berlin.cancel("train")
        await berlin.until("train", "Cancelled")
        await berlin.clean()
        kinds = await berlin.kinds(attempt.id)
        assert kinds == [
            "Claimed",
            "Running",
            "ResizeRequested",
            "Resized",
            "ResizeRequested",
            "Resized",
            "CancelRequested",
            "Cancelled",
        ]
