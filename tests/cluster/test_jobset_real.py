"""The executor beside JobSet's own controller: several pod sets are one JobSet, whose pods JobSet
makes, whose end the executor reads, and which a cancelled job suspends."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from berthmaster.lab.controlplane.nodes import gpu_node, make_nodes
from berthmaster.lab.controlplane.plane import Plane
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lab.controlplane.projects import JOBSET, why_not
from berthmaster.lib.jobs.kinds.job_set import JOB_SET
from berthmaster.lib.messages.workload import Failed, JobRequest, PodSet, Running
from tests.bus.tools import eventually, story
from tests.cluster.executing import Site, job, site
from tests.cluster.real_jobset import jobset

WHY_NOT: Final = why_not(JOBSET)
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


@pytest.fixture
def worker(planes: Planes) -> Iterator[Plane]:
    plane = planes.workers[0]
    make_nodes(plane, [gpu_node("n0"), gpu_node("n1")])
    with jobset(plane):
        yield plane


def several(name: str, **how: Any) -> JobRequest:
    """One leader and two pods beside it."""
    sets = (PodSet(name="leader", gpus=1), PodSet(name="workers", gpus=1, count=2))
    return job(name, pod_sets=sets, **how)


async def gone(berlin: Site) -> None:
    async def nothing() -> bool:
        return not await asyncio.to_thread(berlin.objects, JOB_SET.resource)

    await eventually(nothing)
    await berlin.clean()


@story
async def test_job_of_two_pod_sets_runs_as_a_jobset_and_succeeds(
    worker: Plane, namespace: str, tmp_path: Path
) -> None:
    async with site(worker, namespace, tmp_path) as berlin:
        attempt = await berlin.place(several("train", run_s="2"), "n0", "n1")
        made = await berlin.job_of(attempt, JOB_SET)
        assert [each["replicas"] for each in made["spec"]["replicatedJobs"]] == [1, 1]
        running = await berlin.until("train", "Running")
        assert isinstance(running, Running)
        assert {each.pod for each in running.pods} == {"leader-0", "workers-0", "workers-1"}
        await berlin.until("train", "Succeeded")
        assert await berlin.kinds("train") == ["Claimed", "Running", "Succeeded"]
        await gone(berlin)


@story
async def test_jobset_whose_pod_fails_is_told_as_failed(
    worker: Plane, namespace: str, tmp_path: Path
) -> None:
    async with site(worker, namespace, tmp_path) as berlin:
        await berlin.place(several("train", run_s="1", exit_code=3), "n0", "n1")
        failed = await berlin.until("train", "Failed")
        assert isinstance(failed, Failed)
        await gone(berlin)


@story
async def test_cancelled_jobset_ends_with_its_pods(
    worker: Plane, namespace: str, tmp_path: Path
) -> None:
    async with site(worker, namespace, tmp_path) as berlin:
        await berlin.place(several("train", run_s="forever"), "n0", "n1")
        await berlin.until("train", "Running")
        await berlin.cancel("train")
        await berlin.until("train", "Cancelled")
        await gone(berlin)
