"""Sets of which only so many have a place at once, and jobs that wait for others."""

from berthmaster.control.resolver.core.known.indexes import JobSets
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.workload import Dependency, JobRequest, Released
from tests.support.builders import alive, node, profile
from tests.support.deciding import TENANT, World


def member(at: int, *, priority: int = 0, state: State = State.QUEUED) -> Workload:
    request = JobRequest(id=f"s-{at}", set="s", set_at_most=2)
    return Workload(
        tenant="t", id=f"s-{at}", state=state, request=request, priority=priority,
        submitted_sequence=at,
    )  # fmt: skip


def test_who_is_in_line_follows_from_who_is_there_and_not_from_what_was_before() -> None:
    sets = JobSets()
    jobs = [member(at) for at in range(1, 5)]
    moved = [sets.follow(job, waits=True) for job in jobs]
    assert [each.enter for each in moved] == [["t/s-1"], ["t/s-2"], [], []]
    assert [sets.outside(job) for job in jobs] == [0, 0, 1, 1]

    urgent = member(5, priority=9)
    assert sets.follow(urgent, waits=True) == (["t/s-5"], ["t/s-2"])
    # Whoever begins anew hears of the same ones in another order, and comes to the same.
    anew = JobSets()
    for job in (*reversed(jobs), urgent):
        anew.follow(job, waits=True)
    assert [anew.outside(job) for job in (*jobs, urgent)] == [0, 1, 1, 1, 0]
    assert [sets.outside(job) for job in (*jobs, urgent)] == [0, 1, 1, 1, 0]

    jobs[0].state = State.PLACED  # it has what it was in line for
    assert sets.follow(jobs[0], waits=False).enter == []
    jobs[0].state = State.SUCCEEDED
    assert sets.follow(jobs[0], waits=False).enter == ["t/s-2"]


def test_of_a_set_so_many_are_placed_as_may_be_and_the_next_when_one_has_ended() -> None:
    world = World()
    world.fact(profile(), alive(), node())
    names = [
        world.submit(JobRequest(id=f"s-{at}", set="s", set_at_most=2, array_index=at))
        for at in range(5)
    ]
    world.settle()
    assert [bool(world.placed_on(name)) for name in names] == [True, True, False, False, False]
    world.claim(names[0])
    world.run(names[0])
    world.succeed(names[0])
    world.settle()
    assert [bool(world.placed_on(name)) for name in names] == [False, True, True, False, False]


def test_a_job_that_depends_on_another_is_placed_when_it_is_released() -> None:
    world = World()
    world.fact(profile(), alive(), node())
    first = JobRequest(id="b", depends_on=(Dependency(id="a"),))
    name = world.submit(first)
    world.settle()
    assert world.placed_on(name) == ""
    reply = world.why(TENANT, "b", world.now_s)
    assert reply.summary == "waits for a to have succeeded; then for a place"  # type: ignore[union-attr]
    world.append(Released(**world._head(name)))  # type: ignore[arg-type]
    world.settle()
    assert world.placed_on(name) == "c1"
