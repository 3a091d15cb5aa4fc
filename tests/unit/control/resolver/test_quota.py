"""Queues that go by way of a worker's own Kueue: where a request can be let in, and why not."""

import msgspec
import pytest

from berthmaster.control.resolver.core.deciding.cycle import InLine, asked
from berthmaster.lib.kueue.asks import devices_of
from berthmaster.lib.messages.control import QueuePlace, QueueSetting
from berthmaster.lib.messages.fleet import (
    ClusterProfile,
    DeviceClaim,
    FlavorQuota,
    LocalQueueReport,
    QueueReport,
    QuotaAmount,
    Share,
    Stamp,
)
from berthmaster.lib.messages.placement import Target, Via
from berthmaster.lib.messages.workload import Admitted, JobRequest, Placed, PodSet
from tests.support.builders import alive, job, node, pod_set, profile
from tests.support.deciding import TENANT, World, placements

LOCAL = LocalQueueReport(namespace="team-a", name="gpu")
SETTING = QueueSetting(queue="gpu", via="worker", places={"*": QueuePlace(namespace="team-a")})


def flavor(name: str = "h100", *, labels: dict[str, str] | None = None, **gpus: int) -> FlavorQuota:
    """Cores and memory without end; ``gpus``: nominal, used, borrowing_limit."""
    return FlavorQuota(
        flavor=name,
        node_labels=labels or {},
        resources={
            "cpu": QuotaAmount(nominal=10**9),
            "memory": QuotaAmount(nominal=10**9),
            "nvidia.com/gpu": QuotaAmount(**({"nominal": 8} | gpus)),
        },
    )


def queue(
    cluster: str = "c1",
    name: str = "cq",
    *,
    flavors: tuple[FlavorQuota, ...] | None = None,
    local: tuple[LocalQueueReport, ...] = (LOCAL,),
    counter: int = 1,
    **fields: object,
) -> QueueReport:
    return QueueReport(
        cluster=cluster,
        queue=name,
        stamp=Stamp(epoch=1, counter=counter),
        observed_at_s=0.0,
        flavors=(flavor(),) if flavors is None else flavors,
        local_queues=local,
        **fields,  # type: ignore[arg-type]
    )


@pytest.fixture
def world() -> World:
    """One cluster with sixteen GPUs, and a queue that its Kueue shall let in."""
    world = World()
    world.fact(profile(), alive(), node("c1", "n1"), node("c1", "n2"))
    world.control(SETTING)
    return world


def ask(world: World, **request: object) -> str:
    """Why c1 is out, or "" if the request would go there."""
    reply = world.dry_run(TENANT, gpu_job(**request), world.now_s)  # type: ignore[arg-type]
    return reply.filtered.get("c1", "")


def gpu_job(name: str = "train", **fields: object) -> JobRequest:
    return job(name, queue="gpu", **fields)  # type: ignore[arg-type]


OTHERS = LocalQueueReport(namespace="team-b", name="gpu")
SHUT = LocalQueueReport(namespace="team-a", name="gpu", active=False, reason="x")
NO_GPUS = FlavorQuota(
    flavor="cpu",
    resources={"cpu": QuotaAmount(nominal=10**6), "memory": QuotaAmount(nominal=10**6)},
)


@pytest.mark.parametrize(
    ("report", "why"),
    [
        (None, "has no LocalQueue team-a/gpu"),
        (queue(local=()), "has no LocalQueue team-a/gpu"),
        (queue(local=(OTHERS,)), "has no LocalQueue team-a/gpu"),
        (queue(local=(SHUT,)), "its LocalQueue gpu is not active: x"),
        (
            queue(stopped=True, stop_policy="Hold"),
            "its ClusterQueue cq is stopped (stopPolicy Hold)",
        ),
        (queue(active=False, reason="no flavor"), "its ClusterQueue cq is not active: no flavor"),
        (queue(flavors=(flavor(used=4),)), "no quota left: needs 8 nvidia.com/gpu, 4 left"),
        (queue(flavors=(NO_GPUS,)), "ClusterQueue cq grants no nvidia.com/gpu"),
        (queue(flavors=(flavor(used=4), flavor("a100"))), ""),
        (queue(flavors=(flavor(labels={"zone": "a"}),)), ""),
        (queue(), ""),
    ],
)
def test_a_cluster_takes_what_its_own_queue_would_let_in(
    world: World, report: QueueReport | None, why: str
) -> None:
    if report is not None:
        world.fact(report)
    assert ask(world, gpus=8) == why


def test_flavors_are_filled_pod_set_by_pod_set(world: World) -> None:
    halves = (pod_set(name="a", gpus=5), pod_set(name="b", gpus=5))
    world.fact(queue(flavors=(flavor(),)))
    never = "ClusterQueue cq grants 8 nvidia.com/gpu at most, 10 are asked for"
    assert ask(world, pod_sets=halves) == never
    world.fact(queue(flavors=(flavor(), flavor("a100")), counter=2))
    assert ask(world, pod_sets=halves) == ""


def test_a_flavor_of_other_nodes_is_none(world: World) -> None:
    world.fact(queue(flavors=(flavor(labels={"zone": "b"}),)))
    there = {"zone": "a"}
    world.fact(node("c1", "n3", labels=there))
    never = "no flavor of ClusterQueue cq is of the nodes that are asked for"
    assert ask(world, node_labels=there) == never
    world.fact(queue(flavors=(flavor(labels=there),), counter=2))
    assert ask(world, node_labels=there) == ""


def granting(resource: str) -> FlavorQuota:
    has = {"cpu": 10**9, "memory": 10**9, resource: 4}
    resources = {name: QuotaAmount(nominal=most) for name, most in has.items()}
    return FlavorQuota(flavor="any", resources=resources)


def test_claimed_devices_use_kueue_resource() -> None:
    world = World()
    claim = DeviceClaim(driver="gpu.nvidia.com", device_class="gpu.nvidia.com")
    name = "deviceclass.resource.kubernetes.io/gpu.nvidia.com"
    bare = node("c1", "n1")
    gpus = tuple(msgspec.structs.replace(gpu, resource=name, claim=claim) for gpu in bare.gpus)
    world.fact(profile(), alive(), msgspec.structs.replace(bare, gpus=gpus))
    world.fact(queue(flavors=(granting("example.com/gpus"),)))
    world.control(SETTING)
    assert ask(world, gpus=4) == f"ClusterQueue cq grants no {name}"
    waits = gpu_job(gpus=4)
    world.submit(waits)
    assert placements(world.decide()) == {}

    # The agent has read what its Kueue maps: who waits is looked at again.
    told = msgspec.structs.replace(profile(), counted_as={name: "example.com/gpus"})
    world.fact(told)
    assert placements(world.decide()) == {"train": "c1"}
    # And that placement is charged under the same name.
    assert ask(world, gpus=1) == "no quota left: needs 1 example.com/gpus, 0 left"


def test_quota_is_asked_for_by_the_names_that_the_clusters_nodes_give_their_gpus() -> None:
    world = World()
    mig = Share(resource="nvidia.com/mig-3g.40gb", milli=428, count=16, kind="mig")
    sliced = msgspec.structs.replace(node("mig"), shares=(mig,), fractions=True)
    for name, there in (
        ("nvidia", node("nvidia")),
        ("amd", node("amd", resource="amd.com/gpu")),
        ("mig", sliced),
    ):
        world.fact(profile(name), alive(name), there)
    world.control(SETTING)

    def refused(granted: str, **asked: object) -> dict[str, str]:
        world.now_s += 1
        for name in ("nvidia", "amd", "mig"):
            flavors = (granting(granted),)
            world.fact(queue(name, flavors=flavors, counter=int(world.now_s * 10)), alive(name))
        request = gpu_job(**asked)  # type: ignore[arg-type]
        return dict(world.dry_run(TENANT, request, world.now_s).filtered)

    # A whole GPU: the queue of a cluster with AMD's has to grant amd.com/gpu, and no other.
    assert refused("amd.com/gpu", gpus=1)["nvidia"] == "ClusterQueue cq grants no nvidia.com/gpu"
    assert "amd" not in refused("amd.com/gpu", gpus=1)
    assert refused("nvidia.com/gpu", gpus=1)["amd"] == "ClusterQueue cq grants no amd.com/gpu"
    assert "nvidia" not in refused("nvidia.com/gpu", gpus=1)

    # Part of a GPU: the slice that the node will be asked for.
    part = {"gpus": 1, "gpu_milli": 400, "clusters": ("mig",)}
    assert "mig" not in refused("nvidia.com/mig-3g.40gb", **part)
    why = "ClusterQueue cq grants no nvidia.com/mig-3g.40gb"
    assert refused("nvidia.com/gpu", **part)["mig"] == why


def test_a_flavor_of_other_gpus_is_none(world: World) -> None:
    t4 = {"nvidia.com/gpu.product": "Tesla-T4"}
    h100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    world.fact(queue(flavors=(flavor("h", labels=h100),)))
    never = "no flavor of ClusterQueue cq is of the nodes that are asked for"
    assert ask(world, gpu_models=("T4",)) == never
    world.fact(queue(flavors=(flavor("h", labels=h100), flavor("t", labels=t4)), counter=2))
    assert ask(world, gpu_models=("T4",)) == ""


def test_what_a_cohort_has_left_may_be_borrowed_up_to_the_limit(world: World) -> None:
    lender = queue(name="lender", cohort="all", local=())
    world.fact(lender, queue(cohort="all", flavors=(flavor(nominal=2),)))
    assert ask(world, gpus=8) == ""
    world.fact(queue(cohort="all", flavors=(flavor(nominal=2, borrowing_limit=4),), counter=2))
    never = "ClusterQueue cq grants {} nvidia.com/gpu at most, 8 are asked for"
    assert ask(world, gpus=8) == never.format(6)
    world.fact(queue(flavors=(flavor(nominal=2),), counter=3))  # in no cohort any more
    assert ask(world, gpus=8) == never.format(2)


def test_quota_is_given_out_once_though_the_report_does_not_know_of_it_yet(world: World) -> None:
    world.fact(queue())
    for name in ("first", "second", "third"):
        world.submit(gpu_job(name, gpus=4))
    # Within one commit, and in the next while its Kueue has let nothing in yet.
    assert placements(world.decide()) == {"first": "c1", "second": "c1"}
    assert world.decide() is None
    why = world.why(TENANT, "third", world.now_s)
    assert "no quota left" in why.summary  # type: ignore[union-attr]

    # Kueue lets the first one in: from now on the report knows it, and it is not charged twice.
    first = next(k for k, w in world.workloads.items() if w.id == "first")
    world.claim(first)
    world.append(Admitted(**world._attempt(first)))  # type: ignore[arg-type]
    world.fact(queue(flavors=(flavor(used=4),), counter=2))
    assert ask(world, gpus=1) == "no quota left: needs 1 nvidia.com/gpu, 0 left"
    second = next(k for k, w in world.workloads.items() if w.id == "second")
    world.claim(second)
    world.evict(second)
    assert placements(world.decide()) == {"second": "c1"}


def test_a_deadline_is_not_promised_where_the_clusters_queue_starts_the_job(world: World) -> None:
    world.fact(queue())
    assert "its deadline cannot be kept" in ask(world, deadline_s=60.0)
    assert ask(world) == ""


def test_a_placement_says_how_its_job_is_made_there(world: World) -> None:
    big = LocalQueueReport(namespace="two", name="big")
    world.fact(profile("c2"), alive("c2"), node("c2"), queue("c2", local=(big,)), queue())
    places = {
        "c2": QueuePlace(namespace="two", service_account="runner", local_queue="big"),
        "*": QueuePlace(namespace="team-a"),
    }

    def target(cluster: str, via: Via) -> Target:
        world.control(QueueSetting(queue="gpu", via=via, places=places))
        name = f"j{world.sequence}"
        world.submit(gpu_job(name, clusters=(cluster,)))
        plan = world.decide()
        assert plan is not None
        [placed] = [e for e in plan.events if isinstance(e, Placed) and e.id == name]
        return placed.target

    assert target("c2", "direct") == Target(namespace="two", service_account="runner")
    assert target("c1", "direct") == Target(namespace="team-a")
    assert target("c1", "worker") == Target(via="worker", namespace="team-a", local_queue="gpu")
    in_two = Target(via="worker", namespace="two", service_account="runner", local_queue="big")
    assert target("c2", "worker") == in_two
    # What waits since before its queue went by way of the hub has no job on the hub.
    assert target("c2", "hub") == in_two


def test_a_queue_that_nobody_set_goes_to_the_default_namespace(world: World) -> None:
    world.submit(job("train"))
    plan = world.decide()
    assert plan is not None
    [placed] = plan.events
    assert isinstance(placed, Placed)
    assert placed.target == Target(via="direct", namespace="default")


def test_several_pod_sets_go_where_job_sets_are_made_or_volcano_runs_jobs(world: World) -> None:
    two = (pod_set(name="a"), pod_set(name="b"))

    def with_kinds(
        kinds: tuple[str, ...] | None,
        counter: int,
        sets: tuple[PodSet, ...] = two,
        queue: str = "default",
    ) -> dict[str, str]:
        world.fact(
            ClusterProfile(
                cluster="c1",
                stamp=Stamp(epoch=1, counter=counter),
                observed_at_s=0.0,
                job_kinds=kinds,
            )
        )
        asked = job(pod_sets=sets, queue=queue)
        return dict(world.dry_run(TENANT, asked, world.now_s).filtered)

    no_job_sets = {"c1": "makes no JobSets, which several pod sets need"}
    assert with_kinds(("Job",), 2) == no_job_sets
    assert world.dry_run(TENANT, job(), world.now_s).placed
    assert with_kinds(("Job", "JobSet"), 3) == {}
    assert with_kinds(None, 4) == {}
    # Volcano runs them without, but not what varies, takes parts of GPUs or is started by Kueue.
    by_volcano = ("Job", "VolcanoJob")
    assert with_kinds(by_volcano, 5) == {}
    varies = (pod_set(name="a", count=2, min_count=1), pod_set(name="b"))
    assert with_kinds(by_volcano, 6, varies) == no_job_sets
    part = (pod_set(name="a", gpu_milli=500), pod_set(name="b"))
    assert with_kinds(by_volcano, 7, part) == no_job_sets
    world.control(SETTING)
    assert with_kinds(by_volcano, 8, queue="gpu") == no_job_sets


def test_waiting_jobs_are_looked_at_again_when_job_sets_come(world: World) -> None:
    two = (pod_set(name="a"), pod_set(name="b"))
    kinds = ClusterProfile(
        cluster="c1", stamp=Stamp(epoch=1, counter=2), observed_at_s=0.0, job_kinds=("Job",)
    )
    world.fact(kinds)
    world.submit(job("train", pod_sets=two))
    assert world.decide() is None
    looked_at = world.resolver.know.derived.growth
    world.fact(profile())
    assert world.resolver.know.derived.growth > looked_at
    assert placements(world.decide()) == {"train": "c1"}


def test_who_waits_in_another_of_the_clusters_queues_is_not_ahead() -> None:
    world = World()
    world.fact(queue(flavors=(flavor(used=7),)), queue(name="theirs", flavors=(flavor(used=7),)))
    world.fact(queue(name="theirs", flavors=(flavor(used=7),), local=(OTHERS,), counter=2))
    ours, theirs = (
        Target(via="worker", namespace=namespace, local_queue="gpu")
        for namespace in ("team-a", "team-b")
    )
    pending = [(target, gpu_job(gpus=4)) for target in (ours, theirs, theirs)]
    cluster = world.resolver.know.clusters.peek("c1")
    nvidia = devices_of([node()])
    for target, ahead in ((ours, 1), (theirs, 2)):
        found = asked(cluster, target, gpu_job(gpus=1), pending, nvidia).in_line
        assert found == InLine(ahead=ahead, admitted=0, borrows=False)
