"""Jobs of Volcano's: what is made, when it is, and how its phases are read."""

from typing import Any

import pytest
from msgspec.structs import replace

from berthmaster.lib.jobs.gangs import GROUP, Gangs
from berthmaster.lib.jobs.kinds.job import JOB
from berthmaster.lib.jobs.kinds.job_set import JOB_SET
from berthmaster.lib.jobs.kinds.volcano_job import (
    VOLCANO_JOB,
    VolcanoJobObject,
    VolcanoState,
    VolcanoStatus,
)
from berthmaster.lib.jobs.objects import JobObject
from berthmaster.lib.kube import labels
from berthmaster.lib.kube.objects import Condition, Metadata
from berthmaster.lib.messages.workload import PodSet
from berthmaster.worker.executor.core.affinity import Offers
from berthmaster.worker.executor.core.attempt_status import SETTLE_S, Scene, standing
from berthmaster.worker.executor.core.cluster_protocol import (
    Attempt,
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
from berthmaster.worker.executor.core.manifest import Style, document, object_name
from berthmaster.worker.executor.core.objects import (
    GroupObject,
    GroupSpec,
    GroupStatus,
    PodObject,
)
from tests.unit.worker.executor.test_attempt_status import LATER, TRAIN, pod
from tests.unit.worker.executor.test_manifest import order

STYLE = Style(kinds=(JOB, JOB_SET, VOLCANO_JOB), volcano_queue="research", gangs=Gangs.VOLCANO)


def made(*sets: PodSet, left_s: int | None = None) -> Any:
    return document(order(*sets), left_s, Offers(), STYLE)


def test_each_pod_set_is_a_task_and_all_pods_of_all_tasks_are_one_gang() -> None:
    job = made(PodSet(name="a", count=2, gpus=1), PodSet(name="b"), left_s=90)
    name = job["metadata"]["name"]
    assert (job["apiVersion"], job["kind"]) == ("batch.volcano.sh/v1alpha1", "Job")
    assert GROUP not in job["metadata"]["annotations"]  # its controller makes one
    spec = job["spec"]
    tasks = spec.pop("tasks")
    assert spec == {
        "minAvailable": 3,
        "queue": "research",
        "schedulerName": "volcano",
        "maxRetry": 1,
        "policies": [{"events": ["PodFailed", "PodEvicted"], "action": "TerminateJob"}],
        "plugins": {"svc": ["--publish-not-ready-addresses=true", "--disable-network-policy=true"]},
    }
    shapes = [(each["name"], each["replicas"], each["minAvailable"]) for each in tasks]
    assert shapes == [("s0", 2, 2), ("s1", 1, 1)]
    pod_spec = tasks[0]["template"]["spec"]
    assert pod_spec["schedulerName"] == "volcano"
    assert pod_spec["activeDeadlineSeconds"] == 90
    assert pod_spec["subdomain"] == f"g-{name}"
    told = {each["name"]: each for each in pod_spec["containers"][0]["env"]}
    number = {"fieldRef": {"fieldPath": "metadata.annotations['volcano.sh/task-index']"}}
    assert told["JOB_COMPLETION_INDEX"]["valueFrom"] == number
    assert told["BERTH_POD_INDEX"]["valueFrom"] == number
    assert told["MASTER_ADDR"]["value"] == f"{name}-s0-0.g-{name}"
    assert told["BERTH_PEERS"]["value"] == f"{name}-s0-:2 {name}-s1-:1"


def test_a_pod_alone_is_numbered_too_and_needs_no_name() -> None:
    spec = made(PodSet(gpus=1))["spec"]
    assert "plugins" not in spec
    env = spec["tasks"][0]["template"]["spec"]["containers"][0]["env"]
    assert [each["name"] for each in env].count("JOB_COMPLETION_INDEX") == 1


def test_a_name_leaves_room_for_task_and_index_and_begins_with_a_letter() -> None:
    name = object_name(Attempt("acme", "7" * 52, 3), VOLCANO_JOB)
    assert name.startswith("j-777")
    assert len(f"{name}-s15-4095") <= 63
    assert object_name(TRAIN, VOLCANO_JOB) == object_name(TRAIN, JOB)


def test_volcano_s_number_makes_a_pod_one_of_its_set() -> None:
    known = {labels.TENANT: "acme", labels.WORKLOAD: "w", labels.ATTEMPT: "1"}
    whose = labels.identity(
        known | {labels.POD_SET: "main"}, {labels.VOLCANO_INDEX: "4", "other": "x"}
    )
    assert whose is not None
    assert whose.pod == "main-4"


# How it stands


def job(phase: str = "", message: str = "", *, leaving: bool = False) -> VolcanoJobObject:
    gone = LATER if leaving else None
    state = VolcanoState(phase=phase, message=message)
    meta = Metadata(name="train-1", deletion_timestamp=gone)
    return VolcanoJobObject(metadata=meta, status=VolcanoStatus(state=state))


def group(phase: str, why: str = "") -> GroupObject:
    told = Condition(type="Unschedulable", status="True", reason="NotEnough", message=why)
    return GroupObject(status=GroupStatus(phase=phase, conditions=(told,) if why else None))


def scene(found: JobObject | None, *pods: PodObject, **told: Any) -> Scene:
    there = {each.metadata.name: each for each in pods}
    fields = {"wanted": {"main": 2}, "kind": VOLCANO_JOB, **told}
    return Scene(attempt=TRAIN, job=found, pods=there, **fields)


def events(what: Scene, now_s: float = 100.0) -> list[Any]:
    standing(what, now_s)
    return standing(what, now_s + SETTLE_S).events


def test_what_its_queue_has_not_let_in_waits_in_the_cluster_s_own_queue() -> None:
    full = group("Pending", "queue research is full")
    waits = [PodsQueued(TRAIN), PodsWaiting(TRAIN, "queue research is full")]
    assert events(scene(job(), group=full)) == waits
    assert events(scene(job("Pending"), group=full)) == waits
    # Of one that waits it says nothing but in events.
    silent = replace(group("Pending"), spec=GroupSpec(queue="research"))
    silent = replace(silent, metadata=Metadata(name="train-1-0", namespace="team"))
    [_, waits] = events(scene(job("Pending"), group=silent))
    assert waits.reason == (
        "Volcano's queue research has not let it in: "
        "`kubectl describe podgroup -n team train-1-0` says why"
    )
    let_in = [PodsAdmitted(TRAIN), PodsWaiting(TRAIN, "2 of 2 pods are not made yet")]
    assert events(scene(job("Pending"), group=group("Inqueue"))) == let_in


def test_what_volcano_says_of_pods_that_find_no_node_is_told() -> None:
    unbound = replace(pod(0, "Pending"), spec=replace(pod().spec, node_name=""))
    why = "2/2 tasks in gang unschedulable"
    told = [PodsAdmitted(TRAIN), PodsWaiting(TRAIN, why)]
    assert events(scene(job("Pending"), unbound, group=group("Inqueue", why))) == told
    # The same of a Job of Kubernetes' whose group is Volcano's.
    of_group = scene(JobObject(), unbound, group=group("Inqueue", why), kind=JOB)
    assert events(of_group) == [PodsWaiting(TRAIN, why)]


def test_what_volcano_said_before_it_found_room_is_not_why_it_waits_now() -> None:
    # It leaves Unschedulable true and says Scheduled beside it.
    def told(type_: str, at: str) -> Condition:
        moment = f"2026-11-26T02:00:{at}Z"
        return Condition(type=type_, status="True", message=type_, last_transition_time=moment)

    def says(*conditions: Condition) -> str:
        return GroupObject(status=GroupStatus(phase="Inqueue", conditions=conditions)).waits_for

    lacks, found = told("Unschedulable", "07"), told("Scheduled", "09")
    assert says(lacks) == "Unschedulable"
    assert says(lacks, found) == says(found, lacks) == ""
    assert says(lacks, told("Scheduled", "07")) == ""  # of one second: which was first nobody knows
    assert says(told("Unschedulable", "11"), found) == "Unschedulable"  # a pod was taken away


@pytest.mark.parametrize("style", [STYLE, Style(gangs=Gangs.VOLCANO)])
def test_what_may_not_be_ended_for_another_tells_volcano_so(style: Style) -> None:
    def pods(*, preemptible: bool) -> list[Any]:
        asked = order(PodSet(count=2, gpus=1))
        request = replace(asked.request, preemptible=preemptible)
        spec = document(asked._replace(request=request), None, Offers(), style)["spec"]
        return [each["template"] for each in spec.get("tasks", [spec])]

    [kept], [other] = pods(preemptible=False), pods(preemptible=True)
    assert kept["metadata"]["annotations"]["volcano.sh/preemptable"] == "false"
    assert "volcano.sh/preemptable" not in other["metadata"].get("annotations", {})


def test_it_runs_when_all_its_pods_do_and_completes() -> None:
    running = events(scene(job("Running"), pod(0), pod(1)))
    assert [type(each) for each in running] == [PodsAdmitted, PodsWaiting, PodsRunning]
    ended = scene(job("Completed"), pod(0, "Succeeded", code=0), pod(1, "Succeeded", code=0))
    assert events(ended) == [PodsCompleted(TRAIN)]


@pytest.mark.parametrize("phase", ["Failed", "Terminated"])
def test_of_what_failed_the_pod_that_was_kept_says_why(phase: str) -> None:
    found = events(scene(job(phase), pod(0, "Failed", code=3, why="Error")))
    failed = PodsFailed(TRAIN, "pod main-0 exited with 3", 3, "exit", "n0")
    assert found == [failed, PodsGone(TRAIN)]


def test_while_it_is_terminated_the_verdict_is_known_and_the_end_is_waited_for() -> None:
    found = events(scene(job("Terminating"), pod(0, "Failed", code=3), pod(1, leaving=True)))
    assert [type(each) for each in found] == [PodsFailed, PodsWaiting]


def test_what_volcano_evicted_was_taken_away_through_no_fault_of_the_job() -> None:
    found = events(scene(job("Terminated", "preempted")))
    told = PodsRefused(TRAIN, "its pods were taken away: preempted", "evicted")
    assert found == [told, PodsGone(TRAIN)]


def test_what_volcano_takes_away_is_told_in_its_words_while_the_pod_is_there_to_say_them() -> None:
    # It deletes the pod, and terminates the Job once that is gone: then nobody knows why any more.
    why = "volcano: preempting to accommodate a higher priority pod"
    condition = Condition(
        type="DisruptionTarget", status="True", reason="PreemptionByScheduler", message=why
    )
    taken = pod(0, leaving=True)
    taken = replace(taken, status=replace(taken.status, conditions=(condition,)))
    told = PodsRefused(TRAIN, f"pod main-0: PreemptionByScheduler: {why}", "preempted", "n0")
    assert events(scene(job("Running"), taken, pod(1))) == [PodsAdmitted(TRAIN), told]
    stays = replace(taken, metadata=replace(taken.metadata, deletion_timestamp=None))
    assert told not in events(scene(job("Running"), stays, pod(1)))  # which nobody deletes yet


@pytest.mark.parametrize("phase", ["Aborting", "Aborted"])
def test_what_somebody_aborted_was_suspended(phase: str) -> None:
    told = PodsRefused(TRAIN, "somebody suspended its job object")
    assert events(scene(job(phase), pod(0))) == [told]


def test_a_pod_whose_time_was_over_before_anybody_looked_is_no_failure() -> None:
    late = scene(job("Terminated"), pod(0, "Failed", code=143), expires_s=90.0)
    assert events(late) == [PodsExpired(TRAIN)]


def test_what_we_stopped_is_gone_with_its_object() -> None:
    leaving = scene(job("Running", leaving=True), pod(0), stopped="not needed")
    assert [type(each) for each in events(leaving)] == [PodsWaiting]
    assert events(scene(None, stopped="not needed")) == [PodsGone(TRAIN, "not needed")]
