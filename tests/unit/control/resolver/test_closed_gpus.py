"""No pod is placed on a GPU that telemetry found faulty or an operator cordoned.

What runs there continues."""

from msgspec.structs import replace

from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import key
from berthmaster.lib.messages.control import GpuCordon
from berthmaster.lib.messages.fleet import ClosedGpu, ClusterScore, Freshness, Stamp
from tests.support.builders import alive, job, node, profile
from tests.support.deciding import TENANT, World


def score(
    freshness: Freshness = "fresh", *, since_s: float = 100.0, **lost: tuple[int, ...]
) -> ClusterScore:
    stamp = Stamp(epoch=1, counter=1)
    return ClusterScore(
        cluster="c1",
        stamp=stamp,
        freshness=freshness,
        input_age_s=0.5,
        closed_gpus={
            name: tuple(ClosedGpu(index=index, fault="lost", since_s=since_s) for index in indices)
            for name, indices in lost.items()
        },
    )


def order(gpu: int, at_s: float, *, cordoned: bool) -> GpuCordon:
    return GpuCordon(cluster="c1", node="n1", gpu=gpu, cordoned=cordoned, set_at_s=at_s)


def world(gpus: int = 2) -> World:
    found = World()
    found.fact(profile("c1"), alive("c1"), node("c1", "n1", gpus=gpus))
    return found


def gpus_of(found: World, name: str) -> tuple[int, ...]:
    return tuple(gpu for pod in found.workloads[key(TENANT, name)].pods for gpu in pod.gpus)


def test_a_gpu_that_telemetry_calls_lost_gets_no_pod_though_its_node_offers_it() -> None:
    found = world()
    found.fact(score(n1=(0,)))
    found.submit(job("one"))
    found.submit(job("two"))
    found.settle()
    assert (gpus_of(found, "one"), gpus_of(found, "two")) == ((1,), ())
    # A newer report of the node that still calls it healthy changes nothing.
    found.fact(node("c1", "n1", gpus=2, counter=2))
    assert found.settle() == []
    # It answers again.
    found.fact(score())
    found.settle()
    assert gpus_of(found, "two") == (0,)


def test_the_order_of_facts_does_not_matter() -> None:
    found = World()
    found.fact(profile("c1"), score(n1=(0, 1)), alive("c1"), node("c1", "n1", gpus=2))
    found.submit(job("one"))
    assert found.settle() == []
    found.fact(score(n1=(1,)))
    found.settle()
    assert gpus_of(found, "one") == (0,)


def test_what_runs_on_a_lost_gpu_goes_on() -> None:
    found = world(1)
    name = found.start(job("one"))
    found.fact(score(n1=(0,)))
    found.settle()
    found.now_s += 3600.0
    found.fact(alive("c1", counter=2), score("stale", n1=(0,)))
    found.settle()
    workload = found.workloads[name]
    assert (workload.state, workload.attempt) == (State.RUNNING, 1)


def test_an_old_score_heals_no_gpu() -> None:
    found = world(1)
    found.fact(score(n1=(0,)))
    found.fact(score("stale", n1=(0,)))
    found.submit(job("one"))
    assert found.settle() == []


def test_a_gpu_that_both_call_unhealthy_is_missing_once() -> None:
    found = world(3)
    found.fact(node("c1", "n1", gpus=3, unhealthy=(2,), counter=2), score(n1=(2,)))
    for at in range(3):
        found.submit(job(f"j{at}"))
    found.settle()
    taken = [gpus_of(found, f"j{at}") for at in range(3)]
    assert sorted(taken) == [(), (0,), (1,)]
    # The node that is gone is forgotten with what was lost of it.
    report = node("c1", "n1", gpus=3, counter=3)
    found.fact(replace(score(), closed_gpus=score(n9=(0,)).closed_gpus), report)
    found.settle()
    assert sorted(gpus_of(found, f"j{at}") for at in range(3)) == [(0,), (1,), (2,)]


def test_an_operators_order_opens_a_faulty_gpu_until_the_next_sign() -> None:
    found = world(1)
    found.fact(score(n1=(0,)))
    found.control(order(0, 50.0, cordoned=False))  # from before the fault
    found.submit(job("one"))
    assert found.settle() == []
    found.control(order(0, 150.0, cordoned=False))
    found.settle()
    assert gpus_of(found, "one") == (0,)
    # One more memory error, for example: nothing new, whatever was said before.
    found = world(2)
    found.control(order(0, 150.0, cordoned=False))
    found.fact(score(n1=(0, 1), since_s=160.0))
    found.submit(job("two"))
    assert found.settle() == []


def test_a_cordoned_gpu_gets_no_pod_whether_its_node_reported_before_or_after() -> None:
    for first in ("order", "node"):
        found = World()
        found.fact(profile("c1"), alive("c1"))
        if first == "order":
            found.control(order(1, 10.0, cordoned=True))
        found.fact(node("c1", "n1", gpus=2))
        if first == "node":
            found.control(order(1, 10.0, cordoned=True))
        found.submit(job("one"))
        found.submit(job("two"))
        found.settle()
        taken = [gpus_of(found, name) for name in ("one", "two")]
        assert sorted(taken) == [(), (0,)]
        found.control(order(1, 20.0, cordoned=False))
        found.settle()
        assert sorted(gpus_of(found, name) for name in ("one", "two")) == [(0,), (1,)]
