"""What has the name of a copy's job, and how often a copy's jobs have completed."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest

from berthmaster.lib.kube.controller.problems import Problems
from berthmaster.lib.kube.errors import Forbidden, NotFound
from berthmaster.lib.kube.objects import Object
from berthmaster.lib.kube.wire import Page
from berthmaster.lib.kueue.jobs import HubJob
from berthmaster.lib.kueue.names import ORIGIN_LABEL, PREBUILT
from berthmaster.lib.kueue.workloads import Workload
from berthmaster.lib.messages.fleet import CopyReport, Stamp
from berthmaster.worker.inventory.blockers import ADMITTED_S, AT_ONCE, FIRST_S, WAITING_S, Blockers
from berthmaster.worker.inventory.core.queue_index import QueueIndex

STAMP = Stamp(epoch=1, counter=1)
JOBS = "/apis/batch/v1/namespaces/team/jobs"


class Server:
    def __init__(self) -> None:
        self.there: dict[str, dict[str, str]] = {}  # path -> labels
        self.asked: list[str] = []
        self.forbids = False

    async def get(self, path: str, kind: type[Object]) -> Object:
        self.asked.append(path)
        if self.forbids:
            raise Forbidden(403, "Forbidden", "no right", path)
        if path not in self.there:
            raise NotFound(404, "NotFound", "none", path)
        return self._object(path, kind)

    async def list_pages(
        self, resource: Any, kind: type[Object], *, namespace: str
    ) -> AsyncGenerator[Page[Object], None]:
        folder = resource.path(namespace=namespace)
        self.asked.append(folder)
        items = [self._object(p, kind) for p in self.there if p.rpartition("/")[0] == folder]
        for number, item in enumerate(items):
            last = number == len(items) - 1
            yield Page((item,), "1", first=not number, last=last)

    def _object(self, path: str, kind: type[Object]) -> Object:
        metadata = {"name": path.rpartition("/")[2], "labels": self.there[path]}
        return msgspec.convert({"metadata": metadata}, kind)


class Bed:
    def __init__(self) -> None:
        self.server = Server()
        self.queues = QueueIndex("east", Problems())
        self.woken = 0
        self.blockers = Blockers(self.server, self.queues, self._wake)  # type: ignore[arg-type]
        self.now_s = 100.0

    def _wake(self) -> None:
        self.woken += 1

    def copy(self, name: str = "job-train-3f9a1", *, admitted: bool = True, job: str = "") -> None:
        owners = [{"kind": "Job", "name": job, "controller": True}] if job else []
        metadata = {
            "name": name,
            "namespace": "team",
            "labels": {ORIGIN_LABEL: "hub"},
            "ownerReferences": owners,
        }
        conditions = [{"type": "Admitted", "status": "True" if admitted else "False"}]
        body = {"metadata": metadata, "status": {"conditions": conditions}}
        self.queues.set_copy(msgspec.convert(body, Workload))

    def wait(self, seconds: float, step_s: float = 0.5) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += step_s
            asyncio.run(self.blockers.look(self.now_s))

    def report(self, name: str = "job-train-3f9a1") -> CopyReport:
        return self.queues.copy(("team", name), STAMP, 0.0, served=True)


def test_a_stranger_s_job_is_reported_until_it_is_gone() -> None:
    bed = Bed()
    bed.server.there[f"{JOBS}/train"] = {}
    bed.copy()
    bed.wait(FIRST_S + 1.0)
    assert bed.report().blocked_by == "Job team/train"
    assert not bed.report().running
    assert bed.queues.dirty_copies == {("team", "job-train-3f9a1"): True}
    assert bed.woken > 0
    del bed.server.there[f"{JOBS}/train"]
    bed.wait(ADMITTED_S + 1.0)
    assert bed.report().blocked_by == ""
    assert bed.report().running


@pytest.mark.parametrize(
    ("labels", "blocked"),
    [({ORIGIN_LABEL: "hub"}, ""), ({ORIGIN_LABEL: "other hub"}, "Job team/train")],
)
def test_a_job_of_another_hub_is_a_stranger_s_too(labels: dict[str, str], blocked: str) -> None:
    bed = Bed()
    bed.server.there[f"{JOBS}/train"] = labels
    bed.copy()
    bed.wait(FIRST_S + 1.0)
    assert bed.report().blocked_by == blocked


def test_a_copy_with_a_job_is_not_looked_at_and_blocks_nothing_any_more() -> None:
    bed = Bed()
    bed.server.there[f"{JOBS}/train"] = {}
    bed.copy()
    bed.wait(FIRST_S + 1.0)
    bed.copy(job="train")
    assert bed.report().blocked_by == ""
    asked = len(bed.server.asked)
    bed.wait(60.0)
    assert len(bed.server.asked) == asked


def test_the_whole_of_a_name_that_kueue_cut_off_is_found_by_its_beginning() -> None:
    bed = Bed()
    long = "a" * 60
    bed.server.there[f"{JOBS}/other"] = {}
    bed.server.there[f"{JOBS}/{long}"] = {}
    name = f"job-{'a' * 53}-3f9a1"
    bed.copy(name)
    bed.wait(FIRST_S + 1.0)
    assert bed.report(name).blocked_by == f"Job team/{long}"


@pytest.mark.parametrize(
    ("workload", "path"),
    [
        ("jobset-s-3f9a1", "/apis/jobset.x-k8s.io/v1alpha2/namespaces/team/jobsets/s"),
        ("rayjob-s-3f9a1", "/apis/ray.io/v1/namespaces/team/rayjobs/s"),
        ("pytorchjob-s-3f9a1", "/apis/kubeflow.org/v1/namespaces/team/pytorchjobs/s"),
    ],
)
def test_other_kinds_are_looked_at_where_they_are(workload: str, path: str) -> None:
    bed = Bed()
    bed.server.there[path] = {}
    bed.copy(workload)
    bed.wait(FIRST_S + 1.0)
    assert bed.report(workload).blocked_by.endswith(" team/s")


def test_a_name_or_kind_that_is_unknown_costs_no_call() -> None:
    bed = Bed()
    for name in ("train", "mystery-train-3f9a1"):
        bed.copy(name)
    bed.wait(30.0)
    assert bed.server.asked == []


def test_a_copy_that_waits_is_looked_at_seldom_and_soon_after_its_admission() -> None:
    bed = Bed()
    bed.copy(admitted=False)
    bed.wait(FIRST_S + WAITING_S - 2.0)
    assert len(bed.server.asked) == 1
    bed.copy()
    bed.wait(FIRST_S + 1.0)
    assert len(bed.server.asked) == 2


def test_looks_have_a_bound_a_beat_and_all_get_their_turn() -> None:
    bed = Bed()
    for number in range(30):
        bed.copy(f"job-j{number}-3f9a1", admitted=False)
    bed.wait(0.5)
    bed.now_s += FIRST_S
    bed.wait(0.5)
    assert len(bed.server.asked) == AT_ONCE
    bed.wait(4.0)
    assert len(set(bed.server.asked)) == 30


def test_without_the_right_it_is_asked_once_a_minute() -> None:
    bed = Bed()
    bed.server.forbids = True
    bed.copy()
    bed.wait(FIRST_S + 50.0)
    assert len(bed.server.asked) == 1


def sent_job(uid: str, *, complete: bool = True, of: str = "job-train-3f9a1") -> HubJob:
    metadata = {"name": "train", "namespace": "team", "uid": uid, "annotations": {PREBUILT: of}}
    conditions = [{"type": "Complete", "status": "True" if complete else "False"}]
    body = {"metadata": metadata, "status": {"conditions": conditions}}
    return msgspec.convert(body, HubJob)


def test_jobs_that_complete_are_counted_once_each_also_after_their_copy_is_gone() -> None:
    bed = Bed()
    bed.copy(job="train")
    for job in (sent_job("1", complete=False), sent_job("1"), sent_job("1")):
        bed.queues.set_sent_job(job)
    assert bed.report().succeeded == 1
    bed.queues.drop_copy(("team", "job-train-3f9a1"))
    bed.queues.dirty_copies.clear()
    bed.queues.set_sent_job(sent_job("2"))
    assert bed.queues.dirty_copies == {("team", "job-train-3f9a1"): True}
    gone = bed.report()
    assert (gone.gone, gone.succeeded) == (True, 2)
    bed.queues.set_sent_job(sent_job("3", of=""))
    assert list(bed.queues.dirty_copies) == [("team", "job-train-3f9a1")]
