"""Stories of a worker cluster: what its mirrors tell, and which facts come of it."""

from typing import Any

from berthmaster.lib.kube.bounds import bounded_labels
from berthmaster.lib.kube.controller.problems import Problem
from berthmaster.lib.kube.mirror import Added, Deleted, Listed, Unreadable, Updated
from berthmaster.lib.kube.wire import Undecodable
from berthmaster.lib.messages.fleet import (
    Amounts,
    ClusterAlive,
    ClusterProfile,
    CopyReport,
    FleetFact,
    NodeGone,
    NodeReport,
    QueueReport,
)
from berthmaster.lib.nats import subjects
from berthmaster.worker.inventory.core.inventory import (
    KEEP_COPY_S,
    KEEP_GONE_COPY_S,
    KEEP_GONE_S,
    Inventory,
)
from berthmaster.worker.inventory.core.kinds import WatchedKind
from tests.unit.worker.inventory.objects import (
    FALSE,
    NOW_S,
    STAMP,
    cluster_queue,
    condition,
    definition,
    discovered,
    flavor,
    node,
    pod,
    workload,
)

PROFILE = subjects.profile("east")
N1 = subjects.node("east", "n1")
GPUS = subjects.queue_report("east", "gpus")
COPY = subjects.copy_report("east", "team", "w")
GPU = "nvidia.com/gpu"
HEAD: dict[str, Any] = {"cluster": "east", "stamp": STAMP, "observed_at_s": NOW_S}


def told(inventory: Inventory, subject: str) -> FleetFact:
    fact = inventory.fact(subject, STAMP, NOW_S)
    assert fact is not None
    return fact[0]


def test_a_cluster_from_its_first_list_to_its_last_node() -> None:
    inventory = Inventory("east", {"region": "eu"})
    n1 = node("n1", {GPU: "2"}, labels=discovered())
    inventory.take(WatchedKind.NODES, Added(n1))
    inventory.take(WatchedKind.NODES, Listed("1"))
    inventory.take(WatchedKind.PODS, Listed("1"))
    inventory.set_version("v1.36.3")
    assert list(inventory.everything()) == [PROFILE, N1]
    assert dict(inventory.changes()) == {PROFILE: True, N1: True}
    assert told(inventory, PROFILE) == ClusterProfile(
        **HEAD,
        labels={"region": "eu"},
        properties={
            "berth/runtime": "kubernetes",
            "berth/kueue": "absent",
            "berth/dra": "absent",
            "berth/kubernetes-version": "v1.36.3",
        },
        nodes=1,
        gpus={"Tesla-T4": 2},
        job_kinds=("Job",),
    )

    # A pod is bound: only the node is told anew.
    inventory.take(WatchedKind.PODS, Added(pod("a", {"cpu": "1", GPU: "1"})))
    assert dict(inventory.changes()) == {N1: True}
    report = told(inventory, N1)
    assert isinstance(report, NodeReport)
    assert report.foreign == Amounts(cpu_milli=1000, gpu_milli=1000)

    # A GPU is lost for new pods: the node, and not what the cluster consists of.
    sick = node("n1", {GPU: "1"}, capacity={GPU: "2"}, labels=discovered())
    inventory.take(WatchedKind.NODES, Updated(sick, n1))
    assert inventory.changes()[N1]

    inventory.take(WatchedKind.NODES, Deleted(sick, sick))
    assert dict(inventory.changes()) == {PROFILE: True, N1: True}
    assert inventory.fact(N1, STAMP, NOW_S) == (NodeGone(**HEAD, node="n1"), KEEP_GONE_S)
    assert list(inventory.everything()) == [PROFILE]


def test_what_earlier_lives_left_is_gone_only_once_its_kind_was_listed() -> None:
    inventory = Inventory("east")
    head = HEAD | {"observed_at_s": 1.0}
    left: list[FleetFact] = [
        ClusterAlive(**head, interval_s=1.0),
        NodeReport(**head, node="n1", allocatable=Amounts()),
        NodeReport(**head, node="old.node", allocatable=Amounts()),
        NodeGone(**head, node="older"),
        QueueReport(**head, queue="gpus"),
        QueueReport(**head, queue="gone", gone=True),
        CopyReport(**head, namespace="team", workload="w"),
    ]
    inventory.earlier(left)
    inventory.changes()
    assert dict(inventory.changes()) == {}
    inventory.take(WatchedKind.NODES, Added(node("n1")))
    inventory.take(WatchedKind.NODES, Listed("1"))
    inventory.changes()  # n1, the profile
    old = subjects.node("east", "old.node")
    inventory.earlier(left)
    assert dict(inventory.changes()) == {old: True}
    assert told(inventory, old) == NodeGone(**HEAD, node="old.node")
    # The cluster has no Kueue: its queue and its copy are gone, too.
    inventory.absent(WatchedKind.CLUSTER_QUEUES)
    inventory.absent(WatchedKind.COPIES)
    assert dict(inventory.changes()) == {GPUS: True, COPY: True}
    queue, copy = told(inventory, GPUS), told(inventory, COPY)
    assert isinstance(queue, QueueReport)
    assert isinstance(copy, CopyReport)
    assert (queue.gone, copy.gone) == (True, True)
    # Said once.
    inventory.absent(WatchedKind.COPIES)
    assert dict(inventory.changes()) == {}


def test_kueue_that_comes_goes_and_comes_again() -> None:
    inventory = Inventory("east")
    inventory.absent(WatchedKind.CLUSTER_QUEUES)
    inventory.changes()
    inventory.take(WatchedKind.CLUSTER_QUEUES, Added(cluster_queue("gpus")))
    inventory.take(WatchedKind.CLUSTER_QUEUES, Listed("1"))
    assert dict(inventory.changes()) == {PROFILE: True, GPUS: True}
    profile = told(inventory, PROFILE)
    assert isinstance(profile, ClusterProfile)
    assert profile.properties["berth/kueue"] == "served"
    assert inventory.fact(GPUS, STAMP, NOW_S) == (QueueReport(**HEAD, queue="gpus"), None)
    # Its definitions are removed. The mirror keeps what it had, we do not believe it.
    inventory.absent(WatchedKind.CLUSTER_QUEUES)
    assert dict(inventory.changes()) == {PROFILE: True, GPUS: True}
    gone = inventory.fact(GPUS, STAMP, NOW_S)
    assert gone is not None
    assert isinstance(gone[0], QueueReport)
    assert (gone[0].gone, gone[1]) == (True, KEEP_GONE_S)
    # Back with the very same objects: the mirror tells nothing but that it has listed.
    inventory.take(WatchedKind.CLUSTER_QUEUES, Listed("9"))
    assert dict(inventory.changes()) == {PROFILE: True, GPUS: True}
    assert told(inventory, GPUS) == QueueReport(**HEAD, queue="gpus")


def test_copies_are_kept_for_two_days_and_their_end_for_minutes() -> None:
    inventory = Inventory("east")
    copy = workload("w", [condition("QuotaReserved", FALSE, "Pending", "no quota")])
    inventory.take(WatchedKind.COPIES, Added(copy))
    inventory.take(WatchedKind.COPIES, Listed("1"))
    inventory.changes()
    facts = inventory.fact(COPY, STAMP, NOW_S)
    waiting = CopyReport(
        **HEAD,
        namespace="team",
        workload="w",
        origin="multikueue",
        message="no quota",
        reason="Pending",
    )
    assert facts == (waiting, KEEP_COPY_S)
    assert COPY in inventory.everything()
    inventory.take(WatchedKind.COPIES, Deleted(copy, copy))
    assert dict(inventory.changes()) == {COPY: True}
    removed = CopyReport(**HEAD, namespace="team", workload="w", message="removed", gone=True)
    assert inventory.fact(COPY, STAMP, NOW_S) == (removed, KEEP_GONE_COPY_S)
    assert COPY not in inventory.everything()


def job_kinds(inventory: Inventory) -> tuple[str, ...] | None:
    profile = told(inventory, PROFILE)
    assert isinstance(profile, ClusterProfile)
    return profile.job_kinds


def test_job_sets_can_be_made_from_when_their_definition_is_established() -> None:
    inventory = Inventory("east")
    name = "jobsets.jobset.x-k8s.io"
    early = definition(name, established=FALSE)
    inventory.changes()
    inventory.take(WatchedKind.DEFINITIONS, Added(early))
    assert (dict(inventory.changes()), job_kinds(inventory)) == ({}, ("Job",))
    inventory.take(WatchedKind.DEFINITIONS, Updated(definition(name), early))
    assert (dict(inventory.changes()), job_kinds(inventory)) == ({PROFILE: True}, ("Job", "JobSet"))
    inventory.take(WatchedKind.DEFINITIONS, Deleted(definition(name), definition(name)))
    assert (dict(inventory.changes()), job_kinds(inventory)) == ({PROFILE: True}, ("Job",))
    inventory.take(WatchedKind.DEFINITIONS, Added(definition("rayjobs.ray.io")))
    assert (dict(inventory.changes()), job_kinds(inventory)) == ({PROFILE: True}, ("Job", "RayJob"))


def test_jobs_of_volcanos_can_be_made_where_the_executor_makes_them() -> None:
    name = "jobs.batch.volcano.sh"
    for jobs, told in (("volcano", ("Job", "VolcanoJob")), ("kubernetes", ("Job",))):
        inventory = Inventory("east", jobs=jobs)
        assert job_kinds(inventory) == ("Job",)
        inventory.take(WatchedKind.DEFINITIONS, Added(definition(name)))
        assert job_kinds(inventory) == told


def test_kais_definition_makes_every_gpu_node_offer_fractions() -> None:
    inventory = Inventory("east")
    inventory.take(WatchedKind.NODES, Added(node("n1", {GPU: "1"}, labels=discovered())))
    inventory.take(WatchedKind.NODES, Added(node("n2")))
    inventory.changes()
    queues = definition("queues.scheduling.run.ai")
    inventory.take(WatchedKind.DEFINITIONS, Added(queues))
    assert dict(inventory.changes()) == {PROFILE: True, N1: True}
    report = told(inventory, N1)
    assert isinstance(report, NodeReport)
    assert (report.fractions, [share.kind for share in report.shares]) == (True, ["kai"])
    inventory.take(WatchedKind.DEFINITIONS, Deleted(queues, queues))
    assert dict(inventory.changes()) == {PROFILE: True, N1: True}


def test_objects_that_cannot_be_read() -> None:
    inventory = Inventory("east")
    bad = Undecodable("", "n1", "5", "expected `object`, got `int`")
    inventory.take(WatchedKind.NODES, Unreadable(bad, None))
    inventory.take(WatchedKind.PODS, Unreadable(Undecodable("team", "p", "6", "odd"), None))
    assert N1 in inventory.changes()
    report = told(inventory, N1)
    assert isinstance(report, NodeReport)
    assert (report.schedulable, report.allocatable) == (False, Amounts())
    assert inventory.problems.take_new() == [
        Problem("nodes", "n1", "cannot be read: expected `object`, got `int`"),
        Problem("unreadable pods", "team/p", "odd"),
    ]
    inventory.unreadable(WatchedKind.PODS, [("team", "p")])
    assert inventory.problems.count() == {"nodes": 1, "unreadable pods": 1}
    inventory.unreadable(WatchedKind.PODS, [])
    assert inventory.problems.count() == {"nodes": 1}
    # It went while it could not be read: no mirror tells that, so the list of such nodes must.
    inventory.unreadable(WatchedKind.NODES, [("", "n1")])
    assert dict(inventory.changes()) == {}
    inventory.unreadable(WatchedKind.NODES, [])
    assert dict(inventory.changes()) == {PROFILE: True, N1: True}
    assert told(inventory, N1) == NodeGone(**HEAD, node="n1")


def test_labels_by_which_flavors_mean_nodes_are_told_although_they_are_noise() -> None:
    inventory = Inventory("east")
    noise = "feature.node.kubernetes.io/pci-10de.present"
    inventory.take(WatchedKind.NODES, Added(node("n1", labels={noise: "true", "zone": "b"})))
    told_labels = inventory.fact(subjects.node("east", "n1"), STAMP, NOW_S)
    assert told_labels is not None
    assert isinstance(told_labels[0], NodeReport)
    assert told_labels[0].labels == {"zone": "b"}
    inventory.changes()
    inventory.take(WatchedKind.FLAVORS, Added(flavor("gpu", **{noise: "true"})))
    assert subjects.node("east", "n1") in inventory.changes()
    found = inventory.fact(subjects.node("east", "n1"), STAMP, NOW_S)
    assert found is not None
    assert isinstance(found[0], NodeReport)
    assert found[0].labels == {noise: "true", "zone": "b"}
    # It stands before whatever else there is too much of.
    many = {f"team.example/{at}": "x" for at in range(80)}
    labels, left_out = bounded_labels({noise: "true", **many}, {noise})
    assert (noise in labels, len(labels), left_out) == (True, 64, 17)
