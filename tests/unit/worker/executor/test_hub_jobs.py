"""Jobs that came by way of a hub: whose their pods are, what is told of them, what is kept."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec
import pytest

from berthmaster.lib.door_client.client import DoorClient
from berthmaster.lib.lifecycle.instructions import Outcome, Refused, Stored
from berthmaster.lib.messages.door import (
    HubPods,
    HubWork,
    HubWorkReply,
    HubWorkRequest,
    LogEndRequest,
)
from berthmaster.lib.messages.families import encode
from berthmaster.lib.messages.workload import Checkpoint, Checkpointed, Progress, Progressed
from berthmaster.lib.nats.errors import NoAnswer
from berthmaster.worker.executor import logs
from berthmaster.worker.executor.core.cluster_protocol import Attempt, PodEvent, PodsRunning
from berthmaster.worker.executor.hub_jobs import HubJobs
from berthmaster.worker.executor.hub_words import HubWords
from berthmaster.worker.executor.logs import LogDesk, NoLog
from berthmaster.worker.executor.pod_logs import PodLogs
from berthmaster.worker.executor.progress import ProgressReader
from tests.support.patience import NEVER_S, hang_s
from tests.unit.lib.kube.stage import Lines
from tests.unit.worker.executor.little_api import LittleApi

TRAIN = Attempt("acme", "train", 2)
NOW_S = 1_795_514_410.0
RAN: dict[str, Any] = {"phase": "Running"}


class OwnPods:
    """A cluster in which the executor itself has one attempt."""

    def holds(self, attempt: Attempt) -> bool:
        return attempt.id == "own"

    def pods_of(self, attempt: Attempt) -> list[Any]:
        return []


class Door:
    """Knows the workloads that it is given, and keeps what it is told."""

    cluster = "berlin"

    seen = 0

    def __init__(self, **works: HubWork) -> None:
        self.works = works  # by the Kueue Workload's name, or the Job's
        self.asked: list[HubPods] = []
        self.told: list[Progressed | Checkpointed] = []
        self.ends: list[tuple[int, int, bytes]] = []
        self.outcomes: list[Outcome] = []
        self.is_away = False
        self.asked_in_vain = 0
        self.now_s = NOW_S

    def now(self) -> float:
        return self.now_s

    async def ask(self, verb: str, request: msgspec.Struct | bytes, **how: float) -> bytes:
        if self.is_away:
            self.asked_in_vain += 1
            raise NoAnswer("away")
        if isinstance(request, LogEndRequest):
            self.ends += [(end.attempt, end.pod, end.data) for end in request.ends]
            return b"{}"
        assert isinstance(request, HubWorkRequest)
        self.asked += request.asked
        by_workload = (self.works.get(one.workload) for one in request.asked)
        found = (
            work or self.works.get(one.job)
            for work, one in zip(by_workload, request.asked, strict=True)
        )
        return encode(HubWorkReply(found=tuple(found)))

    async def append(self, event: Progressed | Checkpointed) -> Outcome:
        self.told.append(event)
        return self.outcomes.pop(0) if self.outcomes else Stored(event.after + 1)


def work(sequence: int = 7, attempt: int = 2, *pod_sets: str) -> HubWork:
    return HubWork(
        tenant="acme",
        id="train",
        attempt=attempt,
        sequence=sequence,
        pod_sets=pod_sets or ("main",),
    )


def pod(
    name: str,
    workload: str = "",
    pod_set: str = "main",
    *,
    owner: tuple[str, str] = ("Job", "train"),
    status: dict[str, Any] = RAN,
    **numbers: int,
) -> dict[str, Any]:
    """As Kueue marks it and its controller makes it."""
    of_job = {"batch.kubernetes.io/job-name": owner[1]} if owner[0] == "Job" else {}
    said = {"kueue.x-k8s.io/workload": workload} if workload else {}
    keys = {
        "index": "batch.kubernetes.io/job-completion-index",
        "job": "jobset.sigs.k8s.io/job-index",
        "replica": "training.kubeflow.org/replica-index",
    }
    of_numbers = {keys[key]: str(value) for key, value in numbers.items()}
    reference = {"kind": owner[0], "name": owner[1], "uid": "u", "controller": True}
    return {
        "metadata": {
            "name": name,
            "namespace": "team",
            "labels": {"kueue.x-k8s.io/podset": pod_set} | of_job | of_numbers,
            "annotations": said,
            "ownerReferences": [reference],
        },
        "status": status,
    }


async def until(what: Callable[[], object]) -> None:
    async with asyncio.timeout(hang_s()):
        while not what():
            await asyncio.sleep(0.01)


class Bench:
    """An executor's part that is about them, above an API server and a door of the test's."""

    def __init__(self, api: LittleApi, door: Door, jobs: HubJobs, client: Any) -> None:
        self.api, self.door, self.jobs = api, door, jobs
        self.logs = PodLogs(client, OwnPods(), jobs)  # type: ignore[arg-type]
        self.cores: list[PodEvent] = []
        to_door = cast(DoorClient, door)
        self.progress = ProgressReader(self.logs, looks_per_s=9, clock=door.now)
        desk = LogDesk(to_door, self.logs, bytes_per_s=1e9)
        self.words = HubWords(self.progress, desk, jobs, to_door, "executor/berlin")
        self.progress.start(self.hear)

    def hear(self, event: PodEvent) -> None:
        """As the shell does."""
        if not self.words.takes(event):
            self.cores.append(event)

    async def names(self, attempt: Attempt = TRAIN) -> list[str]:
        return list(await self.logs.pods(attempt))

    async def look(self) -> None:
        await self.progress._look(self.progress._watched[TRAIN])


@pytest.fixture(autouse=True)
def ends_are_read_however_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "END_LIMIT_S", NEVER_S)


def bench(story: Callable[[Bench], Awaitable[None]], **works: HubWork) -> None:
    async def whole() -> None:
        async with LittleApi() as api:
            client = await api.client(Lines())
            door, stopping = Door(**works), asyncio.Event()
            jobs = HubJobs(client, ("team", "other"), door, Lines())
            there = Bench(api, door, jobs, client)
            running = [asyncio.create_task(each.run(stopping)) for each in (jobs, there.words)]
            try:
                await story(there)
            finally:
                stopping.set()
                await asyncio.gather(*running)
                await client.close()

    asyncio.run(whole())


def test_pods_are_known_by_kueues_word_on_them_whatever_made_them_and_keep_their_order() -> None:
    async def story(there: Bench) -> None:
        # A JobSet's: of two Jobs. Kueue's own names of pod sets, in the request's order.
        made: dict[str, Any] = {"owner": ("Job", "train-workers-0")}
        await there.api.put("pods", pod("w-b", "wl", "workers", job=1, index=10, **made))
        await there.api.put("pods", pod("w-c", "wl", "workers", job=1, index=9, **made))
        await there.api.put("pods", pod("w-a", "wl", "workers", job=0, index=3, **made))
        await there.api.put("pods", pod("h", "wl", "head", owner=("Job", "train-head-0")))
        await there.api.put("pods", pod("i", "wl", "dataset-initializer"))
        await there.api.put("pods", pod("stranger", "of-this-clusters-own-kueue"))
        await until(lambda: there.jobs.work_of(TRAIN))
        assert await there.names() == ["h", "w-a", "w-c", "w-b", "i"]
        there.api.logs = {"w-a": b"2026-11-25T01:00:00Z begins\n"}
        stream = await there.logs.open(TRAIN, "w-a", since_s=None, tail=None, follow=True)
        assert await stream.read() == b"2026-11-25T01:00:00Z begins\n"
        stream.close()
        with pytest.raises(NoLog, match="pod stranger is gone"):
            await there.logs.open(TRAIN, "stranger", since_s=None, tail=None, follow=False)
        # Nobody's are those of another attempt, another tenant, our own, or not here.
        for attempt in (
            TRAIN._replace(number=1),
            TRAIN._replace(tenant="evil"),
            Attempt("acme", "own", 1),
            Attempt("acme", "none", 1),
        ):
            assert await there.names(attempt) == []

        # One that has gone keeps its number while others are there, then all is forgotten: what
        # comes under that name is asked about anew, as another attempt.
        await there.api.remove("pods", "h")
        await until(lambda: len(there.api.all("pods")) == 5)
        assert (await there.names()).index("w-a") == 1
        for name in ("w-a", "w-b", "w-c", "i"):
            await there.api.remove("pods", name)
        await until(lambda: there.jobs.work_of(TRAIN) is None)
        there.door.works["wl"] = work(20, 3)
        await there.api.put("pods", pod("again", "wl"))
        later = TRAIN._replace(number=3)
        await until(lambda: there.jobs.work_of(later))
        assert await there.names(later) == ["again"]

    bench(story, wl=work(7, 2, "head", "workers"))


def test_a_pod_that_is_made_in_anothers_stead_takes_over_its_number() -> None:
    async def story(there: Bench) -> None:
        # A Job tries an index again: the pod that failed stays, and the newer one is what counts.
        there.api.logs = {"z-0": b"2026-11-25T10:00:00Z z-0\n"}
        for name, index in (("z-0", 0), ("b-1", 1)):
            made = pod(name, "wl", index=index)
            made["metadata"]["creationTimestamp"] = "2026-11-25T10:00:00Z"
            await there.api.put("pods", made)
        await until(lambda: there.jobs.work_of(TRAIN))
        await there.api.change("pods", "z-0", status={"phase": "Failed"})
        again = pod("c-0", "wl", index=0)
        again["metadata"]["creationTimestamp"] = "2026-11-25T10:00:09Z"
        await there.api.put("pods", again)
        await until(lambda: "c-0" in [one.metadata.name for one in there.jobs.pods_of(TRAIN)])
        assert await there.names() == ["c-0", "b-1"]
        await there.api.change("pods", "z-0", metadata={"finalizers": []})
        await until(lambda: there.door.ends)
        assert there.door.ends == [(2, 0, b"2026-11-25T10:00:00Z z-0\n")]
        # A RayCluster's pods have no numbers: a new one takes the place of one that has gone.
        ray = {"owner": ("RayCluster", "r")}
        for name in ("x-head", "w-1", "w-2"):
            of = "head" if name == "x-head" else "workers"
            await there.api.put("pods", pod(name, "ray", of, **ray))  # type: ignore[arg-type]
        rays = TRAIN._replace(id="ray")
        await until(lambda: len(there.jobs.pods_of(rays)) == 3)
        await there.api.remove("pods", "w-1")
        await there.api.put("pods", pod("z-3", "ray", "workers", **ray))  # type: ignore[arg-type]
        await until(lambda: "z-3" in [one.metadata.name for one in there.jobs.pods_of(rays)])
        assert await there.names(rays) == ["x-head", "z-3", "w-2"]
        assert await there.names() == ["c-0", "b-1"]

    of_ray = msgspec.structs.replace(work(7, 2, "head", "workers"), id="ray")
    bench(story, wl=work(), ray=of_ray)


def test_without_kueues_word_a_job_is_known_by_its_name_and_a_door_that_is_away_is_asked() -> None:
    async def story(there: Bench) -> None:
        there.door.is_away = True
        await there.api.put("pods", pod("b", index=1))
        await there.api.put("pods", pod("a", index=0))
        await there.api.put("pods", pod("nobodys", owner=("PyTorchJob", "train")))
        await until(lambda: there.door.asked_in_vain)
        assert await there.names() == []
        there.door.is_away = False
        await until(lambda: there.jobs.work_of(TRAIN))
        assert await there.names() == ["a", "b"]
        assert there.door.asked == [HubPods(namespace="team", job="train")]

    bench(story, train=work())


SAID = (
    b'2026-11-24T10:00:00Z BERTH {"step": 5, "eta_s": 60}\n'
    b'2026-11-24T10:00:00Z BERTH {"checkpoint": {"step": 4, "uri": "s3://runs/4"}}\n'
)
HEAD: dict[str, Any] = {
    "tenant": "acme",
    "id": "train",
    "at_s": NOW_S,
    "by": "executor/berlin",
    "cluster": "berlin",
    "attempt": 2,
}


def test_what_it_says_is_told_behind_what_its_reconciler_wrote_and_to_no_core() -> None:
    async def story(there: Bench) -> None:
        await there.api.put("pods", pod("a", "wl"))
        await until(lambda: TRAIN in there.progress._watched)
        there.api.logs = {"a": SAID}
        # The reconciler was first: it is asked where the story stands, and told again.
        there.door.outcomes = [Refused()]
        there.door.works["wl"] = work(9)
        await there.look()
        await until(lambda: there.door.told)
        there.door.now_s += 2
        await until(lambda: len(there.door.told) == 3)
        saved = Checkpoint(step=4, uri="s3://runs/4")
        first, again, how_far = there.door.told
        assert first == Checkpointed(**HEAD, after=7, checkpoint=saved)
        assert again == Checkpointed(**HEAD | {"at_s": NOW_S + 2}, after=9, checkpoint=saved)
        assert isinstance(how_far, Progressed)
        assert (how_far.after, how_far.progress) == (10, Progress(step=5, eta_s=48.0))
        # The executor's own go on as ever, and its core hears of none but them.
        own = PodsRunning(Attempt("acme", "own", 1), ())
        there.progress.pass_on(own)
        assert there.cores == [own]

    bench(story, wl=work(7))


def test_ends_are_kept_when_a_pod_has_ended_or_is_deleted_and_once_each() -> None:
    async def story(there: Bench) -> None:
        there.api.logs = {"a": b"2026-11-25T01:00:00Z a\n", "b": b"2026-11-25T01:00:00Z b\n"}
        await there.api.put("pods", pod("a", "wl", index=0))
        await there.api.put("pods", pod("b", "wl", index=1))
        await until(lambda: there.jobs.work_of(TRAIN))
        assert there.door.ends == []
        await there.api.change("pods", "b", status={"phase": "Succeeded"})
        await until(lambda: there.door.ends)
        await there.api.change("pods", "b", status={"reason": "said twice"})
        leaving = {"deletionTimestamp": "2026-11-21T12:00:00Z"}
        await there.api.change("pods", "a", metadata=leaving)
        await until(lambda: len(there.door.ends) == 2)
        assert there.door.ends == [
            (2, 1, b"2026-11-25T01:00:00Z b\n"),
            (2, 0, b"2026-11-25T01:00:00Z a\n"),
        ]
        for name in ("a", "b"):
            await there.api.remove("pods", name)
        await until(lambda: not there.words._heard)
        assert TRAIN not in there.progress._watched

    bench(story, wl=work())
