"""What a dispatcher must survive, on real API servers, beside what breaks (test_multikueue_faults,
test_multikueue_outages): workers lost for too long, remotes that are changed or left behind,
configurations and Secrets that are missing, odd conditions, preemptions, unequal quota."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from berthmaster.cli.audit.report import audit
from berthmaster.cli.doctor.core import diagnose
from berthmaster.cli.doctor.nominations import MERGE_GATE
from berthmaster.cli.doctor.reader import ClusterAccess, survey
from berthmaster.lab.controlplane.api import documents
from berthmaster.lab.controlplane.components import has_mutating_policies
from berthmaster.lab.controlplane.kueue import builders
from berthmaster.lab.controlplane.kueue.managers import environment
from berthmaster.lab.controlplane.kueue.objects import is_true
from berthmaster.lab.controlplane.kueue.setup import API, QUOTAS, SYSTEM, Kueue, Options
from berthmaster.lab.controlplane.nodes import gpu_node, make_nodes
from berthmaster.lab.controlplane.plane import Plane
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lab.controlplane.processes import Process
from berthmaster.lib.kueue.jobs import POLICY_FILE
from berthmaster.lib.kueue.names import ORIGIN_LABEL
from berthmaster.lib.kueue.versions import ENDED_JOBS
from berthmaster.lib.lifecycle.workload import Key
from berthmaster.lib.messages.workload import Evicted
from tests.cluster.doctoring import ROOT, type_in
from tests.cluster.multikueue_bus import Bus
from tests.cluster.multikueue_workers import ENDS, Census, each_ends_once, inventories
from tests.cluster.multikueueing import Rig, running_in
from tests.support.patience import wait_until

ONE, TWO, THREE = "worker-1", "worker-2", "worker-3"
WORKERS = (ONE, TWO, THREE)
OURS = "berthmaster.io/dispatcher"
QUIET_S = 3.0  # long enough for what must not happen
GPU = {"cpu": "1", "nvidia.com/gpu": "1"}
PRIORITY = "kueue.x-k8s.io/priority-class"


@contextlib.contextmanager
def rigged(
    planes: Planes, namespace: str, folder: Path, told: Sequence[str] = WORKERS, **how: Any
) -> Iterator[Rig]:
    """Workers of 8 GPUs, told by the test: all of the first, then 6, then 4 are free."""
    for worker in planes.workers:
        make_nodes(worker, [gpu_node("a", model="NVIDIA-A100", gpus=8)])
    options = how.pop("options", Options(dispatcher=OURS))
    with (
        Bus(folder) as bus,
        Kueue(planes, namespace, options=options, **how) as k,
    ):
        rig = Rig(k, bus, folder)
        for name, free in zip(told, (8, 6, 4), strict=False):
            bus.worker(name, free=free)
            bus.queue(name, k)
        try:
            yield rig
        finally:
            rig.kill()


@pytest.fixture
def rig(planes: Planes, namespace: str, tmp_path: Path) -> Iterator[Rig]:
    with rigged(planes, namespace, tmp_path) as rig:
        yield rig


def test_a_worker_lost_for_too_long_costs_the_job_its_attempt_and_in_the_end_it_runs_once(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    """Whether it runs elsewhere before the worker is back is Kueue's to say: a hub's Job that still
    counts pods over there is not sent anew before somebody says that they are gone."""
    options = Options(dispatcher=OURS, worker_lost_timeout_s=8.0)
    with rigged(planes, namespace, tmp_path, options=options) as rig:
        rig.start()
        rig.submit("train")
        rig.until_told("train", f"admitted {ONE}", f"running {ONE}")
        rig.bus.living.discard(ONE)
        rig.k.planes[ONE].crash_api_server()
        name = rig.name("train")
        rig.until(lambda: f"evicted {ONE}" in rig.bus.kinds(name), "it is given up")
        (why,) = (event.reason for event in rig.bus.events if isinstance(event, Evicted))
        assert why.endswith("doubtful: the lost copy may still run there")
        time.sleep(QUIET_S)

        rig.k.planes[ONE].start_api_server()
        rig.bus.living.add(ONE)

        def runs_once() -> bool:
            where = rig.k.cluster_of("train")
            told = rig.bus.kinds(name)[-1] == f"running {where}"
            return told and running_in(rig.k, "train", WORKERS) == [where]

        rig.until(runs_once, "it runs in one place")
        rig.nothing_wrong()


def test_a_job_deleted_while_its_worker_is_away_is_cancelled_and_collected_on_its_return(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    options = Options(dispatcher=OURS, collect_s=5.0)
    with rigged(planes, namespace, tmp_path, options=options) as rig:
        rig.start()
        name = rig.submit("train")
        rig.until_told("train", f"admitted {ONE}", f"running {ONE}")
        rig.k.planes[ONE].crash_api_server()
        api = rig.k.planes.hub.api
        api.delete(f"/apis/batch/v1/namespaces/{rig.k.namespace}/jobs/train")
        rig.until(lambda: rig.bus.kinds(name)[-1] == f"cancelled {ONE}", "it is cancelled")
        rig.k.planes[ONE].start_api_server()
        rig.until(lambda: rig.k.job("train", ONE) is None, "what was left behind is gone")
        assert rig.bus.kinds(name)[-1] == f"cancelled {ONE}"
        rig.nothing_wrong()


def test_a_copy_that_somebody_deletes_in_the_worker_comes_back_and_the_job_runs_once(
    rig: Rig,
) -> None:
    """The remote is not what the hub says: Kueue makes it anew, and we nominate nothing more."""
    rig.flags = ("--patience-s", "120")
    rig.k.stop_queue(ONE, "Hold")
    rig.start()
    rig.ready()
    name = rig.submit("train", run_s="4")
    workload = rig.k.workload("train")
    assert workload is not None
    worker = rig.k.planes[ONE].api
    path = rig.k.path(workload["metadata"]["name"])
    rig.until(lambda: worker.find(path), "its copy")
    uid = worker.get(path)["metadata"]["uid"]
    worker.merge(path, {"metadata": {"finalizers": None}})
    worker.delete(path)
    rig.until(lambda: (worker.find(path) or workload)["metadata"]["uid"] != uid, "it is gone")
    rig.until(lambda: rig.k.copies("train") == [ONE], "it is there again")
    assert worker.get(path)["metadata"]["uid"] != uid
    with Census(rig.k) as census:
        rig.k.stop_queue(ONE, "None")
        each_ends_once(rig, census, {"train": name})
    assert [kind.partition(" ")[0] for kind in rig.bus.kinds(name)].count("placed") == 1


def test_a_copy_whose_spec_somebody_changes_is_put_right_and_the_job_runs_once(rig: Rig) -> None:
    """Out of sync: Kueue makes the copy what the hub says, and nobody is nominated again for it."""
    rig.flags = ("--patience-s", "120")
    rig.k.stop_queue(ONE, "Hold")
    rig.start()
    rig.ready()
    name = rig.submit("train", run_s="4")
    workload = rig.k.workload("train")
    assert workload is not None
    worker = rig.k.planes[ONE].api
    path = rig.k.path(workload["metadata"]["name"])
    rig.until(lambda: worker.find(path), "its copy")

    def spec() -> Any:
        return (worker.find(path) or {}).get("spec")

    wanted, uid = spec(), worker.get(path)["metadata"]["uid"]
    worker.merge(path, {"spec": {"priority": 7}})
    rig.until(lambda: spec() == wanted, "its priority is the hub's again")
    worker.merge(path, {"spec": {"queueName": "another"}})
    rig.until(lambda: spec() == wanted, "it is one for the hub's queue again")
    assert worker.get(path)["metadata"]["uid"] != uid, "made anew"
    assert rig.bus.kinds(name)[-1] == f"claimed {ONE}"
    with Census(rig.k) as census:
        rig.k.stop_queue(ONE, "None")
        each_ends_once(rig, census, {"train": name})
    assert [kind.partition(" ")[0] for kind in rig.bus.kinds(name)].count("placed") == 1


def test_a_running_copy_that_somebody_switches_off_is_evicted_once_and_goes_on_when_it_is_gone(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    """Kueue drops the copy with the last word on its pods, and would count them on the hub for ever
    (the trap StuckEviction): the inventory tells that the copy is gone, and so it goes on."""
    with rigged(planes, namespace, tmp_path, told=()) as rig:
        rig.limits["eviction_s"] = 3.0
        rig.start()
        rig.ready()
        with inventories(rig):
            name = rig.submit("train")
            rig.until(lambda: "".join(rig.bus.kinds(name)[-1:]).startswith("running"), "it runs")
            where = rig.k.cluster_of("train")
            rig.until(lambda: (rig.k.job("train") or {})["status"].get("active"), "it is counted")
            rig.k.set_active("train", False, where)
            rig.until(lambda: f"evicted {where}" in rig.bus.kinds(name), "it is evicted")
            rig.until(
                lambda: "".join(rig.bus.kinds(name)[-1:]).startswith("running"),
                "it runs again",
            )
            assert rig.bus.kinds(name).count(f"evicted {where}") == 1
            assert running_in(rig.k, "train", WORKERS) == [rig.k.cluster_of("train")]
        rig.nothing_wrong()


def test_a_cluster_whose_secret_is_missing_is_left_out_and_named(rig: Rig) -> None:
    api = rig.k.planes.hub.api
    api.delete(f"/api/v1/namespaces/{SYSTEM}/secrets/{ONE}-kubeconfig")
    rig.until(rig.k.inactive, "Kueue notices")
    rig.start()
    rig.ready()
    rig.submit("train", run_s="2")
    rig.until_told("train", f"succeeded {TWO}")
    (choice,) = rig.bus.decisions[0].placements
    assert choice.filtered[ONE].startswith("not active: BadKubeConfig")


def test_a_missing_configuration_is_told_and_when_it_is_there_all_goes_on(rig: Rig) -> None:
    api = rig.k.planes.hub.api
    path = f"{API}/multikueueconfigs/{rig.k.config}"
    api.delete(path)
    rig.until(lambda: api.find(path) is None, "it is gone")
    queue = f"{API}/clusterqueues/{rig.k.cluster_queue}"
    # Kueue 0.19 wakes its scheduler when this condition becomes True. A Workload that comes while
    # it is still True would wait until something else happens on the hub.
    rig.until(lambda: not is_true(api.get(queue), "Active"), "Kueue knows that it is gone")
    rig.start()
    rig.ready()
    name = rig.submit("train", run_s="4")
    words = f"waits: MultiKueueConfig {rig.k.config} does not exist"
    rig.until(lambda: rig.bus.kinds(name) and words in rig.bus.why(name).summary, "why says it")
    with Census(rig.k) as census:
        api.apply(builders.config(rig.k.config, rig.k.clusters))
        each_ends_once(rig, census, {"train": name})
    assert rig.bus.kinds(name)[-1] == f"succeeded {ONE}"


def test_who_is_admitted_without_quota_is_not_nominated(rig: Rig) -> None:
    rig.k.stop_queue("hub", "Hold")
    rig.start()
    rig.ready()
    name = rig.submit("train", run_s="4")
    odd = {
        "type": "Admitted",
        "status": "True",
        "reason": "Admitted",
        "message": "somebody says so",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    rig.k.patch_status("train", {"conditions": [odd]})
    time.sleep(QUIET_S)
    assert rig.k.nominated("train") == []
    assert rig.bus.kinds(name) == ["submitted"]
    stopped = f"ClusterQueue {rig.k.cluster_queue} of the hub is stopped (stopPolicy Hold)"
    assert rig.bus.why(name).summary.startswith(f"waits: {stopped}")
    with Census(rig.k) as census:
        rig.k.patch_status("train", {"conditions": []})
        rig.k.stop_queue("hub", "None")
        each_ends_once(rig, census, {"train": name})


def test_an_urgent_job_preempts_in_one_cluster_and_not_in_two(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    """Both clusters are full of lesser jobs. It is sent to one of them alone."""
    full = {"default": {**QUOTAS["default"], "nvidia.com/gpu": "1"}}
    how = {"clusters": [ONE, TWO], "worker_quotas": {ONE: full, TWO: full}}
    with rigged(planes, namespace, tmp_path, told=(ONE, TWO), **how) as rig:
        rig.flags = ("--patience-s", "600")  # none is taken back for slowness
        planes.hub.api.apply(builders.priority_class("urgent", 1000))
        for worker in (ONE, TWO):
            queue = f"{API}/clusterqueues/{rig.k.cluster_queue}"
            preempt = {"spec": {"preemption": {"withinClusterQueue": "LowerPriority"}}}
            planes[worker].api.merge(queue, preempt)
        rig.start()
        for job, best in (("first", ONE), ("second", TWO)):
            for worker in (ONE, TWO):
                rig.bus.worker(worker, free=8 if worker == best else 1)
            rig.submit(job)
            rig.until_told(job, f"admitted {best}", f"running {best}")
        rig.bus.worker(ONE, free=8)
        rig.submit("urgent", labels={PRIORITY: "urgent"})
        rig.until_told("urgent", f"admitted {ONE}", f"running {ONE}")
        rig.until(lambda: f"evicted {ONE}" in rig.story("first"), "the lesser one made room")
        rig.until(lambda: running_in(rig.k, "first", WORKERS) == [], "its pods are gone")
        rig.until(lambda: running_in(rig.k, "urgent", WORKERS) == [ONE], "the urgent one runs")
        time.sleep(QUIET_S)
        assert rig.story("second")[-1] == f"running {TWO}"
        assert running_in(rig.k, "second", WORKERS) == [TWO]
        assert running_in(rig.k, "urgent", WORKERS) == [ONE]
        assert running_in(rig.k, "first", WORKERS) == []
        rig.nothing_wrong()


def test_a_worker_whose_quota_is_too_small_is_left_out_by_what_its_inventory_says(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    """The hub grants a hundred GPUs; the first worker two, though most are free there."""
    small = {"default": {**QUOTAS["default"], "nvidia.com/gpu": "2"}}
    with rigged(planes, namespace, tmp_path, told=(), worker_quotas={ONE: small}) as rig:
        make_nodes(planes[ONE], [gpu_node("b", model="NVIDIA-A100", gpus=8)])
        make_nodes(planes[THREE], [gpu_node("b", model="NVIDIA-A100", gpus=4)])
        rig.start()
        rig.ready()
        with inventories(rig), Census(rig.k) as census:
            asks = {"cpu": "1", "nvidia.com/gpu": "4"}
            names = {"train": rig.submit("train", requests=asks, run_s="4")}
            each_ends_once(rig, census, names)
        assert rig.bus.kinds(names["train"])[-1] == f"succeeded {THREE}"
        (choice,) = rig.bus.decisions[0].placements
        words = (
            f"ClusterQueue {rig.k.cluster_queue} grants 2 nvidia.com/gpu at most, 4 are asked for"
        )
        assert choice.filtered == {ONE: words}


def test_a_reconciler_that_starts_while_nats_is_silent_says_why_nothing_moves(rig: Rig) -> None:
    rig.bus.pause()
    rig.start()
    with Census(rig.k) as census:
        name = rig.submit("train", run_s="1")
        rig.until(lambda: rig.events("train", "StandsStill"), "an event")
        (note,) = rig.events("train", "StandsStill")
        assert note.startswith("NATS is silent since this reconciler started: nothing is known")
        assert rig.log.read_text().count("bus silent since start") == 1
        assert rig.k.nominated("train") == []
        rig.bus.resume()
        each_ends_once(rig, census, {"train": name})
    assert rig.bus.kinds(name)[-1] == f"succeeded {ONE}"


# Jobs that their worker deletes as soon as they have ended


def submit_short(rig: Rig, job: str, run_s: str = "0.3") -> Key:
    """A Job that is deleted as soon as it has ended."""
    body = builders.job(rig.k.namespace, job, rig.k.queue, requests=GPU, run_s=run_s)
    body["spec"]["ttlSecondsAfterFinished"] = 0
    jobs = f"/apis/batch/v1/namespaces/{rig.k.namespace}/jobs"
    rig.k.planes.hub.api.create(jobs, body)
    rig.until(lambda: rig.k.workload(job) is not None, f"{job} has a Workload")
    return rig.name(job)


def completed_more_than_once(rig: Rig) -> set[str]:
    """The workloads of which `berth audit` says so."""
    conn = rig.bus.conn
    report = rig.bus.do(audit(conn))
    return {one.where for one in report.findings if one.rule == "succeeded once"}


@contextlib.contextmanager
def keeping_ended_jobs(planes: Planes) -> Iterator[None]:
    """The policy of ours in every worker."""
    policies = documents(ROOT / POLICY_FILE)
    for worker in planes.workers:
        for document in policies:
            worker.api.apply(document)
    try:
        yield
    finally:
        for worker in planes.workers:
            for document in policies:
                worker.api.delete(worker.api.path_of(document))


def serves_policies(planes: Planes) -> bool:
    """Whether the API servers can have such a policy."""
    return has_mutating_policies(planes.programs.kubernetes)


def keeps_ended(worker: Plane, namespace: str, name: str) -> bool:
    """Whether this API server takes the field off a Job of MultiKueue's already."""
    body = builders.job(namespace, name, "none", on_hub=False, labels={ORIGIN_LABEL: "x"})
    body["spec"]["ttlSecondsAfterFinished"] = 0
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    made = worker.api.create(path, body, dryRun="All")
    return "ttlSecondsAfterFinished" not in made["spec"]


def test_jobs_that_are_deleted_at_their_end_succeed_once_with_the_workers_policy(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    if not serves_policies(planes):
        pytest.skip("this Kubernetes has no MutatingAdmissionPolicy (1.36 has)")
    jobs = [f"short-{number}" for number in range(6)]
    with rigged(planes, namespace, tmp_path, told=()) as rig, keeping_ended_jobs(planes):
        for worker in planes.workers:
            rig.until(
                lambda w=worker: keeps_ended(w, namespace, "tried"),  # type: ignore[misc]
                "the policy is in effect",
            )
        rig.start()
        rig.ready()
        with inventories(rig), Census(rig.k) as census:
            names = {}
            for job in jobs:
                names[job] = submit_short(rig, job)
            for job, name in names.items():
                rig.until(lambda n=name: ended(rig, n), f"{job} ends")  # type: ignore[misc]
        for job, name in names.items():
            assert rig.bus.kinds(name)[-1].startswith("succeeded"), rig.bus.kinds(name)
            assert len(census.succeeded[job]) == 1, census.succeeded[job]
        assert completed_more_than_once(rig) == set()
        rig.nothing_wrong()


def test_jobs_that_run_again_after_their_end_are_named_before_and_after(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    """Which of them run again is chance, and Kueue's. `berth audit` finds those and no others."""
    jobs = [f"short-{number}" for number in range(3)]
    with rigged(planes, namespace, tmp_path, told=()) as rig:
        rig.start()
        rig.ready()
        with inventories(rig), Census(rig.k) as census:
            submit_short(rig, "long", builders.RUN_FOREVER)
            rig.until(lambda: rig.events("long", "EndMayBeLost"), "an event")
            places = [
                ClusterAccess(name=one.name, kubeconfig=one.kubeconfig)
                for one in (planes.hub, *planes.workers)
            ]
            looked = survey(
                places[0],
                places[1:],
                mode="dispatch",
                namespace="berth-system",
                now_s=time.time(),
                as_self=True,
            )
            [found] = [
                one for one in diagnose(rig.bus.do(looked)).findings if "may run again" in one.what
            ]
            assert f"Job {namespace}/long" in found.what
            assert ENDED_JOBS.name in found.means
            applied = len(planes.workers) if serves_policies(planes) else 0
            assert found.change.count(f"apply -f {POLICY_FILE}") == applied

            names = {job: submit_short(rig, job) for job in jobs}

            def stands_still(job: str) -> bool:
                notes = rig.events(job, "StuckEviction") if rig.k.workload(job) else []
                return any(note.startswith("it has completed in") for note in notes)

            for job, name in names.items():
                rig.until(
                    lambda j=job, n=name: ended(rig, n) or stands_still(j),  # type: ignore[misc]
                    f"{job} ends, or stands still so that it does not run again",
                )
                if not ended(rig, name):
                    planes.hub.api.delete(f"/apis/batch/v1/namespaces/{namespace}/jobs/{job}")
                    rig.until(lambda n=name: ended(rig, n), f"{job} ends")  # type: ignore[misc]

            def agree() -> bool:
                twice = {name for job, name in names.items() if len(census.succeeded[job]) > 1}
                return completed_more_than_once(rig) == twice

            rig.until(agree, f"the audit and the pods agree: {census.succeeded}")


def ended(rig: Rig, name: Key) -> bool:
    return (rig.bus.kinds(name) or [""])[-1].startswith(ENDS)


# A name that is taken


def test_a_stranger_s_job_of_the_same_name_keeps_its_cluster_out_for_this_job(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    with rigged(planes, namespace, tmp_path, told=()) as rig:
        make_nodes(planes[ONE], [gpu_node("b", model="NVIDIA-A100", gpus=8)])
        worker, jobs = planes[ONE].api, f"/apis/batch/v1/namespaces/{namespace}/jobs"
        pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}]}
        template = {"spec": pod}
        stranger = worker.create(
            jobs,
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": "train", "namespace": namespace},
                "spec": {"suspend": True, "template": template},
            },
        )
        rig.start()
        rig.ready()
        with inventories(rig), Census(rig.k) as census:
            name = rig.submit("train", run_s="2")
            rig.until(lambda: rig.k.nominated("train") == [ONE], "the best is nominated")
            rig.until(lambda: rig.events("train", "JobNameTaken"), "an event")
            each_ends_once(rig, census, {"train": name})
        (note, *_) = rig.events("train", "JobNameTaken")
        assert note.startswith(f"{ONE} has another Job of this name ({namespace}/train)")
        assert f"evicted {ONE}" in rig.bus.kinds(name)
        assert rig.bus.kinds(name)[-1].partition(" ")[2] in (TWO, THREE)
        (why,) = (event.reason for event in rig.bus.events if isinstance(event, Evicted))
        assert why.startswith(f"name taken: {ONE} has another Job of this name")
        there = worker.get(f"{jobs}/train")
        assert there["metadata"]["uid"] == stranger["metadata"]["uid"]
        assert there["spec"] == stranger["spec"]


# Remedies of `berth doctor`


def test_the_doctor_s_remedy_for_a_gate_starts_kueue_where_gates_stand_in_the_arguments(
    rig: Rig, tmp_path: Path
) -> None:
    hub, gates = rig.k.planes.hub, f"VisibilityOnDemand=false,{MERGE_GATE}=true"
    folder = hub.folder / "kueue"
    configuration = (folder / "configuration.yaml").read_text()
    labels = {"app": "kueue"}
    container = {"name": "manager", "image": "registry.k8s.io/kueue/kueue:v0.19.2"}
    container["args"] = ["--zap-log-level=2", f"--feature-gates={gates}"]  # type: ignore[assignment]
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "kueue-controller-manager", "namespace": SYSTEM},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
    }
    file = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "kueue-manager-config", "namespace": SYSTEM},
        "data": {"controller_manager_config.yaml": configuration},
    }
    for document in (deployment, file):
        hub.api.apply(document)
    try:
        rig.k.remove_policy()
        place = ClusterAccess(name="hub", kubeconfig=hub.kubeconfig)
        looked = survey(
            place, [], mode="dispatch", namespace="berth-system", now_s=time.time(), as_self=True
        )
        [found] = [one for one in diagnose(rig.bus.do(looked)).findings if MERGE_GATE in one.what]
        chart, _, gate = found.change.partition("\n")
        assert "upgrade --install" in chart  # puts what clears first; nothing else needs it here
        type_in(gate)
        after = hub.api.get(hub.api.path_of(deployment))
        args = after["spec"]["template"]["spec"]["containers"][0]["args"]
        assert args[1] == f"--feature-gates=VisibilityOnDemand=false,{MERGE_GATE}=false"
    finally:
        for document in (deployment, file):
            hub.api.delete(hub.api.path_of(document))
    rig.k.kill_manager("hub")
    both = yaml.safe_dump({**yaml.safe_load(configuration), "featureGates": {MERGE_GATE: False}})
    refusal = "cannot both specified"
    assert refusal in first_words(hub, args, both, tmp_path)
    said = first_words(hub, args, configuration, tmp_path)
    assert refusal not in said
    assert '"Initializing"' in said or "Initializing" in said


def first_words(hub: Plane, args: Sequence[str], configuration: str, folder: Path) -> str:
    """What Kueue's manager writes until it starts or refuses to."""
    (folder / "configuration.yaml").write_text(configuration)
    kubeconfig = hub.kubeconfig_for("kueue-manager", ("system:masters",))
    argv = [str(hub.programs.kueue), f"--config={folder}/configuration.yaml"]
    log = folder / "manager.log"
    log.write_text("")
    argv += [f"--kubeconfig={kubeconfig}", *args]
    process = Process("kueue", argv, log, environment(folder))
    process.launch()
    try:
        wait_until(
            lambda: not process.running or "Initializing" in log.read_text(), "it starts or ends"
        )
    finally:
        process.kill()
    return log.read_text()
