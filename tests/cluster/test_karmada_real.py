"""The service beside Karmada's own controllers: its detector makes bindings of Jobs by a policy,
what we let go becomes works, a member runs it, and the member's own inventory knows the pods."""

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import pytest

from berthmaster.lab.controlplane.nodes import gpu_node, make_nodes, wait_open
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lab.controlplane.projects import KARMADA, why_not
from berthmaster.lib.kueue.podsets.reading import workload_id
from berthmaster.lib.lifecycle.fold import Verdict
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import key
from berthmaster.lib.messages.workload import CancelRequested
from tests.cluster.multikueue_bus import Bus
from tests.cluster.multikueue_workers import serving_inventory
from tests.cluster.real_karmada import CLUSTERS, Karmada, karmada
from tests.cluster.test_karmada import POLICY, Rig

WHY_NOT: Final = why_not(KARMADA)
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
MEMBER: Final = "worker-1"
OTHER: Final = "worker-2"
QUIET_S: Final = 12.0  # longer than Karmada's taint manager takes to look again


class Real(Rig):
    """Jobs and policies by hand, all else by Karmada."""

    cluster = MEMBER
    karmada: Karmada

    def __init__(self, planes: Planes, namespace: str, bus: Bus, folder: Path) -> None:
        super().__init__(planes, namespace, bus, folder)
        self.planes = planes
        self.jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"

    def policy(self, name: str, **labels: str) -> None:
        """Of Jobs with its label, for the member."""
        self.propagate(name, labels=labels)

    def propagate(
        self,
        name: str,
        scheduler: str = "berthmaster",
        members: tuple[str, ...] = (MEMBER,),
        labels: Mapping[str, str] = {},
    ) -> None:
        """The same by another scheduler, or for others."""
        selector = {"matchLabels": {"policy": name}}
        of = {"apiVersion": "batch/v1", "kind": "Job", "labelSelector": selector}
        self.api.create(
            f"{POLICY}/namespaces/{self.namespace}/propagationpolicies",
            {
                "apiVersion": "policy.karmada.io/v1alpha1",
                "kind": "PropagationPolicy",
                "metadata": {
                    "name": name,
                    "namespace": self.namespace,
                    "labels": {f"berthmaster.io/{each}": text for each, text in labels.items()},
                },
                "spec": {
                    "schedulerName": scheduler,
                    "resourceSelectors": [of],
                    "placement": {"clusterAffinity": {"clusterNames": list(members)}},
                },
            },
        )

    def job(
        self, name: str, *, policy: str = "plain", pods: int = 1, run_s: str = "forever"
    ) -> str:
        """A Job of people's, of all GPUs of the member; the id that its binding has on the bus."""
        limits = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": str(8 // pods)}
        container = {"name": "main", "image": "x", "resources": {"limits": limits}}
        self.api.create(
            self.jobs,
            {
                "metadata": {"name": name, "labels": {"policy": policy}},
                "spec": {
                    "backoffLimit": 0,
                    "parallelism": pods,
                    "completions": pods,
                    "template": {
                        "metadata": {"annotations": {"berth.test/run-s": run_s}},
                        "spec": {"restartPolicy": "Never", "containers": [container]},
                    },
                },
            },
        )
        self.until(lambda: self.api.find(self.path(name)), f"{name} has a binding")
        return workload_id(name, self.binding(name)["metadata"]["uid"])

    def until_state(self, workload: str, state: State) -> None:
        self.until(lambda: self.state(workload) is state, f"{workload} is {state.value}")

    def pods(self, job: str, member: str = MEMBER) -> list[Any]:
        """Of a Job, in a member."""
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        return self.planes[member].api.items(path, labelSelector=f"job-name={job}")

    def taint(self, *keys: str, member: str = MEMBER) -> None:
        taints = [{"key": each, "effect": "NoExecute"} for each in keys]
        self.api.merge(f"{CLUSTERS}/{member}", {"spec": {"taints": taints}})

    def attempts(self, workload: str) -> int:
        return self.bus.folds[key(self.namespace, workload)].attempt


def inventory(rig: Real, member: str = MEMBER) -> AbstractContextManager[None]:
    """The member's own, behind a door."""
    return serving_inventory(rig.bus.url, rig.folder, member, rig.planes[member].kubeconfig)


@pytest.fixture
def rig(planes: Planes, namespace: str, tmp_path: Path) -> Iterator[Real]:
    member = planes[MEMBER]
    wait_open(member, make_nodes(member, [gpu_node("n1", gpus=8)]))
    with Bus(tmp_path) as bus, karmada(planes.hub) as running:
        made = Real(planes, namespace, bus, tmp_path)
        try:
            running.join(MEMBER, member)
            made.karmada = running
            with inventory(made):
                made.policy("plain")
                made.start("resolver", "karmada")
                yield made
        finally:
            made.end()


def test_jobs_of_a_policy_wait_their_turn_run_in_the_member_and_end_with_their_templates(
    rig: Real,
) -> None:
    rig.policy("urgent", priority="100")
    first = rig.job("first", pods=2, run_s="45")  # outlives what is begun beside it
    rig.until_state(first, State.RUNNING)
    low, high = rig.job("low"), rig.job("high", policy="urgent")
    dropped = rig.job("dropped", policy="urgent")
    for job in ("low", "high", "dropped"):
        rig.until(lambda j=job: rig.said(j)[0] == "WaitsItsTurn", f"{job} waits")
        assert (rig.held(job), rig.where(job)) == (True, [])

    # Deleted while it is held. Another changes meanwhile, and stays held.
    rig.api.delete(f"{rig.jobs}/dropped")
    rig.until_state(dropped, State.CANCELLED)
    rig.api.merge(f"{rig.jobs}/low", {"metadata": {"labels": {"more": "yes"}}})

    # The first ends while the service is dead: the next one is that of more priority.
    rig.kill("karmada")
    rig.until(lambda: rig.api.get(f"{rig.jobs}/first")["status"].get("succeeded"), "it has ended")
    assert rig.state(first) is State.RUNNING
    rig.start("karmada")
    rig.until_state(first, State.SUCCEEDED)
    rig.until_state(high, State.RUNNING)
    assert (rig.held("low"), rig.where("low")) == (True, [])
    [pod] = rig.pods("high")
    told = {name: text for name, text in pod["metadata"]["labels"].items() if "berth" in name}
    assert told == {
        "berthmaster.io/tenant": rig.namespace,
        "berthmaster.io/workload": high,
        "berthmaster.io/attempt": "1",
        "berthmaster.io/pod-set": "main",
    }

    # Deleted while it runs: over once its pod is gone from the member, and the other goes.
    rig.api.delete(f"{rig.jobs}/high")
    rig.until_state(high, State.CANCELLED)
    assert rig.pods("high") == []
    rig.until_state(low, State.RUNNING)

    # An operator has it leave: it goes anew when nothing is left, with another attempt's labels.
    rig.bus.ask_to_go(key(rig.namespace, low), "evict")
    rig.until(lambda: rig.attempts(low) == 2, "it is placed anew")
    rig.until_state(low, State.RUNNING)
    [pod] = rig.pods("low")
    assert pod["metadata"]["labels"]["berthmaster.io/attempt"] == "2"

    # Cancelled on the bus: the Job of people's stays, and is never placed again.
    work = rig.bus.folds[key(rig.namespace, low)]
    head: dict[str, Any] = {
        "tenant": work.tenant,
        "id": work.id,
        "after": work.sequence,
        "at_s": 0.0,
        "by": "gw",
    }
    rig.bus.append(CancelRequested(**head, cluster=MEMBER, reason="not needed"))
    rig.until_state(low, State.CANCELLED)
    rig.until(lambda: rig.said("low")[0] == "Over", "its binding says so")
    assert (rig.held("low"), rig.pods("low")) == (True, [])

    # What another scheduler has is Karmada's own to schedule.
    rig.propagate("theirs", "default-scheduler")
    theirs = rig.job("theirs", policy="theirs")
    rig.until(
        lambda: [each["status"]["phase"] for each in rig.pods("theirs")] == ["Running"], "runs"
    )
    assert rig.state(theirs) is None
    assert "suspension" not in rig.binding("theirs")["spec"]
    assert all(one in (Verdict.COUNTED, Verdict.VOID) for one in rig.bus.verdicts)


def test_what_karmadas_taint_manager_takes_leaves_the_member_at_once_and_waits_for_it(
    rig: Real,
) -> None:
    train = rig.job("train")
    rig.until_state(train, State.RUNNING)
    rig.taint("broken")
    rig.until(lambda: rig.said("train")[0] == "KeptAway", "it has left, and is kept away")
    work = rig.bus.folds[key(rig.namespace, train)]
    assert (work.state, work.attempt) == (State.CLAIMED, 2)
    assert (rig.held("train"), rig.where("train"), rig.pods("train")) == (True, [], [])
    assert "gracefulEvictionTasks" not in rig.binding("train")["spec"]
    time.sleep(QUIET_S)
    assert (rig.pods("train"), rig.attempts(train)) == ([], 2)

    # Open again: it is placed anew, without the wish to be moved.
    rig.taint()
    rig.until_state(train, State.RUNNING)
    assert (rig.attempts(train), len(rig.pods("train"))) == (3, 1)
    assert rig.bus.folds[key(rig.namespace, train)].wish is None
    assert all(one in (Verdict.COUNTED, Verdict.VOID) for one in rig.bus.verdicts)


def test_what_is_taken_from_one_member_runs_in_another(rig: Real) -> None:
    other = rig.planes[OTHER]
    wait_open(other, make_nodes(other, [gpu_node("n1", gpus=8)]))
    rig.karmada.join(OTHER, other)
    with inventory(rig, OTHER):
        rig.propagate("both", members=(MEMBER, OTHER))
        train = rig.job("train", policy="both")
        rig.until_state(train, State.RUNNING)
        [here] = rig.where("train")
        there = OTHER if here == MEMBER else MEMBER
        rig.taint("broken", member=here)
        rig.until(lambda: rig.where("train") == [there], "it goes to the other member")
        rig.until_state(train, State.RUNNING)
        assert (len(rig.pods("train", here)), len(rig.pods("train", there))) == (0, 1)
