"""Jobs that list several configurations (``choose``): which one they get, and what is recorded."""

import pytest

from berthmaster.control.resolver.policy import Policy
from berthmaster.control.resolver.replay import replay
from berthmaster.lib.lifecycle.workload import Key
from berthmaster.lib.messages.api import WhyReply
from berthmaster.lib.messages.placement import Option, Weighed
from berthmaster.lib.messages.workload import Choose, JobRequest
from tests.support.builders import alive, job, node, profile
from tests.support.deciding import TENANT, World

BERT = {"model": "bert"}
BUSY = "busy: no room now"
TWO_MODELS = ("H100", "A100")


def choosing(name: str, by: str, *gpus: int, models: tuple[str, ...] = ()) -> JobRequest:
    """A job as the gateway stores it: with the first number, and any of the models."""
    choose = Choose(gpus=gpus, gpu_models=models, by=by)  # type: ignore[arg-type]
    first = gpus[0] if gpus else 1
    return job(name, gpus=first, gpu_models=models, choose=choose, labels=BERT)


def fleet(prices: tuple[str, str] = ("", "")) -> World:
    """Two clusters of one node each: eight H100, eight A100."""
    world = World(Policy(stale_after_s=1e9))
    for cluster, model, price in zip(("c1", "c2"), TWO_MODELS, prices, strict=True):
        labels = {"berthmaster.io/price-per-gpu-hour": price} if price else {}
        world.fact(profile(cluster, labels=labels), alive(cluster))
        world.fact(node(cluster, "n1", model=model))
    return world


def ended(world: World, took_s: float, gpus: int, *models: str, times: int = 3) -> None:
    """Jobs like those of ``choosing`` ran in this configuration."""
    for _ in range(times):
        name = f"past-{len(world.workloads)}"
        request = job(name, gpus=gpus, gpu_models=models, labels=BERT)
        started = world.start(request)
        world.now_s += took_s
        world.succeed(started)


def options_of(world: World, name: Key) -> tuple[Option, ...]:
    return next(
        choice.options
        for _, decision in reversed(world.decisions)
        for choice in decision.placements
        if f"{choice.tenant}/{choice.id}" == name
    )


def all_repeat(world: World) -> None:
    report = replay(world.inputs(), "all")
    assert report.first_difference is None
    assert (report.equal, report.not_repeatable) == (report.decisions, 0)


def placed(world: World, name: Key) -> tuple[str, int]:
    request = world.workloads[name].request
    assert request is not None
    return world.placed_on(name), request.pod_sets[0].gpus


def test_job_by_start_takes_the_first_configuration_with_free_capacity() -> None:
    world = fleet()
    world.start(job("other", gpus=5, gpu_models=("H100",)))
    name = world.submit(choosing("train", "start", 8, 4, 2, models=("H100",)))
    world.settle()
    assert placed(world, name) == ("c1", 2)
    assert options_of(world, name) == (
        Option(gpus=8, gpu_models=("H100",), why=BUSY),
        Option(gpus=4, gpu_models=("H100",), why=BUSY),
        Option(gpus=2, gpu_models=("H100",)),
    )
    all_repeat(world)


@pytest.mark.parametrize(
    ("by", "prices", "expected"),
    [
        ("time", ("", ""), ("c1", 8)),
        ("cost", ("", ""), ("c1", 4)),  # 12 GPU hours, of 16 and 20
        ("cost", ("3.0", "1.0"), ("c2", 4)),  # 20, of 36 and 48
    ],
)
def test_job_by_time_or_cost_takes_the_best_by_similar_jobs(
    by: str, prices: tuple[str, str], expected: tuple[str, int]
) -> None:
    world = fleet(prices)
    ended(world, 7200.0, 8, "H100")
    ended(world, 10800.0, 4, "H100")
    ended(world, 18000.0, 4, "A100")
    name = world.submit(choosing("train", by, 4, 8, models=TWO_MODELS))
    world.settle()
    assert placed(world, name) == expected
    options = {(one.gpus, *one.gpu_models): one for one in options_of(world, name)}
    assert options[8, "A100"] == Option(
        gpus=8, gpu_models=("A100",), why="fewer than 3 similar jobs ended"
    )
    taken = [one for one in options.values() if not one.why]
    assert [(one.gpus, one.jobs) for one in taken] == [(expected[1], 3)]
    [weighed] = world.decisions[-1][1].weighed
    assert weighed == Weighed(
        tenant=TENANT,
        id="train",
        expected_s=(10800.0, 18000.0, 7200.0, None),
        jobs=(3, 3, 3, 0),
    )
    all_repeat(world)


def test_job_by_time_waits_for_its_configuration_and_others_pass() -> None:
    world = fleet()
    ended(world, 100.0, 8, "H100")
    ended(world, 900.0, 1, "H100")
    other = world.start(job("other", gpus=1, gpu_models=("H100",)))
    name = world.submit(choosing("train", "time", 1, 8, models=("H100",)))
    world.settle()
    assert not world.placed_on(name)
    why = world.why(TENANT, "train", world.now_s)
    assert isinstance(why, WhyReply)
    assert why.summary.endswith("; chosen: 8 GPUs of H100")
    passing = world.submit(job("small", gpus=1, gpu_models=("H100",)))
    world.settle()
    assert world.placed_on(passing) == "c1"
    for each in (other, passing):
        if not world.workloads[each].claimed_at_s:
            world.claim(each)
            world.run(each)
        world.succeed(each)
    world.settle()
    assert placed(world, name) == ("c1", 8)
    all_repeat(world)


def test_configuration_that_no_cluster_can_have_is_skipped() -> None:
    world = fleet()
    ended(world, 100.0, 8, "H100")
    ended(world, 900.0, 1, "A100")
    world.fact(node("c1", "n1", gpus=0, counter=2))
    name = world.submit(choosing("train", "time", 8, 1, models=TWO_MODELS))
    world.settle()
    assert placed(world, name) == ("c2", 1)
    first = options_of(world, name)[0]
    assert (first.gpus, first.gpu_models, first.expected_s) == (8, ("H100",), 100.0)
    assert first.why not in ("", BUSY)
    all_repeat(world)


def test_job_without_history_runs_in_its_first_configuration() -> None:
    world = fleet()
    name = world.submit(choosing("train", "cost", 2, 1))
    world.settle()
    assert placed(world, name)[1] == 2
    assert [one.why for one in options_of(world, name)] == ["", "fewer than 3 similar jobs ended"]
    all_repeat(world)


def test_evicted_job_chooses_again_and_its_run_time_counts_where_it_ran() -> None:
    world = fleet()
    name = world.start(choosing("train", "start", 8, 2, models=("H100",)))
    assert placed(world, name) == ("c1", 8)
    world.start(job("other", gpus=1, gpu_models=("A100",)))
    world.evict(name)
    request = world.workloads[name].request
    assert request is not None
    assert request.pod_sets[0].choose == Choose(gpus=(8, 2), gpu_models=("H100",))
    world.start(job("third", gpus=4, gpu_models=("H100",), priority=9))
    world.settle()
    assert placed(world, name) == ("c1", 2)
    world.claim(name)
    world.run(name)
    world.now_s += 500.0
    world.succeed(name)
    ended(world, 500.0, 2, "H100", times=2)
    durations = world.resolver.know.expectations.durations
    again = job("again", gpus=2, gpu_models=("H100",), labels=BERT)
    assert durations.of_configuration(TENANT, again) == (500.0, 3)
    all_repeat(world)


def test_dry_run_names_the_configuration_that_it_would_get() -> None:
    world = fleet()
    world.start(job("other", gpus=6, gpu_models=("H100",)))
    reply = world.dry_run(TENANT, choosing("x", "start", 8, 2, models=("H100",)), world.now_s)
    assert reply.placed
    assert reply.choice is not None
    assert [(one.gpus, one.why) for one in reply.choice.options] == [(8, BUSY), (2, "")]
