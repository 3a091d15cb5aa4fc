"""Modes observe and order, requests that came over the bus, switching, being killed anywhere."""

import pytest

from berthmaster.hub.multikueue.core.instructions import DeleteJob, MakeJob, Nominate
from berthmaster.lib.accelerators.table import PRODUCT
from berthmaster.lib.kueue.jobs import job_name
from berthmaster.lib.lifecycle.fold import Verdict
from berthmaster.lib.lifecycle.instructions import Append, Refused
from berthmaster.lib.lifecycle.workload import Key, key
from berthmaster.lib.messages.control import QueuePlace, QueueSetting
from berthmaster.lib.messages.placement import MAIN_CELL
from berthmaster.lib.messages.workload import (
    CancelRequested,
    Dependency,
    JobRequest,
    Released,
    RunSpec,
)
from tests.support.builders import pod_set
from tests.unit.hub.multikueue.hub_objects import workload
from tests.unit.hub.multikueue.world import World, acted


def test_observe_writes_nothing_to_the_hub_and_shows_where_it_would_go() -> None:
    world = World("observe")
    world.worker("w1", free=2)
    world.worker("w2", free=8)
    world.worker("w3", free=4)
    world.begin()
    world.submit()
    world.reserve()
    world.settle()
    name = world.name()
    assert world.kinds(name) == ["submitted"]
    assert "in mode dispatch it would go to w2" in world.why(name)

    # Kueue's own dispatcher sends it to w1: placed is where it went, the ranking is ours.
    world.status("train", nominated_cluster_names=("w1", "w2", "w3"))
    world.settle()
    world.admit("train", "w1")
    world.settle()
    world.start()
    world.settle()
    (choice,) = world.decisions()[0].placements
    assert choice.cluster == "w1"
    assert [r.cluster for r in choice.ranking] == ["w1", "w2", "w3"]
    assert max(choice.ranking, key=lambda r: r.score).cluster == "w2"
    world.finish("train")
    world.settle()
    assert world.kinds(name)[1:] == [
        "placed w1",
        "claimed w1",
        "admitted w1",
        "running w1",
        "succeeded w1",
    ]
    assert (world.writes, world.told) == ([], [])


# Requests that came over the bus


HUB_QUEUE = QueueSetting(
    queue="main",
    via="hub",
    places={"hub": QueuePlace(namespace="team", service_account="runner", local_queue="main")},
)


def requested(world: World, models: tuple[str, ...] = (), **how: object) -> Key:
    request = JobRequest(
        id="train",
        queue="main",
        run=RunSpec(image="busybox", command=("sleep",), args=("1",)),
        pod_sets=(pod_set(count=2, gpu_models=models),),
        **how,  # type: ignore[arg-type]
    )
    world.asked_for(request)
    return key("acme", "train")


def kueue_makes_its_workload(world: World) -> str:
    made = job_name("acme", "train")
    world.put(workload(made))
    return made


def test_a_request_becomes_a_suspended_job_and_lives_as_one_made_with_kubectl() -> None:
    world = World()
    world.all_workers()
    world.set(HUB_QUEUE)
    world.begin()
    name = requested(world)
    world.settle()
    (make,) = world.writes
    assert isinstance(make, MakeJob)
    assert make.namespace == "team"
    body = make.manifest
    assert body["metadata"]["labels"] == {
        "berthmaster.io/tenant": "acme",
        "berthmaster.io/workload": "train",
        "kueue.x-k8s.io/queue-name": "main",
    }
    spec = body["spec"]
    assert (spec["suspend"], spec["managedBy"], spec["parallelism"]) == (
        True,
        "kueue.x-k8s.io/multikueue",
        2,
    )
    pod = spec["template"]["spec"]
    assert pod["serviceAccountName"] == "runner"
    assert "labels" not in spec["template"].get("metadata", {})
    assert pod["containers"][0]["resources"]["limits"] == {
        "memory": "1024Mi",
        "nvidia.com/gpu": "1",
    }
    assert "its Job" in world.why(name)

    made = kueue_makes_its_workload(world)
    world.reserve(made)
    world.settle()
    assert world.nominated(made) == ("w1",)
    world.admit(made, "w1")
    world.settle()
    world.finish(made)
    world.settle()
    assert world.kinds(name) == [
        "submitted",
        "placed w1",
        "claimed w1",
        "admitted w1",
        "succeeded w1",
    ]


def test_a_request_that_waits_for_another_gets_its_job_when_that_has_come_about() -> None:
    world = World()
    world.all_workers()
    world.set(HUB_QUEUE)
    world.begin()
    name = requested(world, depends_on=(Dependency(id="data"),))
    world.settle()
    assert world.writes == []
    assert "waits: for data to have succeeded; then its Job is made on the hub" in world.why(name)
    sequence = world.core.know.open[name].sequence
    common = {"tenant": "acme", "id": "train", "at_s": 1.0, "by": "gateway"}
    world.write_event(Released(**common, after=sequence))  # type: ignore[arg-type]
    world.settle()
    (make,) = world.writes
    assert isinstance(make, MakeJob)


def test_a_request_for_a_model_asks_nodes_for_it_as_their_labels_spell_it() -> None:
    world = World()
    world.worker("w1", labels={PRODUCT: "T4-SHARED"})
    world.worker("w2", labels={"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"})
    world.set(HUB_QUEUE)
    world.begin()
    requested(world, models=("Tesla-T4", "A100"))
    world.settle()
    (make,) = world.writes
    assert isinstance(make, MakeJob)
    affinity = make.manifest["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [term["matchExpressions"] for term in terms] == [
        [
            {
                "key": "cloud.google.com/gke-accelerator",
                "operator": "In",
                "values": ["nvidia-tesla-t4"],
            }
        ],
        [{"key": PRODUCT, "operator": "In", "values": ["T4-SHARED"]}],
    ]


def test_a_request_that_is_cancelled_has_its_job_deleted() -> None:
    world = World()
    world.all_workers()
    world.set(HUB_QUEUE)
    world.begin()
    name = requested(world)
    world.settle()
    made = kueue_makes_its_workload(world)
    world.reserve(made)
    world.settle()
    bus = world.core.know.open[name]
    world.write_event(
        CancelRequested(
            tenant=bus.tenant, id=bus.id, after=bus.sequence, at_s=0, by="gateway", cluster="w1"
        )
    )
    world.settle()
    assert isinstance(world.writes[-1], DeleteJob)
    assert world.kinds(name)[-1] == "cancelrequested w1"
    world.drop(world.kueue(made))
    world.settle()
    assert world.kinds(name)[-1] == "cancelled w1"


def test_a_request_without_an_image_fails_with_the_reason() -> None:
    world = World()
    world.begin()
    request = JobRequest(id="train", queue="main")
    world.asked_for(request)
    world.settle()
    name = key("acme", "train")
    assert world.kinds(name)[-1] == "failed"
    assert world.log.folds[name].reason.startswith("run.image is missing")
    assert world.writes == []


def test_workloads_of_other_cells_are_not_ours() -> None:
    world = World()
    world.begin()
    request = JobRequest(id="other")
    world.asked_for(request, cell=MAIN_CELL)
    world.settle()
    assert world.core.know.open == {}
    assert world.core.why("acme", "other", world.now_s) is None
    assert world.log.last == 1


# Switching and dying


@pytest.mark.parametrize("first", ["observe", "dispatch"])
@pytest.mark.parametrize("then", ["observe", "dispatch"])
def test_every_change_of_mode_leaves_what_runs_running(first: str, then: str) -> None:
    world = World(first)
    world.all_workers()
    world.begin()
    for name in ("waits", "runs", "goes"):
        world.submit(name)
        world.reserve(name)
    world.settle()
    world.admit("runs", "w1")
    world.settle()
    world.start("runs")
    world.settle()
    running, before = world.name("runs"), world.kueue("runs")
    told = len(world.writes)
    world.restart(then)
    world.wait(5.0)
    assert world.kueue("runs") == before
    assert world.kinds(running)[-1] == "running w1"
    later = [write for write in world.writes[told:] if isinstance(write, Nominate)]
    assert {world.core.policy.mode} == {then}
    if then != "dispatch":
        assert later == []
    for name in ("waits", "goes"):
        world.admit(name, "w2")
        world.settle()
        assert world.kinds(world.name(name))[-1] == "admitted w2"
    assert world.broken == []
    assert set(world.log.verdicts) == {Verdict.COUNTED}


def _life(world: World) -> list[str]:
    """The same life, whatever happens to the reconciler on the way."""
    world.settle()
    world.reserve()
    world.settle()
    if not world.nominated():
        world.wait(2.0)
    world.admit("train", world.nominated()[0])
    world.settle()
    world.start()
    world.settle()
    world.finish("train")
    world.settle()
    return world.kinds(world.name())


@pytest.mark.parametrize("step", range(12))
@pytest.mark.parametrize("after", ["before the write", "after the write"])
def test_killed_at_any_step_it_goes_on_where_it_was(step: int, after: str) -> None:
    """The process dies around its n-th write; the next one sees log and lists, and nothing else."""
    world = World()
    world.all_workers()
    world.begin()
    world.submit()
    left = [step]
    plain = world.perform

    def perform(instruction: object) -> None:
        left[0] -= 1
        if left[0] == -1:
            if after == "after the write":
                plain(instruction)  # type: ignore[arg-type]
            world.restart()
            return
        plain(instruction)  # type: ignore[arg-type]

    world.perform = perform  # type: ignore[method-assign]
    kinds = _life(world)
    assert kinds == [
        "submitted",
        "placed w1",
        "claimed w1",
        "admitted w1",
        "running w1",
        "succeeded w1",
    ]
    assert set(world.log.verdicts) == {Verdict.COUNTED}
    assert len(world.decisions()) == 1
    assert world.broken == []


def test_killed_between_the_commit_and_its_fold_it_decides_nothing_twice() -> None:
    world = World()
    world.all_workers()
    world.begin()
    world.submit()
    world.settle()
    world.reserve()
    world.fold()
    for instruction in acted(world.core, world.now_s):
        world.perform(instruction)
    plan = world.core.decide(world.now_s)
    assert plan is not None
    world.log.commit(plan.decision, plan.events, world.now_s)
    world.restart()
    world.settle()
    assert world.kinds(world.name()) == ["submitted", "placed w1", "claimed w1"]
    assert len(world.decisions()) == 1


def test_two_replicas_that_both_act_for_a_moment_harm_nothing() -> None:
    """A lease keeps the peace; guards and resource versions keep it safe without."""
    world = World()
    world.all_workers()
    world.begin()
    other = world._new()
    for fact, sequence, at_s in world.fleet.values():
        other.on_fact(fact, sequence, at_s)
    for thing in world.hub.values():
        other.on_object(thing)
    other.hub.complete = True
    other.begin()
    world.submit()
    world.reserve()
    for name in ("HubJob", "KueueWorkload"):
        for at, thing in world.hub.items():
            if at[0] == name:
                other.on_object(thing)
    mine = acted(world.core, world.now_s)
    theirs = acted(other, world.now_s)
    assert len(mine) == len(theirs) == 1  # both want it submitted
    for instruction in (*mine, *theirs):
        world.perform(instruction)
    world.settle()
    assert world.kinds(world.name()) == ["submitted", "placed w1", "claimed w1"]
    assert set(world.log.verdicts) == {Verdict.COUNTED}


def test_an_id_that_the_log_will_not_give_is_asked_for_less_and_less_often() -> None:
    """Its story may be one that this reader no longer knows: no busy loop comes of that."""
    world = World()
    world.begin()
    asked = []

    def refuse(instruction: object) -> None:
        assert isinstance(instruction, Append)
        asked.append(world.now_s)
        world.core.on_appended(instruction.ref, Refused(7), world.now_s)

    world.perform = refuse  # type: ignore[method-assign]
    world.submit()
    world.wait(120.0, step_s=0.5)
    assert 5 < len(asked) < 15
    assert asked[-1] - asked[-2] > 25.0
