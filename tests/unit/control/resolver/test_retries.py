"""A job that failed by itself waits before it is tried again; evictions do not count."""

from msgspec.structs import replace

from berthmaster.control.resolver.replay import replay
from berthmaster.lib.lifecycle.workload import Key, key
from berthmaster.lib.messages.api import WhyReply
from berthmaster.lib.messages.workload import Evicted
from tests.support.builders import alive, job, node, profile
from tests.support.deciding import TENANT, World, placements


def fail(world: World, name: Key) -> None:
    """Its attempt ends by its own fault, and it is to be tried again."""
    failed = Evicted(
        **world._attempt(name),  # type: ignore[arg-type]
        reason="exited with 1",
        fault="exit",
        exit_code=1,
    )
    world.append(failed)


def test_a_failure_of_its_own_is_tried_again_after_a_pause_that_doubles() -> None:
    world = World()
    world.fact(profile("c1"), alive("c1"), node("c1", gpus=2))
    name = world.submit(replace(job("flaky", gpus=1), retries=3, backoff_s=10.0))
    work = world.resolver.know.open[key(TENANT, "flaky")]
    for pause_s in (10.0, 20.0):
        assert placements(world.decide())
        world.claim(name)
        fail(world, name)
        began_s = world.now_s
        assert work.retry_at_s == work.changed_at_s + pause_s
        assert world.decide() is None
        reply = world.why(TENANT, "flaky", began_s)
        assert isinstance(reply, WhyReply)
        assert "exited with 1" in reply.summary
        assert world.resolver.wake_at_s() == work.retry_at_s
        # Another priority ends no pause.
        world.append(world.reprioritized(name, int(pause_s)))
        world.now_s = work.retry_at_s - 0.5
        assert world.decide() is None
        world.now_s = work.retry_at_s
        world.fact(alive("c1"))
    assert (work.failures, work.evictions) == (2, 0)
    assert placements(world.decide())
    # An eviction is no failure of its own: it goes on at once.
    world.claim(name)
    world.evict(name)
    assert (work.failures, work.evictions) == (2, 1)
    assert placements(world.decide())


def test_a_clock_that_is_put_back_lets_it_rest_again_and_what_is_decided_repeats() -> None:
    """Whoever repeats a decision knows no time but that of the decision."""
    world = World()
    world.fact(profile("c1"), alive("c1"), node("c1", gpus=2))
    name = world.submit(replace(job("flaky", gpus=1), retries=3, backoff_s=10.0))
    assert placements(world.decide())
    world.claim(name)
    fail(world, name)
    work, before_s = world.resolver.know.open[name], world.now_s
    # Nothing is decided of it meanwhile: another has all of the room.
    other = world.submit(replace(job("other", gpus=2), priority=9))
    world.now_s = work.retry_at_s
    assert list(placements(world.decide())) == ["other"]
    world.now_s = before_s
    world.claim(other)
    world.succeed(other)
    assert world.decide() is None
    world.now_s = work.retry_at_s
    world.fact(alive("c1"))
    assert list(placements(world.decide())) == ["flaky"]
    report = replay(world.inputs(), "all")
    assert (report.first_difference, report.equal) == (None, 3)
