"""A worker's API server that is gone for a minute: what runs goes on, nothing is made twice, and
the log hears of every end."""

import asyncio
from pathlib import Path

from berthmaster.lab.controlplane.nodes import gpu_node, make_nodes
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.messages.workload import Cancelled
from tests.bus.tools import story
from tests.cluster.executing import Site, job, site

AWAY_S = 60.0


def pods_of(berlin: Site) -> dict[str, str]:
    """Pods by their uid: whose they are."""
    return {
        pod["metadata"]["uid"]: pod["metadata"]["labels"]["berthmaster.io/workload"]
        for pod in berlin.pods()
    }


@story
async def test_for_a_minute_without_its_api_server_jobs_run_on_and_each_is_made_and_ends_once(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("n1")])
    async with site(worker, namespace, tmp_path) as berlin:
        mark = worker.audit.mark()
        await berlin.place(job("runs", count=2, run_s="5"), "n1")
        await berlin.place(job("stays", run_s="forever"), "n1")
        await berlin.until("stays", "Running")
        before = pods_of(berlin)
        await asyncio.to_thread(worker.crash_api_server)
        # Meanwhile one is placed, one is to be cancelled, and one would have ended.
        await berlin.place(job("waits"), "n1")
        await berlin.cancel("stays", "enough")
        told = await berlin.kinds("runs")
        await asyncio.sleep(AWAY_S)
        assert await berlin.kinds("runs") == told, "nobody can know"
        assert await berlin.kinds("stays") == ["Claimed", "Running", "CancelRequested"]
        assert await berlin.kinds("waits") in ([], ["Claimed"])

        await asyncio.to_thread(worker.start_api_server)
        for name in ("runs", "waits"):
            await berlin.until(name, "Succeeded")
        cancelled = await berlin.until("stays", "Cancelled")
        assert isinstance(cancelled, Cancelled)
        assert cancelled.reason == "enough"
        # Whatever pod of those that ran is still there is one that ran before.
        after = {uid: name for uid, name in pods_of(berlin).items() if name != "waits"}
        assert after.items() <= before.items()
        await berlin.clean()
        for name, kinds in {
            "runs": ["Claimed", "Running", "Succeeded"],
            "stays": ["Claimed", "Running", "CancelRequested", "Cancelled"],
            "waits": ["Claimed", "Running", "Succeeded"],
        }.items():
            assert [k for k in await berlin.kinds(name) if k != "Running"] == [
                kind for kind in kinds if kind != "Running"
            ]
        calls = worker.audit.calls(since=mark)
        made = [c for c in calls if (c.verb, c.resource, c.status) == ("create", "jobs.batch", 201)]
        assert len(made) == 3, made
