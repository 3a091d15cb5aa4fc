"""Whether Kueue's manager runs, by what stands in its namespace."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from berthmaster.cli.doctor import objects
from berthmaster.cli.doctor.facts import ManagerConfig, ManagerLife, ManagerPod
from berthmaster.cli.doctor.findings import Finding
from berthmaster.lib.kube.objects import seconds
from berthmaster.lib.kueue.configuration import CONFIG_FILE
from tests.unit.cli.doctor.surveys import of_hub, of_worker

READY = ManagerPod(name="kueue-1", ready=True)
CRASHED = ManagerPod(name="kueue-1", words="CrashLoopBackOff: back-off 5m0s")


def about(life: ManagerLife, *, on_hub: bool) -> Finding:
    report = of_hub(kueue_life=life) if on_hub else of_worker(kueue_life=life)
    [found] = [each for each in report.findings if "Kueue's manager" in each.what]
    return found


@pytest.mark.parametrize(
    ("life", "what"),
    [
        (ManagerLife(wanted=1, pods=(READY,)), "1 of its pods ready"),
        (
            ManagerLife(wanted=1, pods=(READY,), renewed_s_ago=4.0),
            "1 of its pods ready, its lease renewed lately",
        ),
        # A pod that is not ready is one of several, or runs elsewhere: the lease knows better.
        (ManagerLife(wanted=1, renewed_s_ago=4.0), "0 of its pods ready, its lease renewed lately"),
    ],
)
def test_a_manager_that_runs_is_seen(life: ManagerLife, what: str) -> None:
    for on_hub in (True, False):
        found = about(life, on_hub=on_hub)
        assert (found.level, found.what) == ("ok", f"Kueue's manager runs: {what}")


@pytest.mark.parametrize(
    ("life", "why"),
    [
        (ManagerLife(wanted=0), "its Deployment is scaled to 0"),
        (ManagerLife(wanted=0, renewed_s_ago=400.0), "its Deployment is scaled to 0"),
        (ManagerLife(wanted=2), "none of its 2 pods is ready"),
        (
            ManagerLife(wanted=1, pods=(CRASHED,), renewed_s_ago=200.0),
            "none of its 1 pods is ready (kueue-1: CrashLoopBackOff: back-off 5m0s)",
        ),
        (
            ManagerLife(wanted=1, pods=(READY,), renewed_s_ago=61.0, holder="kueue-1_x"),
            "nobody has renewed its lease for 61 s, last by kueue-1_x",
        ),
    ],
)
def test_dead_manager_blocks_hub(life: ManagerLife, why: str) -> None:
    of_a_hub, of_a_worker = (about(life, on_hub=on_hub) for on_hub in (True, False))
    assert of_a_hub.what == of_a_worker.what == f"Kueue's manager does not run: {why}"
    assert (of_a_hub.level, of_a_worker.level) == ("blocks", "warning")
    wanted = "--replicas=1" if life.wanted == 0 else "rollout restart deployment"
    assert wanted in of_a_hub.change
    assert "It admits nothing, and looks emptiest" in of_a_worker.means


def test_who_sees_nothing_says_so() -> None:
    found = about(ManagerLife(), on_hub=False)
    assert (found.level, "not seen whether" in found.what) == ("note", True)


def pod(name: str, status: Mapping[str, Any]) -> objects.Pod:
    meta = {"name": name, "labels": {"app": "kueue"}}
    return msgspec.convert({"metadata": meta, "status": status}, objects.Pod)


def test_pods_and_leases_are_read_as_kubernetes_writes_them() -> None:
    deployment = msgspec.convert(
        {"spec": {"replicas": 2, "selector": {"matchLabels": {"app": "kueue"}}}}, objects.Deployment
    )
    waiting = {"ready": False, "state": {"waiting": {"reason": "ImagePullBackOff"}}}
    pods = [
        pod("a", {"conditions": [{"type": "Ready", "status": "True"}]}),
        pod("b", {"phase": "Pending", "containerStatuses": [waiting]}),
        pod(
            "c",
            {
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "message": "0/1 nodes available"}
                ]
            },
        ),
        pod("d", {"phase": "Failed", "reason": "Evicted"}),
        msgspec.convert({"metadata": {"name": "other"}}, objects.Pod),
    ]
    spec = {"renewTime": "2026-08-01T00:00:00Z", "holderIdentity": "a_1"}
    leases = [
        msgspec.convert({"metadata": {"name": "other"}, "spec": {}}, objects.Lease),
        msgspec.convert(
            {"metadata": {"name": "c1f6bfd2.kueue.x-k8s.io"}, "spec": spec}, objects.Lease
        ),
    ]
    clock_s = seconds("2026-08-01T00:00:09Z")
    assert objects.manager_life(deployment, pods, leases, clock_s) == ManagerLife(
        wanted=2,
        pods=(
            ManagerPod(name="a", ready=True),
            ManagerPod(name="b", words="ImagePullBackOff"),
            ManagerPod(name="c", words="0/1 nodes available"),
            ManagerPod(name="d", words="Evicted"),
        ),
        renewed_s_ago=9.0,
        holder="a_1",
    )
    assert objects.manager_life(None, pods, [], clock_s) == ManagerLife()


def test_a_hub_that_keeps_what_is_over_is_asked_for_a_limit() -> None:
    report = of_hub(manager=ManagerConfig(keeps_finished=True))
    [found] = [each for each in report.findings if "objectRetentionPolicies" in each.what]
    assert (found.level, "afterFinished: 1h" in found.change) == ("note", True)
    assert [each for each in of_hub().findings if "objectRetentionPolicies" in each.what] == []


@pytest.mark.parametrize(
    ("text", "keeps"),
    [
        ("kind: Configuration", True),
        ("objectRetentionPolicies: {workloads: {afterFinished: 1h}}", False),
        ("objectRetentionPolicies: {workloads: {afterDeactivatedByKueue: 1h}}", True),
        ("objectRetentionPolicies: {workloads: null}", True),
        ("objectRetentionPolicies: []", True),
    ],
)
def test_whether_it_keeps_them_is_in_its_configuration(text: str, keeps: bool) -> None:
    config = objects.manager_config({CONFIG_FILE: text}, None)
    assert config.keeps_finished is keeps
