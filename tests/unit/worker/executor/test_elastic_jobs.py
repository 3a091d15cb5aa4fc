"""Jobs whose number of pods changes where a worker's Kueue starts them: how that Kueue is asked
whether it lets it, over an API server in this process, and what is read off its Workloads."""

import asyncio
from typing import Any, cast

import pytest

from berthmaster.lib.jobs.objects import Gate, JobObject, PodSpec
from berthmaster.lib.kube.errors import Forbidden
from berthmaster.lib.kueue.workloads import Slices
from berthmaster.lib.messages.workload import PodSet
from berthmaster.worker.executor.attempts import Held
from berthmaster.worker.executor.core.attempt_status import Scene
from berthmaster.worker.executor.core.cluster_protocol import (
    PodsAdmitted,
    PodsQueued,
    PodsRunning,
    PodsWaiting,
)
from berthmaster.worker.executor.core.objects import PodObject
from berthmaster.worker.executor.elastic_looks import ElasticLooks
from berthmaster.worker.executor.writer import JobWriter
from tests.bus.tools import story
from tests.support.patience import until
from tests.unit.lib.kube.stage import Lines
from tests.unit.worker.executor.little_api import Json, LittleApi
from tests.unit.worker.executor.test_runtime import QUEUED, TRAIN, Play, playing, train

ELASTIC = "kueue.x-k8s.io/elastic-job"
PARTIAL = "kueue.x-k8s.io/job-min-parallelism"
SIZED = PodSet(count=2, min_count=1, max_count=4)


def with_gate(job: Json) -> Json:
    """As the webhook of a Kueue that has elastic jobs answers."""
    if job["metadata"].get("annotations", {}).get(ELASTIC) == "true":
        job["spec"]["template"]["spec"]["schedulingGates"] = [{"name": ELASTIC}]
    return job


async def let_in(api: LittleApi, play: Play) -> Json:
    job = await play.job()
    await api.change("jobs", job["metadata"]["name"], spec={"suspend": False})
    await play.hears(PodsAdmitted)
    return job


async def workload(api: LittleApi, job: Json, name: str, **conditions: bool) -> None:
    made = [
        {"type": kind, "status": str(so), "message": f"{kind} says so", "reason": "x"}
        for kind, so in conditions.items()
    ]
    known = {"kueue.x-k8s.io/job-uid": job["metadata"]["uid"]}
    found = {"metadata": {"name": name, "namespace": "team", "labels": known}}
    await api.put("workloads", found | {"status": {"conditions": made}})


async def gated_pod(play: Play, index: int) -> None:
    await play.pod("Pending", f"p{index}", index)
    gates: Any = [{"name": ELASTIC}]
    await play.api.change("pods", f"p{index}", spec={"nodeName": "", "schedulingGates": gates})


@story
async def test_elastic_kueue_allows_resize_over_restart() -> None:
    async with LittleApi() as api:
        api.mutate = with_gate
        async with playing(api) as play:
            play.create(train(pod_sets=(SIZED,)), target=QUEUED)
            job = await let_in(api, play)
            told = job["metadata"]["annotations"]
            assert (told[ELASTIC], PARTIAL in told) == ("true", False)
            assert await play.hears(PodsAdmitted) == PodsAdmitted(TRAIN, resizable=True)
            assert (len(api.all("jobs")), api.dry_runs) == (1, 1)
        async with playing(api) as later:
            assert await later.hears(PodsAdmitted) == PodsAdmitted(TRAIN, resizable=True)


REFUSAL = (400, "BadRequest", "admission webhook x does not support dry run")


@story
@pytest.mark.parametrize("refused", [False, True], ids=["it does nothing", "no dry run is had"])
async def test_one_that_has_none_may_let_it_start_with_fewer(refused: bool) -> None:
    async with LittleApi() as api, playing(api) as play:
        fates = iter([REFUSAL] if refused else [])
        api.misfortune = lambda method, plural: next(fates, None) if method == "POST" else None
        play.create(train(pod_sets=(SIZED,)), target=QUEUED)
        job = await let_in(api, play)
        told = job["metadata"]["annotations"]
        assert (told[PARTIAL], ELASTIC in told) == ("1", False)
        assert await play.hears(PodsAdmitted) == PodsAdmitted(TRAIN)


@story
async def test_nobody_is_asked_about_other_jobs() -> None:
    async with LittleApi() as api, playing(api) as play:
        play.create(target=QUEUED)
        job = await let_in(api, play)
        assert not {ELASTIC, PARTIAL} & job["metadata"].get("annotations", {}).keys()
        assert api.dry_runs == 0


@story
async def test_refused_growth_reports_kueue_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("berthmaster.worker.executor.elastic_looks.FIRST_S", 0.05)
    monkeypatch.setattr("berthmaster.worker.executor.elastic_looks.AGAIN_S", 0.05)
    async with LittleApi() as api:
        api.mutate = with_gate
        async with playing(api) as play:
            play.create(train(pod_sets=(SIZED,)), target=QUEUED)
            job = await let_in(api, play)
            await workload(api, job, "first", QuotaReserved=True, Admitted=True)
            await play.pod("Running", "p0", 0)
            await gated_pod(play, 1)
            await workload(api, job, "second", QuotaReserved=False)
            await workload(api, job, "older", QuotaReserved=True, Finished=True)
            why = "pod main-1: Kueue has not let in so many: QuotaReserved says so"
            await until(
                lambda: any(isinstance(e, PodsWaiting) and e.reason == why for e in play.told)
            )
            # It evicts the first one and leaves the Job as it is.
            assert not any(isinstance(e, PodsQueued) for e in play.told[1:])
            await workload(api, job, "first", QuotaReserved=True, Admitted=True, Evicted=True)
            await until(lambda: PodsQueued(TRAIN) in play.told[1:])


@story
async def test_what_opens_anew_as_a_look_ends_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("berthmaster.worker.executor.elastic_looks.FIRST_S", 0.0)
    held = Held(scene=Scene(attempt=TRAIN, wanted={"main": 2}, job=JobObject(), resizable=True))
    judged: list[Held] = []

    class Kueue:
        async def slices(self, _: Held) -> Slices:
            return Slices(have_quota=True, waits=False)

    def grows() -> None:
        waiting = PodSpec(scheduling_gates=(Gate(name=ELASTIC),))
        held.scene.pods["p1"] = PodObject(spec=waiting)
        looks.follow(held)

    def judge(one: Held) -> None:
        judged.append(one)
        if len(judged) == 1:  # after which nothing is left to look for, until the next moment
            asyncio.get_running_loop().call_soon(grows)

    looks = ElasticLooks(cast("JobWriter", Kueue()), judge=judge, log=Lines())
    looks.follow(held)
    await until(lambda: len(judged) > 1)
    await looks.close()


@story
async def test_hidden_workloads_are_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for pause in ("FIRST_S", "AFTER_ERROR_S"):
        monkeypatch.setattr(f"berthmaster.worker.executor.elastic_looks.{pause}", 0.02)
    looks = 0

    async def denied(_: JobWriter, held: Held) -> None:
        nonlocal looks
        looks += 1
        raise Forbidden(403, "Forbidden", "workloads: not allowed", held.path)

    monkeypatch.setattr(JobWriter, "slices", denied)
    async with LittleApi() as api:
        api.mutate = with_gate
        async with playing(api) as play:
            play.create(train(pod_sets=(SIZED,)), target=QUEUED)
            await let_in(api, play)
            for index in range(2):
                await play.pod("Running", f"p{index}", index)
            await play.hears(PodsRunning)
            await until(lambda: looks > 3)
            assert not any(isinstance(e, PodsQueued) for e in play.told[1:])
            said = [line for line in play.log.lines if "Kueue Workloads unreadable" in str(line)]
            assert len(said) == 1
