"""Each row of the table of accelerators by way of a hub: a Job made with kubectl goes to the one
worker whose nodes have it, though the others' queues grant it too, and what is not counted as room
is told."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from berthmaster.lab.controlplane.kueue.setup import Kueue, Options
from berthmaster.lab.controlplane.nodes import cpu_node, make_nodes, wait_open
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.accelerators.table import How
from tests.cluster import claiming
from tests.cluster.device_rows import ROWS, quota
from tests.cluster.multikueue_bus import Bus
from tests.cluster.multikueue_workers import inventories
from tests.cluster.multikueueing import Rig

ONE, TWO = "worker-1", "worker-2"
CLAIMED = "claimed-gpus"  # the resource that Kueue counts claims as
RANKED = (How.WHOLE, How.TPU, How.MIG, How.LIMIT)  # by what is free of them

ONE_GPU = {
    "metadata": {"name": "one-gpu"},
    "spec": {
        "spec": {
            "devices": {
                "requests": [{"name": "it", "exactly": {"deviceClassName": claiming.DRIVER}}]
            }
        }
    },
}


@pytest.fixture
def rig(planes: Planes, namespace: str, tmp_path: Path) -> Iterator[Rig]:
    wait_open(planes[TWO], make_nodes(planes[TWO], [row.node for row in ROWS]))
    wait_open(planes[ONE], make_nodes(planes[ONE], [cpu_node("plain")]))
    options = Options(
        dispatcher="berthmaster.io/dispatcher", device_classes={CLAIMED: [claiming.DRIVER]}
    )
    quotas = {"default": quota() | {CLAIMED: "100"}}
    with (
        Bus(tmp_path) as bus,
        Kueue(planes, namespace, options=options, clusters=[ONE, TWO], quotas=quotas) as k,
    ):
        rig = Rig(k, bus, tmp_path)
        try:
            yield rig
        finally:
            rig.kill()


def test_each_row_goes_where_nodes_have_it_and_what_is_not_counted_is_told(rig: Rig) -> None:
    rig.start()
    rig.ready()
    with inventories(rig):
        for row in ROWS:
            rig.submit(row.node.name, requests={"cpu": "1", **row.asks})
        for row in ROWS:
            name = row.node.name
            rig.until(lambda name=name: rig.k.cluster_of(name) == TWO, f"{name} is on {TWO}")  # type: ignore[misc]
            reply = rig.bus.why(rig.name(name))
            told = [hint for hint in reply.hints if hint.startswith("not understood: ")]
            assert bool(told) == (row.how not in RANKED), (name, reply.hints)
            assert all(any(asked in hint for asked in row.asks) for hint in told), told
        # What a claim is of, a Workload does not say: it may go to any, and its owner is told.
        for plane in rig.k.planes:
            templates = f"{claiming.API}/namespaces/{rig.k.namespace}/resourceclaimtemplates"
            plane.api.create(templates, ONE_GPU)
        rig.submit("claims", requests={"cpu": "1"}, claims={"gpu": "one-gpu"})
        rig.until(lambda: rig.k.cluster_of("claims") in (ONE, TWO), "claims is in some worker")
        hints = rig.bus.why(rig.name("claims")).hints
        assert any(
            hint.startswith("not understood: pod set main: resource claim one-gpu: ")
            for hint in hints
        ), hints
