"""Profiles of attempts: from half minutes and events to what a user reads."""

import msgspec
import pytest

from berthmaster.control.usage.core.profiles import (
    LINGER_S,
    WRITE_EVERY_S,
    ProfileRecord,
    attempt_profile,
    like_profile,
    no_profile,
    profile_reply,
)
from berthmaster.control.usage.core.report import whose
from berthmaster.control.usage.core.usage import Progress, Usage
from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.profile import ProfileRequest, Results
from berthmaster.lib.messages.telemetry import GpuUse, HostUse, JobFigures
from berthmaster.lib.messages.workload import Progress as Step
from berthmaster.lib.messages.workload import Progressed
from tests.support.builders import node
from tests.unit.control.usage.stories import Story


def usage() -> Usage:
    found = Usage("owner")
    found.catalogue.take(node("c1", "n1", model="H100"))
    found.begin(Progress(0, 0, 0), [])
    return found


def tell(found: Usage, story: Story, since: int = 0, until: int | None = None) -> None:
    for one in story.events[since:until]:
        found.on_event(one.event, one.sequence, one.stored_at_s)


def window(
    counter: int,
    busy: float,
    *,
    job: str = "a",
    attempt: int = 1,
    epoch: int = 1,
    ended: bool = False,
    memory_max_percent: float | None = None,
) -> JobFigures:
    return JobFigures(
        cluster="c1",
        tenant="acme",
        id=job,
        attempt=attempt,
        epoch=epoch,
        counter=counter,
        observed_at_s=0.0,
        pods=1,
        ended=ended,
        use=GpuUse(
            gpus=2,
            measured=2,
            utilization_percent=busy,
            utilization_max_percent=busy,
            memory_max_percent=memory_max_percent,
        ),
        host=HostUse(pods=1, cpu_cores=2.0, memory_mib=4096.0),
    )


def progressed(story: Story, step: int, at_s: float, loss: float | None = None) -> Story:
    fields = story._head() | story._at()
    return story._store(Progressed(**fields, progress=Step(step=step, loss=loss)), at_s)


def running(job: str = "a") -> Story:
    return Story(job).submitted(0).placed(10).claimed(11).running(12)


def test_profile_of_an_attempt_holds_spreads_results_and_its_end() -> None:
    found, story = usage(), running()
    tell(found, story)
    for number in range(20):
        found.on_figures(window(number, 90.0 if number % 10 else 10.0), 30.0 * number + 40)
    done = len(story.events)
    progressed(story, 100, 100.0, 2.5)
    progressed(story, 400, 400.0, 1.5)
    story.succeeded(700)
    tell(found, story, done)
    found.on_figures(window(20, 90.0, ended=True), 705.0)  # the last one comes late

    (record,) = found.profiles.of("acme", "a")
    profile = attempt_profile(record)
    assert (profile.cluster, profile.end, profile.gpus, profile.pods) == ("c1", "succeeded", 2, 1)
    assert profile.measured_s == 21 * 30.0
    busy = profile.metrics["gpu_utilization_percent"]
    assert (busy.p50, busy.p95) == pytest.approx((90.0, 90.0), rel=0.01)
    assert busy.peak == 90.0
    assert profile.metrics["cpu_cores"].p50 == pytest.approx(2.0, rel=0.01)
    assert profile.bound_by == "compute"
    assert profile.results == Results(
        first_step=100, last_step=400, last_step_at_s=400.0, loss=1.5, steps_per_s=1.0
    )
    assert set(profile.stages) == {"startup", "steady"}


def test_messages_that_repeat_or_are_about_unknown_jobs_count_for_nothing() -> None:
    found = usage()
    tell(found, running())
    found.on_figures(window(3, 50.0), 40.0)
    found.on_figures(window(3, 99.0), 70.0)
    found.on_figures(window(2, 99.0), 70.0)
    found.on_figures(window(1, 99.0, epoch=0), 70.0)  # of an earlier life of the agent
    found.on_figures(msgspec.structs.replace(window(9, 99.0), window_s=1e9), 70.0)
    found.on_figures(window(1, 99.0, job="never-seen"), 70.0)
    (record,) = found.profiles.of("acme", "a")
    assert (record.measured_s, record.sketches["gpu_utilization_percent"].peak) == (30.0, 50.0)
    assert len(found.profiles) == 1


def test_profiles_are_written_now_and_then_and_once_more_when_they_end() -> None:
    found, story = usage(), running()
    tell(found, story)
    found.on_figures(window(1, 50.0), 40.0)
    profiles = found.profiles
    (record,) = profiles.take(WRITE_EVERY_S, 10)
    found.on_figures(window(2, 50.0), WRITE_EVERY_S)  # while it is being written
    profiles.wrote([record], WRITE_EVERY_S)
    assert profiles.take(WRITE_EVERY_S + 60, 10) == []
    assert profiles.take(2 * WRITE_EVERY_S, 10) == [record]
    profiles.wrote([record], 2 * WRITE_EVERY_S)
    tell(found, story.succeeded(700), len(story.events) - 1)
    assert profiles.take(701, 10) == [record]  # at once
    profiles.wrote([record], 701)
    profiles.forget(701 + LINGER_S / 2)
    assert profiles.knows("acme", "a")
    profiles.forget(702 + LINGER_S)
    assert (profiles.knows("acme", "a"), len(profiles)) == (False, 0)


def test_what_was_read_before_makes_no_profile_again() -> None:
    story = progressed(running(), 5, 20.0).succeeded(30)
    found = usage()
    found.begin(Progress(0, story.events[-1].sequence, 0), [])  # after a restart
    tell(found, story)
    assert found.profiles.of("acme", "a") == []


def test_a_profile_of_the_store_goes_on_after_a_restart() -> None:
    first = usage()
    tell(first, running())
    first.on_figures(window(1, 50.0), 40.0)
    stored = msgspec.msgpack.encode(first.profiles.of("acme", "a")[0])
    again = usage()
    again.profiles.restore([msgspec.msgpack.decode(stored, type=ProfileRecord)])
    tell(again, running())
    again.on_figures(window(1, 50.0, epoch=2), 100.0)
    assert again.profiles.of("acme", "a")[0].measured_s == 60.0


def test_gpu_out_of_memory_is_told_apart_by_the_kept_end_of_the_log() -> None:
    found, story = usage(), running()
    tell(found, story)
    found.on_figures(window(1, 50.0, memory_max_percent=99.0), 40.0)
    tell(found, story.failed(50, fault="exit"), len(story.events) - 1)
    profiles = found.profiles
    (record,) = profiles.log_ends_due(51.0)
    profiles.on_log_ends(record, [])  # it is not kept yet
    assert record.fault == "exit"
    assert profiles.log_ends_due(52.0) == []
    (record,) = profiles.log_ends_due(70.0)
    profiles.on_log_ends(record, [b"x RuntimeError: CUDA out of memory.\n"])
    assert (record.fault, record.evidence) == ("gpu_out_of_memory", ("log", "memory"))
    assert profiles.log_ends_due(1000.0) == []


def test_an_eviction_ends_one_attempt_and_the_next_has_its_own_profile() -> None:
    found = usage()
    story = running().evicted(40).placed(50).claimed(51).running(52)
    tell(found, story, until=4)
    found.on_figures(window(1, 50.0), 39.0)
    tell(found, story, since=4)
    found.on_figures(window(1, 80.0, attempt=2), 90.0)
    first, second = map(attempt_profile, found.profiles.of("acme", "a"))
    assert (first.attempt, first.end, second.attempt, second.end) == (1, "evicted", 2, "")


def test_likes_are_put_together_with_their_ends_and_causes() -> None:
    found = usage()
    for number, busy in enumerate((20.0, 90.0, 90.0)):
        story = running(f"job-{number}")
        tell(found, story)
        found.on_figures(window(1, busy, job=f"job-{number}"), 40.0)
        end = story.failed(50, fault="exit") if number == 0 else story.succeeded(50)
        tell(found, end, len(story.events) - 1)
    records = [found.profiles.of("acme", f"job-{number}")[0] for number in range(3)]
    like = like_profile("shape", records)
    assert (like.jobs, like.attempts, like.ends) == (3, 3, {"failed": 1, "succeeded": 2})
    assert like.faults == {"exit": 1}
    assert like.metrics["gpu_utilization_percent"].p50 == pytest.approx(90.0, rel=0.02)
    assert like.bound_by == "compute"


def test_a_tenant_asks_for_its_own_jobs_alone() -> None:
    assert whose("acme", ProfileRequest(id="a")) == "acme"
    assert whose(None, ProfileRequest(id="a", tenant="acme")) == "acme"
    for tenant, request, code in (
        ("acme", ProfileRequest(id="a", tenant="bob"), "forbidden"),
        (None, ProfileRequest(id="a"), "invalid"),
    ):
        refusal = whose(tenant, request)
        assert isinstance(refusal, Refusal)
        assert (refusal.code, refusal.field) == (code, "tenant")
    assert (no_profile("acme", "x").code, no_profile("acme", "x").field) == ("not_found", "id")


def test_a_job_of_which_nothing_was_measured_has_a_note() -> None:
    reply = profile_reply("acme", ProfileRequest(id="a"), [], [], "shape", [])
    assert (reply.attempts, reply.notes) == ((), ("nothing was measured of this job yet",))
