"""The contract with Kueue: what we rely on, seen in its manager.

Each test is one fact of the contract, as a story. KUEUE_BIN and KUEUE_CRDS hold another version of
Kueue to the same facts.
"""

import http
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from berthmaster.lab.controlplane.api import ApiError
from berthmaster.lab.controlplane.kueue import builders
from berthmaster.lab.controlplane.kueue.objects import condition_of
from berthmaster.lab.controlplane.kueue.setup import API, Kueue, Options
from berthmaster.lab.controlplane.nodes import cpu_node, make_nodes
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.kueue.reasons import Family, family_of

OURS = "berthmaster.dev/dispatcher"
ONE, TWO, THREE = "worker-1", "worker-2", "worker-3"
QUIET_S = 2.5  # longer than the second in which Kueue gathers news: long enough to see nothing
# Why a Workload has no quota: up to 0.19, and from 0.20 on (in 0.19 behind a gate of Kueue's).
REASONS = {
    "full": ("Pending", "WaitingForQuota"),
    "too small": ("Pending", "ExceedsMaxQuota"),
    "stopped": ("Inadmissible", "Suspended"),
    "missing": ("Inadmissible", "Misconfigured"),
}


@pytest.fixture
def nodes(planes: Planes) -> None:
    for worker in planes.workers:
        make_nodes(worker, [cpu_node(f"{worker.name}-node")])


@pytest.fixture
def k(planes: Planes, namespace: str, nodes: None) -> Iterator[Kueue]:
    """A hub whose dispatcher is ours: nothing moves until a test nominates."""
    with Kueue(planes, namespace, options=Options(dispatcher=OURS)) as k:
        yield k


def submit(k: Kueue, name: str = "train", **how: Any) -> str:
    """A Job with quota, its Workload waiting for a nomination."""
    k.submit(name, **how)
    k.until(lambda: k.has(name, "QuotaReserved"), "quota on the hub")
    k.until(lambda: k.state_of(name) == "Pending", "MultiKueue's check")
    return name


def run_on(k: Kueue, cluster: str, name: str = "train", **how: Any) -> str:
    """A Job that runs on this cluster."""
    submit(k, name, **how)
    k.nominate(name, [cluster])
    wait_running(k, name, cluster)
    return name


def wait_running(k: Kueue, name: str, cluster: str) -> None:
    k.until(lambda: k.cluster_of(name) == cluster, f"{cluster} chosen")
    k.until(lambda: k.has(name, "Admitted"), "admitted on the hub")
    k.until(lambda: running(k, name, cluster), f"{name} runs on {cluster}")


def running(k: Kueue, name: str, cluster: str) -> bool:
    """Whether the Job's double has a pod on this worker."""
    double = k.job(name, cluster)
    return double is not None and double.get("status", {}).get("active", 0) > 0


def refused(error: pytest.ExceptionInfo[ApiError]) -> tuple[int, str]:
    return error.value.status, error.value.message


# ---------------------------------------------------------------- the way of a job


def test_nothing_moves_until_we_nominate_then_the_job_runs_there_and_its_end_comes_back(
    k: Kueue,
) -> None:
    submit(k, run_s="1")
    time.sleep(QUIET_S)
    assert (k.nominated("train"), k.copies("train"), k.cluster_of("train")) == ([], [], "")

    # A subset of the config: the copy goes there and nowhere else.
    k.nominate("train", [TWO])
    k.until(lambda: k.copies("train") == [TWO], "the copy")
    k.until(lambda: k.cluster_of("train") == TWO, "the cluster")

    # Kueue has cleared the nomination, and its check is Ready.
    assert (k.nominated("train"), k.state_of("train")) == ([], "Ready")
    double = k.job("train", TWO)
    assert double is not None
    workload = k.workload("train")
    assert workload is not None
    meta = double["metadata"]
    assert meta["labels"]["kueue.x-k8s.io/multikueue-origin"] == "multikueue"
    prebuilt = meta["annotations"]["kueue.x-k8s.io/prebuilt-workload-name"]
    assert prebuilt == workload["metadata"]["name"]
    assert "managedBy" not in double["spec"], "the worker's own controller runs it"

    k.until(lambda: k.has("train", "Finished"), "the end")
    finished = condition_of(k.workload("train") or {}, "Finished")
    assert finished is not None
    assert finished["reason"] == "Succeeded"
    job = k.job("train")
    assert job is not None
    assert job["status"]["succeeded"] == 1
    k.until(lambda: not k.copies("train"), "the copy gone")
    k.until(lambda: k.job("train", TWO) is None, "the double gone")


def test_a_failed_job_is_told_as_failed(k: Kueue) -> None:
    submit(k, run_s="0.5", exit_code=3)
    k.nominate("train", [ONE])
    k.until(lambda: k.has("train", "Finished"), "the end")
    finished = condition_of(k.workload("train") or {}, "Finished")
    assert finished is not None
    assert finished["reason"] == "Failed"


def test_of_two_nominated_one_wins_and_the_other_copy_goes(k: Kueue) -> None:
    submit(k)
    k.nominate("train", [ONE, THREE])
    k.until(lambda: k.cluster_of("train"), "a cluster")
    winner = k.cluster_of("train")
    loser = ONE if winner == THREE else THREE
    assert winner in (ONE, THREE)
    k.until(lambda: k.copies("train") == [winner], "one copy left")
    assert k.nominated("train") == []
    assert k.job("train", loser) is None, "a double was made for the winner only"
    wait_running(k, "train", winner)


def test_an_unknown_cluster_is_accepted_and_the_real_one_beside_it_gets_the_job(k: Kueue) -> None:
    submit(k)
    k.nominate("train", ["no-such-cluster"])
    time.sleep(QUIET_S)
    assert k.copies("train") == []
    assert k.state_of("train") == "Pending", "only the manager's log knows why"

    k.nominate("train", ["no-such-cluster", TWO])
    wait_running(k, "train", TWO)


def test_a_full_worker_waits_and_widening_the_nomination_finds_room(
    planes: Planes, namespace: str, nodes: None
) -> None:
    small = {ONE: {"default": {"cpu": "1"}}}
    with Kueue(planes, namespace, options=Options(dispatcher=OURS), worker_quotas=small) as k:
        submit(k, requests={"cpu": "2"})
        k.nominate("train", [ONE])
        k.until(lambda: condition_of(k.workload("train", ONE) or {}, "QuotaReserved"), "its word")

        # Only the worker says why; the hub is silent.
        reserved = condition_of(k.workload("train", ONE) or {}, "QuotaReserved")
        assert reserved is not None
        assert reserved["status"] == "False"
        assert reserved["reason"] in REASONS["too small"]
        assert "insufficient quota for cpu in flavor default" in reserved["message"]
        assert family_of(reserved["reason"], reserved["message"]) is Family.HOPELESS
        assert k.state_of("train") == "Pending"

        k.nominate("train", [ONE, TWO])
        wait_running(k, "train", TWO)
        k.until(lambda: k.copies("train") == [TWO], "the full worker's copy gone")


# ---------------------------------------------------------------- what the API refuses


def test_the_api_refuses_nominations_that_cannot_be(k: Kueue) -> None:
    submit(k)
    with pytest.raises(ApiError) as error:
        k.patch_status("train", {"nominatedClusterNames": [f"c{n}" for n in range(21)]})
    assert refused(error)[0] == http.HTTPStatus.UNPROCESSABLE_ENTITY

    with pytest.raises(ApiError) as error:
        k.patch_status("train", {"nominatedClusterNames": [ONE], "clusterName": ONE})
    assert refused(error)[0] == http.HTTPStatus.UNPROCESSABLE_ENTITY

    # A clusterName that was not nominated before.
    with pytest.raises(ApiError) as error:
        k.patch_status("train", {"clusterName": ONE})
    assert refused(error)[0] == http.HTTPStatus.UNPROCESSABLE_ENTITY
    assert "nominated" in refused(error)[1]

    # A stale resource version.
    workload = k.workload("train")
    assert workload is not None
    k.nominate("train", ["elsewhere"])
    stale = {
        "metadata": {"resourceVersion": workload["metadata"]["resourceVersion"]},
        "status": {"nominatedClusterNames": [ONE]},
    }
    with pytest.raises(ApiError) as error:
        k.planes.hub.api.merge(f"{k.path(workload['metadata']['name'])}/status", stale)
    assert refused(error)[0] == http.HTTPStatus.CONFLICT
    assert k.nominated("train") == ["elsewhere"]


def test_a_cluster_once_chosen_cannot_be_changed(k: Kueue) -> None:
    run_on(k, ONE)
    with pytest.raises(ApiError) as error:
        k.patch_status("train", {"clusterName": TWO})
    assert refused(error)[0] == http.HTTPStatus.UNPROCESSABLE_ENTITY
    assert k.cluster_of("train") == ONE


@pytest.mark.parametrize(
    "clusters",
    [[], [f"c{n}" for n in range(21)], ["twice", "twice"]],
    ids=["none", "twenty-one", "the same twice"],
)
def test_a_config_has_one_to_twenty_different_clusters(planes: Planes, clusters: list[str]) -> None:
    with pytest.raises(ApiError) as error:
        planes.hub.api.create(f"{API}/multikueueconfigs", builders.config("wrong", clusters))
    assert refused(error)[0] == http.HTTPStatus.UNPROCESSABLE_ENTITY


@pytest.mark.parametrize(
    "source",
    [
        {},
        {
            "kubeConfig": {"locationType": "Secret", "location": "a"},
            "clusterProfileRef": {"name": "a"},
        },
    ],
    ids=["neither", "both"],
)
def test_a_cluster_has_exactly_one_source(planes: Planes, source: dict[str, Any]) -> None:
    body = {**builders.cluster("wrong", "x"), "spec": {"clusterSource": source}}
    with pytest.raises(ApiError) as error:
        planes.hub.api.create(f"{API}/multikueueclusters", body)
    assert refused(error)[0] == http.HTTPStatus.UNPROCESSABLE_ENTITY


def test_the_controller_of_a_check_cannot_be_changed(k: Kueue) -> None:
    path = f"{API}/admissionchecks/{k.check}"
    with pytest.raises(ApiError) as error:
        k.planes.hub.api.merge(path, {"spec": {"controllerName": "example.com/other"}})
    assert refused(error)[0] == http.HTTPStatus.UNPROCESSABLE_ENTITY


# ---------------------------------------------------------------- evictions and checks


def test_an_eviction_on_the_worker_clears_all_and_a_new_nomination_moves_the_job(k: Kueue) -> None:
    run_on(k, ONE)
    k.stop_queue(ONE, "HoldAndDrain")
    k.until(lambda: not k.cluster_of("train"), "no cluster any more")
    k.until(lambda: k.state_of("train") == "Pending", "the check Pending")
    k.until(lambda: k.copies("train") == [], "the drained worker's copy gone")
    k.until(
        lambda: k.has("train", "QuotaReserved") and not k.has("train", "Evicted"), "quota again"
    )
    time.sleep(QUIET_S)
    assert (k.nominated("train"), k.copies("train")) == ([], []), "it waits for us"

    k.nominate("train", [TWO])
    wait_running(k, "train", TWO)
    assert k.job("train", ONE) is None


def test_a_check_of_ours_gates_the_dispatch_in_every_attempt(
    planes: Planes, namespace: str, nodes: None
) -> None:
    with Kueue(planes, namespace, options=Options(dispatcher=OURS), checks=["placement"]) as k:
        (ours,) = k.own_checks
        submit(k)
        assert k.state_of("train", ours) == "Pending"
        k.nominate("train", [ONE])
        time.sleep(QUIET_S)
        assert k.copies("train") == [], "nominated, but our check is not Ready"

        # Applying only our own list item leaves MultiKueue's alone.
        k.set_check("train", ours, "Ready")
        wait_running(k, "train", ONE)
        assert (k.state_of("train"), k.state_of("train", ours)) == ("Ready", "Ready")

        # A drain of the worker sets ours back as well.
        k.stop_queue(ONE, "HoldAndDrain")
        k.until(lambda: k.state_of("train", ours) == "Pending", "ours Pending again")
        k.until(lambda: k.copies("train") == [], "the old copy gone")
        k.until(lambda: k.has("train", "QuotaReserved") and not k.has("train", "Evicted"), "quota")
        k.nominate("train", [TWO])
        time.sleep(QUIET_S)
        assert k.copies("train") == [], "a new attempt needs a new Ready"
        k.set_check("train", ours, "Ready")
        wait_running(k, "train", TWO)


def test_retry_of_our_check_moves_a_running_job(
    planes: Planes, namespace: str, nodes: None
) -> None:
    with Kueue(planes, namespace, options=Options(dispatcher=OURS), checks=["placement"]) as k:
        (ours,) = k.own_checks
        submit(k)
        k.set_check("train", ours, "Ready")
        k.nominate("train", [ONE])
        wait_running(k, "train", ONE)

        k.set_check("train", ours, "Retry", "a better place")
        k.until(lambda: not running(k, "train", ONE), "suspended on the worker")
        k.until(lambda: k.job("train", ONE) is None, "gone from the worker")
        k.until(lambda: k.state_of("train", ours) == "Pending", "ours Pending")
        k.until(lambda: k.has("train", "QuotaReserved") and not k.has("train", "Evicted"), "quota")
        assert k.cluster_of("train") == ""

        k.set_check("train", ours, "Ready")
        k.nominate("train", [TWO])
        wait_running(k, "train", TWO)


def test_a_rejected_check_switches_the_workload_off(
    planes: Planes, namespace: str, nodes: None
) -> None:
    with Kueue(planes, namespace, options=Options(dispatcher=OURS), checks=["placement"]) as k:
        submit(k)
        k.set_check("train", k.own_checks[0], "Rejected", "not here")
        k.until(lambda: k.has("train", "Evicted"), "evicted")
        workload = k.workload("train")
        assert workload is not None
        assert workload["spec"]["active"] is False
        k.until(lambda: not k.has("train", "QuotaReserved"), "quota given back")

        # Switched on by hand it still never gets quota again.
        k.set_active("train", True)
        time.sleep(QUIET_S)
        assert not k.has("train", "QuotaReserved")


def test_switching_a_workload_off_stops_its_job_but_keeps_its_quota_until_the_next_attempt(
    k: Kueue,
) -> None:
    run_on(k, ONE)
    k.until(lambda: running(k, "train", "hub"), "the hub counts the pod")
    k.set_active("train", False)
    k.until(lambda: k.job("train", ONE) is None, "gone from the worker")

    # The double went before its last status came: on the hub the Job looks active for ever.
    time.sleep(QUIET_S)
    job = k.job("train")
    assert job is not None
    assert (job["spec"]["suspend"], job["status"]["active"]) == (True, 1)
    assert k.has("train", "Evicted")
    assert k.has("train", "QuotaReserved")

    # Switched on again it takes a nomination as if nothing were the matter: the copy that follows
    # is evicted at once, which ends the attempt, and then the nomination still stands.
    k.set_active("train", True)
    k.nominate("train", [TWO])
    wait_running(k, "train", TWO)
    assert not k.has("train", "Evicted")


# ---------------------------------------------------------------- the config, the queues


def test_a_copy_that_waits_follows_the_nomination_but_is_orphaned_with_its_cluster(
    planes: Planes, namespace: str, nodes: None
) -> None:
    small = {ONE: {"default": {"cpu": "1"}}, TWO: {"default": {"cpu": "1"}}}
    with Kueue(planes, namespace, options=Options(dispatcher=OURS), worker_quotas=small) as k:
        submit(k, requests={"cpu": "2"})
        k.nominate("train", [ONE])
        k.until(lambda: k.copies("train") == [ONE], "the copy")
        k.nominate("train", [TWO])
        k.until(lambda: k.copies("train") == [TWO], "another nomination, another copy")

        # Its cluster leaves the config: nobody cleans up there any more.
        k.set_clusters([ONE, THREE])
        time.sleep(QUIET_S)
        assert k.copies("train") == [TWO]
        k.nominate("train", [THREE])
        wait_running(k, "train", THREE)
        assert k.copies("train") == [TWO, THREE]


def test_a_cluster_taken_from_the_config_leaves_its_job_running_and_the_hub_retries(
    k: Kueue,
) -> None:
    run_on(k, ONE)
    k.until(lambda: running(k, "train", "hub"), "the hub counts the pod")
    k.set_clusters([TWO, THREE])
    k.until(lambda: k.has("train", "Evicted"), "the hub lets go")
    time.sleep(QUIET_S)
    assert k.cluster_of("train") == ""
    assert k.state_of("train") == "Pending"
    assert running(k, "train", ONE), "nobody told the worker"
    # No copy is left that could say that the pod is gone: the hub's Job counts it for ever.
    assert k.has("train", "QuotaReserved")
    assert running(k, "train", "hub")

    # Which is how a job comes to run twice.
    k.nominate("train", [TWO])
    wait_running(k, "train", TWO)
    assert running(k, "train", ONE)


def test_a_stopped_queue_on_the_worker_is_silence_on_the_hub(k: Kueue) -> None:
    k.stop_queue(ONE, "Hold")
    submit(k)
    k.nominate("train", [ONE])
    k.until(lambda: k.copies("train") == [ONE], "the copy")
    time.sleep(QUIET_S)
    assert (k.state_of("train"), k.cluster_of("train")) == ("Pending", "")
    k.until(lambda: condition_of(k.workload("train", ONE) or {}, "QuotaReserved"), "the reason")
    reserved = condition_of(k.workload("train", ONE) or {}, "QuotaReserved")
    assert reserved is not None
    assert reserved["status"] == "False"
    assert reserved["reason"] in REASONS["stopped"]
    assert family_of(reserved["reason"], reserved["message"]) is Family.HOPELESS
    assert k.cluster_queue in reserved["message"]
    hub = condition_of(k.workload("train") or {}, "QuotaReserved")
    assert hub is not None
    assert hub["status"] == "True", "the hub's own conditions say nothing of it"

    k.stop_queue(ONE, "None")
    wait_running(k, "train", ONE)


def test_a_worker_without_the_queue_is_silence_on_the_hub_too(k: Kueue) -> None:
    api = k.planes[ONE].api
    path = f"{API}/namespaces/{k.namespace}/localqueues/{k.queue}"
    api.delete(path)
    k.until(lambda: api.find(path) is None, "the LocalQueue gone")
    submit(k)
    k.nominate("train", [ONE])
    k.until(lambda: condition_of(k.workload("train", ONE) or {}, "QuotaReserved"), "the reason")
    reserved = condition_of(k.workload("train", ONE) or {}, "QuotaReserved")
    assert reserved is not None
    assert reserved["status"] == "False"
    assert reserved["reason"] in REASONS["missing"]
    assert family_of(reserved["reason"], reserved["message"]) is Family.HOPELESS
    assert f"LocalQueue {k.queue}" in reserved["message"]
    assert k.state_of("train") == "Pending"


def test_a_worker_without_the_namespace_is_silence_until_it_is_there(k: Kueue) -> None:
    api = k.planes[ONE].api
    inside = f"{k.namespace}-later"
    for plane in (k.planes.hub, k.planes[TWO]):
        plane.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": inside}})
        plane.api.apply(builders.local_queue(inside, k.queue, k.cluster_queue))
    k.namespace, first = inside, k.namespace
    submit(k)
    k.nominate("train", [ONE])
    time.sleep(QUIET_S)
    assert (k.copies("train"), k.state_of("train")) == ([], "Pending")

    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": inside}})
    api.apply(builders.local_queue(inside, k.queue, k.cluster_queue))
    wait_running(k, "train", ONE)
    for plane in (k.planes.hub, k.planes[ONE], k.planes[TWO]):
        plane.api.delete(f"/api/v1/namespaces/{inside}")
    k.namespace = first


def test_a_stopped_queue_on_the_hub_is_told_there(k: Kueue) -> None:
    k.stop_queue("hub", "Hold")
    k.submit("train")
    k.until(lambda: condition_of(k.workload("train") or {}, "QuotaReserved"), "the reason")
    reserved = condition_of(k.workload("train") or {}, "QuotaReserved")
    assert reserved is not None
    assert reserved["status"] == "False"
    assert reserved["reason"] in REASONS["stopped"]
    assert family_of(reserved["reason"], reserved["message"]) is Family.HOPELESS
    assert k.cluster_queue in reserved["message"]
    k.stop_queue("hub", "None")
    k.until(lambda: k.has("train", "QuotaReserved"), "quota")


def test_all_at_once_sends_a_copy_everywhere_and_keeps_the_first(
    planes: Planes, namespace: str, nodes: None
) -> None:
    with Kueue(planes, namespace, options=Options(dispatcher="AllAtOnce")) as k:
        marks = [worker.audit.mark() for worker in planes.workers]
        k.submit("train")
        k.until(lambda: k.cluster_of("train"), "a winner")
        made = [
            worker.audit.count(since=mark, user="multikueue")[
                "multikueue", "create", "workloads.kueue.x-k8s.io"
            ]
            for worker, mark in zip(planes.workers, marks, strict=True)
        ]
        assert made == [1, 1, 1], "a copy everywhere"
        winner = k.cluster_of("train")
        k.until(lambda: k.copies("train") == [winner], "one left")
        wait_running(k, "train", winner)


# ---------------------------------------------------------------- the missing gate


def test_where_nothing_clears_nominations_the_worker_runs_while_the_hub_waits_for_ever(
    planes: Planes, namespace: str, nodes: None
) -> None:
    options = Options(dispatcher=OURS, policy=False)
    with Kueue(planes, namespace, options=options) as k:
        submit(k)
        k.nominate("train", [ONE])
        k.until(lambda: running(k, "train", ONE), "it runs on the worker")
        time.sleep(QUIET_S * 2)
        assert k.nominated("train") == [ONE], "Kueue cannot clear what it did not write"
        assert (k.state_of("train"), k.cluster_of("train")) == ("Pending", "")
        assert k.has("train", "Admitted", ONE)

        # With the policy a manager that is started again settles it.
        k.apply_policy()
        k.restart_manager("hub")
        wait_running(k, "train", ONE)
        assert k.nominated("train") == []


@pytest.mark.parametrize("gate", [False, True], ids=["policy", "gate"])
def test_by_policy_or_gate_a_nomination_is_over_once_a_cluster_is_chosen_and_at_an_eviction(
    planes: Planes, namespace: str, nodes: None, gate: bool
) -> None:
    options = Options(dispatcher=OURS, policy=not gate, merge_patch_gate=gate)
    with Kueue(planes, namespace, options=options) as k:
        run_on(k, ONE)
        assert k.nominated("train") == []
        k.stop_queue(ONE, "HoldAndDrain")
        k.until(lambda: not k.cluster_of("train"), "no cluster any more")
        k.until(lambda: k.has("train", "QuotaReserved") and not k.has("train", "Evicted"), "quota")
        assert k.nominated("train") == []

        k.nominate("train", [TWO])
        wait_running(k, "train", TWO)


def test_a_workload_with_quota_and_eviction_but_no_admission_ends_the_manager_at_every_start(
    k: Kueue,
) -> None:
    submit(k)
    workload = k.workload("train")
    assert workload is not None
    name = workload["metadata"]["name"]
    k.kill_manager("hub")
    evicted = {
        "type": "Evicted",
        "status": "True",
        "reason": "Preempted",
        "message": "what a preemption leaves that overtakes an admission, by merge patch",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    conditions = [each for each in workload["status"]["conditions"] if each["type"] != "Evicted"]
    k.patch_status("train", {"admission": None, "conditions": [*conditions, evicted]})
    assert k.has("train", "QuotaReserved")
    for _ in range(2):
        k.start_manager("hub")
        k.until(lambda: not k.runs("hub"), "the manager's end")

    # What cures it: its job goes, and its finalizer, which nobody else takes off.
    hub = k.planes.hub.api
    hub.delete(f"/apis/batch/v1/namespaces/{k.namespace}/jobs/train")
    hub.merge(k.path(name), {"metadata": {"finalizers": None}})
    k.until(lambda: hub.find(k.path(name)) is None, "the Workload gone")
    k.start_manager("hub")
    k.wait_active()
    run_on(k, ONE, "next")


# ---------------------------------------------------------------- managers and workers that go


def test_a_manager_killed_on_the_way_goes_on_where_it_was(k: Kueue) -> None:
    submit(k)
    k.kill_manager("hub")
    k.nominate("train", [ONE])
    time.sleep(0.5)
    assert k.copies("train") == []
    k.start_manager("hub")
    wait_running(k, "train", ONE)


def test_a_worker_that_is_away_keeps_its_job_and_is_found_again(k: Kueue) -> None:
    run_on(k, ONE, run_s="6")
    k.planes[ONE].crash_api_server()

    def active(path: str) -> str:
        condition = condition_of(k.planes.hub.api.get(f"{API}/{path}"), "Active")
        assert condition is not None
        return f"{condition['status']} {condition['reason']}"

    cluster, check = f"multikueueclusters/{ONE}", f"admissionchecks/{k.check}"
    k.until(lambda: active(cluster) == "False ClientConnectionFailed", "the hub notices")
    k.until(lambda: active(check) == "True SomeActiveClusters", "the check tells")
    assert (k.cluster_of("train"), k.state_of("train")) == (ONE, "Ready")

    k.planes[ONE].start_api_server()
    k.until(lambda: active(cluster) == "True Active", "the hub finds it again")
    k.until(lambda: k.has("train", "Finished"), "the end")


def test_a_worker_lost_for_too_long_gives_the_job_to_another(
    planes: Planes, namespace: str, nodes: None
) -> None:
    options = Options(dispatcher=OURS, worker_lost_timeout_s=4.0)
    with Kueue(planes, namespace, options=options) as k:
        run_on(k, ONE)
        k.until(lambda: running(k, "train", "hub"), "the hub counts the pod")
        k.planes[ONE].crash_api_server()
        k.until(lambda: k.cluster_of("train") == "", "the hub gives it up")
        k.until(lambda: k.has("train", "Evicted"), "evicted")
        # The lost copy cannot say that its pod is gone: the hub's Job counts it, and the eviction
        # does not end until another cluster has a copy, which is evicted at once and says so.
        time.sleep(QUIET_S)
        assert k.has("train", "QuotaReserved")
        k.nominate("train", [TWO])
        wait_running(k, "train", TWO)
        assert not k.has("train", "Evicted")


def test_a_deleted_job_takes_its_workload_and_its_double_along(k: Kueue) -> None:
    run_on(k, ONE)
    k.planes.hub.api.delete(f"/apis/batch/v1/namespaces/{k.namespace}/jobs/train")
    k.until(lambda: k.job("train") is None, "the Job gone")
    k.until(lambda: k.job("train", ONE) is None, "the double gone")
    path = f"{API}/namespaces/{k.namespace}/workloads"
    k.until(lambda: not k.planes.hub.api.items(path), "the Workload gone")
    k.until(lambda: not k.planes[ONE].api.items(path), "the copy gone")


def test_a_deleted_job_keeps_running_on_its_worker_until_garbage_is_collected(k: Kueue) -> None:
    run_on(k, ONE)
    k.planes.hub.parts.controller_manager.kill()
    k.planes.hub.api.delete(f"/apis/batch/v1/namespaces/{k.namespace}/jobs/train")
    k.until(lambda: k.has("train", "Finished"), "the hub's Workload has ended")
    finished = condition_of(k.workload("train") or {}, "Finished")
    assert finished is not None
    assert finished["reason"] == "OwnerNotFound"
    time.sleep(QUIET_S)
    assert running(k, "train", ONE)

    k.planes.hub.parts.controller_manager.launch()
    k.until(lambda: k.job("train", ONE) is None, "the double gone")


# ---------------------------------------------------------------- clusters that cannot be used


def spoiled(kubeconfig: bytes, how: str) -> bytes:
    config = yaml.safe_load(kubeconfig)
    user, cluster = config["users"][0]["user"], config["clusters"][0]["cluster"]
    match how:
        case "exec":
            user.clear()
            user["exec"] = {
                "apiVersion": "client.authentication.k8s.io/v1",
                "command": "true",
                "interactiveMode": "Never",
            }
        case "tokenFile":
            user.clear()
            user["tokenFile"] = "/tmp/token"
        case "insecure-skip-tls-verify":
            del cluster["certificate-authority-data"]
            cluster["insecure-skip-tls-verify"] = True
        case "certificate-authority":
            del cluster["certificate-authority-data"]
            cluster["certificate-authority"] = "/tmp/ca.crt"
        case "basic auth":
            user.clear()
            user["username"], user["password"] = "somebody", "a password"
    data: bytes = yaml.safe_dump(config).encode()
    return data


def test_a_kubeconfig_that_could_leak_is_refused_and_a_good_one_is_taken(k: Kueue) -> None:
    good = k.planes[ONE].kubeconfig_for("multikueue").read_bytes()
    path = f"{API}/multikueueclusters/{ONE}"

    def told() -> tuple[str, str]:
        condition = condition_of(k.planes.hub.api.get(path), "Active")
        assert condition is not None
        return condition["status"], condition["reason"]

    ways = ("exec", "tokenFile", "insecure-skip-tls-verify", "certificate-authority", "basic auth")
    for how in ways:
        k.give_kubeconfig(ONE, spoiled(good, how))
        k.until(lambda: told() == ("False", "InsecureKubeConfig"), f"{how} refused")
        k.give_kubeconfig(ONE, good)
        k.until(lambda: told() == ("True", "Active"), "the good one taken")

    k.planes.hub.api.delete(f"/api/v1/namespaces/kueue-system/secrets/{ONE}-kubeconfig")
    k.until(lambda: told() == ("False", "BadKubeConfig"), "no Secret")


def test_a_check_without_parameters_makes_the_queue_inactive_and_says_why(k: Kueue) -> None:
    hub = k.planes.hub.api
    name = f"{k.namespace}-broken"
    check = builders.multikueue_check(name, "x")
    del check["spec"]["parameters"]
    hub.create(f"{API}/admissionchecks", check)
    queue = builders.cluster_queue(name, {"default": {"cpu": "1"}}, checks=[name])
    hub.create(f"{API}/clusterqueues", queue)

    def told(path: str) -> tuple[str, str]:
        condition = condition_of(hub.get(f"{API}/{path}"), "Active")
        return (condition["status"], condition["reason"]) if condition else ("", "")

    k.until(lambda: told(f"admissionchecks/{name}") == ("False", "BadConfig"), "the check says it")
    expected = ("False", "AdmissionCheckInactive")
    k.until(lambda: told(f"clusterqueues/{name}") == expected, "the queue says it")


# ---------------------------------------------------------------- a worker's own queue


def test_on_a_worker_quota_goes_by_priority_and_the_one_who_waits_is_told_what_is_missing(
    planes: Planes, namespace: str, nodes: None
) -> None:
    small = {"default": {"cpu": "2"}}
    with Kueue(
        planes, namespace, options=Options(dispatcher=OURS), worker_quotas={ONE: small}
    ) as k:
        worker = k.planes[ONE].api
        worker.apply(builders.priority_class("urgent", 1000))
        jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"

        def local(name: str, **how: Any) -> None:
            body = builders.job(
                namespace, name, k.queue, requests={"cpu": "2"}, on_hub=False, **how
            )
            body["spec"]["suspend"] = False  # as people write it
            worker.create(jobs, body)

        def workload(name: str) -> dict[str, Any]:
            for each in worker.items(f"{API}/namespaces/{namespace}/workloads"):
                if each["metadata"]["ownerReferences"][0]["name"] == name:
                    return each
            return {}

        local("first")
        k.until(lambda: running(k, "first", ONE), "the first runs")
        local("second")
        k.until(lambda: condition_of(workload("second"), "QuotaReserved"), "the second is told")
        told = condition_of(workload("second"), "QuotaReserved")
        assert told is not None
        assert told["status"] == "False"
        assert told["reason"] in REASONS["full"]
        assert family_of(told["reason"], told["message"]) is Family.BUSY
        assert (
            "insufficient unused quota for cpu in flavor default, 2 more needed" in told["message"]
        )
        local("third", labels={"kueue.x-k8s.io/priority-class": "urgent"})
        k.until(lambda: workload("third"), "the third waits too")

        def counts() -> tuple[int, ...]:
            status = worker.get(f"{API}/clusterqueues/{k.cluster_queue}")["status"]
            return tuple(
                status.get(f"{each}Workloads", 0) for each in ("pending", "reserving", "admitted")
            )

        k.until(lambda: counts() == (2, 1, 1), "the queue counts them")

        # The first goes: the urgent one is next, not the older one.
        worker.delete(f"{jobs}/first")
        k.until(lambda: running(k, "third", ONE), "the urgent one runs")
        assert condition_of(workload("second"), "Admitted") is None or not running(k, "second", ONE)


def test_preemption_evicts_the_less_important(planes: Planes, namespace: str, nodes: None) -> None:
    small = {"default": {"cpu": "2"}}
    with Kueue(
        planes, namespace, options=Options(dispatcher=OURS), worker_quotas={ONE: small}
    ) as k:
        worker = k.planes[ONE].api
        worker.apply(builders.priority_class("urgent", 1000))
        queue = f"{API}/clusterqueues/{k.cluster_queue}"
        worker.merge(queue, {"spec": {"preemption": {"withinClusterQueue": "LowerPriority"}}})
        run_on(k, ONE, requests={"cpu": "2"})

        body = builders.job(
            namespace,
            "urgent",
            k.queue,
            requests={"cpu": "2"},
            on_hub=False,
            labels={"kueue.x-k8s.io/priority-class": "urgent"},
        )
        worker.create(f"/apis/batch/v1/namespaces/{namespace}/jobs", body)
        k.until(lambda: running(k, "urgent", ONE), "the urgent one runs")

        # To the hub it is an eviction like any other.
        k.until(lambda: k.cluster_of("train") == "", "the hub is told")
        k.until(lambda: k.has("train", "QuotaReserved") and not k.has("train", "Evicted"), "quota")
        k.nominate("train", [TWO])
        wait_running(k, "train", TWO)


def test_the_flavor_of_the_worker_pins_the_pods_to_its_nodes(
    planes: Planes, namespace: str, nodes: None
) -> None:
    with Kueue(planes, namespace, options=Options(dispatcher=OURS)) as k:
        worker = k.planes[ONE].api
        worker.apply(builders.flavor("a100", {"gpu": "a100"}))
        quotas = {"a100": {"cpu": "10"}}
        worker.apply(builders.cluster_queue(k.cluster_queue, quotas))
        make_nodes(k.planes[ONE], [cpu_node("pinned", labels={"gpu": "a100"})])
        run_on(k, ONE)
        double = k.job("train", ONE)
        assert double is not None
        assert double["spec"]["template"]["spec"]["nodeSelector"] == {"gpu": "a100"}
        hub = k.job("train")
        assert hub is not None
        assert "nodeSelector" not in hub["spec"]["template"]["spec"], "no pin travels"


# ---------------------------------------------------------------- quiet


def test_in_steady_state_nobody_writes(k: Kueue) -> None:
    submit(k, "waits")
    run_on(k, ONE, "runs")
    time.sleep(QUIET_S)

    def versions() -> list[str]:
        return [
            (k.workload(name) or {"metadata": {}})["metadata"]["resourceVersion"]
            for name in ("waits", "runs")
        ]

    before = versions()
    time.sleep(QUIET_S * 2)
    assert versions() == before
