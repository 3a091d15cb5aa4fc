"""Commits of which a message is too large, of any decider."""

from berthmaster.lib.lifecycle.commits import Refusals
from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.workload import EvictionRequested, Failed, Placed, WorkloadEvent
from tests.support.builders import job

HEAD = {"tenant": "acme", "at_s": 1.0, "by": "decider", "cluster": "c1", "attempt": 1}


def placed(name: str) -> Placed:
    head = HEAD | {"id": name, "after": 3, "pods": (), "request": job(name, count=7)}
    return Placed(**head, decision=1)  # type: ignore[arg-type]


def evicted(name: str) -> EvictionRequested:
    head = HEAD | {"id": name, "after": 3, "reason": "another needs its room"}
    return EvictionRequested(**head, decision=1)  # type: ignore[arg-type]


def tried(refusals: Refusals, *events: WorkloadEvent) -> object:
    open_ = {
        f"acme/{event.id}": Workload(tenant="acme", id=event.id, sequence=3) for event in events
    }
    return refusals.too_large(events, open_, "decider", 2.0)  # type: ignore[arg-type]


def test_too_large_commits_are_halved_until_one_is_stored() -> None:
    refusals = Refusals()
    limits = []
    for number in (9, 4, 2):
        assert tried(refusals, *(placed(f"job-{at}") for at in range(number))) is None
        limits.append(refusals.limit)
    assert limits == [4, 2, 1]
    refusals.stored()
    assert refusals.limit is None


def test_placement_that_is_too_large_alone_fails() -> None:
    ending = tried(Refusals(), placed("job-1"))
    assert isinstance(ending, Failed)
    assert (ending.id, ending.after, ending.attempt) == ("job-1", 3, 0)
    assert ending.reason == "a placement of 7 pods does not fit into one message"


def test_orders_that_are_too_large_alone_or_together_are_suspended() -> None:
    refusals = Refusals()
    assert tried(refusals, evicted("one"), evicted("two")) is None
    assert (refusals.limit, refusals.suspended(2.0)) == (1, frozenset())
    assert tried(refusals, evicted("one"), evicted("two")) is None
    assert (refusals.limit, refusals.suspended(2.0)) == (None, frozenset({"acme/one"}))
    refusals = Refusals()
    assert tried(refusals, evicted("one")) is None
    assert refusals.suspended(2.0) == frozenset({"acme/one"})
