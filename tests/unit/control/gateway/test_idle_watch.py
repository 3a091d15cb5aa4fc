"""Which jobs the log is told to be idle, and which samples never count."""

from typing import Any

from berthmaster.control.gateway.core.events import CaughtUp, FiguresHeard, Logged, QueueSet, Tick
from berthmaster.control.gateway.core.gateway import Gateway
from berthmaster.lib.lifecycle.instructions import Answered, Append, Stored
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.telemetry import GpuUse, JobFigures
from berthmaster.lib.messages.workload import (
    IdleChanged,
    PodSet,
    Progress,
    Progressed,
    Running,
    WorkloadEvent,
)
from tests.unit.control.gateway.stories import BY, claimed, fresh, job, log, placed, submitted

HOUR_S = 3600.0


class Story:
    """One running job of 2 GPUs in queue research, and a gateway that hears its figures."""

    def __init__(self, **setting: Any) -> None:
        self.gateway: Gateway = fresh()
        self.now_s = 1000.0
        self.sequence = 20
        self.said: list[IdleChanged] = []
        fields = {"idle_after_s": HOUR_S} | setting
        queue = QueueSetting(queue="research", **fields)
        self.gateway.handle(QueueSet(setting=queue, sequence=9), self.now_s)
        a = job("a", queue="research", pod_sets=(PodSet(gpus=2),))
        log(self.gateway, submitted(a), placed(a, 1), claimed(a, 2))
        pods = (PodBinding(pod="main-0", node="n1", gpus=(0, 1)),)
        last = self.gateway.view.find("ann", "a")
        assert last is not None
        self.after = last.sequence
        self.cluster = last.cluster
        self.log(Running, pods=pods)
        self.gateway.handle(CaughtUp(), self.now_s)

    def log(self, kind: Any, **fields: Any) -> None:
        """The log has one more event of the job."""
        head = {"tenant": "ann", "id": "a", "at_s": self.now_s, "by": BY}
        here = {"cluster": self.cluster, "attempt": 1, "after": self.after}
        self.store(kind(**head, **here, **fields))

    def store(self, event: WorkloadEvent) -> None:
        self.sequence += 1
        logged = Logged(event=event, sequence=self.sequence, stored_at_s=self.now_s)
        self.gateway.handle(logged, self.now_s)
        self.after = self.sequence

    def play(self, seconds: float, percent: float | None = 1.0, **fields: Any) -> None:
        """The cluster measures for so long, twice a minute; what is appended is stored."""
        for _ in range(round(seconds / 30)):
            self.now_s += 30.0
            if percent is not None:
                self.hear(percent, **fields)
            for step in self.gateway.handle(Tick(), self.now_s):
                assert isinstance(step, Append), step
                assert isinstance(step.event, IdleChanged), step
                self.said.append(step.event)
                self.store(step.event)
                self.gateway.handle(
                    Answered(ref=step.ref, outcome=Stored(self.sequence)), self.now_s
                )

    def hear(self, percent: float, **fields: Any) -> None:
        use = GpuUse(
            gpus=2, measured=2, utilization_percent=percent, utilization_max_percent=percent
        )
        told: dict[str, Any] = {
            "cluster": self.cluster,
            "tenant": "ann",
            "id": "a",
            "attempt": 1,
            "epoch": 1,
            "counter": 1,
            "observed_at_s": 0.0,  # the cluster's own clock: it counts for nothing
            "pods": 1,
            "use": use,
        }
        self.gateway.handle(FiguresHeard(figures=JobFigures(**(told | fields))), self.now_s)

    def verdicts(self) -> list[tuple[float, bool, str]]:
        """When what was said, in seconds since the job ran."""
        return [(event.at_s - 1000.0, event.idle, event.reason) for event in self.said]


def test_idle_job_is_reported_once_and_again_when_it_works() -> None:
    story = Story()
    story.play(HOUR_S - 30)
    assert story.verdicts() == []
    story.play(2 * HOUR_S)
    (said,) = story.said
    assert (said.idle, said.since_s, said.utilization_percent) == (True, 1000.0, 1.0)
    assert story.gateway.idle_jobs == 1
    story.play(30, 80.0)
    assert story.verdicts()[1:] == [(3 * HOUR_S, False, "its GPUs work again")]
    assert story.gateway.idle_jobs == 0


def test_verdict_is_renewed_only_where_the_queue_acts() -> None:
    story = Story(idle_then="hold")
    story.play(2 * HOUR_S)
    at_s = [at_s for at_s, idle, _ in story.verdicts() if idle]
    assert at_s == [HOUR_S + 600.0 * n for n in range(7)]
    assert {said.since_s for said in story.said} == {1000.0}


def test_samples_that_prove_nothing_begin_the_time_again() -> None:
    use = GpuUse(gpus=2, measured=1, utilization_percent=1.0, utilization_max_percent=1.0)
    fewer = GpuUse(gpus=0, measured=0)
    samples: list[dict[str, Any]] = [
        {"percent": 60.0},
        {"disagreements": ("two agents tell of node n1",)},
        {"use": use},
        {"use": fewer},
        {"pods": 0},
        {"window_s": 400.0},
    ]
    for sample in samples:
        story = Story()
        story.play(HOUR_S - 60)
        story.play(30, **sample)
        story.play(HOUR_S - 30)
        assert story.said == [], sample
        story.play(30)
        assert [said.idle for said in story.said] == [True], sample


def test_silence_never_counts_as_idle_and_takes_a_verdict_back() -> None:
    story = Story()
    story.play(HOUR_S - 60)
    story.play(150, None)
    story.play(HOUR_S - 30)
    assert story.said == []
    story.play(60)
    story.play(150, None)
    assert [said.idle for said in story.said] == [True, False]
    assert story.said[1].reason == "not all of its GPUs are measured any more"


def test_progress_of_the_job_outweighs_what_is_measured() -> None:
    story = Story()
    story.play(HOUR_S - 60)
    story.log(Progressed, progress=Progress(step=7))
    story.play(HOUR_S - 30)
    assert story.said == []
    story.play(60)
    assert [said.since_s for said in story.said] == [1000.0 + HOUR_S - 60]
    # Progress after the verdict ends it by itself.
    story.log(Progressed, progress=Progress(step=8))
    assert story.gateway.idle_jobs == 0


def test_figures_of_others_change_nothing() -> None:
    story = Story()
    for fields in ({"attempt": 2}, {"cluster": "elsewhere"}, {"id": "b"}, {"tenant": ""}):
        story.play(HOUR_S + 60, **fields)
    assert story.said == []
    quiet = Story(idle_after_s=None)
    quiet.play(2 * HOUR_S)
    assert quiet.said == []
