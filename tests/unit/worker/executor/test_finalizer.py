"""The finalizer of job objects: whoever deletes one, its ending is read and told once."""

import asyncio
from typing import Any

import pytest

from berthmaster.lib.jobs.kinds.job import JOB
from berthmaster.lib.jobs.kinds.job_set import JOB_SET
from berthmaster.lib.kube import labels
from berthmaster.lib.messages.workload import PodSet
from berthmaster.worker.executor.core.cluster_protocol import (
    DeletePods,
    PodsCompleted,
    PodsFailed,
    PodsFound,
    PodsGone,
    PodsRefused,
    PodsRunning,
    StopPods,
)
from tests.bus.tools import story
from tests.support.patience import until
from tests.unit.worker.executor.little_api import FOREGROUND, Json, LittleApi
from tests.unit.worker.executor.test_runtime import TRAIN, Play, playing, train

ENDED = "2026-11-21T11:59:00Z"  # a minute before the little API server marks what is deleted
LATER = "2026-11-21T12:01:00Z"


async def begun(play: Play) -> str:
    play.create()
    await play.pod("Running")
    await play.hears(PodsRunning)
    return str((await play.job())["metadata"]["name"])


async def ends(api: LittleApi, name: str, kind: str, at: str = ENDED) -> None:
    condition = {
        "type": kind,
        "status": "True",
        "reason": "BackoffLimitExceeded",
        "message": "Job has reached the specified backoff limit",
        "lastTransitionTime": at,
    }
    await api.change("jobs", name, status={"conditions": [condition]})


async def cleaned(api: LittleApi, name: str) -> None:
    """A TTL controller deletes a Job in the foreground: its pods go, the Job is kept by us."""
    for pod in api.all("pods"):
        await api.remove("pods", pod["metadata"]["name"])
    await api.remove("jobs", name)


def kept(api: LittleApi) -> list[Any]:
    return [job["metadata"]["finalizers"] for job in api.all("jobs")]


@story
async def test_job_that_completed_and_was_cleaned_up_meanwhile_completes_once() -> None:
    async with LittleApi() as api:
        async with playing(api) as first:
            name = await begun(first)
        await ends(api, name, "Complete")
        await cleaned(api, name)
        assert kept(api) == [[labels.FINALIZER]]
        async with playing(api) as play:
            assert play.told == [PodsFound(TRAIN), PodsCompleted(TRAIN)]
            play.runtime.perform(DeletePods(TRAIN, "ended"))
            await until(lambda: not api.all("jobs") and not play.runtime.attempts)


@pytest.mark.parametrize("at", [ENDED, LATER])
@story
async def test_failed_job_before_cleanup_is_reported(at: str) -> None:
    async with LittleApi() as api:
        async with playing(api) as first:
            name = await begun(first)
        await ends(api, name, "Failed", at)
        await cleaned(api, name)
        async with playing(api) as play:
            if at == ENDED:
                failed = await play.hears(PodsFailed)
                assert failed.reason == (
                    "Job has reached the specified backoff limit; its pods were removed after "
                    "that, with their exit codes"
                )
            else:
                refused = await play.hears(PodsRefused)
                assert refused.reason.startswith("its pods were taken away: ")
            await play.hears(PodsGone)


@story
async def test_running_job_that_somebody_deletes_ends_its_pods_before_it_is_released() -> None:
    async with LittleApi() as api, playing(api) as play:
        name = await begun(play)
        await api.remove("jobs", name)
        refused = await play.hears(PodsRefused)
        assert refused.reason == "somebody deletes its job object"
        play.runtime.perform(StopPods(TRAIN, refused.reason))
        await until(lambda: kept(api) == [[labels.FINALIZER, FOREGROUND]])
        assert not [e for e in play.told if isinstance(e, PodsGone)]
        await api.remove("pods", "p0")
        await asyncio.sleep(0.1)
        assert not [e for e in play.told if isinstance(e, PodsGone)]  # Kubernetes keeps it, too
        await api.remove("jobs", name)
        assert await play.hears(PodsGone) == PodsGone(TRAIN, refused.reason)
        assert kept(api) == [[labels.FINALIZER]]
        play.runtime.perform(DeletePods(TRAIN, "ended"))
        await until(lambda: not api.all("jobs") and not play.runtime.attempts)


@story
async def test_object_that_changed_meanwhile_is_read_again_and_keeps_others_finalizers() -> None:
    async with LittleApi() as api, playing(api) as play:
        name = await begun(play)
        refusals = [(409, "Conflict", "the object has been modified")]

        def misfortune(method: str, plural: str) -> tuple[int, str, str] | None:
            return refusals.pop() if method == "PATCH" and refusals else None

        api.misfortune = misfortune
        ours_and_theirs = [labels.FINALIZER, "example.org/audit"]
        await api.change("jobs", name, metadata={"finalizers": ours_and_theirs})
        play.runtime.perform(DeletePods(TRAIN, "not ours (any more)"))
        await until(lambda: kept(api) == [["example.org/audit"]])
        await until(lambda: bool(api.all("jobs")[0]["metadata"].get("deletionTimestamp")))


@story
async def test_released_object_that_was_never_deleted_is_deleted_by_the_next_life() -> None:
    async with LittleApi() as api:
        async with playing(api) as first:
            await begun(first)
            api.misfortune = lambda method, plural: "hung" if method == "DELETE" else None
            first.runtime.perform(DeletePods(TRAIN, "ended"))
            await until(lambda: kept(api) == [[]])
        api.misfortune = lambda method, plural: None
        async with playing(api) as play:
            assert await play.hears(PodsFound) == PodsFound(TRAIN)
            play.runtime.perform(DeletePods(TRAIN, "it has ended"))
            await until(lambda: not api.all("jobs"))


@story
async def test_namespace_that_is_deleted_loses_our_finalizers_at_once() -> None:
    async with LittleApi() as api, playing(api) as play:
        await begun(play)
        assert not await play.runtime.writer.is_leaving("team")
        api.leaving.add("team")
        assert await play.runtime.writer.is_leaving("team")
        await play.runtime.release("team")
        assert kept(api) == [[]]
        assert not [e for e in play.told if isinstance(e, PodsGone | PodsRefused)]


@story
async def test_every_kind_of_job_object_has_the_finalizer() -> None:
    pod_sets = (PodSet(name="main"), PodSet(name="ps"))
    async with LittleApi() as api, playing(api, kinds=(JOB, JOB_SET)) as play:
        play.create(train(pod_sets=pod_sets))
        await until(lambda: bool(api.all("jobsets")))
        [made] = api.all("jobsets")
        assert made["metadata"]["finalizers"] == [labels.FINALIZER]
        for job in made["spec"]["replicatedJobs"]:
            assert "finalizers" not in _metadata(job)  # they go with the JobSet


def _metadata(job: Json) -> Json:
    found: Json = job["template"].get("metadata", {})
    return found
