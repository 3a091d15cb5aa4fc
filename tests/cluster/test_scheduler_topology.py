"""How pods stand to each other under a real kube-scheduler: what was asked is kept by it as well,
whatever nodes were preferred and however it likes to spread pods."""

from pathlib import Path

from berthmaster.lab.controlplane.nodes import gpu_node, make_nodes, wait_open
from berthmaster.lab.controlplane.plane import Plane
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.messages.workload import Running, Topology
from tests.bus.tools import story
from tests.cluster.executing import Site, job, site

RACK = "example.org/rack"


def two_racks(plane: Plane) -> None:
    """n1 and n2 in one, n3 and n4 in another; n5 in none."""
    nodes = [gpu_node(f"n{n}", labels={RACK: "a" if n < 3 else "b"}) for n in range(1, 5)]
    wait_open(plane, make_nodes(plane, [*nodes, gpu_node("n5")]))


async def nodes_of(berlin: Site, name: str) -> list[str]:
    """Where its pods are, as its executor tells the log."""
    running = await berlin.until(name, "Running")
    assert isinstance(running, Running)
    return [pod.node for pod in running.pods]


@story
async def test_pods_that_are_to_be_together_are_though_their_placement_is_out_of_date(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    two_racks(worker)
    async with site(worker, namespace, tmp_path) as berlin:
        # Nodes of three places are preferred: only one of them can be.
        rack = Topology(same=RACK)
        await berlin.place(
            job("rack", count=4, gpus=1, run_s="forever", topology=rack), "n1", "n3", "n5"
        )
        found = set(await nodes_of(berlin, "rack"))
        assert found <= {"n1", "n2"} or found <= {"n3", "n4"}
        alone = Topology(same="node")
        await berlin.place(
            job("node", count=3, gpus=1, run_s="forever", topology=alone), "n1", "n3"
        )
        assert len(set(await nodes_of(berlin, "node"))) == 1


@story
async def test_no_node_has_more_pods_than_were_asked_for_though_all_prefer_one(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    two_racks(worker)
    async with site(worker, namespace, tmp_path) as berlin:
        for limit in (1, 2):
            name = f"at-most-{limit}"
            spread = Topology(max_pods_a_node=limit)
            await berlin.place(job(name, count=5, gpus=1, run_s="forever", topology=spread), "n2")
            found = await nodes_of(berlin, name)
            assert max(found.count(node) for node in found) <= limit
            assert "n2" in found
