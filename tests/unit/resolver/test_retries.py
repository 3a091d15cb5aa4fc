"""A job that failed by itself waits before it is tried again; evictions do not count."""

from msgspec.structs import replace

from berthmaster.lifecycle.fold import key
from berthmaster.messages.api import WhyReply
from berthmaster.messages.workload import Evicted
from tests.support.builders import alive, job, node, profile
from tests.support.deciding import TENANT, World, placements


def test_a_failure_of_its_own_is_tried_again_after_a_pause_that_doubles() -> None:
    world = World()
    world.fact(profile("c1"), alive("c1"), node("c1", gpus=2))
    name = world.submit(replace(job("flaky", gpus=1), retries=3, backoff_s=10.0))
    work = world.resolver.know.open[key(TENANT, "flaky")]
    for pause_s in (10.0, 20.0):
        assert placements(world.decide())
        world.claim(name)
        failed = Evicted(
            **world._attempt(name),  # type: ignore[arg-type]
            reason="exited with 1",
            fault="exit",
            exit_code=1,
        )
        world.append(failed)
        began_s = world.now_s
        assert work.retry_at_s == work.changed_at_s + pause_s
        assert world.decide() is None
        reply = world.resolver.why(TENANT, "flaky", began_s)
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
