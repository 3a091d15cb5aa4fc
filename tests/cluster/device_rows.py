"""One node and one request for each row of the table of accelerators, and how a pod asks for it.

Each path has a test that takes all of them: directly, in a worker that Kueue governs, by the hub.
Nodes are told apart by a label that each request names, so that none gets another's.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from berthmaster.lab.controlplane.nodes import Node, cpu_node, gpu_node, mig_node, shared_node
from berthmaster.lib.accelerators.table import How
from berthmaster.lib.engine.fitting.fit import bind_gang
from berthmaster.lib.engine.fleet.fleet import Fleet
from berthmaster.lib.engine.fleet.needs import suitable_nodes
from berthmaster.lib.messages.fleet import NodeReport
from berthmaster.lib.messages.workload import PodSet

ROW: Final = "example.org/row"
GKE: Final = "cloud.google.com/gke-"
T4: Final = [{"id": "GPU-a", "devmem": 15_360, "type": "NVIDIA-Tesla T4", "health": True}]


class Row(NamedTuple):
    """How an accelerator is had on one node."""

    how: How
    node: Node
    pods: Mapping[str, Any]  # fields of a pod set
    asks: Mapping[str, str]  # devices that its pods' containers ask for
    uses: Mapping[str, Any] = {}  # what its node then tells of the pod


def _node(name: str, devices: Mapping[str, str], **more: Any) -> Node:
    host = cpu_node(name)
    labels = {ROW: name} | more.pop("labels", {})
    return Node(name=name, capacity={**host.capacity, **devices}, labels=labels, **more)


def _labelled(node: Node) -> Node:
    return Node(
        name=node.name,
        capacity=node.capacity,
        labels={**node.labels, ROW: node.name},
        annotations=node.annotations,
    )


def _register() -> str:
    import json

    return json.dumps(T4)


def _both(first: int) -> dict[str, Any]:
    """What a pod with both GPUs of a node uses. Each maker has indices of its own."""
    return {"gpus": (first, first + 1), "gpu_milli": 1000}


# Of a GPU that is had in pieces only, 1 milli is withheld: nothing takes it as a whole one.
QUARTER: Final = {"gpus": (0,), "gpu_milli": 249}
ROWS: Final = (
    Row(
        How.WHOLE,
        _labelled(gpu_node("nvidia", gpus=2)),
        {"gpus": 2},
        {"nvidia.com/gpu": "2"},
        _both(0),
    ),
    Row(
        How.WHOLE,
        _node("amd", {"amd.com/gpu": "2"}, labels={"amd.com/gpu.product-name": "MI210"}),
        {"gpus": 2, "gpu_resource": "amd.com/gpu"},
        {"amd.com/gpu": "2"},
        _both(64),
    ),
    *(
        Row(
            How.WHOLE,
            _node(name, {f"gpu.intel.com/{name}": "2"}),
            {"gpus": 2, "gpu_resource": f"gpu.intel.com/{name}"},
            {f"gpu.intel.com/{name}": "2"},
            _both(first),
        )
        for name, first in (("i915", 128), ("xe", 192))
    ),
    Row(
        How.TPU,
        _node(
            "tpu",
            {"google.com/tpu": "4"},
            labels={f"{GKE}tpu-topology": "2x2"},
            taints=({"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"},),
        ),
        {"tpus": 4, "tpu_topology": "2x2"},
        {"google.com/tpu": "4"},
        {"tpus": 4},
    ),
    Row(
        How.MIG,
        _labelled(mig_node("mig", {"1g.5gb": 7})),
        {"gpus": 1, "gpu_milli": 142, "mig_profile": "1g.5gb", "isolation": "hardware"},
        {"nvidia.com/mig-1g.5gb": "1"},
        {"gpus": (0,), "gpu_milli": 142},
    ),
    Row(
        How.SHARED,
        _labelled(shared_node("turns", gpus=1, replicas=4)),
        {"gpus": 1, "gpu_milli": 250},
        {"nvidia.com/gpu.shared": "1"},
        QUARTER,
    ),
    Row(
        How.SHARED,
        _node(
            "renamed",
            {"nvidia.com/turns": "4"},
            labels={"nvidia.com/gpu.count": "1", "nvidia.com/gpu.replicas": "4"},
        ),
        {"gpus": 1, "gpu_milli": 250},
        {"nvidia.com/turns": "1"},
        QUARTER,
    ),
    Row(
        How.LIMIT,
        # HAMi's scheduler takes no notice of its own limits; the usual one finds some here.
        _node(
            "hami",
            {
                "nvidia.com/gpu": "10",
                "nvidia.com/gpucores": "100",
                "nvidia.com/gpumem-percentage": "100",
            },
            annotations={"hami.io/node-nvidia-register": _register()},
        ),
        {"gpus": 1, "gpu_milli": 500, "isolation": "memory"},
        {
            "nvidia.com/gpu": "1",
            "nvidia.com/gpucores": "50",
            "nvidia.com/gpumem-percentage": "50",
        },
        {"gpus": (0,), "gpu_milli": 500},
    ),
    Row(
        How.OTHER,
        _node("gaudi", {"habana.ai/gaudi": "8"}),
        {"resources": {"habana.ai/gaudi": 2}},
        {"habana.ai/gaudi": "2"},
        {"pieces": {"habana.ai/gaudi": 2}},
    ),
)
# These have tests of their own: claims in test_executor_dra.py and test_claims_worker.py,
# thousandths in test_shares.py.
ELSEWHERE: Final = {How.CLASS, How.MILLI}


def pod_set(row: Row) -> PodSet:
    """Its request, on its own node."""
    return PodSet(**row.pods, node_labels={ROW: row.node.name})


def place_of(reports: list[NodeReport], pods: PodSet) -> str:
    """The node that the engine chooses."""
    fleet = Fleet()
    for report in reports:
        fleet.put_node(report)
    fleet.arrange()
    suitable = suitable_nodes(fleet, pods)
    bound = bind_gang(fleet, 0, (pods,), (suitable,))
    assert bound is not None, (pods, suitable.why_not)
    return bound.bindings[0].node


def quota() -> dict[str, str]:
    """Enough of all that they ask for."""
    names = {name for row in ROWS for name in row.asks}
    return {"cpu": "100", "memory": "1Ti"} | dict.fromkeys(sorted(names), "100")


def devices_of(pod: Mapping[str, Any]) -> dict[str, str]:
    """What the container of a pod's specification asks for, CPU and memory aside."""
    [container] = pod["containers"]
    limits = container["resources"].get("limits", {})
    return {name: amount for name, amount in limits.items() if name not in ("cpu", "memory")}
