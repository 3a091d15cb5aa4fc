"""Stories of mode dispatch: from a Job made with kubectl to its end, and what can come between."""

import pytest
from msgspec.structs import replace

from berthmaster.hub.multikueue.core.deciding.steps import REPORT_S
from berthmaster.hub.multikueue.core.instructions import Nominate, SwitchOff
from berthmaster.lib.kueue.jobs import HubJob, JobStatus
from berthmaster.lib.lifecycle.fold import Verdict
from berthmaster.lib.messages.fleet import CopyReport
from berthmaster.lib.messages.workload import Cancelled, CancelRequested, Succeeded
from tests.unit.hub.multikueue.hub_objects import cluster, condition, config, copy_report, pods
from tests.unit.hub.multikueue.world import World


def test_a_job_made_with_kubectl_goes_to_the_roomiest_cluster_and_its_end_comes_back() -> None:
    world = World()
    world.worker("w1", free=2)
    world.worker("w2", free=8)
    world.worker("w3", free=4)
    world.begin()

    # Without quota on the hub it is known, and nothing is nominated: Kueue's own words say why.
    world.submit()
    world.settle()
    name = world.name()
    assert world.kinds(name) == ["submitted"]
    assert world.why(name) == "waits for quota on the hub: waiting in line"
    assert world.writes == []

    world.reserve()
    world.settle()
    assert world.kinds(name) == ["submitted", "placed w2", "claimed w2"]
    assert world.nominated() == ("w2",)
    (decision,) = world.decisions()
    (choice,) = decision.placements
    assert [r.cluster for r in choice.ranking] == ["w2", "w3", "w1"]
    assert (choice.cluster, choice.attempt, choice.filtered) == ("w2", 1, {})

    world.admit("train", "w2")
    world.settle()
    world.start()
    world.settle()
    assert world.why(name).startswith("running on w2, sent there by Berthmaster")
    world.finish("train")
    world.settle()
    assert world.kinds(name) == [
        "submitted",
        "placed w2",
        "claimed w2",
        "admitted w2",
        "running w2",
        "succeeded w2",
    ]
    assert len(world.writes) == 1  # one call for a whole life
    assert world.broken == []


def test_in_steady_state_nothing_is_written_again() -> None:
    world = World()
    world.all_workers()
    world.begin()
    world.submit()
    world.reserve()
    world.settle()
    assert len(world.writes) == 1
    world.fact("w1/copy", copy_report("w1"))
    world.wait(29.0)  # within its patience
    world.put(world.kueue())  # told again, unchanged
    world.settle()
    assert len(world.writes) == 1


def test_jobs_of_one_moment_are_spread_by_what_each_leaves_over() -> None:
    world = World()
    world.worker("w1", free=3)
    world.worker("w2", free=2)
    world.worker("w3", free=1)
    world.begin()
    for number in range(6):
        world.submit(f"j{number}")
        world.reserve(f"j{number}")
    world.settle()
    where = sorted(cluster for _, cluster in world.placements())
    assert where == ["w1", "w1", "w1", "w2", "w2", "w3"]


def test_the_cluster_with_the_most_available_gpus_is_taken_as_that_changes() -> None:
    world = World(workers=("w1", "w2"))
    world.worker("w1", free=6)
    world.worker("w2", free=4)
    world.begin()
    world.submit("first")
    world.reserve("first")
    world.settle()
    # Somebody takes five GPUs of w1 by other ways: the very next job goes to w2.
    world.worker("w1", free=1)
    world.submit("second")
    world.reserve("second")
    world.settle()
    world.worker("w2", free=0)
    world.worker("w1", free=8)
    world.submit("third")
    world.reserve("third")
    world.settle()
    assert [cluster for _, cluster in world.placements()] == ["w1", "w2", "w1"]


def test_a_worker_that_says_it_is_too_small_is_not_waited_for() -> None:
    world = World(workers=("w1", "w2"))
    world.worker("w1", free=8)
    world.worker("w2", free=4)
    world.begin()
    world.submit()
    world.reserve()
    world.settle()
    words = (
        "insufficient quota for nvidia.com/gpu in flavor default, request > maximum capacity (0)"
    )
    world.fact("copy", copy_report("w1", message=words))
    world.settle()
    assert world.nominated() == ("w2",)
    assert words in world.why(world.name())


def test_a_full_worker_is_not_waited_for_while_another_has_room() -> None:
    world = World(workers=("w1", "w2"))
    world.worker("w1", free=8)
    world.worker("w2", free=4)
    world.begin()
    world.submit()
    world.reserve()
    world.settle()
    words = "couldn't assign flavors: insufficient unused quota for nvidia.com/gpu, 1 more needed"
    world.fact("copy", copy_report("w1", message=words))
    world.settle()
    assert world.nominated() == ("w2",)


def test_an_eviction_by_the_worker_ends_the_attempt_and_it_is_nominated_anew() -> None:
    world = World(workers=("w1", "w2"))
    world.worker("w1", free=8)
    world.worker("w2", free=4)
    world.begin()
    world.submit()
    world.reserve()
    world.settle()
    world.admit("train", "w1")
    world.settle()
    world.start()
    world.settle()
    name = world.name()

    world.evict("train", "EvictedOnManagerCluster", "preempted there")
    world.settle()
    assert world.kinds(name)[-1] == "evicted w1"
    assert world.core.know.open[name].reason == "EvictedOnManagerCluster: preempted there"

    world.worker("w1", free=0)
    world.reserve()
    world.settle()
    assert world.kinds(name)[-2:] == ["placed w2", "claimed w2"]
    assert world.nominated() == ("w2",)


def test_quota_lost_before_admission_ends_the_attempt_too() -> None:
    world = World()
    world.all_workers()
    world.begin()
    world.submit()
    world.reserve()
    world.settle()
    world.evict("train", "Preempted", "by a job of higher priority")
    world.settle()
    assert world.kinds(world.name())[-1] == "evicted w1"
    assert "by a job of higher priority" in world.why(world.name())
    world.reserve()
    world.settle()
    assert world.nominated() == ("w1",)
    assert world.broken == []


def test_a_lost_worker_makes_the_next_run_doubtful() -> None:
    world = World()
    world.all_workers()
    world.begin()
    world.submit()
    world.reserve()
    world.settle()
    world.admit("train", "w1")
    world.settle()
    world.evict("train", "AdmissionCheck", "the remote cluster is lost")
    world.settle()
    reason = world.core.know.open[world.name()].reason
    assert reason.endswith("doubtful: the lost copy may still run there")


def test_a_cluster_that_joins_while_a_job_waits_is_tried() -> None:
    world = World(workers=("w1",))
    world.worker("w1", gpus=8)
    world.begin()
    world.submit(pod_sets=(pods(count=2, gpus=16),))
    world.reserve()
    world.settle()
    assert world.nominated() == ()
    name = world.name()
    assert "none of 1 clusters can take it" in world.why(name)

    world.workers.append("w2")
    world.put(cluster("w2"))
    world.put(config("w1", "w2"))
    world.worker("w2", gpus=32)
    world.wait(0.5)
    assert world.nominated() == ("w2",)


def test_a_conflict_is_tried_again() -> None:
    world = World()
    world.all_workers()
    refusals = [True, True]
    world.conflict = lambda _: bool(refusals) and refusals.pop()
    world.begin()
    world.submit()
    world.reserve()
    world.wait(3.0)
    assert world.nominated() == ("w1",)
    assert len([w for w in world.writes if isinstance(w, Nominate)]) == 3


def test_a_deleted_job_is_cancelled_on_the_bus() -> None:
    world = World()
    world.all_workers()
    world.begin()
    world.submit()
    world.reserve()
    world.settle()
    name = world.name()
    world.remove("train")
    world.settle()
    assert world.kinds(name)[-1] == "cancelled w1"
    assert world.log.folds[name].reason == "it was deleted on the hub"


@pytest.mark.parametrize("step", ["waits", "nominated", "runs"])
def test_a_job_that_is_deleted_before_its_workload_is_cancelled_and_has_not_failed(
    step: str,
) -> None:
    """Kueue first says Finished, and garbage collection takes the Workload later, or never."""
    world = World()
    world.all_workers()
    world.begin()
    world.submit()
    world.settle()
    if step != "waits":
        world.reserve()
        world.settle()
    if step == "runs":
        world.admit("train", "w1")
        world.start()
        world.settle()
    name = world.name()
    world.finish("train", "OwnerNotFound", "The Job is gone")
    world.settle()
    cancelled = "cancelled" if step == "waits" else "cancelled w1"
    assert world.kinds(name)[-1] == cancelled
    assert world.log.folds[name].reason == "it was deleted on the hub"
    world.remove("train")
    world.settle()
    assert world.kinds(name)[-1] == cancelled
    assert set(world.log.verdicts) == {Verdict.COUNTED}


@pytest.mark.parametrize("kueue", ["says that its owner is gone", "says nothing"])
@pytest.mark.parametrize(("end", "kind"), [("Complete", "succeeded"), ("Failed", "failed")])
def test_finish_job_deleted_at_its_end_counts_as_the_job_ended(
    kueue: str, end: str, kind: str
) -> None:
    """With a TTL of 0 the hub deletes a Job that has just ended, before Kueue has seen that."""
    world = World()
    world.all_workers()
    world.begin()
    world.submit()
    world.reserve()
    world.settle()
    world.admit("train", "w1")
    world.start()
    world.settle()
    name = world.name()
    job = world.hub["HubJob", "team", "train"]
    assert isinstance(job, HubJob)
    ended = JobStatus(conditions=(condition(end, True, end, "as the worker says"),))
    world.drop(replace(job, status=ended))
    if kueue == "says nothing":
        world.drop(world.kueue("train"))
    else:
        world.finish("train", "OwnerNotFound", "The Job is gone")
    world.settle()
    world.wait(REPORT_S + 1.0)
    assert world.kinds(name)[-1] == f"{kind} w1"
    assert "had ended when it was deleted" in world.log.folds[name].reason
    assert set(world.log.verdicts) == {Verdict.COUNTED}
    assert not world.core.hub.lives.ended_jobs


def test_a_job_deleted_while_nobody_looked_is_cancelled_after_the_start() -> None:
    world = World()
    world.all_workers()
    world.begin()
    world.submit()
    world.reserve()
    world.settle()
    name = world.name()
    for kind in ("KueueWorkload", "HubJob"):
        world.hub = {at: thing for at, thing in world.hub.items() if at[0] != kind}
    world.restart()
    world.settle()
    assert world.kinds(name)[-1] == "cancelled w1"


def test_a_wish_to_cancel_switches_the_workload_off_and_then_ends_it() -> None:
    world = World()
    world.all_workers()
    world.begin()
    world.submit()
    world.reserve()
    world.settle()
    world.admit("train", "w1")
    world.settle()
    name = world.name()
    bus = world.core.know.open[name]
    world.write_event(
        CancelRequested(
            tenant=bus.tenant, id=bus.id, after=bus.sequence, at_s=0, by="gateway", cluster="w1"
        )
    )
    world.settle()
    assert isinstance(world.writes[-1], SwitchOff)
    assert world.kinds(name)[-1] == "cancelrequested w1"  # its pods are not gone yet
    world.evict("train", "Deactivated", "The workload is deactivated")
    world.settle()
    assert world.kinds(name)[-1] == "cancelled w1"


def test_one_that_the_gateway_cancelled_while_it_waited_is_switched_off() -> None:
    world = World()
    world.begin()
    world.submit()
    world.settle()
    name = world.name()
    bus = world.core.know.open[name]
    world.write_event(
        Cancelled(
            tenant=bus.tenant,
            id=bus.id,
            after=bus.sequence,
            at_s=0,
            by="gateway",
            digest=bus.digest,
            submitted_at_s=bus.submitted_at_s,
        )
    )
    world.settle()
    assert [type(w) for w in world.writes] == [SwitchOff]
    world.wait(5.0)
    assert len(world.writes) == 1


def test_a_failed_job_fails_on_the_bus() -> None:
    world = World()
    world.all_workers()
    world.begin()
    world.submit()
    world.reserve()
    world.settle()
    world.admit("train", "w1")
    world.finish("train", "Failed", "BackoffLimitExceeded")
    world.settle()
    name = world.name()
    assert world.kinds(name)[-1] == "failed w1"
    assert world.log.folds[name].reason == "BackoffLimitExceeded"


def test_a_whole_life_that_nobody_watched_is_told_afterwards() -> None:
    world = World()
    world.all_workers()
    world.begin()
    world.submit()
    world.settle()
    # Now the reconciler is away; another dispatcher does its work.
    sleeping = world.core
    world.core = world._new()
    world.reserve()
    world.admit("train", "w3")
    world.finish("train")
    del sleeping
    world.restart()
    world.settle()
    assert world.kinds(world.name()) == ["submitted", "placed w3", "claimed w3", "succeeded w3"]


def test_workloads_that_had_ended_before_the_first_start_are_left_alone() -> None:
    world = World()
    world.submit()
    world.reserve()
    world.admit("train", "w1")
    world.finish("train")
    world.restart()
    world.settle()
    assert world.log.messages == []


def test_what_ended_well_while_nobody_looked_and_nobody_says_where_has_not_failed() -> None:
    world = World("observe")
    world.all_workers()
    world.begin()
    world.submit()
    world.settle()
    world.finish("train")
    world.settle()
    assert world.kinds(world.name()) == [
        "submitted",
        "placed unknown",
        "claimed unknown",
        "succeeded unknown",
    ]


def test_while_the_hub_is_away_patience_does_not_run_out() -> None:
    world = World(patience_s=4.0)
    world.all_workers()
    world.begin()
    world.submit()
    world.reserve()
    world.settle()
    assert world.nominated() == ("w1",)
    world.wait(2.0)
    world.core.hub.hears("no connection", world.now_s)
    world.wait(30.0)
    world.core.hub.hears("", world.now_s)
    world.wait(3.0)
    assert world.nominated() == ("w1",)  # Kueue has had three seconds, not thirty-five
    world.wait(4.0)
    assert world.nominated() == ("w2",)
    assert world.kinds(world.name())[-3:] == ["evicted w1", "placed w2", "claimed w2"]


def _ended_before_the_hub_named_a_cluster(*copies: CopyReport) -> tuple[list[str], str]:
    world = World()
    world.all_workers()
    world.begin()
    world.submit()
    world.settle()
    world.reserve()
    world.status(nominated_cluster_names=("w1", "w2"))  # by a dispatcher of Kueue's own
    name = world.name()
    for copy in copies:
        world.fact(f"{copy.cluster}/copy", copy)
        world.settle()
    world.finish("train")
    world.wait(REPORT_S + 1.0)
    last = world.log.story(name)[-1]
    assert isinstance(last, Succeeded)
    return world.kinds(name), last.reason


def test_what_ended_before_the_hub_named_its_cluster_is_told_where_its_copy_ran() -> None:
    kinds, reason = _ended_before_the_hub_named_a_cluster(copy_report("w1", admitted=True))
    assert kinds[-3:] == ["placed w1", "claimed w1", "succeeded w1"]
    assert reason == "Job finished"


def test_where_nobody_saw_a_copy_the_ending_says_that_its_place_is_not_known() -> None:
    kinds, reason = _ended_before_the_hub_named_a_cluster()
    assert kinds[-1] == "succeeded unknown"
    assert reason.startswith("Job finished (in one of w1, w2")
    assert reason.endswith("the hub does not say in which)")
