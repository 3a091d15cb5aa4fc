"""The reconciler against real API servers and a Kueue: each mode end to end, demos, black holes."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from berthmaster.lab.controlplane.api import ApiError
from berthmaster.lab.controlplane.kueue.objects import condition_of
from berthmaster.lab.controlplane.kueue.setup import API, Kueue, Options
from berthmaster.lab.controlplane.nodes import gpu_node, make_nodes
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.lifecycle.workload import key, request_digest
from berthmaster.lib.messages.control import Cordon, QueuePlace, QueueSetting
from berthmaster.lib.messages.workload import JobRequest, PodSet, RunSpec, Submitted
from tests.cluster.multikueueing import Bus, Rig, running_in

ONE, TWO, THREE = "worker-1", "worker-2", "worker-3"
WORKERS = (ONE, TWO, THREE)


@pytest.fixture
def nodes(planes: Planes) -> None:
    for worker in planes.workers:
        make_nodes(worker, [gpu_node(f"{worker.name}-node", model="NVIDIA-A100", gpus=8)])


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    with Bus(tmp_path) as bus:
        yield bus


@pytest.fixture
def options() -> Options:
    return Options(dispatcher="berthmaster.io/dispatcher")


@pytest.fixture
def rig(
    planes: Planes, namespace: str, nodes: None, bus: Bus, tmp_path: Path, options: Options
) -> Iterator[Rig]:
    with Kueue(planes, namespace, options=options) as k:
        rig = Rig(k, bus, tmp_path)
        for name in WORKERS:
            bus.worker(name)
            bus.queue(name, k)
        try:
            yield rig
        finally:
            rig.kill()


def test_dispatch_sends_a_job_to_the_roomiest_worker_and_its_end_comes_back(rig: Rig) -> None:
    rig.bus.worker(ONE, free=2)
    rig.bus.worker(TWO, free=8)
    rig.bus.worker(THREE, free=4)
    rig.start()
    rig.submit("train", run_s="3")
    rig.until_told("train", "succeeded worker-2")
    story = rig.story("train")
    assert story[:4] == ["submitted", f"placed {TWO}", f"claimed {TWO}", f"admitted {TWO}"]
    assert set(story[4:]) == {f"running {TWO}", f"succeeded {TWO}"}
    (choice,) = rig.bus.decisions[0].placements
    assert [ranked.cluster for ranked in choice.ranking] == [TWO, THREE, ONE]
    assert rig.k.copies("train") in ([], [TWO])
    rig.until(lambda: rig.events("train", "Nominated"), "an event")
    assert rig.events("train", "Nominated") == [f"attempt 1: {TWO} (fits now, room for 8)"]
    rig.nothing_wrong()
    assert rig.stop() == 0


def test_demo_two_each_job_goes_where_most_gpus_are_free_at_that_moment(rig: Rig) -> None:
    rig.start()
    free = {ONE: 5, TWO: 3, THREE: 1}
    expected = []
    for number, best in enumerate((ONE, TWO, THREE)):
        for name in WORKERS:
            rig.bus.worker(name, free=8 if name == best else free[name] // 3)
        job = f"job-{number}"
        rig.submit(job)
        rig.until(lambda job=job: rig.k.cluster_of(job), f"{job} runs")  # type: ignore[misc]
        expected.append((rig.k.cluster_of(job), best))
    assert [got for got, _ in expected] == [want for _, want in expected]
    rig.nothing_wrong()


def test_demo_one_a_selector_on_the_queue_keeps_jobs_on_t4_clusters(rig: Rig) -> None:
    rig.bus.worker(ONE, free=8, labels={"accelerator": "nvidia-a100"})
    rig.bus.worker(TWO, free=8)
    rig.bus.worker(THREE, free=1, labels={"accelerator": "nvidia-tesla-t4"})
    queue = f"/apis/kueue.x-k8s.io/v1beta2/clusterqueues/{rig.k.cluster_queue}"
    selector = {"berthmaster.io/cluster-selector": "accelerator=nvidia-tesla-t4"}
    rig.k.planes.hub.api.merge(queue, {"metadata": {"annotations": selector}})
    rig.start()
    for number in range(3):
        rig.submit(f"t4-{number}")
    for number in range(3):
        rig.until(lambda n=number: rig.k.cluster_of(f"t4-{n}"), "it runs")  # type: ignore[misc]
        assert rig.k.cluster_of(f"t4-{number}") == THREE
    (first, *_) = rig.bus.decisions[0].placements
    assert first.filtered[ONE] == "its labels do not match accelerator=nvidia-tesla-t4"


def test_a_worker_that_does_not_admit_is_followed_by_the_next_best(rig: Rig) -> None:
    """A black hole: its queue is stopped, and the hub says nothing of that."""
    rig.bus.worker(ONE, free=8)
    rig.bus.worker(TWO, free=4)
    rig.bus.worker(THREE, free=2)
    rig.k.stop_queue(ONE, "Hold")
    rig.start()
    name = rig.submit("train")
    rig.until(lambda: ONE in rig.k.nominated("train"), "nominated")
    rig.until(lambda: rig.k.copies("train"), "a copy")
    rig.bus.copy(ONE, rig.k, "train", message="ClusterQueue is inactive")
    rig.until(lambda: rig.k.nominated("train") == [], "the nomination is taken back")
    rig.until(lambda: rig.k.copies("train") == [], "its copy is removed")
    assert "its copy in worker-1 has to go first" in rig.bus.why(name).summary
    assert rig.k.nominated("train") == []
    rig.bus.copy(ONE, rig.k, "train", gone=True)
    rig.until(lambda: rig.k.cluster_of("train") == TWO, "it runs in the next best")
    rig.until_told("train", f"admitted {TWO}", f"running {TWO}")
    assert f"evicted {ONE}" in rig.story("train")
    assert rig.bus.why(name).summary.startswith(f"running on {TWO}")
    rig.nothing_wrong()


def test_a_black_hole_without_another_way_out_is_told_everywhere(rig: Rig) -> None:
    rig.k.set_clusters([ONE])
    rig.k.stop_queue(ONE, "Hold")
    rig.start()
    name = rig.submit("train")
    rig.until(lambda: rig.k.nominated("train") == [ONE], "nominated")
    rig.bus.queue(ONE, rig.k, stopped=True, stop_policy="Hold")
    rig.until(lambda: rig.events("train", "StoppedQueue"), "an event on the Workload")
    words = f"ClusterQueue {rig.k.cluster_queue} of {ONE} is stopped (stopPolicy Hold)"
    assert rig.events("train", "StoppedQueue") == [words]
    assert words in rig.bus.why(name).summary

    # It opens again: nothing else is needed.
    rig.k.stop_queue(ONE, "None")
    rig.bus.queue(ONE, rig.k)
    rig.until_told("train", f"admitted {ONE}", f"running {ONE}")


def test_observe_writes_nothing_and_tells_where_kueue_sent_it(rig: Rig) -> None:
    rig.k.restart_manager("hub", dispatcher="AllAtOnce")
    rig.bus.worker(ONE, free=2)
    rig.bus.worker(TWO, free=8)
    rig.start("observe")
    rig.ready()
    rig.submit("train", run_s="1")
    rig.until(lambda: "succeeded" in " ".join(rig.story("train")), "its end")
    story = rig.story("train")
    where = story[1].removeprefix("placed ")
    assert where in WORKERS
    assert story[:4] == ["submitted", f"placed {where}", f"claimed {where}", f"admitted {where}"]
    (choice,) = rig.bus.decisions[0].placements
    assert max(choice.ranking, key=lambda ranked: ranked.score).cluster == TWO or where != TWO
    calls = rig.log.read_text()
    assert "not written" not in calls
    assert rig.events("train", "Nominated") == []
    rig.nothing_wrong()


def test_a_job_deleted_on_the_hub_is_cancelled_on_the_bus(rig: Rig) -> None:
    rig.start()
    name = rig.submit("train")
    rig.until(lambda: rig.k.cluster_of("train"), "it runs")
    where = rig.k.cluster_of("train")
    api = rig.k.planes.hub.api
    api.delete(f"/apis/batch/v1/namespaces/{rig.k.namespace}/jobs/train")
    meta = rig.k.workload("train")
    if meta is not None:  # a hub without a controller manager collects nothing by itself
        with contextlib.suppress(ApiError):  # ... one with it may be quicker than we are
            api.delete(rig.k.path(meta["metadata"]["name"]))
    rig.until(lambda: rig.bus.kinds(name)[-1] == f"cancelled {where}", "cancelled")


def test_several_jobs_at_once_are_spread_and_each_runs_once(rig: Rig) -> None:
    for name in WORKERS:
        rig.bus.worker(name, free=4)
    rig.start()
    jobs = [f"job-{number}" for number in range(9)]
    for job in jobs:
        rig.submit(job)
    where: list[str] = []
    for job in jobs:
        rig.until(lambda job=job: rig.k.cluster_of(job), f"{job} runs")  # type: ignore[misc]
        cluster = rig.k.cluster_of(job)
        assert running_in(rig.k, job, WORKERS) in ([], [cluster])
        where.append(cluster)
        # As its agent reports: what was admitted some time ago counts by what nodes show.
        rig.bus.worker(cluster, free=4 - where.count(cluster))
    # A report that comes late costs one its even share; none is left out.
    assert set(where) == set(WORKERS)
    rig.nothing_wrong()


def test_a_request_on_the_bus_becomes_a_job_on_the_hub_and_runs_in_a_worker(rig: Rig) -> None:
    place = QueuePlace(namespace=rig.k.namespace, local_queue=rig.k.queue)
    rig.bus.set_queue(QueueSetting(queue="gpu", via="hub", places={"hub": place}))
    rig.bus.worker(TWO, free=4)
    rig.bus.worker(THREE, free=2)
    rig.start()
    env = {"BERTH_TEST_RUN_S": "1", "BERTH_TEST_EXIT_CODE": "0"}
    request = JobRequest(
        id="train",
        queue="gpu",
        pod_sets=(PodSet(count=2, gpus=2),),
        run=RunSpec(image="example.org/train:1", command=("train",), env=env),
    )
    rig.bus.append(
        Submitted(
            tenant="acme",
            id="train",
            after=0,
            at_s=0.0,
            by="gateway",
            request=request,
            digest=request_digest(request),
            cell="hub",
        )
    )
    name = key("acme", "train")
    rig.until(lambda: rig.bus.kinds(name)[-1:] == [f"succeeded {ONE}"], "its end")
    assert rig.bus.kinds(name)[:4] == [
        "submitted",
        f"placed {ONE}",
        f"claimed {ONE}",
        f"admitted {ONE}",
    ]
    rig.nothing_wrong()


def test_a_check_of_our_own_is_active_passed_and_chooses_by_its_selector(rig: Rig) -> None:
    api = rig.k.planes.hub.api
    rig.bus.worker(THREE, free=1, labels={"zone": "north"})
    check = rig.add_our_check("")
    rig.start()

    def active() -> tuple[str, str]:
        found = condition_of(api.get(f"{API}/admissionchecks/{check}"), "Active") or {}
        return found.get("status", ""), found.get("message", "")

    rig.until(lambda: active()[0] == "False", "without its ConfigMap it is not active")
    assert active()[1] == f"ConfigMap {rig.k.namespace}/where does not exist"
    rig.choose_by("zone=north")
    rig.until(lambda: active() == ("True", "chooses among clusters with labels zone=north"), "yes")
    rig.submit("train")
    rig.until_told("train", f"admitted {THREE}", f"running {THREE}")
    assert rig.k.state_of("train", check) == "Ready"
    rig.nothing_wrong()


def test_people_move_evict_and_drain_what_runs_while_other_jobs_come(rig: Rig) -> None:
    rig.bus.worker(THREE, labels={"zone": "south"})
    for name in (ONE, TWO):
        rig.bus.worker(name, labels={"zone": "north"})
    rig.flags = ("--patience-s", "600")  # a hub that is slow moves nothing
    rig.start()
    check = rig.add_our_check("zone=north")
    rig.bus.worker(TWO, free=0)
    jobs = [f"job-{number}" for number in range(4)]
    for job in jobs:
        rig.submit(job)
    for job in jobs:
        rig.until_told(job, f"running {ONE}")
    age = {job: rig.bus.folds[rig.name(job)].submitted_sequence for job in jobs}

    # One is evicted, one is to move once there is room, and more come meanwhile.
    rig.bus.ask_to_go(rig.name("job-0"), "evict")
    rig.bus.ask_to_go(rig.name("job-1"), "move", to=TWO)
    more = [f"more-{number}" for number in range(3)]
    for job in more:
        rig.submit(job)
    rig.until(lambda: "evicted worker-1" in rig.story("job-0"), "Kueue has ended it")
    rig.until(lambda: rig.k.state_of("job-0", check) == "Ready", "and it may go again")
    assert f"moverequested {ONE}" == rig.story("job-1")[-1]
    rig.bus.worker(TWO, free=8)
    rig.until_told("job-1", f"admitted {TWO}", f"running {TWO}")
    kept = next(d for d in rig.bus.decisions if d.moves and d.moves[0].to)
    assert [(each.to, each.who) for each in kept.moves] == [(TWO, "operator ann")]

    # What is left on the first worker goes to the second, as that is drained.
    rig.bus.cordon(Cordon(cluster=ONE, cordoned=True, drain=True, reason="new kernel"))
    for job in [*jobs, *more]:
        rig.until(lambda job=job: rig.k.cluster_of(job) == TWO, f"{job} has left")  # type: ignore[misc]
        rig.until_told(job, f"running {TWO}")
        assert running_in(rig.k, job, WORKERS) == [TWO]
    folds = {job: rig.bus.folds[rig.name(job)] for job in jobs}
    assert {job: fold.submitted_sequence for job, fold in folds.items()} == age
    assert [fold.evictions for fold in folds.values()] == [0, 0, 0, 0]
    rig.nothing_wrong()


def test_what_is_held_runs_nowhere_and_keeps_no_quota_until_it_is_released(rig: Rig) -> None:
    rig.start()
    rig.add_our_check("zone!=none")
    name = rig.submit("train")
    rig.until(lambda: "".join(rig.bus.kinds(name)[-1:]).startswith("running"), "it runs")
    rig.bus.hold(name)
    rig.until(lambda: rig.k.workload("train")["spec"].get("active") is False, "it is off")  # type: ignore[index]
    rig.until(lambda: not rig.k.has("train", "QuotaReserved"), "it has no quota")
    assert running_in(rig.k, "train", WORKERS) == []
    job = rig.k.job("train")
    assert job is not None
    assert not job["status"].get("active"), "the last word on its pods was heard"
    assert "held by ann" in rig.bus.why(name).summary

    # One that waits is switched off as well, and what is off asks for nothing.
    rig.k.stop_queue("hub", "Hold")
    later = rig.submit("later")
    rig.until(lambda: rig.bus.kinds(later) == ["submitted"], "it is known")
    rig.bus.hold(later)
    rig.until(lambda: rig.k.workload("later")["spec"].get("active") is False, "it is off")  # type: ignore[index]
    rig.k.stop_queue("hub", "None")
    rig.restart()
    rig.bus.release(name)
    rig.until(lambda: "".join(rig.bus.kinds(name)[-1:]).startswith("running"), "it runs again")
    assert rig.bus.kinds(later) == ["submitted", "held"]
    assert rig.bus.folds[name].moves == 1
    rig.bus.release(later)
    rig.until(lambda: "".join(rig.bus.kinds(later)[-1:]).startswith("running"), "it runs")
    rig.nothing_wrong()
