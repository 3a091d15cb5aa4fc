"""MultiKueue with nothing but the access that credentials made: the real Kueue where there is one.

A job is dispatched, runs and ends in a worker while the token that its hub came with is renewed,
and another after it.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from berthmaster.lab.controlplane.kueue.setup import SYSTEM, Kueue
from berthmaster.lab.controlplane.nodes import gpu_node, make_nodes
from berthmaster.lab.controlplane.planes import Planes
from tests.cluster.credentialing import MULTIKUEUE_CLUSTERS, Rig

ONE = "worker-1"


@pytest.fixture
def k(planes: Planes, namespace: str) -> Iterator[Kueue]:
    make_nodes(planes.workers[0], [gpu_node("a", gpus=8)])
    with Kueue(planes, namespace, clusters=[ONE]) as found:
        yield found


def test_jobs_run_through_renewals_by_the_access_that_was_made(k: Kueue, tmp_path: Path) -> None:
    rig = Rig(k.planes, k.namespace, tmp_path, kueue=SYSTEM)
    try:
        # What Kueue came with goes; the configuration still lists the name.
        rig.hub.api.delete(f"{MULTIKUEUE_CLUSTERS}/{ONE}")
        rig.named(ONE)
        rig.profile(ONE)
        rig.bootstrap(ONE, k.planes.workers[0])
        rig.start("--renew-after-s", "8", "--grace-s", "5")
        rig.until(lambda: rig.held(ONE), "access is there")
        k.wait_active()

        first = rig.serial(ONE)
        k.submit("train", run_s="20")
        k.until(lambda: k.cluster_of("train") == ONE, "it is dispatched")
        rig.until(lambda: rig.serial(ONE) not in ("", first), "renewed while it runs")
        k.until(lambda: k.has("train", "Finished"), "it ends, and the hub hears of it")
        k.submit("next", run_s="0.5")
        k.until(lambda: k.has("next", "Finished"), "so does the next")
        rig.until(lambda: len(rig.bound(k.planes.workers[0])) <= 2, "what was replaced goes")
    finally:
        rig.clean()
