"""What people see of a Workload that sits in a trap of Kueue's, on real API servers: ``why``, an
event on the Workload, a metric; and that all three end with the trap."""

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from berthmaster.lab.controlplane.kueue.setup import Kueue, Options
from berthmaster.lab.controlplane.nodes import gpu_node, make_nodes
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.runtime.ports import free_ports
from tests.cluster.multikueue_bus import Bus
from tests.cluster.multikueueing import Rig, running_in
from tests.support.patience import hang_s

ONE, TWO = "worker-1", "worker-2"
WORKERS = (ONE, TWO, "worker-3")
TRAP = "StuckEviction"


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]


@pytest.fixture
def rig(planes: Planes, namespace: str, tmp_path: Path, port: int) -> Iterator[Rig]:
    for worker in planes.workers:
        make_nodes(worker, [gpu_node("a", model="NVIDIA-A100", gpus=8)])
    options = Options(dispatcher="berthmaster.io/dispatcher", worker_lost_timeout_s=6.0)
    with Bus(tmp_path) as bus, Kueue(planes, namespace, options=options) as k:
        rig = Rig(k, bus, tmp_path)
        rig.flags = (*rig.flags, "--http-port", str(port))
        rig.limits["eviction_s"] = 3.0
        for name, free in ((ONE, 8), (TWO, 6)):
            bus.worker(name, free=free)
            bus.queue(name, k)
        try:
            yield rig
        finally:
            rig.kill()


def gauge(port: int, name: str) -> float:
    """A gauge or counter of the reconciler's, by the end of its name."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=hang_s()) as answer:
        lines = answer.read().decode().splitlines()
    (line,) = [line for line in lines if name in line and not line.startswith("#")]
    return float(line.rpartition(" ")[2])


def test_an_eviction_that_a_lost_worker_keeps_from_ending_is_told_and_ends_with_its_return(
    rig: Rig, port: int
) -> None:
    rig.start()
    rig.ready()
    name = rig.submit("train")
    rig.until_told("train", f"admitted {ONE}", f"running {ONE}")
    rig.bus.living.discard(ONE)
    rig.k.planes[ONE].crash_api_server()
    rig.until(lambda: rig.bus.kinds(name)[-1] == f"evicted {ONE}", "it is given up")

    # The hub's Job counts its pods for as long as nobody over there can say that they are gone.
    rig.until(lambda: "stuck: Kueue took it back" in rig.bus.why(name).summary, "why tells")
    (hint,) = rig.bus.why(name).hints
    assert "bring that cluster back, or delete the Job and make it again" in hint
    rig.until(lambda: rig.events("train", TRAP) == [hint], "an event on the Workload")
    sitting, sprung = f'trapped{{trap="{TRAP}"}}', f'traps_total{{trap="{TRAP}"}}'
    rig.until(lambda: gauge(port, sitting) == 1, "a metric")
    assert gauge(port, sprung) == 1
    assert running_in(rig.k, "train", (TWO, "worker-3")) == []  # nothing was sent anew

    rig.k.planes[ONE].start_api_server()
    rig.bus.living.add(ONE)
    rig.until(lambda: "stuck" not in rig.bus.why(name).summary, "why tells no more")
    rig.until(lambda: gauge(port, sitting) == 0, "the metric is down")
    assert gauge(port, sprung) == 1

    def runs_once() -> bool:
        where = rig.k.cluster_of("train")
        told = rig.bus.kinds(name)[-1] == f"running {where}"
        return told and running_in(rig.k, "train", WORKERS) == [where]

    rig.until(runs_once, "it runs in one place")
    assert rig.events("train", TRAP) == [hint]
    rig.nothing_wrong()
