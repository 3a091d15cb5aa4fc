"""Trials of a job: submitted by the gateway, followed to their ends, and reported to their job."""

from typing import Any

import msgspec
import pytest

from berthmaster.control.gateway.core.events import (
    CaughtUp,
    Logged,
    StoryRead,
    Tick,
    UnreadableEvent,
)
from berthmaster.control.gateway.core.gateway import Gateway
from berthmaster.control.gateway.core.instructions import Instruction, ReadStory
from berthmaster.control.gateway.core.trial_watch import MOST_TRYING, likeness_of
from berthmaster.lib.lifecycle.fold import fold_history
from berthmaster.lib.lifecycle.instructions import Answered, Append, Reload, Reloaded, Reply, Stored
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.api import ListReply, RecordedEvent
from berthmaster.lib.messages.workload import (
    TRIAL_PRIORITY,
    Evicted,
    Failed,
    Held,
    HoldReleased,
    JobRequest,
    PodSet,
    Progress,
    Progressed,
    RunSpec,
    Trial,
    TrialConfiguration,
    WorkloadEvent,
)
from tests.unit.control.gateway.stories import (
    ask,
    cancelled,
    claimed,
    fresh,
    job,
    placed,
    running,
    submitted,
    succeeded,
)

BUDGET_S = 300.0


def trying(*gpus: int, **fields: Any) -> JobRequest:
    each = tuple(TrialConfiguration(gpus=number) for number in gpus)
    trial = Trial(budget_s=BUDGET_S, configurations=each, **fields)
    return job("train", pod_sets=(PodSet(gpus=gpus[0], trial=trial),))


class Log:
    """The log of a gateway that carries out its instructions at once."""

    def __init__(self) -> None:
        self.gateway: Gateway = fresh()
        self.events: list[RecordedEvent] = []
        self.archived: list[RecordedEvent] = []
        self.now_s = 1.0
        self.reads = 0
        self._before = 0  # sequences of an earlier part of the log

    def skip(self, sequences: int) -> None:
        """Give the next event a later sequence."""
        self._before += sequences

    def add(self, event: WorkloadEvent, *, after_s: float = 0.0) -> None:
        """Store an event of another service, and let the gateway do what follows."""
        self.now_s += after_s
        self._carry_out(self._store(event))

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self._carry_out(self.gateway.handle(Tick(), self.now_s))

    def restart(self) -> None:
        """Start another gateway, which reads the log."""
        self.gateway = fresh(caught_up=False)
        for one in self.events:
            self._logged(one)
        self._carry_out(self.gateway.handle(CaughtUp(), self.now_s))

    def work(self, name: str) -> Workload:
        return fold_history("ann", name, self._story(name))[0]

    def last(self, name: str) -> int:
        return self.work(name).sequence

    def _story(self, name: str) -> list[RecordedEvent]:
        return [one for one in self.events if one.event.id == name]

    def _store(self, event: WorkloadEvent) -> list[Instruction]:
        sequence = self._before + len(self.events) + 1
        one = RecordedEvent(sequence=sequence, stored_at_s=self.now_s, event=event)
        self.events.append(one)
        return self._logged(one)

    def _logged(self, one: RecordedEvent) -> list[Instruction]:
        told = Logged(event=one.event, sequence=one.sequence, stored_at_s=one.stored_at_s)
        return self.gateway.handle(told, self.now_s)

    def _carry_out(self, steps: list[Instruction]) -> None:
        while steps:
            step = steps.pop(0)
            if isinstance(step, Append):
                steps += self._store(step.event)
                outcome = Stored(self.events[-1].sequence)
                steps += self.gateway.handle(Answered(ref=step.ref, outcome=outcome), self.now_s)
            elif isinstance(step, ReadStory):
                self.reads += 1
                archived = tuple(one for one in self.archived if one.event.id == step.id)
                told = StoryRead(
                    ref=step.ref, events=tuple(self._story(step.id)), archived=archived
                )
                steps += self.gateway.handle(told, self.now_s)
            elif isinstance(step, Reload):
                self.reads += 1
                read = Reloaded(ref=step.ref, workload=self.work(step.id))
                steps += self.gateway.handle(read, self.now_s)

    # Whole runs

    def run(self, name: str, *, steps_per_s: float = 0.0, seconds: float = BUDGET_S) -> None:
        """Run a trial until the end of its time, with a progress line every 50 s."""
        request = self.work(name).request
        assert request is not None
        for make in (placed, claimed, running):
            self.add(make(request, self.last(name)))
        head: dict[str, Any] = {"tenant": "ann", "id": name, "at_s": 0.0, "by": "executor"}
        for at in range(int(seconds) // 50):
            if steps_per_s:
                progress = Progress(step=round(50 * at * steps_per_s))
                event = Progressed(
                    **head, after=self.last(name), cluster="c1", attempt=1, progress=progress
                )
                self.add(event)
            self.now_s += 50.0

    def fail(self, name: str, reason: str) -> None:
        work = self.work(name)
        self.add(
            Failed(
                tenant="ann",
                id=name,
                after=work.sequence,
                at_s=0.0,
                by="executor",
                cluster="c1",
                attempt=1,
                digest=work.digest,
                submitted_at_s=work.submitted_at_s,
                reason=reason,
            )
        )

    def end(self, name: str, *, steps_per_s: float) -> None:
        self.run(name, steps_per_s=steps_per_s)
        self.fail(name, "it ran for longer than its max_run_s, 300 s")


def begun(request: JobRequest) -> Log:
    log = Log()
    log.add(submitted(request))
    return log


def test_trials_are_submitted_below_everybody_for_their_time() -> None:
    log = begun(trying(4, 8))
    for number, gpus in enumerate((4, 8)):
        request = log.work(f"train-t{number}").request
        assert request is not None
        assert (request.trial_of, request.priority) == ("train", TRIAL_PRIORITY)
        assert (request.max_run_s, request.preemptible, request.retries) == (BUDGET_S, True, 0)
        assert (request.pod_sets[0].gpus, request.pod_sets[0].trial) == (gpus, None)
    assert log.work("train").depends


def test_job_is_released_with_results_after_the_last_trial() -> None:
    log = begun(trying(4, 8))
    log.end("train-t0", steps_per_s=2.0)
    assert not log.work("train").released
    log.end("train-t1", steps_per_s=3.0)
    train = log.work("train")
    assert train.released
    assert not train.depends
    assert [(one.ended, one.steps_per_s, one.cluster) for one in train.trials] == [
        ("stopped", 2.0, "c1"),
        ("stopped", 3.0, "c1"),
    ]


def test_restart_between_trials_submits_none_twice() -> None:
    log = begun(trying(4, 8))
    log.end("train-t0", steps_per_s=2.0)
    log.restart()
    log.end("train-t1", steps_per_s=3.0)
    assert len(log.work("train").trials) == 2
    births = [one.event.id for one in log.events if type(one.event).__name__ == "Submitted"]
    assert births == ["train", "train-t0", "train-t1"]


def test_failed_trial_has_no_result_and_the_others_count() -> None:
    log = begun(trying(4, 8))
    log.run("train-t0", steps_per_s=9.0, seconds=100.0)
    log.fail("train-t0", "exit code 137")
    log.end("train-t1", steps_per_s=3.0)
    first, second = log.work("train").trials
    assert (first.ended, first.steps_per_s, first.reason) == ("failed", None, "exit code 137")
    assert second.steps_per_s == 3.0


def test_job_whose_trials_all_fail_fails_with_their_reasons() -> None:
    log = begun(trying(4, 8))
    for name in ("train-t0", "train-t1"):
        log.run(name, seconds=50.0)
        log.fail(name, "exit code 1")
    train = log.work("train")
    assert train.state is State.FAILED
    assert train.reason == (
        "its trials failed: trial 1 failed: exit code 1; trial 2 failed: exit code 1"
    )


def test_report_ends_the_job_as_succeeded_with_the_results() -> None:
    log = begun(trying(4, 8, then="report"))
    log.end("train-t0", steps_per_s=2.0)
    log.end("train-t1", steps_per_s=3.0)
    train = log.work("train")
    assert train.state is State.SUCCEEDED
    assert train.reason == "trial 1 made 2 steps/s; trial 2 made 3 steps/s"
    assert [one.steps_per_s for one in train.trials] == [2.0, 3.0]


def test_trials_without_gpus_end_after_the_wait_and_the_job_goes_on() -> None:
    log = begun(trying(4, 8, wait_s=600.0))
    log.end("train-t0", steps_per_s=2.0)
    log.wait(400.0)
    assert log.work("train-t1").state is State.CANCELLED
    assert [one.ended for one in log.work("train").trials] == ["stopped", "not_run"]


def test_running_trial_is_awaited_after_the_wait() -> None:
    log = begun(trying(4, wait_s=100.0))
    log.run("train-t0", steps_per_s=2.0)
    log.wait(20.0)
    assert not log.work("train").released
    log.fail("train-t0", "it ran for longer than its max_run_s, 300 s")
    assert [one.steps_per_s for one in log.work("train").trials] == [2.0]


def test_trial_evicted_three_times_is_cancelled() -> None:
    log = begun(trying(4))
    for attempt in (1, 2, 3):
        request = log.work("train-t0").request
        assert request is not None
        assert log.work("train-t0").state is State.QUEUED
        log.add(placed(request, log.last("train-t0"), attempt=attempt))
        log.add(claimed(request, log.last("train-t0"), attempt=attempt))
        head: dict[str, Any] = {"tenant": "ann", "id": "train-t0", "at_s": 0.0, "by": "executor"}
        after = log.last("train-t0")
        log.add(Evicted(**head, after=after, cluster="c1", attempt=attempt, reason="preempted"))
    assert log.work("train-t0").state is State.CANCELLED
    assert [one.ended for one in log.work("train").trials] == ["not_run"]


def test_cancelled_job_ends_its_trials() -> None:
    log = begun(trying(4, 8))
    request = log.work("train-t0").request
    assert request is not None
    for make in (placed, claimed, running):
        log.add(make(request, log.last("train-t0")))
    log.add(cancelled(trying(4, 8), log.last("train")))
    assert log.work("train-t0").cancel_requested
    assert log.work("train-t1").state is State.CANCELLED


def test_job_of_another_name_like_a_trial_is_left_alone() -> None:
    log = Log()
    log.add(submitted(job("train-t0")))
    log.add(submitted(trying(4)))
    assert log.work("train-t0").request == job("train-t0")
    [result] = log.work("train").trials
    assert (result.ended, result.reason) == ("not_run", "another job has the id train-t0")


@pytest.mark.parametrize("seconds", [20.0, 40.0])
def test_trial_that_ends_by_itself_counts_by_its_run_time(seconds: float) -> None:
    log = begun(trying(4))
    request = log.work("train-t0").request
    assert request is not None
    for make in (placed, claimed, running):
        log.add(make(request, log.last("train-t0")))
    log.add(succeeded(request, log.last("train-t0")), after_s=seconds)
    [result] = log.work("train").trials
    assert (result.ended, result.ran_s, result.steps_per_s) == ("succeeded", seconds, None)


def twin(name: str, **fields: Any) -> JobRequest:
    return msgspec.structs.replace(trying(4, 8, **fields), id=name)


def test_equal_job_takes_the_results_without_trials_of_its_own() -> None:
    log = begun(trying(4, 8))
    log.end("train-t0", steps_per_s=2.0)
    log.end("train-t1", steps_per_s=3.0)
    log.add(submitted(twin("again")))
    again = log.work("again")
    assert again.released
    assert [(one.steps_per_s, one.job) for one in again.trials] == [(2.0, "train"), (3.0, "train")]
    assert not log.work("again-t0").request
    log.restart()
    log.add(submitted(twin("third")))
    assert [one.job for one in log.work("third").trials] == ["train", "train"]


def test_equal_jobs_wait_for_the_trials_of_the_first() -> None:
    log = begun(trying(4, 8))
    log.add(submitted(twin("again")))
    log.wait(20.0)
    assert not log.work("again").released
    log.end("train-t0", steps_per_s=2.0)
    log.end("train-t1", steps_per_s=3.0)
    assert [one.job for one in log.work("again").trials] == ["train", "train"]


def test_next_equal_job_runs_the_trials_if_the_first_is_cancelled() -> None:
    log = begun(trying(4, 8))
    log.add(submitted(twin("again")))
    log.add(cancelled(trying(4, 8), log.last("train")))
    assert log.work("again-t0").state is State.QUEUED


@pytest.mark.parametrize("days", [6.0, 8.0])
def test_results_count_for_a_week(days: float) -> None:
    log = begun(trying(4))
    log.end("train-t0", steps_per_s=2.0)
    log.wait(days * 86_400.0)
    log.add(submitted(msgspec.structs.replace(trying(4), id="again")))
    assert log.work("again").released is (days < 7.0)


def test_job_with_other_arguments_is_no_equal() -> None:
    log = begun(trying(4))
    log.end("train-t0", steps_per_s=2.0)
    other = msgspec.structs.replace(trying(4), id="other", run=RunSpec(args=("--batch", "9")))
    log.add(submitted(other))
    assert log.work("other-t0").state is State.QUEUED


def test_step_rate_counts_from_the_times_of_the_lines_not_of_their_events() -> None:
    log = begun(trying(4))
    request = log.work("train-t0").request
    assert request is not None
    for make in (placed, claimed, running):
        log.add(make(request, log.last("train-t0")))
    head: dict[str, Any] = {"tenant": "ann", "id": "train-t0", "at_s": 0.0, "by": "executor"}
    for step, age_s in ((0, 0.0), (8, 20.0)):  # 100 s apart as stored, 80 s as written
        event = Progressed(
            **head,
            after=log.last("train-t0"),
            cluster="c1",
            attempt=1,
            progress=Progress(step=step),
            age_s=age_s,
        )
        log.add(event, after_s=100.0)
    log.add(succeeded(request, log.last("train-t0")))
    assert log.work("train").trials[0].steps_per_s == pytest.approx(0.1)


def failed(log: Log, name: str, **fields: Any) -> Failed:
    work = log.work(name)
    head: dict[str, Any] = {"tenant": "ann", "id": name, "at_s": 0.0, "by": "executor"}
    head |= {"cluster": "c1", "attempt": 1, "digest": "d", "submitted_at_s": 1.0}
    return Failed(**head, after=work.sequence, **fields)


def test_crash_at_the_end_of_its_time_is_no_result() -> None:
    log = begun(trying(4, 8))
    log.run("train-t0", steps_per_s=9.0, seconds=300.0)
    log.add(failed(log, "train-t0", exit_code=137, fault="out_of_memory", reason="killed"))
    log.end("train-t1", steps_per_s=3.0)
    assert [one.ended for one in log.work("train").trials] == ["failed", "stopped"]


def test_fault_of_the_cluster_is_not_held_against_the_job() -> None:
    log = begun(trying(4))
    log.run("train-t0", seconds=50.0)
    log.add(failed(log, "train-t0", fault="node_lost", reason="the node is gone"))
    train = log.work("train")
    assert train.released
    assert [one.ended for one in train.trials] == ["not_run"]


def test_no_limit_of_the_job_on_evictions_ends_a_trial() -> None:
    log = begun(msgspec.structs.replace(trying(4), max_evictions=0))
    request = log.work("train-t0").request
    assert request is not None
    assert request.max_evictions == 1000


def test_held_job_is_overtaken_and_ends_its_trials_when_it_takes_results() -> None:
    log = begun(trying(4, 8))
    hold: dict[str, Any] = {"tenant": "ann", "id": "train", "at_s": 0.0, "by": "x", "who": "ann"}
    log.add(Held(**hold, after=log.last("train")))
    log.add(submitted(twin("again")))
    log.add(HoldReleased(**hold, after=log.last("train")))
    # again runs its trials to their end, although train was first.
    log.end("again-t0", steps_per_s=2.0)
    log.end("again-t1", steps_per_s=3.0)
    assert [one.job for one in log.work("again").trials] == ["", ""]
    assert [one.job for one in log.work("train").trials] == ["again", "again"]
    assert log.work("train-t0").state is State.CANCELLED
    assert log.work("train-t1").state is State.CANCELLED


def test_trials_of_an_earlier_job_with_this_id_say_nothing() -> None:
    log = Log()
    old = begun(trying(4))
    old.end("train-t0", steps_per_s=9.0)
    log.archived = [one for one in old.events if one.event.id == "train-t0"]
    log.skip(len(old.events))
    log.add(submitted(trying(4)))
    assert log.work("train-t0").state is State.QUEUED
    log.end("train-t0", steps_per_s=2.0)
    assert [one.steps_per_s for one in log.work("train").trials] == [2.0]


def test_trials_are_listed_and_counted_with_their_job() -> None:
    log = begun(trying(4, 8))
    view = log.gateway.view
    assert view.waiting["default"] == 1
    assert view.open_of("ann") == 1
    reply = log.gateway.handle(ask("list", b"{}"), log.now_s)
    [answer] = [step.reply for step in reply if isinstance(step, Reply)]
    assert isinstance(answer, ListReply)
    assert [one.id for one in answer.workloads] == ["train"]


def test_frozen_trial_counts_as_not_run_after_the_wait() -> None:
    log = begun(trying(4, wait_s=100.0))
    log.gateway.handle(UnreadableEvent(tenant="ann", id="train-t0", sequence=9, why="new"), 2.0)
    log.wait(50.0)
    assert not log.work("train").released
    log.wait(60.0)
    [result] = log.work("train").trials
    assert result.ended == "not_run"
    assert result.reason.startswith("frozen: ")


def test_jobs_with_another_environment_or_queue_are_no_equals() -> None:
    plain = trying(4)
    run = RunSpec(env={"MODEL": "small", "WANDB_RUN_ID": "1"})
    small = msgspec.structs.replace(plain, run=run)
    again = msgspec.structs.replace(
        small, id="b", run=RunSpec(env={"MODEL": "small", "WANDB_RUN_ID": "2"})
    )
    huge = msgspec.structs.replace(small, id="c", run=RunSpec(env={"MODEL": "huge"}))
    elsewhere = msgspec.structs.replace(small, id="d", queue="prod")
    report = trying(4, then="report")
    likeness = likeness_of("ann", small)
    assert likeness_of("ann", again) == likeness
    others = [likeness_of("ann", one) for one in (plain, huge, elsewhere)]
    assert likeness not in (*others, likeness_of("bob", small))
    second = msgspec.structs.replace(report, id="e")
    assert likeness_of("ann", report) != likeness_of("ann", second)


def test_many_equal_jobs_without_gpus_take_few_reads() -> None:
    log = Log()
    for number in range(60):
        log.add(submitted(msgspec.structs.replace(trying(4, wait_s=60.0), id=f"j{number}")))
    log.reads = 0
    log.wait(100.0)
    log.wait(20.0)
    assert all(log.work(f"j{number}").released for number in range(60))
    assert log.reads < 60 * 6


def test_restarted_gateway_knows_the_results_of_running_jobs() -> None:
    log = begun(trying(4, 8))
    log.end("train-t0", steps_per_s=2.0)
    log.end("train-t1", steps_per_s=3.0)
    log.add(placed(trying(8), log.last("train")))
    log.restart()
    log.add(submitted(twin("again")))
    assert [one.job for one in log.work("again").trials] == ["train", "train"]


def test_wait_for_trials_counts_from_the_end_of_a_hold() -> None:
    log = begun(trying(4, wait_s=600.0))
    hold: dict[str, Any] = {"tenant": "ann", "id": "train", "at_s": 0.0, "by": "x", "who": "ann"}
    log.add(Held(**hold, after=log.last("train")))
    log.wait(10_000.0)
    log.add(HoldReleased(**hold, after=log.last("train")))
    log.wait(500.0)
    assert log.work("train-t0").state is State.QUEUED
    log.wait(200.0)
    assert log.work("train").released


def test_tenant_runs_trials_of_a_bounded_number_of_jobs_at_once() -> None:
    log = Log()
    for number in range(MOST_TRYING + 2):
        run = RunSpec(args=(str(number),))  # no two are equal
        log.add(submitted(msgspec.structs.replace(trying(4), id=f"j{number}", run=run)))
    begun_ = [log.work(f"j{number}-t0").state for number in range(MOST_TRYING + 2)]
    assert begun_ == [State.QUEUED] * MOST_TRYING + [State.NEW] * 2
    log.end("j0-t0", steps_per_s=2.0)
    assert log.work("j0").released
    last = [log.work(f"j{number}-t0").state for number in (MOST_TRYING, MOST_TRYING + 1)]
    assert last == [State.QUEUED, State.NEW]
