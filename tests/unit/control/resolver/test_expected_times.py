"""When a job is expected to begin and to end, where nobody stated how long jobs take."""

import msgspec

from berthmaster.control.resolver.core.answers.gpus import Steps
from berthmaster.control.resolver.core.known.stored import Snapshot, restore, snapshot_of
from berthmaster.control.resolver.core.resolver import Resolver
from berthmaster.control.resolver.policy import Policy
from berthmaster.lib.lifecycle.workload import key
from berthmaster.lib.messages.api import Expectation, GpusReply, GpusRequest, Refusal, WhyReply
from berthmaster.lib.messages.workload import JobRequest
from tests.support.builders import alive, job, node, profile
from tests.support.deciding import TENANT, World

TOOK_S = 27.0


def fleet(gpus: int = 4) -> World:
    world = World(Policy(stale_after_s=1e9))
    world.fact(profile(), alive(), node(gpus=gpus))
    return world


def after_forty_equal_jobs() -> World:
    """Forty equal jobs took 27 s each, four at a time; four more run, and ten wait."""
    world = fleet()
    for number in range(40):
        world.submit(job(f"past-{number}"))
    running = world.start_placed()
    while running:
        world.now_s += TOOK_S
        for name in running:
            world.succeed(key(TENANT, name))
        running = world.start_placed()
    for number in range(14):
        world.submit(job(f"next-{number}"))
    world.start_placed()
    return world


def why(world: World, name: str) -> WhyReply:
    reply = world.why(TENANT, name, world.now_s)
    assert isinstance(reply, WhyReply)
    return reply


def the_end_of_gpus(steps: Steps) -> GpusReply | Refusal:
    while True:
        try:
            next(steps)
        except StopIteration as done:
            reply: GpusReply | Refusal = done.value
            return reply


def near(at_s: float | None, right_s: float) -> bool:
    return at_s is not None and abs(at_s - right_s) < 1.0


def test_job_that_runs_is_expected_to_end_as_similar_jobs_did() -> None:
    world = after_forty_equal_jobs()
    world.now_s += 10.0
    expected = why(world, "next-0").expected
    assert expected is not None
    assert (expected.by, expected.jobs, expected.starts_s) == ("similar", 40, None)
    assert near(expected.ends_s, world.now_s + TOOK_S - 10.0)
    assert near(expected.lasts_s, TOOK_S)
    low_s, high_s = expected.ends_low_s, expected.ends_high_s
    assert low_s is not None
    assert high_s is not None
    assert expected.ends_s is not None
    assert world.now_s < low_s < expected.ends_s < high_s < world.now_s + TOOK_S


def test_job_that_waits_is_expected_to_begin_after_those_before_it() -> None:
    world = after_forty_equal_jobs()
    for number, rounds in ((4, 1), (7, 1), (8, 2), (13, 3)):
        reply = why(world, f"next-{number}")
        expected = reply.expected
        assert expected is not None
        assert (expected.by, expected.jobs) == ("similar", 40)
        assert near(expected.starts_s, world.now_s + rounds * TOOK_S), number
        assert near(expected.ends_s, world.now_s + (rounds + 1) * TOOK_S), number
        assert near(reply.first_free_s, world.now_s + TOOK_S)


def test_gpus_wait_rests_on_similar_jobs_and_says_on_how_many() -> None:
    world = after_forty_equal_jobs()
    steps = world.gpus(TENANT, GpusRequest(), world.now_s)
    reply = the_end_of_gpus(steps)
    assert isinstance(reply, GpusReply)
    [stock] = reply.models
    assert near(stock.expected_wait_s, TOOK_S)
    assert stock.wait_jobs == 40
    assert stock.wait_low_s is not None
    assert stock.wait_high_s is not None
    assert stock.expected_wait_s is not None
    assert stock.wait_low_s < stock.expected_wait_s < stock.wait_high_s


def test_dry_run_says_when_a_request_would_begin_and_end() -> None:
    world = after_forty_equal_jobs()
    expected = world.dry_run(TENANT, job("asks"), world.now_s).expected
    assert expected is not None
    assert (expected.by, expected.jobs) == ("similar", 40)
    assert near(expected.starts_s, world.now_s + TOOK_S)
    assert near(expected.ends_s, world.now_s + 2 * TOOK_S)


def test_stated_durations_give_times_without_an_interval() -> None:
    world = fleet(gpus=1)

    def lasting(name: str, seconds: float) -> JobRequest:
        return msgspec.structs.replace(job(name), expected_duration_s=seconds)

    world.submit(lasting("first", 100.0))
    world.start_placed()
    world.submit(lasting("second", 50.0))
    world.settle()
    began_s = world.now_s
    assert why(world, "second").expected == Expectation(
        by="stated",
        starts_s=began_s + 100.0,
        starts_low_s=began_s + 100.0,
        starts_high_s=began_s + 100.0,
        ends_s=began_s + 150.0,
        ends_low_s=began_s + 150.0,
        ends_high_s=began_s + 150.0,
        lasts_s=50.0,
        lasts_low_s=50.0,
        lasts_high_s=50.0,
    )


def test_nothing_is_expected_before_enough_jobs_have_ended() -> None:
    world = fleet(gpus=1)
    for number in range(3):
        world.submit(job(f"j{number}"))
    [first] = world.start_placed()
    assert why(world, "j0").expected is None
    assert why(world, "j2").expected is None
    world.now_s += TOOK_S
    world.succeed(key(TENANT, first))
    world.start_placed()
    assert why(world, "j1").expected is None  # one has ended


def test_expectations_are_those_of_a_resolver_that_began_with_a_snapshot() -> None:
    world = after_forty_equal_jobs()
    raw = msgspec.msgpack.encode(snapshot_of(world.resolver.know))
    before = why(world, "next-9")
    world.resolver = Resolver("all", "resolver/later", world.policy)
    restore(world.resolver.know, msgspec.msgpack.decode(raw, type=Snapshot))
    for sequence, stored_at_s, _, fact in world.facts:
        world.resolver.on_fact(fact, sequence, stored_at_s)
    assert before.expected is not None
    assert why(world, "next-9").expected == before.expected
