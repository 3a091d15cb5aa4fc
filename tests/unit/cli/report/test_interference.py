"""Jobs on one GPU and whole GPUs that two jobs could share, from events and samples."""

from typing import Any

import pytest

from berthmaster.cli.report.interference import SharedGpu, interference_of
from berthmaster.lib.engine.scoring.interference import (
    Packable,
    may_share,
    pair_speed,
    pairs_that_share,
)
from berthmaster.lib.messages.api import GetReply, RecordedEvent, WorkloadView
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.telemetry import GpuUse, JobFigures
from berthmaster.lib.messages.workload import (
    Placed,
    PodSet,
    Progress,
    Progressed,
    Running,
)
from tests.support.builders import job


def running(
    name: str,
    busy: float | None,
    *,
    milli: int = 500,
    began_s: float = 0.0,
    lines: tuple[tuple[float, int], ...] = (),
    gpu: int = 0,
    used_mib: int = 1024,
) -> GetReply:
    """A running job with one GPU or a fraction. ``lines``: second and step of progress lines."""
    request = job(name, pod_sets=(PodSet(gpus=1, gpu_milli=milli),))
    head: dict[str, Any] = {"tenant": "t", "id": name, "after": 0, "at_s": 0.0, "by": "x"}
    head |= {"cluster": "c1", "attempt": 1}
    pods = (PodBinding(pod="main-0", node="n1", gpus=(gpu,)),)
    events: list[tuple[float, Any]] = [
        (began_s, Placed(**head, pods=pods, request=request, decision=1)),
        (began_s, Running(**head, pods=pods)),
        *((at_s, Progressed(**head, progress=Progress(step=step))) for at_s, step in lines),
    ]
    story = tuple(
        RecordedEvent(sequence=at, stored_at_s=at_s, event=event)
        for at, (at_s, event) in enumerate(events, start=1)
    )
    view = WorkloadView(tenant="t", id=name, state="running", attempt=1, cluster="c1")
    use = GpuUse(
        gpus=1,
        measured=1,
        utilization_percent=busy,
        memory_used_mib=used_mib,
        memory_total_mib=81_920,
    )
    figures = JobFigures(
        cluster="c1", tenant="t", id=name, attempt=1, epoch=1, counter=1, observed_at_s=1.0, use=use
    )
    return GetReply(workload=view, request=request, story=story, figures=(figures,))


def test_speed_falls_with_the_product_of_the_utilizations() -> None:
    assert pair_speed(0.1, 0.1) == 1.0
    assert pair_speed(0.9, 0.25) == pytest.approx(0.93)
    assert pair_speed(1.0, 1.0) == pytest.approx(0.62)
    assert may_share(0.9, 0.2)  # together 110 %
    assert not may_share(0.5, 0.5)  # together 100 %


def test_busiest_job_is_paired_with_the_busiest_that_it_may_share_with() -> None:
    jobs = {
        name: Packable("c1", busy, 0.1)
        for name, busy in zip("abcd", (0.4, 0.9, 0.2, 0.5), strict=True)
    }
    assert pairs_that_share(jobs) == [("b", "c"), ("d", "a")]


@pytest.mark.parametrize(
    ("place", "memory"), [("c2", 0.1), ("c1", 0.85)], ids=["elsewhere", "no memory"]
)
def test_jobs_in_two_places_or_without_memory_share_nothing(place: str, memory: float) -> None:
    jobs = {"a": Packable("c1", 0.2, 0.1), "b": Packable(place, 0.2, memory)}
    assert pairs_that_share(jobs) == []


def test_pair_on_one_gpu_is_measured_by_steps_before_and_after() -> None:
    first = running("a", 60.0, lines=((10.0, 0), (90.0, 80), (110.0, 90), (190.0, 138)))
    second = running("b", 30.0, began_s=100.0, lines=((110.0, 0), (150.0, 40)))
    [pair] = interference_of([first, second]).shared
    assert pair == SharedGpu(
        cluster="c1",
        node="n1",
        gpu=0,
        jobs=("a", "b"),
        utilizations=(0.6, 0.3),
        expected_speed=pair_speed(0.6, 0.3),
        speeds=(pytest.approx(0.6), None),  # type: ignore[arg-type]
        hurts=False,  # b is not known alone, and the utilizations are low
    )


def test_pair_with_busy_jobs_hurts_unless_measured_otherwise() -> None:
    steady = ((10.0, 0), (90.0, 80), (110.0, 100), (190.0, 180))
    unmeasured = interference_of([running("a", 80.0), running("b", 90.0)]).shared
    assert [pair.hurts for pair in unmeasured] == [True]
    late = running("b", 90.0, began_s=100.0, lines=((110.0, 0), (190.0, 80)))
    # a goes on as before, and b has no time alone: the utilizations decide.
    [pair] = interference_of([running("a", 80.0, lines=steady), late]).shared
    assert (pair.speeds, pair.hurts) == ((1.0, None), True)


def test_jobs_on_two_gpus_are_no_pair() -> None:
    assert interference_of([running("a", 80.0), running("b", 90.0, gpu=1)]).shared == ()


def test_calm_jobs_with_whole_gpus_could_share() -> None:
    jobs = [
        running("a", 80.0, milli=1000),
        running("b", 20.0, milli=1000, gpu=1),
        running("c", 90.0, milli=1000, gpu=2),
        running("d", None, milli=1000, gpu=3),
        running("e", 10.0, milli=1000, gpu=4, used_mib=81_000),
    ]
    found = interference_of(jobs)
    assert [pair.jobs for pair in found.could_share] == [("c", "b")]
    assert found.whole_gpu_jobs == 4
