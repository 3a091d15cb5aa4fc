"""The runtime over an API server in this process: refusals, lost answers, and what it tells."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from berthmaster.lib.jobs.gangs import Gangs
from berthmaster.lib.jobs.kinds.job import JOB
from berthmaster.lib.jobs.kinds.job_set import JOB_SET
from berthmaster.lib.jobs.kinds.kind import JobKind
from berthmaster.lib.jobs.objects import JobObject
from berthmaster.lib.kube import labels
from berthmaster.lib.kube.client import Client
from berthmaster.lib.messages.placement import PodBinding, Target
from berthmaster.lib.messages.workload import JobRequest, PodSet, RunSpec
from berthmaster.worker.executor.attempts import attempt_of
from berthmaster.worker.executor.core.cluster_protocol import (
    Attempt,
    CreatePods,
    DeletePods,
    PodEvent,
    PodsAdmitted,
    PodsCompleted,
    PodsExpired,
    PodsFailed,
    PodsFound,
    PodsGone,
    PodsQueued,
    PodsRefused,
    PodsRunning,
    PodsWaiting,
    StopPods,
)
from berthmaster.worker.executor.core.manifest import Style, object_name
from berthmaster.worker.executor.runtime import ClusterRuntime
from berthmaster.worker.executor.writer import JobWriter
from tests.bus.tools import story
from tests.support.patience import hang_s, until
from tests.unit.lib.kube.stage import Lines
from tests.unit.worker.executor.little_api import Json, LittleApi
from tests.unit.worker.executor.test_devices import claimed
from tests.unit.worker.executor.test_manifest import offers_of

NAME = "executor/berlin"
TRAIN = Attempt("acme", "train", 1)
PODS = (PodBinding(pod="main-0", node="n1"),)
HERE = Target(namespace="team")
QUEUED = Target(namespace="team", via="worker", local_queue="gpu")


@dataclass
class Play:
    api: LittleApi
    runtime: ClusterRuntime
    client: Client
    log: Lines
    ahead_s: float = 0.0  # of the real clock
    told: list[PodEvent] = field(default_factory=list)

    @property
    def now_s(self) -> float:
        return time.time() + self.ahead_s

    def create(self, request: JobRequest | None = None, **fields: Any) -> None:
        order = {"stop_after_s": None, "target": HERE} | fields
        self.runtime.perform(CreatePods(TRAIN, NAME, PODS, request or train(), **order))

    async def hears(self, kind: type, limit_s: float = 10.0) -> Any:
        await until(lambda: any(isinstance(e, kind) for e in self.told), limit_s)
        return next(e for e in self.told if isinstance(e, kind))

    async def job(self) -> Json:
        await until(lambda: self.api.all("jobs"))
        [job] = self.api.all("jobs")
        return job

    async def pod(self, phase: str, name: str = "p0", index: int = 0, **status: Any) -> None:
        template = (await self.job())["spec"]["template"]["metadata"]
        known = template["labels"] | {labels.INDEX: str(index)}
        await self.api.put(
            "pods",
            {
                "metadata": {
                    "name": name,
                    "namespace": "team",
                    "uid": f"uid-{name}",
                    "labels": known,
                    "annotations": template.get("annotations", {}),
                },
                "spec": {"nodeName": "n2"},
                "status": {"phase": phase} | status,
            },
        )

    async def says(self, *conditions: str, reason: str = "", **status: Any) -> None:
        made = [{"type": each, "status": "True", "reason": reason} for each in conditions]
        name = (await self.job())["metadata"]["name"]
        await self.api.change("jobs", name, status={"conditions": made} | status)


def train(**fields: Any) -> JobRequest:
    return JobRequest(id="train", run=RunSpec(image="train:1"), **fields)


@asynccontextmanager
async def playing(
    api: LittleApi,
    *,
    kinds: tuple[JobKind, ...] = (JOB,),
    namespaces: tuple[str, ...] = ("team",),
    style: Style = Style(),  # noqa: B008
) -> AsyncIterator[Play]:
    log = Lines()
    client = await api.client(log)

    def clock() -> float:
        return play.now_s

    offers = offers_of(claimed())
    writer = JobWriter(client, NAME, namespaces, offers, style._replace(kinds=kinds), clock)
    runtime = ClusterRuntime(
        client, writer, executor=NAME, namespaces=namespaces, kinds=kinds, clock=clock, log=log
    )
    play = Play(api, runtime, client, log)
    runtime.start(play.told.append)
    stopping = asyncio.Event()
    running = asyncio.create_task(runtime.run(stopping))
    try:
        async with asyncio.timeout(hang_s()):
            play.told += await runtime.found(NAME)
        yield play
    finally:
        stopping.set()
        await asyncio.wait_for(running, hang_s())
        await client.close()


@story
async def test_attempt_costs_three_calls_from_creation_to_deletion() -> None:
    async with LittleApi() as api, playing(api) as play:
        play.create()
        await play.pod("Running")
        assert await play.hears(PodsRunning) == PodsRunning(
            TRAIN, (PodBinding(pod="main-0", node="n2"),)
        )
        await play.pod("Succeeded")
        await play.says("Complete")
        await play.hears(PodsCompleted)
        play.runtime.perform(DeletePods(TRAIN, "ended"))
        await until(lambda: not api.all("jobs"))
        await api.remove("pods", "p0")
        await until(lambda: not play.runtime.attempts)
        assert api.calls == [("POST", "jobs"), ("PATCH", "jobs"), ("DELETE", "jobs")]


INVALID = (422, "Invalid", 'Job.batch "train-1" is invalid: spec.template: Invalid value: "a b"')
POLICY = (403, "Forbidden", 'admission webhook "policy.example.com" denied the request: no tag')


@story
async def test_a_request_that_an_api_server_refuses_for_its_own_sake_is_hopeless() -> None:
    for fate in (INVALID, POLICY, (400, "BadRequest", "spec: unknown field")):
        async with LittleApi() as api, playing(api) as play:
            api.misfortune = lambda method, plural, fate=fate: fate  # type: ignore[misc]
            play.create()
            refused = await play.hears(PodsRefused)
            assert refused == PodsRefused(TRAIN, fate[2], "not_started", hopeless=True)
            play.runtime.perform(StopPods(TRAIN, fate[2]))
            assert await play.hears(PodsGone) == PodsGone(TRAIN, fate[2])
            await asyncio.sleep(0.3)
            assert api.calls == [("POST", "jobs")]
            assert not play.runtime.trouble


@story
async def test_a_request_without_an_image_is_hopeless_in_a_real_cluster() -> None:
    async with LittleApi() as api, playing(api) as play:
        play.create(JobRequest(id="train"))
        refused = await play.hears(PodsRefused)
        assert (refused.fault, refused.hopeless) == ("not_started", True)
        assert refused.reason == "run.image is missing: a real cluster needs an image to run"
        assert api.calls == []


@story
async def test_a_server_in_trouble_is_asked_again_until_it_answers() -> None:
    fates: Iterator[str | tuple[int, str, str]] = iter(
        [(500, "InternalError", "etcd"), (429, "TooManyRequests", "later"), "hung"]
    )
    async with LittleApi() as api, playing(api) as play:
        api.misfortune = lambda method, plural: next(fates, None)
        play.create()
        await play.job()
        await until(lambda: not play.runtime.trouble)
        assert [e for e in play.told if isinstance(e, PodsRefused)] == []
        assert play.log.events().count("cannot create yet") == 1

        # Whoever gives it back meanwhile knows why, and hears when that is over.
        def waits() -> list[str]:
            return [e.reason for e in play.told if isinstance(e, PodsWaiting)]

        await until(lambda: len(waits()) > 1)
        assert waits()[0].startswith("its object cannot be made yet: etcd (500 InternalError, ")
        assert waits()[1:] == ["1 of 1 pods are not made yet"]


NOT_YET = (403, "Forbidden", 'jobs.batch is forbidden: User "us" cannot create resource "jobs"')


@story
async def test_a_server_that_has_not_read_our_role_yet_is_asked_again_and_makes_the_job() -> None:
    fates = iter([NOT_YET, NOT_YET])
    async with LittleApi() as api, playing(api) as play:
        api.misfortune = lambda method, plural: next(fates, None)
        play.create()
        await play.job()
        await until(lambda: not play.runtime.trouble)
        assert api.calls == [("POST", "jobs")] * 3
        assert [e for e in play.told if isinstance(e, PodsRefused)] == []


@story
async def test_missing_role_refuses_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("berthmaster.lib.kube.denials.GRACE_S", 0.2)
    async with LittleApi() as api, playing(api) as play:
        api.misfortune = lambda method, plural: NOT_YET
        play.create()
        assert await play.hears(PodsRefused) == PodsRefused(TRAIN, NOT_YET[2])
        assert len(api.calls) > 1


@story
async def test_a_create_whose_answer_was_lost_is_found_and_not_made_twice() -> None:
    fates = iter(["lost"])
    async with LittleApi() as api, playing(api) as play:
        api.misfortune = lambda method, plural: next(fates, None)
        play.create()
        await until(lambda: len(api.calls) >= 1)
        await play.pod("Running")
        await play.hears(PodsRunning)
        assert len(api.all("jobs")) == 1
        assert not [e for e in play.told if isinstance(e, PodsRefused)]


@story
async def test_somebody_elses_object_of_that_name_refuses_the_attempt_and_is_left_alone() -> None:
    async with LittleApi() as api:
        async with playing(api) as first:
            first.create()
            name = (await first.job())["metadata"]["name"]
        await api.vanish("jobs", name)
        theirs = {"metadata": {"name": name, "namespace": "team", "uid": "theirs"}, "spec": {}}
        async with playing(api) as play:
            await api.put("jobs", theirs)
            play.create()
            refused = await play.hears(PodsRefused)
            assert refused.reason == f"Job team/{name} is there already and is not ours"
            play.runtime.perform(StopPods(TRAIN, "x"))
            await play.hears(PodsGone)
            play.runtime.perform(DeletePods(TRAIN, "x"))
            await asyncio.sleep(0.2)
            assert [job["metadata"]["uid"] for job in api.all("jobs")] == ["theirs"]


@story
async def test_what_is_too_late_is_not_made() -> None:
    async with LittleApi() as api, playing(api) as play:
        play.create(stop_after_s=60.0, asked_at_s=play.now_s - 59.5)
        await play.hears(PodsExpired)
        assert api.calls == []


@story
async def test_what_may_have_been_made_in_time_is_looked_for_before_it_is_called_expired() -> None:
    for fate in ("lost", "hung"):
        fates = iter([fate])
        async with LittleApi() as api, playing(api) as play:
            api.misfortune = lambda method, plural, fates=fates: next(fates, None)  # type: ignore[misc]
            play.create(stop_after_s=60.0, asked_at_s=play.now_s)
            await until(lambda: len(api.calls) == 1)  # waited for here
            play.ahead_s += 60.0
            if fate == "hung":
                await play.hears(PodsExpired)
                continue
            await play.pod("Running")
            await play.hears(PodsRunning)
            assert not [e for e in play.told if isinstance(e, PodsExpired)]


@story
async def test_an_object_that_comes_after_it_was_told_to_be_deleted_is_deleted() -> None:
    async with LittleApi() as api, playing(api) as play:
        play.create()
        await play.pod("Running")
        await play.hears(PodsRunning)
        job = await play.job()
        await api.vanish("jobs", job["metadata"]["name"])
        play.runtime.perform(DeletePods(TRAIN, "not ours (any more)"))
        await asyncio.sleep(0.2)
        assert play.runtime.attempts == 1  # a pod is still there
        job["metadata"]["uid"] = "another"
        await api.put("jobs", job)
        await until(lambda: not api.all("jobs"))
        await api.remove("pods", "p0")
        await until(lambda: not play.runtime.attempts)


@story
async def test_an_object_made_late_may_not_run_longer_than_was_promised() -> None:
    async with LittleApi() as api, playing(api) as play:
        play.create(stop_after_s=60.0, asked_at_s=play.now_s - 20.5)
        assert (await play.job())["spec"]["activeDeadlineSeconds"] in (38, 39)


@story
async def test_a_stop_that_meets_a_change_reads_again_and_stops_all_the_same() -> None:
    conflicts = iter([(409, "Conflict", "modified")])
    async with LittleApi() as api, playing(api) as play:
        play.create()
        await play.job()
        api.misfortune = lambda method, plural: (
            next(conflicts, None) if (method, plural) == ("PATCH", "jobs") else None
        )
        play.runtime.perform(StopPods(TRAIN, "typo"))
        await until(lambda: api.all("jobs")[0]["spec"].get("suspend"))
        await play.says("Suspended")
        await play.hears(PodsGone)


@story
async def test_what_waits_in_the_clusters_queue_is_deleted_in_the_foreground_to_stop_it() -> None:
    async with LittleApi() as api, playing(api) as play:
        play.create(target=QUEUED)
        await play.hears(PodsQueued)
        job = await play.job()
        assert job["spec"]["suspend"] is True
        assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpu"
        # Its Kueue lets it in.
        await api.change("jobs", job["metadata"]["name"], spec={"suspend": False})
        await play.hears(PodsAdmitted)
        play.runtime.perform(StopPods(TRAIN, "not needed"))
        await until(lambda: api.all("jobs")[0]["metadata"].get("deletionTimestamp"))
        await play.says("Suspended")
        await asyncio.sleep(0.2)
        assert not [e for e in play.told if isinstance(e, PodsGone)]
        await api.remove("jobs", job["metadata"]["name"])
        assert await play.hears(PodsGone) == PodsGone(TRAIN, "not needed")


@story
async def test_a_failed_job_is_told_as_such_after_a_restart_too_and_needs_no_patch() -> None:
    ended = {"name": "main", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    why = "pod main-0 exited with 137 (OOMKilled)"
    told = PodsFailed(TRAIN, why, 137, "out_of_memory", "n2")
    async with LittleApi() as api:
        async with playing(api) as first:
            first.create()
            await first.pod("Failed", containerStatuses=[ended])
            await first.says("FailureTarget", reason="BackoffLimitExceeded")
            assert await first.hears(PodsFailed) == told
            first.runtime.perform(StopPods(TRAIN, told.reason))
            await first.says("FailureTarget", "Failed", reason="BackoffLimitExceeded")
            await first.hears(PodsGone)
            assert first.api.calls == [("POST", "jobs")]
        async with playing(api) as play:
            assert play.told == [PodsFound(TRAIN), told, PodsGone(TRAIN, "")]


@story
async def test_an_object_that_is_gone_is_told_when_its_pods_are_gone_too() -> None:
    async with LittleApi() as api, playing(api) as play:
        play.create()
        await play.pod("Running")
        await play.hears(PodsRunning)
        await api.vanish("jobs", (await play.job())["metadata"]["name"])
        await asyncio.sleep(0.2)
        assert not [e for e in play.told if isinstance(e, PodsGone)]
        await api.remove("pods", "p0")
        assert await play.hears(PodsGone) == PodsGone(TRAIN, "its job object was deleted")


@story
async def test_what_was_told_to_run_and_is_not_there_is_gone_and_not_made_again() -> None:
    async with LittleApi() as api, playing(api) as play:
        play.create(ran=True)
        await play.hears(PodsGone)
        assert api.all("jobs") == []
        assert api.calls == [("GET", "jobs")]


@story
async def test_an_object_of_ours_that_nobody_ordered_is_told_as_found() -> None:
    async with LittleApi() as api:
        async with playing(api) as first:
            first.create()
            job = await first.job()
            name = job["metadata"]["name"]
        await api.vanish("jobs", name)
        async with playing(api) as play:
            del job["metadata"]["uid"]
            await api.put("jobs", job)
            assert await play.hears(PodsFound) == PodsFound(TRAIN)
            play.runtime.perform(DeletePods(TRAIN, "not ours (any more)"))
            await until(lambda: not api.all("jobs") and not play.runtime.attempts)


@story
async def test_raising_object_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(job: JobObject) -> tuple[Attempt, str] | None:
        if job.metadata.name == "odd":
            raise LookupError("what nobody thought of")
        return attempt_of(job)

    monkeypatch.setattr("berthmaster.worker.executor.runtime.attempt_of", odd)
    async with LittleApi() as api, playing(api) as play:
        play.create()
        job = await play.job()
        meta = {"namespace": "team", "labels": job["metadata"]["labels"], "name": "odd"}
        await api.put("jobs", {**job, "metadata": meta})
        await until(lambda: play.runtime.set_aside == 1)
        assert "object skipped" in play.log.events()
        play.runtime.perform(DeletePods(TRAIN, "withdrawn"))
        await until(lambda: len(api.all("jobs")) == 1 and not play.runtime.attempts)


@story
async def test_unserved_namespace_refuses_attempt() -> None:
    async with LittleApi() as api, playing(api) as play:
        play.create(target=Target(namespace="other"))
        refused = await play.hears(PodsRefused)
        assert refused.reason == (
            "namespace other is none of those that this executor serves: team"
        )
    async with LittleApi() as api, playing(api) as play:
        play.create(target=Target(namespace="other"), ran=True)
        await until(lambda: play.runtime.trouble)
        assert "namespace other" in play.runtime.ill()
        assert [type(event) for event in play.told] == [PodsWaiting]
        assert api.calls == []


@story
async def test_a_cluster_that_does_not_end_a_job_in_time_is_helped() -> None:
    async with LittleApi() as api, playing(api) as play:
        play.create(stop_after_s=2.0, asked_at_s=play.now_s)
        await play.pod("Running")
        await play.hears(PodsRunning)
        play.ahead_s += 60.0
        await play.pod("Running", containerStatuses=[])  # anything that makes it look
        await until(lambda: api.all("jobs")[0]["spec"].get("suspend"))
        await api.remove("pods", "p0")
        await play.says("Suspended")
        assert await play.hears(PodsExpired) == PodsExpired(TRAIN)


@story
async def test_several_pod_sets_need_what_the_cluster_has() -> None:
    two = train(pod_sets=(PodSet(name="a"), PodSet(name="b")))
    async with LittleApi() as api, playing(api) as play:
        play.create(two)
        refused = await play.hears(PodsRefused)
        assert "need a JobSet" in refused.reason
    async with LittleApi() as api, playing(api, kinds=(JOB, JOB_SET)) as play:
        play.create(two)
        await until(lambda: api.all("jobsets"))
        [made] = api.all("jobsets")
        assert [each["name"] for each in made["spec"]["replicatedJobs"]] == ["s0", "s1"]


@story
async def test_an_api_server_that_comes_back_is_told_what_was_ordered_meanwhile() -> None:
    async with LittleApi() as api, playing(api) as play:
        await api.stop()
        play.create()
        await until(lambda: play.runtime.trouble)
        await api.start()
        await play.job()
        await play.pod("Running")
        await play.hears(PodsRunning, 20.0)


# Namespaces without rights, and a server that does not answer


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("berthmaster.worker.executor.watch.GRACE_S", 0.1)
    monkeypatch.setattr("berthmaster.worker.executor.watch.ABSENT_S", 0.1)


@pytest.mark.usefixtures("soon")
@story
async def test_namespace_without_role_gives_back() -> None:
    async with LittleApi() as api:
        api.closed = {"other"}
        async with playing(api, namespaces=("team", "other")) as play:
            assert (play.runtime.ready, play.runtime.ill(), play.runtime.away()) == (True, "", "")
            lacking = play.runtime.lacking()
            assert list(lacking) == ["other"]
            assert 'User "us" cannot list' in lacking["other"]
            play.create(target=Target(namespace="other"))
            refused = await play.hears(PodsRefused)
            assert refused.reason.startswith("namespace other is closed to its executor: not allo")
            assert api.calls == []

            # Its Role comes: from then on it is served as the other is.
            api.closed = set()
            await until(lambda: not play.runtime.lacking())
            later = TRAIN._replace(number=2)
            play.runtime.perform(
                CreatePods(later, NAME, PODS, train(), None, target=Target(namespace="other"))
            )
            assert (await play.job())["metadata"]["namespace"] == "other"


@pytest.mark.usefixtures("soon")
@story
async def test_what_an_earlier_life_may_have_made_where_nobody_can_look_is_not_given_back() -> None:
    async with LittleApi() as api:
        async with playing(api) as first:
            first.create()
            await first.job()
        api.closed = {"team"}
        async with playing(api, namespaces=("elsewhere", "team")) as play:
            play.create(claimed_before=True)
            await asyncio.sleep(0.5)
            assert [type(event) for event in play.told] == [PodsWaiting]
            api.closed = set()
            await play.pod("Running")
            assert (await play.hears(PodsRunning)).attempt == TRAIN
            assert len(api.all("jobs")) == 1


@pytest.mark.usefixtures("soon")
@story
async def test_without_rights_anywhere_nothing_is_claimed() -> None:
    async with LittleApi() as api, playing(api) as play:
        api.closed = {"team"}
        await api.stop()  # its watches end
        await api.start()
        await until(lambda: "not allowed" in play.runtime.away())
        assert "not allowed" in play.runtime.ill()
        api.closed = set()
        await until(lambda: not play.runtime.away())


@story
async def test_unanswering_server_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("berthmaster.worker.executor.effects.SLOW_S", 0.2)
    fates = iter(["hung", "hung"])
    async with LittleApi() as api, playing(api) as play:
        api.misfortune = lambda method, plural: next(fates, None)
        play.create()
        await until(lambda: "no answer to a call" in play.runtime.away())
        await until(lambda: play.runtime.trouble)  # the call has reached its limit
        assert play.runtime.away()
        await play.job()
        await until(lambda: not play.runtime.away())


# What belongs to a Job: the group of its pods, and templates of their claims

TOGETHER = Style(gangs=Gangs.KUBERNETES)
CLAIMING = JobRequest(id="train", pod_sets=(PodSet(count=2, gpus=1),), run=RunSpec(image="train:1"))
BELONGINGS = ("podgroups", "resourceclaimtemplates")


@pytest.mark.parametrize("fate", ["lost", "hung", (500, "InternalError", "etcd")])
@story
async def test_what_belongs_to_a_job_is_made_after_it_once_and_is_its(fate: Any) -> None:
    fates = {plural: iter([fate]) for plural in BELONGINGS}
    async with LittleApi() as api, playing(api, style=TOGETHER) as play:
        api.misfortune = lambda method, plural: next(fates.get(plural, iter(())), None)
        play.create(CLAIMING)
        job = await play.job()
        await until(lambda: all(api.all(plural) for plural in BELONGINGS))
        await until(lambda: not play.runtime.trouble)
        for plural in BELONGINGS:
            [found] = api.all(plural)
            [owner] = found["metadata"]["ownerReferences"]
            assert owner["uid"] == job["metadata"]["uid"]
            assert found["metadata"]["labels"][labels.WORKLOAD] == "train"
        assert [e for e in play.told if isinstance(e, PodsRefused)] == []
        posts = [plural for method, plural in api.calls if method == "POST"]
        assert posts[0] == "jobs"
        assert posts.count("jobs") == 1


@story
async def test_next_life_makes_missing_dependents() -> None:
    async with LittleApi() as api:
        async with playing(api, style=TOGETHER) as play:
            api.misfortune = lambda method, plural: "hung" if plural in BELONGINGS else None
            play.create(CLAIMING)
            await play.job()
            await until(lambda: ("POST", "podgroups") in api.calls)
        assert [api.all(plural) for plural in BELONGINGS] == [[], []]
        api.misfortune = lambda method, plural: None
        async with playing(api) as play:  # that would make none by itself
            assert play.told[0] == PodsFound(TRAIN)
            await until(lambda: all(api.all(plural) for plural in BELONGINGS))
            # One that has ended needs nothing more.
            await play.says("Complete")
        for plural in BELONGINGS:
            [found] = api.all(plural)
            await api.remove(plural, found["metadata"]["name"])
        async with playing(api):
            await asyncio.sleep(0.2)
        assert [api.all(plural) for plural in BELONGINGS] == [[], []]


@story
async def test_what_cannot_be_made_is_told_and_its_job_is_stopped() -> None:
    why = "spec.devices.requests[0].exactly.deviceClassName: Invalid value"
    async with LittleApi() as api, playing(api) as play:
        api.misfortune = lambda method, plural: (
            (422, "Invalid", why) if plural == "resourceclaimtemplates" else None
        )
        play.create(CLAIMING)
        assert await play.hears(PodsRefused) == PodsRefused(TRAIN, why)
        play.runtime.perform(StopPods(TRAIN, why))
        await until(lambda: bool(api.all("jobs")[0]["spec"].get("suspend")))
        await play.says("Suspended")
        assert await play.hears(PodsGone) == PodsGone(TRAIN, why)


@story
async def test_somebody_elses_object_of_that_name_is_not_taken_for_ours() -> None:
    async with LittleApi() as api, playing(api) as play:
        name = f"{object_name(TRAIN, JOB)}-gpu"
        theirs = {"metadata": {"name": name, "namespace": "team"}, "spec": {}}
        await api.put("resourceclaimtemplates", theirs)
        play.create(CLAIMING)
        refused = await play.hears(PodsRefused)
        assert f"ResourceClaimTemplate team/{name} is there already and is not of Job" in (
            refused.reason
        )


@story
async def test_a_claim_that_is_not_there_is_told_before_anything_is_made() -> None:
    pods = PodSet(claims=("nic",))
    request = JobRequest(id="train", pod_sets=(pods,), run=RunSpec(image="train:1"))
    async with LittleApi() as api, playing(api) as play:
        play.create(request)
        refused = await play.hears(PodsRefused)
        assert refused.reason == (
            "pod set main names the claim nic: there is no ResourceClaimTemplate and no "
            "ResourceClaim of that name in team"
        )
        assert api.all("jobs") == []
        await api.put("resourceclaims", {"metadata": {"name": "nic", "namespace": "team"}})
        play.runtime.perform(StopPods(TRAIN, "x"))
        play.runtime.perform(DeletePods(TRAIN, "x"))
        await until(lambda: not play.runtime.attempts)
        play.create(request)
        job = await play.job()
        [claim] = job["spec"]["template"]["spec"]["resourceClaims"]
        assert claim == {"name": "claim-0", "resourceClaimName": "nic"}
