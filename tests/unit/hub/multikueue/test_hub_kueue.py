"""A hub whose Kueue does nothing: told as such, and nobody is moved or blamed for it."""

import msgspec

from berthmaster.hub.multikueue.core.deciding.traps import (
    KUEUE_SILENT,
    NO_COPY,
    NOT_CLEARED,
    SILENT_WORDS,
)
from berthmaster.lib.kueue.jobs import JobSpec
from berthmaster.lib.kueue.names import MULTIKUEUE, QUEUE_LABEL
from tests.unit.hub.multikueue.hub_objects import condition, copy_report, job, queue_report
from tests.unit.hub.multikueue.world import World


def nominated_to_w1(*jobs: str) -> World:
    world = World(workers=("w1", "w2"))
    world.worker("w1", free=8)
    world.worker("w2", free=2)
    world.begin()
    for name in jobs or ("train",):
        world.submit(name)
        world.reserve(name)
    world.settle()
    return world


def told(world: World, reason: str) -> list[str]:
    return [tell.note for tell in world.told if tell.reason == reason]


def test_a_hub_whose_kueue_is_dead_is_told_as_such_and_patience_stands_still() -> None:
    world = nominated_to_w1("train", "other")
    assert world.nominated() == ("w1",)
    world.wait(10.0)
    assert not world.core.kueue.silent
    world.wait(30.0)
    name = world.name()
    words = "the hub's Kueue has written nothing for 39 s while 2 wait: does its manager run?"
    assert world.why(name).endswith(f"not admitted there yet; {words}")
    assert world.core.trapped[name].kind == KUEUE_SILENT
    assert told(world, KUEUE_SILENT) == [SILENT_WORDS, SILENT_WORDS]  # once for each

    # Nobody is sent elsewhere meanwhile: no copy would follow.
    world.wait(120.0, step_s=2.0)
    assert world.nominated() == ("w1",)
    assert world.kinds(name)[-1] == "claimed w1"

    # It writes again: patience begins anew, and what waited too long then moves on.
    world.status("other", conditions=(condition("QuotaReserved", message="again"),))
    for job_name in ("train", "other"):
        world.fact(job_name, copy_report("w1", job_name, message="waits"))
    world.settle()
    assert not world.core.kueue.silent
    assert "has written nothing" not in world.why(name)
    world.wait(20.0)
    assert "evicted w1" not in world.kinds(name)
    world.wait(15.0)
    assert "evicted w1" in world.kinds(name)


def test_a_copy_that_runs_has_no_wrong_cure_while_the_hub_s_kueue_is_dead() -> None:
    world = nominated_to_w1("train", "other")
    world.fact("copy", copy_report("w1", quota_reserved=True, admitted=True))
    world.wait(10.0)
    assert world.core.trapped[world.name()].kind == NOT_CLEARED
    world.wait(20.0)  # the other one waits for its copy: Kueue writes nothing at all
    assert world.core.trapped[world.name()].kind == KUEUE_SILENT
    assert "hub.mode=dispatch of our chart" not in world.why(world.name())


def test_what_waits_for_somebody_else_proves_nothing() -> None:
    # Quota on the hub, a worker's quota, and a worker without the queue: nothing for Kueue to do.
    world = nominated_to_w1("train", "full", "lost")
    world.status("full", conditions=(condition("QuotaReserved", False, "Pending", "no quota"),))
    world.fact("copy", copy_report("w1", message="waits for checks: budget"))
    world.fact("lost", copy_report("w1", "lost", message="waits for checks: budget"))
    world.wait(28.0, step_s=2.0)  # then they go on to another cluster
    assert (world.core.kueue.waiting, world.core.kueue.silent) == (0, False)

    away = nominated_to_w1()
    away.fact("w1/queue", queue_report("w1", namespaces=("other",)))
    away.fact("w2/queue", queue_report("w2", namespaces=("other",)))
    away.wait(60.0, step_s=2.0)
    assert (away.core.kueue.waiting, away.core.kueue.silent) == (0, False)


def test_a_manager_that_works_slowly_is_not_dead() -> None:
    world = nominated_to_w1("train", "other")
    for _ in range(6):
        world.wait(15.0)  # one word in so long is enough
        world.status("other", conditions=(condition("QuotaReserved", message=str(world.now_s)),))
        world.settle()
        assert not world.core.kueue.silent
    assert told(world, KUEUE_SILENT) == []


def test_jobs_of_which_kueue_makes_no_workload_wait_for_it_as_well() -> None:
    world = World(workers=("w1",))
    world.worker("w1")
    world.begin()
    mine = job("new")
    labels = {QUEUE_LABEL: "main"}
    spec = JobSpec(suspend=True, managed_by=MULTIKUEUE)
    meta = msgspec.structs.replace(mine.metadata, labels=labels)
    world.put(msgspec.structs.replace(mine, metadata=meta, spec=spec))
    world.put(job("plain"))  # none of MultiKueue's
    world.wait(25.0)
    assert (world.core.kueue.waiting, world.core.kueue.silent) == (1, True)

    # A Workload without a word about quota was made by it and left alone: it is silent still.
    world.submit("new")
    world.status("new", conditions=())
    world.wait(19.0)
    assert (world.core.kueue.waiting, world.core.kueue.silent) == (1, False)
    world.wait(5.0)
    assert world.core.kueue.silent
    world.reserve("new")
    world.settle()
    assert not world.core.kueue.silent


def test_while_the_hub_itself_is_not_heard_its_kueue_is_not_blamed() -> None:
    world = nominated_to_w1()
    world.core.hub.hears("no connection", world.now_s)
    world.wait(60.0, step_s=2.0)
    assert not world.core.kueue.silent
    assert told(world, NO_COPY) != []
