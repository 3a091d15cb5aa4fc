"""Stories of jobs with a least and a most number of pods that a worker's own Kueue starts and lets
change: what is free there is its quota, and who waits there may be anybody's."""

from typing import Any

import msgspec
import pytest

from berthmaster.control.resolver.replay import replay
from berthmaster.lib.lifecycle.workload import Key
from berthmaster.lib.messages.api import WhyReply
from berthmaster.lib.messages.control import QueuePlace, QueueSetting
from berthmaster.lib.messages.fleet import LocalQueueReport, QueueReport
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import Admitted, PodSet, Resized, Succeeded
from tests.support.builders import alive, job, node, profile
from tests.support.deciding import TENANT, World
from tests.unit.control.resolver.test_quota import flavor
from tests.unit.control.resolver.test_quota import queue as report

Sizes = tuple[int | None, int, int | None]
LOCAL = LocalQueueReport(namespace="team-a", name="gpu")


class Worker(World):
    """One cluster of two nodes with eight GPUs each, whose Kueue grants eight to queue ``gpu``."""

    def __init__(self) -> None:
        super().__init__()
        self.counter = 0
        self.fact(profile(), alive(), node("c1", "n1"), node("c1", "n2"))
        places = {"*": QueuePlace(namespace="team-a")}
        self.control(QueueSetting(queue="gpu", via="worker", places=places))
        self.control(QueueSetting(queue="default"))
        self.kueue(0)

    def kueue(self, used: int, **fields: Any) -> None:
        self.counter += 1
        flavors = (flavor(used=used),)
        self.fact(report(flavors=flavors, local=(LOCAL,), counter=self.counter, **fields))

    def wait(self, name: str, sizes: Sizes, **fields: Any) -> Key:
        least, count, most = sizes
        asked: dict[str, Any] = {"queue": "gpu", "gpus": 1} | fields
        return self.submit(job(name, count=count, min_count=least, max_count=most, **asked))

    def let_in(self, name: Key, *, resizable: bool = True) -> None:
        """Claimed, let in, running; its Kueue's report knows of it."""
        self.claim(name)
        self.append(Admitted(**self._attempt(name), resizable=resizable))  # type: ignore[arg-type]
        self.run(name)
        self.kueue(self.used())

    def begin(self, name: str, sizes: Sizes, *, resizable: bool = True, **fields: Any) -> Key:
        found = self.wait(name, sizes, **fields)
        self.settle()
        assert self.placed_on(found), name
        if fields.get("queue", "gpu") == "gpu":
            self.let_in(found, resizable=resizable)
        else:
            self.claim(found)
            self.run(found)
        return found

    def used(self) -> int:
        return sum(len(w.pods) for w in self.workloads.values() if w.live and w.resizable)

    def carry_out(self, name: Key, pods: int | None = None, why: str = "") -> None:
        """Its executor has brought it about, or so many of it; Kueue's report follows."""
        self.pass_s(1.0)
        told = self.workloads[name].resizing
        told = told if pods is None else self.workloads[name].pods[:pods]
        self.append(Resized(**self._attempt(name), pods=told, reason=why))  # type: ignore[arg-type]
        self.kueue(self.used())

    def orders(self) -> list[tuple[str, int, int, str, str]]:
        """Whose number is changed, from what to what, for whom and by what right; nobody is
        ended."""
        plans = self.settle()
        assert not any(plan.decision.evictions for plan in plans)
        told = [each for plan in plans for each in plan.decision.resizes]
        return [(o.id, o.pods_before, o.pods, o.for_id, o.right) for o in told]

    def summary(self, name: str) -> str:
        told = self.why(TENANT, name, self.now_s)
        assert isinstance(told, WhyReply)
        return told.summary

    def ask(self, gpus: int) -> str:
        """Why c1 is out for so many GPUs."""
        request = job("other", queue="gpu", gpus=1, count=gpus)
        return self.dry_run(TENANT, request, self.now_s).filtered.get("c1", "")

    def places(self, name: Key) -> int:
        return len(self.workloads[name].pods)


@pytest.fixture
def world() -> Worker:
    return Worker()


def test_it_starts_with_what_quota_there_is_and_grows_into_what_is_left(world: Worker) -> None:
    world.begin("rigid", (None, 6, None))
    elastic = world.begin("elastic", (1, 4, 8))
    assert world.places(elastic) == 2
    ends = next(k for k, w in world.workloads.items() if w.id == "rigid")
    workload = world.workloads[ends]
    world.append(
        Succeeded(**world._attempt(ends), digest=workload.digest, submitted_at_s=0.0)  # type: ignore[arg-type]
    )
    world.kueue(2)
    world.pass_s(61.0)
    assert world.orders() == [("elastic", 2, 4, "", "")]  # first what it wished for
    # The report does not know of the two that come: they are charged, and once.
    assert world.ask(5) == "no quota left: needs 5 nvidia.com/gpu, 4 left"
    assert world.ask(4) == ""
    world.carry_out(elastic)
    assert world.ask(4) == ""
    assert world.ask(5) == "no quota left: needs 5 nvidia.com/gpu, 4 left"
    world.pass_s(61.0)
    assert world.orders() == [("elastic", 4, 8, "", "")]
    assert replay(world.inputs(), "all").first_difference is None


def test_one_whose_kueue_lets_no_number_change_keeps_it_and_why_says_so(world: Worker) -> None:
    elastic = world.begin("elastic", (1, 2, 8), resizable=False)
    world.pass_s(100.0)
    assert world.orders() == []
    assert "goes on, as it has no elastic jobs (from 0.18 on, unless off)" in world.summary(
        "elastic"
    )
    world.evict(elastic)
    world.settle()
    world.let_in(elastic)
    assert "Kueue" not in world.summary("elastic")
    world.pass_s(61.0)
    assert world.orders() == [("elastic", 2, 8, "", "")]


@pytest.mark.parametrize(
    ("fields", "grows"),
    [({"pending": 1}, False), ({"cohort": "all"}, True)],
    ids=["somebody waits in its queue", "nobody waits"],
)
def test_it_grows_into_quota_for_which_nobody_waits_there(
    world: Worker, fields: dict[str, Any], grows: bool
) -> None:
    world.begin("elastic", (1, 2, 4))
    world.kueue(2, **fields)
    world.pass_s(61.0)
    assert bool(world.orders()) is grows


def test_who_waits_in_a_queue_that_lends_to_its_own_comes_first_as_well(world: Worker) -> None:
    world.begin("elastic", (1, 2, 4))
    lender: QueueReport = report(
        name="lender", cohort="all", local=(), counter=1, flavors=(flavor(used=8),), pending=1
    )
    world.fact(lender)
    world.kueue(2, cohort="all")
    world.pass_s(61.0)
    assert world.orders() == []
    world.fact(msgspec.structs.replace(lender, stamp=report(counter=2).stamp, pending=0))
    assert world.orders() == [("elastic", 2, 4, "", "")]


def test_it_does_not_take_quota_that_one_of_ours_waits_for(world: Worker) -> None:
    world.begin("rigid", (None, 4, None))
    world.begin("elastic", (1, 2, 4))
    world.wait("whole", (None, 4, None))
    assert world.orders() == []
    world.pass_s(100.0)
    assert world.orders() == []


def test_elastic_job_shrinks_for_higher_priority(world: Worker) -> None:
    elastic = world.begin("elastic", (2, 8, None))
    mine = world.wait("mine", (None, 3, None), priority=5)
    assert world.orders() == [("elastic", 8, 5, "mine", "priority")]
    assert world.placed_on(mine) == ""
    # Shrunk, and its Kueue's report does not know yet: nobody shrinks once more for it.
    world.pass_s(1.0)
    told = world.workloads[elastic].resizing
    world.append(Resized(**world._attempt(elastic), pods=told))  # type: ignore[arg-type]
    assert world.orders() == []
    world.kueue(5)
    world.settle()
    assert (world.placed_on(mine), world.places(elastic)) == ("c1", 5)
    # Nobody shrinks for an equal, nor below its least.
    world.let_in(mine)
    world.wait("equal", (None, 1, None))
    assert world.orders() == []
    world.wait("large", (None, 4, None), priority=9)
    assert world.orders() == []
    assert replay(world.inputs(), "all").first_difference is None


def test_lent_quota_returns_to_waiting_jobs(world: Worker) -> None:
    elastic = world.begin("elastic", (1, 2, 8))
    world.pass_s(61.0)
    assert world.orders() == [("elastic", 2, 8, "", "")]
    world.carry_out(elastic)
    world.wait("next", (None, 2, None), priority=-5)
    assert world.orders() == [("elastic", 8, 6, "next", "")]
    world.carry_out(elastic)
    world.settle()
    world.wait("plain", (None, 9, None), queue="default")
    assert world.orders() == [("elastic", 6, 5, "plain", "")]
    world.carry_out(elastic)
    world.settle()
    # Below what it wished for nobody has a right to it whom Kueue does not govern.
    world.wait("urgent", (None, 4, None), queue="default", priority=100)
    assert world.orders() == []


def test_room_that_quota_does_not_do_for_is_kept_for_a_while_only(world: Worker) -> None:
    elastic = world.begin("elastic", (2, 8, None))
    mine = world.wait("mine", (None, 3, None), priority=5)
    assert len(world.orders()) == 1
    world.carry_out(elastic)
    world.kueue(8)  # somebody else was quicker there
    world.wait("plain", (None, 11, None), queue="default")
    world.settle()
    plain = next(k for k, w in world.workloads.items() if w.id == "plain")
    assert (world.placed_on(mine), world.placed_on(plain)) == ("", "")
    world.pass_s(100.0)
    world.settle()
    world.pass_s(1.0)
    world.settle()
    assert (world.placed_on(mine), world.placed_on(plain)) == ("", "c1")


def test_what_kueue_does_not_let_in_is_tried_again_ever_later_and_told(world: Worker) -> None:
    elastic = world.begin("elastic", (1, 2, 4))
    late = "not all pods ran within 60 s: pod main-2: Kueue has not let in so many"
    for rest_s in (60.0, 120.0, 240.0):
        world.pass_s(rest_s - 1.5)
        assert world.orders() == []
        world.pass_s(2.0)
        assert world.orders() == [("elastic", 2, 4, "", "")]
        world.carry_out(elastic, 2, late)
        assert (world.places(elastic), world.ask(6)) == (2, "")  # the room is given back
        assert f"it was to have more, and goes on with what it has: {late}" in world.summary(
            "elastic"
        )
    assert world.orders() == []


def test_one_that_kueue_takes_back_while_it_grows_waits_as_it_was_asked_for(world: Worker) -> None:
    elastic = world.begin("elastic", (1, 2, 4))
    world.pass_s(61.0)
    assert world.orders() == [("elastic", 2, 4, "", "")]
    world.evict(elastic)
    world.kueue(0)
    workload = world.workloads[elastic]
    assert workload.request is not None
    assert (workload.request.pod_sets[0].count, workload.coming) == (2, 0)
    assert world.ask(8) == ""
    world.settle()
    assert world.places(elastic) == 2
    assert isinstance(world.workloads[elastic].pods[0], PodBinding)


def test_an_executor_is_not_believed_that_kueue_lets_several_pod_sets_change(world: Worker) -> None:
    sets = tuple(PodSet(name=name, gpus=1, count=4, min_count=1) for name in ("a", "b"))
    elastic = world.submit(job("elastic", queue="gpu", pod_sets=sets))
    world.settle()
    assert world.placed_on(elastic) == "c1"
    world.let_in(elastic)
    world.wait("mine", (None, 1, None), priority=5)
    assert world.orders() == []
    assert world.places(elastic) == 8


def test_what_shrinks_gives_back_quota_of_the_flavor_whose_nodes_it_is_on(world: Worker) -> None:
    def told(used: int) -> None:
        world.counter += 1
        theirs = flavor("theirs", labels={"kind": "theirs"}, used=8)
        ours = flavor("ours", labels={"kind": "ours"}, used=used)
        world.fact(report(flavors=(theirs, ours), local=(LOCAL,), counter=world.counter))

    for name in ("n1", "n2"):
        world.fact(node("c1", name, labels={"kind": "ours"}, counter=2))
    told(0)
    world.begin("elastic", (2, 8, None))
    told(8)
    world.wait("mine", (None, 3, None), priority=5, node_labels={"kind": "ours"})
    assert world.orders() == [("elastic", 8, 5, "mine", "priority")]
    assert replay(world.inputs(), "all").first_difference is None
