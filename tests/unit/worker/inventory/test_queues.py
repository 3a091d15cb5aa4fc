import msgspec
import pytest

from berthmaster.lib.kube.controller.problems import Problem, Problems
from berthmaster.lib.kube.objects import OwnerReference
from berthmaster.lib.kueue.queues import ClusterQueue, Cohort, ResourceFlavor
from berthmaster.lib.messages.fleet import (
    CohortQuota,
    CopyReport,
    FlavorQuota,
    LocalQueueReport,
    QueueReport,
    QuotaAmount,
    Taint,
)
from berthmaster.worker.inventory.core.cohorts import Cohorts
from berthmaster.worker.inventory.core.objects import WaitingPod
from berthmaster.worker.inventory.core.queue_index import QueueIndex
from berthmaster.worker.inventory.core.queues import Copy, copy_of
from berthmaster.worker.inventory.core.waiting import NOBODY, Owner, Unscheduled, WaitingPods
from tests.unit.worker.inventory.objects import (
    FALSE,
    NOW_S,
    STAMP,
    TRUE,
    Json,
    cluster_queue,
    condition,
    flavor,
    local_queue,
    workload,
)

GPU = "nvidia.com/gpu"
SPEC = {
    "cohortName": "all",
    "stopPolicy": "None",
    "resourceGroups": [
        {
            "coveredResources": ["cpu", "memory", GPU],
            "flavors": [
                {
                    "name": "t4",
                    "resources": [
                        {"name": "cpu", "nominalQuota": "9500m"},
                        {"name": "memory", "nominalQuota": "36Gi"},
                        {"name": GPU, "nominalQuota": 8, "borrowingLimit": "4"},
                    ],
                }
            ],
        }
    ],
}
RESERVED = [
    {"name": "t4", "resources": [{"name": "cpu", "total": "1"}, {"name": GPU, "total": "3"}]}
]


def told(book: QueueIndex, *, served: bool = True) -> QueueReport:
    return book.queue("gpus", STAMP, NOW_S, served=served)


def test_a_queue_with_its_quota_its_flavors_and_what_leads_to_it() -> None:
    book = QueueIndex("east", Problems())
    book.set_flavor(flavor("t4", accelerator="nvidia-tesla-t4"))
    book.set_queue(
        cluster_queue(
            "gpus", spec=SPEC, flavorsReservation=RESERVED, pendingWorkloads=2, admittedWorkloads=1
        )
    )
    book.set_local(local_queue("vision", "gpus"))
    book.set_local(local_queue("held", "gpus", namespace="a-team", stop="Hold"))
    book.set_local(local_queue("elsewhere", "cpus"))
    assert told(book) == QueueReport(
        cluster="east",
        queue="gpus",
        stamp=STAMP,
        observed_at_s=NOW_S,
        cohort="all",
        flavors=(
            FlavorQuota(
                flavor="t4",
                node_labels={"accelerator": "nvidia-tesla-t4"},
                resources={
                    "cpu": QuotaAmount(nominal=9500, used=1000),
                    "memory": QuotaAmount(nominal=36_864),
                    GPU: QuotaAmount(nominal=8, used=3, borrowing_limit=4),
                },
            ),
        ),
        local_queues=(
            LocalQueueReport(
                namespace="a-team",
                name="held",
                active=False,
                reason="stopped: Hold",
                stopped="Hold",
            ),
            LocalQueueReport(namespace="team", name="vision"),
        ),
        pending=2,
        admitted=1,
    )


def cohort(name: str, gpus: int = 0, parent: str = "", lends: int | None = None) -> Cohort:
    quota = {"name": GPU, "nominalQuota": gpus, "lendingLimit": lends}
    group = {"coveredResources": [GPU], "flavors": [{"name": "t4", "resources": [quota]}]}
    spec = {"parentName": parent, "resourceGroups": [group] if gpus else []}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, Cohort)


def had(name: str, gpus: int = 0, parent: str = "") -> CohortQuota:
    flavors = (FlavorQuota(flavor="t4", resources={GPU: QuotaAmount(nominal=gpus)}),)
    return CohortQuota(cohort=name, parent=parent, flavors=flavors if gpus else ())


def test_cohorts_above_a_queue_have_what_those_without_queues_lend_them() -> None:
    cohorts = Cohorts()
    spare, small = cohort("spare", 5, "root", lends=3), cohort("small", 2, "spare")
    # The root is no object, and yet has what its child without queues lends: at most 3 of 5 + 2.
    cohorts.arrange([cohort("mine", 4, "root"), spare, small], ["mine"])
    assert cohorts.path("mine") == (had("mine", 4, "root"), had("root", 3))
    # With a queue below it a cohort lends by itself.
    cohorts.arrange([cohort("mine", 4, "root"), spare, small], ["mine", "small"])
    assert cohorts.path("mine") == (had("mine", 4, "root"),)
    # An object without quota is on the way all the same; one that is only named ends it.
    cohorts.arrange([cohort("mine", 4, "middle"), cohort("middle", 0, "top")], ["mine"])
    assert cohorts.path("mine") == (had("mine", 4, "middle"), had("middle", 0, "top"))
    assert cohorts.path("top") == ()


def test_a_circle_of_cohorts_is_found_from_each_of_them_and_from_below() -> None:
    cohorts = Cohorts()
    circle = [cohort("a", 1, "b"), cohort("b", 1, "a"), cohort("below", 1, "a"), cohort("c", 1)]
    cohorts.arrange(circle, ["below"])
    names = ("a", "b", "below", "c", "never heard of")
    assert [cohorts.circular(name) for name in names] == [True, True, True, False, False]
    assert [each.cohort for each in cohorts.path("below")] == ["below", "a", "b"]


def test_why_a_queue_is_not_active() -> None:
    book = QueueIndex("east", Problems())
    bad = condition("Active", FALSE, "FlavorNotFound", "Can't admit: flavor t4 not found")
    book.set_queue(cluster_queue("gpus", active=bad))
    report = told(book)
    why = "FlavorNotFound: Can't admit: flavor t4 not found"
    assert (report.active, report.reason, report.stopped) == (False, why, False)

    # Kueue may be slower than whoever stops the queue: the wish counts at once.
    book.set_queue(cluster_queue("gpus", spec={"stopPolicy": "HoldAndDrain"}))
    report = told(book)
    assert (report.active, report.reason, report.stopped) == (False, "stopped: HoldAndDrain", True)
    assert report.stop_policy == "HoldAndDrain"

    book.set_queue(cluster_queue("gpus", active=condition("Other")))
    assert told(book).reason == "Kueue has not looked at it yet"


def test_changes_of_flavors_and_local_queues_are_changes_of_their_queue() -> None:
    book = QueueIndex("east", Problems())
    book.set_queue(cluster_queue("gpus", spec=SPEC))
    book.set_queue(cluster_queue("cpus"))
    book.dirty_queues.clear()
    book.set_queue(cluster_queue("gpus", spec=SPEC))  # nothing that we tell
    assert book.dirty_queues == {}
    book.set_flavor(flavor("t4", accelerator="t4"))
    assert book.dirty_queues == {"gpus": True}
    book.dirty_queues.clear()
    book.set_local(local_queue("vision", "gpus"))
    book.dirty_queues.clear()
    book.set_local(local_queue("vision", "cpus"))  # it leads elsewhere now
    assert book.dirty_queues == {"gpus": True, "cpus": True}
    assert told(book).local_queues == ()
    book.dirty_queues.clear()
    book.drop_local(("team", "vision"))
    book.drop_flavor("t4")
    assert book.dirty_queues == {"cpus": True, "gpus": True}
    assert told(book).flavors[0].node_labels == {}


def test_a_queue_that_is_removed_and_one_whose_kueue_is() -> None:
    book = QueueIndex("east", Problems())
    book.set_queue(cluster_queue("gpus"))
    gone = QueueReport(
        cluster="east",
        queue="gpus",
        stamp=STAMP,
        observed_at_s=NOW_S,
        active=False,
        reason="removed",
        gone=True,
    )
    assert told(book, served=False) == gone
    assert not told(book).gone
    book.drop_queue("gpus")
    assert told(book) == gone


def test_a_quota_of_nonsense_costs_its_flavor_and_is_told() -> None:
    problems = Problems()
    book = QueueIndex("east", problems)
    bad = {"name": "bad", "resources": [{"name": "cpu", "nominalQuota": "-3"}]}
    good = {"name": "good", "resources": [{"name": "cpu", "nominalQuota": "3"}]}
    book.set_queue(cluster_queue("gpus", spec={"resourceGroups": [{"flavors": [bad, good]}]}))
    assert [one.flavor for one in told(book).flavors] == ["good"]
    why = "flavor bad: cpu: '-3' is negative, which no resource can be"
    assert problems.take_new() == [Problem("clusterqueues", "gpus", why)]


PENDING = condition("QuotaReserved", FALSE, "Pending", "couldn't assign flavors: 8 more needed")
RESERVED_NOW = condition("QuotaReserved", TRUE, "QuotaReserved", "Quota reserved in gpus")
ADMITTED = condition("Admitted", TRUE, "Admitted", "The workload is admitted")
EVICTED = condition("Evicted", TRUE, "Preempted", "Preempted to accommodate a workload")
FINISHED = condition("Finished", TRUE, "JobFinished", "Job finished successfully")


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ([], "Kueue has not looked at it yet"),
        ([PENDING], "couldn't assign flavors: 8 more needed"),
        ([PENDING, EVICTED], "couldn't assign flavors: 8 more needed"),
        ([EVICTED], "Preempted: Preempted to accommodate a workload"),
        ([RESERVED_NOW], "has quota, not admitted yet"),
        ([RESERVED_NOW, ADMITTED], "The workload is admitted"),
        ([RESERVED_NOW, ADMITTED, FINISHED], "Job finished successfully"),
        ([condition("PodsReady", FALSE)], "waits for quota"),
    ],
)
def test_of_a_copys_conditions_one_says_most(conditions: list[Json], message: str) -> None:
    assert copy_of(workload("w", conditions)).message == message


def test_a_copy_that_waits_for_checks_names_them() -> None:
    checks = [
        {"name": "budget", "state": "Pending", "message": "ask finance"},
        {"name": "done", "state": "Ready"},
        {"name": "other", "state": "Retry"},
    ]
    assert copy_of(workload("w", [RESERVED_NOW], checks)) == Copy(
        origin="multikueue",
        quota_reserved=True,
        message="waits for checks: budget is Pending: ask finance; other is Retry",
    )


def test_a_copys_life() -> None:
    book = QueueIndex("east", Problems())
    key = ("team", "w")

    def report(**state: object) -> CopyReport:
        head = {"cluster": "east", "namespace": "team", "workload": "w"}
        return CopyReport(**head, stamp=STAMP, observed_at_s=NOW_S, **state)  # type: ignore[arg-type]

    book.set_copy(workload("w", [PENDING]))
    assert book.dirty_copies == {key: True}
    assert book.copy(key, STAMP, NOW_S, served=True) == report(
        origin="multikueue", message="couldn't assign flavors: 8 more needed", reason="Pending"
    )
    book.dirty_copies.clear()
    book.set_copy(workload("w", [PENDING]))
    assert book.dirty_copies == {}
    had = {"nvidia.com/gpu": "h100", "cpu": "h100"}
    book.set_copy(workload("w", [RESERVED_NOW, ADMITTED], flavors=had))
    assert book.copy(key, STAMP, NOW_S, served=True) == report(
        origin="multikueue",
        quota_reserved=True,
        admitted=True,
        message="The workload is admitted",
        flavors=(had,),
    )
    book.drop_copy(key)
    assert book.copy(key, STAMP, NOW_S, served=True) == report(message="removed", gone=True)


def waiting(
    name: str, owner: str, message: str = "", *, reason: str = "Unschedulable"
) -> WaitingPod:
    """A pod of a Job without a node."""
    metadata = {
        "name": name,
        "namespace": "team",
        "ownerReferences": [{"kind": "Job", "name": owner, "controller": True}],
    }
    status = {"conditions": [condition("PodScheduled", FALSE, reason, message)]}
    return msgspec.convert({"metadata": metadata, "status": status}, WaitingPod)


def test_a_copy_tells_what_the_scheduler_says_of_its_jobs_pods() -> None:
    book = QueueIndex("east", Problems())
    key = ("team", "job-a")
    copy = workload("job-a", [RESERVED_NOW, ADMITTED])
    owner = OwnerReference(kind="Job", name="a", controller=True)
    owned = msgspec.structs.replace(copy.metadata, owner_references=(owner,))
    book.set_waiting(waiting("a-2", "a", "0/2 nodes are available"))
    book.set_copy(msgspec.structs.replace(copy, metadata=owned))

    def told() -> tuple[int, str]:
        book.dirty_copies.clear()
        report = book.copy(key, STAMP, NOW_S, served=True)
        return report.unscheduled, report.scheduler

    assert told() == (1, "0/2 nodes are available")
    book.set_waiting(waiting("a-1", "a", "0/3 nodes are available"))
    assert book.dirty_copies == {key: True}
    assert told() == (2, "0/3 nodes are available")
    # The same again, another's, and one that is only held back by a gate are no news.
    book.set_waiting(waiting("a-1", "a", "0/3 nodes are available"))
    book.set_waiting(waiting("b-1", "b", "0/3 nodes are available"))
    book.set_waiting(waiting("a-3", "a", reason="SchedulingGated"))
    assert book.dirty_copies == {}
    book.drop_waiting(("team", "a-1"))
    assert book.dirty_copies == {key: True}
    assert told() == (1, "0/2 nodes are available")
    book.drop_waiting(("team", "a-2"))
    assert told() == (0, "")
    # When it is gone, nobody waits.
    book.set_waiting(waiting("a-2", "a", "late"))
    book.drop_copy(key)
    assert told() == (0, "")


def test_pods_of_a_job_set_are_the_sets() -> None:
    pods, found = WaitingPods(), waiting("set-w-0", "set-w", "no nodes")
    labels = {"jobset.sigs.k8s.io/jobset-name": "set"}
    of_set = msgspec.structs.replace(found.metadata, labels=labels)
    owner = pods.put(msgspec.structs.replace(found, metadata=of_set))
    assert owner == Owner("team", "JobSet", "set")
    assert pods.of(owner) == Unscheduled(1, "no nodes")
    assert pods.of(NOBODY) == Unscheduled()


# Cohorts


def cohort_of(name: str, parent: str = "", gpus: Json | None = None) -> Cohort:
    quota = {"name": GPU} | dict(gpus or {})
    group = {"coveredResources": [GPU], "flavors": [{"name": "t4", "resources": [quota]}]}
    spec: dict[str, object] = {"resourceGroups": [group] if gpus else []}
    if parent:
        spec["parentName"] = parent
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, Cohort)


def in_cohort(name: str) -> ClusterQueue:
    return cluster_queue("gpus", spec=SPEC | {"cohortName": name})


def of_t4(nominal: int, **limits: int) -> tuple[FlavorQuota, ...]:
    return (FlavorQuota(flavor="t4", resources={GPU: QuotaAmount(nominal=nominal, **limits)}),)


def test_a_queue_tells_its_cohort_and_those_above_it() -> None:
    index = QueueIndex("east", Problems())
    index.set_queue(in_cohort("team"))
    assert (told(index).cohort, told(index).cohorts) == ("team", ())  # only named

    index.dirty_queues.clear()
    index.set_cohort(cohort_of("all", gpus={"nominalQuota": 4}))
    assert index.dirty_queues == {}  # it is not above the queue
    index.set_cohort(cohort_of("team", "all", {"nominalQuota": "0", "borrowingLimit": "3"}))
    assert index.dirty_queues == {"gpus": True}
    team = CohortQuota(cohort="team", parent="all", flavors=of_t4(0, borrowing_limit=3))
    assert told(index).cohorts == (team, CohortQuota(cohort="all", flavors=of_t4(4)))

    index.dirty_queues.clear()
    index.drop_cohort("all")
    assert index.dirty_queues == {"gpus": True}
    assert told(index).cohorts == (team,)


def test_what_cohorts_without_queues_lend_counts_as_their_parents_own() -> None:
    index = QueueIndex("east", Problems())
    index.set_queue(in_cohort("team"))
    index.set_cohort(cohort_of("team", "all"))
    index.set_cohort(cohort_of("pool", "all", {"nominalQuota": 8, "lendingLimit": 6}))
    index.set_cohort(cohort_of("pond", "pool", {"nominalQuota": 2}))
    index.set_cohort(cohort_of("reserve", "all", {"nominalQuota": 1}))
    assert told(index).cohorts[1:] == (CohortQuota(cohort="all", flavors=of_t4(7)),)

    # A queue below the pool tells of it, so it is no more told as a part of its parent.
    other = cluster_queue("others", spec=SPEC | {"cohortName": "pool"})
    index.set_queue(other)
    assert told(index).cohorts[1:] == (CohortQuota(cohort="all", flavors=of_t4(1)),)
    pool = index.queue("others", STAMP, NOW_S, served=True).cohorts[0]
    assert pool == CohortQuota(cohort="pool", parent="all", flavors=of_t4(10, lending_limit=6))
    index.drop_queue("others")
    assert told(index).cohorts[1:] == (CohortQuota(cohort="all", flavors=of_t4(7)),)


def test_a_circle_of_cohorts_shuts_their_queues() -> None:
    index = QueueIndex("east", Problems())
    index.set_queue(in_cohort("a"))
    index.set_cohort(cohort_of("a", "b"))
    assert told(index).active
    index.set_cohort(cohort_of("b", "a"))
    report = told(index)
    why = "its cohort is part of a circle: Kueue lets nothing in"
    assert (report.active, report.reason) == (False, why)
    index.set_cohort(cohort_of("b"))
    assert told(index).active


def test_a_cohorts_quota_of_nonsense_costs_its_flavor_and_is_told() -> None:
    problems = Problems()
    index = QueueIndex("east", problems)
    index.set_queue(in_cohort("all"))
    index.set_cohort(cohort_of("all", gpus={"nominalQuota": "many"}))
    assert told(index).cohorts == (CohortQuota(cohort="all"),)
    assert [(p.kind, p.name) for p in problems.take_new()] == [("cohorts", "all")]


def test_taints_that_a_flavor_tolerates_itself_or_that_keep_nobody_away_are_not_told() -> None:
    index = QueueIndex("east", Problems())
    index.set_queue(cluster_queue("gpus", spec=SPEC))
    taints = [
        {"key": "dear", "value": "yes", "effect": "NoSchedule"},
        {"key": "own", "effect": "NoExecute"},
        {"key": "slow", "effect": "PreferNoSchedule"},
        {"key": "new", "effect": "SomeDay"},
    ]
    own = [
        {"key": "own", "operator": "Exists"},
        {"key": "dear", "operator": "Equal", "value": "no"},
        {"operator": "Exists", "effect": "PreferNoSchedule"},
    ]
    spec = {"nodeTaints": taints, "tolerations": own}
    index.set_flavor(msgspec.convert({"metadata": {"name": "t4"}, "spec": spec}, ResourceFlavor))
    assert told(index).flavors[0].taints == (Taint(key="dear", value="yes"),)


def test_limits_and_when_the_next_flavor_is_tried_are_told() -> None:
    index = QueueIndex("east", Problems())
    resource = {"name": GPU, "nominalQuota": 8, "borrowingLimit": 2, "lendingLimit": "3"}
    group = {"flavors": [{"name": "t4", "resources": [resource]}]}
    fungibility = {"whenCanBorrow": "TryNextFlavor"}
    spec = {"cohortName": "all", "resourceGroups": [group], "flavorFungibility": fungibility}
    index.set_queue(cluster_queue("gpus", spec=spec))
    assert told(index).flavors == of_t4(8, borrowing_limit=2, lending_limit=3)
    assert told(index).prefers_own
    index.set_queue(cluster_queue("gpus", spec=SPEC))
    assert not told(index).prefers_own
