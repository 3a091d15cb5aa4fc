"""Which cluster is chosen, and why not the others: demo stories, tiers, quota, own checks."""

import msgspec
import pytest

from berthmaster.kubernetes.objects import Metadata
from berthmaster.kubernetes.selector import parse_selector
from berthmaster.kueue.multikueue import MultiKueueConfig, Parameters
from berthmaster.kueue.workloads import Admission, PodSetAssignment
from berthmaster.messages.control import ClusterLost, Cordon
from berthmaster.messages.fleet import Membership, PodUse, Stamp, Taint
from berthmaster.multikueue.deciding.checks import parameters_of
from berthmaster.multikueue.instructions import Nominate, PassCheck, SetCheckActive
from tests.support.builders import node, profile
from tests.unit.multikueue.hub_objects import (
    OWN_CHECK,
    cluster,
    cluster_queue,
    config,
    own_check,
    pods,
    queue_report,
)
from tests.unit.multikueue.world import World

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
    assert world.core.know.on_the_way.to("w1", world.now_s, 1.0).gpus == 1.0


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
