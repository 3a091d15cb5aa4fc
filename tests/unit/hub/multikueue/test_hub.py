"""The mirror of a hub: whose a Workload is, what touches whom, and what wrong objects spoil."""

import msgspec

from berthmaster.hub.multikueue.core.known.hub import ClusterRef, Hub
from berthmaster.lib.kueue.multikueue import Parameters
from berthmaster.lib.lifecycle.workload import Key
from tests.unit.hub.multikueue.hub_objects import (
    CHECK,
    CONFIG,
    cluster,
    cluster_queue,
    config,
    job,
    local_queue,
    multikueue_check,
    workload,
)

TRAIN = Key("team/job-train-0000021e")


def made(*, rules: bool = True) -> Hub:
    hub = Hub({})
    if rules:
        for thing in (
            local_queue(),
            cluster_queue(),
            multikueue_check(),
            config("w1", "w2"),
            cluster("w1"),
            cluster("w2"),
        ):
            hub.put(thing)
    return hub


def test_a_workload_is_named_when_its_job_is_known_and_not_before() -> None:
    """The two come by watches of their own: only the job says whether it is ours."""
    hub = made()
    assert hub.put(workload()) == set()
    assert hub.workload(TRAIN) is None
    assert hub.put(job()) == {TRAIN}
    assert hub.workload(TRAIN) == workload()


def test_a_job_of_ours_names_its_workload_after_the_request() -> None:
    hub = made()
    ours = Key("acme/train-7")
    hub.put(job(tenant="acme", workload_id="train-7"))
    assert hub.put(workload()) == {ours}
    assert hub.workload(ours) == workload()
    assert hub.job(ours) == job(tenant="acme", workload_id="train-7")
    assert hub.drop(job(tenant="acme", workload_id="train-7")) == {ours}
    assert ours in hub.seen_jobs


def test_workloads_of_other_kinds_of_jobs_need_no_job() -> None:
    hub = made()
    assert hub.put(workload(kind="JobSet")) == {TRAIN}


def test_a_successor_of_the_same_name_is_another_workload() -> None:
    hub = made()
    hub.put(job())
    hub.put(workload())
    again = workload(uid="ffffffff-2")
    second = Key("team/job-train-ffffffff")
    assert hub.put(again) == {TRAIN, second}
    assert hub.workload(TRAIN) is None
    assert hub.workload(second, "ffffffff-2") == again
    assert hub.workload(second, "another uid") is None


def test_a_workload_that_is_gone_leaves_nothing_behind() -> None:
    hub = made()
    hub.put(job())
    hub.put(workload())
    assert hub.drop(workload()) == {TRAIN}
    hub.drop(job())
    assert (hub.workload_of, hub._names, hub._owned, hub.workloads, hub.jobs) == (
        {},
        {},
        {},
        {},
        {},
    )


def test_what_kueue_writes_into_statuses_all_the_time_touches_nobody() -> None:
    hub = made()
    hub.put(job())
    hub.put(workload())
    rules = hub.rules(workload())
    assert rules is not None
    for thing in (local_queue(), cluster_queue(), config("w1", "w2"), cluster("w1")):
        meta = msgspec.structs.replace(thing.metadata, resource_version="99")
        assert hub.put(msgspec.structs.replace(thing, metadata=meta)) == set()
    assert hub.rules(workload()) is rules
    assert hub.put(config("w2", "w1")) == {TRAIN}
    assert hub.rules(workload()) is not rules


def test_rules_are_the_clusters_of_the_check_s_configuration_in_order() -> None:
    hub = made()
    hub.put(cluster("w2", active=False))
    rules = hub.rules(workload())
    assert rules is not None
    assert (rules.check, rules.config, rules.cluster_queue, rules.problem) == (
        CHECK,
        CONFIG,
        "hub-queue",
        "",
    )
    assert rules.clusters == (
        ClusterRef("w1", "w1", ""),
        ClusterRef("w2", "w2", "not active: BadKubeConfig: Secret w-kubeconfig not found"),
    )


def test_two_names_for_one_cluster_of_the_fleet_are_one_candidate() -> None:
    hub = made()
    for name in ("w1", "w2"):
        hub.put(cluster(name, annotations={"berthmaster.io/cluster": "east"}))
    rules = hub.rules(workload())
    assert rules is not None
    assert [(ref.name, ref.closed) for ref in rules.clusters] == [
        ("east", ""),
        ("east", "stands for east, as w1 does"),
    ]


def test_a_queue_without_a_multikueue_check_is_not_ours() -> None:
    hub = made(rules=False)
    assert hub.rules(workload()) is None
    hub.put(local_queue())
    hub.put(cluster_queue())
    assert hub.rules(workload()) is None  # the check is not there


def test_what_is_missing_is_named() -> None:
    hub = made()
    hub.drop(config("w1", "w2"))
    rules = hub.rules(workload())
    assert rules is not None
    assert rules.problem == "MultiKueueConfig config does not exist"
    hub.put(multikueue_check(Parameters(kind="ConfigMap", name="config")))
    rules = hub.rules(workload())
    assert rules is not None
    assert rules.problem == "AdmissionCheck multikueue names a ConfigMap, no MultiKueueConfig"
    hub.put(multikueue_check())
    hub.put(config("w1", "w9"))
    rules = hub.rules(workload())
    assert rules is not None
    assert rules.clusters[1] == ClusterRef("w9", "w9", "no such MultiKueueCluster")


def test_a_cluster_of_which_kueue_says_nothing_yet_is_not_active() -> None:
    hub = made()
    silent = msgspec.structs.replace(cluster("w1"), status=None)
    hub.put(silent)
    rules = hub.rules(workload())
    assert rules is not None
    assert rules.clusters[0].closed == "not active: Kueue says nothing of it yet"
