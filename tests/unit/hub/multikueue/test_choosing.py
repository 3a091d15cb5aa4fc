"""Which cluster is chosen, and why not the others: demo stories, tiers, quota, own checks."""

import msgspec
import pytest

from berthmaster.hub.multikueue.core.deciding.checks import parameters_of
from berthmaster.hub.multikueue.core.instructions import Nominate, PassCheck, SetCheckActive
from berthmaster.lib.kube.objects import Condition, Metadata
from berthmaster.lib.kube.selector import parse_selector
from berthmaster.lib.kueue.multikueue import MultiKueueConfig, Parameters
from berthmaster.lib.kueue.workloads import Admission, PodSetAssignment
from berthmaster.lib.messages.control import ClusterLost, Cordon
from berthmaster.lib.messages.fleet import (
    Amounts,
    Membership,
    NodeReport,
    PodUse,
    QueueReport,
    QuotaAmount,
    Share,
    Stamp,
    Taint,
)
from tests.support.builders import node, profile
from tests.unit.hub.multikueue.hub_objects import (
    OWN_CHECK,
    checks,
    cluster,
    cluster_queue,
    condition,
    config,
    own_check,
    pods,
    queue_report,
)
from tests.unit.hub.multikueue.world import World

T4 = {"accelerator": "nvidia-tesla-t4"}


def sent(world: World, name: str = "train", **how: object) -> tuple[str, ...]:
    """Where a new job is nominated."""
    world.submit(name, **how)
    world.reserve(name)
    world.settle()
    return world.nominated(name)


def test_demo_one_jobs_that_ask_for_a_t4_go_only_to_clusters_labelled_so() -> None:
    world = World()
    world.all_workers(free=8)
    world.worker("w2", free=1)
    world.fact("w2/profile", profile("w2", labels=T4))
    world.put(
        cluster_queue(
            annotations={"berthmaster.io/cluster-selector": "accelerator=nvidia-tesla-t4"}
        )
    )
    world.begin()
    assert sent(world) == ("w2",)
    assert world.decisions()[0].placements[0].filtered == {
        "w1": "its labels do not match accelerator=nvidia-tesla-t4",
        "w3": "its labels do not match accelerator=nvidia-tesla-t4",
    }


def test_demo_one_by_node_labels_alone() -> None:
    world = World()
    world.all_workers(free=8)
    world.fact("w3/node", node("w3", "n1", labels={"gke-accelerator": "nvidia-tesla-t4"}))
    world.begin()
    asks = pods(node_selector={"gke-accelerator": "nvidia-tesla-t4"})
    assert sent(world, pod_sets=(asks,)) == ("w3",)
    whys = world.decisions()[0].placements[0].filtered
    assert whys == {"w1": "no node has the labels", "w2": "no node has the labels"}


def test_jobs_of_several_pod_sets_go_where_their_own_kind_is() -> None:
    world = World(workers=("w1", "w2", "w3"))
    world.all_workers(free=8)
    for name, kinds in (("w1", ("Job", "RayJob")), ("w2", ("Job", "JobSet")), ("w3", ("Job",))):
        told = msgspec.structs.replace(profile(name), job_kinds=kinds)
        world.fact(f"{name}/profile", told)
    world.begin()
    two = (pods(name="head"), pods(2, name="workers"))
    assert sent(world, "ray", kind="RayJob", pod_sets=two) == ("w1",)
    assert world.decisions()[0].placements[0].filtered == {
        "w2": "has no RayJobs",
        "w3": "has no RayJobs",
    }
    assert sent(world, "set", kind="JobSet", pod_sets=two) == ("w2",)
    # Of other kinds no profile tells.
    assert sent(world, "torch", kind="PyTorchJob", pod_sets=two) != ()
    refused = world.decisions()[-1].placements[0].filtered
    assert refused == {}


def test_a_gpu_product_is_a_model() -> None:
    world = World(workers=("w1", "w2"))
    world.all_workers()
    world.fact("w2/node", node("w2", "n1", model="NVIDIA-A100"))
    world.begin()
    asks = pods(node_selector={"nvidia.com/gpu.product": "NVIDIA-A100"})
    assert sent(world, pod_sets=(asks,)) == ("w2",)
    assert world.decisions()[0].placements[0].filtered == {"w1": "no such GPU model"}


def test_labels_of_the_hub_count_over_those_of_the_cluster() -> None:
    world = World(workers=("w1", "w2"))
    world.all_workers()
    world.fact("w1/profile", profile("w1", labels=T4))
    stamp = Stamp(epoch=1, counter=1)
    told = Membership(
        cluster="w1", stamp=stamp, observed_at_s=0, labels={"accelerator": "nvidia-l4"}
    )
    world.fact("w1/membership", told)
    world.fact("w2/profile", profile("w2", labels=T4))
    world.put(
        cluster_queue(annotations={"berthmaster.io/cluster-selector": "accelerator!=nvidia-l4"})
    )
    world.begin()
    assert sent(world) == ("w2",)


def test_operators_and_hubs_take_clusters_out() -> None:
    world = World(workers=("w1", "w2", "w3", "w4", "w5"))
    world.all_workers()
    world.set(Cordon(cluster="w1", cordoned=True, reason="upgrade"))
    world.set(ClusterLost(cluster="w2", lost=True))
    stamp = Stamp(epoch=1, counter=1)
    sick = Membership(cluster="w3", stamp=stamp, observed_at_s=0, healthy=False, reason="no lease")
    world.fact("w3/membership", sick)
    world.fact("w4/profile", profile("w4", taints=(Taint(key="maintenance"),)))
    world.begin()
    assert sent(world) == ("w5",)
    assert world.decisions()[0].placements[0].filtered == {
        "w1": "cordoned: upgrade",
        "w2": "declared lost",
        "w3": "not healthy, says its hub: no lease",
        "w4": "is tainted (maintenance)",
    }


def test_tiers_come_before_room() -> None:
    world = World(workers=("full", "empty", "busy", "fits"))
    world.worker("full", free=8, gpus=8, used=100)  # no quota left
    world.alive("empty")
    world.fact("empty/queue", queue_report("empty"))  # quota, and no node yet
    world.worker("busy", gpus=64, free=1)
    world.worker("fits", gpus=8, free=2)
    world.begin()
    world.core.know.view.clusters.get("full").queues = {}
    world.fact("full/queue", queue_report("full", gpus=100, used=100))
    assert sent(world, pod_sets=(pods(gpus=2),)) == ("fits",)
    (choice,) = world.decisions()[0].placements
    assert [r.cluster for r in choice.ranking] == ["fits", "busy", "empty", "full"]
    scores = [r.score for r in choice.ranking]
    assert scores == sorted(scores, reverse=True)


def test_room_is_the_lesser_of_free_gpus_and_quota_left() -> None:
    world = World(workers=("w1", "w2"))
    world.worker("w1", gpus=16, free=16)
    world.fact("w1/queue", queue_report("w1", gpus=10, used=8))
    world.worker("w2", gpus=8, free=4)
    world.begin()
    assert sent(world) == ("w2",)


def test_a_cohort_lends_up_to_the_limit() -> None:
    world = World(workers=("w1", "w2"))
    for name, limit in (("w1", 1), ("w2", None)):
        world.worker(name, gpus=8)
        mine = queue_report(name, gpus=2, cohort="all", borrowing_limit=limit)
        rich = queue_report(name, gpus=6, cohort="all", queue="rich", namespaces=())
        world.fact(f"{name}/queue", mine)
        world.fact(f"{name}/rich", rich)
    world.begin()
    assert sent(world, pod_sets=(pods(gpus=4),)) == ("w2",)
    assert world.decisions()[0].placements[0].filtered == {
        "w1": "ClusterQueue worker-queue grants 3 nvidia.com/gpu at most, 4 are asked for"
    }


def test_gpus_of_another_maker_go_where_quota_is_granted_by_their_name() -> None:
    world = World(workers=("w1", "w2"))
    for name in world.workers:
        world.worker(name, gpus=8)
    report = queue_report("w2")
    (flavor,) = report.flavors
    resources = dict(flavor.resources)
    resources["amd.com/gpu"] = resources.pop("nvidia.com/gpu")
    amd = msgspec.structs.replace(flavor, resources=resources)
    world.fact("w2/queue", msgspec.structs.replace(report, flavors=(amd,)))
    world.begin()
    world.submit(pod_sets=(pods(gpus=0),))
    usage = PodSetAssignment(resource_usage={"cpu": "1", "memory": "1Gi", "amd.com/gpu": "1"})
    world.status(admission=Admission(pod_set_assignments=(usage,)))
    world.reserve()
    world.settle()
    assert world.nominated("train") == ("w2",)
    assert world.decisions()[0].placements[0].filtered == {
        "w1": "ClusterQueue worker-queue grants no amd.com/gpu"
    }


def amd(cluster: str, gpus: int, counter: int = 1) -> NodeReport:
    """A node of AMD's GPUs without a label that says so."""
    report = node(cluster, "amd", gpus=gpus, model="unknown", counter=counter)
    named = tuple(msgspec.structs.replace(gpu, resource="amd.com/gpu") for gpu in report.gpus)
    return msgspec.structs.replace(report, gpus=named)


def granting(report: QueueReport, *resources: str) -> QueueReport:
    """The queue's only flavor grants these resources beside CPU and memory."""
    (flavor,) = report.flavors
    amounts = flavor.resources | {name: QuotaAmount(nominal=100) for name in resources}
    return msgspec.structs.replace(
        report, flavors=(msgspec.structs.replace(flavor, resources=amounts),)
    )


def test_what_a_workers_kueue_counts_as_another_resource_is_granted_by_that() -> None:
    """Its GPUs are claimed by counting, and their DeviceClass is mapped."""
    world = World(workers=("mapped", "plain"))
    names = {"nvidia.com/gpu": "example.com/gpus", "habana.ai/gaudi": "example.com/hpus"}
    for name in world.workers:
        world.worker(name, gpus=4)
        report = granting(queue_report(name), "example.com/gpus", "example.com/hpus")
        (flavor,) = report.flavors
        amounts = {n: one for n, one in flavor.resources.items() if n != "nvidia.com/gpu"}
        flavor = msgspec.structs.replace(flavor, resources=amounts)
        world.fact(f"{name}/queue", msgspec.structs.replace(report, flavors=(flavor,)))
    told = msgspec.structs.replace(profile("mapped"), counted_as=names)
    world.fact("mapped/profile", told)
    world.begin()
    assert sent(world, "cuda", pod_sets=(pods(gpus=4),)) == ("mapped",)
    (choice,) = world.decisions()[-1].placements
    assert choice.filtered == {"plain": "ClusterQueue worker-queue grants no nvidia.com/gpu"}
    assert sent(world, "hpu", pod_sets=(pods(gpus=1, resource="habana.ai/gaudi"),)) == ("mapped",)
    (choice,) = world.decisions()[-1].placements
    assert choice.filtered == {"plain": "ClusterQueue worker-queue grants no habana.ai/gaudi"}


def test_free_gpus_of_another_maker_are_no_room() -> None:
    world = World(workers=("mixed", "small"))
    world.worker("mixed", gpus=4, free=0)
    world.fact("mixed/amd", amd("mixed", 8))
    world.worker("small", gpus=4)
    for name in world.workers:
        world.fact(f"{name}/queue", granting(queue_report(name), "amd.com/gpu"))
    world.begin()
    assert sent(world, "cuda", pod_sets=(pods(gpus=4),)) == ("small",)
    (choice,) = world.decisions()[-1].placements
    assert [(r.cluster, r.parts["tier"], r.parts["headroom"]) for r in choice.ranking] == [
        ("small", 100.0, 100.0),
        ("mixed", pytest.approx(66.667, abs=0.001), 0.0),
    ]

    # Who asks for AMD's finds them, by their name, and NVIDIA's are no room for him.
    assert sent(world, "rocm", pod_sets=(pods(gpus=4, resource="amd.com/gpu"),)) == ("mixed",)
    (choice,) = world.decisions()[-1].placements
    tiers = [(r.cluster, round(r.parts["tier"])) for r in choice.ranking]
    assert tiers == [("mixed", 100), ("small", 33)]  # its quota has them, and no node does
    # What is on its way there takes AMD's room and nobody else's.
    world.worker("mixed", gpus=4, free=4)
    world.fact("mixed/queue", granting(queue_report("mixed"), "amd.com/gpu"))
    world.settle()
    assert sent(world, "next", pod_sets=(pods(gpus=4),)) == ("mixed",)
    gpus = world.core.know.on_the_way.to("mixed", world.now_s, 1.0).devices
    assert gpus == {"amd.com/gpu": 4.0, "nvidia.com/gpu": 4.0}
    # Pods that come onto AMD's node are not taken for those that wait for NVIDIA's.
    report = amd("mixed", 8, counter=2)
    taken = tuple(msgspec.structs.replace(gpu, foreign_milli=1000) for gpu in report.gpus)
    foreign = Amounts(gpu_milli=8000)
    world.fact("mixed/amd", msgspec.structs.replace(report, gpus=taken, foreign=foreign))
    gpus = world.core.know.on_the_way.to("mixed", world.now_s, 1.0).devices
    assert gpus == {"amd.com/gpu": 0.0, "nvidia.com/gpu": 4.0}


def test_on_a_node_with_gpus_of_two_makers_each_counts_by_its_own_name() -> None:
    world = World(workers=("w1", "w2"))
    world.all_workers(gpus=3)
    both = node("w1", "n1", gpus=6, counter=2)
    gpus = (*amd("w1", 4).gpus, *both.gpus[4:])
    world.fact("w1/node", msgspec.structs.replace(both, gpus=gpus))
    for name in world.workers:
        world.fact(f"{name}/queue", granting(queue_report(name), "amd.com/gpu"))
    world.begin()
    assert sent(world) == ("w2",)  # 2 of NVIDIA's there, 3 here
    assert sent(world, "rocm", pod_sets=(pods(gpus=4, resource="amd.com/gpu"),)) == ("w1",)
    # More than the node has of that maker: it would never fit.
    assert sent(world, "big", pod_sets=(pods(gpus=3),)) == ("w2",)
    whys = world.decisions()[-1].placements[0].filtered
    assert whys == {"w1": "too few GPUs a node"}


def test_quota_of_a_flavor_without_nodes_is_for_nodes_that_are_yet_to_come() -> None:
    world = World(workers=("bare", "small"))
    world.worker("bare", gpus=8, labels={"gpu": "t4"})
    world.worker("small", gpus=8, free=2, labels={"gpu": "a100", "zone": "b"})
    for name in world.workers:
        world.fact(f"{name}/queue", queue_report(name, node_labels={"gpu": "a100"}))
    world.begin()
    assert sent(world) == ("small",)
    (choice,) = world.decisions()[0].placements
    assert [(r.cluster, round(r.parts["tier"])) for r in choice.ranking] == [
        ("small", 100),
        ("bare", 33),
    ]
    # Who is sent there all the same is told why it will not start now.
    assert sent(world, "big", pod_sets=(pods(gpus=8),)) == ("small",)  # busy goes before that
    world.set(Cordon(cluster="small", cordoned=True, reason="upgrade"))
    assert sent(world, "late") == ("bare",)
    note = [tell.note for tell in world.told if tell.reason == "Nominated"][-1]
    assert "no node that would do has the labels of its flavor (gpu=a100), room for 0" in note

    # The node comes, and now it fits.
    world.fact("bare/new", node("bare", "n2", gpus=4, labels={"gpu": "a100"}))
    world.worker("small", gpus=8, free=0, labels={"gpu": "a100"})
    world.settle()
    assert sent(world, "next", pod_sets=(pods(gpus=2),)) == ("bare",)
    note = [tell.note for tell in world.told if tell.reason == "Nominated"][-1]
    assert "fits now, room for 3" in note  # 4 less the one that is on its way


def test_the_flavor_that_kueue_would_give_decides_and_not_any_that_has_nodes() -> None:
    world = World(workers=("w1", "w2"))
    world.worker("w1", gpus=8, labels={"gpu": "t4"})
    world.worker("w2", gpus=8, free=4, labels={"gpu": "t4"})
    (plain,) = queue_report("w1").flavors
    first = msgspec.structs.replace(plain, flavor="a100", node_labels={"gpu": "a100"})
    second = msgspec.structs.replace(plain, flavor="t4", node_labels={"gpu": "t4"})
    for name, flavors in (("w1", (first, second)), ("w2", (second,))):
        report = queue_report(name)
        world.fact(f"{name}/queue", msgspec.structs.replace(report, flavors=flavors))
    world.begin()
    # w1's quota of a100 has room, so Kueue gives that, and no such node is there.
    assert sent(world) == ("w2",)
    # When that quota is used up, the next flavor is given, and its nodes count.
    used = {
        name: msgspec.structs.replace(amount, used=amount.nominal)
        for name, amount in first.resources.items()
    }
    full = msgspec.structs.replace(first, resources=used)
    report = msgspec.structs.replace(queue_report("w1", counter=2), flavors=(full, second))
    world.fact("w1/queue", report)
    world.settle()
    assert sent(world, "next") == ("w1",)


def test_a_slice_has_room_where_such_slices_are() -> None:
    world = World(workers=("whole", "sliced"))
    world.worker("whole", gpus=8)
    world.worker("sliced", gpus=1)
    name = "nvidia.com/mig-1g.10gb"
    one = node("sliced", "n1", gpus=1, foreign_milli=(6,))
    slices = (Share(resource=name, milli=142, memory_mib=10_240, count=7, kind="mig"),)
    world.fact("sliced/node", msgspec.structs.replace(one, shares=slices))
    for cluster_name in world.workers:
        world.fact(f"{cluster_name}/queue", granting(queue_report(cluster_name), name))
    world.begin()
    assert sent(world, pod_sets=(pods(gpus=1, resource=name),)) == ("sliced",)
    (choice,) = world.decisions()[-1].placements
    assert choice.filtered == {"whole": "no such MIG profile"}


def test_a_gang_needs_room_for_all_its_pods() -> None:
    world = World(workers=("w1", "w2"))
    world.worker("w1", gpus=8, free=7)
    for number in range(2):
        report = node("w2", f"n{number}", gpus=4)
        world.fact(f"w2/node/{number}", report)
    world.alive("w2")
    world.fact("w2/queue", queue_report("w2"))
    world.begin()
    assert sent(world, pod_sets=(pods(count=2, gpus=4),)) == ("w2",)


def test_pods_of_other_cells_take_room_as_they_are_reported() -> None:
    world = World(workers=("w1", "w2"))
    world.worker("w1", gpus=8)
    world.worker("w2", gpus=8, free=5)
    report = node("w1", "n1", gpus=8, counter=2)
    mine = PodUse(
        tenant="x", workload="y", attempt=1, pod="main-0", gpu_milli=1000, gpus=(0, 1, 2, 3)
    )
    world.fact("w1/node", msgspec.structs.replace(report, pods=(mine,)))
    world.begin()
    assert sent(world) == ("w2",)


def test_what_arrived_is_not_counted_twice() -> None:
    world = World(workers=("w1", "w2"))
    world.worker("w1", gpus=8, free=8)
    world.worker("w2", gpus=8, free=6)
    world.begin()
    assert sent(world, "first") == ("w1",)
    world.admit("first", "w1")
    world.settle()
    world.start("first")
    world.settle()
    world.worker("w1", gpus=8, free=7)
    world.wait(2.0)
    assert sent(world, "second") == ("w1",)  # 7 against 6, not 6 against 6


def test_what_nodes_show_before_the_hub_says_that_it_runs_is_not_counted_twice() -> None:
    """The hub learns of pods a second or two after they came: until then they are on their way and
    reported as other people's at once."""
    world = World(workers=("w1", "w2"))
    world.worker("w1", gpus=8, free=8)
    world.worker("w2", gpus=8, free=4)
    world.begin()
    four = {"pod_sets": (pods(gpus=4),)}
    assert sent(world, "first", **four) == ("w1",)
    world.worker("w1", gpus=8, free=4)  # its pods, and the hub has not even said "admitted"
    world.settle()
    assert sent(world, "second", **four) == ("w1",)  # 4 are left there, not 0
    assert sent(world, "third", **four) == ("w2",)  # on the way, and not shown yet
    world.worker("w1", gpus=8, free=0)
    world.settle()

    # When they have gone again, what others take there is others'.
    for name in ("first", "second", "third"):
        world.admit(name, "w2" if name == "third" else "w1")
        world.finish(name)
        world.settle()
    world.worker("w1", gpus=8, free=8)
    world.worker("w2", gpus=8, free=1)
    world.settle()
    assert sent(world, "fourth", **four) == ("w1",)
    world.worker("w1", gpus=8, free=2)  # four are the fourth's, two a stranger's
    world.worker("w2", gpus=8, free=3)
    world.settle()
    assert sent(world, "fifth") == ("w2",)  # 3 against 2


def test_pods_that_carry_our_names_have_arrived_as_soon_as_they_are_reported() -> None:
    world = World(workers=("w1", "w2"))
    world.worker("w1", gpus=8)
    world.worker("w2", gpus=8, free=6)
    world.begin()
    assert sent(world, "first") == ("w1",)
    tenant, _, workload_id = world.name("first").partition("/")
    pod = PodUse(
        tenant=tenant,
        workload=workload_id,
        attempt=1,
        pod="main-0",
        gpu_milli=1000,
        gpus=(0,),
    )
    report = node("w1", "n1", gpus=8, counter=2)
    world.fact("w1/node", msgspec.structs.replace(report, pods=(pod,)))
    world.settle()
    assert sent(world, "second") == ("w1",)  # 7 against 6
    assert world.core.know.on_the_way.to("w1", world.now_s, 1.0).devices == {"nvidia.com/gpu": 1.0}


def test_a_multikueue_cluster_may_have_another_name_in_the_fleet() -> None:
    world = World(workers=("hub-name",))
    world.put(cluster("hub-name", annotations={"berthmaster.io/cluster": "east"}))
    world.worker("east")
    world.begin()
    assert sent(world) == ("hub-name",)
    assert world.placements()[0][1] == "east"
    world.admit("train", "hub-name")
    world.settle()
    assert world.kinds(world.name())[-1] == "admitted east"


def test_of_equal_clusters_the_configuration_s_first_is_taken() -> None:
    world = World(workers=("b", "a"))
    world.all_workers()
    world.begin()
    assert sent(world) == ("b",)


def test_our_own_check_is_passed_in_every_attempt_before_the_nomination() -> None:
    world = World(workers=("w1", "w2"))
    world.all_workers()
    world.put(cluster_queue(own_check=True))
    world.put(own_check())
    world.set_parameters(OWN_CHECK, parse_selector(""))
    world.begin()
    world.submit()
    world.reserve(own="Pending")
    world.settle()
    kinds = [type(write) for write in world.writes]
    assert kinds == [SetCheckActive, PassCheck, Nominate]
    passed = next(write for write in world.writes if isinstance(write, PassCheck))
    assert passed.message == "best of 2: w1 (fits now, room for 8)"
    world.evict("train")
    world.settle()
    world.reserve(own="Pending")
    world.settle()
    assert [type(write) for write in world.writes][3:] == [PassCheck, Nominate]


def test_our_own_check_holds_a_job_back_while_there_is_nowhere() -> None:
    world = World(workers=("w1",))
    world.worker("w1")
    world.put(cluster_queue(own_check=True))
    world.put(own_check())
    world.set_parameters(OWN_CHECK, parse_selector("zone=north"))
    world.begin()
    world.submit()
    world.reserve(own="Pending")
    world.wait(3.0)
    assert [type(write) for write in world.writes] == [SetCheckActive]
    world.fact("w1/profile", profile("w1", labels={"zone": "north"}))
    world.wait(0.3)
    assert [type(write) for write in world.writes] == [SetCheckActive, PassCheck, Nominate]


@pytest.mark.parametrize(
    "conditions",
    [
        (),
        (condition("QuotaReserved", False, "Pending", "waiting in line"),),
        (condition("QuotaReserved"), condition("Evicted", True, "Preempted")),
        (condition("QuotaReserved"), condition("Finished", True, "Succeeded")),
    ],
    ids=["nothing", "no quota", "taken back", "over"],
)
def test_our_own_check_is_passed_for_nobody_who_cannot_go_on(
    conditions: tuple[Condition, ...],
) -> None:
    world = World(workers=("w1",))
    world.worker("w1")
    world.put(cluster_queue(own_check=True))
    world.put(own_check())
    world.set_parameters(OWN_CHECK, parse_selector(""))
    world.begin()
    world.submit()
    world.status(conditions=conditions, admission_checks=checks(own="Pending"))
    world.settle()
    assert not [write for write in world.writes if isinstance(write, PassCheck)]


@pytest.mark.parametrize(
    ("parameters", "name", "wrong"),
    [
        (Parameters(api_group="core", kind="ConfigMap", name="x"), "x", ""),
        (Parameters(kind="ConfigMap", name="x"), "x", ""),
        (Parameters(), "", "has no parameters"),
        (
            Parameters(api_group="core", kind="Secret", name="x"),
            "",
            "its parameters name a core/Secret: it must be a ConfigMap of apiGroup core",
        ),
        (
            Parameters(api_group="apps", kind="ConfigMap", name="x"),
            "",
            "its parameters name a apps/ConfigMap: it must be a ConfigMap of apiGroup core",
        ),
    ],
)
def test_parameters_of_a_check_of_ours_are_a_config_map(
    parameters: Parameters, name: str, wrong: str
) -> None:
    found, why = parameters_of(own_check(parameters))
    assert found == name
    assert why.startswith(wrong)
    assert bool(why) == bool(wrong)


def test_a_check_of_ours_with_wrong_parameters_is_not_active_and_says_why() -> None:
    world = World()
    wrong = Parameters(api_group="apps", kind="ConfigMap", name="x")
    world.put(own_check(wrong))
    world.set_parameters(OWN_CHECK, parameters_of(own_check(wrong))[1])
    world.begin()
    world.settle()
    (write,) = world.writes
    assert isinstance(write, SetCheckActive)
    assert (write.active, write.reason) == (False, "BadParameters")
    assert "it must be a ConfigMap" in write.message
    assert [(t.resource.kind, t.reason) for t in world.told] == [
        ("AdmissionCheck", "BadParameters")
    ]


@pytest.mark.parametrize(
    "parameters",
    [
        Parameters(api_group="cluster.open-cluster-management.io", kind="Placement", name="gpus"),
        Parameters(api_group="core", kind="Secret", name="x"),
        Parameters(),
    ],
)
def test_a_check_with_other_parameters_is_left_to_its_own_controller(
    parameters: Parameters,
) -> None:
    world = World(workers=("w1",))
    world.worker("w1")
    world.put(cluster_queue(own_check=True))
    world.put(own_check(parameters))
    world.begin()
    world.submit()
    world.reserve(own="Pending")
    world.wait(60.0)
    # Kueue would copy it nowhere before that check is Ready: a nomination would only grow old.
    assert (world.writes, world.told) == ([], [])
    assert world.why(world.name()) == f"waits: its check {OWN_CHECK} is Pending"
    world.reserve(own="Ready")
    world.settle()
    assert [type(write) for write in world.writes] == [Nominate]


def test_a_cluster_that_drains_gets_nothing_new_and_what_is_there_stays() -> None:
    world = World(workers=("w1", "w2"))
    world.worker("w1", free=8)
    world.worker("w2", free=2)
    world.begin()
    assert sent(world) == ("w1",)
    world.admit("train", "w1")
    world.settle()
    listed = config("w1", "w2")
    marked = Metadata(
        name=listed.metadata.name,
        resource_version="2",
        annotations={"berthmaster.io/draining": "w1"},
    )
    world.put(MultiKueueConfig(metadata=marked, spec=listed.spec))
    assert sent(world, "next") == ("w2",)
    choice = world.decisions()[-1].placements[0]
    assert choice.filtered["w1"] == "draining: its Placement selects it no longer"
    assert world.kinds(world.name())[-1] == "admitted w1"
