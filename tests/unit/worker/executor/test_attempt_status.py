"""How an attempt stands, from its object and its pods: each way to end, and whose fault it was."""

from typing import Any

import pytest
from msgspec.structs import replace

from berthmaster.lib.jobs.kinds.job_set import JOB_SET
from berthmaster.lib.jobs.objects import JobObject, JobSpec, JobStatus, PodSpec
from berthmaster.lib.kube import labels
from berthmaster.lib.kube.objects import Condition, Metadata
from berthmaster.lib.kueue.workloads import Slices
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.worker.executor.core.attempt_status import PULL_S, SETTLE_S, Scene, standing
from berthmaster.worker.executor.core.cluster_protocol import (
    Attempt,
    PodEvent,
    PodsAdmitted,
    PodsCompleted,
    PodsExpired,
    PodsFailed,
    PodsGone,
    PodsQueued,
    PodsRefused,
    PodsRunning,
    PodsWaiting,
)
from berthmaster.worker.executor.core.objects import (
    ContainerState,
    ContainerStatus,
    DeviceHealth,
    DevicesHealth,
    KaiGroupObject,
    PodObject,
    PodStatus,
    Terminated,
    Waiting,
)

TRAIN = Attempt("acme", "train", 1)
LATER = "2026-11-21T12:00:09Z"
EARLIEST = "2026-11-21T12:00:01Z"
EARLIER = "2026-11-21T12:00:05Z"


def job(
    *conditions: str, reason: str = "", suspend: bool | None = None, **status: Any
) -> JobObject:
    made = tuple(Condition(type=c, status="True", reason=reason, message="m") for c in conditions)
    return JobObject(
        metadata=Metadata(name="train-1"),
        spec=JobSpec(suspend=suspend),
        status=JobStatus(conditions=made, **status),
    )


def pod(
    index: int = 0,
    phase: str = "Running",
    *,
    code: int | None = None,
    why: str = "",
    at: str = LATER,
    waiting: str = "",
    disrupted: str = "",
    leaving: bool = False,
    **status: Any,
) -> PodObject:
    known = {
        labels.TENANT: "acme",
        labels.WORKLOAD: "train",
        labels.ATTEMPT: "1",
        labels.POD_SET: "main",
        labels.INDEX: str(index),
    }
    state = ContainerState()
    if code is not None:
        state = ContainerState(terminated=Terminated(exit_code=code, reason=why, finished_at=at))
    elif waiting:
        state = ContainerState(waiting=Waiting(reason=waiting, message="no such image"))
    conditions = status.pop("conditions", ())
    if disrupted:
        conditions = (
            Condition(
                type="DisruptionTarget",
                status="True",
                reason=disrupted,
                message="drained",
                last_transition_time=EARLIER,
            ),
        )
    return PodObject(
        metadata=Metadata(
            name=f"train-1-{index}",
            labels=known,
            annotations={labels.GPUS: "3,1"} if index == 1 else {},
            deletion_timestamp=LATER if leaving else None,
        ),
        spec=PodSpec(node_name=f"n{index}"),
        status=PodStatus(
            phase=phase,
            conditions=conditions,
            container_statuses=(ContainerStatus(name="main", state=state),)
            if code is not None or waiting
            else (),
            **status,
        ),
    )


def scene(one: JobObject | None, *pods: PodObject, count: int = 2, **fields: Any) -> Scene:
    return Scene(
        attempt=TRAIN,
        wanted={"main": count},
        job=one,
        pods={each.metadata.name: each for each in pods},
        **fields,
    )


def told(one: Scene, now_s: float = 100.0) -> list[PodEvent]:
    return standing(one, now_s).events


def both(how: str = "Running") -> tuple[PodObject, PodObject]:
    return pod(0, how), pod(1, how)


def test_it_runs_when_all_pods_run_and_says_where_and_on_which_gpus() -> None:
    assert told(scene(job(), pod(0))) == [PodsWaiting(TRAIN, "1 of 2 pods are not made yet", 1)]
    assert told(scene(job(), pod(0), pod(1, "Pending"))) == [PodsWaiting(TRAIN, "")]
    where = (PodBinding(pod="main-0", node="n0"), PodBinding(pod="main-1", node="n1", gpus=(1, 3)))
    assert told(scene(job(), *both())) == [PodsWaiting(TRAIN, ""), PodsRunning(TRAIN, where)]
    # One that is done before the other began has run all the same.
    half = scene(job(), pod(0, "Succeeded"), pod(1))
    assert told(half) == [PodsWaiting(TRAIN, ""), PodsRunning(TRAIN, where)]


def test_hami_takes_other_gpus_than_were_chosen_and_it_says_which() -> None:
    one = pod(0)
    uuids = {("n0", "GPU-a"): 2, ("n0", "GPU-b"): 0}

    def gpus_of(text: str) -> tuple[int, ...]:
        annotations = one.metadata.annotations | {"hami.io/vgpu-devices-allocated": text}
        held = replace(one, metadata=replace(one.metadata, annotations=annotations))
        known = scene(job(), held, count=1, gpu_index=lambda node, uuid: uuids.get((node, uuid)))
        [_, running] = told(known)
        assert isinstance(running, PodsRunning)
        return running.pods[0].gpus

    assert gpus_of("GPU-a,NVIDIA,100,10:GPU-b,NVIDIA,100,10:;") == (0, 2)
    assert gpus_of("GPU-a,NVIDIA,100,10:GPU-c,NVIDIA,100,10:;") == ()  # one of them nobody knows
    assert gpus_of("") == ()


def test_it_says_how_hard_the_limit_of_its_part_of_a_gpu_is() -> None:
    held = pod(0)
    for told_by_pod, isolation in (("memory", "memory"), ("very", ""), ("", "")):
        annotations = held.metadata.annotations | {"berthmaster.io/isolation": told_by_pod}
        metadata = replace(held.metadata, annotations=annotations)
        [_, running] = told(scene(job(), replace(held, metadata=metadata), count=1))
        assert isinstance(running, PodsRunning)
        assert [pod.isolation for pod in running.pods] == [isolation]


def test_it_waits_for_room_and_says_what_the_scheduler_says() -> None:
    lack = Condition(
        type="PodScheduled",
        status="False",
        reason="Unschedulable",
        message="0/3 nodes are available",
    )
    waits = scene(job(), pod(0, "Pending", conditions=(lack,)), count=1)
    assert told(waits) == [PodsWaiting(TRAIN, "pod main-0: 0/3 nodes are available")]


def test_it_is_complete_only_when_its_controller_says_so_and_no_pod_is_left() -> None:
    assert not [e for e in told(scene(job(), *both("Succeeded"))) if isinstance(e, PodsCompleted)]
    [waits] = told(scene(job("Complete"), pod(0, "Succeeded"), pod(1)))
    assert isinstance(waits, PodsWaiting)
    assert told(scene(job("Complete"), *both("Succeeded"))) == [PodsCompleted(TRAIN)]
    assert told(scene(job("Completed"))) == [PodsCompleted(TRAIN)]  # a JobSet's word


@pytest.mark.parametrize(
    ("pods", "verdict"),
    [
        (
            [pod(0, "Failed", code=3, why="Error"), pod(1, "Failed", code=143, leaving=True)],
            PodsFailed(TRAIN, "pod main-0 exited with 3", 3, "exit", "n0"),
        ),
        (
            [
                pod(0, "Failed", code=2, at=LATER),
                pod(1, "Failed", code=137, why="OOMKilled", at=EARLIER),
            ],
            PodsFailed(TRAIN, "pod main-1 exited with 137 (OOMKilled)", 137, "out_of_memory", "n1"),
        ),
        (  # it was drained, and its peer crashed for want of it
            [
                pod(0, "Failed", code=143, disrupted="EvictionByEvictionAPI"),
                pod(1, "Failed", code=1),
            ],
            PodsRefused(TRAIN, "pod main-0: EvictionByEvictionAPI: drained", "evicted", "n0"),
        ),
        (  # it crashed before its peer was drained
            [pod(0, disrupted="DeletionByTaintManager"), pod(1, "Failed", code=1, at=EARLIEST)],
            PodsFailed(TRAIN, "pod main-1 exited with 1", 1, "exit", "n1"),
        ),
        (
            [pod(0, "Failed", reason="OutOfnvidia.com/gpu", message="0 left")],
            PodsRefused(
                TRAIN, "OutOfnvidia.com/gpu: pod main-0 on n0: 0 left", "not_started", "n0"
            ),
        ),
    ],
)
def test_whose_fault_it_was(pods: list[PodObject], verdict: PodEvent) -> None:
    failing = scene(job("FailureTarget", reason="BackoffLimitExceeded"), *pods)
    assert told(failing)[0] == verdict
    final = scene(job("Failed", reason="BackoffLimitExceeded"), *pods)
    if all(each.over for each in pods):
        assert told(final) == [verdict, PodsGone(TRAIN, "")]
    else:
        assert [type(e) for e in told(final)] == [type(verdict), PodsWaiting]


def test_pods_that_somebody_deletes_are_given_back_but_not_before_their_news_had_time() -> None:
    gone = scene(job("Failed", reason="BackoffLimitExceeded"))
    assert standing(gone, 100.0) == ([], SETTLE_S)
    assert told(gone, 100.0 + SETTLE_S) == [
        PodsRefused(TRAIN, "its pods were taken away: m"),
        PodsGone(TRAIN, ""),
    ]
    leaves = scene(job("Failed", reason="BackoffLimitExceeded"), pod(0, leaving=True))
    told(leaves, 100.0)
    assert told(leaves, 103.0)[0] == PodsRefused(TRAIN, "somebody deleted pod main-0", "evicted")
    # The pod whose failure was meant may be heard of late.
    late = scene(job("FailureTarget", reason="BackoffLimitExceeded"), pod(0), count=1)
    assert [type(e) for e in told(late)] == [PodsWaiting]
    late.pods = {"x": pod(0, "Failed", code=7)}
    assert told(late)[0] == PodsFailed(TRAIN, "pod main-0 exited with 7", 7, "exit", "n0")


KAI_TOOK = (
    "KAI took pods of it away: `kubectl describe podgroups.scheduling.run.ai -n team pg-train-1` "
    "says why"
)


def kai_group(evicted: str = "") -> KaiGroupObject:
    told = {"kai.scheduler/last-eviction-timestamp": evicted} if evicted else {}
    return KaiGroupObject(metadata=Metadata(name="pg-train-1", namespace="team", annotations=told))


def test_what_kai_takes_away_is_evicted_and_what_fails_for_want_of_it_has_not_failed() -> None:
    failed = job("Failed", reason="BackoffLimitExceeded")
    given_back = PodsRefused(TRAIN, KAI_TOOK, "evicted")
    gone = scene(failed, kai_group=kai_group(LATER))
    assert told(gone) == [given_back, PodsGone(TRAIN, "")]
    other = pod(1, "Failed", code=1, at=LATER)
    assert told(scene(failed, other, kai_group=kai_group(EARLIER)))[0] == given_back
    # KAI says so when its cycle ends, and the other has failed by then.
    late = scene(failed, pod(0, leaving=True), other, kai_group=kai_group())
    assert [type(e) for e in told(late, 100.0)] == [PodsWaiting]
    late.kai_group = kai_group(EARLIER)
    assert told(late, 101.0)[0] == given_back


@pytest.mark.parametrize("evicted", ["", LATER, "yesterday"])
def test_what_failed_before_kai_took_the_rest_away_has_failed_by_itself(evicted: str) -> None:
    failing = job("FailureTarget", reason="BackoffLimitExceeded")
    first = pod(1, "Failed", code=1, at=EARLIER)
    own = scene(failing, pod(0, leaving=True), first, kai_group=kai_group(evicted))
    told(own, 100.0)
    verdict = PodsFailed(TRAIN, "pod main-1 exited with 1", 1, "exit", "n1")
    assert told(own, 100.0 + SETTLE_S)[0] == verdict
    # One pod alone has nobody to wait for.
    alone = scene(failing, pod(0, "Failed", code=1), count=1, kai_group=kai_group())
    assert type(told(alone)[0]) is PodsFailed


def test_what_a_person_deletes_under_kai_is_told_as_elsewhere() -> None:
    failed = job("Failed", reason="BackoffLimitExceeded")
    deleted = scene(failed, pod(0, leaving=True), kai_group=kai_group())
    told(deleted, 100.0)
    verdict = told(deleted, 100.0 + SETTLE_S)[0]
    assert verdict == PodsRefused(TRAIN, "somebody deleted pod main-0", "evicted")


def test_its_deadline_is_over_when_no_pod_is_left() -> None:
    late = job("Failed", reason="DeadlineExceeded")
    assert [type(e) for e in told(scene(late, pod(0)))] == [PodsWaiting]
    assert told(scene(late, pod(0, "Failed"))) == [PodsExpired(TRAIN)]
    # A JobSet says only that a Job of it failed.
    of_set = scene(job("Failed", reason="FailedJobs"), kind=JOB_SET, expires_s=99.0)
    assert told(of_set) == [PodsExpired(TRAIN)]
    assert told(of_set, 99.0) == [PodsExpired(TRAIN)]
    assert told(of_set, 98.9) != [PodsExpired(TRAIN)]  # then it failed for another reason


def test_a_stop_is_over_when_the_controller_has_heard_and_no_pod_is_left() -> None:
    def stopped(one: JobObject, *pods: PodObject, **fields: Any) -> list[type]:
        return [type(e) for e in told(scene(one, *pods, stopped="typo", **fields))]

    halted = job("Suspended", suspend=True, active=0, terminating=0)
    assert stopped(job(suspend=True)) == [PodsWaiting]  # suspended, and nobody has noticed
    assert stopped(job("Suspended", suspend=True, active=1)) == [PodsWaiting]
    assert stopped(job("Suspended", suspend=True, terminating=1)) == [PodsWaiting]
    assert stopped(halted, pod(0, leaving=True)) == [PodsWaiting]
    assert stopped(halted, pod(0, "Failed")) == [PodsGone]
    assert stopped(halted, queued=True) == [PodsWaiting]  # only its absence counts
    assert told(scene(None, stopped="typo")) == [PodsGone(TRAIN, "typo")]
    assert told(scene(halted, stopped="deadline")) == [PodsExpired(TRAIN)]


def test_a_pod_on_a_lost_node_is_waited_for_and_that_is_said() -> None:
    lost = Condition(type="Ready", status="False", reason="NodeNotReady")
    there = pod(0, conditions=(lost,), leaving=True)
    [waits] = told(scene(job("Suspended", suspend=True), there, stopped="typo"))
    assert waits == PodsWaiting(
        TRAIN,
        "1 pods are not gone yet, such as main-0 on n0; if its node is lost, its pod stays until "
        "the node or a person says otherwise",
    )
    assert [type(e) for e in told(scene(None, there))] == [PodsWaiting]


def test_an_object_that_went_is_gone_when_the_news_of_its_pods_had_time() -> None:
    gone = scene(None, settles=True)
    assert standing(gone, 100.0) == ([], SETTLE_S)
    assert told(gone, 100.0 + SETTLE_S) == [PodsGone(TRAIN, "its job object was deleted")]


def test_what_others_do_to_the_object_gives_it_back() -> None:
    assert told(scene(job(suspend=True), *both())) == [
        PodsRefused(TRAIN, "somebody suspended its job object")
    ]
    leaving = JobObject(metadata=Metadata(name="train-1", deletion_timestamp=LATER))
    assert told(scene(leaving, *both())) == [PodsRefused(TRAIN, "somebody deletes its job object")]


def test_the_clusters_queue_holds_it_until_it_lets_it_in() -> None:
    assert told(scene(job(suspend=True), queued=True)) == [PodsQueued(TRAIN)]
    let_in = told(scene(job(suspend=False), *both(), queued=True))
    assert [type(e) for e in let_in] == [PodsAdmitted, PodsWaiting, PodsRunning]


def test_quota_is_lost_when_two_looks_in_a_row_say_so_whatever_is_heard_between_them() -> None:
    one = scene(job(suspend=False), *both(), queued=True, resizable=True)
    lost, kept = Slices(have_quota=False, waits=True), Slices(have_quota=True, waits=False)
    one.saw(lost)  # between two writes of Kueue's
    for now_s in (100.0, 104.0):
        assert PodsQueued(TRAIN) not in told(one, now_s)
    one.saw(kept)
    one.saw(lost)
    assert PodsQueued(TRAIN) not in told(one)
    one.saw(lost)
    assert told(one) == [PodsQueued(TRAIN)]
    one.saw(None)  # all of them are over: that says nothing
    assert PodsQueued(TRAIN) not in told(one)


def test_an_image_that_cannot_be_had_is_given_back_after_a_while_or_at_once() -> None:
    waits = scene(job(), pod(0, "Pending", waiting="ErrImagePull"), count=1)
    why = "pod main-0: ErrImagePull: no such image"
    assert standing(waits, 100.0) == ([PodsWaiting(TRAIN, why)], PULL_S)
    waits.pods = {"x": pod(0, "Pending", waiting="ImagePullBackOff")}  # the same trouble
    assert told(waits, 100.0 + PULL_S) == [
        PodsRefused(TRAIN, "pod main-0: ImagePullBackOff: no such image", "not_started", "n0")
    ]
    # It healed in between: its time begins anew.
    healed = scene(job(), pod(0, "Pending", waiting="ErrImagePull"), count=1)
    told(healed, 100.0)
    healed.pods = {"x": pod(0, "Pending")}
    told(healed, 120.0)
    healed.pods = {"x": pod(0, "Pending", waiting="ErrImagePull")}
    assert [type(e) for e in told(healed, 100.0 + PULL_S)] == [PodsWaiting]
    hopeless = scene(job(), pod(0, "Pending", waiting="InvalidImageName"), count=1)
    [refused] = told(hopeless)
    assert isinstance(refused, PodsRefused)
    # Nowhere will it start, and no node is to blame.
    assert (refused.hopeless, refused.node, refused.fault) == (True, "", "not_started")
    here = scene(job(), pod(0, "Pending", waiting="ErrImageNeverPull"), count=1)
    [refused] = told(here)
    assert isinstance(refused, PodsRefused)
    assert (refused.hopeless, refused.node) == (False, "n0")


def test_times_that_are_none_disturb_nobody() -> None:
    odd = scene(job("FailureTarget"), pod(0, "Failed", code=1, at="yesterday"), count=1)
    assert told(odd)[0] == PodsFailed(TRAIN, "pod main-0 exited with 1", 1, "exit", "n0")


def test_a_pod_whose_gpu_its_kubelet_calls_unhealthy_has_lost_it() -> None:
    failed = pod(0, "Failed", code=1, why="Error")
    [status] = failed.status.container_statuses or ()
    ill = DeviceHealth(resource_id="GPU-1", health="Unhealthy")
    devices = (ill, DeviceHealth(health="Healthy"))
    lost = replace(
        status,
        allocated_resources_status=(DevicesHealth(name="nvidia.com/gpu", resources=devices),),
    )
    failed = replace(failed, status=replace(failed.status, container_statuses=(lost,)))
    failing = scene(job("Failed", reason="BackoffLimitExceeded"), failed, count=1)
    why = "its node says that nvidia.com/gpu GPU-1 is unhealthy: pod main-0 exited with 1"
    assert told(failing)[0] == PodsRefused(TRAIN, why, "gpu_lost", "n0")
