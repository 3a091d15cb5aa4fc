"""Where the hub says that a Workload runs, held against what workers report of their copies."""

import pytest

from berthmaster.cli.audit.core import Auditor
from berthmaster.lib.messages.fleet import CopyReport
from berthmaster.lib.messages.placement import Decision
from tests.unit.hub.multikueue.hub_objects import copy_report
from tests.unit.hub.multikueue.world import World

Said = tuple[float, CopyReport]


def lived(*, ends: bool = True) -> World:
    """Claimed at about 1000 s, admitted and running in w1 from 1000 s on, until 1060 s."""
    world = World()
    world.all_workers()
    world.begin()
    world.submit()
    world.settle()
    world.reserve()
    world.settle()
    world.admit("train", "w1")
    world.settle()
    world.start()
    world.settle()
    if ends:
        world.now_s = 1060.0
        world.finish("train")
        world.settle()
    return world


def findings(world: World, *said: Said, heard: tuple[float, ...] = ()) -> list[str]:
    auditor = Auditor()
    for sequence, at_s, message in world.log.messages:
        if isinstance(message, Decision):
            auditor.on_decision(message, sequence)
        else:
            auditor.on_event(message, sequence, at_s)
    facts: list[tuple[float, CopyReport | None]] = [*said, *((at_s, None) for at_s in heard)]
    for at_s, report in sorted(facts, key=lambda one: one[0]):
        if report is None:
            auditor.on_fact("w2", at_s)
        else:
            auditor.on_copy(report, at_s)
    return [f"{found.rule}: {found.what}" for found in auditor.report().findings]


def at(at_s: float, cluster: str, **how: object) -> Said:
    return at_s, copy_report(cluster, "train", **how)


ALL_THE_TIME = tuple(range(1000, 1070, 2))
GOOD: dict[str, tuple[Said, ...]] = {
    "one copy": (
        at(1000.0, "w1"),
        at(1000.5, "w1", admitted=True),
        at(1060.0, "w1", admitted=True, finished=True),
        at(1061.0, "w1", gone=True),
    ),
    "a second one that Kueue removes late": (
        at(1000.0, "w1", admitted=True),
        at(1000.0, "w2", admitted=True),
        at(1008.0, "w2", gone=True),
    ),
    "a second one that waits": (at(1000.0, "w1", admitted=True), at(1000.0, "w2")),
    "one that was evicted before": (
        at(900.0, "w2", admitted=True),
        at(990.0, "w2", admitted=True, evicted=True),
        at(1000.0, "w1", admitted=True),
    ),
    "a namesake's": ((1000.0, copy_report("w2", "other", admitted=True, finished=True)),),
    "nobody reports copies": (),
}
BAD: dict[str, tuple[tuple[Said, ...], str]] = {
    "two run": (
        (
            at(1000.0, "w1", admitted=True),
            at(1010.0, "w2", admitted=True),
            at(1040.0, "w2", gone=True),
        ),
        "in w1 by the hub, and w2 ran its copy for 30 s",
    ),
    "it runs where nobody says": (
        (at(1005.0, "w2", admitted=True), at(1035.0, "w2", admitted=True, evicted=True)),
        "in w1 by the hub, and w2 ran its copy for 30 s",
    ),
    "it ended elsewhere": (
        (at(1055.0, "w2", admitted=True), at(1058.0, "w2", admitted=True, finished=True)),
        "ended well in w1 by the hub, and its copy in w2",
    ),
}


@pytest.mark.parametrize("said", GOOD.values(), ids=GOOD)
def test_what_is_well_is_no_finding(said: tuple[Said, ...]) -> None:
    assert findings(lived(), *said, heard=ALL_THE_TIME) == []


@pytest.mark.parametrize(("said", "what"), BAD.values(), ids=BAD)
def test_disagreement_of_hub_and_workers_is_found(said: tuple[Said, ...], what: str) -> None:
    assert findings(lived(), *said, heard=ALL_THE_TIME) == [f"runs where the hub says: {what}"]


def test_one_that_has_not_ended_is_judged_as_far_as_its_cluster_was_heard() -> None:
    said = (at(1000.0, "w1", admitted=True), at(1002.0, "w2", admitted=True))
    assert findings(lived(ends=False), *said, heard=(1008.0,)) == []
    (found,) = findings(lived(ends=False), *said, heard=(1008.0, 1016.0))
    assert found.endswith("w2 ran its copy for 14 s")


def test_a_silent_cluster_says_nothing_of_what_runs_there_meanwhile() -> None:
    said = (at(1000.0, "w1", admitted=True), at(1002.0, "w2", admitted=True))
    gone = at(1056.0, "w2", gone=True)
    assert findings(lived(), *said, gone, heard=(1006.0, 1050.0)) == []


def completed(at_s: float, cluster: str, times: int, **how: object) -> Said:
    return at(at_s, cluster, succeeded=times, **how)


ONCE: dict[str, tuple[Said, ...]] = {
    "once": (completed(1059.0, "w1", 1, finished=True), completed(1060.0, "w1", 1, gone=True)),
    "once, and its inventory began anew": (
        completed(1059.0, "w1", 1),
        completed(1060.0, "w1", 0, gone=True),
    ),
    "a namesake": ((1059.0, copy_report("w1", "other", succeeded=7)),),
}
MORE: dict[str, tuple[tuple[Said, ...], str]] = {
    "in one cluster": (
        (
            completed(1040.0, "w1", 1),
            completed(1041.0, "w1", 1, gone=True),
            completed(1050.0, "w1", 2),
            completed(1059.0, "w1", 3),
        ),
        "3 times: in w1 3",
    ),
    "in two": (
        (completed(1040.0, "w2", 1, gone=True), completed(1059.0, "w1", 1)),
        "2 times: in w1 1, w2 1",
    ),
    "and its inventory began anew": (
        (completed(1040.0, "w1", 2), completed(1059.0, "w1", 1)),
        "3 times: in w1 3",
    ),
}


@pytest.mark.parametrize("name", ONCE)
def test_a_job_that_completed_once_is_no_finding(name: str) -> None:
    assert [one for one in findings(lived(), *ONCE[name]) if "once" in one] == []


@pytest.mark.parametrize("name", MORE)
def test_a_job_that_completed_more_than_once_is_a_finding(name: str) -> None:
    said, what = MORE[name]
    found = [one for one in findings(lived(), *said) if "once" in one]
    assert found == [f"succeeded once: {what}"]
