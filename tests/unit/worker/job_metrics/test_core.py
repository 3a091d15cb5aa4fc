"""Pods, owners and readings in; figures, questions and what is written on Jobs out."""

import msgspec
import pytest
from msgspec.structs import replace

from berthmaster.lib.kube import labels
from berthmaster.lib.kube.controller.shell_contract import Answer, KubeEvent, Outcome
from berthmaster.lib.kube.objects import Condition, Metadata, OwnerReference
from berthmaster.lib.kube.resources import JOBS
from berthmaster.lib.messages.profile import Spread
from berthmaster.lib.messages.telemetry import GpuHolder, GpuReading, NodeTelemetry
from berthmaster.worker.job_metrics.core.figures import BUSY_REASON, IDLE_REASON, Figures
from berthmaster.worker.job_metrics.core.instructions import Annotate, FindOwner
from berthmaster.worker.job_metrics.core.meter import ENDED_S, Meter
from berthmaster.worker.job_metrics.core.notes import (
    BOUND_BY,
    IDLE,
    MARK,
    MEMORY,
    POWER,
    PROFILE,
    UTILIZATION,
)
from berthmaster.worker.job_metrics.core.objects import JobObject, JobStatus, PodObject, PodSpec

LIMIT_S = 60.0
OURS = {labels.TENANT: "acme", labels.WORKLOAD: "train", labels.ATTEMPT: "2", labels.POD: "main-0"}
TRAIN = OwnerReference(
    api_version="batch/v1", kind="Job", name="train-2", uid="j1", controller=True
)
SET = OwnerReference(api_version="jobset.x-k8s.io/v1alpha2", kind="JobSet", name="s", uid="s1")
FLOW = OwnerReference(api_version="argoproj.io/v1alpha1", kind="Workflow", name="w", uid="w1")


def core(namespaces: tuple[str, ...] = ("ml",)) -> Figures:
    meter = Meter("red", epoch=1, idle_percent=5.0, idle_limit_s=LIMIT_S)
    return Figures(meter, namespaces, annotate_s=300.0)


def pod(
    name: str = "p1", owner: OwnerReference | None = TRAIN, labels: dict[str, str] | None = None
) -> PodObject:
    return PodObject(
        metadata=Metadata(
            name=name,
            namespace="ml",
            uid=f"uid-{name}",
            labels=labels or {},
            owner_references=(owner,) if owner else (),
        ),
        spec=PodSpec(node_name="n1"),
    )


class Node:
    """The agent of one node, and the clock."""

    def __init__(self, figures: Figures) -> None:
        self.now_s = 0.0
        self._figures = figures
        self._counter = 0

    def tells(self, busy: float, *pods: str, memory_mib: int = 4_000) -> None:
        self._counter += 1
        gpus = tuple(
            GpuReading(
                index=index,
                uuid=f"GPU-{index}",
                model="T4",
                utilization_percent=busy,
                memory_used_mib=memory_mib,
                power_w=50.0,
                holders=(GpuHolder(namespace="ml", pod=name),),
            )
            for index, name in enumerate(pods)
        )
        told = NodeTelemetry(
            cluster="red",
            node="n1",
            epoch=1,
            counter=self._counter,
            observed_at_s=0.0,
            interval_s=1.0,
            source="nvml",
            gpus=gpus,
        )
        self._figures.on_node(told, self.now_s)
        self.now_s += 30.0


def acts(figures: Figures, now_s: float) -> list[FindOwner | Annotate | KubeEvent]:
    return list(figures.act(now_s))


def answer(figures: Figures, ask: object, *above: OwnerReference) -> None:
    assert isinstance(ask, FindOwner)
    metadata = Metadata(uid=ask.reference.uid, owner_references=above)
    assert list(figures.on_answer(ask, Answer(found=metadata), 0.0)) == []


def test_a_tenants_job_is_told_by_its_labels_and_its_owners_are_found_up_to_the_top() -> None:
    figures = core()
    node = Node(figures)
    figures.on_pod(pod(labels=OURS), gone=False)
    node.tells(50.0, "p1")
    (ask,) = acts(figures, 0.0)
    assert ask == FindOwner("ml", TRAIN)
    answer(figures, ask, SET)
    node.tells(50.0, "p1")
    (ask,) = acts(figures, 1.0)
    assert ask == FindOwner("ml", SET)
    answer(figures, ask, FLOW)
    node.tells(50.0, "p1")
    (ask,) = acts(figures, 2.0)
    # Nobody may read the last one: what refers to it has said what it is.
    assert isinstance(ask, FindOwner)
    denied = Answer(Outcome.DENIED, "Forbidden")
    assert list(figures.on_answer(ask, denied, 2.0)) == []
    node.tells(50.0, "p1")
    acts(figures, 200.0)
    (told,) = figures.take_told()
    assert (told.tenant, told.id, told.attempt) == ("acme", "train", 2)
    assert (told.kind, told.name, told.uid) == ("JobSet", "s", "s1")  # of its pod sets' Jobs
    assert told.owner is not None
    assert (told.owner.kind, told.owner.name, told.owner.jobs) == ("Workflow", "w", 1)


def test_a_question_without_an_answer_is_asked_again_and_only_once_at_a_time() -> None:
    figures = core()
    node = Node(figures)
    figures.on_pod(pod("p1"), gone=False)
    figures.on_pod(pod("p2"), gone=False)
    node.tells(50.0, "p1", "p2")
    (ask,) = acts(figures, 0.0)
    node.tells(50.0, "p1", "p2")
    assert acts(figures, 0.5) == []
    assert isinstance(ask, FindOwner)
    list(figures.on_answer(ask, Answer(Outcome.LATER), 2.0))
    node.tells(50.0, "p1", "p2")
    assert acts(figures, 0.6) == [ask]


def test_a_job_of_kubectl_is_told_by_what_owns_its_pods_and_a_pod_of_nobody_by_itself() -> None:
    figures = core()
    node = Node(figures)
    figures.on_pod(pod("p1"), gone=False)
    figures.on_pod(pod("p2", None), gone=False)
    node.tells(50.0, "p1", "p2")
    acts(figures, 30.0)
    assert [(one.tenant, one.kind, one.name) for one in figures.take_told()] == [
        ("", "Job", "train-2"),
        ("", "Pod", "p2"),
    ]


def test_annotations_are_written_sparingly_and_go_with_the_job() -> None:
    figures = core()
    node = Node(figures)
    figures.on_pod(pod(labels=OURS), gone=False)

    def written(busy: float, memory_mib: int = 4_000) -> list[Annotate]:
        node.tells(busy, "p1", memory_mib=memory_mib)
        return [one for one in acts(figures, node.now_s) if isinstance(one, Annotate)]

    first = Annotate(
        JOBS,
        "ml",
        "train-2",
        "j1",
        {UTILIZATION: "50", MEMORY: "4000", POWER: "50", IDLE: None, BOUND_BY: "input"},
        {MARK: "true"},
    )
    (found,) = written(50.0)
    told = dict(found.annotations)
    spreads = msgspec.json.decode(told.pop(PROFILE) or "", type=dict[str, Spread])
    assert found._replace(annotations=told) == first
    assert spreads["gpu_memory_used_mib"].peak == 4000.0
    assert spreads["gpu_utilization_percent"].p50 == pytest.approx(50.0, rel=0.02)
    assert [one for _ in range(9) for one in written(90.0)] == []  # less than 300 s ago
    (second,) = written(90.0)
    assert second.annotations[UTILIZATION] == "90"
    assert second.annotations[BOUND_BY] == "compute"
    assert [one for _ in range(12) for one in written(88.0)] == []  # hardly moved
    (third,) = written(88.0, memory_mib=8_000)
    assert third.annotations[MEMORY] == "8000"
    figures.on_pod(pod(labels=OURS), gone=True)
    acts(figures, node.now_s + 2)
    (gone,) = acts(figures, node.now_s + 2 + ENDED_S)
    assert isinstance(gone, Annotate)
    assert set(gone.annotations.values()) == set(gone.labels.values()) == {None}
    assert figures.take_told()[-1].ended


def test_what_an_earlier_life_wrote_on_a_job_that_has_ended_is_taken_away() -> None:
    figures = core()
    job = JobObject(metadata=Metadata(name="old", namespace="ml", uid="j9"))
    figures.on_job("Job", job, gone=False)
    assert acts(figures, 0.0) == []
    over = JobStatus(conditions=(Condition(type="Complete", status="True"),))
    figures.on_job("Job", replace(job, status=over), gone=False)
    (gone,) = acts(figures, 1.0)
    assert isinstance(gone, Annotate)
    assert (gone.name, set(gone.annotations.values())) == ("old", {None})
    assert acts(figures, 2.0) == []


def test_nothing_is_written_or_told_on_objects_of_other_namespaces() -> None:
    figures = core(namespaces=("other",))
    node = Node(figures)
    figures.on_pod(pod(labels=OURS), gone=False)
    for _ in range(5):
        node.tells(0.0, "p1")
        assert [one for one in acts(figures, node.now_s) if not isinstance(one, FindOwner)] == []
    assert figures.take_told()[-1].idle_for_long


def test_a_write_that_failed_is_tried_again() -> None:
    figures = core()
    node = Node(figures)
    figures.on_pod(pod(labels=OURS), gone=False)
    node.tells(50.0, "p1")
    (write,) = [one for one in acts(figures, node.now_s) if isinstance(one, Annotate)]
    list(figures.on_answer(write, Answer(Outcome.LATER), node.now_s))
    node.tells(50.0, "p1")
    assert [one for one in acts(figures, node.now_s) if isinstance(one, Annotate)] == [write]


def test_a_job_that_leaves_its_gpus_idle_is_told_once_and_when_it_is_busy_again() -> None:
    figures = core()
    node = Node(figures)
    figures.on_pod(pod(labels=OURS), gone=False)
    told: list[tuple[float, str]] = []
    notes: list[str | None] = []
    for busy in (50.0, 0.0, 0.0, 0.0, 0.0, 0.0, 80.0, 80.0):
        node.tells(busy, "p1")
        for one in acts(figures, node.now_s):
            if isinstance(one, KubeEvent):
                told.append((node.now_s, one.reason))
            if isinstance(one, Annotate):
                notes.append(one.annotations[IDLE])
        figures.take_told()
    assert told == [(90.0, IDLE_REASON), (210.0, BUSY_REASON)]
    assert notes == [None, "1970-01-01T00:00:30Z", None]
    assert figures.idle == 0
