"""What people are told in Kueue's own matters, with real inventories: stopped queues by that name,
and what Kueue has rejected with its message."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from berthmaster.lab.controlplane.kueue.setup import Kueue, Options
from berthmaster.lab.controlplane.nodes import gpu_node, make_nodes
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.kueue.podsets.reading import workload_id
from berthmaster.lib.lifecycle.workload import key
from tests.cluster.multikueue_bus import Bus
from tests.cluster.multikueue_workers import inventories
from tests.cluster.multikueueing import Rig

ONE, TWO = "worker-1", "worker-2"


@pytest.fixture
def rig(planes: Planes, namespace: str, tmp_path: Path) -> Iterator[Rig]:
    for name in (ONE, TWO):
        make_nodes(planes[name], [gpu_node("a", model="NVIDIA-A100", gpus=8)])
    options = Options(dispatcher="berthmaster.io/dispatcher")
    with Bus(tmp_path) as bus, Kueue(planes, namespace, options=options, clusters=[ONE]) as k:
        rig = Rig(k, bus, tmp_path)
        try:
            yield rig
        finally:
            rig.kill()


def says(rig: Rig, job: str, words: str) -> None:
    """Wait until ``why`` of a job has these words."""
    rig.until(lambda: words in rig.bus.why(rig.name(job)).summary, f"why of {job} says {words}")


def ownerless(k: Kueue) -> dict[str, Any]:
    """A Workload of no job."""
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    pods = {"name": "main", "count": 1, "template": template}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": "ownerless", "namespace": k.namespace},
        "spec": {"queueName": k.queue, "podSets": [pods]},
    }


def test_stopped_is_called_stopped_and_rejected_is_told_with_its_message(rig: Rig) -> None:
    rig.start()
    rig.ready()
    with inventories(rig):
        # By whom it was sent; then the worker's queue is stopped, which its LocalQueue shows too.
        rig.submit("first")
        rig.until_told("first", f"running {ONE}")
        says(rig, "first", f"running on {ONE}, sent there by Berthmaster")
        rig.k.stop_queue(ONE, "Hold")
        out = f"its ClusterQueue {rig.k.cluster_queue} is stopped (stopPolicy Hold)"
        rig.submit("second")
        rig.until(
            lambda: rig.bus.why(rig.name("second")).filtered.get(ONE) == out, "it is called stopped"
        )
        rig.k.stop_queue(ONE, "None")
        rig.until_told("second", f"running {ONE}")

        # The hub's own.
        rig.k.stop_queue("hub", "Hold")
        rig.submit("third")
        stopped = f"ClusterQueue {rig.k.cluster_queue} of the hub is stopped (stopPolicy Hold)"
        says(rig, "third", f"waits: {stopped}")
        rig.k.stop_queue("hub", "None")
        rig.until_told("third", f"running {ONE}")

        # MultiKueue knows nobody who could copy this: it rejects it, and Kueue switches it off.
        made = rig.k.planes.hub.api.create(rig.k.path("").rstrip("/"), ownerless(rig.k))["metadata"]
        name = key(rig.k.namespace, workload_id(made["name"], made["uid"]))
        rig.until(lambda: rig.bus.kinds(name), "it is known")

        def rejected() -> bool:
            said = rig.bus.why(name).summary.lower()
            return said.startswith("deactivated: ") and "no multikueue adapter" in said

        rig.until(rejected, "why tells Kueue's message")
    rig.nothing_wrong()
