"""What counts as room on real workers, as their own inventories tell it: GPUs of the resource that
is asked for, on nodes with the labels of the flavor that Kueue gives."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from berthmaster.lab.controlplane.kueue import builders
from berthmaster.lab.controlplane.kueue.setup import API, Kueue, Options
from berthmaster.lab.controlplane.nodes import Node, gpu_node, make_nodes
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.messages.fleet import CopyReport, QueueReport
from tests.cluster.multikueue_bus import Bus
from tests.cluster.multikueue_workers import inventories
from tests.cluster.multikueueing import Rig

ONE, TWO = "worker-1", "worker-2"
NVIDIA, AMD = "nvidia.com/gpu", "amd.com/gpu"
BARE = "pool-of-one"  # the flavor of the first worker
POOL = {"example.com/pool": "mi300"}
TRAP = "PodsUnscheduled"


@pytest.fixture
def rig(planes: Planes, namespace: str, tmp_path: Path) -> Iterator[Rig]:
    host = {"cpu": "96", "memory": "768Gi", "pods": "110"}
    mi300 = Node(name="mi300", capacity=host | {AMD: "8"})  # nobody has labelled it
    make_nodes(planes[ONE], [gpu_node("a100", model="NVIDIA-A100", gpus=1), mi300])
    make_nodes(planes[TWO], [gpu_node("a100", model="NVIDIA-A100", gpus=2)])
    amounts = {"cpu": "100", "memory": "1Ti", NVIDIA: "100", AMD: "100"}
    with (
        Bus(tmp_path) as bus,
        Kueue(
            planes,
            namespace,
            options=Options(dispatcher="berthmaster.io/dispatcher"),
            quotas={"default": amounts},
            worker_quotas={ONE: {BARE: amounts}},
        ) as k,
    ):
        rig = Rig(k, bus, tmp_path)
        rig.limits["unscheduled_s"] = 3.0
        try:
            yield rig
        finally:
            rig.kill()


def taking_one_gpu() -> dict[str, object]:
    """A pod of somebody who does not use Kueue."""
    container = {"name": "main", "image": "none", "resources": {"limits": {NVIDIA: "1"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "theirs"},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }


def labels_told(rig: Rig, worker: str) -> list[dict[str, str]]:
    """By which labels the flavors of a worker's queue mean nodes, as its inventory tells it."""
    facts = [seen.fact for seen in list(rig.bus.facts.values())]
    reports = [fact for fact in facts if isinstance(fact, QueueReport) and not fact.gone]
    mine = (report for report in reports if report.cluster == worker)
    return [flavor.node_labels for report in mine for flavor in report.flavors]


def flavors_told(rig: Rig, job: str) -> list[tuple[dict[str, str], ...]]:
    """Which flavors a job's copies have, as workers' inventories tell it."""
    name = rig.name(job).partition("/")[2]
    facts = [seen.fact for seen in list(rig.bus.facts.values())]
    copies = (fact for fact in facts if isinstance(fact, CopyReport) and not fact.gone)
    return [copy.flavors for copy in copies if name.startswith(copy.workload)]


def test_room_is_of_the_resource_that_is_asked_for_on_nodes_of_the_flavor(rig: Rig) -> None:
    one = rig.k.planes[ONE].api
    pods = f"/api/v1/namespaces/{rig.k.namespace}/pods"
    one.create(pods, taking_one_gpu())
    rig.until(lambda: one.get(f"{pods}/theirs")["spec"].get("nodeName"), "it is bound")
    rig.start()
    rig.ready()
    with inventories(rig):
        # One worker has its A100 taken and eight AMD GPUs free, the other two A100 free.
        rig.submit("cuda", requests={"cpu": "1", NVIDIA: "1"})
        rig.until_told("cuda", f"running {TWO}")
        rig.submit("rocm", requests={"cpu": "1", AMD: "2"})
        rig.until_told("rocm", f"running {ONE}")
        had = ({"cpu": BARE, AMD: BARE},)
        rig.until(lambda: flavors_told(rig, "rocm") == [had], "its flavors are told")
        (choice,) = rig.bus.decisions[-1].placements
        tiers = {ranked.cluster: round(ranked.parts["tier"]) for ranked in choice.ranking}
        assert (tiers[ONE], tiers[TWO]) == (100, 33)

        # From now on the first worker's quota is for nodes that it does not have.
        flavor = f"/apis/kueue.x-k8s.io/v1beta2/resourceflavors/{BARE}"
        one.merge(flavor, {"spec": {"nodeLabels": POOL}})
        rig.until(lambda: labels_told(rig, ONE) == [POOL], "its inventory has told that")
        rig.submit("behind", requests={"cpu": "1"})
        rig.until_told("behind", f"running {TWO}")

        # Whoever has no other choice is admitted there, and hears why no pod of his runs.
        rig.k.set_clusters([ONE])
        name = rig.submit("waits", requests={"cpu": "1", AMD: "1"})
        rig.until_told("waits", f"admitted {ONE}")
        rig.until(lambda: rig.events("waits", TRAP), "an event on the Workload")
        (note,) = rig.events("waits", TRAP)
        assert "its pod finds no node there, says its scheduler: 0/2 nodes are available" in note
        assert "node affinity/selector" in note
        assert note in rig.bus.why(name).summary

        one.merge("/api/v1/nodes/mi300", {"metadata": {"labels": POOL}})
        rig.until_told("waits", f"admitted {ONE}", f"running {ONE}")
        rig.until(lambda: "stuck" not in rig.bus.why(name).summary, "why tells no more")
    rig.nothing_wrong()


def test_an_urgent_job_gets_the_room_of_a_lesser_one_which_comes_back_after_it(rig: Rig) -> None:
    """The hub has quota for a hundred GPUs, the workers have three: its Kueue sees no shortage."""
    hub = rig.k.planes.hub.api
    hub.apply(builders.priority_class("urgent", 1000))
    queue = f"{API}/clusterqueues/{rig.k.cluster_queue}"
    hub.merge(queue, {"spec": {"preemption": {"withinClusterQueue": "LowerPriority"}}})
    rig.start()
    rig.add_our_check("kubernetes.io/none!=here")  # of all clusters
    with inventories(rig):
        lesser = ["low-0", "low-1", "low-2"]
        for job in lesser:
            rig.submit(job, requests={"cpu": "1", NVIDIA: "1"})
            rig.until(lambda job=job: "running" in "".join(rig.story(job)), f"{job} runs")  # type: ignore[misc]
        asks = {"cpu": "1", NVIDIA: "1"}
        labels = {"kueue.x-k8s.io/priority-class": "urgent"}
        name = rig.submit("urgent", requests=asks, labels=labels, run_s="3")
        rig.until(
            lambda: "".join(rig.bus.kinds(name)[-1:]).startswith("succeeded"),
            "it runs and ends",
        )
        (order,) = [o for decision in rig.bus.decisions for o in decision.evictions]
        assert (order.right, order.for_id) == ("priority", name.partition("/")[2])
        goes = next(job for job in lesser if rig.name(job).endswith(f"/{order.id}"))
        stays = [job for job in lesser if job != goes]
        assert all("evictionrequested" not in kind for job in stays for kind in rig.story(job))
        assert rig.bus.kinds(name)[-1] == f"succeeded {order.cluster}"

        # Who went waits in a worker, and nobody goes for it; once there is room there, it runs.
        rig.until(
            lambda: rig.bus.folds[rig.name(goes)].state in (State.ADMITTED, State.RUNNING),
            "it is sent",
        )
        where = rig.bus.folds[rig.name(goes)].cluster
        beside = [job for job in stays if rig.bus.folds[rig.name(job)].cluster == where]
        if where != order.cluster:  # there the urgent one has left its room
            hub.delete(f"/apis/batch/v1/namespaces/{rig.k.namespace}/jobs/{beside[0]}")
        rig.until_told(goes, f"admitted {where}", f"running {where}")
        fold = rig.bus.folds[rig.name(goes)]
        assert (fold.evictions, fold.moves) == (0, 1)
        assert sum(len(decision.evictions) for decision in rig.bus.decisions) == 1
    rig.nothing_wrong()
