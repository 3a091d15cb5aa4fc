"""TPUs and other resources from a request to its place: directly, and by a worker's own queue."""

from typing import Any

from msgspec.structs import replace

from berthmaster.control.resolver.core.deciding.decide import planned
from berthmaster.control.resolver.policy import Policy
from berthmaster.control.resolver.replay import replay
from berthmaster.lib.messages.api import WhyReply
from berthmaster.lib.messages.fleet import FlavorQuota, NodeReport, QuotaAmount
from berthmaster.lib.messages.placement import HeldNode, HeldPieces
from berthmaster.lib.messages.workload import JobRequest
from tests.support.builders import alive, job, node, pod_set, profile
from tests.support.deciding import TENANT, World
from tests.unit.control.resolver.test_quota import SETTING, queue

TPU = "google.com/tpu"
HCA = "rdma/hca"
LABELS = "cloud.google.com/gke-"


def host(cluster: str, name: str, labels: dict[str, str] | None = None, **has: Any) -> NodeReport:
    report = node(cluster, name, gpus=0, labels=labels)
    return replace(report, allocatable=replace(report.allocatable, **has))


def pool(cluster: str, name: str, nodes: int, topology: str = "4x4") -> list[NodeReport]:
    labels = {f"{LABELS}tpu-topology": topology, f"{LABELS}nodepool": name}
    return [host(cluster, f"{name}-{at}", labels, tpus=4) for at in range(nodes)]


def asking(name: str, lasts_s: float | None = None, **pods: Any) -> JobRequest:
    request = job(name, **{"gpus": 0} | pods)
    return replace(request, expected_duration_s=lasts_s)


def why(world: World, name: str) -> WhyReply:
    reply = world.why(TENANT, name, world.now_s)
    assert isinstance(reply, WhyReply)
    return reply


def test_jobs_share_a_nodes_tpus_and_who_finds_none_waits_until_some_are_free() -> None:
    world = World(Policy(stale_after_s=1e9, reservations=1))
    world.fact(profile(), alive(), host("c1", "n1", tpus=8, pieces={HCA: 1}))
    first = world.submit(asking("first", 1000, tpus=4))
    with_hca = world.submit(asking("with-hca", 2000, tpus=2, resources={HCA: 1}))
    world.settle()
    assert [world.placed_on(name) for name in (first, with_hca)] == ["c1", "c1"]
    for name in (first, with_hca):
        world.claim(name)
        world.run(name)
    large = world.submit(asking("large", tpus=6))
    no_hca = world.submit(asking("no-hca", resources={HCA: 1}))
    world.settle()
    assert (world.placed_on(large), world.placed_on(no_hca)) == ("", "")
    # Room is kept for the large one, TPU by TPU: what is free now, and what the first leaves.
    kept = planned(world.resolver.know, world.policy, world.now_s)[large]
    assert kept.held == (
        HeldNode(
            node="n1", cpu_milli=1000, memory_mib=1024, pieces=(HeldPieces(resource=TPU, number=6),)
        ),
    )
    small = world.submit(asking("small", tpus=1))  # nobody knows for how long
    world.settle()
    assert world.placed_on(small) == ""
    world.now_s += 1000
    world.succeed(first)
    world.settle()
    assert world.placed_on(large) == "c1"
    world.succeed(with_hca)
    world.settle()
    assert (world.placed_on(no_hca), world.placed_on(small)) == ("c1", "c1")
    report = replay(world.inputs(), "all")
    assert (report.equal, report.first_difference) == (report.decisions, None)


def test_a_slice_is_one_gang_on_all_nodes_of_one_pool() -> None:
    world = World()
    for cluster, sizes in (("split", (2, 2)), ("whole", (4,))):
        world.fact(profile(cluster), alive(cluster))
        for number, size in enumerate(sizes):
            world.fact(*pool(cluster, f"p{number}", size))
    asks: dict[str, Any] = {"tpus": 4, "tpu_topology": "4x4", "count": 4}
    train = world.submit(asking("train", **asks))
    world.settle()
    assert world.placed_on(train) == "whole"
    assert sorted(b.node for b in world.workloads[train].pods) == [f"p0-{n}" for n in range(4)]
    world.submit(asking("next", **asks))
    world.settle()
    filtered = world.dry_run(TENANT, asking("dry", **asks), world.now_s).filtered
    assert filtered == {
        "split": f"no place large enough for its pods, even if nothing ran there "
        f"({LABELS}nodepool)",
        "whole": "busy: no room now",
    }


def test_why_names_what_no_cluster_has() -> None:
    world = World()
    world.fact(profile(), alive(), host("c1", "n1", {f"{LABELS}tpu-topology": "2x2"}, tpus=4))
    cases: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("shape", {"tpus": 4, "tpu_topology": "1x4"}, "1 has no TPUs of topology 1x4"),
        ("pieces", {"resources": {HCA: 2}}, "1 has no node with 2 rdma/hca"),
        ("more", {"tpus": 8}, "1 has no node with 8 google.com/tpu"),
    )
    for name, asks, said in cases:
        world.submit(asking(name, **asks))
        world.settle()
        assert said in why(world, name).summary, name
    world.submit(asking("claims", resources={HCA: 1}, claims=("nic",)))
    world.settle()
    reply = why(world, "claims")
    assert "none of the other resources: it would fit now, on c1" in reply.hints
    assert any(hint.startswith("claim nic: its devices are the cluster's") for hint in reply.hints)


def test_a_workers_own_queue_has_to_grant_them() -> None:
    world = World()
    world.fact(profile(), alive(), host("c1", "n1", tpus=8, pieces={HCA: 4}))
    world.control(SETTING)

    def refused(counter: int, **granted: int) -> dict[str, str]:
        amounts = {"cpu": 10**9, "memory": 10**9, TPU: granted["tpus"], HCA: granted["hca"]}
        resources = {n: QuotaAmount(nominal=most) for n, most in amounts.items() if most}
        world.fact(queue(flavors=(FlavorQuota(flavor="a", resources=resources),), counter=counter))
        request = job("train", queue="gpu", gpus=0, tpus=4, count=2, resources={HCA: 1})
        return dict(world.dry_run(TENANT, request, world.now_s).filtered)

    assert refused(1, tpus=8, hca=2) == {}
    assert refused(2, tpus=8, hca=0) == {"c1": f"ClusterQueue cq grants no {HCA}"}
    most = f"ClusterQueue cq grants 4 {TPU} at most, 8 are asked for"
    assert refused(3, tpus=4, hca=2) == {"c1": most}


def test_pods_with_gpus_and_other_resources_need_both_on_one_node() -> None:
    world = World()
    world.fact(profile(), alive(), node("c1", "gpus"), host("c1", "nics", pieces={HCA: 8}))
    both = world.submit(job("both", pod_sets=(pod_set(gpus=2, resources={HCA: 1}),)))
    world.settle()
    assert world.placed_on(both) == ""
    report = node("c1", "gpus", counter=2)
    world.fact(replace(report, allocatable=replace(report.allocatable, pieces={HCA: 1})))
    world.settle()
    assert [b.node for b in world.workloads[both].pods] == ["gpus"]
