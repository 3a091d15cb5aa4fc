"""From stories to ended jobs: what each attempt held, from when to when."""

import msgspec
import pytest

from berthmaster.control.usage.core.gpus import Catalogue, Held, held
from berthmaster.control.usage.core.jobs import EndedJob, Use, with_use
from berthmaster.control.usage.core.usage import Progress, Usage
from berthmaster.lib.messages.fleet import Share
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.records import ArchivedStory
from berthmaster.lib.messages.telemetry import GpuUse, JobFigures
from berthmaster.lib.messages.workload import JobRequest, Placed, PodSet, Resized, ResizeRequested
from tests.support.builders import node
from tests.unit.control.usage.stories import Story


def usage() -> Usage:
    found = Usage("owner")
    for cluster, model in (("c1", "H100"), ("c2", "A100")):
        found.catalogue.take(node(cluster, "n1", model=model))
    found.begin(Progress(0, 0, 0), [])
    return found


def tell(found: Usage, story: Story, since: int = 0, until: int | None = None) -> None:
    for one in story.events[since:until]:
        found.on_event(one.event, one.sequence, one.stored_at_s)


def archive(
    found: Usage, story: Story, sequence: int, since: int = 0, until: int | None = None
) -> None:
    events = tuple(story.events[since:until])
    found.on_archived(ArchivedStory(tenant=story.tenant, id=story.id, events=events), sequence)


def holdings(job: EndedJob) -> list[tuple[int, str, str, int, int, int, str]]:
    return [
        (one.attempt, one.cluster, one.model, one.held_milli, one.from_ms, one.to_ms, one.end)
        for one in job.holdings
    ]


def test_each_attempt_has_its_own_time_and_place_by_log_and_archive_alike() -> None:
    story = Story("a", gpus=2, labels={"owner": "ann"}).submitted(10).placed(20).claimed(21)
    story.running(25).evicted(40).placed(60, "c2").claimed(61).running(65).failed(100)
    by_log = usage()
    tell(by_log, story, until=-1)
    # While it is open its beginning is read again after a restart.
    assert by_log.take() == ([], Progress(0, 8, 0))
    tell(by_log, story, since=-1)
    (job,), progress = by_log.take()
    assert progress == Progress(9, 9, 0)
    assert holdings(job) == [
        (1, "c1", "H100", 2000, 20_000, 40_000, "evicted"),
        (2, "c2", "A100", 2000, 60_000, 100_000, "failed"),
    ]
    assert (job.owner, job.evictions, job.attempts, job.model) == ("ann", 1, 2, "A100")
    assert (job.placed_ms, job.running_ms, job.ended_ms) == (20_000, 25_000, 100_000)

    by_archive = usage()
    archive(by_archive, story, 7, until=4)
    assert by_archive.take() == ([], Progress(0, 0, 6))  # a part is missing: read again from here
    archive(by_archive, story, 9, since=4)
    assert by_archive.take() == ([job], Progress(0, 0, 9))


def test_what_the_log_does_not_have_whole_is_left_to_the_archive() -> None:
    found = usage()
    tombstone = Story("old", sequence=5).ran(0, 10)
    tell(found, tombstone, since=-1)  # its story was archived long ago
    damaged = Story("gap", sequence=20).ran(0, 10)
    tell(found, damaged, until=2)
    tell(found, damaged, since=4)  # what lies between was lost
    assert found.take() == ([], Progress(24, 24, 0))
    assert (found.open_jobs, found.left_to_archive) == (0, 1)
    archive(found, damaged, 1)
    archive(found, tombstone, 2, since=2)  # its beginning never came
    assert [job.id for job in found.take()[0]] == ["gap"]
    assert found.incomplete == 1


def test_a_nomination_holds_nothing_before_kueue_admits() -> None:
    story = Story("h", hub="h1", owner="Job/x").submitted(0).placed(10, pods=False).claimed(10)
    story.admitted(100).running(110).succeeded(200)
    found = usage()
    tell(found, story)
    (job,), _ = found.take()
    assert holdings(job) == [(1, "c1", "H100", 2000, 100_000, 200_000, "succeeded")]
    assert (job.hub, job.owner) == ("h1", "Job/x")

    never = Story("n", hub="h1").submitted(0).placed(10, pods=False).claimed(10).failed(50)
    tell(found, never)
    assert [one.held_gpu_us for one in found.take()[0][0].holdings] == [0]


def test_a_part_of_a_gpu_holds_what_the_node_hands_out() -> None:
    pods = (PodBinding(pod="main-0", node="n1", gpus=(0,)),)

    def on(shares: tuple[Share, ...] = (), *, fractions: bool = True, **asked: object) -> Held:
        catalogue = Catalogue()
        report = node("c1", "n1", model="A100", memory_mib=40_000)
        catalogue.take(msgspec.structs.replace(report, shares=shares, fractions=fractions))
        pod_set = PodSet(gpus=1, **({"gpu_milli": 300} | asked))  # type: ignore[arg-type]
        (one,) = held(JobRequest(id="a", pod_sets=(pod_set,)), "c1", pods, catalogue)
        return one

    assert on() == Held("A100", 300, 300)
    assert on(gpu_memory_mib=20_000) == Held("A100", 300, 500)  # half of its memory
    assert on(fractions=False) == Held("A100", 300, 1000)
    slice_ = Share(resource="nvidia.com/mig-3g.20gb", milli=428, kind="mig", count=2)
    assert on((slice_,)).held_milli == 428
    assert on(gpu_milli=1000) == Held("A100", 1000, 1000)


def test_pods_that_nobody_names_and_nodes_that_nobody_knows() -> None:
    pods = PodSet(count=3, gpus=2, gpu_models=("H200",))
    request = JobRequest(id="a", pod_sets=(pods, PodSet(name="cpu", count=5)))
    known = (PodBinding(pod="main-0", node="gone", gpus=(0, 1)), PodBinding(pod="?", node="x"))
    assert held(request, "c9", known, Catalogue()) == (Held("H200", 6000, 6000),)
    assert held(JobRequest(id="b"), "c9", (), Catalogue()) == ()


@pytest.mark.parametrize(
    ("told", "measured_s", "used_s"),
    [
        (GpuUse(gpus=2, measured=2, utilization_percent=50.0), 2 * 60, 60),
        (GpuUse(gpus=2, measured=1, utilization_percent=100.0), 60, 60),  # of one of the two
        (GpuUse(gpus=2, measured=0), 0, 0),  # not measured is not idle
        (GpuUse(gpus=2, measured=2, utilization_percent=None), 0, 0),
    ],
)
def test_what_is_measured_is_kept_apart_from_what_is_not(
    told: GpuUse, measured_s: int, used_s: int
) -> None:
    found = usage()
    for counter in (1, 2):
        found.on_figures(figures(told, counter), 0.0)
    tell(found, Story("a").ran(0, 100))
    (job,), _ = found.take()
    (one,) = job.holdings
    assert (one.measured_gpu_us, one.used_gpu_us) == (measured_s * 10**6, used_s * 10**6)


def test_no_more_is_used_than_was_held_and_odd_figures_count_for_nothing() -> None:
    found = usage()
    busy = GpuUse(gpus=2, measured=2, utilization_percent=100.0)
    for counter in range(10):  # for five minutes, of an attempt of 100 s
        found.on_figures(figures(busy, counter), 0.0)
    for window_s in (0.0, -1.0, 1e9, float("nan")):
        found.on_figures(msgspec.structs.replace(figures(busy, 1), window_s=window_s), 0.0)
    tell(found, Story("a").ran(0, 100))
    (one,) = found.take()[0][0].holdings
    assert (one.measured_gpu_us, one.used_gpu_us) == (200 * 10**6, 200 * 10**6)


def test_last_figures_of_job_that_ended_are_kept_nowhere() -> None:
    found = usage()
    busy = GpuUse(gpus=2, measured=2, utilization_percent=100.0)
    tell(found, Story("a").ran(0, 100))
    found.on_figures(msgspec.structs.replace(figures(busy, 1), ended=True), 0.0)
    assert (found.take_uses(1.0), found._uses) == ([], {})


def test_sums_of_figures_fit_into_the_store() -> None:
    found = usage()
    absurd = GpuUse(gpus=1 << 20, measured=1 << 20, utilization_percent=100.0)
    for counter in range(20_000):
        told = msgspec.structs.replace(figures(absurd, counter), window_s=600.0)
        found.on_figures(told, 0.0)
    [one] = found.take_uses(1.0)
    assert max(one.use) < 1 << 63


def figures(told: GpuUse, counter: int) -> JobFigures:
    return JobFigures(
        cluster="c1", tenant="acme", id="a", attempt=1, epoch=1, counter=counter, observed_at_s=0.0,
        use=told,
    )  # fmt: skip


def test_what_was_measured_is_there_again_when_its_job_could_not_be_stored() -> None:
    found = usage()
    found.on_figures(figures(GpuUse(gpus=2, measured=2, utilization_percent=50.0), 1), 0.0)
    story = Story("a").ran(0, 100)
    tell(found, story)
    (first,), _ = found.take()
    found.begin(Progress(0, 0, 0), [])  # the store was away
    tell(found, story)
    assert found.take()[0] == [first]
    found.confirm()
    found.begin(Progress(0, 0, 0), [])
    tell(found, story)
    assert found.take()[0][0].holdings[0].measured_gpu_us == 0


def test_an_elastic_job_is_charged_for_the_pods_that_it_had_at_each_moment() -> None:
    story = Story("e", gpus=1)
    pods = msgspec.structs.replace(story.request.pod_sets[0], count=4, min_count=1, max_count=6)
    story.request = msgspec.structs.replace(story.request, pod_sets=(pods,))
    three = tuple(PodBinding(pod=f"main-{n}", node="n1", gpus=(n,)) for n in range(3))
    story.submitted(10)
    head = {"cluster": "c1", "attempt": 1}
    story._attempt, story._cluster = 1, "c1"
    placed = Placed(**story._head(), **head, pods=three, request=story.request, decision=1)  # type: ignore[arg-type]
    story._store(placed, 20)
    story.claimed(21).running(25)
    shrink = ResizeRequested(**story._head(), **head, pods=three[:1], reason="r", decision=2)  # type: ignore[arg-type]
    story._store(shrink, 40)
    story._store(Resized(**story._head(), **head, pods=three[:1]), 50)  # type: ignore[arg-type]
    grow = ResizeRequested(**story._head(), **head, pods=three[:2], reason="r", decision=3)  # type: ignore[arg-type]
    story._store(grow, 70)
    story._store(Resized(**story._head(), **head, pods=three[:2]), 75)  # type: ignore[arg-type]
    story.succeeded(100)
    found = usage()
    tell(found, story)
    (job,), _ = found.take()
    # What goes is held until it is gone, and what comes from when it is decided.
    assert holdings(job) == [
        (1, "c1", "H100", 3000, 20_000, 50_000, "succeeded"),
        (1, "c1", "H100", 1000, 50_000, 70_000, "succeeded"),
        (1, "c1", "H100", 2000, 70_000, 100_000, "succeeded"),
    ]
    # What was measured of the whole attempt is shared out by what was held.
    used = with_use(job, {1: Use(measured_ms=80_000, used_gpu_us=85_000_000)}).holdings
    assert [one.used_gpu_us for one in used] == [45_000_000, 10_000_000, 30_000_000]
    assert sum(one.measured_gpu_us for one in used) == 170_000_000
