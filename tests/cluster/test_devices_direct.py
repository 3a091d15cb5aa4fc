"""Each row of the table of accelerators, directly: a real node is read and the engine chooses it,
the executor asks by the right names, kube-scheduler binds the pod, and the node tells its use."""

from pathlib import Path
from typing import Any

from berthmaster.lab.controlplane.nodes import make_nodes, wait_open
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.accelerators.table import TABLE, How
from berthmaster.lib.messages.workload import Running
from tests.bus.tools import story
from tests.cluster.claiming import reported
from tests.cluster.device_rows import ELSEWHERE, ROWS, devices_of, place_of, pod_set
from tests.cluster.executing import job, site

NOTHING: dict[str, Any] = {"gpus": (), "gpu_milli": 0, "tpus": 0, "pieces": {}}


def test_each_way_of_the_table_has_a_row() -> None:
    assert {row.how for row in ROWS} | ELSEWHERE == {row.how for row in TABLE} | {How.OTHER}


@story
async def test_each_row_is_read_placed_asked_for_and_told(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    wait_open(worker, make_nodes(worker, [row.node for row in ROWS]))
    async with site(worker, namespace, tmp_path) as berlin:
        reports = [reported(worker, row.node.name) for row in ROWS]
        await berlin.tell(*reports)
        attempts = {}
        for row in ROWS:
            pods = pod_set(row)
            node = place_of(reports, pods)
            assert node == row.node.name
            request = job(node, pod_sets=(pods,), run_s="forever")
            attempts[node] = await berlin.place(request, node)
        for row in ROWS:
            node = row.node.name
            made = await berlin.job_of(attempts[node])
            assert devices_of(made["spec"]["template"]["spec"]) == row.asks, node
            running = await berlin.until(node, "Running")
            assert isinstance(running, Running)
            assert [pod.node for pod in running.pods] == [node]
            [use] = reported(worker, node).pods
            told = {name: getattr(use, name) for name in NOTHING}
            assert told == NOTHING | dict(row.uses), node
