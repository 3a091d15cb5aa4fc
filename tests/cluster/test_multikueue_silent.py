"""A worker whose Kueue is dead, on real API servers and as real inventories tell it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from berthmaster.lab.controlplane.kueue.setup import Kueue, Options
from berthmaster.lab.controlplane.nodes import gpu_node, make_nodes
from berthmaster.lab.controlplane.planes import Planes
from tests.cluster.multikueue_bus import Bus
from tests.cluster.multikueue_workers import inventories
from tests.cluster.multikueueing import Rig

ONE, TWO, THREE = "worker-1", "worker-2", "worker-3"
GPUS = {ONE: 8, TWO: 5, THREE: 3}
SILENT = "WorkerKueueSilent"


@pytest.fixture
def rig(planes: Planes, namespace: str, tmp_path: Path) -> Iterator[Rig]:
    for worker in planes.workers:
        make_nodes(worker, [gpu_node("a", model="NVIDIA-A100", gpus=GPUS[worker.name])])
    options = Options(dispatcher="berthmaster.io/dispatcher")
    with Bus(tmp_path) as bus, Kueue(planes, namespace, options=options) as k:
        rig = Rig(k, bus, tmp_path)
        rig.flags = ("--patience-s", "120")
        rig.limits = {"silent_s": 3.0}
        try:
            yield rig
        finally:
            rig.kill()


def test_a_worker_whose_kueue_is_dead_draws_no_jobs_and_is_used_again_when_it_is_back(
    rig: Rig,
) -> None:
    rig.start()
    rig.ready()
    with inventories(rig):
        rig.k.kill_manager(ONE)
        # The emptiest: most of them go there at first, and none waits for its patience of 120 s.
        names = [f"job-{number}" for number in range(6)]
        for name in names:
            rig.submit(name)
        for name in names:
            rig.until(lambda n=name: rig.k.cluster_of(n), f"{name} has a cluster")  # type: ignore[misc]
            assert rig.k.cluster_of(name) in (TWO, THREE)
        moved = next(name for name in names if f"evicted {ONE}" in rig.story(name))
        (note,) = rig.events(moved, SILENT)
        assert f"`berth doctor --worker {ONE}` looks at it" in note

        # The next one does not go there at all.
        name = rig.submit("next")
        rig.until(lambda: rig.k.cluster_of("next"), "it has a cluster")
        assert f"placed {ONE}" not in rig.story("next")
        assert any(f"{ONE} goes last" in hint for hint in rig.bus.why(name).hints)

        # Its Kueue is back. What has no other choice is admitted there, and that ends it.
        rig.k.restart_manager(ONE)
        rig.submit("large", requests={"cpu": "1", "nvidia.com/gpu": "6"})
        rig.until_told("large", f"admitted {ONE}", f"running {ONE}")
        rig.submit("again")
        rig.until_told("again", f"admitted {ONE}", f"running {ONE}")
    rig.nothing_wrong()
