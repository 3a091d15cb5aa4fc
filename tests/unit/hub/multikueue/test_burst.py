"""A burst of Workloads: what waits costs little, and each placement is charged once."""

import pytest

from berthmaster.hub.multikueue.core.deciding.shortlist import shortlist_for, why_out
from berthmaster.hub.multikueue.core.known.workload_view import view_of
from berthmaster.lib.kueue.quota import Quotas
from berthmaster.lib.messages.control import Cordon
from tests.unit.hub.multikueue.hub_objects import cluster, copy_report, pods, queue_report
from tests.unit.hub.multikueue.world import World

MANY = [f"job-{number}" for number in range(60)]


def burst(names: list[str]) -> World:
    world = World()
    world.all_workers(gpus=64)
    world.begin()
    for name in names:
        world.submit(name)
    world.settle()
    for name in names:
        world.reserve(name)
    return world


@pytest.fixture
def charges(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queue of each charge of a worker's quota."""
    charged: list[str] = []
    charge = Quotas.charge

    def noted(self: Quotas, queue: str, *rest: object) -> bool:
        charged.append(queue)
        return charge(self, queue, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Quotas, "charge", noted)
    return charged


def test_decision_for_burst_charges_each_placement_once(charges: list[str]) -> None:
    world = burst(MANY)
    world.settle()
    assert len(world.decisions()) == 1
    assert all(world.nominated(name) for name in MANY)
    assert len(charges) <= len(MANY)


def test_facts_while_burst_waits_charge_nothing(charges: list[str]) -> None:
    world = burst(MANY)
    world.settle()
    charges.clear()
    for _ in range(20):
        world.now_s += 0.1
        world.all_workers(gpus=64)
        world.step()
    assert charges == []


def test_stopped_queue_of_waiting_burst_moves_all(charges: list[str]) -> None:
    world = burst(MANY)
    world.settle()
    left = [name for name in MANY if world.nominated(name) == ("w1",)]
    assert len(left) >= 20
    world.fact("w1/queue", queue_report("w1", stopped=True))
    for _ in range(5):
        for name in MANY:  # the hub makes copies, and they are reported
            for there in world.nominated(name):
                if there != "w1":
                    world.fact(f"copy/{name}", copy_report(there, name))
        world.wait(1.0)
    assert {world.nominated(name) for name in left} <= {("w2",), ("w3",)}


@pytest.mark.parametrize(
    "change",
    [
        "nothing",
        "silent",
        "cordoned",
        "no connection",
        "no queues",
        "stopped",
        "no such queue",
        "too small quota",
        "too few GPUs a node",
    ],
)
def test_why_out_equals_shortlist_of_each_cluster(change: str) -> None:
    world = World(workers=("w1", "w2", "w3", "w4"))
    for name in ("w1", "w2", "w3"):
        world.worker(name, gpus=8)
    world.begin()
    world.submit(pod_sets=(pods(gpus=8),))
    world.reserve()
    world.settle()
    match change:
        case "silent":
            world.wait(20.0, heard=("w2", "w3"))
        case "cordoned":
            world.set(Cordon(cluster="w1", cordoned=True, reason="upgrade"))
            world.set(Cordon(cluster="w4", cordoned=True, reason="upgrade"))
        case "no connection":
            world.put(cluster("w1", active=False))
        case "no queues":
            world.alive("w4")
        case "stopped":
            world.fact("w1/queue", queue_report("w1", stopped=True))
        case "no such queue":
            world.fact("w1/queue", queue_report("w1", local_queues=("other",)))
        case "too small quota":
            world.fact("w1/queue", queue_report("w1", gpus=4))
        case "too few GPUs a node":
            world.worker("w1", gpus=4)
        case _:
            pass
    core = world.core
    view = view_of(world.name(), core.know, core.hub)
    shortlist = shortlist_for(core.know, view, world.policy, world.now_s)
    assert shortlist.fleet is not None
    unknown = {ref.name for ref in shortlist.unknown}
    for name in (*world.workers, "nowhere"):
        expected = "" if name in unknown else shortlist.filtered.get(name, "")
        if name == "nowhere":
            expected = "not in the MultiKueueConfig"
        assert why_out(core.know, view, world.policy, world.now_s, name) == expected, name
