"""A Workload whose commits the log refuses for ever holds up no other."""

from collections.abc import Sequence

from berthmaster.lib.lifecycle.instructions import Refused, Stored
from berthmaster.lib.lifecycle.workload import Key, key
from berthmaster.lib.messages.placement import Decision
from berthmaster.lib.messages.workload import WorkloadEvent
from tests.unit.hub.multikueue.world import Log, World


class Damaged(Log):
    """Of one workload it counts an event that nobody hears."""

    def __init__(self, lost_of: list[Key]) -> None:
        super().__init__()
        self.lost_of = lost_of

    def commit(
        self, decision: Decision, events: Sequence[WorkloadEvent], at_s: float
    ) -> Stored | Refused:
        if any(key(event.tenant, event.id) in self.lost_of for event in events):
            return Refused()
        return super().commit(decision, events, at_s)


def test_all_others_are_nominated() -> None:
    world = World()
    log = world.log = Damaged([])
    world.worker("w1", gpus=16)
    world.begin()
    names = [f"job-{number}" for number in range(5)]
    for name in names:
        world.submit(name)
    log.lost_of.append(world.name(names[2]))
    for name in names:
        world.reserve(name)
    world.wait(5.0)
    assert [world.nominated(name) for name in names] == [("w1",), ("w1",), (), ("w1",), ("w1",)]
    commits = len([body for _, _, body in log.messages if isinstance(body, Decision)])
    assert commits <= 4
    log.lost_of.clear()  # an operator has mended it
    world.wait(15.0)
    assert world.nominated(names[2]) == ("w1",)
