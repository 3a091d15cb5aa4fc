"""Black holes and traps: what Kueue leaves in silence is said in ``why``, event and metric."""

import msgspec
import pytest

from berthmaster.hub.multikueue.core.deciding.traps import (
    MISSING_QUEUE,
    NO_COPY,
    NOT_CLEARED,
    POISONED,
    REFUSED,
    STOPPED_QUEUE,
    STUCK_EVICTION,
    UNSCHEDULED,
)
from berthmaster.hub.multikueue.core.instructions import ForgetPods, Instruction, Nominate
from berthmaster.lib.kueue.jobs import HubJob, JobStatus
from berthmaster.lib.kueue.multikueue import Parameters
from berthmaster.lib.kueue.workloads import Admission
from berthmaster.lib.lifecycle.workload import Key
from berthmaster.lib.messages.control import Cordon
from berthmaster.lib.messages.fleet import CopyReport, LocalQueueReport
from tests.unit.hub.multikueue.hub_objects import (
    cluster,
    cluster_queue,
    condition,
    config,
    copy_report,
    job,
    local_queue,
    multikueue_check,
    pods,
    queue_report,
)
from tests.unit.hub.multikueue.world import World


def nominated_to_w1() -> World:
    world = World(workers=("w1",))
    world.worker("w1")
    world.begin()
    world.submit()
    world.reserve()
    world.settle()
    assert world.nominated() == ("w1",)
    return world


def told(world: World, reason: str) -> list[str]:
    return [tell.note for tell in world.told if tell.reason == reason and tell.warning]


def test_a_copy_that_runs_while_the_hub_does_not_know_is_told_loudly_with_its_cure() -> None:
    world = World(workers=("w1", "w2"))
    world.worker("w1", free=8)
    world.worker("w2", free=4)
    world.begin()
    world.submit()
    world.reserve()
    world.settle()
    world.fact("copy", copy_report("w1", quota_reserved=True, admitted=True))
    world.wait(4.0)
    assert told(world, NOT_CLEARED) == []  # Kueue gathers its writes for a second
    world.wait(2.0)
    (note,) = told(world, NOT_CLEARED)
    assert "hub.mode=dispatch of our chart" in note
    assert "restart" in note
    assert "hub.mode=dispatch of our chart" in world.why(world.name())
    assert world.core.trap_counts[NOT_CLEARED] == 1
    assert world.core.trapped[world.name()].kind == NOT_CLEARED

    # It runs on w1: nominating another cluster as well could run it twice.
    world.wait(120.0, step_s=2.0)
    assert world.nominated() == ("w1",)
    assert len(told(world, NOT_CLEARED)) == 1

    # A manager with the gate takes it over, and all is well again.
    world.admit("train", "w1")
    world.settle()
    assert world.core.trapped == {}
    assert world.kinds(world.name())[-1] == "admitted w1"


def test_a_workload_that_ends_kueue_s_manager_is_named_at_once_with_what_cures_it() -> None:
    world = nominated_to_w1()
    both = (condition("QuotaReserved"), condition("Evicted", True, "Preempted"))
    world.status(conditions=both, nominated_cluster_names=None)
    world.settle()
    (note,) = told(world, POISONED)
    meta = world.kueue("train").metadata
    assert "delete Job train, then take the finalizer off: kubectl -n team patch" in note
    assert f"patch workload {meta.name} --type merge" in note
    assert note in world.why(world.name())
    assert world.core.trap_counts[POISONED] == 1

    # With the admission that an eviction is about it is an eviction like any other.
    world.status(conditions=both, admission=Admission(cluster_queue="gpus"))
    world.settle()
    assert world.core.trapped == {}


def test_a_stopped_queue_swallows_in_silence_and_we_say_so() -> None:
    world = nominated_to_w1()
    world.fact("w1/queue", queue_report("w1", stopped=True))
    world.wait(5.0)
    words = "ClusterQueue worker-queue of w1 is stopped (stopPolicy Hold)"
    assert told(world, STOPPED_QUEUE) == [words]
    assert words in world.why(world.name())


def test_a_stopped_queue_is_called_so_and_not_what_it_shows_on_its_local_queue() -> None:
    world = nominated_to_w1()
    shown = LocalQueueReport(
        namespace="team",
        name="main",
        active=False,
        reason="ClusterQueueIsInactive: Can't submit new workloads to clusterQueue",
    )
    report = msgspec.structs.replace(
        queue_report("w1", stopped=True, active=False, reason="Stopped: is stopped"),
        stop_policy="HoldAndDrain",
        local_queues=(shown,),
    )
    world.fact("w1/queue", report)
    world.wait(5.0)
    assert told(world, STOPPED_QUEUE) == [
        "ClusterQueue worker-queue of w1 is stopped (stopPolicy HoldAndDrain)"
    ]
    # Only the door is shut.
    held = msgspec.structs.replace(shown, reason="Stopped: it is stopped", stopped="Hold")
    world.fact("w1/queue", msgspec.structs.replace(queue_report("w1"), local_queues=(held,)))
    world.wait(1.0)
    assert told(world, STOPPED_QUEUE)[1:] == ["LocalQueue main of w1 is stopped (stopPolicy Hold)"]


def test_a_stopped_queue_of_the_hub_is_called_so() -> None:
    world = World()
    world.all_workers()
    world.begin()
    world.submit()
    world.settle()
    queue = cluster_queue()
    spec = msgspec.structs.replace(queue.spec, stop_policy="Hold")
    world.put(msgspec.structs.replace(queue, spec=spec))
    world.settle()
    words = "waits: ClusterQueue hub-queue of the hub is stopped (stopPolicy Hold)"
    assert world.why(world.name()) == words
    world.put(queue)
    door = local_queue()
    spec_of_door = msgspec.structs.replace(door.spec, stop_policy="HoldAndDrain")
    world.put(msgspec.structs.replace(door, spec=spec_of_door))
    words = "waits: LocalQueue main of the hub is stopped (stopPolicy HoldAndDrain)"
    assert world.why(world.name()) == words


def test_what_kueue_rejects_is_deactivated_with_its_message() -> None:
    world = World()
    world.all_workers()
    world.begin()
    world.submit(kind="JobSet")
    world.reserve()
    world.settle()
    said = 'No multikueue adapter found for owner kind "jobset.x-k8s.io/v1alpha2, Kind=JobSet"'
    words = (
        'The workload is deactivated due to AdmissionCheck in Rejected state: "multikueue" '
        f"({said})"
    )
    evicted = condition("Evicted", True, "DeactivatedDueToAdmissionCheck", words)
    world.status(
        conditions=(condition("QuotaReserved", False, "Pending", words), evicted),
        nominated_cluster_names=None,
    )
    before = world.kueue()
    world.put(
        msgspec.structs.replace(before, spec=msgspec.structs.replace(before.spec, active=False))
    )
    world.settle()
    assert world.why(world.name()).startswith(f"deactivated: {words}")


def test_whoever_nominated_it_is_named() -> None:
    world = nominated_to_w1()
    world.admit("train", "w1")
    world.settle()
    assert world.why(world.name()) == "admitted on w1, sent there by Berthmaster"

    # Kueue named a cluster before we had chosen one: somebody else's nomination.
    other = World(workers=("w1",))
    other.worker("w1")
    other.begin()
    other.submit()
    other.admit("train", "w1")
    other.settle()
    theirs = "admitted on w1, sent there by a nomination that is not Berthmaster's"
    assert other.why(other.name()) == theirs

    # In mode observe the hub's Kueue chooses; that stays true when the mode is another.
    quiet = World("observe", workers=("w1",))
    quiet.worker("w1")
    quiet.begin()
    quiet.submit()
    quiet.admit("train", "w1")
    quiet.settle()
    theirs = "admitted on w1, sent there by the hub's Kueue"
    assert quiet.why(quiet.name()) == theirs
    quiet.restart("dispatch")
    quiet.settle()
    assert quiet.why(quiet.name()) == theirs


def test_a_queue_that_stops_is_left_at_once_for_another() -> None:
    world = World(workers=("w1", "w2"))
    world.worker("w1", free=8)
    world.worker("w2", free=4)
    world.begin()
    world.submit()
    world.reserve()
    world.settle()
    world.fact("w1/queue", queue_report("w1", stopped=True))
    world.wait(0.3)
    assert world.nominated() == ()
    world.wait(2.0)
    assert world.nominated() == ("w2",)


def test_a_cluster_that_has_let_it_in_is_not_left_whatever_becomes_of_it() -> None:
    """Its Job may start there at any moment."""
    world = World(workers=("w1", "w2"))
    world.worker("w1", free=8)
    world.worker("w2", free=4)
    world.begin()
    world.submit()
    world.reserve()
    world.settle()
    world.fact("copy", copy_report("w1", quota_reserved=True, admitted=True))
    world.set(Cordon(cluster="w1", cordoned=True))
    world.wait(60.0, step_s=2.0)
    assert world.nominated() == ("w1",)


def test_a_missing_local_queue_is_named_with_its_namespace() -> None:
    world = nominated_to_w1()
    world.fact("w1/queue", queue_report("w1", namespaces=("other",)))
    world.wait(5.0)
    (note,) = told(world, MISSING_QUEUE)
    assert note == "w1 has no LocalQueue team/main: make it, or its namespace"


def test_no_copy_after_a_while_points_at_the_manager() -> None:
    world = nominated_to_w1()
    world.wait(5.0)
    (note,) = told(world, NO_COPY)
    assert note == "w1 has no copy of it: does Kueue's manager on the hub reach it?"
    world.fact("copy", copy_report("w1", message="waiting for quota"))
    world.settle()
    assert world.core.trapped == {}


def test_a_worker_s_refusal_reaches_the_person_who_waits() -> None:
    world = nominated_to_w1()
    world.fact("copy", copy_report("w1", message="LocalQueue main doesn't exist"))
    world.wait(5.0)
    assert told(world, REFUSED) == ["w1 says: LocalQueue main doesn't exist"]
    assert "LocalQueue main doesn't exist" in world.why(world.name())


def test_each_cluster_that_is_left_out_carries_its_reason() -> None:
    world = World(workers=("gone", "stopped", "missing", "small", "silent", "mute", "fine"))
    for name in world.workers:
        world.worker(name)
    world.put(cluster("gone", active=False))
    world.fact("stopped/queue", queue_report("stopped", stopped=True))
    world.fact("missing/queue", queue_report("missing", namespaces=("other",)))
    world.fact("small/queue", queue_report("small", gpus=0))
    world.core.know.view.clusters.get("mute").queues = {}
    world.begin()
    world.submit()
    world.now_s += 11.0
    world.alive("stopped", "missing", "small", "mute", "fine")
    world.reserve()
    world.settle()
    (choice,) = world.decisions()[0].placements
    assert choice.cluster == "fine"
    assert choice.filtered == {
        "gone": "not active: BadKubeConfig: Secret w-kubeconfig not found",
        "stopped": "its ClusterQueue worker-queue is stopped (stopPolicy Hold)",
        "missing": "has no LocalQueue team/main",
        "small": "ClusterQueue worker-queue grants 0 nvidia.com/gpu at most, 1 are asked for",
        "silent": "silent",
        "mute": "reports no queues",
    }


def test_when_all_ranking_input_is_silent_the_configuration_s_order_counts_after_five_seconds() -> (
    None
):
    world = World(workers=("w1", "w2"))
    world.begin()
    world.submit()
    world.reserve()
    world.wait(4.0, heard=())
    assert world.nominated() == ()
    assert "nothing is known of its clusters" in world.why(world.name())
    world.wait(3.0, heard=())
    assert world.nominated() == ("w1",)
    (choice,) = world.decisions()[0].placements
    assert choice.filtered == {
        "w1": "nothing is known of its clusters: next in the configuration's order",
        "w2": "silent",
    }
    # And the next one after patience: we never are the reason for a standstill.
    world.wait(33.0, heard=())
    assert world.nominated() == ("w2",)


def test_a_check_without_parameters_says_what_is_wrong_and_the_rest_goes_on() -> None:
    world = World()
    world.all_workers()
    world.put(multikueue_check(Parameters()))
    world.begin()
    world.submit()
    world.reserve()
    world.wait(2.0)
    assert "must name a MultiKueueConfig" in world.why(world.name())
    assert told(world, "Misconfigured") != []
    assert world.nominated() == ()
    world.put(multikueue_check())
    world.settle()
    assert world.nominated() == ("w1",)


def test_a_selector_that_is_none_is_told_and_nothing_is_hidden_by_it() -> None:
    world = World()
    world.all_workers()
    world.put(local_queue(annotations={"berthmaster.io/cluster-selector": "a in"}))
    world.begin()
    world.submit()
    world.reserve()
    world.wait(2.0)
    (note,) = told(world, "Misconfigured")
    assert note.startswith("LocalQueue main: berthmaster.io/cluster-selector: selector part")


def test_a_workload_with_absurd_numbers_is_sent_all_the_same_and_said_to_be_unclear() -> None:
    world = World()
    world.all_workers()
    world.begin()
    many = [pods(name=f"set-{n}", gpus=0) for n in range(12)]
    world.submit(pod_sets=(*many, pods(name="odd", count=100_000, gpus="a few")))
    world.reserve()
    world.wait(2.0)
    (note,) = told(world, "Unclear")
    assert "pod set odd: 100000 pods, counted as 4096" in note
    assert "'a few' is no quantity" in note
    assert [w.cluster for w in world.writes if isinstance(w, Nominate)] == ["w1"]


def test_nobody_is_told_what_is_well_within_a_second() -> None:
    world = nominated_to_w1()
    world.admit("train", "w1")
    world.settle()
    assert [(t.warning, t.reason) for t in world.told] == [(False, "Nominated")]


def test_no_candidate_is_an_event_with_every_reason() -> None:
    world = World(workers=("w1", "w2"))
    world.worker("w1", namespaces=("other",))
    world.worker("w2", stopped=True)
    world.begin()
    world.submit()
    world.reserve()
    world.wait(3.0)
    (note,) = told(world, "NoCluster")
    assert note == (
        "no cluster can take it; left out: w1: has no LocalQueue team/main; "
        "w2: its ClusterQueue worker-queue is stopped (stopPolicy Hold)"
    )


def test_an_error_of_ours_about_one_workload_stops_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    world.all_workers()
    world.begin()
    for name in ("good", "odd"):
        world.submit(name)
    world.settle()
    plain = world.core._look

    def look(name: Key, now_s: float) -> list[Instruction]:
        if name == world.name("odd"):
            raise ValueError("an odd object")
        return plain(name, now_s)

    monkeypatch.setattr(world.core, "_look", look)
    for name in ("good", "odd"):
        world.reserve(name)
    world.settle()
    assert world.nominated("good") == ("w1",)
    assert "it cannot be handled: ValueError in test_traps.py, line" in world.why(world.name("odd"))
    (odd,) = world.core.aside.take_unreported()
    assert (odd.metadata.name, odd.event.reason) == ("job-odd", "CannotBeHandled")


def test_a_cluster_that_falls_silent_is_named_where_something_waits_or_runs() -> None:
    world = World(workers=("w1",))
    world.all_workers()
    world.begin()
    world.submit()
    world.reserve()
    world.settle()
    waits = "nominated to w1, not admitted there yet"
    assert world.why(world.name()) == waits
    world.wait(12.0, heard=())
    assert world.why(world.name()) == f"{waits} (w1 is silent for 12 s)"

    # It is admitted all the same, and speaks again: then falls silent while the job runs.
    world.admit("train", "w1")
    world.start()
    world.wait(1.0)
    runs = "running on w1, sent there by Berthmaster"
    assert world.why(world.name()) == runs
    world.wait(61.0, heard=())
    assert world.why(world.name()) == f"{runs} (w1 is silent for 61 s)"


def test_while_the_hub_is_not_heard_why_says_that_its_answer_may_be_old() -> None:
    world = World(workers=("w1",))
    world.all_workers()
    world.begin()
    world.submit()
    world.settle()
    said = world.why(world.name())
    world.core.hub.trouble = "no connection"
    assert world.why(world.name()) == f"{said}; what the hub shows may be old: no connection"
    world.core.hub.trouble = ""
    assert world.why(world.name()) == said


def test_an_eviction_that_cannot_end_is_told_with_what_helps() -> None:
    """The worker is lost, or somebody deleted the copy: the hub's Job counts a pod for ever."""
    world = World(workers=("w1",))
    world.all_workers()
    world.begin()
    world.submit()
    world.reserve()
    world.settle()
    world.admit("train", "w1")
    world.start()
    world.settle()
    world.evict("train", "AdmissionCheck", "Admitting remote no longer exists")
    world.wait(55.0)
    assert "StuckEviction" not in [tell.reason for tell in world.told]
    world.wait(10.0)
    (told,) = [tell for tell in world.told if tell.reason == "StuckEviction"]
    assert told.warning
    assert "delete the Job and make it again" in told.note
    assert f"stuck: {told.note}" in world.why(world.name())

    # The worker is back and says that its pods are gone: it is sent anew, and nothing is stuck.
    found = world.hub["HubJob", "team", "train"]
    assert isinstance(found, HubJob)
    world.put(msgspec.structs.replace(found, status=JobStatus()))
    world.reserve()
    world.settle()
    assert world.nominated() == ("w1",)
    assert "stuck" not in world.why(world.name())
    assert len([tell for tell in world.told if tell.reason == "StuckEviction"]) == 1


def stuck(*, copy_is_gone: bool = True, completed: int = 0) -> World:
    """Its copy went before the worker could say that its pods have gone."""
    world = World(workers=("w1", "w2"))
    world.all_workers()
    world.begin()
    world.submit()
    world.reserve()
    world.settle()
    world.fact("copy", copy_report("w1", admitted=True, quota_reserved=True))
    world.admit("train", "w1")
    world.put(job(runs=True))
    world.settle()
    conditions = (condition("QuotaReserved"), condition("Evicted", True, "AdmissionCheck"))
    world.status(conditions=conditions, cluster_name=None, admission=Admission())
    if copy_is_gone:
        world.fact("copy", copy_report("w1", gone=True, succeeded=completed))
    return world


def forgotten(world: World) -> int:
    return sum(isinstance(write, ForgetPods) for write in world.writes)


def test_pods_of_a_copy_that_is_surely_gone_are_forgotten_and_the_job_goes_on() -> None:
    world = stuck()
    world.wait(55.0, step_s=5.0)
    assert forgotten(world) == 0
    world.wait(15.0, step_s=5.0)
    assert forgotten(world) == 1
    world.wait(60.0, step_s=5.0)
    assert forgotten(world) == 1
    assert "stuck" not in world.why(world.name())


def test_pods_are_not_forgotten_while_somebody_may_have_them() -> None:
    world = stuck(copy_is_gone=False)
    world.wait(90.0, step_s=5.0)
    assert forgotten(world) == 0

    world = stuck()  # nothing is heard of the other worker
    world.wait(90.0, step_s=5.0, heard=("w1",))
    assert forgotten(world) == 0

    world = stuck()  # it was taken from the configuration, and its job runs on
    world.put(config("w2"))
    world.wait(90.0, step_s=5.0)
    assert forgotten(world) == 0
    assert "stuck" in world.why(world.name())


def test_pods_of_a_job_that_has_completed_are_not_forgotten_so_that_it_does_not_run_again() -> None:
    world = stuck(completed=1)
    world.wait(90.0, step_s=5.0)
    assert forgotten(world) == 0
    (note,) = told(world, STUCK_EVICTION)
    assert note.startswith("it has completed in w1, which deleted its Job before the hub read")
    assert "deploy/policies/ended-jobs.yaml" in world.why(world.name())


# Admitted, and no pod runs


def admitted_on_w1(*, active: int) -> World:
    world = nominated_to_w1()
    world.admit("train", "w1")
    found = world.hub["HubJob", "team", "train"]
    assert isinstance(found, HubJob)
    world.put(msgspec.structs.replace(found, status=JobStatus(active=active, ready=0)))
    world.settle()
    assert world.kinds(world.name())[-1] == "admitted w1"
    return world


def copy_without_a_node(pods: int, words: str) -> CopyReport:
    """Admitted there, and its pods wait."""
    return copy_report("w1", quota_reserved=True, admitted=True, unscheduled=pods, scheduler=words)


def test_admitted_and_no_pod_runs_is_told_in_the_schedulers_words() -> None:
    world = admitted_on_w1(active=1)
    words = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
    world.fact("copy", copy_without_a_node(1, words))
    world.wait(58.0, step_s=2.0)
    assert told(world, UNSCHEDULED) == []
    world.wait(4.0)
    (note,) = told(world, UNSCHEDULED)
    assert note == (
        "w1 has admitted it for 60 s and more, and no pod runs: its pod finds no node there, "
        f"says its scheduler: {words}"
    )
    assert words in world.why(world.name())
    assert world.core.trap_counts[UNSCHEDULED] == 1
    # The node comes.
    world.fact("copy", copy_report("w1", quota_reserved=True, admitted=True))
    world.start()
    world.settle()
    assert world.core.trapped == {}
    assert world.kinds(world.name())[-1] == "running w1"


def test_pods_that_have_a_node_are_starting_and_sit_in_no_trap() -> None:
    world = admitted_on_w1(active=1)
    world.fact("copy", copy_report("w1", quota_reserved=True, admitted=True))
    world.wait(120.0, step_s=2.0)
    assert told(world, UNSCHEDULED) == []
    # A cluster whose Job controller is dead makes none at all.
    world = admitted_on_w1(active=0)
    world.wait(62.0, step_s=2.0)
    (note,) = told(world, UNSCHEDULED)
    assert note.endswith("and no pod runs: none has been made there")


def test_how_long_it_waits_for_a_node_is_known_after_a_restart() -> None:
    world = admitted_on_w1(active=2)
    world.fact("copy", copy_without_a_node(2, "no nodes"))
    world.wait(40.0, step_s=2.0)
    world.restart()
    world.wait(21.0, step_s=1.0)
    (note,) = told(world, UNSCHEDULED)
    assert "2 pods find no node there, says its scheduler: no nodes" in note
