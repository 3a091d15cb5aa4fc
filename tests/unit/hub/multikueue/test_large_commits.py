"""What a hub decides at once fits into messages of the bus."""

from collections.abc import Sequence

import msgspec
import pytest

from berthmaster.lib.lifecycle.commits import COMMIT_BYTES
from berthmaster.lib.lifecycle.instructions import Refused, Stored
from berthmaster.lib.messages.placement import Decision
from berthmaster.lib.messages.workload import Failed, WorkloadEvent
from berthmaster.lib.nats.errors import TooLarge
from tests.unit.hub.multikueue.world import Log, World

SERVER_TAKES = 1 << 20


class Bounded(Log):
    """A log that takes no message of more bytes, and nothing of one workload."""

    def __init__(self, most: int, but: str = "") -> None:
        super().__init__()
        self.most = most
        self.but = but
        self.tries: list[int] = []  # events of each commit

    def commit(
        self, decision: Decision, events: Sequence[WorkloadEvent], at_s: float
    ) -> Stored | Refused:
        self.tries.append(len(events))
        is_large = any(len(msgspec.json.encode(body)) > self.most for body in (decision, *events))
        if is_large or self.but in [event.id for event in events]:
            raise TooLarge("a message is too large")
        return super().commit(decision, events, at_s)


def waiting(world: World, jobs: int, log: Bounded) -> list[str]:
    """Workloads that all have quota at once."""
    world.log = log
    world.worker("w1", gpus=1000)
    world.begin()
    names = [f"job-{number}" for number in range(jobs)]
    for name in names:
        world.submit(name)
    world.settle(100)
    for name in names:
        world.reserve(name)
    return names


def nominated(world: World, names: list[str]) -> list[str]:
    return [name for name in names if world.nominated(name)]


def sizes(world: World) -> list[int]:
    return [len(msgspec.json.encode(decision)) for decision in world.decisions()]


def test_decision_of_many_workloads_stays_below_its_bytes() -> None:
    most = 12_000
    world, log = World(commit_limit=900, commit_bytes=most), Bounded(SERVER_TAKES)
    names = waiting(world, 60, log)
    world.settle(200)
    assert nominated(world, names) == names
    a_choice = max(
        len(msgspec.json.encode(choice)) for each in world.decisions() for choice in each.placements
    )
    assert len(sizes(world)) > 1
    assert max(sizes(world)) < most + a_choice + 2000
    assert COMMIT_BYTES + 300_000 < SERVER_TAKES


def test_commit_that_is_too_large_is_halved_until_it_fits() -> None:
    world, log = World(), Bounded(3000)
    names = waiting(world, 16, log)
    world.settle(200)
    assert nominated(world, names) == names
    assert max(sizes(world)) <= 3000
    assert log.tries[:2] == [16, 8]
    assert len(log.tries) < 16


def test_placement_that_never_fits_fails_and_holds_up_no_other() -> None:
    world, log = World(), Bounded(SERVER_TAKES)
    names = waiting(world, 5, log)
    large = world.name(names[2])
    log.but = large.partition("/")[2]
    world.settle(200)
    assert nominated(world, names) == [name for name in names if name != names[2]]
    [last] = [event for event in log.story(large) if isinstance(event, Failed)]
    assert last.reason == "a placement of 1 pods does not fit into one message"
    tries = len(log.tries)
    world.wait(30.0)
    assert len(log.tries) == tries < 10


@pytest.mark.parametrize("commit_limit", [1, 3])
def test_commit_ends_at_its_limit_of_events(commit_limit: int) -> None:
    world, log = World(commit_limit=commit_limit), Bounded(SERVER_TAKES)
    names = waiting(world, 5, log)
    world.settle(200)
    assert nominated(world, names) == names
    assert max(log.tries) <= commit_limit
