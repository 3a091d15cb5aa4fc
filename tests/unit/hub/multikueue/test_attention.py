"""A worker whose Kueue is dead looks emptiest, and goes last all the same."""

from typing import Any

from berthmaster.hub.multikueue.core.deciding.traps import WORKER_SILENT
from berthmaster.hub.multikueue.core.known.avoided import Attention
from berthmaster.lib.messages.fleet import CopyReport, QueueReport, Stamp
from berthmaster.lib.messages.workload import Admitted, Evicted
from tests.unit.hub.multikueue.hub_objects import copy_report, queue_report
from tests.unit.hub.multikueue.world import World

LIMIT_S = 3.0


def unseen(cluster: str, name: str = "train") -> CopyReport:
    """A copy of which Kueue there has said nothing."""
    return copy_report(cluster, name, looked_at=False, message="Kueue has not looked at it yet")


def submitted(world: World, *names: str) -> None:
    for name in names:
        world.submit(name)
        world.reserve(name)
    world.settle()


def last_place(world: World, name: str) -> str:
    """Where it was placed last."""
    wanted = world.name(name).partition("/")[2]
    return [cluster for workload, cluster in world.placements() if workload == wanted][-1]


def magnet() -> World:
    """w1 has most room, and nobody there looks at anything."""
    world = World(workers=("w1", "w2"))
    world.worker("w1", gpus=16)
    world.worker("w2", gpus=4)
    world.begin()
    submitted(world, "a", "b")
    assert [last_place(world, name) for name in "ab"] == ["w1", "w1"]
    for name in "ab":
        world.fact(f"copy/{name}", unseen("w1", name))
    return world


def test_a_copy_that_nobody_looks_at_while_others_are_demotes_its_cluster_for_all() -> None:
    world = magnet()
    world.fact("copy/other", copy_report("w2", "other", message="waits for quota"))
    world.wait(2.5)
    assert [last_place(world, name) for name in "ab"] == ["w1", "w1"]
    world.wait(2.0)

    # All that waited there go elsewhere, after seconds and not after their patience each.
    assert [last_place(world, name) for name in "ab"] == ["w2", "w2"]
    words = "nobody has looked at its copy for 3 s, while others are looked at"
    assert world.core.know.demoted(world.policy, world.now_s) == {"w1": words}
    told = {tell.note for tell in world.told if tell.reason == WORKER_SILENT}
    cure = "does Kueue's manager run there? `berth doctor --worker w1` looks at it"
    assert told == {f"nobody in w1 looks at its copy, while others are looked at: {cure}"}
    assert world.core.trap_counts[WORKER_SILENT] == 2

    # The next one does not go there, be the others as full as they may.
    world.worker("w2", gpus=4, free=0, used=100)
    submitted(world, "next")
    assert last_place(world, "next") == "w2"
    tenant, _, workload_id = world.name("next").partition("/")
    reply = world.core.why(tenant, workload_id, world.now_s)
    assert reply is not None
    assert f"w1 goes last: {words}; {cure}" in reply.hints
    (choice,) = world.decisions()[-1].placements
    assert [ranked.cluster for ranked in choice.ranking] == ["w2", "w1"]


def test_it_is_as_good_as_any_once_a_copy_was_admitted_there() -> None:
    world = magnet()
    world.fact("copy/other", copy_report("w2", "other"))
    world.wait(4.0)
    # Its manager is back, and the first look is no admission yet.
    world.fact("copy/a", copy_report("w1", "a", message="waits for quota"))
    world.fact("copy/b", copy_report("w1", "b", message="waits for quota"))
    assert list(world.core.know.demoted(world.policy, world.now_s)) == ["w1"]
    world.fact("copy/b", copy_report("w1", "b", quota_reserved=True, admitted=True))
    assert world.core.know.demoted(world.policy, world.now_s) == {}
    submitted(world, "next")
    assert last_place(world, "next") == "w1"


def test_what_the_log_says_of_it_is_known_after_a_restart() -> None:
    world = magnet()
    world.fact("copy/other", copy_report("w2", "other"))
    world.wait(4.0)
    for name in "ab":
        world.fact(f"copy/{name}", copy_report("w1", name, gone=True))
    world.restart()
    world.wait(1.0)
    assert list(world.core.know.demoted(world.policy, world.now_s)) == ["w1"]
    for name in "ab":
        world.fact(f"copy/{name}", copy_report("w2", name, message="insufficient unused quota"))
    # Nobody admits where nothing is sent: after a while one may try again.
    world.wait(610.0, step_s=10.0)
    assert world.core.know.demoted(world.policy, world.now_s) == {}


def test_one_patience_that_runs_out_is_enough() -> None:
    world = World(workers=("w1", "w2"), patience_s=15.0)
    world.worker("w1", gpus=8)
    world.worker("w2", gpus=4)
    world.begin()
    submitted(world, "a")  # its copy never comes: the worker's webhooks are dead as well
    assert last_place(world, "a") == "w1"
    world.wait(11.0)  # the hub's manager was not holding it back: a write has not helped
    world.worker("w2", gpus=16)
    submitted(world, "other")
    assert last_place(world, "other") == "w2"
    world.fact("copy/other", copy_report("w2", "other"))
    world.worker("w2", gpus=4)
    submitted(world, "b")
    assert last_place(world, "b") == "w1"
    world.wait(8.0)
    assert last_place(world, "a") == "w2"
    assert last_place(world, "b") == "w2"  # not after a patience of its own
    submitted(world, "c")
    assert last_place(world, "c") == "w2"


def test_a_cluster_that_was_silent_is_as_good_as_any_once_it_is_heard_again() -> None:
    world = World(workers=("w1", "w2"), patience_s=15.0)
    world.worker("w1", gpus=8)
    world.worker("w2", gpus=4)
    world.begin()
    submitted(world, "a")
    assert last_place(world, "a") == "w1"
    world.wait(18.0, heard=("w2",))
    assert last_place(world, "a") == "w2"
    (evicted,) = (m for _, _, m in world.log.messages if isinstance(m, Evicted))
    assert evicted.reason.startswith("w1 is silent")
    assert world.core.know.demoted(world.policy, world.now_s) == {}
    world.wait(1.0)
    submitted(world, "b")
    assert last_place(world, "b") == "w1"


def test_a_cluster_that_answers_that_its_quota_is_used_up_is_alive() -> None:
    world = World(workers=("w1", "w2"), patience_s=5.0)
    world.worker("w1", gpus=8)
    world.worker("w2", gpus=4, free=0)
    world.begin()
    submitted(world, "a")
    words = "couldn't assign flavors: insufficient unused quota for nvidia.com/gpu"
    world.fact("copy/a", copy_report("w1", "a", message=words))
    world.wait(8.0)
    assert last_place(world, "a") == "w2"
    assert world.core.know.demoted(world.policy, world.now_s) == {}


def test_without_anybody_elsewhere_nothing_is_said_of_one() -> None:
    world = magnet()
    world.wait(10.0)
    assert world.core.know.demoted(world.policy, world.now_s) == {}
    assert [last_place(world, name) for name in "ab"] == ["w1", "w1"]


# The tracker by itself


def seen(attention: Attention, copy: CopyReport, at_s: float) -> None:
    attention.copy_reported(copy, None, at_s)


def reported(pending: int) -> QueueReport:
    report = queue_report("w1")
    return QueueReport(
        cluster="w1",
        queue=report.queue,
        stamp=Stamp(epoch=1, counter=1),
        observed_at_s=0.0,
        pending=pending,
    )


def test_a_queue_that_counts_what_came_is_not_dead_although_it_looks_at_its_first_only() -> None:
    copy = unseen("w1")

    def neglected_s(alive_at_s: float) -> float:
        attention = Attention()
        attention.sign_of_life("w1", 103.0)
        seen(attention, copy_report("w2"), 100.0)
        seen(attention, copy, 100.0)
        attention.queue_reported(reported(1), None, alive_at_s)  # as it was before: no news
        attention.queue_reported(reported(2), reported(1), alive_at_s)
        return attention.neglected_s(copy, 104.0, LIMIT_S)

    assert neglected_s(alive_at_s=99.0) == 4.0
    assert neglected_s(alive_at_s=99.8) == 0.0  # stored in the same moment
    assert neglected_s(alive_at_s=101.0) == 0.0


def test_only_looks_of_the_last_minute_show_that_kueue_elsewhere_is_quicker() -> None:
    def neglected_s(looked_at_s: float) -> float:
        attention = Attention()
        attention.sign_of_life("w1", 103.0)
        seen(attention, copy_report("w2"), looked_at_s)
        seen(attention, unseen("w1"), 100.0)
        return attention.neglected_s(unseen("w1"), 103.0, LIMIT_S)

    assert [neglected_s(at_s) for at_s in (39.0, 40.0, 102.0)] == [0.0, 3.0, 3.0]


def test_a_cluster_out_of_reach_neglects_nothing_and_its_kueue_has_its_time_to_come_back() -> None:
    attention = Attention()
    attention.sign_of_life("w1", 100.0)
    seen(attention, unseen("w1"), 100.5)

    def neglected_s(now_s: float) -> float:
        seen(attention, copy_report("w2"), now_s)
        return attention.neglected_s(unseen("w1"), now_s, LIMIT_S)

    assert neglected_s(110.0) == 0.0  # nobody has heard of it since
    attention.sign_of_life("w1", 120.0)
    assert neglected_s(120.0) == 0.0
    for second in range(1, 33):
        attention.sign_of_life("w1", 120.0 + second)
        assert neglected_s(120.0 + second) == 0.0
    attention.sign_of_life("w1", 153.0)
    assert neglected_s(153.0) == LIMIT_S


def test_evidence_of_the_log_counts_until_an_admission() -> None:
    attention = Attention()
    head: dict[str, Any] = {"tenant": "t", "id": "w", "after": 1, "at_s": 0.0, "by": "x"}
    evicted = Evicted(**head, cluster="w1", attempt=1, reason="not admitted within 30 s: waits")
    other = Evicted(**head, cluster="w2", attempt=1, reason="Preempted: by another")
    for event in (evicted, other):
        attention.learn(event, 100.0)
    assert attention.demoted({}, 101.0, LIMIT_S) == {"w1": "not admitted within 30 s: waits"}
    attention.learn(Admitted(**head, cluster="w1", attempt=2), 102.0)
    assert attention.demoted({}, 103.0, LIMIT_S) == {}
