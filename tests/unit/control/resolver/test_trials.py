"""Trials in decisions: below everybody, within a budget, and what their results decide."""

from typing import Any

import msgspec
import pytest

from berthmaster.control.resolver.core.known.stored import Snapshot, restore, snapshot_of
from berthmaster.control.resolver.core.resolver import Resolver
from berthmaster.control.resolver.policy import Policy
from berthmaster.control.resolver.replay import replay
from berthmaster.lib.lifecycle.trials import trial_requests
from berthmaster.lib.lifecycle.workload import Key
from berthmaster.lib.messages.api import WhyReply
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.placement import Option
from berthmaster.lib.messages.workload import (
    JobRequest,
    Released,
    RunSpec,
    Trial,
    TrialConfiguration,
    TrialResult,
)
from tests.support.builders import alive, job, node, profile
from tests.support.deciding import TENANT, World

BUDGET_S = 360.0  # 0.1 GPU hours a GPU


def trying(name: str, *gpus: int, queue: str = "default", **fields: Any) -> JobRequest:
    each = tuple(TrialConfiguration(gpus=number) for number in gpus)
    trial = Trial(budget_s=BUDGET_S, configurations=each, **fields)
    return job(name, gpus=gpus[0], queue=queue, trial=trial)


def fleet(gpus: int = 8, **queue: Any) -> World:
    world = World(Policy(stale_after_s=1e9))
    world.fact(profile(), alive(), node(gpus=gpus))
    setting: dict[str, Any] = {"trial_gpu_h_a_day": 100.0, "preempts": "never"} | queue
    world.control(QueueSetting(queue="default", **setting))
    return world


def all_repeat(world: World) -> None:
    report = replay(world.inputs(), "all")
    assert report.first_difference is None
    assert (report.equal, report.not_repeatable) == (report.decisions, 0)


def submit_trials(world: World, request: JobRequest) -> tuple[Key, list[Key]]:
    return world.submit(request), [world.submit(one) for one in trial_requests(request)]


def release(world: World, name: Key, *results: TrialResult) -> None:
    work = world.workloads[name]
    head: dict[str, Any] = {"tenant": TENANT, "id": work.id, "at_s": world.now_s, "by": "gateway"}
    world.append(Released(**head, after=work.sequence, trials=results))


def test_trials_run_on_idle_gpus_and_their_job_waits() -> None:
    world = fleet(12)
    parent, trials = submit_trials(world, trying("train", 4, 8))
    world.settle()
    assert [world.placed_on(one) for one in trials] == ["c1", "c1"]
    assert not world.placed_on(parent)
    why = world.why(TENANT, "train", world.now_s)
    assert isinstance(why, WhyReply)
    assert why.summary == "waits for its 2 trials to have ended; then for a place"
    all_repeat(world)


def test_trial_goes_after_jobs_of_all_queues() -> None:
    world = fleet(4)
    world.control(QueueSetting(queue="later", priority=-5))
    _, [trial] = submit_trials(world, trying("train", 4))
    other = world.submit(job("other", gpus=4, queue="later"))
    world.settle()
    assert world.placed_on(other) == "c1"
    assert not world.placed_on(trial)


def test_every_job_evicts_a_trial_even_where_its_queue_preempts_never() -> None:
    world = fleet(4)
    world.control(QueueSetting(queue="meek", preempts="never"))
    _, [trial] = submit_trials(world, trying("train", 4))
    world.settle()
    world.claim(trial)
    world.run(trial)
    world.submit(job("other", gpus=2, queue="meek"))
    orders = [order for plan in world.settle() for order in plan.decision.evictions]
    assert [(order.id, order.for_id) for order in orders] == [("train-t0", "other")]
    all_repeat(world)


def test_trial_leaves_the_limits_of_its_queue_to_other_jobs() -> None:
    world = fleet(8, capability_gpu_milli=4000, max_running_jobs=1)
    _, [trial] = submit_trials(world, trying("train", 4))
    world.settle()
    assert world.placed_on(trial) == "c1"
    other = world.submit(job("other", gpus=4))
    world.settle()
    assert world.placed_on(other) == "c1"
    assert world.placed_on(trial) == "c1"  # the other GPUs were free


def test_trials_are_evicted_before_any_other_job_and_without_budgets() -> None:
    world = fleet(4, max_evictions_per_hour=0)
    world.fact(node(name="n2", gpus=4))
    world.control(QueueSetting(queue="high", preempts="all", priority=9))
    _, [trial] = submit_trials(world, trying("train", 4))
    world.settle()
    world.claim(trial)
    world.run(trial)
    world.now_s += 300.0
    world.fact(alive(counter=2))
    fresh = world.start(job("fresh", gpus=4, queue="other"))  # cheaper to end than the trial
    assert world.placed_on(fresh) == "c1"
    world.submit(job("urgent", gpus=4, queue="high", priority=10))
    orders = [order for plan in world.settle() for order in plan.decision.evictions]
    assert [(order.id, order.for_id) for order in orders] == [("train-t0", "urgent")]
    assert world.resolver.know.recent_evictions.state() == []


def test_job_of_a_queue_without_a_setting_evicts_a_trial() -> None:
    world = fleet(4)
    _, [trial] = submit_trials(world, trying("train", 4))
    world.settle()
    world.claim(trial)
    world.run(trial)
    world.submit(job("other", gpus=4, queue="unset"))
    orders = [order for plan in world.settle() for order in plan.decision.evictions]
    assert [order.id for order in orders] == ["train-t0"]


@pytest.mark.parametrize("priority", [-5, 0, 5])
def test_trial_takes_no_reserved_capacity_whatever_its_queue(priority: int) -> None:
    world = fleet(8)
    world.control(QueueSetting(queue="tries", trial_gpu_h_a_day=100.0, priority=priority))
    world.start(job("long", gpus=4, expected_duration_s=3600.0))
    world.submit(job("big", gpus=8, expected_duration_s=7200.0))
    world.settle()
    why = world.why(TENANT, "big", world.now_s)
    assert isinstance(why, WhyReply)
    assert why.reservation is not None
    trial = Trial(budget_s=20_000.0, configurations=(TrialConfiguration(),))
    _, [tried] = submit_trials(world, job("train", gpus=4, queue="tries", trial=trial))
    world.settle()
    assert not world.placed_on(tried)


def test_elastic_job_grows_before_a_trial_starts() -> None:
    world = fleet(8)
    other = world.start(job("other", gpus=6))
    elastic = world.start(job("elastic", gpus=1, count=8, min_count=2, max_count=8))
    assert len(world.workloads[elastic].pods) == 2
    world.now_s += 3600.0  # long enough for another size
    world.fact(alive(counter=2))
    _, [trial] = submit_trials(world, trying("train", 4))
    world.succeed(other)
    world.settle()
    assert len(world.workloads[elastic].resizing) == 8
    assert not world.placed_on(trial)


def test_trial_evicts_nobody_and_gets_no_reservation() -> None:
    world = fleet(4, guarantee_gpu_milli=4000, preempts="all")
    world.control(QueueSetting(queue="borrower"))
    running = world.start(job("long", gpus=4, queue="borrower"))
    world.claim(running)
    world.run(running)
    submit_trials(world, trying("train", 4))
    plans = world.settle()
    assert not [order for plan in plans for order in plan.decision.evictions]
    assert not [one for plan in plans for one in plan.decision.reservations or ()]


def test_budget_of_a_day_bounds_trials_and_survives_a_restart() -> None:
    world = fleet(16, trial_gpu_h_a_day=1.0)
    _, [first, second, third] = submit_trials(world, trying("train", 4, 6, 2))
    world.settle()
    # 0.4 GPU hours, then 0.6: the third needs 0.2 more.
    assert [bool(world.placed_on(one)) for one in (first, second, third)] == [True, True, False]
    why = world.why(TENANT, "train-t2", world.now_s)
    assert isinstance(why, WhyReply)
    assert "trials of its queue took 1 of 1 GPU hours in 24 h, and 0.2 more are needed" in (
        why.summary
    )
    again = Resolver("all", "again", world.policy)
    kept = msgspec.json.encode(snapshot_of(world.resolver.know))
    restore(again.know, msgspec.json.decode(kept, type=Snapshot))
    assert again.know.recent_trials.used_gpu_s("default", world.now_s) == pytest.approx(3600.0)
    for one in (first, second):
        world.claim(one)
        world.run(one)
        world.succeed(one)
    world.now_s += 86_401.0
    world.fact(alive(counter=9))
    world.settle()
    assert world.placed_on(third) == "c1"
    all_repeat(world)


def test_without_a_budget_no_trial_is_placed() -> None:
    world = fleet(8, trial_gpu_h_a_day=None)
    _, [trial] = submit_trials(world, trying("train", 4))
    world.settle()
    assert not world.placed_on(trial)


def stopped(steps_per_s: float | None) -> TrialResult:
    return TrialResult(ended="stopped", steps_per_s=steps_per_s, ran_s=BUDGET_S, cluster="c1")


@pytest.mark.parametrize(("by", "gpus"), [("time", 8), ("cost", 4)])
def test_best_configuration_by_results_is_placed(by: str, gpus: int) -> None:
    world = fleet(8)
    parent = world.submit(trying("train", 4, 8, by=by))
    release(world, parent, stopped(2.0), stopped(3.2))
    world.settle()
    request = world.workloads[parent].request
    assert request is not None
    assert world.placed_on(parent) == "c1"
    assert request.pod_sets[0].gpus == gpus
    options = world.decisions[-1][1].placements[0].options
    assert [one.step_s for one in options] == [0.5, 0.3125]
    assert [bool(one.why) for one in options] == [gpus != 4, gpus != 8]
    all_repeat(world)


def test_configuration_with_another_command_runs_as_it_was_tried() -> None:
    world = fleet(8)
    each = (
        TrialConfiguration(args=("--batch", "64")),
        TrialConfiguration(args=("--batch", "128"), env={"NCCL_ALGO": "Ring"}),
    )
    trial = Trial(budget_s=BUDGET_S, configurations=each)
    run = RunSpec(image="i", args=("--batch", "32"), env={"A": "b"})
    request = job("train", gpus=2, run=run, trial=trial)
    parent = world.submit(request)
    release(world, parent, stopped(2.0), stopped(4.0))
    world.settle()
    placed = world.workloads[parent].request
    assert placed is not None
    assert placed.run.args == ("--batch", "128")
    assert placed.run.env == {"A": "b", "NCCL_ALGO": "Ring"}


def test_job_without_results_runs_in_its_first_configuration() -> None:
    world = fleet(8)
    parent = world.submit(trying("train", 2, 8))
    release(world, parent, *[TrialResult(ended="not_run", reason="no GPUs")] * 2)
    world.settle()
    options = world.decisions[-1][1].placements[-1].options
    assert options == (
        Option(gpus=2),
        Option(gpus=8, why="its trial had no result: no GPUs"),
    )
