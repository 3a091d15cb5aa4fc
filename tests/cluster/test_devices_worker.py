"""Each row of the table of accelerators in a worker that Kueue governs: the names that quota is
asked for by are those of the Job, its Kueue counts them, and the pods run where they are had."""

import asyncio
from pathlib import Path

from berthmaster.lab.controlplane.kueue.setup import API, kueue
from berthmaster.lab.controlplane.nodes import make_nodes, wait_open
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.kueue.asks import asks_of, devices_of
from berthmaster.lib.messages.placement import Target
from tests.bus.tools import eventually, story
from tests.cluster import device_rows
from tests.cluster.claiming import reported
from tests.cluster.device_rows import ROWS, place_of, pod_set
from tests.cluster.executing import job, site


@story
async def test_each_row_is_asked_of_quota_by_the_names_of_its_job(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    wait_open(worker, make_nodes(worker, [row.node for row in ROWS]))
    quotas = {worker.name: {"default": device_rows.quota()}}
    async with (
        kueue(planes, namespace, worker_quotas=quotas) as k,
        site(worker, namespace, tmp_path) as berlin,
    ):
        berlin.target = Target(via="worker", namespace=namespace, local_queue=k.queue)
        reports = [reported(worker, row.node.name) for row in ROWS]
        await berlin.tell(*reports)
        attempts = {}
        for row, report in zip(ROWS, reports, strict=True):
            pods = pod_set(row)
            node = place_of(reports, pods)
            request = job(node, pod_sets=(pods,), run_s="forever")
            [ask] = asks_of(request, devices_of([report]))
            [way] = ask.ways
            by_name = {n: str(amount) for n, amount in way.items() if n not in ("cpu", "memory")}
            assert by_name == row.asks, node
            attempts[node] = await berlin.place(request, node, target=berlin.target)
        for row in ROWS:
            node = row.node.name
            await berlin.until(node, "Running")
            made = await berlin.job_of(attempts[node])
            assert device_rows.devices_of(made["spec"]["template"]["spec"]) == row.asks, node
        wanted: dict[str, int] = {}
        for row in ROWS:
            for name, amount in row.asks.items():
                wanted[name] = wanted.get(name, 0) + int(amount)

        async def all_is_reserved() -> bool:
            path = f"{API}/clusterqueues/{k.cluster_queue}"
            queue = await asyncio.to_thread(worker.api.get, path)
            [flavor] = queue["status"]["flavorsReservation"]
            used = {one["name"]: str(one["total"]) for one in flavor["resources"]}
            return {name: int(used[name]) for name in wanted} == wanted

        await eventually(all_is_reserved)  # its status follows the Workloads
